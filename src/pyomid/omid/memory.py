"""All ports in memory. This is the simplest implementation of their obligations; tests compare other stores with it.

The data live as long as the object. "Durable" here means "visible to every thread from now on". `close` does nothing,
so several clients of one test may share a store, and each may close it.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyomid.catalog_fields import drop_note
from pyomid.cells import CellBatch, batch_of
from pyomid.checks import ProcessGuard, check_version, check_writes, deposed
from pyomid.errors import UnknownTable
from pyomid.omid.memory_commit_table import MemoryCommitTable as MemoryCommitTable
from pyomid.omid.ports import LeaderState
from pyomid.ports import Catalog, DataStore
from pyomid.protocol.sanitize import with_record
from pyomid.system import OwnLock
from pyomid.types import (
    Cell,
    CellVersion,
    Column,
    KeyRange,
    LeaderRecord,
    LeaderStateChanges,
    PendingCommit,
    ReadBounds,
    RegionWatermark,
    RowWrite,
    ShadowWrite,
    StoreLimits,
    TableEntry,
    TableInfo,
)

_CellName = tuple[bytes, bytes, int]
"""The name of a cell in its row: family, qualifier, version."""


class _Stored:
    """The content of one cell: its value, and its shadow cell or 0."""

    __slots__ = ("commit_ts", "value")

    def __init__(self, value: bytes | None) -> None:
        self.value = value
        self.commit_ts = 0


class _Table:
    """A table: its rows in a dict, its sorted row keys, and `splits`, the inner boundaries of its regions."""

    def __init__(self) -> None:
        self.families: set[bytes] = set()
        self.rows: dict[bytes, dict[_CellName, _Stored]] = {}
        self.keys: list[bytes] = []
        self.splits: list[bytes] = []

    def write(self, version: int, rows: Iterable[RowWrite]) -> None:
        added: list[bytes] = []
        try:
            for row, cells in rows:
                if not cells:
                    continue
                content = self.rows.get(row)
                if content is None:
                    content = self.rows[row] = {}
                    added.append(row)
                for column, value in cells:
                    stored = content.setdefault((column.family, column.qualifier, version), _Stored(value))
                    stored.value = value
        finally:  # also after an interrupt
            if added:  # all at once, because inserting one key moves all keys after it
                first, last = bisect_left(self.keys, min(added)), bisect_left(self.keys, max(added))
                self.keys[first:last] = sorted((*self.keys[first:last], *added))

    def find(self, cell: CellVersion) -> _Stored | None:
        return self.rows.get(cell.row, {}).get((cell.family, cell.qualifier, cell.version))

    def delete(self, named: Iterable[CellVersion]) -> None:
        emptied: list[bytes] = []
        try:
            for cell in named:
                cells = self.rows.get(cell.row, {})
                if cells.pop((cell.family, cell.qualifier, cell.version), None) is not None and not cells:
                    del self.rows[cell.row]
                    emptied.append(cell.row)
        finally:
            if emptied:
                first, last = bisect_left(self.keys, min(emptied)), bisect_left(self.keys, max(emptied))
                self.keys[first : last + 1] = [key for key in self.keys[first : last + 1] if key in self.rows]

    def read(self, row: bytes, wanted: _Wanted) -> list[Cell]:
        return [
            Cell(row, family, qualifier, version, stored.value, stored.commit_ts)
            for (family, qualifier, version), stored in self.rows.get(row, {}).items()
            if wanted.takes(family, qualifier)
        ]


class _Wanted:
    """A filter by `columns`. It takes the exact columns, the whole families, and the family tombstones of both."""

    def __init__(self, columns: Sequence[Column] | None) -> None:
        self._all = columns is None
        self._exact = {(column.family, column.qualifier) for column in columns or ()}
        self._exact |= {(family, b"") for family, _ in self._exact}
        self._families = {column.family for column in columns or () if not column.qualifier}

    def takes(self, family: bytes, qualifier: bytes) -> bool:
        return self._all or (family, qualifier) in self._exact or family in self._families


class MemoryStore(DataStore):
    """An implementation of the port `DataStore` in memory."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self._limits = limits or StoreLimits()
        self._tables: dict[str, _Table] = {}
        self.lock = OwnLock()
        self._guard = ProcessGuard("MemoryStore")

    @property
    def limits(self) -> StoreLimits:
        return self._limits

    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        self._guard.check()
        check_version(version)
        with self.lock.held():
            stored = self._table(table)
            check_writes(rows, stored.families, self._limits)
            stored.write(version, rows)

    def write_batch(self, table: str, version: int, batch: CellBatch) -> None:
        self.write_cells(table, version, [batch.row_write(index) for index in range(batch.rows)])

    def read_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        columns: Sequence[Column] | None = None,
        *,
        bounds: ReadBounds | None = None,
    ) -> list[list[Cell]]:
        self._guard.check()
        wanted = _Wanted(columns)
        with self.lock.held():
            stored = self._table(table)
            found = [stored.read(row, wanted) for row in rows]
        return found if bounds is None else [bounds.needed(cells) for cells in found]

    def scan(
        self,
        table: str,
        key_range: KeyRange,
        columns: Sequence[Column] | None = None,
        *,
        batch_rows_max: int = 10_000,
        bounds: ReadBounds | None = None,
    ) -> Iterator[CellBatch]:
        self._guard.check()
        with self.lock.held():
            self._table(table)
        return self._scan_batches(table, key_range, _Wanted(columns), batch_rows_max, bounds)

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        self._guard.check()
        with self.lock.held():
            keys = self._table(table).keys
            end = len(keys) if key_range.stop is None else bisect_left(keys, key_range.stop)
            first = max(end - rows, bisect_left(keys, key_range.start))
            return keys[first] if first < end and end - first == rows else key_range.start

    def _scan_batches(
        self, table: str, key_range: KeyRange, wanted: _Wanted, batch_rows_max: int, bounds: ReadBounds | None
    ) -> Iterator[CellBatch]:
        start: bytes | None = key_range.start
        while start is not None:
            rows, start = self._scan_once(table, KeyRange(start, key_range.stop), wanted, batch_rows_max)
            if bounds is not None:
                rows = [needed for row in rows if (needed := bounds.needed(row))]
            if rows:
                yield batch_of(rows)

    def _scan_once(
        self, table: str, key_range: KeyRange, wanted: _Wanted, rows_max: int
    ) -> tuple[list[list[Cell]], bytes | None]:
        """Return rows that have wanted cells, and the key at which to continue, or None at the end of the range."""
        self._guard.check()
        rows: list[list[Cell]] = []
        with self.lock.held():
            stored = self._table(table)
            for index in range(bisect_left(stored.keys, key_range.start), len(stored.keys)):
                key = stored.keys[index]
                if key_range.stop is not None and key >= key_range.stop:
                    return rows, None
                if len(rows) == rows_max:
                    return rows, key
                if cells := stored.read(key, wanted):
                    rows.append(cells)
        return rows, None

    def write_shadow_cells(self, table: str, shadows: Sequence[ShadowWrite]) -> None:
        self._guard.check()
        with self.lock.held():
            stored = self._table(table)
            for shadow in shadows:
                if (cell := stored.find(shadow.cell)) is not None:
                    cell.commit_ts = shadow.commit_ts

    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        self._guard.check()
        with self.lock.held():
            stored = self._table(table)
            stored.delete(cells)

    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        self._guard.check()
        with self.lock.held():
            stored = self._table(table)
            stored.delete(batch.cell_version(int(drop)) for drop in drops)
            for record in heals:
                for index in range(int(batch.rec_cell[record]), int(batch.rec_cell[record + 1])):
                    if (cell := stored.find(batch.cell_version(index))) is not None:
                        cell.commit_ts = int(batch.rec_commit[record])

    def regions(self, table: str) -> list[KeyRange]:
        self._guard.check()
        with self.lock.held():
            splits = self._table(table).splits
            starts, stops = [b"", *splits], [*splits, None]
            return [KeyRange(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        self._guard.check()
        with self.lock.held():
            keys = [key for key in self._table(table).keys if key in key_range]
        cuts = sorted({keys[len(keys) * number // partitions] for number in range(1, partitions)}) if keys else []
        return [cut for cut in cuts if cut > key_range.start]

    def split_region(self, table: str, key: bytes) -> None:
        """Split the region that holds `key`, so that a region begins there."""
        with self.lock.held():
            splits = self._table(table).splits
            if key and key not in splits:
                insort(splits, key)

    def merge_regions(self, table: str, key: bytes) -> None:
        """Merge the region that begins at `key` with the one before it."""
        with self.lock.held():
            self._table(table).splits.remove(key)

    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        self._guard.check()
        with self.lock.held():
            self._table(table)

    def create_table(self, info: TableInfo, split_keys: Sequence[bytes] = ()) -> None:
        self._guard.check()
        with self.lock.held():
            self._tables.setdefault(info.name, _Table()).families.update(info.families)

    def withdraw_table(self, table: str) -> object | None:
        self._guard.check()
        with self.lock.held():
            return self._tables.get(table)

    def give_back_table(self, table: str) -> None:
        pass

    def drop_table(self, table: str, withdrawn: object | None = None) -> bool:
        self._guard.check()
        with self.lock.held():
            found = self._tables.get(table)
            if found is not None and withdrawn is not None and found is not withdrawn:
                return False
            self._tables.pop(table, None)
            return True

    def close(self) -> None:
        pass

    def _table(self, name: str) -> _Table:
        try:
            return self._tables[name]
        except KeyError:
            raise UnknownTable(f"there is no table {name!r} in this store", table=name) from None


class MemoryLeaderState(LeaderState):
    """An implementation of the port `LeaderState` in memory."""

    def __init__(self, state: LeaderRecord | None = None) -> None:
        self._state = state or LeaderRecord()
        self._id = os.urandom(16)
        self.lock = OwnLock()
        self._guard = ProcessGuard("MemoryLeaderState")

    def database_id(self) -> bytes:
        return self._id

    def read(self) -> LeaderRecord:
        self._guard.check()
        with self.lock.held():
            return self._state

    def read_watermarks(self) -> tuple[int, int]:
        state = self.read()
        return state.watermark, state.horizon

    def check_epoch(self, epoch: int) -> None:
        """Raise `Deposed` unless the state has this epoch. While the caller holds `lock`, the epoch does not change."""
        self._guard.check()
        if self._state.epoch != epoch:
            raise deposed(epoch, self._state.epoch)

    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        self._guard.check()
        with self.lock.held():
            if self._state.epoch != expected or self._state.ceiling > epoch:
                return False
            self._state = replace(self._state, epoch=epoch, ceiling=ceiling)
            return True

    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        with self.lock.held():
            self.check_epoch(epoch)
            self._state = changed(self._state, changes)


def changed(state: LeaderRecord, changes: LeaderStateChanges) -> LeaderRecord:
    """Return `state` after `changes`. An item that the changes both remove and add is present afterwards."""
    removed = frozenset(changes.pending_removed) | {pending.start_ts for pending in changes.pending_added}
    pending: tuple[PendingCommit, ...] = tuple(record for record in state.pending if record.start_ts not in removed)
    return LeaderRecord(
        epoch=state.epoch,
        ceiling=state.ceiling if changes.ceiling is None else changes.ceiling,
        watermark=state.watermark if changes.watermark is None else changes.watermark,
        horizon=state.horizon if changes.horizon is None else changes.horizon,
        leases=state.leases - frozenset(changes.leases_removed) | frozenset(changes.leases_added),
        pending=pending + changes.pending_added,
        retention_ms=state.retention_ms if changes.retention_ms is None else changes.retention_ms,
    )


class MemoryCatalog(Catalog):
    """An implementation of the port `Catalog` in memory."""

    def __init__(self) -> None:
        self._entries: dict[str, TableEntry] = {}
        self._unknown: dict[int, bytes] = {}
        self._marks = 0
        self._watermarks: dict[tuple[str, KeyRange], list[RegionWatermark]] = {}
        self._drops: dict[bytes, int] = {}
        self.lock = OwnLock()
        self._guard = ProcessGuard("MemoryCatalog")

    def entries(self) -> list[TableEntry]:
        self._guard.check()
        with self.lock.held():
            return [self._entries[name] for name in sorted(self._entries)]

    def entry(self, name: str) -> TableEntry | None:
        self._guard.check()
        with self.lock.held():
            return self._entries.get(name)

    def change_entry(self, old: TableEntry | None, new: TableEntry) -> bool:
        self._guard.check()
        with self.lock.held():
            if self._entries.get(new.info.name) != old:
                return False
            self._entries[new.info.name] = new
            return True

    def remove_entry(self, old: TableEntry) -> None:
        self._guard.check()
        name = old.info.name
        with self.lock.held():
            if self._entries.get(name) == old:
                del self._entries[name]
                self._watermarks = {key: record for key, record in self._watermarks.items() if key[0] != name}

    def note_drop(self, name: str, fence_ts: int) -> None:
        self._guard.check()
        with self.lock.held():
            self._drops[drop_note(name)] = max(fence_ts, self._drops.get(drop_note(name), 0))

    def noted_drop(self, name: str) -> int:
        self._guard.check()
        with self.lock.held():
            return self._drops.get(drop_note(name), 0)

    def mark_unknown_table(self, table_id: int) -> None:
        self._guard.check()
        with self.lock.held():
            self._marks += 1
            self._unknown[table_id] = self._marks.to_bytes(8)

    def unknown_tables(self) -> dict[int, bytes]:
        self._guard.check()
        with self.lock.held():
            return dict(sorted(self._unknown.items()))

    def clear_unknown_table(self, table_id: int, nonce: bytes) -> None:
        self._guard.check()
        with self.lock.held():
            if self._unknown.get(table_id) == nonce:
                del self._unknown[table_id]

    def put_region_watermark(self, record: RegionWatermark) -> None:
        self._guard.check()
        with self.lock.held():
            name = record.table, record.key_range
            self._watermarks[name] = with_record(self._watermarks.get(name, []), record)

    def region_watermarks(self, table: str) -> list[RegionWatermark]:
        self._guard.check()
        with self.lock.held():
            found = [each for name, records in self._watermarks.items() if name[0] == table for each in records]
        return sorted(found, key=lambda record: record.key_range.start)

    def drop_region_watermarks(self, newest: Sequence[RegionWatermark]) -> None:
        self._guard.check()
        with self.lock.held():
            for record in newest:
                if self._watermarks.get((record.table, record.key_range), [None])[0] == record:
                    del self._watermarks[record.table, record.key_range]
