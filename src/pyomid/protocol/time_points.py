"""Wall time ↔ timestamps: timestamps are logical, so the leader notes from time to time which start was the newest.

    point (start 100, 10:00:00)   commit 150   point (start 300, 10:01:00)
    the snapshot of 10:00:30 is that of start 100: a commit is in a snapshot from the point on that lies above it
    the commit 150 is told as of 10:01:00: by then it had taken place, and the snapshot of 10:01:00 has it

Both directions agree: the snapshot of a time holds exactly the commits whose time is at or before it. A clock that was
set back notes later starts at earlier times. Then the later start is believed: what was noted before it at a later time
counts as of the later start's time.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyomid.types import TIMESTAMP_STEP, TimePoint, start_of


def newest_at(points: Sequence[TimePoint], wall_ms: int) -> TimePoint | None:
    """The point whose snapshot is that of `wall_ms`; None if it is older than all. `points` ascend by start."""
    for point in reversed(points):
        if point.wall_ms <= wall_ms:
            return point
    return None


def wall_ms_of(points: Sequence[TimePoint], commit_ts: int) -> int | None:
    """When it had surely been committed, in milliseconds since 1970: the snapshot of this time is the first with the
    commit. None if no point lies above it yet: then it is as new as the newest point. `points` ascend by start."""
    above = [point.wall_ms for point in points if point.start_ts > commit_ts]
    return min(above, default=None)


def snapshot_after(timestamp: int) -> int:
    """The start whose snapshot holds what was committed at or before `timestamp`, a start or a commit."""
    return start_of(timestamp) + TIMESTAMP_STEP
