"""Marks of unregistered tables: how a client removes one (protocol.md, Marks of unregistered tables).

    fence → the mark's nonce → fence → is the table gone? → the mark goes, if it still has that nonce

After the first fence, no transaction that wrote before it marks the table any more. After the second one the TSO has
forgotten the mark that was read: each later commit marks anew. So if the table is not there *after* that, the mark that
was read protects nothing, however late its removal arrives.
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
    """Removes the mark of a table that is gone. False if the table is there (again): the mark stays.

    For a table that no catalog entry calls present.
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
    """Whether clients other than pyomid's may find a table of this name. False in a store without such clients."""
    if not deployment.store.capabilities.foreign_tables:
        return False
    try:
        deployment.store.check_table(name, _NO_FAMILIES)
    except UnknownTable:
        return False
    return True


_NO_FAMILIES: Sequence[bytes] = ()

SAMPLED_ROWS: Final = 1000
"""Rows of each region: a table that transactions write holds shadow cells nearly everywhere."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A table that transactions wrote and the catalog does not list."""

    name: str
    families: list[str]
    is_marked: bool


@dataclass(frozen=True, slots=True)
class Discovery:
    """Tables to be registered, and marks whose table is not known by name."""

    tables: list[Unregistered]
    unnamed: list[int]


def discover(deployment: Deployment) -> Discovery:
    """Tables that no catalog entry names, and that hold shadow cells or have a mark, matched by the name's hash.

    A table whose writers all died before their first shadow cell, under a TSO that leaves no marks, is not found.
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
    """Marks that stop sanitizing: table id → the table's name; empty where the store has no such table."""
    registered = {table_id(info.name.encode()) for info in deployment.catalog.registered()}
    marks = sorted(set(deployment.catalog.unknown_tables()) - {TABLES_UNCONFIRMED} - registered)
    names = {table_id(name.encode()): name for name in deployment.store.foreign_tables()} if marks else {}
    return {mark: names.get(mark, "") for mark in marks}


def confirm(deployment: Deployment, nonce: bytes | None) -> None:
    """An operator confirms, after `discover`, that all tables that a Java TSO served are registered (K6).

    `nonce` is that of the mark before `discover`: the mark of a Java TSO that led meanwhile stays.
    """
    if nonce is not None:
        deployment.catalog.clear_unknown_table(TABLES_UNCONFIRMED, nonce)


def forget(deployment: Deployment, name: str) -> None:
    """Removes the mark of a table that another program dropped. `Misuse` if the table is there."""
    if name in {info.name for info in deployment.catalog.registered()}:
        raise Misuse(f"table {name!r} is registered: its mark holds up nothing", table=name)
    if not forget_dropped(deployment, name):
        raise Misuse(
            f"table {name!r} is there: register it, as `pyomid tables URL discover` prints, or drop it",
            table=name,
        )
