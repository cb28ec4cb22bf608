"""Scan the records of a range, many at a time, and decode them into batches of complete rows.

py-lmdb creates three Python objects per record, which costs more than the rest of a scan. So scans read LMDB's data
file through a second mapping. While a read transaction is open, the tree under its root is immutable: no writer reuses
a page that a reader may see, and a page is written before any root that refers to it. So the compiled walk of
`native/pages` may read those pages. LMDB's unnamed database has a record for each named database, with its root.

If the format is unknown (another LMDB, another architecture), or a page has unexpected content, the walk gives up. Then
the scan reads with LMDB's cursor, which also reports what is wrong.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import lmdb

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch, with_columns_present
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import CELLS
from pyomid.folder.lmdb_files import DATA_FILE
from pyomid.folder.native import pages as page_kernels
from pyomid.folder.native import points
from pyomid.folder.native import records as record_kernels
from pyomid.folder.records import (
    NO_SUCH_COLUMN,
    VERSION_BYTES,
    corrupt,
    key_row,
    range_bounds,
)
from pyomid.folder.tables import Table, Tables
from pyomid.system import FileId
from pyomid.types import Column, KeyRange, ReadBounds

_BATCH_BYTES_MAX: Final = 256 << 20
"""A batch ends after the row with which it exceeds this size."""
_FIRST_FETCH: Final = 64


class Scans:
    """Scans the tables of one folder."""

    def __init__(self, environment: Environment, tables: Tables) -> None:
        self._environment = environment
        self._tables = tables
        self.pages = Pages(environment)

    def batches(
        self,
        table: str,
        key_range: KeyRange,
        columns: Sequence[Column] | None,
        records_max: int,
        bounds: ReadBounds | None = None,
    ) -> Iterator[CellBatch]:
        """Yield the batches of a range. With `bounds`, versions that the reader does not need may be omitted."""
        fetch = partial(self._fetch, table=table, columns=columns, records_max=records_max, bounds=bounds)
        resume: bytes | None = b""
        while resume is not None:
            current, found = self._environment.read(partial(fetch, key_range=key_range, resume=resume))
            resume = None if found.next_key is None else found.next_key[:-VERSION_BYTES]
            if len(found.lens):
                batch = self._decoded(current, found, columns)
                if batch.rows:
                    yield batch

    def _fetch(
        self,
        transaction: Transaction,
        *,
        table: str,
        columns: Sequence[Column] | None,
        key_range: KeyRange,
        resume: bytes,
        records_max: int,
        bounds: ReadBounds | None,
    ) -> tuple[Table, Records]:
        """Return complete rows from `resume` on, with about `records_max` records in all."""
        current, _, _ = self._tables.asked_for(transaction, table, columns)
        start, stop = range_bounds(current.prefix, key_range)
        start = max(start, resume)
        if start >= stop:
            return current, joined([], None)
        found = self.pages.records(
            transaction,
            (CELLS, self._environment.databases[CELLS]),
            start,
            stop,
            tail_bytes=VERSION_BYTES,
            records_max=records_max,
            bytes_max=_BATCH_BYTES_MAX,
            bounds=bounds,
            asked=None if bounds is None else _mask(current, columns),
        )
        if found is None:
            with transaction.cursor(self._environment.databases[CELLS]) as cursor:
                found = joined(*records_until(cursor, start, stop, records_max))
        return current, found

    def start_of_last(self, transaction: Transaction, *, table: str, key_range: KeyRange, records: int) -> bytes:
        """Return the row of the `records`-th record from the end of the range, or the start of the range if there are
        fewer. It is found with LMDB's cursor."""
        current = self._tables.loaded(transaction, table)
        start, stop = range_bounds(current.prefix, key_range)
        with transaction.cursor(self._environment.databases[CELLS]) as cursor:
            if not (cursor.set_range(stop) and cursor.prev()) and not cursor.last():
                return key_range.start
            found = next(islice(cursor.iterprev(values=False), records - 1, records), b"")
        return key_row(found) if found >= start and found < stop else key_range.start

    def _decoded(self, table: Table, found: Records, columns: Sequence[Column] | None) -> CellBatch:
        for _ in range(2):
            names, column_of = table.indices(columns)
            *arrays, status, bad_record = record_kernels.decode_records(found.data, found.lens, column_of)
            if status != record_kernels.UNKNOWN_COLUMN:
                break
            self._environment.read(lambda transaction: table.load(transaction, self._tables.database))
        if status != record_kernels.GOOD:
            raise _corrupt(_key_of(found, bad_record), status)
        batch = CellBatch(found.data, names, *arrays)
        return batch if len(names) <= batch.cells else with_columns_present(batch)


def _mask(table: Table, columns: Sequence[Column] | None) -> NDArray[np.uint8]:
    kinds = np.frombuffer(table.loaded.selection(columns).kinds, dtype=np.uint8)
    no_number = np.zeros(1, dtype=np.uint8)  # no column has the number 0
    return np.concatenate((no_number, kinds == points.WANTED), dtype=np.uint8)


def joined(items: list[bytes], next_key: bytes | None) -> Records:
    lens = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
    return Records(np.frombuffer(bytearray().join(items), dtype=np.uint8), lens, next_key)


def _key_of(found: Records, record: int) -> bytes:
    at = int(found.lens[: 2 * record].sum())
    return found.data[at : at + int(found.lens[2 * record])].tobytes()


def records_until(cursor: Any, start: bytes, stop: bytes, records_max: int) -> tuple[list[bytes], bytes | None]:
    """Return the records that `Pages.records` returns, read with LMDB's cursor. This is the reference implementation,
    used when the walk gives up.

    It fetches in growing steps, so that a short range is not read too far, and a long one not record by record.
    """
    items: list[bytes] = []
    if not cursor.set_range(start):
        return items, None
    source = cursor.iternext()
    step, total = min(_FIRST_FETCH, records_max), 0
    while len(items) < 2 * records_max and total <= _BATCH_BYTES_MAX:
        found = list(chain.from_iterable(islice(source, min(step, records_max - len(items) // 2))))
        if not found:
            return items, None
        items += found
        if found[-2] >= stop:
            return items[: 2 * bisect_left(items[::2], stop)], None
        total += sum(map(len, found))
        step *= 4
    return items, _finish_row(source, items, stop)


def _finish_row(source: Iterator[tuple[bytes, bytes]], items: list[bytes], stop: bytes) -> bytes | None:
    last = items[-2][:-VERSION_BYTES]
    for key, value in source:
        if key[:-VERSION_BYTES] != last:
            return key if key < stop else None
        items += (key, value)
    return None


def _corrupt(key: bytes, status: int) -> Exception:
    what = {
        record_kernels.BAD_CHECKSUM: "its checksum does not match",
        record_kernels.BAD_GRAMMAR: "its cells are malformed",
        record_kernels.UNKNOWN_COLUMN: NO_SUCH_COLUMN,
        record_kernels.BAD_KEY: "its key is not a row and a version",
    }
    return corrupt(key, what[status])


# LMDB's pages

_DATABASE: Final = struct.Struct("<I HH QQQQ Q")
"""The struct MDB_db: padding, flags, depth, the numbers of pages of three kinds, entries, root."""
_META: Final = struct.Struct("<16x II")
"""The beginning of the first page: its header, then LMDB's magic number and the version of its data format."""
_KNOWN_META: Final = (0xBEEFC0DE, 1)
_KNOWN_LMDB: Final = (0, 9)
_NO_ROOT: Final = (1 << 64) - 1
_RECORDS_BEYOND: Final = 64
"""Extra room for versions of the last row, beyond `records_max`."""
_RECORDS_GUESSED_MAX: Final = 1 << 16
_ROOM_BYTES_MAX: Final = 16 << 20
"""The limits of the room that is guessed."""
_PAGES_MAX: Final = 1 << 48
"""The greatest page number that a branch node can name."""

Bytes: TypeAlias = "NDArray[np.uint8]"


class Limits(NamedTuple):
    """The limits of a walk. It ends after the row that reaches `records_max` or exceeds `bytes_max`. Two keys are of
    different rows if they differ before their last `tail_bytes`.

    With `committed_below`, the walk finds the records that a reader with these `ReadBounds` needs. In each row these
    are the records below version `below`, until every asked column has a commit timestamp below `committed_below`.
    Versions below `at_least` are skipped.
    """

    tail_bytes: int
    records_max: int
    bytes_max: int
    below: int
    committed_below: int
    asked: Bytes
    """1 for the number of each asked column, but not for family tombstones: below the last needed version of the other
    columns a tombstone hides nothing."""
    at_least: int


_Asked = tuple[int, int, Bytes, Bytes, Limits]
"""The arguments of `walk` between the pages and the result arrays."""


@dataclass(frozen=True, slots=True)
class Records:
    """The data (key, value, key, value …) of complete rows, the lengths of these items, and the next key, or None if
    the range ended."""

    data: Bytes
    lens: NDArray[np.int64]
    next_key: bytes | None


def _is_known_here() -> bool:
    """Return whether this LMDB, on this machine, has pages of the known format."""
    return lmdb.version()[:2] == _KNOWN_LMDB and sys.byteorder == "little" and sys.maxsize > 1 << 32


class HasDataFile(Protocol):
    """An open environment, as `Pages` uses it."""

    @property
    def folder(self) -> Path: ...

    @property
    def data_file(self) -> FileId:
        """The data file that LMDB has open. Another file may have taken its name (in a restored folder)."""


class Pages:
    """Reads the data file of one environment. Thread-safe: a mapping is replaced by a longer one, never changed."""

    def __init__(self, environment: HasDataFile) -> None:
        self._environment = environment
        self._mapped: tuple[FileId, Bytes] | None = None
        self._record_bytes = 0
        """The average size of a record in the last read, or 0 before the first."""
        self._is_known = _is_known_here()

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
        """Return a copy of the records that `walk` of `native/pages` finds, or None if the caller must read with LMDB's
        cursor instead. Call it inside a read transaction.

        `database` is a name and a handle. With `bounds`, records that the reader does not need may be omitted; `asked`
        then holds 1 for the number of each column that the reader asks for (`Limits`).
        """
        name, handle = database
        page_bytes, root = transaction.stat(handle)["psize"], _root(transaction, name)
        if not self._is_known or root is None:
            return None
        if root == _NO_ROOT:
            return Records(*_no_records(), None)
        borders = np.frombuffer(start, dtype=np.uint8), np.frombuffer(stop, dtype=np.uint8)
        needed = bounds or ReadBounds()
        versions = needed.below, needed.committed_below, _no_records()[0] if asked is None else asked, needed.at_least
        limits = Limits(tail_bytes, records_max, bytes_max, *versions)
        question = page_bytes, root, *borders, limits
        pages = self._known()
        if pages is None:
            pages = self._map()
        elif (
            self._record_bytes and records_max <= _RECORDS_GUESSED_MAX
        ):  # guess the room from the last read, so that one walk suffices
            found = self._copied(pages, question, records_max, bytes_max)
            if found is not None:
                return found
        how, count, size = _measured(pages, question)
        if how == page_kernels.OUTSIDE:
            pages = self._map()
            how, count, size = _measured(pages, question)
        if pages is None or how not in (page_kernels.WHOLE, page_kernels.MORE):
            return None
        if not count:
            return Records(*_no_records(), None)
        data, lens = np.empty(size, dtype=np.uint8), np.empty(2 * count, dtype=np.int64)
        *same, at, length = page_kernels.walk(pages, *question, data, lens)
        if same != [how, count, size]:
            return None
        self._record_bytes = size // count + 1
        return Records(data, lens, pages[at : at + length].tobytes() if how == page_kernels.MORE else None)

    def _copied(self, pages: Bytes, question: _Asked, records_max: int, bytes_max: int) -> Records | None:
        """Walk once, without measuring first. Returns None if the guessed room is too small, or a page is
        unexpected."""
        records = records_max + _RECORDS_BEYOND
        room = min(records * (self._record_bytes + self._record_bytes // 8), bytes_max, _ROOM_BYTES_MAX)
        data, lens = np.empty(room, dtype=np.uint8), np.empty(2 * records, dtype=np.int64)
        how, count, size, at, length = page_kernels.walk(pages, *question, data, lens)
        if how not in (page_kernels.WHOLE, page_kernels.MORE):
            return None
        if not count:
            return Records(*_no_records(), None)
        if 2 * size < room:
            data, lens = data[:size].copy(), lens.copy()
        self._record_bytes = size // count + 1
        next_key = pages[at : at + length].tobytes() if how == page_kernels.MORE else None
        return Records(data[:size], lens[: 2 * count], next_key)

    def close(self) -> None:
        """Unmap the file once the last walk over it has ended, so that the file can be unmounted or deleted."""
        self._mapped = None

    def _known(self) -> Bytes | None:
        """Return the current mapping, or None if there is none or LMDB has opened another file since."""
        mapped = self._mapped
        return mapped[1] if mapped is not None and mapped[0] == self._environment.data_file else None

    def _map(self) -> Bytes | None:
        """Map the file at its current length; it never shrinks. Returns None if that fails, because LMDB's cursor needs
        no mapping."""
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


@cache
def _no_records() -> tuple[Bytes, NDArray[np.int64]]:
    """Return empty data and no lengths."""
    return np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64)


def _measured(pages: Bytes | None, asked: _Asked) -> tuple[int, int, int]:
    """Return how the walk will end, and the number of records and bytes that it will find."""
    if pages is None:
        return page_kernels.STRANGE, 0, 0
    how, count, size, _, _ = page_kernels.walk(pages, *asked, *_no_records())
    return how, count, size


def _root(transaction: Transaction, name: bytes) -> int | None:
    """Return the number of the root page of a named database, which LMDB keeps in the unnamed database; None if it is
    unknown."""
    record = transaction.get(name)
    if record is None or len(record) != _DATABASE.size:
        return None
    root: int = _DATABASE.unpack(record)[-1]
    return root if root == _NO_ROOT or root < _PAGES_MAX else None
