"""The virtual database: the memory store's semantics, each effect cut into the parts that may land apart.

A row is the grain of atomicity of every data store; entries of a flush, starts of a multi-get and rows of a scan
are not atomic together on all of them, so they never are here. `Disk` is what survives every crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyomid.cells import CellBatch, batch_of
from pyomid.coroutines import Effect
from pyomid.errors import Unavailable
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.protocol import effects
from pyomid.types import Cell, Column, KeyRange, SealOutcome
from settled_rows import settled_row

Deployment = Sequence[Callable[[], Any]]


class PlainCommitTable(MemoryCommitTable):
    """A commit table whose puts are not conditional (HBase): entry and mark may stand together, the mark wins."""

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        self._commits.update(entries)
        return []

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        if start in self._marks:
            return False
        self._commits[start] = commit_ts
        return True

    def seal(self, start: int) -> SealOutcome:
        if start in self._marks:
            return SealOutcome(placed=True)
        return super().seal(start)


@dataclass(slots=True)
class Disk:
    """Everything durable."""

    store: MemoryStore = field(default_factory=MemoryStore)
    leader_state: MemoryLeaderState = field(default_factory=MemoryLeaderState)
    commits: MemoryCommitTable = None  # type: ignore[assignment]
    catalog: MemoryCatalog = field(default_factory=MemoryCatalog)

    def __post_init__(self) -> None:
        if self.commits is None:
            self.commits = MemoryCommitTable()


class Watch:
    """Told of what takes effect, at the moment it does; `truth.Truth` is the one that judges."""

    def shadow_written(self, table: str, cell: Any, commit_ts: int) -> None: ...
    def entries_leaving(self, starts: Sequence[int]) -> None: ...
    def deleting_below(self, horizon: int) -> None: ...


@dataclass(slots=True)
class Storage:
    """Cuts effects into parts over a `Disk`."""

    disk: Disk
    watch: Watch = field(default_factory=Watch)

    def parts_of(self, effect: Effect[Any]) -> tuple[Deployment, Callable[[list[Any]], Any], bool]:
        """(parts, how their results become the answer, whether they must go in order)."""
        store, disk = self.disk.store, self.disk
        match effect:
            case effects.ReadRows(table, rows, columns, bounds):
                return (
                    [partial(_read_row, store, table, row, columns, bounds, at) for at, row in enumerate(rows)],
                    _in_order,
                    False,
                )
            case effects.ReadSettled():
                return [partial(_read_settled, disk, effect)], _last, True
            case effects.ReadRange(table, key_range, columns, int() as rows_max, bounds):
                return [partial(_read_range, store, table, key_range, columns, rows_max, bounds)], _last, True
            case effects.ReadRange(table, key_range, columns):
                return _RangeRead(store, table, key_range, columns).parts(), batch_of_rows, True
            case effects.LookupThenWatermarks(starts):  # its first step; `World` sends the second behind it
                return [partial(_look_up, disk, start, at) for at, start in enumerate(starts)], _in_order, False
            case effects.ReadWatermarks():
                return [disk.leader_state.read_watermarks], _last, True
            case effects.ReadValidity(table):
                return (
                    [
                        lambda: disk.leader_state.read_watermarks()[0],
                        partial(disk.catalog.generation, table),
                    ],
                    tuple,
                    True,
                )
            case effects.ForgetTable():
                return [lambda: None], _last, True
            case effects.ReadNotedDrop(table):
                return [partial(disk.catalog.noted_drop, table)], _last, True
            case effects.WriteCells(table, version, rows):
                return [partial(store.write_cells, table, version, [row]) for row in rows], _nothing, False
            case effects.WriteShadowCells(table, shadows) | effects.Heal(table, shadows):
                return [partial(self._write_shadow, table, shadow) for shadow in shadows], _nothing, False
            case effects.DeleteOrphans(table, cells) | effects.DeleteVersions(table, cells):
                return [partial(store.delete_versions, table, [cell]) for cell in cells], _nothing, False
            case effects.DeleteCommitEntries(starts):
                return [partial(self.delete_entries, [start]) for start in starts], _nothing, False
            case effects.CleanBatch():
                return self._cleaning(effect), _nothing, False
            case effects.FlushAndMerge(table, region):
                return [partial(store.flush_and_merge, table, region)], _nothing, True
            case effects.RecordWatermark(record):
                return [partial(disk.catalog.put_region_watermark, record)], _nothing, True
            case effects.ReadTables():
                return [disk.catalog.registered], _last, True
            case effects.ReadUnknownTables():
                return [disk.catalog.unknown_tables], _last, True
            case effects.DropRegionWatermarks(newest):
                return [partial(disk.catalog.drop_region_watermarks, newest)], _nothing, True
            case effects.ReadRegionWatermarks(table):
                return [partial(disk.catalog.region_watermarks, table)], _last, True
        raise TypeError(f"the virtual storage does not know {effect!r}")

    def _write_shadow(self, table: str, shadow: Any) -> None:
        self.watch.shadow_written(table, shadow.cell, shadow.commit_ts)
        self.disk.store.write_shadow_cells(table, [shadow])

    def _cleaning(self, effect: effects.CleanBatch) -> Deployment:
        """One part a row: all of its changes together or not at all (K3)."""
        batch = effect.batch
        first_cells = batch.rec_cell[batch.row_rec]
        parts = []
        for row in range(batch.rows):
            heals = effect.heals[(effect.heals >= batch.row_rec[row]) & (effect.heals < batch.row_rec[row + 1])]
            drops = effect.drops[(effect.drops >= first_cells[row]) & (effect.drops < first_cells[row + 1])]
            if len(heals) or len(drops):
                parts.append(partial(self._clean_row, effect.table, batch, heals, drops))
        return parts

    def _clean_row(self, table: str, batch: CellBatch, heals: Any, drops: Any) -> None:
        for record in heals.tolist():
            for cell in range(int(batch.rec_cell[record]), int(batch.rec_cell[record + 1])):
                self.watch.shadow_written(table, batch.cell_version(cell), int(batch.rec_commit[record]))
        self.disk.store.clean_batch(table, batch, heals, drops)

    def delete_entries(self, starts: Sequence[int]) -> None:
        self.watch.entries_leaving(starts)
        self.disk.commits.delete(starts)

    def delete_below(self, horizon: int) -> int:
        self.watch.deleting_below(horizon)
        self.watch.entries_leaving(
            [start for start, state in self.disk.commits.entries() if start < horizon and state > 0]
        )
        return self.disk.commits.delete_below(horizon)


def lost() -> Unavailable:
    return Unavailable("no answer in time")


def _read_settled(disk: Disk, effect: effects.ReadSettled) -> tuple[list[dict[Column, bytes] | None], int, int]:
    """All rows, W and the table's entry, at one moment."""
    rows = disk.store.read_rows(effect.table, effect.rows, effect.columns, bounds=effect.bounds)
    watermark, _ = disk.leader_state.read_watermarks()
    settled = [settled_row(cells, effect.bounds, effect.expired_to) for cells in rows]
    return settled, watermark, disk.catalog.generation(effect.table)


def _read_row(store: MemoryStore, table: str, row: bytes, columns: Any, bounds: Any, at: int) -> tuple[int, list[Cell]]:
    return at, store.read_rows(table, [row], columns, bounds=bounds)[0]


def _look_up(disk: Disk, start: int, at: int) -> tuple[int, int]:
    state = disk.commits.lookup([start])[0]
    return at, state


class _RangeRead:
    """A scan: the keys as they are at its beginning, then row by row, ascending, each at its own moment."""

    def __init__(self, store: MemoryStore, table: str, key_range: KeyRange, columns: Any) -> None:
        self._store, self._table, self._columns = store, table, columns
        found = _read_range(store, table, key_range, columns, 1_000_000)
        self._keys = [found.row_key(index) for index in range(found.rows)]

    def parts(self) -> Deployment:
        return [partial(self._read, key) for key in self._keys]

    def _read(self, key: bytes) -> list[Cell]:
        return self._store.read_rows(self._table, [key], self._columns)[0]


def _read_range(
    store: MemoryStore, table: str, key_range: KeyRange, columns: Any, rows_max: int, bounds: Any = None
) -> CellBatch:
    batches = store.scan(table, key_range, columns, batch_rows_max=rows_max, bounds=bounds)
    return next(iter(batches), None) or batch_of([])


def batch_of_rows(rows: list[list[Cell]]) -> CellBatch:
    return batch_of(rows)


def _in_order(results: list[tuple[int, Any]]) -> list[Any]:
    return [value for _, value in sorted(results, key=lambda pair: pair[0])]


def _last(results: list[Any]) -> Any:
    return results[-1]


def _nothing(results: list[Any]) -> None:
    return None
