"""Scans: the records of a range, many at a time, decoded into batches of complete rows.

The compiled walk over LMDB's pages finds the records (`pages`); if it gives up, LMDB's cursor does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.storage.embedded.environment import Environment, Transaction
from pyomid.storage.embedded.layout import CELLS
from pyomid.storage.embedded.native import records as kernels
from pyomid.storage.embedded.pages import Pages, Records
from pyomid.storage.embedded.records import (
    NO_SUCH_COLUMN,
    VERSION_BYTES,
    corrupt,
    key_row,
    range_bounds,
)
from pyomid.storage.embedded.tables import Table, Tables
from pyomid.types import Column, KeyRange, ReadBounds

_BATCH_BYTES_MAX: Final = 256 << 20
"""A batch ends after the row that exceeds this size."""
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
        """Return complete rows from `resume` on, with about `records_max` records."""
        current = self._tables.asked_for(transaction, table, columns)
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
        """Return the row of the range's `records`-th record from its end, found with LMDB's cursor; the range's start
        if there are fewer."""
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
            *arrays, status, bad_record = kernels.decode_records(found.data, found.lens, column_of)
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


def joined(items: list[bytes], next_key: bytes | None) -> Records:
    lens = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
    return Records(np.frombuffer(bytearray().join(items), dtype=np.uint8), lens, next_key)


def _key_of(found: Records, record: int) -> bytes:
    at = int(found.lens[: 2 * record].sum())
    return found.data[at : at + int(found.lens[2 * record])].tobytes()


def records_until(cursor: Any, start: bytes, stop: bytes, records_max: int) -> tuple[list[bytes], bytes | None]:
    """Return the records of `Pages.records`, read with LMDB's cursor: the reference implementation, used when the walk
    gives up.

    Fetches in growing steps, so that a short range is not read too far, and a long one not record by record.
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
        kernels.BAD_GRAMMAR: "its cells are malformed",
        kernels.UNKNOWN_COLUMN: NO_SUCH_COLUMN,
        kernels.BAD_KEY: "its key is not a row and a version",
    }
    return corrupt(key, what[status])
