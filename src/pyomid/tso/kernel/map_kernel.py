"""The conflict map by cache lines: which commit last wrote a cell, in one or two cache misses.

    bucket   8 cache lines, 512 bytes, aligned      line 0: 28 tags of 16 bits (7 words), one word spare
             64 words                               lines 1 … 7: 28 pairs (cell id, commit timestamp)

A cell's bucket is the high half of (id × buckets), its tag the low 16 bits of the id: the two share no bits worth
mentioning. A pair whose commit is 0 is empty. Full buckets lose the entry with the oldest commit (the first such),
exactly as `core.conflict_map.BucketMap`, which is this module's plain twin.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel
from pyomid.tso.kernel.intrinsics import aligned_words, prefetch_word

SLOTS: Final = 28
BUCKET_WORDS: Final = 64
BUCKET_BYTES: Final = 512
PAIRS_AT: Final = 8
"""The word of a bucket at which its pairs begin."""

ENTRIES_AT: Final = 7
"""The spare word of the first bucket: how many entries the whole map holds."""

_LANES: Final = np.uint64(0x0001_0001_0001_0001)
_LANES_TOP: Final = np.uint64(0x8000_8000_8000_8000)
_LOW_32: Final = np.uint64(0xFFFF_FFFF)
_TAG: Final = np.uint64(0xFFFF)


@kernel("uint64(uint64, uint64)", nogil=False)
def bucket_of(cell_id: Any, buckets: Any) -> Any:
    """floor(id × buckets ÷ 2⁶⁴) for fewer than 2³² buckets, in unsigned words throughout (T10)."""
    low = ((cell_id & _LOW_32) * buckets) >> np.uint64(32)
    return ((cell_id >> np.uint64(32)) * buckets + low) >> np.uint64(32)


@kernel("int64(uint64[::1], int64, uint64)", nogil=False)
def find_slot(words: Any, base: Any, cell_id: Any) -> Any:
    """The id's place in the bucket that begins at word `base`, or -1."""
    pattern = (cell_id & _TAG) * _LANES
    for tag_word in range(7):
        differing = words[base + tag_word] ^ pattern
        hits = (differing - _LANES) & ~differing & _LANES_TOP
        lane = 0
        while hits:
            if hits & np.uint64(0x8000):
                pair = base + PAIRS_AT + 2 * (4 * tag_word + lane)
                if words[pair] == cell_id and words[pair + 1] != np.uint64(0):
                    return 4 * tag_word + lane
            hits >>= np.uint64(16)
            lane += 1
    return -1


@kernel("uint64(uint64[::1], uint64, uint64)", nogil=False)
def last_commit(words: Any, buckets: Any, cell_id: Any) -> Any:
    """0 where none is kept."""
    base = np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS
    slot = find_slot(words, base, cell_id)
    return np.uint64(0) if slot < 0 else words[base + PAIRS_AT + 2 * slot + 1]


@kernel("uint64(uint64[::1], uint64, uint64, uint64)", nogil=False)
def record_commit(words: Any, buckets: Any, cell_id: Any, commit_ts: Any) -> Any:
    """Keeps the entry; returns the commit timestamp of the one evicted for it, 0 where there was room."""
    base = np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS
    slot = find_slot(words, base, cell_id)
    evicted = np.uint64(0)
    if slot < 0:
        slot = 0
        evicted = words[base + PAIRS_AT + 1]
        for other in range(1, SLOTS):
            commit = words[base + PAIRS_AT + 2 * other + 1]
            if commit < evicted:
                evicted = commit
                slot = other
        if evicted == np.uint64(0):
            words[ENTRIES_AT] += np.uint64(1)
        shift = np.uint64(16 * (slot & 3))
        tags = words[base + (slot >> 2)] & ~(_TAG << shift)
        words[base + (slot >> 2)] = tags | ((cell_id & _TAG) << shift)
        words[base + PAIRS_AT + 2 * slot] = cell_id
    words[base + PAIRS_AT + 2 * slot + 1] = commit_ts
    return evicted


@kernel("void(uint64[::1], uint64, uint64)", nogil=False)
def prefetch_tags(words: Any, buckets: Any, cell_id: Any) -> Any:
    prefetch_word(words, np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS)


@kernel("void(uint64[::1], uint64, uint64)", nogil=False)
def prefetch_pairs(words: Any, buckets: Any, cell_id: Any) -> Any:
    base = np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS
    for line in range(1, 8):
        prefetch_word(words, base + 8 * line)


class CacheLineMap:
    """`core.conflict_map.ConflictMap` for the plain machine, over the words that the kernel works on."""

    def __init__(self, entries_max: int) -> None:
        self.buckets = max(1, -(-entries_max // SLOTS))
        self.words: NDArray[np.uint64] = aligned_words(self.buckets * BUCKET_WORDS, BUCKET_BYTES)

    @property
    def entries_max(self) -> int:
        return self.buckets * SLOTS

    def last_commit(self, cell_id: int) -> int:
        return int(last_commit(self.words, np.uint64(self.buckets), _unsigned(cell_id)))

    def record(self, cell_id: int, commit_ts: int) -> int:
        return int(record_commit(self.words, np.uint64(self.buckets), _unsigned(cell_id), np.uint64(commit_ts)))

    @property
    def entries(self) -> int:
        """How many it holds."""
        return int(self.words[ENTRIES_AT])


def _unsigned(cell_id: int) -> np.uint64:
    return np.uint64(cell_id & 0xFFFF_FFFF_FFFF_FFFF)
