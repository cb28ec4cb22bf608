"""Rows in one line."""

from __future__ import annotations

from pyomid.database.database import Database


def put(db: Database, *keys: bytes, value: bytes = b"1", column: bytes = b"f:x", table: str = "t") -> int:
    """Commits them, and returns the commit's timestamp."""
    with db.begin() as tx:
        for key in keys:
            tx.table(table).put(key, {column: value})
    assert tx.commit_ts is not None
    return tx.commit_ts
