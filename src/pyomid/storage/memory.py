"""All ports in memory: the plainest reading of their obligations, and what other stores are mirrored against.

Everything lives as long as the object; "durable" means here: visible to every thread from now on. `close`
ends nothing, so that several clients of one test may share a store and close it each.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch, batch_of
from pyomid.errors import Deposed, UnknownTable
from pyomid.storage.forks import ProcessGuard
from pyomid.storage.limits import check_version, check_writes
from pyomid.types import (
    NOT_FOUND,
    SEALED,
    Cell,
    CellVersion,
    Column,
    EpochChanges,
    EpochState,
    KeyRange,
    PendingCommit,
    RegionWatermark,
    RowWrite,
    SealOutcome,
    ShadowWrite,
    StoreLimits,
    TableInfo,
)

_CellName = tuple[bytes, bytes, int]
"""Family, qualifier, version."""


class _Stored:
    """One cell's content: its value and its shadow cell (0: none)."""

    __slots__ = ("commit_ts", "value")

    def __init__(self, value: bytes | None) -> None:
        self.value = value
        self.commit_ts = 0


class _Table:
    """Rows in a dict, their keys once more in order; `splits` are the inner borders of the regions."""

    def __init__(self) -> None:
        self.families: set[bytes] = set()
        self.rows: dict[bytes, dict[_CellName, _Stored]] = {}
        self.keys: list[bytes] = []
        self.splits: list[bytes] = []

    def row_for_writing(self, row: bytes) -> dict[_CellName, _Stored]:
        cells = self.rows.get(row)
        if cells is None:
            cells = self.rows[row] = {}
            insort(self.keys, row)
        return cells

    def find(self, cell: CellVersion) -> _Stored | None:
        return self.rows.get(cell.row, {}).get((cell.family, cell.qualifier, cell.version))

    def delete(self, cell: CellVersion) -> None:
        cells = self.rows.get(cell.row, {})
        if cells.pop((cell.family, cell.qualifier, cell.version), None) is not None and not cells:
            del self.rows[cell.row]
            del self.keys[bisect_left(self.keys, cell.row)]

    def read(self, row: bytes, wanted: _Wanted) -> list[Cell]:
        return [
            Cell(row, family, qualifier, version, stored.value, stored.commit_ts)
            for (family, qualifier, version), stored in self.rows.get(row, {}).items()
            if wanted.takes(family, qualifier)
        ]


class _Wanted:
    """A `columns` filter: exact columns, whole families, and the family tombstones of both."""

    def __init__(self, columns: Sequence[Column] | None) -> None:
        self._all = columns is None
        self._exact = {(column.family, column.qualifier) for column in columns or ()}
        self._exact |= {(family, b"") for family, _ in self._exact}
        self._families = {column.family for column in columns or () if not column.qualifier}

    def takes(self, family: bytes, qualifier: bytes) -> bool:
        return self._all or (family, qualifier) in self._exact or family in self._families


class MemoryStore:
    """`DataStore` in memory."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self._limits = limits or StoreLimits()
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()
        self._guard = ProcessGuard("MemoryStore")

    @property
    def limits(self) -> StoreLimits:
        return self._limits

    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        self._guard.check()
        check_version(version)
        with self._lock:
            stored = self._table(table)
            check_writes(rows, stored.families, self._limits)
            for row, cells in rows:
                if not cells:
                    continue
                content = stored.row_for_writing(row)
                for column, value in cells:
                    content[(column.family, column.qualifier, version)] = _Stored(value)

    def write_batch(self, table: str, version: int, batch: CellBatch) -> None:
        self.write_cells(table, version, _row_writes(batch))

    def read_rows(self, table: str, rows: Sequence[bytes], columns: Sequence[Column] | None = None) -> list[list[Cell]]:
        self._guard.check()
        wanted = _Wanted(columns)
        with self._lock:
            stored = self._table(table)
            return [stored.read(row, wanted) for row in rows]

    def scan(
        self,
        table: str,
        key_range: KeyRange,
        columns: Sequence[Column] | None = None,
        *,
        batch_rows_max: int = 10_000,
    ) -> Iterator[CellBatch]:
        self._guard.check()
        with self._lock:
            self._table(table)
        return self._scan_batches(table, key_range, _Wanted(columns), batch_rows_max)

    def _scan_batches(
        self, table: str, key_range: KeyRange, wanted: _Wanted, batch_rows_max: int
    ) -> Iterator[CellBatch]:
        start: bytes | None = key_range.start
        while start is not None:
            rows, start = self._scan_once(table, KeyRange(start, key_range.stop), wanted, batch_rows_max)
            if rows:
                yield batch_of(rows)

    def _scan_once(
        self, table: str, key_range: KeyRange, wanted: _Wanted, rows_max: int
    ) -> tuple[list[list[Cell]], bytes | None]:
        """Rows that have wanted cells, and where to go on (None: the range ends)."""
        self._guard.check()
        rows: list[list[Cell]] = []
        with self._lock:
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
        with self._lock:
            stored = self._table(table)
            for shadow in shadows:
                if (cell := stored.find(shadow.cell)) is not None:
                    cell.commit_ts = shadow.commit_ts

    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        self._guard.check()
        with self._lock:
            stored = self._table(table)
            for cell in cells:
                stored.delete(cell)

    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        self._guard.check()
        with self._lock:
            stored = self._table(table)
            for drop in drops:
                stored.delete(batch.cell_version(int(drop)))
            for record in heals:
                for index in range(int(batch.rec_cell[record]), int(batch.rec_cell[record + 1])):
                    if (cell := stored.find(batch.cell_version(index))) is not None:
                        cell.commit_ts = int(batch.rec_commit[record])

    def regions(self, table: str) -> list[KeyRange]:
        self._guard.check()
        with self._lock:
            splits = self._table(table).splits
            starts, stops = [b"", *splits], [*splits, None]
            return [KeyRange(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def split_points(self, table: str, key_range: KeyRange, pieces: int) -> list[bytes]:
        self._guard.check()
        with self._lock:
            keys = [key for key in self._table(table).keys if key in key_range]
        cuts = sorted({keys[len(keys) * piece // pieces] for piece in range(1, pieces)}) if keys else []
        return [cut for cut in cuts if cut > key_range.start]

    def split_region(self, table: str, key: bytes) -> None:
        """From now on a region begins at `key`."""
        with self._lock:
            splits = self._table(table).splits
            if key and key not in splits:
                insort(splits, key)

    def merge_regions(self, table: str, key: bytes) -> None:
        """From now on no region begins at `key`."""
        with self._lock:
            self._table(table).splits.remove(key)

    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        self._guard.check()
        with self._lock:
            self._table(table)

    def create_table(self, info: TableInfo) -> None:
        self._guard.check()
        with self._lock:
            self._tables.setdefault(info.name, _Table()).families.update(info.families)

    def drop_table(self, table: str) -> None:
        self._guard.check()
        with self._lock:
            self._tables.pop(table, None)

    def close(self) -> None:
        pass

    def _table(self, name: str) -> _Table:
        try:
            return self._tables[name]
        except KeyError:
            raise UnknownTable(f"there is no table {name!r} in this store", table=name) from None


def _row_writes(batch: CellBatch) -> list[RowWrite]:
    return [
        RowWrite(
            batch.row_key(index),
            tuple((Column(cell.family, cell.qualifier), cell.value) for cell in batch.row_cells(index)),
        )
        for index in range(batch.rows)
    ]


class MemoryCommitTable:
    """`CommitTable` in memory."""

    is_immediate = True
    """A flush is a step in memory: a service need not leave its loop for it."""

    def __init__(self) -> None:
        self._folded: dict[int, int] = {}
        self._blocks: list[NDArray[np.int64]] = []
        """Entries of flushes that nobody asked for yet, newest last: a dictionary costs ten times as much."""
        self._marks: set[int] = set()
        self._lock = threading.Lock()
        self._guard = ProcessGuard("MemoryCommitTable")

    def lookup(self, starts: Sequence[int]) -> list[int]:
        self._guard.check()
        with self._lock:
            return [SEALED if start in self._marks else self._commits.get(start, NOT_FOUND) for start in starts]

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        self._guard.check()
        with self._lock:
            self._commits.update((start, commit) for start, commit in entries if start not in self._marks)
            return [start for start, _ in entries if start in self._marks]

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        self._guard.check()
        with self._lock:
            if not self._marks:
                self._blocks.append(entries.copy())
                return []
        return self.put([(start, commit) for start, commit in entries.tolist()])

    @property
    def _commits(self) -> dict[int, int]:
        """Start → commit, with all blocks folded in. Under the lock."""
        if self._blocks:
            blocks, self._blocks = self._blocks, []
            for block in blocks:
                self._folded.update(zip(block[:, 0].tolist(), block[:, 1].tolist(), strict=True))
        return self._folded

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return not self.put([(start, commit_ts)])

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        self._guard.check()
        with self._lock:
            self._marks.difference_update(branches)
            self._commits.update((branch, commit_ts) for branch in branches)

    def seal(self, start: int) -> SealOutcome:
        self._guard.check()
        with self._lock:
            if start in self._marks or start not in self._commits:
                self._marks.add(start)
                return SealOutcome(placed=True)
            return SealOutcome(placed=False, commit_ts=self._commits[start])

    def delete(self, starts: Sequence[int]) -> None:
        self._guard.check()
        with self._lock:
            for start in starts:
                self._commits.pop(start, None)

    def delete_below(self, horizon: int) -> int:
        self._guard.check()
        with self._lock:
            gone = [start for start in {*self._commits, *self._marks} if start < horizon]
            for start in gone:
                self._commits.pop(start, None)
                self._marks.discard(start)
            return len(gone)

    def entries(self) -> Iterator[tuple[int, int]]:
        self._guard.check()
        with self._lock:
            found = {**self._commits, **dict.fromkeys(self._marks, SEALED)}
        return iter(sorted(found.items()))

    def count(self) -> int:
        self._guard.check()
        with self._lock:
            return len({*self._commits, *self._marks})

    def close(self) -> None:
        pass


class MemoryEpochRow:
    """`EpochRow` in memory."""

    def __init__(self, state: EpochState | None = None) -> None:
        self._state = state or EpochState()
        self._lock = threading.Lock()
        self._guard = ProcessGuard("MemoryEpochRow")

    def read(self) -> EpochState:
        self._guard.check()
        with self._lock:
            return self._state

    def read_watermarks(self) -> tuple[int, int]:
        state = self.read()
        return state.watermark, state.horizon

    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        self._guard.check()
        with self._lock:
            if self._state.epoch != expected or self._state.ceiling > epoch:
                return False
            self._state = replace(self._state, epoch=epoch, ceiling=ceiling)
            return True

    def update(self, epoch: int, changes: EpochChanges) -> None:
        self._guard.check()
        with self._lock:
            if self._state.epoch != epoch:
                raise deposed(epoch, self._state.epoch)
            self._state = changed(self._state, changes)


def deposed(mine: int, found: int) -> Deposed:
    return Deposed(f"the epoch row holds epoch {found}, not {mine}: another TSO leads", epoch=mine, found=found)


def changed(state: EpochState, changes: EpochChanges) -> EpochState:
    """`state` after `changes`. What is removed and added in one change is there afterwards."""
    removed = frozenset(changes.pending_removed) | {pending.start_ts for pending in changes.pending_added}
    pending: tuple[PendingCommit, ...] = tuple(record for record in state.pending if record.start_ts not in removed)
    return EpochState(
        epoch=state.epoch,
        ceiling=state.ceiling if changes.ceiling is None else changes.ceiling,
        watermark=state.watermark if changes.watermark is None else changes.watermark,
        horizon=state.horizon if changes.horizon is None else changes.horizon,
        leases=state.leases - frozenset(changes.leases_removed) | frozenset(changes.leases_added),
        pending=pending + changes.pending_added,
    )


class MemoryCatalogue:
    """`Catalogue` in memory."""

    def __init__(self) -> None:
        self._tables: dict[str, TableInfo] = {}
        self._unknown: set[int] = set()
        self._watermarks: dict[tuple[str, KeyRange], RegionWatermark] = {}
        self._lock = threading.Lock()
        self._guard = ProcessGuard("MemoryCatalogue")

    def tables(self) -> list[TableInfo]:
        self._guard.check()
        with self._lock:
            return [self._tables[name] for name in sorted(self._tables)]

    def table(self, name: str) -> TableInfo:
        self._guard.check()
        with self._lock:
            if name not in self._tables:
                raise UnknownTable(f"there is no table {name!r} in the catalogue", table=name)
            return self._tables[name]

    def put_table(self, info: TableInfo, *, replace: bool) -> bool:
        self._guard.check()
        with self._lock:
            if info.name in self._tables and not replace:
                return False
            self._tables[info.name] = info
            return True

    def remove_table(self, name: str) -> None:
        self._guard.check()
        with self._lock:
            self._tables.pop(name, None)
            self._watermarks = {key: record for key, record in self._watermarks.items() if key[0] != name}

    def mark_unknown_table(self, table_id: int) -> None:
        self._guard.check()
        with self._lock:
            self._unknown.add(table_id)

    def unknown_tables(self) -> list[int]:
        self._guard.check()
        with self._lock:
            return sorted(self._unknown)

    def clear_unknown_table(self, table_id: int) -> None:
        self._guard.check()
        with self._lock:
            self._unknown.discard(table_id)

    def put_region_watermark(self, record: RegionWatermark) -> None:
        self._guard.check()
        with self._lock:
            self._watermarks[record.table, record.key_range] = record

    def region_watermarks(self, table: str) -> list[RegionWatermark]:
        self._guard.check()
        with self._lock:
            found = [record for record in self._watermarks.values() if record.table == table]
        return sorted(found, key=lambda record: record.key_range.start)
