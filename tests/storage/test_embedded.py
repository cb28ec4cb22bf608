"""The embedded stores join the conformance suites, with a second handle standing for another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyomid.storage.embedded import EmbeddedCatalog, EmbeddedCommitTable, EmbeddedLeaderState, EmbeddedStore
from pyomid.testing.conformance import (
    FAMILIES,
    CatalogConformance,
    CommitTableConformance,
    DataStoreConformance,
    LeaderStateConformance,
)
from pyomid.types import TableInfo

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
