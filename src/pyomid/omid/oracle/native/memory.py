"""Memory that compiled code works on when it decides: its call record, the conflict map, and the table rows.

`memory.pxd` has the same records with the same fields in the same order, and also those of `omid.oracle.records`.

The conflict map by cache lines finds a cell's last commit in one or two cache misses:

    bucket   8 cache lines, 512 bytes, aligned      words 0 … 6: 28 tags of 16 bits, word 7 spare
             64 words                               words 8 … 35: cell ids      words 36 … 63: commit timestamps

A cell's bucket is the high half of (id × buckets), and its tag is the low 16 bits of the id; the two are nearly
independent. A slot whose commit is 0 is empty. Commits are contiguous, which speeds up the search for the oldest one. A
full bucket evicts the first entry with the oldest commit, exactly like the reference implementation,
`omid.oracle.status_oracle.BucketMap`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle.native import decide
from pyomid.omid.oracle.records import Record, record
from pyomid.omid.oracle.status_oracle import BucketMap, Ids

SLOTS: Final = 28
BUCKET_WORDS: Final = 64
BUCKET_BYTES: Final = 512
IDS_AT: Final = 8
COMMITS_AT: Final = 36
"""The words of a bucket at which its cell ids (`IDS_AT`) and its commit timestamps begin."""

ENTRIES_AT: Final = 7
"""The spare word of the first bucket holds the number of entries of the whole map."""

_TAG: Final = np.uint64(0xFFFF)

_MADV_POPULATE_WRITE: Final = 23
"""Needs Linux 5.14 or later. Older kernels refuse it; then memory is allocated when it is first touched."""

_ROWS_MIN: Final = 64


@record
class Chunk(Record):
    """The record of one call of compiled code: its input, and how far it decided the chunk."""

    epoch: int
    window_span: int
    """How far a window reaches, in timestamps."""
    write_set_ids_max: int
    may_widen: int
    """1 if the oldest batch is open and holds nothing but rows. Then it may get a new window while it has no rows
    either."""
    begins_fast: int
    """1 if no begin is waiting that a window can serve."""
    row_count_max: int
    reported_ts: int
    """The newest commit with reported ids. The machine, not compiled code, decides commits of earlier starts."""
    begin: int
    end: int
    extended: int
    ops_max: int
    consumed: int
    """Where the first undecided frame begins. This is the first output field; the fields above are input."""
    now_bytes: int
    later_bytes: int
    begins: int
    aborts: int
    aborts_low_watermark: int
    aborts_fence: int


@record
class Op(Record):
    """One parsed request of a chunk."""

    kind: int
    ts: int
    tag: int
    cell_begin: int
    cell_end: int
    """The request's ids are those from `cell_begin` to here in the chunk's array of ids."""
    table_begin: int
    table_end: int
    frame_at: int


@record
class Table(Record):
    """What the oracle remembers of a table, as a row of a hash table."""

    table_id: int
    is_used: int
    is_known: int
    """1 if the table is decidable."""
    fence_ts: int
    commit_ts: int
    """The table's last commit; 0 if none is known."""
    conflicts: int
    """The number of transactions that named the table and aborted because of a cell."""


class CacheLineMap:
    """The conflict map (`omid.oracle.status_oracle.ConflictMap`) over the words that compiled code reads and writes."""

    def __init__(self, entries_max: int) -> None:
        self.buckets = max(1, -(-entries_max // SLOTS))
        self.words: NDArray[np.uint64] = aligned_words(self.buckets * BUCKET_WORDS)

    @property
    def entries_max(self) -> int:
        return self.buckets * SLOTS

    def last_commit(self, cell_id: int) -> int:
        return decide.last_commit(self.words, cell_id)

    def record(self, cell_id: int, commit_ts: int) -> int:
        return decide.record_commit(self.words, cell_id, commit_ts)

    def ids_after(self, start_ts: int) -> Ids:
        buckets = self.words.reshape(-1, BUCKET_WORDS)
        is_later = buckets[:, COMMITS_AT : COMMITS_AT + SLOTS] > np.uint64(start_ts)
        return buckets[:, IDS_AT : IDS_AT + SLOTS][is_later].view(np.int64)

    def first_conflict(self, cell_ids: Sequence[int] | Ids, start_ts: int) -> int:
        return decide.first_conflict(self.words, np.asarray(cell_ids, dtype=np.int64), start_ts)

    def record_all(self, cell_ids: Sequence[int], commit_ts: int) -> int:
        return decide.record_all(self.words, np.array(cell_ids, dtype=np.int64), commit_ts)

    @property
    def entries(self) -> int:
        """The number of entries in the map."""
        return int(self.words[ENTRIES_AT])


def moved(reference: BucketMap) -> CacheLineMap:
    """Return a map with the same entries in the same slots, so that it will evict the same entries as `reference`."""
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
    """Copy only these slots of the reference, because all others are empty. So a map of gigabytes with few entries is
    moved quickly."""
    made.words[ENTRIES_AT] = reference.entries
    first_words, places = slots // SLOTS * BUCKET_WORDS, slots % SLOTS
    ids = reference.ids[slots].view(np.uint64)
    made.words[first_words + IDS_AT + places] = ids
    made.words[first_words + COMMITS_AT + places] = reference.commits[slots].view(np.uint64)
    shifts = (16 * (places & 3)).astype(np.uint64)
    np.bitwise_or.at(made.words, first_words + (places >> 2), (ids & _TAG) << shifts)


def aligned_words(count: int) -> NDArray[np.uint64]:
    """Return zeroed, page-aligned words. The system allocates the memory when it is first touched, in huge pages if
    possible.

    Without huge pages every access to a map of gigabytes also misses the TLB, and the first touch of each 4 KiB is a
    page fault (measured in a virtual machine: 88 µs per cell until a map of 292 MB was filled).
    """
    memory = mmap.mmap(-1, max(count, 1) * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint64, count=count)


_PIECE_BYTES: Final = 32 << 20


def populate(words: NDArray[np.uint64]) -> bool:
    """Allocate the memory behind `words` now, without changing it. Returns False if the system cannot.

    Other threads may read and write the words meanwhile. Releases the interpreter lock while it waits, page by page.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    begin, end = words.ctypes.data, words.ctypes.data + words.nbytes
    begin -= begin % mmap.PAGESIZE
    for at in range(begin, end, _PIECE_BYTES):
        if madvise(at, min(_PIECE_BYTES, end - at), _MADV_POPULATE_WRITE):
            return False
    return True


class TableRows:
    """A hash table from table id to (decidable?, fence, last commit, conflicts). Open addressing, at most half full."""

    def __init__(self) -> None:
        self.rows: Any = Table.array(_ROWS_MIN)
        self._used = 0

    def row_of(self, table_id: int) -> int:
        """Return the index of the table's row, after adding the row if there is none."""
        row = decide.find_table(self.rows, table_id)
        if self.rows["is_used"][row]:
            return row
        if 2 * (self._used + 1) > len(self.rows):
            self._make_room()
            row = decide.find_table(self.rows, table_id)
        self.rows["table_id"][row], self.rows["is_used"][row] = table_id, 1
        self._used += 1
        return row

    def set_decidable(self, table_ids: Collection[int]) -> None:
        """Make exactly these tables decidable (`omid.oracle.tables`)."""
        self.rows["is_known"] = 0
        for table_id in table_ids:
            row = self.row_of(table_id)  # may replace the rows (`_make_room`)
            self.rows["is_known"][row] = 1

    def _make_room(self) -> None:
        """Resize the hash table and drop rows that say nothing. So the hash table may also shrink."""
        rows = self.rows
        says = (rows["is_known"] | rows["fence_ts"] | rows["commit_ts"] | rows["conflicts"]) != 0
        old = rows[(rows["is_used"] == 1) & says]
        self._used = len(old)
        size = _ROWS_MIN
        while size < 4 * self._used:
            size *= 2
        self.rows = Table.array(size)
        for row in old:
            self.rows[decide.find_table(self.rows, int(row["table_id"]))] = row


class TableColumn(MutableMapping[int, int]):
    """One column of all tables, with the interface of the dictionary that `StatusOracle` keeps. 0 means no entry."""

    def __init__(self, tables: TableRows, column: str) -> None:
        self._tables = tables
        self._column = column

    def __getitem__(self, table_id: int) -> int:
        rows = self._tables.rows
        row = decide.find_table(rows, table_id)
        if not rows["is_used"][row] or not rows[self._column][row]:
            raise KeyError(table_id)
        return int(rows[self._column][row])

    def __setitem__(self, table_id: int, value: int) -> None:
        row = self._tables.row_of(table_id)
        self._tables.rows[self._column][row] = value

    def __delitem__(self, table_id: int) -> None:
        self[table_id] = 0

    def __iter__(self) -> Iterator[int]:
        rows = self._tables.rows
        filled = rows[(rows["is_used"] == 1) & (rows[self._column] != 0)]
        return iter(filled["table_id"].tolist())

    def __len__(self) -> int:
        return sum(1 for _ in self)
