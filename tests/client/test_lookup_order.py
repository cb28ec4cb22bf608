"""R4 at the ports: entries are looked up before W and H are read, in one call of the store's or in two."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyomid.config import Settings
from pyomid.database.driver import store_handlers
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.ports import Deployment
from pyomid.protocol.effects import LookupThenWatermarks
from pyomid.types import LeaderStateChanges

pytestmark = pytest.mark.fast

EPOCH = 1000


class MovingTable(MemoryCommitTable):
    """H moves, and an entry that tells so is put, whenever entries are looked up."""

    def __init__(self, row: MemoryLeaderState) -> None:
        super().__init__()
        self.row = row

    def lookup(self, starts: Sequence[int]) -> list[int]:
        self.row.update(EPOCH, LeaderStateChanges(watermark=60, horizon=50))
        return super().lookup(starts)


class TableThatDoesBoth(MovingTable):
    """Now and then, as a store whose regions move."""

    can = True

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int] | None:
        return (super().lookup(starts), 61, 51) if self.can else None


@pytest.fixture
def row() -> MemoryLeaderState:
    made = MemoryLeaderState()
    assert made.take_over(expected=0, epoch=EPOCH, ceiling=2000)
    return made


def looked_up(table: MovingTable) -> object:
    table.put([(50, 110)])
    parts = Deployment(MemoryStore(), table, table.row, MemoryCatalog(), None, Settings())  # type: ignore[arg-type]
    return store_handlers(parts)[LookupThenWatermarks](LookupThenWatermarks((50, 100)))


def test_in_two_calls_h_is_read_after_the_look_up(row: MemoryLeaderState) -> None:
    assert looked_up(MovingTable(row)) == ([110, 0], 60, 50)


def test_a_table_that_does_both_is_asked_once(row: MemoryLeaderState) -> None:
    assert looked_up(TableThatDoesBoth(row)) == ([110, 0], 61, 51)


def test_where_it_cannot_both_are_asked_for_in_order(row: MemoryLeaderState) -> None:
    table = TableThatDoesBoth(row)
    table.can = False
    assert looked_up(table) == ([110, 0], 60, 50)
