"""Wall-clock time ↔ timestamps: timestamps are logical, so the leader notes at intervals which start was the newest.

    point (start 100, 10:00:00)   commit 150   point (start 300, 10:01:00)
    the snapshot of 10:00:30 is that of start 300: it has everything that was acknowledged by then
    the commit 150 has the time 10:01:00: by then it had taken place, and the snapshot of 10:01:00 has it

The snapshot at a time has a *moment*, the time of its point, at or after the requested time. It holds exactly the
commits whose time is at or before its moment. A clock that was set back notes later starts at earlier times. Then the
later start counts: an earlier point with a later time gets the later start's time.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyomid.types import TIMESTAMP_STEP, TimePoint, start_of


def first_at(points: Sequence[TimePoint], wall_ms: int) -> TimePoint | None:
    """Return the first point at or after `wall_ms`: every commit acknowledged by then lies below it. Its time is the
    moment. None if all points are older. `points` ascend by start."""
    found = None
    for point in reversed(points):
        if point.wall_ms < wall_ms:
            break
        if found is None or point.wall_ms < found.wall_ms:
            found = point
    return found


def newest_at(points: Sequence[TimePoint], wall_ms: int) -> TimePoint | None:
    """Return the last point at or before `wall_ms`: every commit below it is at least as old. None if all points are
    younger. `points` ascend by start."""
    for point in reversed(points):
        if point.wall_ms <= wall_ms:
            return point
    return None


def wall_ms_of(points: Sequence[TimePoint], commit_ts: int) -> int | None:
    """Return the time of a commit, in milliseconds since 1970: the snapshot of this time is the first with the commit.
    None if no point lies above the commit yet. `points` ascend by start."""
    above = [point.wall_ms for point in points if point.start_ts > commit_ts]
    return min(above, default=None)


def snapshot_after(timestamp: int) -> int:
    """Return the start whose snapshot holds every commit at or before `timestamp`, a start or a commit."""
    return start_of(timestamp) + TIMESTAMP_STEP
