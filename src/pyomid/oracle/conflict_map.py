"""The conflict map: cell id → last commit timestamp, in a fixed number of slots, so that the TSO's memory is bounded.

Slots lie in buckets. An id belongs to one bucket, found by the high half of a 64 × 64 bit product of *unsigned*
numbers (T10: the most negative 64-bit id is a valid one). If a bucket is full the entry with the oldest commit
timestamp is evicted, and the caller raises the low watermark to that timestamp: the watermark stands for what the map
has forgotten. Source: "A Critique of Snapshot Isolation" and the Omid papers, with buckets in place of one hash slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

BUCKET_SLOTS: Final = 28
"""(id, commit timestamp) pairs that fit into seven cache lines beside one line of tags: the compiled map's bucket."""

_WORD: Final = (1 << 64) - 1

FIRST_SLOTS_MAX: Final = 100_000


class ConflictMap(Protocol):
    """What the oracle needs of a map. Eviction policies may differ; every eviction must be reported."""

    @property
    def entries_max(self) -> int: ...

    @property
    def entries(self) -> int:
        """How many slots are taken. They are never freed."""

    def last_commit(self, cell_id: int) -> int:
        """0 if none is kept."""

    def record(self, cell_id: int, commit_ts: int) -> int:
        """Keeps the entry. Returns the commit timestamp of the entry that was evicted for it; 0 if a slot was free."""

    def first_conflict(self, cell_ids: Sequence[int], start_ts: int) -> int:
        """The last commit of the first of these cells that was committed later than `start_ts`; 0 if none was."""

    def record_all(self, cell_ids: Sequence[int], commit_ts: int) -> int:
        """`record` of each cell. Returns the greatest commit timestamp that was evicted; 0 if no entry was."""


class BucketMap:
    """Reference implementation: exact and slow. The system takes its memory page by page as buckets fill."""

    def __init__(self, entries_max: int, bucket_slots: int = BUCKET_SLOTS) -> None:
        self.bucket_slots = bucket_slots
        self.buckets = max(1, -(-entries_max // bucket_slots))
        self.ids = np.zeros(self.entries_max, dtype=np.int64)
        self.commits = np.zeros(self.entries_max, dtype=np.int64)
        self.entries = 0
        self.first_slots: list[int] = []
        """Slots of the first `FIRST_SLOTS_MAX` entries, so that a nearly empty map is moved without reading all of
        it."""

    @property
    def entries_max(self) -> int:
        return self.buckets * self.bucket_slots

    def bucket_of(self, cell_id: int) -> int:
        return (cell_id & _WORD) * self.buckets >> 64

    def last_commit(self, cell_id: int) -> int:
        first, slot = self._find(cell_id)
        return 0 if slot < 0 else int(self.commits[first + slot])

    def record(self, cell_id: int, commit_ts: int) -> int:
        first, slot = self._find(cell_id)
        evicted = 0
        if slot < 0:
            commits = self.commits[first : first + self.bucket_slots].tolist()
            evicted = min(commits)
            slot = commits.index(evicted)
            if not evicted:
                self.entries += 1
                if self.entries <= FIRST_SLOTS_MAX:
                    self.first_slots.append(first + slot)
        self.ids[first + slot] = cell_id
        self.commits[first + slot] = commit_ts
        return evicted

    def first_conflict(self, cell_ids: Sequence[int], start_ts: int) -> int:
        return next((found for each in cell_ids if (found := self.last_commit(each)) > start_ts), 0)

    def record_all(self, cell_ids: Sequence[int], commit_ts: int) -> int:
        return max((self.record(each, commit_ts) for each in cell_ids), default=0)

    def _find(self, cell_id: int) -> tuple[int, int]:
        """The bucket's first slot, and the id's index in the bucket or -1. A slot whose commit is 0 is empty."""
        first = self.bucket_of(cell_id) * self.bucket_slots
        ids = self.ids[first : first + self.bucket_slots].tolist()
        if cell_id not in ids:
            return first, -1
        if cell_id:
            return first, ids.index(cell_id)
        for slot, found in enumerate(ids):
            if found == 0 and self.commits[first + slot]:
                return first, slot
        return first, -1
