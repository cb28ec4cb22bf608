"""Conversion between Arrow arrays and Python values, numpy arrays, or byte matrices, without importing pandas.

A byte matrix has one row of big-endian bytes per value. The same bytes serve as stored values and, in the `ordered`
functions, as parts of row keys (table in `row_key`).

`pa.array`, `pa.scalar` and `to_numpy` import pandas if it is installed, for value types that this module does not use.
The import costs more than a second of CPU time in each Python process of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyomid.rows.column_types import ColumnType, Layout

Block = NDArray[np.uint8]

_SIGN: Final = np.uint8(0x80)


def int64_array(values: Sequence[int] | NDArray[np.int64]) -> pa.Array:
    return _fixed(np.ascontiguousarray(values, dtype=np.int64), pa.int64())


def bool_array(values: Sequence[bool] | NDArray[np.bool_]) -> pa.Array:
    bits = np.packbits(np.asarray(values, dtype=np.bool_), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def places_array(places: Sequence[int | None]) -> pa.Array:
    """Return indices for `take`; None becomes null."""
    there = np.array([place is not None for place in places], dtype=np.bool_)
    numbers = np.array([place or 0 for place in places], dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [validity_bits(there), pa.py_buffer(numbers)])


def binary_array_of(values: Sequence[bytes | None]) -> pa.Array:
    there = np.array([value is not None for value in values], dtype=np.bool_)
    offsets = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int32)
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.binary(), len(values), [validity_bits(there), pa.py_buffer(offsets), data])


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def booleans(column: pa.Array) -> NDArray[np.bool_]:
    """Return the values of a boolean column without nulls."""
    bits = np.frombuffer(column.buffers()[1] or b"", dtype=np.uint8)
    unpacked = np.unpackbits(bits, bitorder="little")[column.offset : column.offset + len(column)]
    return unpacked.view(np.bool_)


def fixed_values(column: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of a column of numbers, with arbitrary values for nulls."""
    return np.frombuffer(column.buffers()[1], dtype=dtype)[column.offset : column.offset + len(column)]


def _fixed(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def validity_bits(there: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


# Byte matrices


def validity(column: pa.Array) -> NDArray[np.bool_] | None:
    """Return a mask of the rows that are not null; None if no row is null."""
    if column.null_count == 0:
        return None
    return booleans(column.is_valid())


def numbers(column: pa.Array, kind: ColumnType) -> NDArray[Any]:
    """Return the column's numbers, with arbitrary values for nulls; booleans become 0 and 1."""
    if kind.layout is Layout.BOOLEAN:
        return booleans(column).astype(np.int8)
    return fixed_values(column, number_type(kind))


def number_type(kind: ColumnType) -> np.dtype[Any]:
    """Return the numpy type of an integer's or float's values in memory."""
    return np.dtype(f"{'f' if kind.layout is Layout.FLOAT else 'i'}{kind.width}")


def unscaled_block(column: pa.Array) -> Block:
    """Return a decimal column's numbers: 16 bytes each, little-endian."""
    raw = np.frombuffer(column.buffers()[1], dtype=np.uint8).reshape(-1, 16)
    return raw[column.offset : column.offset + len(column)]


def value_block(column: pa.Array, kind: ColumnType) -> Block:
    """Return the stored values of a fixed-width column."""
    values = numbers(column, kind)
    if kind.layout is Layout.BOOLEAN:
        values = -values
    return _big_endian(values, kind.width)


def ordered_block(column: pa.Array, kind: ColumnType, *, descending: bool) -> Block:
    """Return the row key parts of a fixed-width or decimal column."""
    if kind.layout is Layout.DECIMAL:
        block = np.array(unscaled_block(column)[:, kind.key_width - 1 :: -1], order="C")  # copies even a single row
        block[:, 0] ^= _SIGN
    elif kind.layout is Layout.FLOAT:
        block = _ordered_floats(numbers(column, kind), kind.width)
    else:
        block = _big_endian(numbers(column, kind), kind.width)
        if kind.layout is Layout.INTEGER:
            block[:, 0] ^= _SIGN
    return np.bitwise_not(block) if descending else block


def fixed_array(
    data: NDArray[np.uint8], rows: int, kind: ColumnType, arrow: pa.DataType, bits: pa.Buffer | None
) -> pa.Array:
    """Return an Arrow column made of consecutive little-endian values; decimals have 16 bytes each.

    `bits` is the column's validity bitmap; None if no value is null.
    """
    if kind.layout is Layout.BOOLEAN:
        data = np.packbits(data.reshape(-1) != 0, bitorder="little")
    return pa.Array.from_buffers(arrow, rows, [bits, pa.py_buffer(data)])


def from_ordered(block: Block, kind: ColumnType, arrow: pa.DataType, *, descending: bool) -> pa.Array:
    """Return an Arrow column made of row key parts."""
    ascending = np.bitwise_not(block) if descending else block.copy()
    if kind.layout is Layout.FLOAT:
        negative = ascending[:, 0] < _SIGN
        ascending[negative] = np.bitwise_not(ascending[negative])
        ascending[~negative, 0] ^= _SIGN
    elif kind.layout is not Layout.BOOLEAN:
        ascending[:, 0] ^= _SIGN
    little = np.ascontiguousarray(ascending[:, ::-1])
    return fixed_array(_widened(little) if kind.layout is Layout.DECIMAL else little, len(block), kind, arrow, None)


def text_array(
    offsets: NDArray[np.int32], data: NDArray[np.uint8], arrow: pa.DataType, bits: pa.Buffer | None
) -> pa.Array:
    return pa.Array.from_buffers(arrow, len(offsets) - 1, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def text_parts(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the data bytes of a string or binary column, and the offsets of its rows in these bytes."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    borders = np.frombuffer(offsets, dtype=np.int64 if large else np.int32)
    window = borders[column.offset : column.offset + len(column) + 1].astype(np.int64)
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return raw, window


def _big_endian(values: NDArray[Any], width: int) -> Block:
    return values.astype(values.dtype.newbyteorder(">")).view(np.uint8).reshape(len(values), width)


def _ordered_floats(values: NDArray[Any], width: int) -> Block:
    canonical = np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0))
    block = _big_endian(canonical.astype(values.dtype), width)
    negative = (block[:, 0] & _SIGN) != 0
    block[negative] = np.bitwise_not(block[negative])
    block[~negative, 0] ^= _SIGN
    return block


def _widened(little: Block) -> Block:
    """Return little-endian two's complement numbers of up to 16 bytes extended to 16 bytes."""
    wide = np.empty((len(little), 16), dtype=np.uint8)
    width = little.shape[1]
    wide[:, :width] = little
    wide[:, width:] = np.where(little[:, -1:] & _SIGN, np.uint8(0xFF), np.uint8(0))
    return wide
