"""Decide which values of a table with a time to live have expired, by its entry and by timestamps, which are times
(E1, E2).

A value committed at c has expired for a transaction of moment m if c ≤ m − time to live. The moment is the snapshot's
start, so all readers of one snapshot agree, in any process and at any time:

    time to live 1 h    value committed at 10:00:00    a snapshot at 10:59:59 sees it, one at 11:00:00 does not

An expired value reads as a tombstone of its own column: what it hides stays hidden. Compaction drops the values that
have expired at W, which lies below every reader's moment.

A change of the time to live has a timestamp too, its fence. Snapshots below the fence keep the former time to live.
From the fence on the new time to live counts for all values, old ones included; what had expired stays expired (E4):

    1 h until the fence at 12:00, then 10 h     at 12:00 and later, what committed until 11:00 has expired
    10 h until the fence at 12:00, then 1 h     at 11:59 what committed until 01:59 has expired, at 12:00 until 11:00

A transaction that begins above the fence may still have read the former entry. So a second fence follows the entry:

    fence 12:00 ─► (the client sleeps) ─► entry, 1 h since 12:00 ─► fence 12:20 ─► entry, known to all from 12:20 on
        a transaction of 12:10, which opened the table: 10 h            compaction goes by 1 h once W is at 12:20

A value committed below `FIRST_TIME` never expires: its timestamp does not say how old it is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

from pyomid.protocol.reading import Snapshot
from pyomid.protocol.timestamps import NS_PER_S
from pyomid.types import TIMESTAMP_MAX, TableInfo, TtlChange

_END: Final = TtlChange(TIMESTAMP_MAX, 0, 0)


def expired_to(info: TableInfo, moment_ts: int) -> int:
    """Return the timestamp up to which values have expired for a transaction of this moment, or 0 if none have. The
    result ascends with the moment."""
    change = _change_at(info, moment_ts)
    return 0 if change is None else _expired_by(change, moment_ts)


def droppable_to(info: TableInfo, watermark: int) -> int:
    """E2: return the timestamp up to which values have expired for every snapshot above W, or 0 if the entry is
    changing. Pass an entry that was read after W."""
    found = 0
    if not info.is_changing:
        for change, following in pairwise((*changes_of(info), _END)):
            if change.since_ts <= watermark:
                found = max(found, change.expired_to)
                if change.known_ts <= watermark:
                    found = max(found, _expired_by(change, min(watermark, following.since_ts)))
    return found


def with_ttl(info: TableInfo, ttl_seconds: float, fence_ts: int) -> TableInfo:
    """Return the entry with another time to live from the fence on. The entry stays *changing* until it is
    `settled`."""
    change = TtlChange(fence_ts, ttl_seconds, expired_to(info, fence_ts))
    return replace(info, ttl_seconds=ttl_seconds, ttl_changes=(*changes_of(info), change), is_changing=True)


def without_passed(info: TableInfo, watermark: int) -> TableInfo:
    """Return the entry without those changes of its time to live that no snapshot above W uses."""
    changes = changes_of(info)
    kept = [one for one, following in pairwise((*changes, _END)) if following.since_ts > watermark]
    return replace(info, ttl_changes=tuple(kept))


def settled(info: TableInfo, fence_ts: int) -> TableInfo:
    """Return the entry, no longer *changing*. Every transaction above the fence knows its changes, because the fence
    was drawn after `info` was read."""
    changes = tuple(each._replace(known_ts=min(each.known_ts, fence_ts)) for each in info.ttl_changes)
    return replace(info, ttl_changes=changes, is_changing=False)


def had_ttl(info: TableInfo, moment_ts: int) -> bool:
    """Return whether the table had a time to live at this moment or before it."""
    return _change_at(info, moment_ts) is not None


def expiring(snapshot: Snapshot, info: TableInfo | None) -> Snapshot:
    """Return the snapshot with what has expired in this table, for reads of the table."""
    if info is None or info.ttl_seconds is None:
        return snapshot
    return replace(snapshot, expired_to=expired_to(info, snapshot.start_ts))


def changes_of(info: TableInfo) -> tuple[TtlChange, ...]:
    """Return the changes of the table's time to live in ascending order; the first may be the table's creation."""
    if info.ttl_seconds is None:
        return ()
    return info.ttl_changes or (TtlChange(0, info.ttl_seconds, 0, known_ts=0),)


def _change_at(info: TableInfo, moment_ts: int) -> TtlChange | None:
    found = None
    for change in changes_of(info):
        if change.since_ts <= moment_ts:
            found = change
    return found


def _expired_by(change: TtlChange, moment_ts: int) -> int:
    if not change.ttl_seconds:
        return change.expired_to
    return max(change.expired_to, moment_ts - round(change.ttl_seconds * NS_PER_S))
