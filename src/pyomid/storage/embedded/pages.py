"""LMDB's data file, mapped a second time for vectorized reads.

py-lmdb creates three Python objects per record, which costs more than the rest of a scan. While a read transaction is
open, the tree under its root is immutable: no writer reuses a page that a reader may see, and a page is written before
any root that refers to it. So the compiled walk of `native/pages` may read those pages through a mapping of its own.
LMDB's unnamed database has a record for each named one, with its root.

If the format is unknown (another LMDB, another architecture), or a page has unexpected content, the result is None. The
caller then reads with LMDB's cursor, which also reports what is wrong.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import lmdb
import numpy as np
from numpy.typing import NDArray

from pyomid.storage.embedded.environment import DATA_FILE, Transaction
from pyomid.storage.embedded.native import pages as kernels
from pyomid.system import FileId
from pyomid.types import ReadBounds

_DATABASE: Final = struct.Struct("<I HH QQQQ Q")
"""MDB_db: padding, flags, depth, the numbers of pages of three kinds, entries, root."""
_META: Final = struct.Struct("<16x II")
"""The first page: its header, then LMDB's magic number and the version of its data format."""
_KNOWN_META: Final = (0xBEEFC0DE, 1)
_KNOWN_LMDB: Final = (0, 9)
_NO_ROOT: Final = (1 << 64) - 1
_RECORDS_BEYOND: Final = 64
"""Extra room for versions of the last row beyond `records_max`."""
_RECORDS_GUESSED_MAX: Final = 1 << 16
_ROOM_BYTES_MAX: Final = 16 << 20
"""Limits of the guessed room."""
_PAGES_MAX: Final = 1 << 48
"""The greatest page number that a branch node can name."""

Bytes = NDArray[np.uint8]


class Limits(NamedTuple):
    """The limits of a walk. It ends after the row that reaches `records_max` or exceeds `bytes_max`. Two keys are of
    different rows if they differ before their last `tail_bytes`.

    With `committed_below` it finds the records that a reader with these `ReadBounds` needs: in each row the records
    below version `below`, until every asked column has a commit timestamp below `committed_below`. Versions below
    `at_least` are skipped."""

    tail_bytes: int
    records_max: int
    bytes_max: int
    below: int
    committed_below: int
    asked: Bytes
    """1 for the number of each asked column. Not for family tombstones: below the last needed version of the other
    columns a tombstone hides nothing."""
    at_least: int


_Asked = tuple[int, int, Bytes, Bytes, Limits]
"""The arguments of `walk` between the pages and the result arrays."""


@dataclass(frozen=True, slots=True)
class Records:
    """Key, value, key, value … of complete rows, their lengths, and the next key (None: the range ended)."""

    data: Bytes
    lens: NDArray[np.int64]
    next_key: bytes | None


def is_known_here() -> bool:
    """Whether this LMDB on this machine has pages of the known format."""
    return lmdb.version()[:2] == _KNOWN_LMDB and sys.byteorder == "little" and sys.maxsize > 1 << 32


class HasDataFile(Protocol):
    """An open environment."""

    @property
    def folder(self) -> Path: ...

    @property
    def data_file(self) -> FileId:
        """The data file that LMDB has open. Another file may have taken its name (a restored folder)."""


class Pages:
    """The data file of one environment. Thread-safe: a mapping is replaced by a longer one, never changed."""

    def __init__(self, environment: HasDataFile) -> None:
        self._environment = environment
        self._mapped: tuple[FileId, Bytes] | None = None
        self._record_bytes = 0
        """The average size of a record in the last read; 0 before the first."""
        self._is_known = is_known_here()

    def records(
        self,
        transaction: Transaction,
        database: tuple[bytes, Any],
        start: bytes,
        stop: bytes,
        *,
        tail_bytes: int,
        records_max: int,
        bytes_max: int,
        bounds: ReadBounds | None = None,
        asked: Bytes | None = None,
    ) -> Records | None:
        """Return a copy of the records that `walk` of `native/pages` finds. None: read with LMDB's cursor instead. Call
        inside a read transaction.

        `database`: name and handle. With `bounds`, records that the reader does not need may be omitted; `asked`: 1 for
        the number of each column that it asks for (`Limits`).
        """
        name, handle = database
        page_bytes, root = transaction.stat(handle)["psize"], _root(transaction, name)
        if not self._is_known or root is None:
            return None
        if root == _NO_ROOT:
            return Records(_NO_BYTES, _NO_LENGTHS, None)
        borders = np.frombuffer(start, dtype=np.uint8), np.frombuffer(stop, dtype=np.uint8)
        needed = bounds or ReadBounds()
        versions = needed.below, needed.committed_below, _NO_BYTES if asked is None else asked, needed.at_least
        limits = Limits(tail_bytes, records_max, bytes_max, *versions)
        question = page_bytes, root, *borders, limits
        pages = self._known()
        if pages is None:
            pages = self._map()
        elif (
            self._record_bytes and records_max <= _RECORDS_GUESSED_MAX
        ):  # guess the room from the last read: one walk in place of two
            found = self._copied(pages, question, records_max, bytes_max)
            if found is not None:
                return found
        how, count, size = _measured(pages, question)
        if how == kernels.OUTSIDE:
            pages = self._map()
            how, count, size = _measured(pages, question)
        if pages is None or how not in (kernels.WHOLE, kernels.MORE):
            return None
        if not count:
            return Records(_NO_BYTES, _NO_LENGTHS, None)
        data, lens = np.empty(size, dtype=np.uint8), np.empty(2 * count, dtype=np.int64)
        *same, at, length = kernels.walk(pages, *question, data, lens)
        if same != [how, count, size]:
            return None
        self._record_bytes = size // count + 1
        return Records(data, lens, pages[at : at + length].tobytes() if how == kernels.MORE else None)

    def _copied(self, pages: Bytes, question: _Asked, records_max: int, bytes_max: int) -> Records | None:
        """Walk once, without measuring first. None if the guessed room is too small, or a page is unexpected."""
        records = records_max + _RECORDS_BEYOND
        room = min(records * (self._record_bytes + self._record_bytes // 8), bytes_max, _ROOM_BYTES_MAX)
        data, lens = np.empty(room, dtype=np.uint8), np.empty(2 * records, dtype=np.int64)
        how, count, size, at, length = kernels.walk(pages, *question, data, lens)
        if how not in (kernels.WHOLE, kernels.MORE):
            return None
        if not count:
            return Records(_NO_BYTES, _NO_LENGTHS, None)
        if 2 * size < room:
            data, lens = data[:size].copy(), lens.copy()
        self._record_bytes = size // count + 1
        next_key = pages[at : at + length].tobytes() if how == kernels.MORE else None
        return Records(data[:size], lens[: 2 * count], next_key)

    def close(self) -> None:
        """Unmap the file when the last walk over it has ended, so that it can be unmounted or deleted."""
        self._mapped = None

    def _known(self) -> Bytes | None:
        """Return the mapping, unless LMDB has opened another file since."""
        mapped = self._mapped
        return mapped[1] if mapped is not None and mapped[0] == self._environment.data_file else None

    def _map(self) -> Bytes | None:
        """Map the file at its present length; it never shrinks. None if that fails: LMDB's cursor needs no mapping."""
        try:
            with open(self._environment.folder / DATA_FILE, "rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != self._environment.data_file:
                    return None
                mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=np.uint8)
        except (OSError, ValueError):
            return None
        if len(mapped) < _META.size or _META.unpack_from(mapped.data) != _KNOWN_META:
            self._is_known = False
            return None
        self._mapped = (status.st_dev, status.st_ino), mapped
        return mapped


_NO_BYTES: Final = np.empty(0, dtype=np.uint8)
_NO_LENGTHS: Final = np.empty(0, dtype=np.int64)


def _measured(pages: Bytes | None, asked: _Asked) -> tuple[int, int, int]:
    """Return how the walk will end, and with how many records and bytes."""
    if pages is None:
        return kernels.STRANGE, 0, 0
    how, count, size, _, _ = kernels.walk(pages, *asked, _NO_BYTES, _NO_LENGTHS)
    return how, count, size


def _root(transaction: Transaction, name: bytes) -> int | None:
    """Return the number of the root page of a named database, which LMDB keeps in the unnamed one."""
    record = transaction.get(name)
    if record is None or len(record) != _DATABASE.size:
        return None
    root: int = _DATABASE.unpack(record)[-1]
    return root if root == _NO_ROOT or root < _PAGES_MAX else None
