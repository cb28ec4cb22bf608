"""The durable id of one batch of a streaming query."""

from __future__ import annotations

from typing import Final

QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's name for it, in the thread that runs the query and calls us."""


def batch_transaction_id(query: str, batch_id: int, name: str | None) -> str:
    """A sink without a name has the id that it always had. No name makes one id of two: it has no space in it."""
    return f"stream {query} batch {batch_id}" + ("" if name is None else f" sink {name}")
