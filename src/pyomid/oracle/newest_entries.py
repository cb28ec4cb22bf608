"""How far back the newest entries of a commit table reach: which entries a table of bounded size may forget.

It is for a table that is kept in this process's memory and read only through it (decision 0016). Starts are handed out
in order, so one sample is enough: every entry that came later and has a later start is among the `released − then`
newest.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLES: Final = 16
"""For each `entries_max`: at most a sixteenth of it is forgotten at once."""


class NewestEntries:
    """Counts entries as they are released. Entries of starts at or below `forgotten_start` may be deleted."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self.forgotten_start = 0
        self._step = max(1, entries_max // SAMPLES)
        self._released = 0
        self._samples: deque[tuple[int, int]] = deque()
        """(entries released until then, the newest start handed out until then)."""

    def release(self, entries: int, newest_start: int) -> None:
        """`entries` more are durable; no start above `newest_start` was handed out yet."""
        self._released += entries
        if not self._samples or self._released - self._samples[-1][0] >= self._step:
            self._samples.append((self._released, newest_start))
        while self._samples and self._released - self._samples[0][0] > self.entries_max - self._step:
            self.forgotten_start = self._samples.popleft()[1]
