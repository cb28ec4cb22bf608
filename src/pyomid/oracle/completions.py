"""Entries of the commit table that nobody needs any more: they go in one delete at a time, and nobody waits for it.

What is lost here, or found no room, is left to the sanitiser.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

Starts = NDArray[np.int64]

TAKEN_MAX: Final = 16_384
"""Deleted at a time: a loop's step, or a store's call, waits for that."""


class Completions:
    """Starts whose entries may go, at most `starts_max` of them; in pieces as they came, as a busy TSO has many."""

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
        """How many of them found no room."""
        room = self._starts_max - self.count
        self._keep(starts[:room])
        return max(0, len(starts) - room)

    def take(self, kept: Collection[int] = ()) -> Starts:
        """The oldest, to delete now; who is `kept` stays for later."""
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
