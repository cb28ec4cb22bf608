"""Import of an HBase table by parts (`protocol.import_table`): the checks before, and the registration after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyomid.client.admin.table_admin import create_table, drawn_start, new_level
from pyomid.client.drive import Driver
from pyomid.client.validation import check_families
from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.hashing import table_id
from pyomid.protocol.import_table import RangeImported, check_range_steps
from pyomid.types import KeyRange

Refusals = dict[str, Misuse]
"""Reasons that forbid an import: kind → the first error of this kind, with its remedy."""


def imported(
    deployment: Deployment,
    table: str,
    families: Sequence[str],
    conflict_level: str | None,
    check: Callable[[int], Iterable[Refusals]],
    load: Callable[[int], Iterable[RangeImported]],
) -> RangeImported | None:
    """Import a table by parts; return the sum of the parts, or None if the table is transactional already.

    `check(N)` calls `import_refusals` for each part, `load(N)` runs `import_range_steps`. The table becomes
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
    create_table(deployment, table, families, conflict_level=level, if_not_exists=True)
    return whole


def import_timestamp(deployment: Deployment, table: str, families: Sequence[bytes]) -> tuple[int, Refusals]:
    """Return the timestamp N below which every cell is imported (0 if the table is transactional already), and the
    errors that can be found without reading rows: the table keeps too few versions, or a Java client's transaction
    wrote it.

    `UnknownTable` if the store has no such table.
    """
    if not deployment.store.capabilities.foreign_tables:
        raise Misuse("only tables of HBase can be imported: in this store only pyomid writes", table=table)
    newest_ts = drawn_start(deployment)
    if _is_registered(deployment, table):
        return 0, {}
    found: Refusals = {}
    if table_id(table.encode()) in deployment.catalog.unknown_tables():
        found["transactions"] = Misuse(
            f"table {table} was written by transactions of a Java client: adopting it would commit their "
            "undecided writes; register it with `pyomid tables URL register`",
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
    """Return the errors of a range whose visible contents the import would change. Only reads."""
    found: Refusals = {}
    try:
        deployment.store.check_names(table, key_range)
    except Misuse as error:
        found["names"] = error
    cells = driver.run(check_range_steps(table, key_range, newest_ts))
    if "names" in found:
        cells.pop("transactions", None)  # a column that only resembles shadow cells may have been mistaken for them
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
