"""Marks of unregistered tables, and their removal (protocol.md, Marks of unregistered tables).

    fence → the mark's nonce → fence → is the table gone? → the mark goes, if it still has that nonce

After the first fence, no commit of a transaction that began before it marks the table. After the second one the TSO has
forgotten the mark that was read: the next commit puts a new mark. So if the table does not exist *after* that, the mark
that was read protects nothing, and its removal may arrive at any later time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.hashing import table_id
from pyomid.types import TABLES_UNCONFIRMED


def forget_dropped(deployment: Deployment, name: str) -> bool:
    """Remove the mark of a table that is gone. False if the table exists (again): the mark stays.

    Only for a table without a catalog entry in state `PRESENT`.
    """
    number = table_id(name.encode())
    deployment.tso.fence(number)
    nonce = deployment.catalog.unknown_tables().get(number)
    if nonce is None:
        return True
    deployment.tso.fence(number)
    if is_in_store(deployment, name):
        return False
    deployment.catalog.clear_unknown_table(number, nonce)
    return True


def is_in_store(deployment: Deployment, name: str) -> bool:
    """Whether the store has a table of this name. False in a store that only pyomid uses."""
    if not deployment.store.capabilities.foreign_tables:
        return False
    try:
        deployment.store.check_table(name, _NO_FAMILIES)
    except UnknownTable:
        return False
    return True


_NO_FAMILIES: Sequence[bytes] = ()

SAMPLED_ROWS: Final = 1000
"""Rows sampled in each region. Nearly every row of a table that transactions write has shadow cells."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A table that transactions wrote and the catalog does not list."""

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

    A table is missed if all its writers died before their first shadow cell, under a TSO that leaves no marks.
    """
    if not deployment.store.capabilities.foreign_tables:
        raise Misuse("only HBase holds tables of other programs: in this store every table is registered")
    registered = {info.name for info in deployment.catalog.registered()}
    marks = set(deployment.catalog.unknown_tables()) - {TABLES_UNCONFIRMED}
    marks -= {table_id(name.encode()) for name in registered}
    found: list[Unregistered] = []
    for name, families in sorted(deployment.store.foreign_tables().items()):
        if name in registered:
            continue
        is_marked = table_id(name.encode()) in marks
        marks.discard(table_id(name.encode()))
        if is_marked or deployment.store.holds_shadow_cells(name, rows_max=SAMPLED_ROWS):
            found.append(Unregistered(name, families, is_marked))
    return Discovery(found, sorted(marks))


def named_marks(deployment: Deployment) -> dict[int, str]:
    """Return the marks that block sanitizing: table id → the table's name, empty if the store has no such table."""
    registered = {table_id(info.name.encode()) for info in deployment.catalog.registered()}
    marks = sorted(set(deployment.catalog.unknown_tables()) - {TABLES_UNCONFIRMED} - registered)
    names = {table_id(name.encode()): name for name in deployment.store.foreign_tables()} if marks else {}
    return {mark: names.get(mark, "") for mark in marks}


def confirm(deployment: Deployment, nonce: bytes | None) -> None:
    """Record an operator's confirmation, after `discover`, that all tables that a Java TSO served are registered (K6).

    `nonce`: of the mark before `discover`. If a Java TSO led meanwhile, its new mark stays.
    """
    if nonce is not None:
        deployment.catalog.clear_unknown_table(TABLES_UNCONFIRMED, nonce)


def forget(deployment: Deployment, name: str) -> None:
    """Remove the mark of a table that another program dropped. `Misuse` if the table exists."""
    if name in {info.name for info in deployment.catalog.registered()}:
        raise Misuse(f"table {name!r} is registered: its mark does not block sanitizing", table=name)
    if not forget_dropped(deployment, name):
        raise Misuse(
            f"table {name!r} exists: register it, as `pyomid tables URL discover` prints, or drop it",
            table=name,
        )
