"""Arrow's arrays from buffers are those that pyarrow makes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyomid.rows.arrow_arrays import (
    binary_array_of,
    bool_array,
    booleans,
    fixed_values,
    int64_array,
    no_rows,
    places_array,
)

pytestmark = pytest.mark.fast

LONGS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(LONGS), st.lists(st.booleans()), st.lists(st.none() | st.binary(max_size=5)))
def test_arrays_from_buffers_are_those_of_pyarrow(
    numbers: list[int], flags: list[bool], texts: list[bytes | None]
) -> None:
    assert int64_array(numbers).equals(pa.array(numbers, pa.int64()))
    assert bool_array(flags).equals(pa.array(flags, pa.bool_()))
    assert binary_array_of(texts).equals(pa.array(texts, pa.binary()))
    for made in (int64_array(numbers), bool_array(flags), binary_array_of(texts)):
        made.validate(full=True)


@given(st.lists(st.none() | st.integers(0, 100)))
def test_places_take_what_pyarrow_takes(places: list[int | None]) -> None:
    values = pa.array(range(101))
    assert values.take(places_array(places)).equals(values.take(pa.array(places, pa.int64())))


@given(st.lists(st.booleans(), min_size=1), st.data())
def test_values_of_a_slice_are_the_slice(flags: list[bool], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(flags)))
    count = data.draw(st.integers(0, len(flags) - first))
    assert booleans(pa.array(flags).slice(first, count)).tolist() == flags[first : first + count]
    numbers = pa.array(range(len(flags)), pa.int64()).slice(first, count)
    assert fixed_values(numbers, np.dtype(np.int64)).tolist() == list(range(first, first + count))


def test_no_rows_have_the_schema() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.timestamp("us", tz="UTC")))])
    assert no_rows(schema).equals(pa.RecordBatch.from_pylist([], schema=schema))
