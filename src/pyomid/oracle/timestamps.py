"""The logical clock: unique, ascending multiples of 50, never below anything an earlier TSO handed out.

Every timestamp that is handed out lies below a ceiling that was made durable before (law 8, T3). A new TSO starts above
the ceiling that it found, so a wall clock that is set back changes nothing: in WORLD_TIME mode the wall clock only
lifts the logical clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyomid.types import TIMESTAMP_STEP

WORLD_TICKS_PER_MS: Final = 1_000_000
"""Apache Omid's WORLD_TIME: milliseconds since 1970 times a million (interop.md, Timestamps)."""


@dataclass(slots=True)
class TimestampClock:
    """`next_ts` is the next timestamp to be handed out; `ceiling` is durable."""

    next_ts: int
    ceiling: int
    step: int
    """How far ahead the ceiling is moved at a time."""
    renew_remaining: int
    """The ceiling is moved when less than this remains."""

    def take(self) -> int | None:
        """One timestamp, or None until the ceiling has moved."""
        return self.reserve(1)

    def reserve(self, count: int) -> int | None:
        """The first of `count` timestamps, all below the durable ceiling; or None until it has moved."""
        first = self.next_ts
        end = first + count * TIMESTAMP_STEP
        if end > self.ceiling:
            return None
        self.next_ts = end
        return first

    def lift(self, wall_ms: int) -> int:
        """Lifts `next_ts` to the wall clock, if the durable ceiling allows; a clock that was set back changes nothing.
        Returns the wall clock's timestamp, or 0 while the ceiling forbids it."""
        floor = self._aligned(wall_ms * WORLD_TICKS_PER_MS)
        if floor > self.next_ts:
            if floor + self.renew_remaining > self.ceiling:
                return 0
            self.next_ts = floor
        return floor

    def wanted_ceiling(self, wall_ms: int = 0) -> int:
        """The ceiling to make durable now; the present one if enough remains below it."""
        floor = max(self.next_ts, self._aligned(wall_ms * WORLD_TICKS_PER_MS))
        return self.ceiling if floor + self.renew_remaining <= self.ceiling else floor + self.step

    @staticmethod
    def _aligned(ts: int) -> int:
        return ts - ts % TIMESTAMP_STEP
