"""The conflict map by cache lines: which commit last wrote a cell, in one or two cache misses.

    bucket   8 cache lines, 512 bytes, aligned      words 0 … 6: 28 tags of 16 bits, word 7 spare
             64 words                               words 8 … 35: cell ids      words 36 … 63: commit timestamps

A cell's bucket is the high half of (id × buckets), its tag the low 16 bits of the id: the two share no bits worth
mentioning. A slot whose commit is 0 is empty. Commits lie side by side, so that the oldest is found by vectors. A full
bucket loses the entry with the oldest commit (the first such), exactly as `oracle.status_oracle.BucketMap`, which is
the reference implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.kernels.compiled import kernel
from pyomid.oracle.native.intrinsics import aligned_words, first_least, match_lanes, prefetch_word, trailing_zeros
from pyomid.oracle.status_oracle import BucketMap

SLOTS: Final = 28
BUCKET_WORDS: Final = 64
BUCKET_BYTES: Final = 512
IDS_AT: Final = 8
COMMITS_AT: Final = 36
"""The words of a bucket at which its cell ids and its commit timestamps begin."""

ENTRIES_AT: Final = 7
"""The spare word of the first bucket: how many entries the whole map holds."""

_SLOT_BITS: Final = np.uint64((1 << SLOTS) - 1)
_LOW_32: Final = np.uint64(0xFFFF_FFFF)
_TAG: Final = np.uint64(0xFFFF)


@kernel("uint64(uint64, uint64)", nogil=False, _nrt=False, forceinline=True)
def bucket_of(cell_id: Any, buckets: Any) -> Any:
    """floor(id × buckets ÷ 2⁶⁴) for fewer than 2³² buckets, in unsigned words throughout (T10)."""
    low = ((cell_id & _LOW_32) * buckets) >> np.uint64(32)
    return ((cell_id >> np.uint64(32)) * buckets + low) >> np.uint64(32)


@kernel("int64(uint64[::1], int64, uint64)", nogil=False, _nrt=False, forceinline=True)
def find_slot(words: Any, base: Any, cell_id: Any) -> Any:
    """The id's place in the bucket that begins at word `base`, or -1."""
    hits = match_lanes(words, base, cell_id) & _SLOT_BITS
    while hits:
        slot = trailing_zeros(hits)
        if words[np.uint64(base + IDS_AT + slot)] == cell_id and words[np.uint64(base + COMMITS_AT + slot)]:
            return slot
        hits &= hits - np.uint64(1)
    return np.int64(-1)


@kernel("uint64(uint64[::1], uint64, uint64)", nogil=False, _nrt=False, forceinline=True)
def last_commit(words: Any, buckets: Any, cell_id: Any) -> Any:
    """0 where none is kept."""
    base = np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS
    slot = find_slot(words, base, cell_id)
    return np.uint64(0) if slot < 0 else words[np.uint64(base + COMMITS_AT + slot)]


@kernel("uint64(uint64[::1], uint64, uint64, uint64)", nogil=False, _nrt=False, forceinline=True)
def record_commit(words: Any, buckets: Any, cell_id: Any, commit_ts: Any) -> Any:
    """Keeps the entry; returns the commit timestamp of the one evicted for it, 0 where there was room."""
    base = np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS
    slot = find_slot(words, base, cell_id)
    evicted = np.uint64(0)
    if slot < 0:
        slot = first_least(words, base + COMMITS_AT)
        evicted = words[np.uint64(base + COMMITS_AT + slot)]
        if evicted == np.uint64(0):
            words[ENTRIES_AT] += np.uint64(1)
        shift = np.uint64(16 * (slot & 3))
        at = np.uint64(base + (slot >> 2))
        words[at] = words[at] & ~(_TAG << shift) | (cell_id & _TAG) << shift
        words[np.uint64(base + IDS_AT + slot)] = cell_id
    words[np.uint64(base + COMMITS_AT + slot)] = commit_ts
    return evicted


@kernel("void(uint64[::1], uint64, uint64)", nogil=False, _nrt=False, forceinline=True)
def prefetch_tags(words: Any, buckets: Any, cell_id: Any) -> Any:
    prefetch_word(words, np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS)


@kernel("void(uint64[::1], uint64, uint64)", nogil=False, _nrt=False, forceinline=True)
def prefetch_commits(words: Any, buckets: Any, cell_id: Any) -> Any:
    base = np.int64(bucket_of(cell_id, buckets)) * BUCKET_WORDS
    for line in range(4, 8):
        prefetch_word(words, base + 8 * line)


@kernel("uint64(uint64[::1], uint64, int64[::1], uint64)", nogil=False)
def first_conflict(words: Any, buckets: Any, cell_ids: Any, start_ts: Any) -> Any:
    """The last commit of the first of these cells that was committed later; 0 where none was."""
    for index in range(np.uint64(len(cell_ids))):
        found = last_commit(words, buckets, np.uint64(cell_ids[index]))
        if found > start_ts:
            return found
    return np.uint64(0)


@kernel("uint64(uint64[::1], uint64, int64[::1], uint64)", nogil=False)
def record_all(words: Any, buckets: Any, cell_ids: Any, commit_ts: Any) -> Any:
    """`record_commit` of each; the greatest that was evicted, 0 where there was room."""
    evicted = np.uint64(0)
    for index in range(np.uint64(len(cell_ids))):
        evicted = max(evicted, record_commit(words, buckets, np.uint64(cell_ids[index]), commit_ts))
    return evicted


class CacheLineMap:
    """`oracle.status_oracle.ConflictMap` for the machine, over the words that compiled code works on."""

    def __init__(self, entries_max: int) -> None:
        self.buckets = max(1, -(-entries_max // SLOTS))
        self.words: NDArray[np.uint64] = aligned_words(self.buckets * BUCKET_WORDS)

    @property
    def entries_max(self) -> int:
        return self.buckets * SLOTS

    def last_commit(self, cell_id: int) -> int:
        return int(last_commit(self.words, np.uint64(self.buckets), _unsigned(cell_id)))

    def record(self, cell_id: int, commit_ts: int) -> int:
        return int(record_commit(self.words, np.uint64(self.buckets), _unsigned(cell_id), np.uint64(commit_ts)))

    def first_conflict(self, cell_ids: Sequence[int], start_ts: int) -> int:
        ids = np.array(cell_ids, dtype=np.int64)
        return int(first_conflict(self.words, np.uint64(self.buckets), ids, np.uint64(start_ts)))

    def record_all(self, cell_ids: Sequence[int], commit_ts: int) -> int:
        ids = np.array(cell_ids, dtype=np.int64)
        return int(record_all(self.words, np.uint64(self.buckets), ids, np.uint64(commit_ts)))

    @property
    def entries(self) -> int:
        """How many it holds."""
        return int(self.words[ENTRIES_AT])


def moved(plain: BucketMap) -> CacheLineMap:
    """The same entries in the same slots of the same buckets, so that the same entries are evicted from then on."""
    assert plain.bucket_slots == SLOTS, "another geometry would evict other entries"
    made = CacheLineMap(plain.entries_max)
    if not plain.entries:
        return made
    if plain.entries == len(plain.first_slots):
        _place(made, plain, np.array(plain.first_slots, dtype=np.int64))
        return made
    buckets: NDArray[np.uint64] = made.words.reshape(-1, BUCKET_WORDS)
    ids = plain.ids.reshape(-1, SLOTS).view(np.uint64)
    made.words[ENTRIES_AT] = plain.entries
    buckets[:, IDS_AT : IDS_AT + SLOTS] = ids
    buckets[:, COMMITS_AT : COMMITS_AT + SLOTS] = plain.commits.reshape(-1, SLOTS).view(np.uint64)
    for slot in range(SLOTS):
        buckets[:, slot >> 2] |= (ids[:, slot] & _TAG) << np.uint64(16 * (slot & 3))
    return made


def _place(made: CacheLineMap, plain: BucketMap, slots: NDArray[np.int64]) -> None:
    """Only these slots; the others are empty. So a map of gigabytes that has few entries is moved at once."""
    made.words[ENTRIES_AT] = plain.entries
    first_words, places = slots // SLOTS * BUCKET_WORDS, slots % SLOTS
    ids = plain.ids[slots].view(np.uint64)
    made.words[first_words + IDS_AT + places] = ids
    made.words[first_words + COMMITS_AT + places] = plain.commits[slots].view(np.uint64)
    shifts = (16 * (places & 3)).astype(np.uint64)
    np.bitwise_or.at(made.words, first_words + (places >> 2), (ids & _TAG) << shifts)


def _unsigned(cell_id: int) -> np.uint64:
    return np.uint64(cell_id & 0xFFFF_FFFF_FFFF_FFFF)
