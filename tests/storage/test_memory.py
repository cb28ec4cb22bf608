"""The memory stores join the conformance suites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance import (
    FAMILIES,
    A,
    CatalogConformance,
    CommitTableConformance,
    DataStoreConformance,
    LeaderStateConformance,
    scanned,
)
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.omid.ports import CommitTable
from pyomid.types import CellVersion, KeyRange, RowWrite, TableInfo

pytestmark = pytest.mark.fast


class TestMemoryStore(DataStoreConformance):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    @pytest.fixture
    def table(self, store: MemoryStore) -> str:
        store.create_table(TableInfo("t", FAMILIES))
        return "t"

    def test_regions_split_and_merge_where_they_are_told(self, store: MemoryStore, table: str) -> None:
        store.split_region(table, b"m")
        store.split_region(table, b"c")
        assert store.regions(table) == [KeyRange(b"", b"c"), KeyRange(b"c", b"m"), KeyRange(b"m", None)]
        store.merge_regions(table, b"c")
        assert store.regions(table) == [KeyRange(b"", b"m"), KeyRange(b"m", None)]
        assert scanned(store, table) == []

    def test_a_call_moves_the_keys_once(self, store: MemoryStore, table: str) -> None:
        """Else the rows of a transaction that sends many, and rolls back, cost more the more there are."""
        writes = [RowWrite(b"%03d" % (7 * number % 100), ((A, b"v"),)) for number in range(100)]
        keys = store._tables[table].keys = MovedKeys()
        store.write_cells(table, 7, writes[:60])
        store.write_cells(table, 7, writes[60:])
        assert keys.moves == 2
        assert keys == sorted(write.row for write in writes)
        store.delete_versions(table, [CellVersion(write.row, *A, 7) for write in writes[:99]])
        assert keys.moves == 3
        assert keys == [writes[99].row]


class MovedKeys(list[bytes]):
    """A list that counts its changes."""

    moves = 0

    def insert(self, *args: Any) -> None:
        self.moves += 1
        super().insert(*args)

    def __setitem__(self, *args: Any) -> None:
        self.moves += 1
        super().__setitem__(*args)

    def __delitem__(self, *args: Any) -> None:
        self.moves += 1
        super().__delitem__(*args)


class TestMemoryCommitTable(CommitTableConformance):
    @pytest.fixture
    def commits(self) -> MemoryCommitTable:
        return MemoryCommitTable()


def passed_on(name: str) -> Callable[..., Any]:
    return lambda table, *args, **options: getattr(table.real, name)(*args, **options)


class PlainTable(CommitTable):
    """What a commit table must have, and no more: of everything else it has the defaults."""

    def __init__(self) -> None:
        self.real = MemoryCommitTable()

    locals().update({name: passed_on(name) for name in CommitTable.__abstractmethods__})


class TestDefaultsOfACommitTable(CommitTableConformance):
    @pytest.fixture
    def commits(self) -> PlainTable:
        return PlainTable()


class TestMemoryEpochRow(LeaderStateConformance):
    @pytest.fixture
    def leader_state(self) -> MemoryLeaderState:
        return MemoryLeaderState()


class TestMemoryCatalog(CatalogConformance):
    @pytest.fixture
    def catalog(self) -> MemoryCatalog:
        return MemoryCatalog()
