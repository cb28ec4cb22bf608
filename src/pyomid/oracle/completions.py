"""Commit-table entries that are no longer needed. One delete at a time removes them, and no client waits for it.

The sanitizer deletes what is lost here or finds no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

Starts = NDArray[np.int64]

TAKEN_MAX: Final = 16_384
"""Starts deleted at a time: a step of the loop, or a call of the store, takes as long as that."""


class Completions:
    """Starts whose entries may be deleted, at most `starts_max`; kept in arrays as they came, because a busy TSO has
    many."""

    __slots__ = ("_pieces", "_starts_max", "count", "is_deleting")

    def __init__(self, starts_max: int) -> None:
        self._starts_max = starts_max
        self._pieces: deque[Starts] = deque()
        self.count = 0
        self.is_deleting = False
        """A delete is under way."""

    @property
    def starts(self) -> Starts:
        """All of them, in order."""
        return np.concatenate(list(self._pieces)) if self._pieces else np.empty(0, dtype=np.int64)

    def remember(self, starts: Starts) -> int:
        """Adds `starts`. Returns how many of them found no room."""
        room = self._starts_max - self.count
        self._keep(starts[:room])
        return max(0, len(starts) - room)

    def take(self, kept: Collection[int] = ()) -> Starts:
        """The oldest starts, to delete now; those in `kept` stay for later."""
        taken: list[Starts] = []
        room = TAKEN_MAX
        while self._pieces and room:
            piece = self._pieces.popleft()
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            taken.append(piece)
            room -= len(piece)
        self.count -= TAKEN_MAX - room
        starts = np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)
        if not kept:
            return starts
        is_kept = np.isin(starts, list(kept))
        self._keep(starts[is_kept])
        return starts[~is_kept]

    def _keep(self, starts: Starts) -> None:
        if len(starts):
            self._pieces.append(starts)
            self.count += len(starts)
