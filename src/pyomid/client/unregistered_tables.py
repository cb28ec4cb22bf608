"""Marks of unregistered tables, from a client's side: how one goes (protocol.md, Marks of unregistered tables).

    fence → the mark's nonce → fence → is the table gone? → the mark goes, if it still has that nonce

Behind the first fence nobody who wrote before it marks the table any more. Behind the second one the TSO has
forgotten the mark that was read: whoever commits from then on marks anew. So where the table is not there *after*
that, the mark that was read stands for nothing, however late its removal arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyomid.client.deployment import Deployment
from pyomid.errors import Misuse, UnknownTable
from pyomid.protocol.hashing import table_id
from pyomid.types import TABLES_UNCONFIRMED


def forget_dropped(parts: Deployment, name: str) -> bool:
    """The mark of a table that is gone goes too. False where the table is there (again), and the mark stays.

    For a table that no entry of the catalog calls present.
    """
    number = table_id(name.encode())
    parts.tso.fence(number)
    nonce = parts.catalog.unknown_tables().get(number)
    if nonce is None:
        return True
    parts.tso.fence(number)
    if is_in_store(parts, name):
        return False
    parts.catalog.clear_unknown_table(number, nonce)
    return True


def is_in_store(parts: Deployment, name: str) -> bool:
    """Whether others than pyomid's clients may find a table of this name: where there are no others, never."""
    if not parts.store.capabilities.foreign_tables:
        return False
    try:
        parts.store.check_table(name, _NO_FAMILIES)
    except UnknownTable:
        return False
    return True


_NO_FAMILIES: Sequence[bytes] = ()

LOOKED_AT_ROWS: Final = 1000
"""Of each region: a table that transactions write holds shadow cells nearly everywhere."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A table that transactions wrote and the catalog does not list."""

    name: str
    families: list[str]
    is_marked: bool


@dataclass(frozen=True, slots=True)
class Discovery:
    """What `discover` found: tables to be registered, and marks whose table it could not name."""

    tables: list[Unregistered]
    unnamed: list[int]


def discover(parts: Deployment) -> Discovery:
    """Tables that no catalog entry names, and that hold shadow cells or have a mark, matched by the name's hash.

    A table whose writers all died before their first shadow cell, under a TSO that leaves no marks, is not found.
    """
    if not parts.store.capabilities.foreign_tables:
        raise Misuse("only in HBase may others make tables: in this store every table is registered")
    registered = {info.name for info in parts.catalog.registered()}
    marks = set(parts.catalog.unknown_tables()) - {TABLES_UNCONFIRMED}
    marks -= {table_id(name.encode()) for name in registered}
    found: list[Unregistered] = []
    for name, families in sorted(parts.store.foreign_tables().items()):
        if name in registered:
            continue
        is_marked = table_id(name.encode()) in marks
        marks.discard(table_id(name.encode()))
        if is_marked or parts.store.holds_shadow_cells(name, rows_max=LOOKED_AT_ROWS):
            found.append(Unregistered(name, families, is_marked))
    return Discovery(found, sorted(marks))


def confirm(parts: Deployment, nonce: bytes | None) -> None:
    """An operator's word, after `discover`: all tables that a Java TSO served are registered (K6).

    `nonce` is that of the mark as it stood before: one of a Java TSO that led meanwhile stays.
    """
    if nonce is not None:
        parts.catalog.clear_unknown_table(TABLES_UNCONFIRMED, nonce)


def forget(parts: Deployment, name: str) -> None:
    """The mark of a table goes that was dropped behind pyomid's back. `Misuse` where the table is there."""
    if name in {info.name for info in parts.catalog.registered()}:
        raise Misuse(f"table {name!r} is registered: its mark holds up nothing", table=name)
    if not forget_dropped(parts, name):
        raise Misuse(
            f"table {name!r} is there: register it with `pyomid tables URL register {name} FAMILY`, or drop it",
            table=name,
        )
