"""The embedded stores join the conformance suites, with a second handle standing for another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyomid.storage.embedded import EmbeddedCatalogue, EmbeddedCommitTable, EmbeddedEpochRow, EmbeddedStore
from pyomid.testing.conformance import (
    FAMILIES,
    CatalogueConformance,
    CommitTableConformance,
    DataStoreConformance,
    EpochRowConformance,
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
        yield commits
        commits.close()


class TestEmbeddedEpochRow(EpochRowConformance):
    @pytest.fixture
    def epoch_row(self, tmp_path: Path) -> Iterator[EmbeddedEpochRow]:
        epoch_row = EmbeddedEpochRow(tmp_path, writable=True)
        yield epoch_row
        epoch_row.close()


class TestEmbeddedCatalogue(CatalogueConformance):
    @pytest.fixture
    def catalogue(self, tmp_path: Path) -> Iterator[EmbeddedCatalogue]:
        catalogue = EmbeddedCatalogue(tmp_path)
        yield catalogue
        catalogue.close()
