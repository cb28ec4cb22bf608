"""How far back the newest entries of a commit table reach: what a table that must stay small may forget.

For a table that is kept in this process's memory and read through it alone (decision 0016). Starts leave in order, so
one sample says: every entry that came later and belongs to a later start is among the `released − then` newest.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLES: Final = 16
"""Per `entries_max`: what is forgotten at once is at most a sixteenth of it."""


class NewestEntries:
    """Counts entries as they are released; `forgotten_start` is the start at and below which they may go."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self.forgotten_start = 0
        self._step = max(1, entries_max // SAMPLES)
        self._released = 0
        self._samples: deque[tuple[int, int]] = deque()
        """(entries released until then, the newest start handed out until then)."""

    def release(self, entries: int, newest_start: int) -> None:
        """So many more entries are durable; no start above `newest_start` was handed out yet."""
        self._released += entries
        if not self._samples or self._released - self._samples[-1][0] >= self._step:
            self._samples.append((self._released, newest_start))
        while self._samples and self._released - self._samples[0][0] > self.entries_max - self._step:
            self.forgotten_start = self._samples.popleft()[1]
