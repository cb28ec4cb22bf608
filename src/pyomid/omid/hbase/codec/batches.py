"""Decodes scan blocks into cell batches with compiled kernels; `cells_of` is their reference implementation.

The buffer of a batch is the block as received from the socket: neither keys nor values are copied. If a block ends
inside a row, the cells of that row are decoded with the next block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, eq
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch, batch_of_rows
from pyomid.errors import Corruption
from pyomid.omid.hbase.codec.keyvalues import PUT, KeyValue
from pyomid.omid.hbase.codec.layout import (
    LEGACY_TOMBSTONE,
    SHADOW_PREFIX,
    is_shadow,
    is_tombstone,
    shadowed_qualifier,
    timestamp_of,
)
from pyomid.omid.hbase.codec.native import decode as kernels
from pyomid.types import Cell, Column, RowWrite

_LEGACY: Final = np.frombuffer(LEGACY_TOMBSTONE, dtype=np.uint8).copy()
_HEAD_BYTES: Final = 14
"""The number of bytes of a KeyValue in a block before its row."""
_LEAST_BYTES: Final = 24
"""The size of a KeyValue with empty row, family, qualifier and value."""


@dataclass(frozen=True, slots=True)
class ScanBlock:
    """The result of one scan call. `restarted`: the scan sends a row again from its beginning, part of which an earlier
    block held."""

    cells: memoryview
    results: int
    ends_inside_row: bool
    restarted: bool


class ScanNames(NamedTuple):
    """The names and columns of one scan."""

    name_bytes: NDArray[np.uint8]
    begin: NDArray[np.int64]
    """Name n is `name_bytes[begin[n] : begin[n + 1]]`: the family's length, the family and the qualifier."""
    slots: NDArray[np.int32]
    """A hash table of the names' numbers; -1 means a free slot."""
    names: NDArray[np.int64]
    """The fields of each name (`Name` in `native/decode.pyx`)."""
    column_names: NDArray[np.int32]
    """The number of each column's name."""
    known: NDArray[np.int64]
    """The number of known names, and that of known columns."""


class DecodedArrays(NamedTuple):
    """The arrays of a `CellBatch`, to be filled. The batch's buffer is the block."""

    row_off: NDArray[np.int64]
    row_len: NDArray[np.int32]
    row_rec: NDArray[np.int64]
    rec_version: NDArray[np.int64]
    rec_commit: NDArray[np.int64]
    rec_cell: NDArray[np.int64]
    cell_col: NDArray[np.int32]
    cell_off: NDArray[np.int64]
    cell_len: NDArray[np.int32]


class ColumnNumbers:
    """The names and columns of one scan, numbered in the order in which they arrive. Grows as needed; not thread-safe.

    Names include those of shadow cells. A name gets a column number too when its first data cell is seen.
    """

    def __init__(self, columns: int = 1024, name_bytes: int = 65_536) -> None:
        self.columns: list[Column] = []
        self._known = np.zeros(2, dtype=np.int64)
        self._arrays = self._of_size(columns, name_bytes)

    def _of_size(self, columns: int, name_bytes: int) -> ScanNames:
        return ScanNames(
            name_bytes=np.zeros(name_bytes, dtype=np.uint8),
            begin=np.zeros(columns + 1, dtype=np.int64),
            slots=np.full(_power_of_two(4 * columns), -1, dtype=np.int32),
            names=np.zeros((columns, kernels.NAME_FIELDS), dtype=np.int64),
            column_names=np.zeros(columns, dtype=np.int32),
            known=self._known,
        )

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays that a kernel takes."""
        return tuple(self._arrays)

    def refresh(self) -> list[Column]:
        """Return a new list of all columns, including those that a kernel has just added."""
        arrays = self._arrays
        for index in range(len(self.columns), int(self._known[1])):
            number = int(arrays.column_names[index])
            name = arrays.name_bytes[arrays.begin[number] : arrays.begin[number + 1]].tobytes()
            self.columns.append(Column(name[1 : 1 + name[0]], name[1 + name[0] :]))
        return list(self.columns)

    def grow(self) -> None:
        """Double the capacity. The numbers do not change."""
        old = self._arrays
        fresh = self._of_size(2 * len(old.names), 2 * len(old.name_bytes) + 65_536)
        for before, after in ((old.name_bytes, fresh.name_bytes), (old.begin, fresh.begin), (old.names, fresh.names)):
            after[: len(before)] = before
        fresh.column_names[: len(old.column_names)] = old.column_names
        kernels.fill_slots(tuple(fresh))
        self._arrays = fresh


class _Scratch:
    """Arrays that a decoder reuses. If it allocated new arrays of this size, their page faults would cost more than
    decoding."""

    def __init__(self) -> None:
        self._parts = np.empty((0, kernels.KEY_VALUE_FIELDS), dtype=np.int64)
        self._longs = np.empty((6, 0), dtype=np.int64)
        self._ints = np.empty((3, 0), dtype=np.int32)

    def parts(self, count: int) -> NDArray[Any]:
        if len(self._parts) < count:
            self._parts = np.empty((count + count // 4, kernels.KEY_VALUE_FIELDS), dtype=np.int64)
        return self._parts

    def batch(self, count: int) -> DecodedArrays:
        """Return arrays for `count` rows, records and cells."""
        if self._longs.shape[1] < count:
            size = count + count // 4
            self._longs, self._ints = np.empty((6, size), dtype=np.int64), np.empty((3, size), dtype=np.int32)
        row_off, row_rec, rec_version, rec_commit, rec_cell, cell_off = self._longs
        row_len, cell_col, cell_len = self._ints
        return DecodedArrays(row_off, row_len, row_rec, rec_version, rec_commit, rec_cell, cell_col, cell_off, cell_len)


class BatchDecoder:
    """Decodes the blocks of one scan into batches of whole rows."""

    def __init__(self) -> None:
        self._columns = ColumnNumbers()
        self._scratch = _Scratch()
        self._carry: list[bytes | memoryview] = []

    def decode(self, block: ScanBlock) -> tuple[CellBatch | None, bytes | None]:
        """Return a batch of whole rows, and the key of the last whole row. Both are None if the block completes no row;
        the batch is also None if the rows have no data cells."""
        if block.restarted:
            self._carry.clear()
        if block.ends_inside_row and block.results == 1:
            # Decode when the row ends. Otherwise a row of many blocks would be copied and indexed for each block.
            self._carry.append(block.cells)
            return None, None
        joined = bytearray().join((*self._carry, block.cells)) if self._carry else block.cells
        if not len(joined):
            return None, None
        whole = np.frombuffer(joined, dtype=np.uint8)
        self._carry.clear()
        cells = self._scratch.parts(max(1, len(whole) // _LEAST_BYTES))
        count = self._index(whole, cells)
        if count < 0:
            raise Corruption(f"a scan's cell block of {len(whole)} bytes is malformed at byte {-1 - count}")
        batch, taken = self._match(whole, cells, count, block.ends_inside_row)
        if taken < count:
            self._carry.append(whole[cells[taken, kernels.ROW_AT] - _HEAD_BYTES :].tobytes())
        if taken == 0:
            return None, None
        row_at, row_bytes = cells[taken - 1, kernels.ROW_AT], cells[taken - 1, kernels.ROW_BYTES]
        return batch, whole[row_at : row_at + row_bytes].tobytes()

    def _index(self, block: NDArray[np.uint8], cells: NDArray[Any]) -> int:
        while (count := kernels.index_cells(block, cells, self._columns.arrays())) == kernels.NAMES_FULL:
            self._columns.grow()
        return count

    def _match(
        self, block: NDArray[np.uint8], cells: NDArray[Any], count: int, ends_inside_row: bool
    ) -> tuple[CellBatch | None, int]:
        """Return the batch, and how many KeyValues belong to whole rows."""
        found = self._scratch.batch(count + 1)
        rows, records, cells_found, taken = kernels.match_cells(
            block, cells, count, ends_inside_row, _LEGACY, self._columns.arrays(), tuple(found)
        )
        if not rows:
            return None, taken
        batch = CellBatch(
            buffer=block,
            columns=self._columns.refresh(),
            row_off=found.row_off[:rows].copy(),
            row_len=found.row_len[:rows].copy(),
            row_rec=found.row_rec[: rows + 1].copy(),
            rec_version=found.rec_version[:records].copy(),
            rec_commit=found.rec_commit[:records].copy(),
            rec_cell=found.rec_cell[: records + 1].copy(),
            cell_col=found.cell_col[:cells_found].copy(),
            cell_off=found.cell_off[:cells_found].copy(),
            cell_len=found.cell_len[:cells_found].copy(),
        )
        return batch, taken


def batch_of_writes(writes: Sequence[RowWrite]) -> CellBatch | None:
    """Return a batch with one record for each row, for `put_batch`. Returns None if a row occurs twice, because the
    order of its writes matters."""
    ordered = sorted(writes, key=attrgetter("row"))
    keys = [write.row for write in ordered]
    if any(map(eq, keys, islice(keys, 1, None))):
        return None
    return batch_of_rows({write.row: dict(write.cells) for write in ordered})


def cells_of(key_values: Iterable[KeyValue]) -> list[Cell]:
    """Return the cells of one row, each with the timestamp of its shadow cell. This is the reference implementation of
    the kernel.

    If a cell has shadow cells of both forms, the shadow cell with the prefix counts.
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
