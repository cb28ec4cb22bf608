"""Outboxes without a database."""

from __future__ import annotations

from pyomid.database.writes.outbox import Outbox
from pyomid.database.writes.overlay import Overlay
from pyomid.database.writes.store_view import StoreView
from pyomid.protocol.reading import CommitCache
from pyomid.types import BeginReply


def new_outbox(*, flush_bytes: int = 1 << 30, ids_max: int = 0) -> Outbox:
    """Return the outbox of a transaction that began at 50."""
    view = StoreView(BeginReply(50, 0), CommitCache(10), version=50)
    return Outbox(Overlay(view), flush_bytes=flush_bytes, ids_max=ids_max)
