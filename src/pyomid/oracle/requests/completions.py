"""Delete the commit-table entries of complete transactions: one delete at a time, for which no client waits.

The sanitizer deletes entries that are lost here or find no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Unavailable
from pyomid.oracle.instructions import DeleteEntries
from pyomid.oracle.outgoing import Procedure, Step, StoreRequests
from pyomid.oracle.requests.begins import Begins
from pyomid.types import PendingCommit

Starts = NDArray[np.int64]

TAKEN_MAX: Final = 16_384
"""Starts deleted at a time: bounds how long one step of the loop, or one call of the store, takes."""

STARTS_A_REQUEST: Final = 65_536
"""Starts taken from one request; the rest is left to the sanitizer."""

DELETES_A_CALL: Final = 2048
"""Entries deleted per call: a flush waits for the call before it, some milliseconds of an LMDB transaction."""


class Completions:
    """At most `starts_max` starts whose entries may be deleted. They stay in the arrays they came in, because a busy
    TSO has many. `pending`: unfinished large commits, whose entries stay until their pending record is gone."""

    def __init__(
        self, step: Step, store: StoreRequests, begins: Begins, pending: Mapping[int, PendingCommit], starts_max: int
    ) -> None:
        self._step = step
        self._store = store
        self._begins = begins
        self._pending = pending
        self._starts_max = starts_max
        self._arrays: deque[Starts] = deque()
        self.count = 0
        self.is_deleting = False
        """A store call that deletes is in flight."""

    def add(self, starts: Sequence[int]) -> None:
        """Take a client's request. Starts that find no room are left to the sanitizer. Numbers that were never handed
        out are dropped: they have no entry, and the store must not be asked for them."""
        asked = np.array(starts[:STARTS_A_REQUEST], dtype=np.int64)
        issued = asked[self._begins.are_issued(asked)]
        counters = self._step.counters
        counters["refused"] += len(issued) < len(asked)
        counters["completions_left"] += self.remember(issued) + len(starts) - len(asked)

    def remember(self, starts: Starts) -> int:
        """Add `starts`. Return how many found no room."""
        room = self._starts_max - self.count
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
        self._store.run(self._delete_steps(tuple(starts.tolist())))

    def _delete_steps(self, starts: tuple[int, ...]) -> Procedure:
        try:
            for at in range(0, len(starts), DELETES_A_CALL):
                yield DeleteEntries(starts[at : at + DELETES_A_CALL])
            self._step.counters["completions"] += len(starts)
        except Unavailable:
            self._step.counters["completions_left"] += len(starts)
        self.is_deleting = False

    def _unfinished_starts(self) -> set[int]:
        kept = set(self._pending)
        for pending in self._pending.values():
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
