"""How the clock of a folder follows this machine's wall clock (`protocol.wall_clock`)."""

from __future__ import annotations

import threading
import time

from pyomid.protocol.wall_clock import WallClock
from pyomid.system import boot_clock
from pyomid.types import TIMESTAMP_STEP, start_of


class FolderClock:
    """The wall clock as one open environment follows it. Thread-safe."""

    def __init__(self) -> None:
        self._wall = WallClock(boot_clock(), time.time_ns())
        self._reading = threading.RLock()  # reentrant, because a signal handler may begin a transaction

    def now_ns(self, clock: int) -> int:
        """Return wall-clock time in nanoseconds since 1970, without a jump that is not followed. `clock` is the
        folder's newest timestamp."""
        with self._reading:
            self._wall.read(boot_clock(), time.time_ns(), clock)
            return self._wall.ns

    def next_timestamp(self, clock: int) -> int:
        """Return the next timestamp after `clock`: wall-clock time, or two steps above `clock` if that is later,
        because the folder's clock never goes back (L1)."""
        return max(clock + 2 * TIMESTAMP_STEP, start_of(self.now_ns(clock)))

    @property
    def refused_ns(self) -> int:
        """The length of a jump of the wall clock that is not followed; 0 if there is none."""
        return self._wall.refused_ns
