"""The names of index tables, and the translation of errors about such tables for programs."""

from __future__ import annotations

from typing import Final

from pyomid.errors import ConflictError, SnapshotTooOld, UnknownTable

INDEX_TABLES: Final = "PYOMID_INDEX_"
"""Prefix of the names of index tables."""


def raise_if_index_dropped(error: BaseException) -> None:
    """Raise `ConflictError` in place of an error about an index's table, which the program never named, so that it
    reruns."""
    if isinstance(error, UnknownTable | SnapshotTooOld) and str(error.values.get("table", "")).startswith(INDEX_TABLES):
        kind = SnapshotTooOld if isinstance(error, SnapshotTooOld) else ConflictError
        raise kind("an index that this transaction reads or maintains was dropped: rerun the transaction") from error
