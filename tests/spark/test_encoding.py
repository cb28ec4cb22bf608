"""Columns to cells and back: the compiled path against the plain one, value by value."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_values import VALUES
from test_values import ARRAY

from portions import examples
from pyomid.cells import CellBatch, batch_of
from pyomid.errors import Corruption, Misuse
from pyomid.protocol.visibility import visible_cells
from pyomid.rows.column_types import column_type
from pyomid.rows.decode import RowDecoder, arrow_schema
from pyomid.rows.encode import Duplicates, Nulls, RowEncoder
from pyomid.rows.row_key import key_layout
from pyomid.rows.schema import SENTINEL_QUALIFIER, Field, make_schema
from pyomid.rows.values import encode_value
from pyomid.spark.source.write_task import RUN_VARIABLE, in_runs
from pyomid.types import Cell, Column, ColumnSchema, RowKeyPart, TableSchema

ARRAY_OF_DATES = '{"containsNull":true,"elementType":"date","type":"array"}'

pytestmark = pytest.mark.fast

FAMILIES = (b"d",)
TYPES = [*VALUES, ARRAY]
STRATEGIES = {**VALUES, ARRAY: st.lists(st.none() | st.decimals(-100, 100, places=1), max_size=3)}


def table_schema(key: list[tuple[str, bool]], values: list[str]) -> TableSchema:
    keys = tuple(ColumnSchema(f"k{index}", name, None) for index, (name, _) in enumerate(key))
    columns = tuple(ColumnSchema(f"v{index}", name, Column(b"d", b"v%d" % index)) for index, name in enumerate(values))
    return TableSchema(keys + columns, tuple(RowKeyPart(f"k{i}", descending) for i, (_, descending) in enumerate(key)))


def record_batch(schema: TableSchema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    arrow = arrow_schema(schema, [column.name for column in schema.columns])
    return pa.RecordBatch.from_pylist(rows, schema=arrow)


def committed(batch: CellBatch) -> CellBatch:
    batch.rec_version[:] = 50
    batch.rec_commit[:] = 100
    return batch


def decoded(schema: TableSchema, batch: CellBatch, wanted: list[str]) -> pa.RecordBatch:
    return RowDecoder("t", schema, wanted).decode(batch, visible_cells(committed(batch), 150))


@st.composite
def frames(draw: st.DrawFn) -> tuple[TableSchema, list[dict[str, Any]]]:
    key = draw(st.lists(st.tuples(st.sampled_from(list(VALUES)), st.booleans()), min_size=1, max_size=3))
    values = draw(st.lists(st.sampled_from(TYPES), max_size=4))
    schema = table_schema(key, values)
    row = {f"k{i}": VALUES[name] for i, (name, _) in enumerate(key)}
    row |= {f"v{i}": st.none() | STRATEGIES[name] for i, name in enumerate(values)}
    return schema, draw(st.lists(st.fixed_dictionaries(row), max_size=12))


def plain_cells(
    schema: TableSchema, rows: list[dict[str, Any]], nulls: Nulls
) -> dict[bytes, dict[Column, bytes | None]]:
    """The twin: row behind row, one value at a time; a null that keeps keeps what an earlier row of the key said."""
    layout = key_layout(schema)
    sentinel = Column(b"d", SENTINEL_QUALIFIER)
    expected: dict[bytes, dict[Column, bytes | None]] = {}
    for row in rows:
        key = layout.encode([row[name] for name in layout.names])
        cells = {column: value for column, value in expected.get(key, {}).items() if column != sentinel}
        for column in schema.columns:
            value = row[column.name]
            if column.column is not None and (value is not None or nulls is Nulls.TOMBSTONE):
                cells[column.column] = None if value is None else encode_value(value, column.spark_type)
        if all(value is None for value in cells.values()):
            cells[sentinel] = b"\x01"
        expected[key] = cells
    return expected


def cells_by_row(batch: CellBatch) -> dict[bytes, dict[Column, bytes | None]]:
    got: dict[bytes, dict[Column, bytes | None]] = {}
    for cell in batch.all_cells():
        got.setdefault(cell.row, {})[Column(cell.family, cell.qualifier)] = cell.value
    return got


@settings(max_examples=examples(300), deadline=None)
@given(frame=frames(), nulls=st.sampled_from(Nulls))
def test_compiled_and_plain_encoding_are_one(frame: tuple[TableSchema, list[dict[str, Any]]], nulls: Nulls) -> None:
    schema, rows = frame
    encoder = RowEncoder(schema, FAMILIES, duplicates=Duplicates.LAST, nulls=nulls)
    try:
        expected = plain_cells(schema, rows, nulls)
    except Misuse:
        with pytest.raises(Misuse):
            encoder.encode(record_batch(schema, rows))
        return
    got = cells_by_row(encoder.encode(record_batch(schema, rows)))
    assert got == expected
    assert list(got) == sorted(got)


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"k0": st.sampled_from("ab"), "v0": st.none() | st.integers(0, 3), "v1": st.none() | st.text(max_size=2)}
        ),
        max_size=6,
    ),
    nulls=st.sampled_from(Nulls),
    border=st.integers(0, 6),
)
def test_the_last_row_of_a_key_depends_on_no_batchs_border(
    rows: list[dict[str, Any]], nulls: Nulls, border: int
) -> None:
    """In the store the cells of a task's later batch lie over those of its earlier ones."""
    schema = table_schema([("string", False)], ["long", "string"])
    encoder = RowEncoder(schema, FAMILIES, duplicates=Duplicates.LAST, nulls=nulls)
    stored: dict[bytes, dict[Column, bytes | None]] = {}
    for part in (rows[:border], rows[border:]):
        for key, cells in cells_by_row(encoder.encode(record_batch(schema, part))).items():
            stored.setdefault(key, {}).update(cells)
    whole = cells_by_row(encoder.encode(record_batch(schema, rows)))
    sentinel = Column(b"d", SENTINEL_QUALIFIER)
    assert {key: {**cells, sentinel: None} for key, cells in stored.items()} == {
        key: {**cells, sentinel: None} for key, cells in whole.items()
    }


@settings(max_examples=examples(150), deadline=None)
@given(
    frame=frames(),
    nulls=st.sampled_from(Nulls),
    draw=st.randoms(use_true_random=False),
    run_bytes=st.sampled_from(["0", "200", ""]),
)
def test_a_frame_written_in_parts_and_runs_is_the_frame(
    frame: tuple[TableSchema, list[dict[str, Any]]], nulls: Nulls, draw: random.Random, run_bytes: str
) -> None:
    """Divided anywhere, and sorted in runs of any length."""
    schema, rows = frame
    try:
        expected = plain_cells(schema, rows, nulls)
    except Misuse:
        return
    encoder, sentinel = (
        RowEncoder(schema, FAMILIES, duplicates=Duplicates.LAST, nulls=nulls),
        {Column(b"d", SENTINEL_QUALIFIER): None},
    )
    names = [column.name for column in schema.columns]
    whole = decoded(schema, encoder.encode(record_batch(schema, rows)), names)
    stored: dict[bytes, dict[Column, bytes | None]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUN_VARIABLE, run_bytes)
        borders = sorted({0, len(rows), *(draw.randrange(len(rows) + 1) for _ in range(3))})
        parts = [record_batch(schema, rows).slice(first, last - first) for first, last in pairwise(borders)]
        for batch in in_runs(encoder, parts, 3):
            for key, cells in cells_by_row(encoder.encode(batch)).items():
                stored.setdefault(key, {}).update(cells)
        assert decoded(schema, encoder.encode(record_batch(schema, rows)), names).equals(whole)
    assert {key: cells | sentinel for key, cells in stored.items()} == {
        key: cells | sentinel for key, cells in expected.items()
    }


@pytest.mark.parametrize("name", ["timestamp", "timestamp_ntz", "date"])
def test_two_equal_keys_beyond_the_year_9999_are_refused(name: str) -> None:
    """Spark's calendar goes on where Python's ends: the refusal must not fail on showing the key."""
    schema = table_schema([(name, False)], [])
    count = pa.array([9_000_000] * 2, pa.int32()) if name == "date" else pa.array([9 * 10**17] * 2, pa.int64())
    frame = pa.record_batch({"k0": count.cast(column_type(name).arrow)})
    with pytest.raises(Misuse, match=r"two rows have the row key \(k0\) = 0x[0-9a-f]+"):
        RowEncoder(schema, FAMILIES).encode(frame)


@settings(max_examples=examples(200), deadline=None)
@given(frame=frames(), data=st.data())
def test_what_was_encoded_is_decoded_in_key_order(
    frame: tuple[TableSchema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    schema, rows = frame
    layout = key_layout(schema)
    try:
        last = {layout.encode([row[name] for name in layout.names]): row for row in rows}
    except Misuse:
        return
    names = [column.name for column in schema.columns]
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True))
    encoder = RowEncoder(schema, FAMILIES, duplicates=Duplicates.LAST)
    batch = encoder.encode(record_batch(schema, rows))
    expected = record_batch(schema, [last[key] for key in sorted(last)]).select(wanted)
    got = decoded(schema, batch, wanted)
    got.validate(full=True)
    assert got.num_rows == len(last)
    assert got.to_pylist() == expected.to_pylist()


def test_slices_of_arrow_columns_are_read_at_their_place() -> None:
    schema = table_schema([("string", False)], ["boolean", "string", "long", "decimal(10,2)"])
    rows = [
        {"k0": f"r{i:02}", "v0": i % 3 == 0, "v1": "x" * i, "v2": None if i % 4 == 0 else i, "v3": Decimal(i)}
        for i in range(40)
    ]
    part = record_batch(schema, rows).slice(11, 17)
    batch = RowEncoder(schema, FAMILIES).encode(part)
    assert decoded(schema, batch, part.schema.names).to_pylist() == rows[11:28]


def test_large_offsets_and_other_time_zones_are_the_same_values() -> None:
    schema = table_schema([("timestamp", False)], ["string"])
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    frame = pa.record_batch(
        {
            "k0": pa.array([moment], type=pa.timestamp("us", tz="America/New_York")),
            "v0": pa.array(["x"], type=pa.large_string()),
        }
    )
    batch = RowEncoder(schema, FAMILIES).encode(frame)
    assert decoded(schema, batch, ["k0", "v0"]).to_pylist() == [{"k0": moment, "v0": "x"}]


def test_two_rows_with_one_key_are_named_and_refused() -> None:
    schema = table_schema([("date", False), ("long", True)], ["long"])
    row = {"k0": date(2013, 1, 1), "k1": 7, "v0": 1}
    with pytest.raises(Misuse, match=r"k0=datetime.date\(2013, 1, 1\), k1=7.*duplicates=last"):
        RowEncoder(schema, FAMILIES).encode(record_batch(schema, [row, row | {"k1": 8}, row]))


def test_null_in_a_key_names_the_column() -> None:
    schema = table_schema([("long", False), ("string", False)], [])
    with pytest.raises(Misuse, match="'k1' is null"):
        RowEncoder(schema, FAMILIES).encode(record_batch(schema, [{"k0": 1, "k1": None}]))


def test_columns_that_are_not_written_get_no_cell() -> None:
    schema = table_schema([("long", False)], ["long", "long"])
    batch = RowEncoder(schema, FAMILIES, written=("k0", "v1")).encode(
        pa.record_batch({"k0": pa.array([1], pa.int64()), "v1": pa.array([2], pa.int64())})
    )
    assert [cell.qualifier for cell in batch.all_cells()] == [b"v1"]


def test_a_stored_value_of_another_length_is_corruption_that_names_row_and_column() -> None:
    wide, narrow = table_schema([("long", False)], ["integer"]), table_schema([("long", False)], ["long"])
    batch = RowEncoder(wide, FAMILIES).encode(record_batch(wide, [{"k0": 1, "v0": 2}]))
    with pytest.raises(Corruption, match=r"table 't', row k0=1, column 'v0': .*is not a valid long; another program"):
        decoded(narrow, batch, ["v0"])


@pytest.mark.parametrize("stored", [b'["a"]', b"[NaN]", b"[99999999999999999999]", b"[", b"[" * 100_000, b'{"a":1}'])
def test_a_nested_value_of_another_type_is_corruption_of_its_row(stored: bytes) -> None:
    schema = table_schema([("long", False)], ['{"containsNull":true,"elementType":"integer","type":"array"}'])
    rows = [
        [Cell(bytes([128, 0, 0, 0, 0, 0, 0, n]), b"d", b"v0", 50, value)] for n, value in ((1, b"[1]"), (2, stored))
    ]
    with pytest.raises(Corruption, match=r"table 't', row k0=2, column 'v0'"):
        decoded(schema, batch_of(rows), ["k0", "v0"])


def test_a_nested_date_outside_of_the_calendar_is_refused() -> None:
    schema = table_schema([("long", False)], [ARRAY_OF_DATES])
    far = pa.array([[5_000_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int64()), far], names=["k0", "v0"])
    with pytest.raises(Misuse, match="outside the years 1 to 9999"):
        RowEncoder(schema, FAMILIES).encode(batch)


@pytest.mark.parametrize("schema", ["key", "value"])
def test_a_string_that_is_not_utf8_is_refused_by_its_column(schema: str) -> None:
    """Spark's strings hold any bytes; stored, they would be read as corruption."""
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    good = pa.array(["a"])
    columns = (bad, good) if schema == "key" else (good, bad)
    table = make_schema([Field("k", "string"), Field("v", "string")], (RowKeyPart("k"),))
    encoder = RowEncoder(table, (b"d",), written=("k", "v"), duplicates=Duplicates.ERROR)
    with pytest.raises(Misuse, match="'k'.*not UTF-8" if schema == "key" else "'v'.*not UTF-8"):
        encoder.encode(pa.RecordBatch.from_arrays(list(columns), names=["k", "v"]))
