"""Ids agree with published MurmurHash3 vectors, and the compiled twin agrees with the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_hashing import murmur3_x64_128, plain_id

from portions import examples
from pyomid.cells import batch_of
from pyomid.protocol import hashing
from pyomid.protocol.native import hashing as hashing_batch
from pyomid.types import Cell

pytestmark = pytest.mark.fast

# Vectors of the Go package spaolacci/murmur3 (murmur_test.go), themselves checked against the C++ original.
PUBLISHED = [
    (b"", 0x0000000000000000, 0x0000000000000000),
    (b"hello", 0xCBD8A7B341BD9B02, 0x5B1E906A48AE1D19),
    (b"hello, world", 0x342FAC623A5EBC8E, 0x4CDCBC079642414D),
    (b"The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9, 0x695DA1A38987B6E7),
]


@pytest.mark.parametrize(("data", "low", "high"), PUBLISHED)
def test_hash_equals_published_vectors(data: bytes, low: int, high: int) -> None:
    assert hashing_batch.murmur3_x64_128(data) == murmur3_x64_128(data) == (low, high)


def test_ids_are_the_signed_low_half_of_the_concatenation() -> None:
    assert hashing.table_id(b"hello") == 0xCBD8A7B341BD9B02 - (1 << 64)
    assert hashing.row_id(b"hel", b"lo") == hashing.table_id(b"hello")
    assert hashing.cell_id(b"h", b"e", b"l", b"lo") == hashing.table_id(b"hello")


keys = st.binary(max_size=40)


@settings(deadline=None, max_examples=examples(60))
@given(
    table=st.binary(min_size=1, max_size=40),
    rows=st.dictionaries(keys, st.sets(st.tuples(keys, keys), min_size=1, max_size=6), max_size=8),
)
def test_compiled_ids_equal_plain_ids(table: bytes, rows: dict[bytes, set[tuple[bytes, bytes]]]) -> None:
    cells = [[Cell(row, f, q, 100, b"v") for f, q in sorted(rows[row])] for row in sorted(rows)]
    batch = batch_of(cells)
    names = [c.row + c.family + c.qualifier for c in batch.all_cells()]
    expected = [plain_id(table + name) for name in names]
    assert hashing_batch.cell_ids(table, batch).tolist() == expected
    assert hashing_batch.name_ids(table, names) == expected
    assert [hashing.cell_id(table, c.row, c.family, c.qualifier) for c in batch.all_cells()] == expected
    assert hashing_batch.row_ids(table, batch).tolist() == [plain_id(table + row) for row in sorted(rows)]
    assert [hashing.row_id(table, row) for row in rows] == [plain_id(table + row) for row in rows]
