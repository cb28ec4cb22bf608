"""The memory stores join the conformance suites."""

from __future__ import annotations

import pytest

from pyomid.storage.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.testing.conformance import (
    FAMILIES,
    CatalogConformance,
    CommitTableConformance,
    DataStoreConformance,
    LeaderStateConformance,
    scanned,
)
from pyomid.types import KeyRange, TableInfo

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


class TestMemoryEpochRow(LeaderStateConformance):
    @pytest.fixture
    def leader_state(self) -> MemoryLeaderState:
        return MemoryLeaderState()


class TestMemoryCatalog(CatalogConformance):
    @pytest.fixture
    def catalog(self) -> MemoryCatalog:
        return MemoryCatalog()
