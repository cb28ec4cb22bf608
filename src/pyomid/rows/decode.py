"""Decoding of a batch's visible cells to Arrow, column by column; key columns are decoded from the row key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.errors import Corruption, Misuse
from pyomid.protocol.visibility import VisibleCells
from pyomid.rows.arrow_arrays import fixed_array, from_ordered, number_type, text_array
from pyomid.rows.column_types import ColumnType, Layout, column_type
from pyomid.rows.native import columns as column_kernels
from pyomid.rows.native import row_keys as key_kernels
from pyomid.rows.nested import from_json
from pyomid.rows.row_key import KeyPart, key_layout, shown_key, way_out
from pyomid.types import TableSchema

_SHOWN_MAX: Final = 80
_ARROW_TEXT_BYTES_MAX: Final = 2**31 - 1
"""Maximum number of bytes in one Arrow string column with 32-bit offsets; Spark's batches use such columns."""


class RowDecoder:
    """Decodes one table's batches to record batches of one Arrow schema. It is not thread-safe."""

    def __init__(self, table: str, schema: TableSchema, wanted: Sequence[str], arrow: pa.Schema | None = None) -> None:
        """`table` is the table's name, for errors. `wanted` are the columns, in the order of the result. `arrow` is the
        result's schema; None means that it is derived from `schema`."""
        self._table = table
        known = {column.name: column for column in schema.columns}
        self.schema = arrow if arrow is not None else arrow_schema(schema, wanted)
        self._layout = key_layout(schema)
        self._key_names = frozenset(self._layout.names) & set(wanted)
        values = [known[name] for name in wanted if name not in self._layout.names]
        self._values = [
            (column.name, column_type(column.spark_type, column.name), self.schema.field(column.name).type)
            for column in values
        ]
        self._place = {column.column: place for place, column in enumerate(values)}
        self.columns = self._place.keys()
        """The columns whose cells are decoded."""
        self._earlier = [tuple(column_type(each) for each in column.earlier_types) for column in values]
        self._widths = np.array(
            [
                0 if earlier else _fixed_width(kind)
                for (_, kind, _), earlier in zip(self._values, self._earlier, strict=True)
            ],
            dtype=np.int64,
        )

    def decode(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch:
        """Return a record batch with a row for each row of the batch that exists for the reader, in key order."""
        rows = visible.rows_present()
        try:
            columns = self._decode_keys(batch, rows) if self._key_names else {}
            if self._values:
                columns |= self._decode_values(batch, visible, rows)
        except Corruption as error:
            if (key := error.values.get("row")) is None:
                raise
            where = f"table {self._table!r}, row {shown_key(key, self._layout)}"
            raise Corruption(f"{where}{error}; {way_out(self._table, key)}", **error.values) from error
        if not self.schema.names:
            return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), len(rows), [None]))
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _decode_values(self, batch: CellBatch, visible: VisibleCells, rows: NDArray[np.int64]) -> dict[str, pa.Array]:
        count, widths = len(rows), self._widths
        place_of = np.array([self._place.get(column, -1) for column in batch.columns], dtype=np.int64)
        at_of = np.where(widths > 0, np.cumsum(widths) - widths, 0) * count
        at_of[widths == 0] = np.arange(np.count_nonzero(widths == 0))
        fixed = np.zeros(int(widths.sum()) * count, dtype=np.uint8)
        chosen = np.full((np.count_nonzero(widths == 0), count), -1, dtype=np.int64)
        valid = np.zeros((len(widths), (count + 7) // 8), dtype=np.uint8)
        present = np.zeros(len(widths), dtype=np.int64)
        places, filled = (place_of, widths, at_of), (fixed, chosen, valid, present)
        bad, place = column_kernels.fill_columns(batch.arrays(), visible.cells, visible.row_cell, rows, places, filled)
        if bad >= 0:
            raise self._misfit(batch, visible, int(rows[bad]), place)
        columns = {}
        for index, (name, kind, arrow) in enumerate(self._values):
            bits = None if present[index] == count else pa.py_buffer(valid[index])
            at = int(at_of[index])
            if widths[index]:
                data = fixed[at : at + int(widths[index]) * count]
                columns[name] = fixed_array(data, count, kind, arrow, bits)
            elif self._earlier[index]:
                kinds = (kind, *self._earlier[index])
                columns[name] = _decode_widened(batch, chosen[at], kinds, arrow, name, rows, bits)
            else:
                columns[name] = _decode_chosen(batch, chosen[at], kind, arrow, name, rows, bits)
        return columns

    def _misfit(self, batch: CellBatch, visible: VisibleCells, row: int, place: int) -> Corruption:
        """Return the error for a row's value whose length does not fit its column's type."""
        name, kind, _ = self._values[place]
        cells = visible.cells[visible.row_cell[row] : visible.row_cell[row + 1]].tolist()
        cell = next(each for each in cells if self._place.get(batch.columns[batch.cell_col[each]], -1) == place)
        return _corrupt_value(batch, row, cell, kind, name)

    def _decode_keys(self, batch: CellBatch, rows: NDArray[np.int64]) -> dict[str, pa.Array]:
        places = batch.row_off[rows]
        ends = places + batch.row_len[rows]
        decoded = {}
        for part in self._layout.parts:
            arrow = self.schema.field(part.name).type if part.name in self._key_names else part.type.arrow
            column, bad = _take_part(batch.buffer, places, ends, part, arrow)
            if bad >= 0:
                key = batch.row_key(int(rows[bad]))
                raise Corruption(
                    f": the key does not contain a valid value of column {part.name!r} of type {part.type.name}",
                    row=key,
                )
            decoded[part.name] = column
        if (places != ends).any():
            key = batch.row_key(int(rows[np.argmax(places != ends)]))
            raise Corruption(f": the key has bytes after its last part {self._layout.parts[-1].name!r}", row=key)
        return {name: column for name, column in decoded.items() if name in self._key_names}


def arrow_schema(schema: TableSchema, wanted: Sequence[str]) -> pa.Schema:
    types = {column.name: column.spark_type for column in schema.columns}
    return pa.schema([pa.field(name, column_type(types[name], name).arrow) for name in wanted])


def _take_part(
    buffer: NDArray[np.uint8], places: NDArray[np.int64], ends: NDArray[np.int64], part: KeyPart, arrow: pa.DataType
) -> tuple[pa.Array | None, int]:
    """Return the decoded column and -1, or None and the first malformed row. `places` are advanced past the column."""
    rows = len(places)
    if not part.type.is_text:
        block = np.empty((rows, part.type.key_width), dtype=np.uint8)
        bad = key_kernels.take_blocks(buffer, places, ends, block)
        return (from_ordered(block, part.type, arrow, descending=part.descending) if bad < 0 else None), bad
    total = int((ends - places).sum())
    _check_room(total, part.name)
    offsets = np.zeros(rows + 1, dtype=np.int32)
    data = np.empty(total, dtype=np.uint8)
    if part.is_raw:
        np.cumsum(ends - places, out=offsets[1:])
        column_kernels.copy_texts(buffer, places, np.arange(rows, dtype=np.int64), offsets.astype(np.int64), data)
        places[:] = ends
        return text_array(offsets, data, arrow, None), -1
    inversion = 0xFF if part.descending else 0x00
    bad = key_kernels.unescape(buffer, places, ends, inversion, data, offsets)
    return (text_array(offsets, data, arrow, None) if bad < 0 else None), bad


def _fixed_width(kind: ColumnType) -> int:
    """Return the number of bytes of every stored value of the type; 0 if it varies."""
    return 0 if kind.is_text or kind.layout in (Layout.JSON, Layout.DECIMAL) else kind.width


def _decode_chosen(
    batch: CellBatch,
    chosen: NDArray[np.int64],
    kind: ColumnType,
    arrow: pa.DataType,
    name: str,
    rows: NDArray[np.int64],
    bits: pa.Buffer | None,
) -> pa.Array:
    """Return a column whose stored values vary in length. `bits` is its validity bitmap; None if no value is null."""
    if kind.layout is not Layout.DECIMAL:
        return _decode_text(batch, chosen, kind, arrow, name, rows, bits)
    block = np.empty((len(chosen), 16), dtype=np.uint8)
    bad = column_kernels.gather_decimals(batch.buffer, batch.cell_off, batch.cell_len, chosen, kind.scale, block)
    if bad >= 0:
        raise _corrupt_value(batch, int(rows[bad]), int(chosen[bad]), kind, name)
    return fixed_array(block, len(chosen), kind, arrow, bits)


def _decode_widened(
    batch: CellBatch,
    chosen: NDArray[np.int64],
    kinds: Sequence[ColumnType],
    arrow: pa.DataType,
    name: str,
    rows: NDArray[np.int64],
    bits: pa.Buffer | None,
) -> pa.Array:
    """Return a column of type `kinds[0]`, which had the other types before it was widened. A stored value's length
    shows its type."""
    wide = np.zeros(len(chosen), dtype=number_type(kinds[0]))
    there = np.flatnonzero(chosen >= 0)
    lengths = np.full(len(chosen), -1, dtype=np.int32)
    lengths[there] = batch.cell_len[chosen[there]]
    misfits = lengths >= 0
    for kind in kinds:
        of_kind = np.flatnonzero(lengths == kind.width)
        places = batch.cell_off[chosen[of_kind]][:, None] + np.arange(kind.width)
        wide[of_kind] = batch.buffer[places].view(number_type(kind).newbyteorder(">")).reshape(-1)
        misfits[of_kind] = False
    if misfits.any():
        bad = int(np.argmax(misfits))
        raise _corrupt_value(batch, int(rows[bad]), int(chosen[bad]), kinds[0], name)
    return fixed_array(wide.view(np.uint8), len(chosen), kinds[0], arrow, bits)


def _corrupt_value(batch: CellBatch, row: int, cell: int, kind: ColumnType, name: str) -> Corruption:
    stored = (batch.value(cell) or b"")[:_SHOWN_MAX]
    """Return the error; `RowDecoder.decode` puts the table and the row before its text."""
    return Corruption(
        f", column {name!r}: stored value {stored!r} is not a valid {kind.name}", column=name, row=batch.row_key(row)
    )


def _decode_text(
    batch: CellBatch,
    chosen: NDArray[np.int64],
    kind: ColumnType,
    arrow: pa.DataType,
    name: str,
    rows: NDArray[np.int64],
    bits: pa.Buffer | None,
) -> pa.Array:
    offsets = np.empty(len(chosen) + 1, dtype=np.int64)
    total = column_kernels.text_offsets(batch.buffer, batch.cell_off, batch.cell_len, chosen, offsets, kind.is_text)
    _check_room(total, name)
    data = np.empty(total, dtype=np.uint8)
    column_kernels.copy_texts(batch.buffer, batch.cell_off, chosen, offsets, data)
    if kind.layout is not Layout.JSON:
        return text_array(offsets.astype(np.int32), data, arrow, bits)
    stored = text_array(offsets.astype(np.int32), data, pa.binary(), bits).to_pylist()
    try:
        return _nested_array(stored, kind, arrow)
    except (Corruption, ValueError, TypeError, OverflowError) as error:
        bad = next(place for place, value in enumerate(stored) if not _is_nested(value, kind, arrow))
        raise _corrupt_value(batch, int(rows[bad]), int(chosen[bad]), kind, name) from error


def _nested_array(stored: Sequence[bytes | None], kind: ColumnType, arrow: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else from_json(value, kind.name) for value in stored], type=arrow)


def _is_nested(stored: bytes | None, kind: ColumnType, arrow: pa.DataType) -> bool:
    try:
        _nested_array([stored], kind, arrow)
    except (Corruption, ValueError, TypeError, OverflowError):
        return False
    return True


def binary_array(
    buffer: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int32],
    chosen: NDArray[np.int64],
    name: str,
) -> pa.Array:
    """Return the chosen slices of the buffer as a binary column; -1 gives null."""
    offsets = np.empty(len(chosen) + 1, dtype=np.int64)
    total = column_kernels.text_offsets(buffer, begins, lengths, chosen, offsets, False)
    _check_room(total, name)
    data = np.empty(total, dtype=np.uint8)
    column_kernels.copy_texts(buffer, begins, chosen, offsets, data)
    valid = chosen >= 0
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return text_array(offsets.astype(np.int32), data, pa.binary(), bits)


def _check_room(total: int, name: str) -> None:
    if total > _ARROW_TEXT_BYTES_MAX:
        raise Misuse(
            f"column {name!r} has {total} bytes in one batch, but an Arrow column holds at most "
            f"{_ARROW_TEXT_BYTES_MAX}; read with a smaller batchRows",
            column=name,
        )
