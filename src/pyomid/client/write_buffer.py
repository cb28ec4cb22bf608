"""What a transaction has written and not yet sent, and the names of everything it ever sent.

Reads see the held-back writes as an overlay (C2); what was flushed they find in the store as own versions. The
names stay until the end: commit makes ids of them, completion shadow cells, rollback exact deletes. What went in
batches is remembered as these batches, without values and without an object a cell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from weakref import WeakSet

from pyomid.cells import CellBatch, CellNames, batch_of_rows, without_values
from pyomid.types import CellVersion, Column, KeyRange, RowWrite, TableInfo

HeldRows = dict[bytes, dict[Column, bytes | None]]

RowOverlay = Mapping[Column, bytes | None]
"""Held-back cells of one row; None is a deleted column."""

_EMPTY: dict[Column, bytes | None] = {}

CELL_OVERHEAD_BYTES = 40
"""What a held cell costs beside its value, roughly; only decides when to flush."""


class OpenScan:
    """A scan of the transaction itself. `key_range`: what it has not shown yet.

    A store asks ahead: what leaves for the store while the scan runs is in none of the answers that it holds by then,
    and no longer held back either. The scan is overtaken then, and begins again where it stands.
    """

    __slots__ = ("__weakref__", "is_overtaken", "key_range")

    def __init__(self, key_range: KeyRange) -> None:
        self.key_range = key_range
        self.is_overtaken = False

    def begin_again(self) -> KeyRange:
        """What is to be asked for, when everything that left is durable."""
        self.is_overtaken = False
        return self.key_range

    def pass_to(self, key: bytes) -> KeyRange:
        """Everything before `key` is shown now: that range."""
        passed = KeyRange(self.key_range.start, key)
        self.key_range = KeyRange(key, self.key_range.stop)
        return passed

    def note_left(self, rows: Iterable[bytes]) -> None:
        self.is_overtaken = self.is_overtaken or any(row in self.key_range for row in rows)


class WriteBuffer:
    """One transaction's writes in one table."""

    __slots__ = ("_batches", "_held", "_keys", "_scans", "_sent", "held_bytes", "info")

    def __init__(self, info: TableInfo) -> None:
        self.info = info
        self.held_bytes = 0
        self._held: HeldRows = {}
        self._keys: list[bytes] | None = None
        self._sent: dict[bytes, set[Column]] = {}
        self._batches: list[CellBatch] = []
        self._scans: WeakSet[OpenScan] = WeakSet()

    def begin_scan(self, key_range: KeyRange) -> OpenScan:
        """To be kept by who scans, as long as it does."""
        scan = OpenScan(key_range)
        self._scans.add(scan)
        return scan

    def hold(self, row: bytes, cells: Mapping[Column, bytes | None]) -> int:
        """`cells` replace what this transaction wrote to them before. Returns the bytes now held in addition."""
        held = self._held.get(row)
        if held is None:
            self._held[row] = dict(cells)
            self._keys = None
        else:
            held.update(cells)
        added = len(row) + CELL_OVERHEAD_BYTES * len(cells)
        for value in cells.values():
            if value is not None:
                added += len(value)
        self.held_bytes += added
        return added

    def overlay(self, row: bytes) -> RowOverlay:
        return self._held.get(row, _EMPTY)

    def held_keys(self, key_range: KeyRange) -> Sequence[bytes]:
        """Rows with held-back cells in the range, ascending."""
        if self._keys is None:
            self._keys = sorted(self._held)
        first = bisect_left(self._keys, key_range.start)
        last = len(self._keys) if key_range.stop is None else bisect_left(self._keys, key_range.stop)
        return self._keys[first:last]

    def take_rows(self) -> tuple[HeldRows, list[RowWrite]]:
        """Everything held back, ascending by row, as it goes to the store: from now on any of these cells may be
        there, whatever the answer. What is written while they are on their way is held for the next flush.
        """
        rows = self._held
        for row, cells in rows.items():
            self._sent.setdefault(row, set()).update(cells)
        self._clear_held()
        return rows, [RowWrite(row, tuple(rows[row].items())) for row in sorted(rows)]

    def _clear_held(self) -> None:
        for scan in self._scans:
            scan.note_left(self._held)
        self._held = {}
        self._keys = None
        self.held_bytes = 0

    @property
    def held_rows(self) -> int:
        return len(self._held)

    def overlaps(self, rows: HeldRows) -> bool:
        """Whether one of these rows is held back again."""
        return not self._held.keys().isdisjoint(rows)

    def take_batch(self) -> tuple[HeldRows, CellBatch]:
        """Everything held back, as it goes to the store: from now on any of these cells may be there."""
        rows = self._held
        batch = batch_of_rows(rows)
        self._batches.append(without_values(batch))
        self._clear_held()
        return rows, batch

    def take_back(self, rows: HeldRows) -> None:
        """After a write that failed: the overlay still shows these rows, under what was written since."""
        for row, cells in rows.items():
            self.hold(row, {**cells, **self._held.get(row, {})})

    @property
    def sent_batches(self) -> Sequence[CellBatch] | None:
        """All that may be in the store; None where it did not all go in batches, or nothing did."""
        return None if self._sent or not self._batches else self._batches

    def sent_cells(self) -> Iterator[tuple[bytes, Column]]:
        """Every cell that may be in the store, by row and column; one that was written twice maybe twice."""
        for row, columns in self._sent.items():
            for column in columns:
                yield row, column
        for cell in CellNames(self._batches, 0):
            yield cell.row, Column(cell.family, cell.qualifier)

    def sent_versions(self, version: int) -> Sequence[CellVersion]:
        if self.sent_batches is not None:
            return CellNames(self._batches, version)
        return tuple(CellVersion(row, column.family, column.qualifier, version) for row, column in self.sent_cells())

    def sent_rows(self) -> Iterator[bytes]:
        yield from self._sent
        for batch in self._batches:
            yield from map(batch.row_key, range(batch.rows))

    @property
    def touched(self) -> bool:
        """Anything written at all, sent or not."""
        return bool(self._held or self._sent or self._batches)


def overlaid(row: Mapping[Column, bytes], overlay: RowOverlay, columns: Sequence[Column] | None) -> dict[Column, bytes]:
    """`row` as the transaction sees it with its own held-back writes, of the wanted columns only."""
    result = dict(row)
    for column, value in overlay.items():
        if columns is not None and column not in columns and Column(column.family, b"") not in columns:
            continue
        if value is None:
            result.pop(column, None)
        else:
            result[column] = value
    return result
