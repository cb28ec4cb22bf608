"""A transaction's own cells by row: laid over a row of the store, and in key order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from pyomid.types import Column, KeyRange

Row = dict[Column, bytes]
"""A row as a reader sees it; {} stands for a row that does not exist."""

RowOverlay = Mapping[Column, bytes | None]
"""The transaction's cells of one row; None stands for a deleted column."""

NO_CELLS: Final[dict[Column, bytes | None]] = {}

BufferedRows = dict[bytes, dict[Column, bytes | None]]

OwnCell = tuple[bytes, Column]


def overlaid(row: Mapping[Column, bytes], overlay: RowOverlay, columns: Sequence[Column] | None) -> Row:
    """Return `row` with the transaction's cells over it, in the selected columns only (C2)."""
    result = dict(row)
    for column, value in overlay.items():
        if columns is not None and column not in columns and Column(column.family, b"") not in columns:
            continue
        if value is None:
            result.pop(column, None)
        else:
            result[column] = value
    return result


_NONE: Final[list[bytes]] = []
"""The initial keys of a `KeyOrder`, which are replaced at the first use and never changed."""


class KeyOrder:
    """The order of the keys of a dict of rows. The dict is passed to each call, and only grows between two calls."""

    _keys: list[bytes] = _NONE
    """The first keys of the rows, sorted."""

    def within(self, rows: dict[bytes, Any], key_range: KeyRange) -> list[bytes]:
        """Return the keys in the range, ascending."""
        keys = self._keys = keys_in_order(self._keys, rows)
        first = bisect_left(keys, key_range.start)
        last = len(keys) if key_range.stop is None else bisect_left(keys, key_range.stop)
        return keys[first:last]

    def remove(self, rows: dict[bytes, Any], key: bytes) -> None:
        """Remove a row. An interrupt may lose the order, which the next call restores."""
        keys, self._keys = self._keys, []
        del rows[key]
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            del keys[at]
        self._keys = keys


def keys_in_order(keys: list[bytes], rows: dict[bytes, Any]) -> list[bytes]:
    """Return the keys of `rows`, sorted. `keys` is the result for the first of these rows, which is reused, so that the
    call costs only as much as the rows added since."""
    added = list(islice(reversed(rows), len(rows) - len(keys)))
    if _SORTED_MIN * len(added) > len(keys):
        return sorted(chain(keys, added))
    for key in reversed(added):  # in the order of the rows: after an interrupt, `keys` has the keys of the first rows
        insort(keys, key)
    return keys


_SORTED_MIN: Final = 16
"""Sorting all keys is cheaper if at least one in this many is new."""
