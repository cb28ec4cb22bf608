"""Cell blocks: the compiled decoder equals the reference implementation; malformed bytes raise `Corruption`."""

from __future__ import annotations

import random
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyomid.cells import CellBatch
from pyomid.errors import Corruption
from pyomid.omid.hbase.codec.batches import BatchDecoder, ScanBlock, batch_of_writes, cells_of
from pyomid.omid.hbase.codec.keyvalues import DELETE_VERSION, PUT, KeyValue, decode, encode
from pyomid.omid.hbase.codec.layout import LEGACY_TOMBSTONE, SHADOW_SUFFIX, shadow_qualifier, timestamp_bytes
from pyomid.types import Cell, Column, RowWrite

Drawn = list[tuple[bytes, bytes, bytes, int, bytes, str, bool]]
"""Row, family, qualifier, version, value, which shadow cell, and whether it is of the old form."""

names = st.sampled_from([b"", b"a", b"a\x01", b"ab", b"b", b"\x00", b"\xc2", b"\x80", b"\x00\xc2\x80", b"zz"])
values = st.one_of(st.binary(max_size=6), st.just(LEGACY_TOMBSTONE), st.just(b""))
cells = st.tuples(
    st.sampled_from([b"r1", b"r2", b"r22", b"s"]),
    st.sampled_from([b"f", b"g", b"ff"]),
    names,
    st.integers(1, 5).map(lambda step: 50 * step),
    values,
    st.sampled_from(["none", "beside", "alone", "short"]),
    st.booleans(),
)


def stored(drawn: Drawn) -> list[KeyValue]:
    """What HBase holds, in its own order: row, family, qualifier, newest first."""
    found: dict[tuple[bytes, bytes, bytes, int], bytes] = {}
    for row, family, qualifier, version, value, shadow, legacy in drawn:
        if shadow != "alone":
            found[row, family, qualifier, version] = value
        if shadow != "none":
            name = qualifier + SHADOW_SUFFIX if legacy else shadow_qualifier(qualifier)
            found[row, family, name, version] = b"bad" if shadow == "short" else timestamp_bytes(version + 50)
    ordered = sorted(found, key=lambda key: (key[0], key[1], key[2], -key[3]))
    return [KeyValue(*key, found[key]) for key in ordered]


def block_of(key_values: list[KeyValue], *, ends_inside_row: bool = False, restarted: bool = False) -> ScanBlock:
    data = memoryview(bytearray(b"".join(map(encode, key_values))))
    return ScanBlock(data, len(key_values), ends_inside_row, restarted)


def point_rows(key_values: list[KeyValue]) -> dict[bytes, list[Cell]]:
    rows = {row: cells_of(members) for row, members in groupby(key_values, key=lambda cell: cell.row)}
    return {row: sorted(found) for row, found in rows.items() if found}


def batch_rows(batch: CellBatch | None) -> dict[bytes, list[Cell]]:
    if batch is None:
        return {}
    return {batch.row_key(index): sorted(batch.row_cells(index)) for index in range(batch.rows)}


@given(st.lists(cells, max_size=40))
def test_the_compiled_decoder_equals_the_reference(
    drawn: Drawn,
) -> None:
    # A legacy and a prefixed shadow cell beside one cell never both exist: the later draw of one cell decides.
    key_values = stored([cell for cell in drawn if not _has_two_shadow_forms(cell, drawn)])
    batch, _ = BatchDecoder().decode(block_of(key_values))
    assert batch_rows(batch) == point_rows(key_values)


def _has_two_shadow_forms(cell: tuple[object, ...], drawn: Drawn) -> bool:
    return any(cell[:4] == other[:4] and cell != other for other in drawn)


@given(st.lists(cells, max_size=30), st.integers(0, 60))
def test_a_row_in_two_blocks_is_decoded_once_and_whole(drawn: Drawn, cut: int) -> None:
    key_values = stored([cell for cell in drawn if not _has_two_shadow_forms(cell, drawn)])
    cut = min(cut, len(key_values))
    inside = 0 < cut < len(key_values) and key_values[cut - 1].row == key_values[cut].row
    decoder = BatchDecoder()
    first, _ = decoder.decode(block_of(key_values[:cut], ends_inside_row=inside))
    second, _ = decoder.decode(block_of(key_values[cut:]))
    rows = batch_rows(first)
    assert not rows.keys() & batch_rows(second).keys()
    assert rows | batch_rows(second) == point_rows(key_values)


def test_a_data_cells_name_may_itself_be_a_shadow_cells_name() -> None:
    """In one block and in two: no cell of ours has such a name, and other programs' tables are read as they are."""
    odd = b"\x00\xc2\x80"
    key_values = [
        KeyValue(b"r1", b"g", shadow_qualifier(odd), 50, timestamp_bytes(100)),
        KeyValue(b"r2", b"g", b"\x00", 250, b"value"),
        KeyValue(b"r2", b"g", odd, 250, timestamp_bytes(300)),
    ]
    assert odd == b"\x00" + SHADOW_SUFFIX
    for cut in (0, 1):
        decoder = BatchDecoder()
        rows = [batch_rows(decoder.decode(block_of(part))[0]) for part in (key_values[:cut], key_values[cut:])]
        assert rows[0] | rows[1] == {b"r2": [Cell(b"r2", b"g", b"\x00", 250, b"value", 300)]} == point_rows(key_values)


def test_a_restarted_scan_drops_the_partial_row() -> None:
    begun = [KeyValue(b"r", b"f", b"a", 50, b"1")]
    whole = [*begun, KeyValue(b"r", b"f", b"b", 50, b"2")]
    decoder = BatchDecoder()
    assert decoder.decode(block_of(begun, ends_inside_row=True)) == (None, None)
    batch, settled = decoder.decode(block_of(whole, restarted=True))
    assert settled == b"r"
    assert batch_rows(batch) == point_rows(whole)


def test_the_table_of_columns_grows() -> None:
    key_values = [KeyValue(b"r", b"f", b"%06d" % index, 50, b"v") for index in range(5000)]
    decoder = BatchDecoder()
    batch, _ = decoder.decode(block_of(key_values))
    assert batch_rows(batch) == point_rows(key_values)
    again, _ = decoder.decode(block_of(key_values))
    assert again is not None
    assert again.columns == [Column(b"f", b"%06d" % index) for index in range(5000)]


def test_adjacent_cells_of_one_commit_share_a_record() -> None:
    key_values = stored([(b"r", b"f", b"%d" % index, 50, b"v", "beside", False) for index in range(5)])
    batch, _ = BatchDecoder().decode(block_of(key_values))
    assert batch is not None
    assert (batch.rows, batch.records, batch.cells) == (1, 1, 5)
    assert batch.rec_commit.tolist() == [100]


def test_delete_markers_are_not_decoded_as_cells() -> None:
    key_values = [KeyValue(b"r", b"f", b"a", 50, b"", DELETE_VERSION), KeyValue(b"r", b"f", b"b", 50, b"v", PUT)]
    batch, _ = BatchDecoder().decode(block_of(key_values))
    assert [cell.qualifier for cell in batch.all_cells()] == [b"b"] if batch else False


@given(st.lists(cells, min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_malformed_blocks_raise_corruption(drawn: Drawn, chance: random.Random) -> None:
    data = bytearray(b"".join(map(encode, stored(drawn))))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        del data[chance.randrange(len(data)) :]
    try:
        list(decode(data))
        is_whole = True
    except Corruption:
        is_whole = False
    try:
        BatchDecoder().decode(ScanBlock(memoryview(data), 1, False, False))
        assert is_whole, "the compiled decoder took what its twin refuses"
    except Corruption:
        assert not is_whole, "the compiled decoder refused what its twin takes"


def test_a_batch_owns_its_bytes() -> None:
    block = block_of([KeyValue(b"r", b"f", b"a", 50, b"v")])
    batch, _ = BatchDecoder().decode(block)
    assert batch is not None
    assert batch.buffer.dtype == np.uint8
    assert batch.value(0) == b"v"


rows_written = st.lists(
    st.builds(
        RowWrite,
        st.sampled_from([b"a", b"ab", b"b", b"\x00", b"\xff" * 40]),
        st.lists(
            st.tuples(st.builds(Column, st.sampled_from([b"f", b"g"]), names), st.none() | st.binary(min_size=1)),
            min_size=1,
            max_size=4,
            unique_by=lambda cell: cell[0],
        ).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


@given(rows_written)
def test_a_batch_of_writes_holds_them_all(writes: list[RowWrite]) -> None:
    batch = batch_of_writes(writes)
    assert (batch is None) == (len({write.row for write in writes}) < len(writes))
    if batch is not None:
        found = {
            batch.row_key(row): {Column(cell.family, cell.qualifier): cell.value for cell in batch.row_cells(row)}
            for row in range(batch.rows)
        }
        assert found == {write.row: dict(write.cells) for write in writes}
        assert list(found) == sorted(found)
        assert batch.records == batch.rows


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300])
def test_qualifiers_of_any_length(length: int) -> None:
    cell = KeyValue(b"r", b"f", b"q" * length, 50, b"v")
    assert list(decode(encode(cell))) == [cell]
