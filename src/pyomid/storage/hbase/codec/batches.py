"""Scan blocks to cell batches and back, vectorized, with the reference implementation of the decoder.

A batch's buffer is the block as it came from the socket: neither keys nor values are copied. A block that ends
inside a row leaves that row's cells to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter, eq
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch, batch_of_rows
from pyomid.errors import Corruption
from pyomid.storage.hbase.codec.keyvalues import PUT, KeyValue
from pyomid.storage.hbase.codec.layout import (
    LEGACY_TOMBSTONE,
    SHADOW_PREFIX,
    is_shadow,
    is_tombstone,
    shadowed_qualifier,
    timestamp_of,
)
from pyomid.storage.hbase.codec.native_decode import (
    KV_FIELDS,
    KV_ROW_AT,
    KV_ROW_LEN,
    NAME_FIELDS,
    NAME_PAD,
    NAMES_FULL,
    fill_slots,
    index_cells,
    match_cells,
)
from pyomid.storage.hbase.regions.operations import ScanBlock
from pyomid.types import Cell, Column, RowWrite

_LEGACY: Final = np.frombuffer(LEGACY_TOMBSTONE, dtype=np.uint8).copy()
_HEAD_BYTES: Final = 14
"""Bytes of a KeyValue in a block before its row."""
_LEAST_BYTES: Final = 24
"""Bytes of a KeyValue with empty row, family, qualifier and value."""


class ColumnNumbers:
    """The names and columns of one scan, numbered in the order in which they came. It grows as needed; for one thread.

    Names include those of shadow cells; a name also has a column number once a data cell of it was seen.
    """

    def __init__(self, columns: int = 1024, name_bytes: int = 65_536) -> None:
        self.columns: list[Column] = []
        self.name_bytes = np.zeros(NAME_PAD + name_bytes, dtype=np.uint8)
        self.begin = np.full(columns + 1, NAME_PAD, dtype=np.int64)
        self.slots = np.full(_power_of_two(4 * columns), -1, dtype=np.int32)
        self.names = np.zeros((columns, NAME_FIELDS), dtype=np.int32)
        self.runs = np.zeros((columns, 3), dtype=np.int64)
        self.column_names = np.zeros(columns, dtype=np.int32)
        self.counts = np.zeros(2, dtype=np.int64)
        """The capacity for names, and for columns."""

    def refresh(self) -> list[Column]:
        """A new list of all columns, with those that a kernel has just added."""
        for index in range(len(self.columns), int(self.counts[1])):
            number = int(self.column_names[index])
            name = self.name_bytes[self.begin[number] : self.begin[number + 1]].tobytes()
            self.columns.append(Column(name[1 : 1 + name[0]], name[1 + name[0] :]))
        return list(self.columns)

    def grow(self) -> None:
        """Doubles the capacity; all numbers stay."""
        count = int(self.counts[0])
        used = int(self.begin[count])
        fresh = ColumnNumbers(2 * len(self.names), 2 * len(self.name_bytes) + 65_536)
        fresh.name_bytes[:used] = self.name_bytes[:used]
        fresh.begin[: count + 1] = self.begin[: count + 1]
        fresh.names[:count] = self.names[:count]
        fresh.column_names[: len(self.column_names)] = self.column_names
        fill_slots(fresh.name_bytes, fresh.begin, fresh.slots, count)
        self.name_bytes, self.begin, self.slots = fresh.name_bytes, fresh.begin, fresh.slots
        self.names, self.runs, self.column_names = fresh.names, fresh.runs, fresh.column_names


class _Scratch:
    """Arrays that a decoder uses again: the page faults of new ones of this size would cost more than the decoding."""

    def __init__(self) -> None:
        self._fields = np.empty((0, KV_FIELDS), dtype=np.int64)
        self._longs = np.empty((6, 0), dtype=np.int64)
        self._ints = np.empty((3, 0), dtype=np.int32)

    def fields(self, count: int) -> NDArray[np.int64]:
        if len(self._fields) < count:
            self._fields = np.empty((count + count // 4, KV_FIELDS), dtype=np.int64)
        return self._fields

    def columns(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        if self._longs.shape[1] < count:
            size = count + count // 4
            self._longs, self._ints = np.empty((6, size), dtype=np.int64), np.empty((3, size), dtype=np.int32)
        return self._longs, self._ints


class BatchDecoder:
    """Blocks of one scan in, batches of whole rows out."""

    def __init__(self) -> None:
        self._columns = ColumnNumbers()
        self._scratch = _Scratch()
        self._carry: list[bytes | memoryview] = []

    def decode(self, block: ScanBlock) -> tuple[CellBatch | None, bytes | None]:
        """A batch (None: no whole row with a cell) and the last whole row's key (None: no whole row)."""
        if block.restarted:
            self._carry.clear()
        if block.ends_inside_row and block.results == 1:
            # Decoded when the row ends: a row of many blocks would be copied and indexed with each of them.
            self._carry.append(block.cells)
            return None, None
        joined = bytearray().join((*self._carry, block.cells)) if self._carry else block.cells
        if not len(joined):
            return None, None
        whole = np.frombuffer(joined, dtype=np.uint8)
        self._carry.clear()
        cells = self._scratch.fields(max(1, len(whole) // _LEAST_BYTES))
        count = self._index(whole, cells)
        if count < 0:
            raise Corruption(f"a scan's cell block of {len(whole)} bytes is broken at byte {-1 - count}")
        batch, settled = self._match(whole, cells, count, block.ends_inside_row)
        if settled < count:
            self._carry.append(whole[cells[settled, KV_ROW_AT] - _HEAD_BYTES :].tobytes())
        if settled == 0:
            return None, None
        row_at, row_bytes = cells[settled - 1, KV_ROW_AT], cells[settled - 1, KV_ROW_LEN]
        return batch, whole[row_at : row_at + row_bytes].tobytes()

    def _index(self, block: NDArray[np.uint8], cells: NDArray[np.int64]) -> int:
        names = self._columns
        while True:
            count = index_cells(block, cells, names.name_bytes, names.begin, names.slots, names.names, names.counts)
            if count != NAMES_FULL:
                return count
            names.grow()

    def _match(
        self, block: NDArray[np.uint8], cells: NDArray[np.int64], count: int, ends_inside_row: bool
    ) -> tuple[CellBatch | None, int]:
        longs, ints = self._scratch.columns(count + 1)
        row_off, row_rec, rec_version, rec_commit, rec_cell, cell_off = longs
        row_len, cell_col, cell_len = ints
        result = np.zeros(4, dtype=np.int64)
        names = self._columns
        match_cells(
            block, cells, count, int(ends_inside_row), _LEGACY,
            names.names, names.runs, names.column_names, names.counts,
            row_off, row_len, row_rec, rec_version, rec_commit, rec_cell, cell_col, cell_off, cell_len, result,
        )  # fmt: skip
        rows, records, found, settled = (int(number) for number in result)
        if not rows:
            return None, settled
        batch = CellBatch(
            buffer=block,
            columns=names.refresh(),
            row_off=row_off[:rows].copy(),
            row_len=row_len[:rows].copy(),
            row_rec=row_rec[: rows + 1].copy(),
            rec_version=rec_version[:records].copy(),
            rec_commit=rec_commit[:records].copy(),
            rec_cell=rec_cell[: records + 1].copy(),
            cell_col=cell_col[:found].copy(),
            cell_off=cell_off[:found].copy(),
            cell_len=cell_len[:found].copy(),
        )
        return batch, settled


def batch_of_writes(writes: Sequence[RowWrite]) -> CellBatch | None:
    """One record for each row, for `put_batch_steps`. None if a row comes twice: the order of the two then counts."""
    ordered = sorted(writes, key=attrgetter("row"))
    keys = [write.row for write in ordered]
    if any(map(eq, keys, islice(keys, 1, None))):
        return None
    return batch_of_rows({write.row: dict(write.cells) for write in ordered})


def cells_of(key_values: Iterable[KeyValue]) -> list[Cell]:
    """The cells of one row, each with the timestamp of its shadow cell: reference implementation of the kernel.

    If there are shadow cells of both forms, the one with the prefix counts.
    """
    commits: dict[tuple[bytes, bytes, int], int] = {}
    cells: list[KeyValue] = []
    for each in key_values:
        if is_shadow(each.qualifier):
            name = each.family, shadowed_qualifier(each.qualifier), each.timestamp
            if len(each.value) == 8 and (name not in commits or each.qualifier.startswith(SHADOW_PREFIX)):
                commits[name] = timestamp_of(each.value)
        elif each.kind == PUT:
            cells.append(each)
    return [
        Cell(
            each.row,
            each.family,
            each.qualifier,
            each.timestamp,
            None if is_tombstone(each.value) else each.value,
            commits.get((each.family, each.qualifier, each.timestamp), 0),
        )
        for each in cells
    ]


def _power_of_two(least: int) -> int:
    return 1 << max(4, (least - 1).bit_length())
