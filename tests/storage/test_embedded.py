"""The embedded stores join the conformance suites, with a second handle standing for another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyomid.errors import Corruption
from pyomid.kernels.compiled import Kernel
from pyomid.storage.embedded import EmbeddedCatalog, EmbeddedCommitTable, EmbeddedLeaderState, EmbeddedStore
from pyomid.storage.embedded.records import record_key
from pyomid.testing.conformance import (
    FAMILIES,
    CatalogConformance,
    CommitTableConformance,
    DataStoreConformance,
    LeaderStateConformance,
)
from pyomid.types import CellVersion, Column, ReadBounds, RowWrite, ShadowWrite, TableInfo

pytestmark = pytest.mark.fast


class TestEmbeddedStore(DataStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[EmbeddedStore]:
        store, self._other = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path)
        yield store
        store.close()
        self._other.close()

    @pytest.fixture
    def table(self, store: EmbeddedStore) -> str:
        store.create_table(TableInfo("t", FAMILIES))
        return "t"

    def another(self, store: object) -> EmbeddedStore:
        return self._other


class TestEmbeddedStoreInPlainPython(TestEmbeddedStore):
    """Without a compiler, and while kernels are not there yet."""

    @pytest.fixture(autouse=True)
    def no_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Kernel, "is_ready", False)


@pytest.mark.parametrize("columns", [None, [Column(b"f", b"")], [Column(b"f", b"a")], [Column(b"f", b"none")]])
def test_a_point_read_stops_at_the_newest_visible(tmp_path: Path, columns: list[Column] | None) -> None:
    """The oldest version is damaged: who reads it, notices."""
    store, cell = EmbeddedStore(tmp_path), Column(b"f", b"a")
    store.create_table(TableInfo("t", FAMILIES))
    for version in range(50, 1000, 50):
        store.write_cells("t", version, [RowWrite(b"r", ((cell, b"%d" % version),))])
    shadows = [ShadowWrite(CellVersion(b"r", *cell, version), version + 1) for version in range(50, 900, 50)]
    store.write_shadow_cells("t", shadows)
    key = record_key(store._environment.read(lambda t: store._tables.table(t, "t")).prefix, b"r", 50)
    store._environment.write(lambda transaction: transaction.put(key, b"damaged", db=store._cells))

    (cells,) = store.read_rows("t", [b"r"], columns, bounds=ReadBounds(below=951, committed_below=951))
    assert [each.version for each in cells] == ([950, 900, 850] if columns != [Column(b"f", b"none")] else [])
    with pytest.raises(Corruption):
        store.read_rows("t", [b"r"], columns)
    store.close()


def test_a_read_stops_above_no_column_of_another_process(tmp_path: Path) -> None:
    """Column b is younger than what this store knows of the table, and lies below the newest version of a."""
    store, other = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path)
    store.create_table(TableInfo("t", FAMILIES))
    a, b = Column(b"f", b"a"), Column(b"f", b"b")
    store.write_cells("t", 50, [RowWrite(b"r", ((a, b"1"),))])
    assert len(store.read_rows("t", [b"r"])[0]) == 1
    other.write_cells("t", 100, [RowWrite(b"r", ((b, b"2"),))])
    other.write_cells("t", 150, [RowWrite(b"r", ((a, b"3"),))])
    other.write_shadow_cells("t", [ShadowWrite(CellVersion(b"r", *a, 150), 151)])
    bounds = ReadBounds(below=300, committed_below=300)
    for columns in (None, [Column(b"f", b"")], [a, b]):
        (cells,) = store.read_rows("t", [b"r"], columns, bounds=bounds)
        assert {each.version for each in cells} >= {150, 100}
    store.close()
    other.close()


class TestEmbeddedCommitTable(CommitTableConformance):
    @pytest.fixture
    def commits(self, tmp_path: Path) -> Iterator[EmbeddedCommitTable]:
        commits = EmbeddedCommitTable(tmp_path, writable=True)
        self._leader_state = EmbeddedLeaderState(tmp_path, writable=True)
        yield commits
        self._leader_state.close()
        commits.close()

    def leader_state_of(self, commits: object) -> EmbeddedLeaderState:
        return self._leader_state


class TestEmbeddedEpochRow(LeaderStateConformance):
    @pytest.fixture
    def leader_state(self, tmp_path: Path) -> Iterator[EmbeddedLeaderState]:
        leader_state = EmbeddedLeaderState(tmp_path, writable=True)
        yield leader_state
        leader_state.close()


class TestEmbeddedCatalog(CatalogConformance):
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Iterator[EmbeddedCatalog]:
        catalog = EmbeddedCatalog(tmp_path)
        yield catalog
        catalog.close()
