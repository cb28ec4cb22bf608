"""The index of the commit log: one file, mapped by all processes, of the commits that are not yet in LMDB.

    block 0     magic; a number for the machine's present boot; for each of two tables a sequence number
    tables 0, 1 as in `index_kernels`

The TSO places a row here once it is durable in the log, so an entry that a lookup finds is never lost. It empties a
table once all of the table is durable in LMDB, so a process that finds nothing here and reads LMDB *afterwards* misses
nothing. While a table is emptied its sequence number is odd: the table holds nothing that LMDB lacks. A reader that
sees a sequence number change reads again; otherwise it might take the slot of another start for its own. On processors
that reorder loads and stores, fences and `index_kernels` keep this order (`memory_order`).

The content is never synced, and is not valid after a loss of power. Then the boot number differs, and lookups read the
log instead, until the next TSO has recovered.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from pyomid.arrays import NDArray, np, words_of
from pyomid.kernels.compiled import Kernel
from pyomid.owned_files import is_shared, open_own
from pyomid.platforms import boot_number, reserve
from pyomid.storage.embedded.commit_log import index_kernels as kernels
from pyomid.storage.embedded.commit_log import memory_order
from pyomid.storage.embedded.commit_log.segment import BLOCK_BYTES, Rows, failed, read_segment
from pyomid.types import TIMESTAMP_STEP

Int64s = NDArray[np.int64]

INDEX_FILE: Final = "recent"
LOG_FILES: Final = ("recent-log.0", "recent-log.1")
_MAGIC: Final = 0x31_58_44_49_44_49_4D_4F
_MAGIC_AT, _BOOT_AT, _SEQUENCE_AT = 0, 1, 2
_HEADER_WORDS: Final = BLOCK_BYTES // 8
TABLES: Final = (_HEADER_WORDS, _HEADER_WORDS + kernels.TABLE_WORDS)
"""Their first words."""
_FILE_BYTES: Final = 8 * (_HEADER_WORDS + 2 * kernels.TABLE_WORDS)
FEW: Final = 8 if memory_order.IS_STRONG else 0
"""Up to so many starts are looked up one by one, which is then faster than as arrays. Python cannot order memory
access by itself, so only where the processor does."""
FEW_UNLOADED: Final = 192 if memory_order.IS_STRONG else 0
"""The same, while the first use of a kernel would have to load it, which takes 0.3 s."""


class CommitIndex:
    """The mapped file. `writable`: for the one writer, which also makes it."""

    def __init__(self, folder: Path, *, writable: bool) -> None:
        path = folder / INDEX_FILE
        if writable:
            _reserve(path)
        file = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < _FILE_BYTES:
                raise FileNotFoundError(errno.ENOENT, "not made yet, or cut short", os.fspath(path))
            self._map = mmap.mmap(file, _FILE_BYTES, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        finally:
            os.close(file)
        self.words = memoryview(self._map).cast("q")
        self.array: Int64s = words_of(self._map)
        """For kernels. Those that readers call do not write."""

    @property
    def is_of_this_boot(self) -> bool:
        is_of_it: bool = self.words[_BOOT_AT] == _boot() and self.words[_MAGIC_AT] == _MAGIC
        memory_order.fence()
        return is_of_it

    def believe(self) -> None:
        """From now on readers use it, until the machine starts again."""
        self.words[_MAGIC_AT] = _MAGIC
        memory_order.fence()
        self.words[_BOOT_AT] = _boot()

    def sequences(self) -> tuple[int, int]:
        """Ordered after all earlier reads, and before all later ones."""
        memory_order.fence()
        sequences = self.words[_SEQUENCE_AT], self.words[_SEQUENCE_AT + 1]
        memory_order.fence()
        return sequences

    def empty(self, number: int) -> None:
        """Empties table `number`, all of which is durable elsewhere. Every field is cleared: a writer that was killed
        may have left a slot without its key."""
        self.words[_SEQUENCE_AT + number] |= 1
        memory_order.fence()
        table = self._table(number)
        if table.any():
            table[:] = 0
        memory_order.fence()
        self.words[_SEQUENCE_AT + number] += 1
        memory_order.fence()

    def place(self, number: int, rows: Rows) -> int:
        """Sets each start's slot to its value, which is durable already. Returns how many records that took."""
        if _are_few(len(rows), kernels.place):
            return kernels.place_few(self.words, TABLES[number], rows.tolist())
        starts, values = np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])
        return _checked(kernels.place(self.array, TABLES[number], starts, values))

    def clear(self, number: int, starts: Int64s, is_missing: NDArray[np.bool_]) -> Rows:
        """Sets the slots of committed starts to 0; invalidation markers stay. Unsets `is_missing` of starts that have a
        slot. Returns the changed slots as rows."""
        if _are_few(len(starts), kernels.clear):
            cleared = kernels.clear_few(self.words, TABLES[number], starts.tolist(), is_missing)
            return np.array(cleared, dtype=np.int64).reshape(-1, 2)
        rows = np.empty((len(starts), 2), dtype=np.int64)
        starts = np.ascontiguousarray(starts)
        return rows[: _checked(kernels.clear(self.array, TABLES[number], starts, is_missing, rows))]

    @staticmethod
    def is_quick(count: int) -> bool:
        """Whether `place` and `clear` of so many starts need no kernel to be loaded first."""
        return count <= FEW_UNLOADED or (kernels.place.is_loaded and kernels.clear.is_loaded)

    def find(self, number: int, starts: Sequence[int] | Int64s) -> list[int]:
        """The slots in one table; 0 if there is none."""
        if _are_few(len(starts), kernels.find):
            return kernels.find_few(self.words, TABLES[number], (int(start) for start in starts))
        found: list[int] = self._found(number, np.array(starts, dtype=np.int64)).tolist()
        return found

    def find_all(self, number: int, starts: Int64s) -> Int64s:
        """`find` of an array of starts."""
        if not kernels.find.is_loaded and _are_few(len(starts), kernels.find):
            return np.array(self.find(number, starts), dtype=np.int64)
        return self._found(number, np.ascontiguousarray(starts))

    def _found(self, number: int, starts: Int64s) -> Int64s:
        found = np.zeros(len(starts), dtype=np.int64)
        _checked(kernels.find(self.array, TABLES[number], starts, found))
        return found

    def rows(self, number: int) -> Rows:
        """All rows of one table, sorted by start."""
        table = self._table(number)
        records = table[np.flatnonzero(table[:, 0])]
        record, slot = np.nonzero(records[:, 1:])
        starts = ((records[record, 0] - 1) * kernels.SLOTS + slot) * TIMESTAMP_STEP
        order = np.argsort(starts)
        return np.stack([starts[order], records[record, slot + 1][order]], axis=1)

    def used(self, number: int) -> int:
        """The number of records in one table."""
        return int(np.count_nonzero(self._table(number)[:, 0]))

    def _table(self, number: int) -> Int64s:
        first = TABLES[number]
        return self.array[first : first + kernels.TABLE_WORDS].reshape(-1, kernels.RECORD_WORDS)

    def close(self) -> None:
        del self.array
        with contextlib.suppress(BufferError):  # another thread, or a traceback, still holds a part
            self.words.release()
            self._map.close()


def _are_few(count: int, kernel: Kernel[Any, Any]) -> bool:
    """Whether they are done one by one."""
    if kernel.is_loaded:
        return count <= FEW
    return count <= FEW_UNLOADED or (memory_order.IS_STRONG and not kernel.is_ready)


def _checked(result: int) -> int:
    if result == kernels.NO_ROOM:
        raise kernels.no_room()
    return int(result)


def load_kernels() -> None:
    """Loads what is needed now, and not during a flush."""
    if kernels.place.is_ready:
        kernels.place.compiled()
        kernels.clear.compiled()


_REPLAYED: Final = (-1, -1)
"""In place of sequence numbers: the log was read, because the index is not valid."""


class CommitLogReader:
    """A process's view of the commits in the log. LMDB must be read after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index: CommitIndex | None = None

    def lookup(self, starts: Sequence[int]) -> tuple[list[int], tuple[int, int]]:
        """(slots, 0 if nothing is known here; the argument for `is_unchanged` once LMDB was read)."""
        index = self._opened()
        if index is None or not index.is_of_this_boot:
            replayed = replayed_rows(self._folder)
            known = dict(zip(replayed[:, 0].tolist(), replayed[:, 1].tolist(), strict=True))
            return [known.get(start, 0) for start in starts], _REPLAYED
        sequences = index.sequences()
        found = [0] * len(starts)
        for number in (0, 1):
            if not sequences[number] & 1:
                found = [old or new for old, new in zip(found, index.find(number, starts), strict=True)]
        return found, sequences

    def is_unchanged(self, sequences: tuple[int, int]) -> bool:
        """Whether no table was emptied since, and no log that was replayed was brought to LMDB. If not, read again."""
        index = self._opened()
        if index is None or sequences == _REPLAYED:
            return index is None or not index.is_of_this_boot
        return index.sequences() == sequences

    def rows(self) -> Rows:
        """All rows, sorted by start."""
        while True:
            rows, sequences = self._rows()
            if self.is_unchanged(sequences):
                return rows

    def _rows(self) -> tuple[Rows, tuple[int, int]]:
        index = self._opened()
        if index is None or not index.is_of_this_boot:
            return replayed_rows(self._folder), _REPLAYED
        sequences = index.sequences()
        tables = [index.rows(number) for number in (0, 1) if not sequences[number] & 1]
        return newest_of_each(tables), sequences

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def _opened(self) -> CommitIndex | None:
        if self._index is None:
            try:
                self._index = CommitIndex(self._folder, writable=False)
            except FileNotFoundError:
                return None
        return self._index


def replayed_rows(folder: Path) -> Rows:
    """The last row of each start in both logs, values of 0 included, sorted by start."""
    return rows_of([read_segment(folder / name) for name in LOG_FILES])


def rows_of(segments: Sequence[tuple[int, list[Rows]]]) -> Rows:
    """The last row of each start in segments as `read_segment` returns them, sorted by start."""
    oldest_first = sorted(segments, key=lambda segment: segment[0])
    return newest_of_each([rows for _, records in oldest_first for rows in records])


def newest_of_each(parts: Sequence[Rows]) -> Rows:
    """The last row of each start, sorted by start."""
    if not parts:
        return np.empty((0, 2), dtype=np.int64)
    rows = np.concatenate(parts)[::-1]
    _, first = np.unique(rows[:, 0], return_index=True)
    return rows[first]


@cache
def _boot() -> int:
    """A number that differs for each start of the machine."""
    return boot_number()


def _reserve(path: Path) -> None:
    """Makes the file, or completes it if a copy was cut short or left holes: to touch a mapped hole on a full disk, or
    a page after the end, ends the process."""
    try:
        file = open_own(path, os.O_RDWR | os.O_CREAT, shared=is_shared(path.parent.parent))
        try:
            reserve(file, _FILE_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        raise failed(error, path) from error
