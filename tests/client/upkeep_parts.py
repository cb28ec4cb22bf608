"""What tests of upkeep share: W that they move, a folder's upkeep over a database's own parts, a table that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedded_parts import set_watermark
from pyomid.database.database import Database
from pyomid.database.upkeep.folder import FolderUpkeep
from pyomid.errors import OmidError
from pyomid.types import KeyRange, LeaderStateChanges


def publish(db: Database, watermark: int | None = None) -> int:
    """W, as a TSO would move it: else past all that was begun so far."""
    if watermark is None:
        begun = db.begin()
        begun.rollback()
        watermark = begun.start_ts
    deployment = db._core.deployment
    if deployment.store.capabilities.packs_commits:
        set_watermark(deployment, watermark)
        return watermark
    leader_state = deployment.leader_state
    leader_state.update(leader_state.read().epoch, LeaderStateChanges(watermark=watermark))
    return watermark


def folder_upkeep(db: Database, folder: Path, **options: Any) -> FolderUpkeep:
    given: dict[str, Any] = {
        "open_deployment": lambda: replace(db._core.deployment, closers=()),
        "records": lambda: 0,
        "share": 0.5,
        **options,
    }
    return FolderUpkeep(folder, given.pop("open_deployment"), given.pop("records"), **given)


def failing_merges(db: Database, failing: str, error: OmidError) -> tuple[list[str], Callable[[], None]]:
    """Let merges of that table fail. Return the tables of the merges that were tried, in their order, and what lets
    all succeed."""
    merge, is_mended, tried = db._core.deployment.store.flush_and_merge, threading.Event(), list[str]()

    def merges(table: str, region: KeyRange) -> None:
        tried.append(table)
        if table == failing and not is_mended.is_set():
            raise error
        merge(table, region)

    db._core.deployment.store.flush_and_merge = merges  # type: ignore[method-assign]
    return tried, is_mended.set
