"""What several tests of a folder's storage begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyomid.config import Settings
from pyomid.ports import Deployment
from pyomid.storage.embedded import EmbeddedCatalog, EmbeddedCommitTable, EmbeddedLeaderState, EmbeddedStore


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Deployment]:
    """Of a folder without a TSO, whose stores are written directly."""
    store, commits = EmbeddedStore(tmp_path), EmbeddedCommitTable(tmp_path, writable=True)
    leader_state, catalog = EmbeddedLeaderState(tmp_path, writable=True), EmbeddedCatalog(tmp_path)
    leader_state.take_over(expected=0, epoch=1, ceiling=1)
    yield Deployment(store, commits, leader_state, catalog, None, Settings())  # type: ignore[arg-type]
    for each in (store, commits, leader_state, catalog):
        each.close()
