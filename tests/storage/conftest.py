"""What several tests of a folder's storage begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyomid.config import Settings
from pyomid.folder import (
    BranchTable,
    EmbeddedCatalog,
    EmbeddedStore,
    FolderOptions,
    FolderSession,
    FolderState,
)
from pyomid.ports import Deployment


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Deployment]:
    """Of a folder."""
    store, catalog = EmbeddedStore(tmp_path), EmbeddedCatalog(tmp_path)
    environment = store.environment
    session = FolderSession(environment, FolderOptions())
    yield Deployment(store, BranchTable(environment), FolderState(environment), catalog, session, Settings())
    for each in (session, store, catalog):
        each.close()
