"""The conflict map by cache lines: finds a cell's last commit in one or two cache misses.

    bucket   8 cache lines, 512 bytes, aligned      words 0 … 6: 28 tags of 16 bits, word 7 spare
             64 words                               words 8 … 35: cell ids      words 36 … 63: commit timestamps

A cell's bucket is the high half of (id × buckets), its tag the low 16 bits of the id: the two are nearly independent.
A slot whose commit is 0 is empty. Commits are contiguous, for the search for the oldest. A full bucket evicts the
entry with the oldest commit (the first such), exactly as the reference implementation,
`oracle.status_oracle.BucketMap`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.oracle.native import words
from pyomid.oracle.status_oracle import BucketMap

SLOTS: Final = 28
BUCKET_WORDS: Final = 64
BUCKET_BYTES: Final = 512
IDS_AT: Final = 8
COMMITS_AT: Final = 36
"""The words of a bucket at which its cell ids and its commit timestamps begin."""

ENTRIES_AT: Final = 7
"""The spare word of the first bucket holds the number of entries of the whole map."""

_TAG: Final = np.uint64(0xFFFF)

_MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14 and later; older kernels refuse it, and memory is allocated when touched."""


class CacheLineMap:
    """`oracle.status_oracle.ConflictMap` for the machine, over the words that compiled code uses."""

    def __init__(self, entries_max: int) -> None:
        self.buckets = max(1, -(-entries_max // SLOTS))
        self.words: NDArray[np.uint64] = aligned_words(self.buckets * BUCKET_WORDS)

    @property
    def entries_max(self) -> int:
        return self.buckets * SLOTS

    def last_commit(self, cell_id: int) -> int:
        return words.last_commit(self.words, cell_id)

    def record(self, cell_id: int, commit_ts: int) -> int:
        return words.record_commit(self.words, cell_id, commit_ts)

    def first_conflict(self, cell_ids: Sequence[int], start_ts: int) -> int:
        return words.first_conflict(self.words, np.array(cell_ids, dtype=np.int64), start_ts)

    def record_all(self, cell_ids: Sequence[int], commit_ts: int) -> int:
        return words.record_all(self.words, np.array(cell_ids, dtype=np.int64), commit_ts)

    @property
    def entries(self) -> int:
        """The number of entries."""
        return int(self.words[ENTRIES_AT])


def moved(reference: BucketMap) -> CacheLineMap:
    """Return a map with the same entries in the same slots of the same buckets, so that it evicts the same entries."""
    assert reference.bucket_slots == SLOTS, "another geometry would evict other entries"
    made = CacheLineMap(reference.entries_max)
    if not reference.entries:
        return made
    if reference.entries == len(reference.first_slots):
        _place(made, reference, np.array(reference.first_slots, dtype=np.int64))
        return made
    buckets: NDArray[np.uint64] = made.words.reshape(-1, BUCKET_WORDS)
    ids = reference.ids.reshape(-1, SLOTS).view(np.uint64)
    made.words[ENTRIES_AT] = reference.entries
    buckets[:, IDS_AT : IDS_AT + SLOTS] = ids
    buckets[:, COMMITS_AT : COMMITS_AT + SLOTS] = reference.commits.reshape(-1, SLOTS).view(np.uint64)
    for slot in range(SLOTS):
        buckets[:, slot >> 2] |= (ids[:, slot] & _TAG) << np.uint64(16 * (slot & 3))
    return made


def _place(made: CacheLineMap, reference: BucketMap, slots: NDArray[np.int64]) -> None:
    """Copy only these slots; the others are empty. So a map of gigabytes with few entries is moved quickly."""
    made.words[ENTRIES_AT] = reference.entries
    first_words, places = slots // SLOTS * BUCKET_WORDS, slots % SLOTS
    ids = reference.ids[slots].view(np.uint64)
    made.words[first_words + IDS_AT + places] = ids
    made.words[first_words + COMMITS_AT + places] = reference.commits[slots].view(np.uint64)
    shifts = (16 * (places & 3)).astype(np.uint64)
    np.bitwise_or.at(made.words, first_words + (places >> 2), (ids & _TAG) << shifts)


def aligned_words(count: int) -> NDArray[np.uint64]:
    """Return zeroed words, page-aligned; the system allocates memory when touched, in huge pages if possible.

    Without huge pages every access to a map of gigabytes also misses the TLB, and the first touch of each 4 KiB is a
    page fault (measured: 88 µs per cell in a virtual machine until a map of 292 MB was filled).
    """
    memory = mmap.mmap(-1, max(count, 1) * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint64, count=count)


def populate(words: NDArray[np.uint64], *, piece_bytes: int = 32 << 20) -> bool:
    """Allocate the memory behind `words` now, without changing it; False if the system cannot.

    Other threads may read and write the words meanwhile. Releases the interpreter lock while it waits, page by page.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    begin, end = words.ctypes.data, words.ctypes.data + words.nbytes
    begin -= begin % mmap.PAGESIZE
    for at in range(begin, end, piece_bytes):
        if madvise(at, min(piece_bytes, end - at), _MADV_POPULATE_WRITE):
            return False
    return True
