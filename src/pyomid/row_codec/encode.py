"""Arrow record batches → cell batches, by columns: no cell becomes a Python object.

row key     encoded part by part into one array of bytes; rows ordered by it
columns     each fills one line of a grid (columns by rows) with offset and length of its values;
            fixed-width values lie as one block, texts stay where Arrow has them
packing     one pass turns the grid into a record a row, without gaps, with the sentinel where it is needed
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE, CellBatch
from pyomid.errors import Corruption, Misuse
from pyomid.row_codec.arrow_arrays import fixed_values
from pyomid.row_codec.column_types import ColumnType, Layout, column_type
from pyomid.row_codec.fixed_width import ordered_block, text_parts, unscaled_block, validity, value_block
from pyomid.row_codec.native.columns import ABSENT, pack_cells, zero_texts
from pyomid.row_codec.native.decimals import put_decimals
from pyomid.row_codec.native.row_keys import (
    UNSORTED,
    WITH_EQUALS,
    escaped_lengths,
    key_order,
    last_of_equals,
    put_blocks,
    put_escaped,
)
from pyomid.row_codec.nested import to_json
from pyomid.row_codec.row_key import KeyLayout, KeyPart, key_layout
from pyomid.row_codec.sentinel import SENTINEL_VALUE, sentinel_column
from pyomid.types import Column, TableSchema

Lengths = NDArray[np.int64]


class Duplicates(StrEnum):
    """What two rows with one key in one write are: a mistake, or a later and an earlier state. LAST is as if they were
    written one after the other, wherever the borders of batches lie: a null that is to keep what was there keeps the
    earlier row's value. MERGE: a mistake too, of a merge whose source tells one row of the table twice what to be."""

    ERROR = "error"
    LAST = "last"
    MERGE = "merge"


class Nulls(StrEnum):
    """What a null does to what was stored: remove it, so that a write replaces the row, or keep it."""

    TOMBSTONE = "tombstone"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class RowOrder:
    """`rows`: the last row of each key, by ascending key. Where a key is there twice, `all_rows` are the rows of all
    keys, of equal ones the earlier before the later, and `ends` the place in them of each key's last."""

    rows: NDArray[np.int64]
    all_rows: NDArray[np.int64] | None = None
    ends: NDArray[np.int64] | None = None

    def last_valid(self, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Of each key the last row with a value, by ascending key; its last row where none has one."""
        if self.all_rows is None or self.ends is None:
            return self.rows
        places = np.where(valid[self.all_rows], np.arange(len(self.all_rows)), -1)
        latest = np.maximum.reduceat(places, np.concatenate([[0], self.ends[:-1] + 1]))
        chosen: NDArray[np.int64] = self.all_rows[np.where(latest < 0, self.ends, latest)]
        return chosen


@dataclass(frozen=True, slots=True)
class EncodedKeys:
    """The keys of a record batch, in its order: `data[offsets[i] : offsets[i + 1]]`."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def key(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def ascending(self, duplicates: Duplicates, layout: KeyLayout) -> RowOrder:
        """Row numbers by ascending key, each key once; Misuse names a key that is there twice."""
        order, found = self._ordered()
        if found == WITH_EQUALS:
            last = np.empty(len(order), dtype=np.bool_)
            last_of_equals.for_rows(len(order))(self.data, self.offsets, order, last)
            if duplicates is not Duplicates.LAST:
                raise duplicate_key(self.key(int(order[np.argmin(last)])), layout, duplicates)
            return RowOrder(order[last], order, np.flatnonzero(last))
        return RowOrder(order)

    def order(self) -> NDArray[np.int64]:
        """Row numbers by ascending key, of equal keys the later row after the earlier."""
        return self._ordered()[0]

    def _ordered(self) -> tuple[NDArray[np.int64], int]:
        """The order, and what `key_order` says of it."""
        order = np.arange(len(self.offsets) - 1, dtype=np.int64)
        look = key_order.for_rows(len(order))
        found = look(self.data, self.offsets, order)
        if found != UNSORTED:
            return order, found
        keys = pa.Array.from_buffers(
            pa.large_binary(), len(order), [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        )
        order = fixed_values(pc.array_sort_indices(keys), np.dtype(np.uint64)).astype(np.int64)  # stable
        return order, look(self.data, self.offsets, order)


def duplicate_key(key: bytes, layout: KeyLayout, duplicates: Duplicates = Duplicates.ERROR) -> Misuse:
    """The error for two rows with one key."""
    shown = shown_key(key, layout)
    if duplicates is Duplicates.MERGE:
        return Misuse(
            f"the merge is ambiguous: several rows of the source change or insert the row {shown}; leave one of them "
            "for each row of the table",
            row=key,
        )
    return Misuse(
        f"two rows have the row key {shown}; a write takes each key once: leave one of them out, or on "
        "Spark let the last of each count by the option duplicates=last",
        row=key,
    )


def shown_key(key: bytes, layout: KeyLayout) -> str:
    """A row key as a person reads it."""
    try:
        values = dict(zip(layout.names, layout.decode(key), strict=True))
    except (Corruption, OverflowError, ValueError):
        # Python's calendar ends with the year 9999, Spark's does not.
        return f"({', '.join(layout.names)}) = 0x{key.hex()}"
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return shown + (" (0.0 and -0.0 are one key)" if any(type(v) is float and v == 0 for v in values.values()) else "")


class RowEncoder:
    """Encodes the record batches of one write into one table. Not for several threads."""

    def __init__(
        self,
        schema: TableSchema,
        families: tuple[bytes, ...],
        *,
        written: tuple[str, ...] | None = None,
        duplicates: Duplicates = Duplicates.ERROR,
        nulls: Nulls = Nulls.TOMBSTONE,
        with_existence: bool = False,
    ) -> None:
        """`written`: the table's columns that the batches have; the others stay as they are in the store.
        `with_existence`: the sentinel's cell is written in every row, as a tombstone where the row has a value."""
        names = {column.name for column in schema.columns} if written is None else set(written)
        self.layout = key_layout(schema)
        self._values = [
            (column.name, column_type(column.spark_type, column.name), column.column)
            for column in schema.columns
            if column.column is not None and column.name in names
        ]
        self.columns = [column for _, _, column in self._values] + [sentinel_column(schema, families)]
        self._with_existence = with_existence
        self._duplicates = duplicates
        self._null_length = TOMBSTONE if nulls is Nulls.TOMBSTONE else ABSENT

    def encode(self, batch: pa.RecordBatch) -> CellBatch:
        """Rows by ascending key, each once, a record a row; versions are 0. Columns are found by name."""
        keys = self.encode_keys(batch)
        found = keys.ascending(self._duplicates, self.layout)
        order = found.rows
        grid = _Grid(keys.data, len(self._values) + self._with_existence, len(order))
        for index, (name, kind, _) in enumerate(self._values):
            column = batch.column(name)
            valid = validity(column)
            chosen = order if valid is None or self._null_length == TOMBSTONE else found.last_valid(valid)
            _FILLERS[kind.layout](grid, index, column, kind, chosen)
            if valid is not None:
                grid.lengths[index][~valid[chosen]] = self._null_length
        if self._with_existence:
            _fill_existence(grid, len(self._values))
        return grid.pack(self.columns, keys.offsets[order], (keys.offsets[1:] - keys.offsets[:-1])[order])

    def encode_keys(self, batch: pa.RecordBatch) -> EncodedKeys:
        """The row keys, in the batch's order; Misuse where one is null or empty."""
        rows = batch.num_rows
        parts = [(part, batch.column(part.name)) for part in self.layout.parts]
        lengths = np.zeros(rows, dtype=np.int64)
        for part, column in parts:
            _refuse_null(part, column)
            _add_part_length(part, column, lengths)
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if rows and lengths.min() == 0:
            raise Misuse(f"row key ({', '.join(self.layout.names)}) is empty in one row: a row key has bytes")
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        places = offsets[:-1].copy()
        for part, column in parts:
            _put_part(part, column, data, places)
        return EncodedKeys(data, offsets)


def _refuse_null(part: KeyPart, column: pa.Array) -> None:
    if column.null_count:
        raise Misuse(
            f"row key column {part.name!r} is null in {column.null_count} rows of a batch: "
            "a row key has no place for null",
            column=part.name,
        )


def _add_part_length(part: KeyPart, column: pa.Array, lengths: Lengths) -> None:
    if not part.type.is_text:
        lengths += part.type.key_width
        return
    data, offsets = text_parts(column)
    if part.is_raw:
        lengths += offsets[1:] - offsets[:-1]
    else:
        escaped_lengths.for_rows(len(lengths))(data, offsets, lengths)


def _put_part(part: KeyPart, column: pa.Array, out: NDArray[np.uint8], places: NDArray[np.int64]) -> None:
    if not part.type.is_text:
        put_blocks.for_rows(len(places))(out, places, ordered_block(column, part.type, descending=part.descending))
        return
    data, offsets = text_parts(column)
    inversion = 0xFF if part.descending else 0x00
    put_escaped.for_rows(len(places))(out, places, data, offsets, inversion, part.is_raw)


class _Grid:
    """Offset and length of every value, columns by rows, over a buffer that grows by whole columns."""

    def __init__(self, keys: NDArray[np.uint8], columns: int, rows: int) -> None:
        self._partitions = [keys]
        self._size = len(keys)
        self.offsets = np.zeros((columns, rows), dtype=np.int64)
        self.lengths = np.empty((columns, rows), dtype=np.int32)

    def append(self, data: NDArray[np.uint8]) -> int:
        """Where in the buffer these bytes come to lie."""
        begin = self._size
        self._partitions.append(data)
        self._size += len(data)
        return begin

    def pack(self, columns: list[Column], row_off: Lengths, row_len: Lengths) -> CellBatch:
        width, rows = self.offsets.shape
        room = rows * (width + 1)
        rec_cell = np.empty(rows + 1, dtype=np.int64)
        cell_col, cell_len = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32)
        cell_off = np.empty(room, dtype=np.int64)
        sentinel = self.append(np.frombuffer(SENTINEL_VALUE, dtype=np.uint8))
        count = pack_cells.for_rows(rows)(
            self.offsets, self.lengths, sentinel, len(SENTINEL_VALUE), rec_cell, cell_col, cell_off, cell_len
        )
        return CellBatch(
            buffer=np.concatenate(self._partitions),
            columns=columns,
            row_off=np.ascontiguousarray(row_off),
            row_len=row_len.astype(np.int32),
            row_rec=np.arange(rows + 1, dtype=np.int64),
            rec_version=np.zeros(rows, dtype=np.int64),
            rec_commit=np.zeros(rows, dtype=np.int64),
            rec_cell=rec_cell,
            cell_col=cell_col[:count],
            cell_off=cell_off[:count],
            cell_len=cell_len[:count],
        )


def _fill_existence(grid: _Grid, index: int) -> None:
    has_value = (grid.lengths[:index] > TOMBSTONE).any(axis=0)
    grid.offsets[index] = grid.append(np.frombuffer(SENTINEL_VALUE, dtype=np.uint8))
    grid.lengths[index] = np.where(has_value, TOMBSTONE, len(SENTINEL_VALUE))


def _fill_fixed(grid: _Grid, index: int, column: pa.Array, kind: ColumnType, order: Lengths) -> None:
    begin = grid.append(value_block(column, kind).reshape(-1))
    np.multiply(order, kind.width, out=grid.offsets[index])
    grid.offsets[index] += begin
    grid.lengths[index] = kind.width


def _fill_decimal(grid: _Grid, index: int, column: pa.Array, kind: ColumnType, order: Lengths) -> None:
    rows = len(column)
    out, offsets, lengths = np.empty(rows * 20, np.uint8), np.empty(rows, np.int64), np.empty(rows, np.int32)
    written = put_decimals.for_rows(rows)(unscaled_block(column), kind.scale, out, offsets, lengths)
    grid.offsets[index] = offsets[order] + grid.append(out[:written])
    grid.lengths[index] = lengths[order]


def _fill_text(grid: _Grid, index: int, column: pa.Array, kind: ColumnType, order: Lengths) -> None:
    data, offsets = text_parts(column)
    first = int(offsets[0])
    used = data[first : int(offsets[-1])]
    grid.offsets[index] = offsets[order] + (grid.append(used) - first)
    grid.lengths[index] = (offsets[1:] - offsets[:-1])[order]
    zero = np.empty(len(column), dtype=np.bool_)
    longest = zero_texts.for_rows(len(column))(data, offsets, zero)
    if longest >= 0:
        zero = zero[order]
        grid.offsets[index][zero] = grid.append(np.zeros(longest + 1, dtype=np.uint8))
        grid.lengths[index][zero] += 1


def _fill_json(grid: _Grid, index: int, column: pa.Array, kind: ColumnType, order: Lengths) -> None:
    try:
        rows = column.to_pylist()
    except (OverflowError, ValueError) as error:  # Python's calendar: it has fewer years than Spark's
        raise Misuse(
            f"a date or timestamp inside a value of type {kind.name} lies outside of the years 1 to 9999 ({error}): "
            "inside arrays, maps and structs no other one can be stored; in a column of its own it can",
            type=kind.name,
        ) from error
    values = [b"" if value is None else to_json(value, kind.name) for value in rows]
    offsets = np.cumsum([0] + [len(value) for value in values], dtype=np.int64)
    grid.offsets[index] = offsets[order] + grid.append(np.frombuffer(b"".join(values), dtype=np.uint8))
    grid.lengths[index] = (offsets[1:] - offsets[:-1])[order]


_FILLERS: Final = {
    Layout.BOOLEAN: _fill_fixed,
    Layout.INTEGER: _fill_fixed,
    Layout.FLOAT: _fill_fixed,
    Layout.DECIMAL: _fill_decimal,
    Layout.STRING: _fill_text,
    Layout.BINARY: _fill_text,
    Layout.JSON: _fill_json,
}
