"""Delete the commit-table entries of complete transactions: one delete at a time, for which no client waits.

The sanitizer deletes entries that are lost here or find no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Unavailable
from pyomid.oracle.instructions import DeleteEntries
from pyomid.oracle.outgoing import Procedure

if TYPE_CHECKING:
    from pyomid.oracle.machine import TsoMachine

Starts = NDArray[np.int64]

TAKEN_MAX: Final = 16_384
"""Starts deleted at a time: bounds how long one step of the loop, or one call of the store, takes."""

STARTS_A_REQUEST: Final = 65_536
"""Starts taken from one request; the rest is left to the sanitizer."""

DELETES_A_CALL: Final = 2048
"""Entries deleted per call: a flush waits for the call before it, some milliseconds of an LMDB transaction."""


class Completions:
    """Starts whose entries may be deleted, a bounded number. They stay in the arrays they came in, because a busy TSO
    has many. Entries of unfinished large commits stay until their pending record is gone."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso
        self._arrays: deque[Starts] = deque()
        self.count = 0
        self.is_deleting = False
        """A store call that deletes is in flight."""

    def add(self, starts: Sequence[int]) -> None:
        """Take a client's request. Starts that find no room are left to the sanitizer. Numbers that were never handed
        out are dropped: they have no entry, and the store must not be asked for them."""
        asked = np.array(starts[:STARTS_A_REQUEST], dtype=np.int64)
        issued = asked[self._tso.begins.are_issued(asked)]
        counters = self._tso.step.counters
        counters["refused"] += len(issued) < len(asked)
        counters["completions_left"] += self.remember(issued) + len(starts) - len(asked)

    def remember(self, starts: Starts) -> int:
        """Add `starts`. Return how many found no room."""
        room = self._tso.settings.completions_max - self.count
        self._keep(starts[:room])
        return max(0, len(starts) - room)

    def start_delete(self) -> None:
        """Delete by a store call, unless one is in flight."""
        if not self.is_deleting:
            starts = self.take(self._unfinished_starts())
            if len(starts):
                self.delete(starts)

    def delete(self, starts: Starts) -> None:
        self.is_deleting = True
        self._tso.store.run(self._delete_steps(tuple(starts.tolist())))

    def _delete_steps(self, starts: tuple[int, ...]) -> Procedure:
        try:
            for at in range(0, len(starts), DELETES_A_CALL):
                yield DeleteEntries(starts[at : at + DELETES_A_CALL])
            self._tso.step.counters["completions"] += len(starts)
        except Unavailable:
            self._tso.step.counters["completions_left"] += len(starts)
        self.is_deleting = False

    def _unfinished_starts(self) -> set[int]:
        kept = set(self._tso.pending)
        for pending in self._tso.pending.values():
            kept.update(pending.branches)
        return kept

    # ── the remembered starts ────────────────────────────────────────────────────────────────────────────────────

    @property
    def starts(self) -> Starts:
        """All remembered starts, in order."""
        return np.concatenate(list(self._arrays)) if self._arrays else np.empty(0, dtype=np.int64)

    def take(self, kept: Collection[int] = ()) -> Starts:
        """Remove and return the oldest starts, to delete now; starts in `kept` stay."""
        taken: list[Starts] = []
        room = TAKEN_MAX
        while self._arrays and room:
            array = self._arrays.popleft()
            if len(array) > room:
                self._arrays.appendleft(array[room:])
                array = array[:room]
            taken.append(array)
            room -= len(array)
        self.count -= TAKEN_MAX - room
        starts = np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)
        if not kept:
            return starts
        is_kept = np.isin(starts, list(kept))
        self._keep(starts[is_kept])
        return starts[~is_kept]

    def _keep(self, starts: Starts) -> None:
        if len(starts):
            self._arrays.append(starts)
            self.count += len(starts)
