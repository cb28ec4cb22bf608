"""Each kernel between Arrow and cells does what its reference does, on input that no frame would make too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import row_codec_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from portions import examples
from pyomid.cells import TOMBSTONE, CellBatch
from pyomid.rows.native.columns import (
    ABSENT,
    copy_texts,
    fill_columns,
    gather_decimals,
    pack_cells,
    put_decimals,
    text_offsets,
    zero_texts,
)
from pyomid.rows.native.row_keys import (
    escaped_lengths,
    key_order,
    last_of_equals,
    put_blocks,
    put_escaped,
    take_blocks,
    unescape,
)

pytestmark = pytest.mark.fast

TEXTS = st.text("\0\1\xfe\xff", max_size=6).map(lambda text: text.encode("latin-1"))
"""The bytes that mean something to one of the kernels."""

checked = settings(max_examples=examples(100), deadline=None)


def joined(texts: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One behind the other, and their borders."""
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return np.frombuffer(b"".join(texts), np.uint8), offsets


def cells(values: Sequence[bytes | None]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]:
    data, offsets = joined([value or b"" for value in values])
    return data, offsets[:-1].copy(), np.diff(offsets).astype(np.int32)


@checked
@given(texts=st.lists(TEXTS, max_size=5), inverted=st.booleans())
def test_escaped_texts_and_the_way_back(texts: list[bytes], inverted: bool) -> None:
    data, offsets = joined(texts)
    lengths = np.zeros(len(texts), np.int64)
    escaped_lengths(data, offsets, lengths)
    expected = [reference.escaped(text, inverted=inverted) for text in texts]
    assert lengths.tolist() == [len(text) for text in expected]
    places = np.cumsum([0, *lengths], dtype=np.int64)[:-1].copy()
    ends = places + lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    put_escaped(out, places, data, offsets, 255 if inverted else 0, False)
    assert out.tobytes() == b"".join(expected)
    assert places.tolist() == ends.tolist()


@checked
@given(keys=st.lists(TEXTS, max_size=5), inverted=st.booleans())
def test_texts_out_of_keys_that_may_be_broken(keys: list[bytes], inverted: bool) -> None:
    data, offsets = joined(keys)
    places, ends = offsets[:-1].copy(), offsets[1:].copy()
    out, borders = np.empty(len(data), np.uint8), np.zeros(len(keys) + 1, np.int32)
    bad = unescape(data, places, ends, 255 if inverted else 0, out, borders)
    expected = [reference.unescaped(key, inverted=inverted) for key in keys]
    assert bad == (expected.index(None) if None in expected else -1)
    for row, found in enumerate(expected[: bad if bad >= 0 else None]):
        assert found is not None
        assert out[borders[row] : borders[row + 1]].tobytes() == found[0]
        assert data[places[row] : ends[row]].tobytes() == found[1]


@checked
@given(texts=st.lists(TEXTS, max_size=5))
def test_texts_of_zero_bytes(texts: list[bytes]) -> None:
    zero = np.zeros(len(texts), np.bool_)
    longest = zero_texts(*joined(texts), zero)
    assert (zero.tolist(), longest) == reference.zero_texts(texts)


@checked
@given(keys=st.lists(TEXTS, max_size=6))
def test_the_order_of_keys_and_the_last_of_equals(keys: list[bytes]) -> None:
    data, offsets = joined(keys)
    assert key_order(data, offsets, np.arange(len(keys))) == reference.key_order(keys)
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    in_order = [keys[index] for index in order]
    assert key_order(data, offsets, order) == reference.key_order(in_order)
    last = np.zeros(len(keys), np.bool_)
    last_of_equals(data, offsets, order, last)
    assert last.tolist() == reference.last_of_equals(in_order)


@checked
@given(values=st.lists(st.none() | TEXTS, max_size=6), is_text=st.booleans())
def test_texts_of_one_column(values: list[bytes | None], is_text: bool) -> None:
    buffer, cell_off, cell_len = cells(values)
    chosen = np.array([-1 if value is None else index for index, value in enumerate(values)], np.int64)
    offsets = np.empty(len(values) + 1, np.int64)
    total = text_offsets(buffer, cell_off, cell_len, chosen, offsets, is_text)
    out = np.empty(total, np.uint8)
    copy_texts(buffer, cell_off, chosen, offsets, out)
    found = [out[begin:end].tobytes() for begin, end in pairwise(offsets)]
    assert found == reference.gather_texts(values, is_text=is_text)


@checked
@given(numbers=st.lists(st.integers(-(1 << 127), (1 << 127) - 1) | st.integers(-70_000, 70_000), max_size=5))
def test_decimals_into_cells(numbers: list[int]) -> None:
    unscaled = np.frombuffer(b"".join(n.to_bytes(16, "little", signed=True) for n in numbers), np.uint8).reshape(-1, 16)
    out = np.empty(20 * len(numbers), np.uint8)
    offsets, lengths = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int32)
    written = put_decimals(unscaled, 7, out, offsets, lengths)
    assert out[:written].tobytes() == b"".join(reference.put_decimal(number, 7) for number in numbers)
    assert lengths.tolist() == [len(reference.put_decimal(number, 7)) for number in numbers]
    assert offsets.tolist() == [int(lengths[:row].sum()) for row in range(len(numbers))]


STORED_DECIMALS = st.builds(
    reference.put_decimal, st.integers(-(1 << 127), (1 << 127) - 1), st.sampled_from([2, 2, 2, 3])
)


@checked
@given(values=st.lists(st.none() | STORED_DECIMALS | st.binary(max_size=22), max_size=5))
def test_decimals_out_of_cells_that_may_be_broken(values: list[bytes | None]) -> None:
    buffer, cell_off, cell_len = cells(values)
    chosen = np.array([-1 if value is None else index for index, value in enumerate(values)], np.int64)
    out = np.empty((len(values), 16), np.uint8)
    bad = gather_decimals(buffer, cell_off, cell_len, chosen, 2, out)
    expected = [reference.gather_decimal(value, 2) for value in values]
    assert bad == (expected.index(None) if None in expected else -1)
    for row, number in enumerate(expected[: bad if bad >= 0 else None]):
        assert out[row].tobytes() == number


@checked
@given(data=st.data(), columns=st.integers(0, 3), rows=st.integers(0, 4))
def test_a_grid_packed(data: st.DataObject, columns: int, rows: int) -> None:
    lengths = st.sampled_from([ABSENT, TOMBSTONE, 0, 3])
    row = st.lists(st.tuples(st.integers(0, 99), lengths), min_size=columns, max_size=columns)
    grid = data.draw(st.lists(row, min_size=rows, max_size=rows))
    as_array = np.array(grid, np.int64).reshape(rows, columns, 2)
    off = np.ascontiguousarray(as_array[:, :, 0].T)
    length = np.ascontiguousarray(as_array[:, :, 1].T.astype(np.int32))
    room = rows * (columns + 1)
    rec_cell, cell_off = np.empty(rows + 1, np.int64), np.empty(room, np.int64)
    cell_col, cell_len = np.empty(room, np.int32), np.empty(room, np.int32)
    count = pack_cells(off, length, 1000, 1, rec_cell, cell_col, cell_off, cell_len)
    packed = list(zip(cell_col.tolist(), cell_off.tolist(), cell_len.tolist(), strict=True))
    found = [packed[begin:end] for begin, end in pairwise(rec_cell)]
    assert found == reference.pack_cells(grid, (1000, 1))
    assert count == sum(map(len, found))


@checked
@given(width=st.integers(1, 9), keys=st.lists(st.binary(max_size=12), min_size=1, max_size=4))
def test_blocks_out_of_keys_that_may_end_too_soon_and_into_keys(width: int, keys: list[bytes]) -> None:
    buffer, offsets = joined(keys)
    taken: list[tuple[int, list[int], bytes]] = []
    for take in (take_blocks, reference.take_blocks):
        places, out = offsets[:-1].copy(), np.zeros((len(keys), width), np.uint8)
        taken.append((take(buffer, places, offsets[1:].copy(), out), places.tolist(), out.tobytes()))
    assert taken[0] == taken[1]
    blocks = np.frombuffer(taken[0][2], np.uint8).reshape(len(keys), width)
    put: list[tuple[list[int], bytes]] = []
    for write in (put_blocks, reference.put_blocks):
        places, out = np.arange(len(keys)) * (width + 1), np.zeros(len(keys) * (width + 1), np.uint8)
        write(out, places, blocks)
        put.append((places.tolist(), out.tobytes()))
    assert put[0] == put[1]


@st.composite
def visible_rows(draw: st.DrawFn) -> tuple[list[list[tuple[int, bytes]]], list[int]]:
    """Each row's visible (place, value), and the width of each place; now and then a value does not fit."""
    widths = draw(st.lists(st.sampled_from([0, 1, 4, 8, 16]), min_size=1, max_size=4))
    rows = []
    for _ in range(draw(st.integers(0, 10))):
        row = []
        for place in sorted(draw(st.sets(st.integers(0, len(widths) - 1)))):
            size = widths[place] or draw(st.integers(0, 5))
            wrong = draw(st.sampled_from([0] * 40 + [1]))
            row.append((place, draw(st.binary(min_size=size + wrong, max_size=size + wrong))))
        rows.append(row)
    return rows, widths


@checked
@given(drawn=visible_rows())
def test_columns_filled(drawn: tuple[list[list[tuple[int, bytes]]], list[int]]) -> None:
    rows, widths = drawn
    values = [value for row in rows for _, value in row]
    buffer, cell_off, cell_len = cells(values)
    cell_col = np.array([place for row in rows for place, _ in row], np.int32)
    no_64, no_32 = np.empty(0, np.int64), np.empty(0, np.int32)
    batch = CellBatch(buffer, [], no_64, no_32, no_64, no_64, no_64, no_64, cell_col, cell_off, cell_len)
    row_cell = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    count = len(rows)
    at_of = np.zeros(len(widths), np.int64)
    room = chosen_rows = 0
    for place, width in enumerate(widths):
        at_of[place] = room if width else chosen_rows
        room, chosen_rows = (room + width * count, chosen_rows) if width else (room, chosen_rows + 1)
    fixed, chosen = np.zeros(room, np.uint8), np.full((chosen_rows, count), -1, np.int64)
    valid, present = np.zeros((len(widths), (count + 7) // 8), np.uint8), np.zeros(len(widths), np.int64)
    visible, places = np.arange(len(values)), (np.arange(len(widths)), np.array(widths, np.int64), at_of)
    filled = (fixed, chosen, valid, present)
    bad = fill_columns(batch.arrays(), visible, row_cell, np.arange(count), places, filled)
    expected = reference.fill_columns(rows, widths)
    if isinstance(expected, tuple):
        assert tuple(bad) == expected
        return
    assert tuple(bad) == (-1, -1)
    for place, column in enumerate(expected):
        bits = np.unpackbits(valid[place], bitorder="little")[:count]
        assert bits.tolist() == [value is not None for value in column]
        assert present[place] == bits.sum()
        for row, value in enumerate(column):
            if value is not None and widths[place]:
                begin = int(at_of[place]) + row * widths[place]
                assert fixed[begin : begin + widths[place]].tobytes() == value
            elif value is not None:
                assert values[chosen[at_of[place], row]] == value
