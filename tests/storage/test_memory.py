"""The memory stores join the conformance suites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from conformance import (
    FAMILIES,
    CatalogConformance,
    CommitTableConformance,
    DataStoreConformance,
    LeaderStateConformance,
    scanned,
)
from pyomid.ports import CommitTable
from pyomid.storage.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.types import KeyRange, SealOutcome, TableInfo

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


class TestMemoryCommitTable(CommitTableConformance):
    @pytest.fixture
    def commits(self) -> MemoryCommitTable:
        return MemoryCommitTable()


class PlainTable(CommitTable):
    """What a commit table must have, and no more: of everything else it has the defaults."""

    def __init__(self) -> None:
        self._table = MemoryCommitTable()

    def lookup(self, starts: Sequence[int]) -> list[int]:
        return self._table.lookup(starts)

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        return self._table.put(entries)

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return self._table.put_unless_sealed(start, commit_ts)

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        self._table.put_branches(branches, commit_ts)

    def seal(self, start: int) -> SealOutcome:
        return self._table.seal(start)

    def delete(self, starts: Sequence[int]) -> None:
        self._table.delete(starts)

    def delete_below(self, horizon: int) -> int:
        return self._table.delete_below(horizon)

    def entries(self) -> Iterator[tuple[int, int]]:
        return self._table.entries()

    def count(self) -> int:
        return self._table.count()

    def close(self) -> None:
        self._table.close()


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
