"""The wall clock that timestamps follow. A clock that is set back changes nothing; a clock that is set forward is
followed by up to a day (T3).

If timestamps have followed a wrong clock, that cannot be undone: values expire, and later timestamps stand still until
the wall clock reaches them. So a jump is compared with the monotonic clock, and at a takeover with the last ceiling.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyomid.errors import Misuse
from pyomid.protocol.timestamps import NS_PER_S, is_time, iso
from pyomid.types import FIRST_TIME

JUMP_NS_MAX: Final = 86_400 * NS_PER_S
"""The longest jump that is always followed. A virtual machine that was paused for hours wakes up with such a jump."""
UNUSED_NS_MAX: Final = 400 * 86_400 * NS_PER_S
"""The longest time since the last use that needs no confirmation: a database that was used a year ago just opens."""
MADE_NS: Final = 1_795_824_000 * NS_PER_S
"""When this version was made, November 2026. A new database has no last use, so its first clock is compared with
this."""
MADE_YEARS_AGO_MAX: Final = 5
LATEST_NS: Final = 7_258_118_400 * NS_PER_S
"""The latest wall clock that is accepted, in the year 2200; timestamps end in 2262."""


class WallClock:
    def __init__(self, now_s: float, wall_ns: int) -> None:
        self._now_s, self.ns = now_s, wall_ns
        """`ns` is the last reading in nanoseconds since 1970; 0 if unknown."""
        self.refused_ns = 0
        """The length of a jump that is not followed; 0 if there is none."""

    def read(self, now_s: float, wall_ns: int, reached_ts: int = 0) -> None:
        """Take a reading of the monotonic clock and of the wall clock (0 if unknown). Timestamps have reached
        `reached_ts`, so a clock that was set back may return to it."""
        if self.ns and wall_ns - max(self.ns, reached_ts) > JUMP_NS_MAX:
            expected_ns = self.ns + int((now_s - self._now_s) * NS_PER_S)
            ahead_ns = wall_ns - max(expected_ns, reached_ts)
            self.refused_ns = ahead_ns if ahead_ns > JUMP_NS_MAX else 0
            if self.refused_ns:
                wall_ns = expected_ns
        else:
            self.refused_ns = 0
        self._now_s, self.ns = now_s, wall_ns


def check_clock(wall_ns: int, last_ts: int, *, accept: bool) -> None:
    """Raise Misuse if a TSO should not begin with this wall clock. `last_ts` is the highest timestamp of earlier TSOs,
    or their ceiling. `accept` means that a person has confirmed the clock."""
    if not FIRST_TIME <= wall_ns <= LATEST_NS:
        raise Misuse(f"this machine's clock shows {_iso(wall_ns)}, which cannot be right: set the clock")
    since_ns, ns_max, what = MADE_NS, MADE_YEARS_AGO_MAX * 365 * 86_400 * NS_PER_S, "this version of pyomid was made"
    if is_time(last_ts):
        since_ns, ns_max, what = last_ts, UNUSED_NS_MAX, "the database was last used"
    if wall_ns - since_ns > ns_max and not accept:
        days = timedelta(microseconds=(wall_ns - since_ns) // 1000).days
        raise Misuse(
            f"this machine's clock shows {_iso(wall_ns)}, {days} days after {what} ({iso(since_ns)}): set the clock, "
            "or, if the clock is right, open the database once with acceptClock=true in the URL (over HBase, in the "
            "TSO's URL)"
        )


def _iso(wall_ns: int) -> str:
    return iso(wall_ns) or f"{wall_ns // NS_PER_S} s after 1970"
