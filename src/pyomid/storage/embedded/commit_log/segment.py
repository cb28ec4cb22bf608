"""One segment of the commit log: rows are appended and synced before any client is told; it is read after a crash.

    block 0     magic, generation, whether its records still count (1, 0), CRC-32 of the three
    then        records, one after the other:           generation, number of rows, CRC-32, rows (start, value)

All numbers are 8 bytes, little-endian. A row says what the start's slot becomes: a commit timestamp, SEALED, or 0. The
log ends at the first record with a wrong generation or checksum: a torn write, or a rest of an earlier generation. A
bad record with a good one after it is neither, but damage, because an append begins when the one before it is durable.
The segment's blocks are written when it is made, so that an append changes no metadata and its sync is one disk write.
It bypasses the page cache (O_DIRECT, O_DSYNC) if the file system allows it, which took half as long as `fdatasync`
(decision 0013). A sync that failed is never tried again: its effect is unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

from pyomid.arrays import NDArray, np
from pyomid.errors import Corruption, Misuse, OmidError, StoreFull, Unavailable
from pyomid.owned_files import is_shared, open_own, sync_folder
from pyomid.platforms import open_direct, sync_data
from pyomid.storage.embedded.commit_log.background_write import BackgroundWriter

Rows = NDArray[np.int64]
"""(start, value), one a row."""

SEGMENT_BYTES: Final = 4 << 20
"""A quarter of a million rows: one second of a busy TSO. A restart after a crash reads two segments at most."""
BLOCK_BYTES: Final = 4096
"""The unit of a disk write, as O_DIRECT needs it."""
_MAGIC: Final = 0x31_47_4F_4C_44_49_4D_4F
_HEADER: Final = struct.Struct("<QQQQ")
_RECORD: Final = struct.Struct("<QQQ")
ROW_BYTES: Final = 16


class Segment:
    """A segment for its writer. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if not path.exists() or path.stat().st_size != SEGMENT_BYTES:
                _make(path)
            self._file, self._direct = _open(path)
        except OSError as error:
            raise failed(error, path) from error
        self._content = mmap.mmap(-1, SEGMENT_BYTES)
        """The file's content of this generation: a block is written whole, with old and new rows."""
        self._view = memoryview(self._content)
        self._words = np.frombuffer(self._content, dtype="<i8")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._content))
        self._end = self._begun_end = BLOCK_BYTES
        self._generation = 0
        self._broken: str | None = None
        """Why nothing more is written here."""

    @property
    def is_direct(self) -> bool:
        """Each write is durable by itself, and may run in the background."""
        return self._direct

    @property
    def end(self) -> int:
        """The end of the last durable record. What an interrupted thread wrote after it is overwritten."""
        return self._end

    def begin(self, generation: int) -> None:
        """Begins a generation, durably: from now on only its records count. It is above every earlier one."""
        self._head(generation, counts=True)
        self._generation, self._end = generation, BLOCK_BYTES

    def forget(self, generation: int) -> None:
        """Ends the generation, durably: none of its records counts any more. The segment counts as full before that, so
        that after an interrupt no other thread appends to it in vain."""
        self._end = SEGMENT_BYTES
        self._head(generation, counts=False)

    def _head(self, generation: int, *, counts: bool) -> None:
        words = (_MAGIC, generation, int(counts))
        _HEADER.pack_into(self._content, 0, *words, crc32(struct.pack("<QQQ", *words)))
        self._write(0, _HEADER.size)

    def has_room(self, rows: int) -> bool:
        return self._end + _RECORD.size + rows * ROW_BYTES <= SEGMENT_BYTES

    @property
    def is_half_full(self) -> bool:
        return self._end > SEGMENT_BYTES // 2

    def check_in_place(self) -> None:
        """`Misuse` if the file was removed: the next process that opens the folder would not find it."""
        if not os.fstat(self._file).st_nlink:
            raise Misuse(f"{self._path} was removed while it was open: what was written into it last is lost")

    def append(self, parts: Sequence[Rows]) -> None:
        """Appends one record with all these rows; durable on return."""
        end = self._pack(parts)
        self._write(self._end, end)
        self._end = end

    def begin_append(self, parts: Sequence[Rows], writer: BackgroundWriter) -> bool:
        """Begins an `append` without a wait; no other method may be called before `end_append`. False: nothing was
        begun; only `append` can do it."""
        if self._broken is not None or not self._direct:
            return False
        self._begun_end = self._pack(parts)
        begin, end = _blocks(self._end, self._begun_end)
        return writer.begin(self._file, self._address + begin, end - begin, begin)

    def end_append(self, result: int) -> None:
        """The append that was begun has ended with this result: its rows are durable, or `append`'s error is raised."""
        begin, end = _blocks(self._end, self._begun_end)
        if result != end - begin:
            error = self._short(result, end - begin)
            if result < 0:
                error = failed(OSError(-result, os.strerror(-result)), self._path)
            self._broken = str(error)
            raise error
        self._end = self._begun_end

    def _pack(self, parts: Sequence[Rows]) -> int:
        """Puts a record after the last one, in memory. Returns its end."""
        begin = at = self._end + _RECORD.size
        for rows in parts:
            self._words[at // 8 : at // 8 + rows.size] = rows.reshape(-1)
            at += ROW_BYTES * len(rows)
        count = (at - begin) // ROW_BYTES
        checksum = crc32(self._view[begin:at], crc32(struct.pack("<QQ", self._generation, count)))
        _RECORD.pack_into(self._content, self._end, self._generation, count, checksum)
        return at

    def close(self) -> None:
        del self._words
        with contextlib.suppress(BufferError):  # a traceback may still hold a part: its memory goes with it
            self._view.release()
            self._content.close()
        os.close(self._file)

    def _write(self, begin: int, end: int) -> None:
        """Writes the blocks that hold these bytes to the disk."""
        if self._broken is not None:
            raise Unavailable(
                f"the log {self._path} failed once ({self._broken}): what it holds is known only when it is read again"
            )
        begin, end = _blocks(begin, end)
        try:
            written = os.pwrite(self._file, self._view[begin:end], begin)
            if written != end - begin:
                self._broken = f"{written} of {end - begin} bytes written"
                raise self._short(written, end - begin)
            if not self._direct:
                sync_data(self._file)
        except OSError as error:
            self._broken = str(error)
            raise failed(error, self._path) from error

    def _short(self, written: int, wanted: int) -> OmidError:
        return Unavailable(f"the log {self._path} took {written} of {wanted} bytes")


def _blocks(begin: int, end: int) -> tuple[int, int]:
    """The whole blocks that hold these bytes."""
    return begin - begin % BLOCK_BYTES, min(end + -end % BLOCK_BYTES, SEGMENT_BYTES)


def read_segment(path: Path, *, is_at_rest: bool = False) -> tuple[int, list[Rows]]:
    """(newest generation, its records that count, in order). For recovery, and for readers if no writer has recovered
    yet.

    `Corruption` if `is_at_rest` and there is damage that no write can leave: of a header (one sector of the disk), or
    of a record that is followed by another one of its generation, which was begun when the first was durable.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, []
    return parse_segment(data, path, is_at_rest=is_at_rest)


def parse_segment(data: bytes, path: Path, *, is_at_rest: bool = False) -> tuple[int, list[Rows]]:
    """`read_segment`, of the bytes that were in the file `path`."""
    if len(data) == SEGMENT_BYTES and not any(data[: _HEADER.size]):  # made, and never begun
        return 0, []
    magic, generation, counts, checksum = _HEADER.unpack(data[: _HEADER.size].ljust(_HEADER.size, b"\0"))
    if magic != _MAGIC or checksum != crc32(data[:24]):
        if is_at_rest:
            raise _damaged(path, "its header")
        return 0, []
    if not counts:
        return generation, []
    records = list(_records(data, generation))
    if is_at_rest:
        if len(data) != SEGMENT_BYTES:
            raise _damaged(path, f"it has {len(data)} bytes instead of {SEGMENT_BYTES}")
        end = BLOCK_BYTES + sum(_RECORD.size + rows.nbytes for rows in records)
        if _has_record_after(data, generation, end):
            raise _damaged(path, f"the record at byte {end}, with others after it")
    return generation, records


def _damaged(path: Path, what: str) -> Corruption:
    return Corruption(
        f"the log of commits {path} is damaged: {what}; what was acknowledged may be in it", folder=str(path.parent)
    )


def _records(data: bytes, generation: int) -> Iterator[Rows]:
    at = BLOCK_BYTES
    while (rows := _record_at(data, generation, at)) is not None:
        yield rows
        at += _RECORD.size + rows.nbytes


def _record_at(data: bytes, generation: int, at: int) -> Rows | None:
    """The record at this place; None if there is no whole record of this generation."""
    begin = at + _RECORD.size
    if begin > len(data):
        return None
    found, count, checksum = _RECORD.unpack_from(data, at)
    end = begin + count * ROW_BYTES
    if found != generation or end > len(data) or checksum != crc32(data[begin:end], crc32(data[at : at + 16])):
        return None
    return np.frombuffer(data, dtype="<i8", count=2 * count, offset=begin).reshape(-1, 2).astype(np.int64)


def _has_record_after(data: bytes, generation: int, end: int) -> bool:
    words = np.frombuffer(data, dtype="<u8", count=len(data) // 8)
    later = end // 8 + 1 + np.flatnonzero(words[end // 8 + 1 :] == generation)
    return any(_record_at(data, generation, 8 * at) is not None for at in later.tolist())


def _make(path: Path) -> None:
    """Writes all blocks, so that an append finds them allocated and initialized."""
    unfinished = path.with_suffix(".new")
    file = open_own(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC, shared=is_shared(path.parent.parent))
    try:
        written = os.pwrite(file, bytes(SEGMENT_BYTES), 0)
        if written != SEGMENT_BYTES:
            raise StoreFull(f"no room for the log {path}", folder=str(path.parent))
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(unfinished, path)
    sync_folder(path.parent)


def failed(error: OSError, path: Path) -> OmidError:
    """`StoreFull` if the disk is full, otherwise `Unavailable`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"no room for {path}: {error.strerror}", folder=str(path.parent))
    return Unavailable(f"{path}: {error.strerror}", folder=str(path.parent))


def _open(path: Path) -> tuple[int, bool]:
    """(descriptor, whether each write is durable by itself)."""
    direct = open_direct(path)
    return (os.open(path, os.O_RDWR | os.O_CLOEXEC), False) if direct is None else (direct, True)
