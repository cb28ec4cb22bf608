"""The durable id of one batch of a streaming query."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyomid.types import TableInfo

QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's name for it, in the thread that runs the query and calls us."""

_SHOWN_MAX: Final = 100
"""Longer table names go into an id by their hash: an id has 200 bytes."""


def batch_transaction_id(query: str, batch_id: int, name: str | None) -> str:
    """A sink without a name has the id that it always had. No name makes one id of two: it has no space in it."""
    return f"stream {query} batch {batch_id}" + ("" if name is None else f" sink {name}")


def table_sink_name(info: TableInfo) -> str:
    """The name of the sink that `writeStream` is: one life of a table (decision 0096). No name of `stream_sink` has
    an '@' in it."""
    shown = info.name if len(info.name) <= _SHOWN_MAX else blake2b(info.name.encode(), digest_size=16).hexdigest()
    return f"{shown}@{info.generation}"
