"""Scans: whole records of a range, many at a time, decoded into batches.

Records are found by the compiled walk over LMDB's pages (`pages`); where it gives up, by LMDB's cursor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.storage.embedded.environment import Environment, Transaction
from pyomid.storage.embedded.layout import CELLS
from pyomid.storage.embedded.native import records as kernels
from pyomid.storage.embedded.native.pages import walk
from pyomid.storage.embedded.pages import Pages, Records
from pyomid.storage.embedded.records import (
    HEADER_BYTES,
    KEY_BYTES_MIN,
    NO_SUCH_COLUMN,
    TABLE_BYTES,
    VERSION_BYTES,
    cell_places,
    corrupt,
    is_whole,
    key_row,
    key_version,
    range_bounds,
)
from pyomid.storage.embedded.table_numbers import Table, Tables
from pyomid.types import Column, KeyRange, ReadBounds

_BATCH_BYTES_MAX: Final = 256 << 20
"""A batch ends after the row that passes this size, however few rows it has."""
_FIRST_FETCH: Final = 64


class Scans:
    """Scans of one folder's tables."""

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
        """`bounds`: versions that its reader does not need may be left out."""
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
        """Whole rows from `resume` on, with about `records_max` records."""
        current = self._tables.asked_for(transaction, table, columns)
        start, stop = range_bounds(current.prefix, key_range)
        start = max(start, resume)
        if start >= stop:
            return current, joined([], None)
        found = None
        if resume or walk.is_ready_for(_FIRST_FETCH):
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
        else:  # a short range is not worth loading the walk
            records_max = min(records_max, _FIRST_FETCH)
        if found is None:
            with transaction.cursor(self._environment.databases[CELLS]) as cursor:
                found = joined(*records_until(cursor, start, stop, records_max))
        return current, found

    def start_of_last(self, transaction: Transaction, *, table: str, key_range: KeyRange, records: int) -> bytes:
        """The row of the record before which so many others of the range lie, read from its end by LMDB's cursor."""
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
            is_ready = kernels.decode_records.is_ready_for(len(found.lens) // 2)
            decode = kernels.decode_records if is_ready else decode_records_plain
            *arrays, status, bad_record = decode(found.data, found.lens, column_of)
            if status != kernels.UNKNOWN_COLUMN:
                break
            self._environment.read(lambda transaction: table.load(transaction, self._tables.database))
        if status != kernels.GOOD:
            raise _corrupt(_key_of(found, bad_record), status)
        return CellBatch(found.data, names, *arrays)


def _mask(table: Table, columns: Sequence[Column] | None) -> NDArray[np.uint8]:
    asked = table.asked(table.wanted(columns))
    mask = np.zeros(max(asked, default=0) + 1, dtype=np.uint8)
    mask[list(asked)] = 1
    return mask


def decode_records_plain(data: NDArray[np.uint8], lens: NDArray[np.int64], column_of: NDArray[np.int32]) -> Any:
    """`decode_records`, a record at a time: its reference implementation."""
    content, lengths, wanted = data.tobytes(), iter(lens.tolist()), column_of.tolist()
    rows: list[bytes] = []
    row_off: list[int] = []
    row_rec, rec_version, rec_commit, rec_cell = [0], [], [], [0]
    cell_col: list[int] = []
    cell_off: list[int] = []
    cell_len: list[int] = []
    status, bad_record, at = kernels.GOOD, -1, 0
    for record, (key_len, value_len) in enumerate(zip(lengths, lengths, strict=True)):
        key, at = content[at : at + key_len], at + key_len
        value, begin, at = content[at : at + value_len], at, at + value_len
        status, cells = _cells_of(key, value, wanted)
        if status != kernels.GOOD:
            bad_record = record
            break
        if not cells:
            continue
        row = key[TABLE_BYTES : -VERSION_BYTES - 1]
        if not rows or rows[-1] != row:
            rows.append(row)
            row_off.append(begin - key_len + TABLE_BYTES)
            row_rec.append(0)
        for column, offset, length in cells:
            cell_col.append(column)
            cell_off.append(begin + offset)
            cell_len.append(length)
        rec_version.append(key_version(key))
        rec_commit.append(int.from_bytes(value[4:HEADER_BYTES], "little"))
        rec_cell.append(len(cell_col))
        row_rec[-1] = len(rec_version)
    row_len = [len(row) for row in rows]
    if status == kernels.GOOD:
        for index, row in enumerate(rows):
            plain = row.replace(b"\x00\xff", b"\x00")
            row_len[index] = len(plain)
            data.data[row_off[index] : row_off[index] + len(plain)] = plain
    return (
        np.array(row_off, dtype=np.int64), np.array(row_len, dtype=np.int32), np.array(row_rec, dtype=np.int64),
        np.array(rec_version, dtype=np.int64), np.array(rec_commit, dtype=np.int64),
        np.array(rec_cell, dtype=np.int64), np.array(cell_col, dtype=np.int32), np.array(cell_off, dtype=np.int64),
        np.array(cell_len, dtype=np.int32), status, bad_record,
    )  # fmt: skip


def _cells_of(key: bytes, value: bytes, wanted: list[int]) -> tuple[int, list[tuple[int, int, int]]]:
    """(a status of the kernel's; of each wanted cell its column, and offset and length of its value)."""
    cells: list[tuple[int, int, int]] = []
    if not is_whole(key, value):
        return kernels.BAD_CHECKSUM, cells
    if len(key) < KEY_BYTES_MIN or key[-VERSION_BYTES - 1] != 0 or key[-VERSION_BYTES] >= 0x80:
        return kernels.BAD_KEY, cells
    try:
        for number, offset, length in cell_places(value):
            if length > len(value) - offset:
                return kernels.BAD_GRAMMAR, cells
            if number >= len(wanted):
                return kernels.UNKNOWN_COLUMN, cells
            if wanted[number] >= 0:
                cells.append((wanted[number], offset, length))
    except (IndexError, ValueError):
        return kernels.BAD_GRAMMAR, cells
    return kernels.GOOD, cells


def joined(items: list[bytes], next_key: bytes | None) -> Records:
    lens = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
    return Records(np.frombuffer(bytearray().join(items), dtype=np.uint8), lens, next_key)


def _key_of(found: Records, record: int) -> bytes:
    at = int(found.lens[: 2 * record].sum())
    return found.data[at : at + int(found.lens[2 * record])].tobytes()


def records_until(cursor: Any, start: bytes, stop: bytes, records_max: int) -> tuple[list[bytes], bytes | None]:
    """The records of `Pages.records`, read by LMDB's cursor: its reference implementation, used where it gives up.

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
        kernels.BAD_CHECKSUM: "its checksum does not match",
        kernels.BAD_GRAMMAR: "its cells do not fill it",
        kernels.UNKNOWN_COLUMN: NO_SUCH_COLUMN,
        kernels.BAD_KEY: "its key is none of a row and a version",
    }
    return corrupt(key, what[status])
