"""The durable id of one batch of a streaming query."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyomid.types import TableInfo

QUERY_ID: Final = "sql.streaming.queryId"
"""Local property that holds the query's id in the thread that runs the query."""

_SHOWN_MAX: Final = 100
"""A longer table name is replaced by its hash in an id: an id has at most 200 bytes."""


def batch_transaction_id(query: str, batch_id: int, name: str | None) -> str:
    """Return the idempotency key of one batch. Ids of distinct sinks differ, because a sink's name has no space; the
    id of a sink without a name keeps its former format."""
    return f"stream {query} batch {batch_id}" + ("" if name is None else f" sink {name}")


def table_sink_name(info: TableInfo) -> str:
    """Return the sink name that `writeStream` uses for one life of a table (decision 0096). A name given to
    `stream_sink` cannot equal it: it has no '@'."""
    shown = info.name if len(info.name) <= _SHOWN_MAX else blake2b(info.name.encode(), digest_size=16).hexdigest()
    return f"{shown}@{info.generation}"
