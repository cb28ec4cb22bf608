"""Encoding of Arrow record batches as cell batches, column by column, without a Python object for any cell.

row key     is encoded part by part into one byte array; rows are sorted by it
columns     each fill one line of a grid (columns by rows) with the offsets and lengths of their values;
            fixed-width values form one block; strings stay in Arrow's buffers
packing     turns the grid in one pass into one record per row, without gaps; rows without values get the sentinel
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
from pyomid.errors import Misuse
from pyomid.rows.arrow_arrays import fixed_values, ordered_block, text_parts, unscaled_block, validity, value_block
from pyomid.rows.column_types import ColumnType, Layout, column_type
from pyomid.rows.native import columns as column_kernels
from pyomid.rows.native import row_keys as key_kernels
from pyomid.rows.nested import to_json
from pyomid.rows.row_key import KeyLayout, KeyPart, key_layout, shown_key
from pyomid.rows.schema import SENTINEL_VALUE, sentinel_column
from pyomid.types import Column, TableSchema

Lengths = NDArray[np.int64]


class Duplicates(StrEnum):
    """The treatment of two rows with the same key in one write. ERROR refuses them. LAST treats them as if they were
    written one after the other, even in different batches; with `Nulls.KEEP`, a null keeps the earlier row's value.
    MERGE refuses them as an ambiguous merge."""

    ERROR = "error"
    LAST = "last"
    MERGE = "merge"


class Nulls(StrEnum):
    """The effect of a null on the stored value. TOMBSTONE removes the value, so that a write replaces the row; KEEP
    keeps it."""

    TOMBSTONE = "tombstone"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Row numbers by ascending key. `rows` has the last row of each key. If keys repeat, `all_rows` has all rows, with
    rows of equal keys in their order, and `ends` has the position in it of each key's last row."""

    rows: NDArray[np.int64]
    all_rows: NDArray[np.int64] | None = None
    ends: NDArray[np.int64] | None = None

    def last_valid(self, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return, by ascending key, each key's last row that has a value; if no row of the key has a value, its last
        row."""
        if self.all_rows is None or self.ends is None:
            return self.rows
        places = np.where(valid[self.all_rows], np.arange(len(self.all_rows)), -1)
        latest = np.maximum.reduceat(places, np.concatenate([[0], self.ends[:-1] + 1]))
        chosen: NDArray[np.int64] = self.all_rows[np.where(latest < 0, self.ends, latest)]
        return chosen


@dataclass(frozen=True, slots=True)
class EncodedKeys:
    """The keys of a record batch, in its order: key i is `data[offsets[i] : offsets[i + 1]]`."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def key(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def ascending(self, duplicates: Duplicates, layout: KeyLayout) -> RowOrder:
        """Return row numbers by ascending key, each key once. `Misuse` names a key that occurs twice, if that is
        refused."""
        order, found = self._ordered()
        if found == key_kernels.WITH_EQUALS:
            last = np.empty(len(order), dtype=np.bool_)
            key_kernels.last_of_equals(self.data, self.offsets, order, last)
            if duplicates is not Duplicates.LAST:
                raise duplicate_key(self.key(int(order[np.argmin(last)])), layout, duplicates)
            return RowOrder(order[last], order, np.flatnonzero(last))
        return RowOrder(order)

    def order(self) -> NDArray[np.int64]:
        """Return row numbers by ascending key; rows with equal keys keep their order."""
        return self._ordered()[0]

    def _ordered(self) -> tuple[NDArray[np.int64], int]:
        """Return the order, and the result of `key_order` for it."""
        order = np.arange(len(self.offsets) - 1, dtype=np.int64)
        found = key_kernels.key_order(self.data, self.offsets, order)
        if found != key_kernels.UNSORTED:
            return order, found
        keys = pa.Array.from_buffers(
            pa.large_binary(), len(order), [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        )
        order = fixed_values(pc.array_sort_indices(keys), np.dtype(np.uint64)).astype(np.int64)  # stable
        return order, key_kernels.key_order(self.data, self.offsets, order)


def duplicate_key(key: bytes, layout: KeyLayout, duplicates: Duplicates = Duplicates.ERROR) -> Misuse:
    """Return the error for two rows with the same key."""
    shown = shown_key(key, layout)
    if duplicates is Duplicates.MERGE:
        return Misuse(
            f"the merge is ambiguous: several rows of the source change or insert the row {shown}; keep at most one "
            "source row for each row of the table",
            row=key,
        )
    return Misuse(
        f"two rows have the row key {shown}, but a write accepts each row key only once; omit one of the rows. In "
        'Spark, duplicates="last" keeps the last row (in df.write: option duplicates=last)',
        row=key,
    )


class RowEncoder:
    """Encodes the record batches of one write to one table. It is not thread-safe."""

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
        """`written` are the table's columns that the batches have; other columns keep their stored values. With
        `with_existence`, every row gets the sentinel, as a tombstone if the row has a value."""
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
        self._null_length = TOMBSTONE if nulls is Nulls.TOMBSTONE else column_kernels.ABSENT

    def encode(self, batch: pa.RecordBatch) -> CellBatch:
        """Return a cell batch of the rows by ascending key, each key once, with one record per row and version 0.
        Columns are matched by name."""
        keys = self.encode_keys(batch)
        found = keys.ascending(self._duplicates, self.layout)
        order = found.rows
        grid = _Grid(keys.data, len(self._values) + self._with_existence, len(order))
        for index, (name, kind, _) in enumerate(self._values):
            column = batch.column(name)
            valid = validity(column)
            chosen = order if valid is None or self._null_length == TOMBSTONE else found.last_valid(valid)
            if kind.layout is Layout.STRING:
                _check_utf8(name, column)
            if kind.layout is Layout.JSON:
                _fill_json(grid, index, column, kind, chosen, name)
            else:
                _FILLERS[kind.layout](grid, index, column, kind, chosen)
            if valid is not None:
                grid.lengths[index][~valid[chosen]] = self._null_length
        if self._with_existence:
            _fill_existence(grid, len(self._values))
        return grid.pack(self.columns, keys.offsets[order], (keys.offsets[1:] - keys.offsets[:-1])[order])

    def encode_keys(self, batch: pa.RecordBatch) -> EncodedKeys:
        """Return the row keys, in the batch's order. Raise `Misuse` if a key is null or empty."""
        rows = batch.num_rows
        parts = [(part, batch.column(part.name)) for part in self.layout.parts]
        lengths = np.zeros(rows, dtype=np.int64)
        for part, column in parts:
            _refuse_null(part, column)
            if part.type.layout is Layout.STRING:
                _check_utf8(part.name, column)
            _add_part_length(part, column, lengths)
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if rows and lengths.min() == 0:
            raise Misuse(
                f"row key ({', '.join(self.layout.names)}) is empty in a row; a row key needs at least one byte"
            )
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        places = offsets[:-1].copy()
        for part, column in parts:
            _put_part(part, column, data, places)
        return EncodedKeys(data, offsets)


def _check_utf8(name: str, column: pa.Array) -> None:
    """Refuse strings that are not UTF-8. Spark's strings may hold any bytes, for example those of a cast binary."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Misuse(
            f"column {name!r}: a string is not UTF-8 ({error}); repair the string, or store it in a binary column",
            column=name,
        ) from error


def _refuse_null(part: KeyPart, column: pa.Array) -> None:
    if column.null_count:
        raise Misuse(
            f"row key column {part.name!r} is null in {column.null_count} rows of a batch: a row key cannot hold null",
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
        key_kernels.escaped_lengths(data, offsets, lengths)


def _put_part(part: KeyPart, column: pa.Array, out: NDArray[np.uint8], places: NDArray[np.int64]) -> None:
    if not part.type.is_text:
        key_kernels.put_blocks(out, places, ordered_block(column, part.type, descending=part.descending))
        return
    data, offsets = text_parts(column)
    inversion = 0xFF if part.descending else 0x00
    key_kernels.put_escaped(out, places, data, offsets, inversion, part.is_raw)


class _Grid:
    """The offset and length of every value (columns by rows) in a buffer that grows by whole columns."""

    def __init__(self, keys: NDArray[np.uint8], columns: int, rows: int) -> None:
        self._partitions = [keys]
        self._size = len(keys)
        self.offsets = np.zeros((columns, rows), dtype=np.int64)
        self.lengths = np.empty((columns, rows), dtype=np.int32)

    def append(self, data: NDArray[np.uint8]) -> int:
        """Append bytes to the buffer; return their offset."""
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
        count = column_kernels.pack_cells(
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
    written = column_kernels.put_decimals(unscaled_block(column), kind.scale, out, offsets, lengths)
    grid.offsets[index] = offsets[order] + grid.append(out[:written])
    grid.lengths[index] = lengths[order]


def _fill_text(grid: _Grid, index: int, column: pa.Array, kind: ColumnType, order: Lengths) -> None:
    data, offsets = text_parts(column)
    first = int(offsets[0])
    used = data[first : int(offsets[-1])]
    grid.offsets[index] = offsets[order] + (grid.append(used) - first)
    grid.lengths[index] = (offsets[1:] - offsets[:-1])[order]
    zero = np.empty(len(column), dtype=np.bool_)
    longest = column_kernels.zero_texts(data, offsets, zero)
    if longest >= 0:
        zero = zero[order]
        grid.offsets[index][zero] = grid.append(np.zeros(longest + 1, dtype=np.uint8))
        grid.lengths[index][zero] += 1


def _fill_json(grid: _Grid, index: int, column: pa.Array, kind: ColumnType, order: Lengths, name: str) -> None:
    try:
        rows = column.to_pylist()
    except UnicodeDecodeError as error:
        raise Misuse(
            f"column {name!r}: a string inside a nested value is not UTF-8: {error.object!r}",
            column=name,
            type=kind.name,
        ) from error
    except (OverflowError, ValueError) as error:  # Python's calendar has fewer years than Spark's
        raise Misuse(
            f"column {name!r}: a date or timestamp inside a nested value is outside the years 1 to 9999 ({error}), the "
            "range of arrays, maps and structs; store it in a separate column",
            column=name,
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
}
