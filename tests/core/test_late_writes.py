"""Decision 0001: why no data write whose effect is unsure may be repeated under the same version."""

from __future__ import annotations

from typing import Any

import pytest

from pyomid.cells import batch_of
from pyomid.protocol.compaction import compact_region_steps
from pyomid.protocol.effects import (
    CleanBatch,
    DeleteOrphans,
    Effect,
    FlushAndMerge,
    Heal,
    LookupThenWatermarks,
    ReadRange,
    ReadRows,
    ReadWatermarks,
    RecordWatermark,
    SealStarts,
    Steps,
    T,
)
from pyomid.protocol.reading import CommitCache, Snapshot, read_rows_steps
from pyomid.storage.memory import MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.types import CellVersion, Column, KeyRange, LeaderStateChanges, RowWrite, ShadowWrite, TableInfo

pytestmark = pytest.mark.fast

TABLE, ROW, X = "t", b"row", Column(b"f", b"x")


class World:
    """The ports in memory, and the plainest driver of the core's steps."""

    def __init__(self) -> None:
        self.store, self.commits, self.leader_state = MemoryStore(), MemoryCommitTable(), MemoryLeaderState()
        self.store.create_table(TableInfo(TABLE, (b"f",)))
        assert self.leader_state.take_over(expected=0, epoch=50, ceiling=10_000)

    def run(self, steps: Steps[T]) -> T:
        result: Any = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            result = self.perform(effect)

    def perform(self, effect: Effect) -> Any:
        match effect:
            case ReadRows(table, rows, columns):
                return self.store.read_rows(table, rows, columns)
            case ReadRange(table, key_range, columns, rows_max):
                found = self.store.scan(table, key_range, columns, batch_rows_max=rows_max or 1_000_000)
                return next(iter(found), batch_of([]))
            case LookupThenWatermarks(starts):
                return self.commits.lookup(starts), *self.leader_state.read_watermarks()
            case ReadWatermarks():
                return self.leader_state.read_watermarks()
            case SealStarts(starts):
                return [self.commits.seal(start) for start in starts]
            case CleanBatch(table, batch, heals, drops):
                return self.store.clean_batch(table, batch, heals, drops)
            case Heal() | DeleteOrphans() | FlushAndMerge() | RecordWatermark():
                return None
        raise AssertionError(effect)

    def write(self, start_ts: int, value: bytes | None) -> None:
        self.store.write_cells(TABLE, start_ts, [RowWrite(ROW, ((X, value),))])

    def commit(self, start_ts: int, commit_ts: int, *, complete: bool) -> None:
        self.commits.put([(start_ts, commit_ts)])
        if complete:
            self.store.write_shadow_cells(TABLE, [ShadowWrite(CellVersion(ROW, *X, start_ts), commit_ts)])
            self.commits.delete([start_ts])

    def compact(self, watermark: int) -> None:
        self.leader_state.update(50, LeaderStateChanges(watermark=watermark))
        self.run(compact_region_steps(TABLE, 1, KeyRange(), CommitCache(), now_s=0.0))

    def read(self, start_ts: int) -> dict[Column, bytes]:
        return self.run(read_rows_steps(TABLE, [ROW], None, Snapshot(start_ts, 50), CommitCache()))[0]


def deleted_row_after_compaction() -> World:
    world = World()
    world.write(100, b"old")
    world.commit(100, 150, complete=False)
    world.write(200, None)
    world.commit(200, 250, complete=True)
    world.compact(300)
    return world


def test_a_deleted_row_stays_deleted_after_compaction() -> None:
    world = deleted_row_after_compaction()
    assert world.read(400) == {}
    assert world.store.read_rows(TABLE, [ROW])[0] == []


def test_a_repeated_write_that_lands_late_would_bring_deleted_data_back() -> None:
    world = deleted_row_after_compaction()
    world.write(100, b"old")
    assert world.read(400) == {X: b"old"}, "were this harmless, law 10 would not be needed"


def test_a_late_write_of_a_transaction_that_was_not_repeated_is_an_orphan() -> None:
    world = World()
    world.write(200, b"new")
    world.commit(200, 250, complete=True)
    world.compact(300)
    world.write(100, b"late, and never committed, because its write was unsure")
    assert world.read(400) == {X: b"new"}
