"""Convert between timestamps and wall-clock time: a timestamp is a number of nanoseconds since 1970 (T3, T18).

The TSO draws max(last timestamp + 50, wall clock). So a commit timestamp is the time of the commit, and the snapshot of
a time is a timestamp too:

    10:00:00.000  commit 1764324000000000000
    10:00:00.750  commit 1764324000750000000
    the snapshot of 10:00:00.500 is at 1764324000500001000: it has the first commit, not the second

Timestamps below `FIRST_TIME` are no times: Apache Omid's TSO counts up from 0 unless it is set to WORLD_TIME.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from pyomid.types import FIRST_TIME, TIMESTAMP_MAX, TIMESTAMP_STEP, start_of

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

FOREIGN_CLOCK_S: Final = 60.0
"""If a TSO is not pyomid's, its timestamps count as times if its newest start is at most this far from the client's
wall clock. Omid's INCREMENTAL timestamps continue from the ceiling, so a minute after the takeover they are further
behind."""


def is_time(timestamp: int) -> bool:
    """Return whether a timestamp says when it was drawn."""
    return timestamp >= FIRST_TIME


def are_times(newest_start: int, wall_ns: int) -> bool:
    """Return whether the timestamps of a foreign TSO, which has just handed out `newest_start`, are times."""
    return abs(newest_start - wall_ns) <= FOREIGN_CLOCK_S * NS_PER_S


def ns_of(when: datetime) -> int:
    """Return a timezone-aware datetime as nanoseconds since 1970."""
    since = when - _EPOCH
    return (since.days * 86_400 * 1_000_000 + since.seconds * 1_000_000 + since.microseconds) * NS_PER_US


def time_of(timestamp: int) -> datetime:
    """Return the time when a timestamp was drawn, in UTC, rounded down to a microsecond."""
    return _EPOCH + timedelta(microseconds=min(timestamp, TIMESTAMP_MAX) // NS_PER_US)


def snapshot_after(timestamp: int) -> int:
    """Return the start whose snapshot holds every commit at or before `timestamp` (a start or a commit)."""
    return start_of(timestamp) + TIMESTAMP_STEP


def snapshot_at(wall_ns: int) -> int:
    """Return the start whose snapshot holds every commit up to the end of `wall_ns`'s microsecond."""
    return snapshot_after(wall_ns - wall_ns % NS_PER_US + NS_PER_US - 1)


def kept_start(wall_ns: int, retention_s: float) -> int:
    """T17: return the timestamp that W may not pass while this much history is kept, or 0 if the time is unknown."""
    return max(0, wall_ns - int(retention_s * NS_PER_S))


def iso(timestamp: int) -> str:
    """Return a timestamp's time for people, in ISO 8601 and UTC; empty if the timestamp is no time."""
    if not is_time(timestamp):
        return ""
    return time_of(timestamp).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def dated(timestamp: int) -> str:
    """Return a timestamp as text for people, with its time if it is one."""
    return f"{timestamp} ({iso(timestamp)})" if is_time(timestamp) else str(timestamp)


AHEAD_MS: Final = "timestamps_ahead_ms"
REFUSED_MS: Final = "clock_refused_ms"


def clock_trouble(counters: Mapping[str, int], last_ts: int) -> str:
    """Return what is wrong with the wall clock, for a TSO's log and `pyomid status`; empty if nothing is. `counters`
    say how far timestamps are ahead of the clock, and how long a jump of the clock is that they do not follow."""
    if refused_ms := counters.get(REFUSED_MS, 0):
        return (
            f"the clock was set forward by {timedelta(seconds=refused_ms // 1000)}, which timestamps do not follow: "
            "correct the clock; or, if it is right now, restart the TSO, or the programs that have the folder open"
        )
    if ahead_ms := counters.get(AHEAD_MS, 0):
        return (
            f"timestamps are {timedelta(seconds=ahead_ms // 1000)} ahead of the clock: until it shows "
            f"{iso(last_ts)}, commits are dated at about that time and values do not expire; if the clock was wrong "
            "before, export the tables into a new database"
        )
    return ""
