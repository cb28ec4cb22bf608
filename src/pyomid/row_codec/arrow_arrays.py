"""Conversion between Arrow arrays and Python values or numpy arrays, without importing pandas.

`pa.array`, `pa.scalar` and `to_numpy` import pandas if it is installed, for types of values that are not used here:
more than a second of CPU time in each Python process of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


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
    """Return the values of a column of numbers; arbitrary ones for nulls."""
    return np.frombuffer(column.buffers()[1], dtype=dtype)[column.offset : column.offset + len(column)]


def _fixed(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def validity_bits(there: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
