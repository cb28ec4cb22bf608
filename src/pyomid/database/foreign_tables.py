"""Tables of HBase that other programs created. This module finds tables that transactions wrote and the catalog does
not list (K6). It also imports, by parts, a table that was written without transactions (`protocol.import_table`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyomid.database.driver import Driver
from pyomid.database.found_tables import check_markers
from pyomid.database.issued import drawn_start
from pyomid.database.table_admin import create_table, forget_dropped, new_level
from pyomid.database.validation import check_families
from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.hashing import table_id
from pyomid.protocol.import_table import RangeImported, check_range
from pyomid.types import TABLES_UNCONFIRMED, KeyRange

SAMPLED_ROWS: Final = 1000
"""Rows sampled in each region. Nearly every row of a table that transactions write has shadow cells."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A table that transactions wrote although the catalog does not list it."""

    name: str
    families: list[str]
    is_marked: bool


@dataclass(frozen=True, slots=True)
class Discovery:
    """Tables to register, and ids of marks whose table's name is unknown."""

    tables: list[Unregistered]
    unnamed: list[int]


def discover(deployment: Deployment) -> Discovery:
    """Return the unregistered tables that hold shadow cells or have a mark (matched by the name's hash).

    The call misses a table if all its writers died before their first shadow cell, under a TSO that leaves no marks.
    """
    if deployment.foreign is None:
        raise Misuse("only HBase holds tables of other programs: in this store every table is registered")
    registered = {info.name for info in deployment.catalog.registered()}
    marks = set(deployment.catalog.unknown_tables()) - {TABLES_UNCONFIRMED}
    marks -= {table_id(name.encode()) for name in registered}
    found: list[Unregistered] = []
    for name, families in sorted(deployment.foreign.foreign_tables().items()):
        if name in registered:
            continue
        is_marked = table_id(name.encode()) in marks
        marks.discard(table_id(name.encode()))
        if is_marked or deployment.foreign.holds_shadow_cells(name, rows_max=SAMPLED_ROWS):
            found.append(Unregistered(name, families, is_marked))
    return Discovery(found, sorted(marks))


def named_marks(deployment: Deployment) -> dict[int, str]:
    """Return the marks that block sanitizing: table id → the table's name, empty if the store has no such table."""
    registered = {table_id(info.name.encode()) for info in deployment.catalog.registered()}
    marks = sorted(set(deployment.catalog.unknown_tables()) - {TABLES_UNCONFIRMED} - registered)
    foreign = deployment.foreign.foreign_tables() if marks and deployment.foreign is not None else {}
    names = {table_id(name.encode()): name for name in foreign}
    return {mark: names.get(mark, "") for mark in marks}


def confirm(deployment: Deployment, nonce: bytes | None) -> None:
    """Record an operator's confirmation, after `discover`, that all tables that a Java TSO served are registered (K6).

    `nonce` is the nonce that the mark had before `discover`. If a Java TSO led meanwhile, its new mark stays.
    """
    if nonce is not None:
        deployment.catalog.clear_unknown_table(TABLES_UNCONFIRMED, nonce)


def forget(deployment: Deployment, name: str) -> None:
    """Remove the mark of a table that another program dropped. Raise `Misuse` if the table exists."""
    if name in {info.name for info in deployment.catalog.registered()}:
        raise Misuse(
            f"table {name!r} is registered, so its mark as an unregistered table does not block sanitizing and need "
            "not be removed",
            table=name,
        )
    if not forget_dropped(deployment, name):
        raise Misuse(
            f"table {name!r} still exists in HBase; register it with the command that `pyomid tables URL discover` "
            "prints, or drop it",
            table=name,
        )


# Import

Refusals = dict[str, Misuse]
"""The reasons that forbid an import: each kind, and the first error of this kind, whose message names the remedy."""


def imported(
    deployment: Deployment,
    table: str,
    families: Sequence[str],
    conflict_level: str | None,
    check: Callable[[int], Iterable[Refusals]],
    load: Callable[[int], Iterable[RangeImported]],
) -> RangeImported | None:
    """Import a table by parts. Return the sum of the parts, or None if the table is already transactional.

    `check(N)` calls `import_refusals` for each part, and `load(N)` runs `import_range` for each part. The table becomes
    transactional by its catalog entry, which is written after the last part.
    """
    level = new_level(deployment, table, conflict_level)
    newest_ts, found = import_timestamp(deployment, table, check_families(families))
    if not newest_ts:
        return None
    for refusals in check(newest_ts):
        add_refusals(found, refusals)
    refuse(table, found)
    whole = RangeImported()
    for part in load(newest_ts):
        whole.rows += part.rows
        whole.records += part.records
        whole.imported += part.imported
    create_table(deployment, table, families, conflict_level=level, if_not_exists=True, is_adopted=True)
    return whole


def import_timestamp(deployment: Deployment, table: str, families: Sequence[bytes]) -> tuple[int, Refusals]:
    """Return the timestamp N below which every cell is imported (0 if the table is already transactional), and the
    errors that can be found without reading rows. The table may keep too few versions, or a Java client's transaction
    may have written it.

    Raise `UnknownTable` if the store has no such table.
    """
    if deployment.foreign is None:
        raise Misuse("only tables in HBase can be adopted, because only pyomid writes to this store", table=table)
    newest_ts = drawn_start(deployment)
    if _is_registered(deployment, table):
        return 0, {}
    found: Refusals = {}
    if table_id(table.encode()) in deployment.catalog.unknown_tables():
        found["transactions"] = Misuse(
            f"table {table} was written by transactions of a Java client: adopting the table would commit the "
            "undecided writes of these transactions; register it with `pyomid tables URL register`",
            table=table,
        )
    try:
        deployment.store.check_table(table, families)
    except UnknownTable:
        raise
    except Misuse as error:
        found["families"] = error
    return newest_ts, found


def import_refusals(
    deployment: Deployment, driver: Driver, table: str, key_range: KeyRange, newest_ts: int
) -> Refusals:
    """Return the errors of a range whose visible contents the import would change. The call only reads."""
    assert deployment.foreign is not None, "`import_timestamp` refused any other store"
    found: Refusals = {}
    try:
        deployment.foreign.check_names(table, key_range)
    except Misuse as error:
        found["names"] = error
    try:
        check_markers(deployment, table, key_range, newest_ts)
    except Misuse as error:
        found["markers"] = error
    cells = driver.run(check_range(table, key_range, newest_ts))
    if "names" in found:
        cells.pop("transactions", None)  # a column that only resembles shadow cells may have misled `check_range`
    add_refusals(found, cells)
    return found


def add_refusals(found: Refusals, more: Refusals) -> None:
    """Add refusals of new kinds; the first of each kind stays."""
    for kind, refusal in more.items():
        found.setdefault(kind, refusal)


def refuse(table: str, found: Refusals) -> None:
    """Raise `Misuse` with all remedies if there are refusals."""
    refusals = list(found.values())
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        steps = "".join(f"\n  {number}. {error.message}" for number, error in enumerate(refusals, 1))
        raise Misuse(f"table {table} cannot be adopted yet, for {len(refusals)} reasons:{steps}", table=table)


def _is_registered(deployment: Deployment, table: str) -> bool:
    try:
        deployment.catalog.table(table)
    except UnknownTable:
        return False
    return True
