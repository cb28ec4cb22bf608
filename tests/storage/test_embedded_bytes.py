"""Keys and records of the embedded store: their order, their grammar, and the compiled form against the plain one."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pytest
from decoded_records import decode_records_plain
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import ORDERED_KEYS
from pyomid.cells import TOMBSTONE
from pyomid.errors import Corruption
from pyomid.folder import records
from pyomid.folder.native import records as changes
from pyomid.folder.native import records as record_kernels
from pyomid.folder.records import (
    HEADER_BYTES,
    Record,
    decode_record,
    encode_cells,
    encode_record,
    holds_only,
    key_row,
    key_version,
    next_prefix,
    range_bounds,
    record_key,
    record_of,
    row_prefix,
    table_prefix,
)
from pyomid.types import TIMESTAMP_MAX, KeyRange

pytestmark = pytest.mark.fast

PREFIX = table_prefix(7)
tricky_rows = st.binary(min_size=1, max_size=6) | st.lists(
    st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]), min_size=1, max_size=6
).map(bytes)
versions = st.integers(1, TIMESTAMP_MAX)
column_numbers = st.integers(1, 9) | st.integers(120, 130) | st.integers(1, 300)
cells = st.dictionaries(
    column_numbers, st.none() | st.binary(min_size=1, max_size=16) | st.binary(min_size=1, max_size=200), min_size=1,
    max_size=12,
)  # fmt: skip


@given(st.lists(st.tuples(tricky_rows, versions), max_size=12))
def test_keys_sort_by_row_and_then_by_newest_version(names: list[tuple[bytes, int]]) -> None:
    keys = sorted(record_key(PREFIX, row, version) for row, version in names)
    expected = sorted(names, key=lambda name: (name[0], -name[1]))
    assert [(key_row(key), key_version(key)) for key in keys] == expected


def test_rows_have_prefixes_of_their_own() -> None:
    for left in ORDERED_KEYS:
        for right in ORDERED_KEYS:
            assert (record_key(PREFIX, right, 150)[:-8] == row_prefix(PREFIX, left)) == (left == right)


@given(tricky_rows, tricky_rows | st.just(b""), st.none() | tricky_rows, versions)
def test_range_bounds_hold_exactly_the_rows_of_the_range(
    row: bytes, start: bytes, stop: bytes | None, version: int
) -> None:
    first, end = range_bounds(PREFIX, KeyRange(start, stop))
    assert (first <= record_key(PREFIX, row, version) < end) == (row in KeyRange(start, stop))


def test_tables_lie_behind_each_other() -> None:
    last = record_key(PREFIX, b"\xff" * 400, 1)
    assert last < next_prefix(PREFIX) <= record_key(table_prefix(8), b"\x00", TIMESTAMP_MAX)
    assert len(record_key(PREFIX, ORDERED_KEYS[2], 5)) == 4 + len(ORDERED_KEYS[2]) + ORDERED_KEYS[2].count(0) + 1 + 8


@given(tricky_rows, versions, cells, st.integers(0, TIMESTAMP_MAX))
def test_record_comes_back_as_it_was_encoded(
    row: bytes, version: int, content: dict[int, bytes | None], commit_ts: int
) -> None:
    key = record_key(PREFIX, row, version)
    decoded = decode_record(key, encode_record(key, Record(commit_ts, content)))
    assert decoded == Record(commit_ts, content)


@pytest.mark.parametrize(
    "content", [{1: b"value", 2: None, 130: b"x" * 130}, {1: b"value", 2: None, 3: b"x" * 13, 5: b"x" * 130}]
)
def test_every_flipped_bit_is_corruption_in_both_forms(content: dict[int, bytes | None]) -> None:
    key = record_key(PREFIX, b"some\x00row", 150)
    value = encode_record(key, Record(200, content))
    column_of = np.arange(-1, 300, dtype=np.int32)
    for bit in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corruption, match=r"row 'some\\x00row', version 150|checksum"):
            decode_record(key, bytes(flipped))
        assert decoded([(key, bytes(flipped))], column_of)[-2] != record_kernels.GOOD


def test_record_under_another_key_is_corruption() -> None:
    key, other = record_key(PREFIX, b"row", 150), record_key(PREFIX, b"row", 200)
    with pytest.raises(Corruption, match="version 200"):
        decode_record(other, encode_record(key, Record(0, {1: b"v"})))


@pytest.mark.parametrize("length", [0, 3, 11, 12])
def test_cut_record_is_corruption(length: int) -> None:
    key = record_key(PREFIX, b"row", 150)
    value = encode_record(key, Record(0, {1: b"value"}))[:length]
    with pytest.raises(Corruption):
        decode_record(key, value)
    assert decoded([(key, value)], np.arange(-1, 3, dtype=np.int32))[-2] != record_kernels.GOOD


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (dict.fromkeys(range(1, 16), b"1234"), 10 + 15 * 4),
        (dict.fromkeys(range(1, 128)), 66),
        (dict.fromkeys(range(1, 129)), 2 + 127 * 2 + 3),
        ({1: b"x" * 13, 2: b"x" * 14, 3: b"x" * 126, 4: b"x" * 127}, 4 + 13 + 15 + 127 + 129),
        ({1: b"v", 2: b"v", 3: b"v"}, 10),
        ({1: b"v"}, 4),
        ({1: b"v", 5: b"v"}, 7),
        ({1: b"v", 2: b"v", 9: b"v"}, 10),
    ],
)
def test_cells_are_dense_where_that_is_shorter(content: dict[int, bytes | None], size: int) -> None:
    assert len(encode_cells(content)) == size


DENSE_GRAMMAR = [
    b"", b"\x00", b"\x80", b"\x02\x21", b"\x02\x22a", b"\x02\x22aXX", b"\x02\xf1", b"\x02\xf1\x0eaaaaaaaaaaaaa",
    b"\x01\xf0\x80", b"\xff" + bytes(64),
]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [b"\x02\x01\x02a", b"\x01\x01\x09a", b"\x01\x01\x02aXX", b"\x80\x80\x80\x80\x80\x80"]
    + [b"\x00" + each for each in DENSE_GRAMMAR],
)
def test_bad_grammar_under_a_good_checksum_is_corruption_in_both_forms(body: bytes) -> None:
    key = record_key(PREFIX, b"row", 150)
    content = bytes(8) + body
    value = crc32(content, crc32(key)).to_bytes(4, "little") + content
    with pytest.raises(Corruption):
        decode_record(key, value)
    assert decoded([(key, value)], np.arange(-1, 3, dtype=np.int32))[-2] == record_kernels.BAD_GRAMMAR


def test_compiled_checksum_is_that_of_zlib() -> None:
    data = np.frombuffer(bytearray(random.Random(1).randbytes(300)), dtype=np.uint8)
    for length in range(300):
        for before in (0, 0xFFFFFFFF, 12345):
            expected = crc32(data[1 : 1 + length].tobytes(), before)
            assert record_kernels.checksum(data[1 : 1 + length], before) == expected


rows_of_records = st.dictionaries(
    tricky_rows, st.dictionaries(versions, st.tuples(cells, st.integers(0, 1000)), min_size=1, max_size=3), max_size=5
)


@settings(deadline=None)
@given(rows_of_records, st.sets(st.integers(1, 300), max_size=30))
def test_compiled_decoder_finds_what_the_plain_one_finds(
    rows: dict[bytes, dict[int, tuple[dict[int, bytes | None], int]]], unwanted: set[int]
) -> None:
    items = sorted(
        (key := record_key(PREFIX, row, version), encode_record(key, Record(commit_ts, content)))
        for row, written in rows.items()
        for version, (content, commit_ts) in written.items()
    )
    column_of = np.array([-1, *(-1 if n in unwanted else n for n in range(1, 301))], dtype=np.int32)
    data, arrays = decoded_over(items, column_of)
    row_off, row_len, row_rec, rec_version, rec_commit, rec_cell, cell_col, cell_off, cell_len, verdict, _ = arrays
    assert verdict == record_kernels.GOOD
    found = {}
    for row in range(len(row_off)):
        key = data[row_off[row] : row_off[row] + row_len[row]].tobytes()
        for record in range(row_rec[row], row_rec[row + 1]):
            content = {}
            for cell in range(rec_cell[record], rec_cell[record + 1]):
                value = data[cell_off[cell] : cell_off[cell] + cell_len[cell]].tobytes()
                content[int(cell_col[cell])] = None if cell_len[cell] == TOMBSTONE else value
            found[key, int(rec_version[record])] = Record(int(rec_commit[record]), content)
    expected = {}
    for key, value in items:
        whole = decode_record(key, value)
        whole.cells = {number: cell for number, cell in whole.cells.items() if number not in unwanted}
        if whole.cells:
            expected[key_row(key), key_version(key)] = whole
    assert found == expected
    assert list(found) == list(expected), "the order of keys"


def test_decoder_says_which_column_it_does_not_know() -> None:
    key = record_key(PREFIX, b"row", 150)
    value = encode_record(key, Record(0, {9: b"v"}))
    assert decoded([(key, value)], np.arange(-1, 8, dtype=np.int32))[-2:] == (record_kernels.UNKNOWN_COLUMN, 0)


def as_pairs(content: dict[int, bytes | None]) -> bytes:
    """The other form, which `is_dense` did not choose."""
    with mock.patch.object(records, "is_dense", return_value=False):
        return encode_cells(content)


short_cells = st.dictionaries(st.integers(1, 9), st.none() | st.binary(min_size=1, max_size=16), min_size=1, max_size=9)


@given(short_cells, st.frozensets(st.integers(1, 9)), st.data())
def test_a_look_tells_which_columns_a_record_holds(
    content: dict[int, bytes | None], numbers: frozenset[int], data: st.DataObject
) -> None:
    key = record_key(PREFIX, b"row", 150)
    value = encode_record(key, Record(0, content))
    assert holds_only(value, numbers) == (content.keys() <= numbers)
    assert holds_only(record_of(key, 0, as_pairs(content)), numbers) == (content.keys() <= numbers)
    cut = data.draw(st.integers(HEADER_BYTES, len(value) - 1))
    assert not holds_only(value[:cut], frozenset(range(10)))


@settings(deadline=None)
@given(cells, st.sets(column_numbers, max_size=5))
def test_pairs_are_read_and_changed_as_dense_cells_are(content: dict[int, bytes | None], drops: set[int]) -> None:
    key, column_of = record_key(PREFIX, b"row", 150), np.arange(-1, 300, dtype=np.int32)
    old = record_of(key, 0, as_pairs(content))
    assert decode_record(key, old) == Record(0, content)
    arrays = decoded([(key, old)], column_of)
    assert arrays[-2] == record_kernels.GOOD
    assert (arrays[6] + 1).tolist() == sorted(content)
    left = {number: cell for number, cell in content.items() if number not in drops}
    if left and len(left) < len(content):
        data, lens = joined([(key, old)])
        borders, none = np.array([0, len(drops)]), np.array([0, 0])
        found, _, _ = changes.change_records(data, lens, none[:1], np.array(sorted(drops)), borders, none[:0], none)
        assert found.tobytes() == encode_record(key, Record(0, left))


@settings(deadline=None)
@given(
    st.lists(st.tuples(tricky_rows, versions, cells), min_size=1, max_size=5),
    st.sets(st.integers(1, 300), max_size=150),
    st.sets(st.integers(1, 300), max_size=150),
    st.sampled_from([0, 777]),
)
def test_compiled_changes_are_the_plain_ones(
    written: list[tuple[bytes, int, dict[int, bytes | None]]], drops: set[int], heals: set[int], commit_ts: int
) -> None:
    items = [
        (key := record_key(PREFIX, row, version), encode_record(key, Record(0, content)))
        for row, version, content in written
    ]
    count = len(items)
    data, lens = joined(items)
    encoded, bounds, states = changes.change_records(
        data,
        lens,
        np.full(count, commit_ts, dtype=np.int64),
        np.array(sorted(drops) * count, dtype=np.int64),
        np.arange(count + 1, dtype=np.int64) * len(drops),
        np.array(sorted(heals) * count, dtype=np.int64),
        np.arange(count + 1, dtype=np.int64) * len(heals),
    )
    for index, (key, value) in enumerate(items):
        left = {number: cell for number, cell in written[index][2].items() if number not in drops}
        is_healed = commit_ts != 0 and not heals.isdisjoint(left)
        expected = encode_record(key, Record(commit_ts if is_healed else 0, left))
        found = encoded[bounds[index] : bounds[index + 1]].tobytes()
        if not left:
            assert states[index] == changes.EMPTIED
        elif expected == value:
            assert states[index] == changes.UNCHANGED
        else:
            assert states[index] == changes.CHANGED
            assert found == expected


def joined(items: list[tuple[bytes, bytes]]) -> tuple[Any, Any]:
    parts = [part for item in items for part in item]
    data = np.frombuffer(bytearray().join(parts), dtype=np.uint8)
    return data, np.array([len(part) for part in parts], dtype=np.int64)


def decoded_over(items: list[tuple[bytes, bytes]], column_of: Any) -> tuple[Any, Any]:
    data, lens = joined(items)
    copy = data.copy()
    *arrays, status, bad_record = record_kernels.decode_records(data, lens, column_of)
    *plain, plain_status, plain_bad_record = decode_records_plain(copy, lens, column_of)
    assert (plain_status, plain_bad_record) == (status, bad_record)
    if status == record_kernels.GOOD:
        assert [each.tolist() for each in (copy, *plain)] == [each.tolist() for each in (data, *arrays)]
    return data, (*arrays, status, bad_record)


def decoded(items: list[tuple[bytes, bytes]], column_of: Any) -> Any:
    return decoded_over(items, column_of)[1]
