"""The memory stores join the conformance suites."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
from pyomid.types import CellVersion, Column, KeyRange, RowWrite, TableInfo

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

    def test_a_row_costs_the_same_in_a_table_of_any_size(self, store: MemoryStore) -> None:
        """A transaction that sends 400 000 rows, and rolls back, writes and deletes each in a table that has the
        others."""
        writes = [RowWrite(b"a%06d" % number, ((Column(b"f", b"q"), b"v"),)) for number in range(2_000)]
        named = [CellVersion(row, b"f", b"q", 7) for row, _ in writes]

        def seconds(table: str, others: int) -> tuple[float, float]:
            store.create_table(TableInfo(table, (b"f",)))
            cells = ((Column(b"f", b"q"), b"v"),)
            store.write_cells(table, 1, [RowWrite(b"b%06d" % number, cells) for number in range(others)])
            written, deleted = [], []
            for _ in range(3):
                began = time.thread_time()
                store.write_cells(table, 7, writes)
                written.append(time.thread_time() - began)
                began = time.thread_time()
                store.delete_versions(table, named)
                deleted.append(time.thread_time() - began)
            return min(written), min(deleted)

        alone, among = seconds("alone", 0), seconds("among", 400_000)
        assert among[0] < 5 * alone[0]
        assert among[1] < 5 * alone[1]


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
