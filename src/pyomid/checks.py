"""Checks that all stores share: use in a forked child (C5), size limits, and a leader of an earlier epoch.

The checks run before the first write, so a refused call has written nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyomid import system
from pyomid.errors import Deposed, Misuse
from pyomid.types import TIMESTAMP_MAX, Column, RowWrite, StoreLimits

_SHOWN_BYTES_MAX = 60


class ProcessGuard:
    """Remembers the process that opened a store; `check` raises `Misuse` in any other process."""

    __slots__ = ("_name", "made_in")

    def __init__(self, name: str) -> None:
        self._name = name
        self.made_in = system.here

    def check(self) -> None:
        if self.made_in is not system.here:
            raise Misuse(
                f"{self._name} was opened by process {self.made_in.pid} and is used in its forked child "
                f"{system.here.pid}; open a new one in the child",
                owner=self.made_in.pid,
            )


def deposed(mine: int, found: int) -> Deposed:
    """Return the error for a leader of epoch `mine` that finds epoch `found` in the leader state."""
    return Deposed(f"the leader state holds epoch {found}, not {mine}: another TSO leads", epoch=mine, found=found)


def shown(key: bytes) -> str:
    """Return a key as readable text for a message, shortened if it is long."""
    text = key[:_SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace")
    printable = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return f"'{printable}'" + (f"… ({len(key)} bytes)" if len(key) > _SHOWN_BYTES_MAX else "")


def check_version(version: int) -> None:
    if not 0 < version <= TIMESTAMP_MAX:
        raise Misuse(f"version {version} is not a timestamp: it must be from 1 to {TIMESTAMP_MAX}", version=version)


def check_row_key(row: bytes, limits: StoreLimits) -> None:
    if not row:
        raise Misuse("a row key must not be empty")
    if why := limits.why_too_long(row):
        raise Misuse(f"row key {shown(row)} {why}", row=row, limit=limits.row_bytes_max)


def check_column(column: Column, families: Collection[bytes], limits: StoreLimits) -> None:
    if column.family not in families:
        known = ", ".join(sorted(shown(family) for family in families))
        raise Misuse(f"the table has no family for column {column}; its families are {known}")
    if len(column.qualifier) > limits.qualifier_bytes_max:
        raise Misuse(
            f"a qualifier in family {shown(column.family)} has {len(column.qualifier)} bytes, over this store's limit "
            f"of {limits.qualifier_bytes_max}"
        )


def check_value_length(row: bytes, column: Column, length: int, limits: StoreLimits) -> None:
    """Check a value of `length` bytes. Do not call it for a tombstone."""
    if not column.qualifier:
        raise Misuse(f"row {shown(row)}: an empty qualifier stands for the whole family and cannot hold a value")
    if length == 0:
        raise Misuse(
            f"the value of {column} in row {shown(row)} is empty, but an empty stored value is a tombstone; store at "
            "least one byte"
        )
    if length > limits.value_bytes_max:
        raise Misuse(
            f"the value of {column} in row {shown(row)} has {length} bytes, over this store's limit of "
            f"{limits.value_bytes_max}",
            limit=limits.value_bytes_max,
        )


def check_writes(rows: Sequence[RowWrite], families: Collection[bytes], limits: StoreLimits) -> None:
    """Check keys, columns and values of one `write_cells` before its first write."""
    checked: set[Column] = set()
    for row, cells in rows:
        check_row_key(row, limits)
        for column, value in cells:
            if column not in checked:
                check_column(column, families, limits)
                checked.add(column)
            if value is not None:
                check_value_length(row, column, len(value), limits)
