"""Visible cells of a batch → Arrow columns, by columns; key columns come out of the row key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.core.visibility import VisibleCells
from pyomid.errors import Corruption, Misuse
from pyomid.spark.blocks import from_little_endian, from_ordered, text_array
from pyomid.spark.columntypes import ColumnType, Layout, column_type
from pyomid.spark.kernels.decimals import gather_decimals
from pyomid.spark.kernels.gather_blocks import gather_blocks
from pyomid.spark.kernels.gather_texts import copy_texts, text_offsets
from pyomid.spark.kernels.place_cells import place_cells
from pyomid.spark.kernels.take_blocks import take_blocks
from pyomid.spark.kernels.unescape import unescape
from pyomid.spark.nested import from_json
from pyomid.spark.rowkey import KeyPart, key_layout
from pyomid.types import TableSchema

_ARROW_TEXT_BYTES_MAX: Final = 2**31 - 1
"""What the 32-bit offsets of one Arrow string column can hold; Spark's batches have these."""


class RowDecoder:
    """Decodes batches of one table into record batches of one Arrow schema. Not for several threads."""

    def __init__(self, schema: TableSchema, wanted: Sequence[str], arrow: pa.Schema | None = None) -> None:
        """`wanted`: columns in the order of the result; `arrow`: its schema, where it must be somebody's own."""
        known = {column.name: column for column in schema.columns}
        self._layout = key_layout(schema)
        self._key_names = frozenset(self._layout.names) & set(wanted)
        self._values = [known[name] for name in wanted if name not in self._layout.names]
        self._place = {column.column: place for place, column in enumerate(self._values)}
        self.schema = arrow if arrow is not None else arrow_schema(schema, wanted)

    def decode(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch:
        """One row for each row of the batch that exists for the reader, in key order."""
        rows = visible.rows_present()
        columns = self._decode_keys(batch, rows) if self._key_names else {}
        chosen = np.empty((len(self._values), len(rows)), dtype=np.int64)
        place = np.array([self._place.get(column, -1) for column in batch.columns], dtype=np.int32)
        place_cells(visible.cells, visible.row_cell, batch.cell_col, rows, place, chosen)
        for index, column in enumerate(self._values):
            kind = column_type(column.spark_type, column.name)
            arrow = self.schema.field(column.name).type
            columns[column.name] = _decode_column(batch, chosen[index], kind, arrow, column.name, rows)
        if not self.schema.names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), type=pa.struct([])))
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _decode_keys(self, batch: CellBatch, rows: NDArray[np.int64]) -> dict[str, pa.Array]:
        places = batch.row_off[rows]
        ends = places + batch.row_len[rows]
        decoded = {}
        for part in self._layout.parts:
            arrow = self.schema.field(part.name).type if part.name in self._key_names else part.type.arrow
            column, bad = _take_part(batch.buffer, places, ends, part, arrow)
            if bad >= 0:
                raise Corruption(
                    f"row key {batch.row_key(int(rows[bad]))!r} does not hold column {part.name!r} "
                    f"of type {part.type.name}"
                )
            decoded[part.name] = column
        if (places != ends).any():
            key = batch.row_key(int(rows[np.argmax(places != ends)]))
            raise Corruption(f"row key {key!r} has bytes after its last part {self._layout.parts[-1].name!r}")
        return {name: column for name, column in decoded.items() if name in self._key_names}


def arrow_schema(schema: TableSchema, wanted: Sequence[str]) -> pa.Schema:
    types = {column.name: column.spark_type for column in schema.columns}
    return pa.schema([pa.field(name, column_type(types[name], name).arrow) for name in wanted])


def _take_part(
    buffer: NDArray[np.uint8], places: NDArray[np.int64], ends: NDArray[np.int64], part: KeyPart, arrow: pa.DataType
) -> tuple[pa.Array | None, int]:
    """The column, its places moved behind it; or the first row that cannot hold it."""
    rows = len(places)
    if not part.type.is_text:
        block = np.empty((rows, part.type.key_width), dtype=np.uint8)
        bad = take_blocks(buffer, places, ends, block)
        return (from_ordered(block, part.type, arrow, descending=part.descending) if bad < 0 else None), bad
    total = int((ends - places).sum())
    _check_room(total, part.name)
    offsets = np.zeros(rows + 1, dtype=np.int32)
    data = np.empty(total, dtype=np.uint8)
    if part.is_raw:
        np.cumsum(ends - places, out=offsets[1:])
        copy_texts(buffer, places, np.arange(rows, dtype=np.int64), offsets.astype(np.int64), data)
        places[:] = ends
        return text_array(offsets, data, arrow, None), -1
    bad = unescape(buffer, places, ends, 0xFF if part.descending else 0x00, data, offsets)
    return (text_array(offsets, data, arrow, None) if bad < 0 else None), bad


def _decode_column(
    batch: CellBatch,
    chosen: NDArray[np.int64],
    kind: ColumnType,
    arrow: pa.DataType,
    name: str,
    rows: NDArray[np.int64],
) -> pa.Array:
    valid = chosen >= 0
    mask = None if valid.all() else valid
    if kind.is_text or kind.layout is Layout.JSON:
        return _decode_text(batch, chosen, kind, arrow, name, mask)
    block = np.empty((len(chosen), kind.width or 16), dtype=np.uint8)
    if kind.layout is Layout.DECIMAL:
        bad = gather_decimals(batch.buffer, batch.cell_off, batch.cell_len, chosen, kind.scale, block)
    else:
        bad = gather_blocks(batch.buffer, batch.cell_off, batch.cell_len, chosen, block)
    if bad >= 0:
        raise Corruption(
            f"column {name!r} of row {batch.row_key(int(rows[bad]))!r}: stored value "
            f"{batch.value(int(chosen[bad]))!r} cannot be a {kind.name}",
            column=name,
        )
    return from_little_endian(block, kind, arrow, mask)


def _decode_text(
    batch: CellBatch,
    chosen: NDArray[np.int64],
    kind: ColumnType,
    arrow: pa.DataType,
    name: str,
    mask: NDArray[np.bool_] | None,
) -> pa.Array:
    offsets = np.empty(len(chosen) + 1, dtype=np.int64)
    total = text_offsets(batch.buffer, batch.cell_off, batch.cell_len, chosen, offsets, kind.is_text)
    _check_room(total, name)
    data = np.empty(total, dtype=np.uint8)
    copy_texts(batch.buffer, batch.cell_off, chosen, offsets, data)
    if kind.layout is not Layout.JSON:
        return text_array(offsets.astype(np.int32), data, arrow, mask)
    stored = text_array(offsets.astype(np.int32), data, pa.binary(), mask).to_pylist()
    return pa.array([None if value is None else from_json(value, kind.name) for value in stored], type=arrow)


def _check_room(total: int, name: str) -> None:
    if total > _ARROW_TEXT_BYTES_MAX:
        raise Misuse(
            f"column {name!r}: {total} bytes in one batch, Arrow holds {_ARROW_TEXT_BYTES_MAX}; "
            "read with a smaller batchRows",
            column=name,
        )
