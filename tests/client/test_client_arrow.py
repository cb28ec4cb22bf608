"""Rows as Arrow without Spark, held against the rows themselves."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from pyomid.database.database import Database
from pyomid.database.tables import arrow
from pyomid.database.writes.shown_rows import visible_rows
from pyomid.errors import ConflictError, Misuse, MisuseType, TransactionEnded
from pyomid.protocol.visibility import visible_cells
from pyomid.types import BeginReply, KeyRange

pytestmark = pytest.mark.fast

LIST = '{{"type":"array","elementType":{},"containsNull":true}}'
NO_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
ROWS = [{"id": number, "name": f"n{number}", "money": Decimal(number) / 2} for number in range(-3, 30)]


@pytest.fixture
def typed(db: Database) -> Database:
    db.set_schema("t", {"id": int, "name": str, "money": "decimal(10,2)"}, row_key="id")
    with db.begin() as tx:
        for row in ROWS:
            tx.table("t", codec=dict).put(row)
    return db


def test_a_typed_table_is_read_by_its_schema(typed: Database) -> None:
    with typed.begin() as tx:
        table = tx.table("t")
        tx.table("t", codec=dict).put({"id": 99, "name": None})
        reader = table.to_arrow()
        assert hasattr(reader, "__arrow_c_stream__")
        assert reader.schema.types == [pa.int64(), pa.string(), pa.decimal128(10, 2)]
        own = {"id": 99, "name": None, "money": None}
        assert reader.read_all().to_pylist() == [*ROWS, own], "own writes too"
        assert table.to_arrow(columns=["name"]).read_all().column_names == ["name"]
        with pytest.raises(Misuse, match="not nme"):
            table.to_arrow(columns=["nme"])


def test_an_untyped_table_is_read_as_bytes(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        for key in (b"a1", b"a2", b"b"):
            table.put(key, {b"f:x": key, b"g:\xff": b"2"})
        table.delete(b"a2", [b"f:x"])
        assert table.to_arrow(prefix=b"a", columns=[b"f:x"]).read_all().to_pylist() == [
            {"key": b"a1", "f:x": b"a1"}, {"key": b"a2", "f:x": None},
        ]  # fmt: skip
        cells = [(b"f:x", b"a1"), (b"g:\xff", b"2")]
        assert table.to_arrow(stop=b"a2").read_all().to_pylist() == [{"key": b"a1", "cells": cells}]
        with pytest.raises(MisuseType, match="not bytes"):
            table.to_arrow(columns=["f:x"])


class Stream:
    """What DuckDB and Polars see of a reader."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.__arrow_c_stream__ = reader.__arrow_c_stream__


def test_others_take_a_reader_as_it_is(typed: Database) -> None:
    """By Arrow's C stream alone, and pandas."""
    with typed.snapshot() as tx:
        table = tx.table("t")
        assert pa.table(Stream(table.to_arrow())).to_pylist() == ROWS
        assert table.to_arrow().read_pandas()["name"].tolist() == [row["name"] for row in ROWS]


def test_a_reader_works_in_any_thread_and_ends_with_its_transaction(typed: Database) -> None:
    """DuckDB and others read in threads of their own."""
    found: list[int] = []
    with typed.snapshot() as tx:
        reader = tx.table("t").to_arrow()
        thread = threading.Thread(target=lambda: found.append(reader.read_all().num_rows))
        thread.start()
        thread.join()
        late = tx.table("t").to_arrow()
    assert found == [len(ROWS)]
    with pytest.raises(TransactionEnded):
        late.read_all()


@pytest.mark.parametrize("savepoint", [False, True])
def test_what_is_written_as_arrow_is_read_as_rows(typed: Database, savepoint: bool) -> None:
    data = pa.table({"money": pa.array([Decimal("1.5"), None]), "id": pa.array([7, 100], pa.int32())})
    with typed.begin() as tx:
        table = tx.table("t", codec=dict)
        table.put({"id": 100, "money": Decimal(9), "name": "before"})
        saved = tx.savepoint() if savepoint else None
        assert tx.table("t").write_arrow(data) == 2
        assert table.get(7) == {"id": 7, "name": "n7", "money": Decimal("1.50")}
        assert table.get(100) == {"id": 100, "name": "before", "money": None}
        table.put({"id": 7, "money": Decimal(2)})
        if saved is not None:
            saved.rollback()
            assert table.get(7) == ROWS[10]
            assert tx.table("t").write_arrow(data.to_reader()) == 2
    other = typed.begin()
    with typed.begin() as tx:
        tx.table("t").write_arrow(data.slice(0, 1).to_batches()[0])
    other.table("t", codec=dict).put({"id": 7, "money": Decimal(2)})
    with pytest.raises(ConflictError):
        other.commit()
    with typed.snapshot() as tx:
        assert tx.table("t", codec=dict).get(7) == {"id": 7, "name": "n7", "money": Decimal("1.50")}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"id": [1], "money": ["x"]}, "'money'"),
        ({"id": [1.5]}, "'id'"),
        ({"id": [2.0]}, "'id'"),
        ({"id": ["1"]}, "'id'"),
        ({"id": [1], "money": [0.125]}, "'money'"),
        ({"id": [1], "name": [True]}, "'name'"),
        ({"money": [Decimal(1)]}, "lack the row key column 'id'"),
        ({"id": [1], "nme": ["x"]}, "nme"),
        ({"id": [None]}, "id"),
        ({"id": [1, 1]}, "two rows"),
    ],
)
def test_data_that_do_not_fit_are_refused(typed: Database, data: dict[str, list[object]], said: str) -> None:
    with typed.begin() as tx:
        with pytest.raises(Misuse, match=said):
            tx.table("t").write_arrow(pa.table(data))
        with pytest.raises(MisuseType, match="not Arrow data"):
            tx.table("t").write_arrow([1])
        assert tx.table("t").to_arrow().read_all().num_rows == len(ROWS)


def test_data_that_stop_fitting_leave_nothing_to_commit(typed: Database) -> None:
    batches = [pa.record_batch({"id": [1000]}), pa.record_batch({"id": pa.array([None], pa.int64())})]
    tx = typed.begin()
    with pytest.raises(Misuse):
        tx.table("t").write_arrow(pa.Table.from_batches(batches))
    with pytest.raises(TransactionEnded, match="only 1 rows"):
        tx.commit()
    tx.rollback()


def test_an_untyped_table_is_copied_by_arrow(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        table.put(b"old", {b"f:x": b"1"})
        data = pa.table({"key": [b"a", b"old"], "f:x": [b"1", None]})
        assert table.write_arrow(data) == 2
        assert list(table.scan()) == [(b"a", {b"f:x": b"1"})]
        for wrong in ({"f:x": [b"1"]}, {"key": [b"a"], "f:x": ["text"]}, {"key": [b"a"], "h:x": [b"1"]}):
            with pytest.raises(Misuse):
                table.write_arrow(pa.table(wrong))
        with pytest.raises(Misuse, match="two columns named 'f:x'"):
            table.write_arrow(pa.table([[b"k"], [b"1"], [b"2"]], names=["key", "f:x", "f:x"]))
        views = pa.table({"key": pa.array([b"b"], pa.binary_view()), "f:x": pa.array([b"2"], pa.large_binary())})
        assert table.write_arrow(views) == 1
        assert table.get(b"b") == {b"f:x": b"2"}


def test_a_frame_of_pandas_is_written_as_it_comes(db: Database) -> None:
    """An index without a name, which filters and sorts leave, is no column."""
    db.set_schema("t", {"id": int, "name": str}, row_key="id")
    frame = pd.DataFrame({"id": [502, 503, 504], "name": ["c", "b", None]})
    rows = {502: "c", 503: "b", 504: None}
    for data in (frame, frame[frame.id > 0], frame.sort_values("name"), frame.set_index("id"), pd.concat([frame] * 1)):
        with db.begin() as tx:
            assert tx.table("t").write_arrow(data) == len(rows)
            assert {row["id"]: row["name"] for row in tx.table("t").to_arrow().read_all().to_pylist()} == rows
            tx.rollback()


def test_a_write_of_one_row_leaves_its_data_as_they_were(db: Database) -> None:
    """Else the next try of a transaction writes another key."""
    db.set_schema("t", {"id": "decimal(2,0)", "v": int}, row_key="id")
    data = pa.table({"id": pa.array([Decimal(5)], pa.decimal128(2, 0)), "v": pa.array([1])})
    for _ in range(2):
        with db.begin() as tx:
            tx.table("t").write_arrow(data)
            assert data["id"].to_pylist() == [Decimal(5)]
    with db.snapshot() as tx:
        assert tx.table("t").to_arrow().read_all()["id"].to_pylist() == [Decimal(5)]


@pytest.mark.parametrize("in_list", [False, True])
def test_a_decimal_of_more_digits_than_its_own_type_is_refused(db: Database, in_list: bool) -> None:
    """Arrow's unsafe casts make them."""
    listed = '{"type":"array","elementType":"decimal(4,2)","containsNull":true}'
    db.set_schema("t", {"id": "decimal(4,2)", "v": listed}, row_key="id")
    wrong = pa.array([Decimal("999.99")], pa.decimal128(5, 2)).cast(pa.decimal128(4, 2), safe=False)
    right = pa.array([Decimal("1.00")], pa.decimal128(4, 2))
    data = {"id": right, "v": pa.ListArray.from_arrays([0, 1], wrong)} if in_list else {"id": wrong}
    with db.begin() as tx, pytest.raises(MisuseType, match=f"column '{'v' if in_list else 'id'}'"):
        tx.table("t").write_arrow(pa.table(data))


NOON = datetime(2020, 1, 2, 12, 30)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("date", [date(2020, 1, 1), NOON]),
        ("timestamp", [NOON.replace(tzinfo=UTC), NOON]),
        ("timestamp_ntz", [NOON, NOON.replace(tzinfo=UTC)]),
        ("binary", ["ä", b"b"]),
    ],
)
@pytest.mark.parametrize("is_category", [False, True])
def test_objects_of_several_kinds_are_refused(db: Database, kind: str, values: list[object], is_category: bool) -> None:
    """Arrow would make one type of them, without the time of day, the zone, or what was text."""
    db.set_schema("t", {"id": int, "v": kind}, row_key="id")
    objects = pd.Series(values, dtype=object)
    frame = pd.DataFrame({"id": range(len(values)), "v": objects.astype("category") if is_category else objects})
    with db.begin() as tx, pytest.raises(MisuseType, match="column 'v' has values of"):
        tx.table("t").write_arrow(frame)


@pytest.mark.parametrize(
    "values",
    [[Decimal("Infinity")], ["\ud800"], [2**64], [1, "a"], pd.arrays.SparseArray([0]), [1j], [{1: 2}]],
    ids=["infinity", "surrogate", "long int", "int and str", "sparse", "complex", "dict of ints"],
)
def test_what_arrow_cannot_convert_is_refused_with_its_column(db: Database, values: Iterable[object]) -> None:
    db.set_schema("t", {"id": int, "v": float}, row_key="id")
    v = values if isinstance(values, pd.arrays.SparseArray) else pd.Series(values, dtype=object)
    frame = pd.DataFrame({"id": range(len(values)), "v": v})
    with db.begin() as tx, pytest.raises(MisuseType, match="column 'v' cannot be converted to Arrow: ") as raised:
        tx.table("t").write_arrow(frame)
    assert raised.value.values["column"] == "v"


@pytest.mark.parametrize("values", [[1.5, True], [[1.5, True]], [{"a": 1.5}, {"a": False}]], ids=str)
def test_a_bool_among_floats_is_refused(db: Database, values: list[object]) -> None:
    db.set_schema("t", {"id": int, "v": float}, row_key="id")
    frame = pd.DataFrame({"id": range(len(values)), "v": pd.Series(values, dtype=object)})
    with db.begin() as tx, pytest.raises(MisuseType, match="column 'v' has values of float and of bool"):
        tx.table("t").write_arrow(frame)


@pytest.mark.parametrize(
    ("kind", "values", "read"),
    [
        (bool, [True, float("nan")], [True, None]),
        ("timestamp_ntz", pd.Series([NOON, pd.NaT], dtype=object), [NOON, None]),
    ],
    ids=["nan among bools", "NaT among objects"],
)
def test_what_pandas_has_for_null_is_null(db: Database, kind: Any, values: Any, read: list[Any]) -> None:
    db.set_schema("t", {"id": int, "v": kind}, row_key="id")
    with db.begin() as tx:
        tx.table("t").write_arrow(pd.DataFrame({"id": [1, 2], "v": values}))
        assert tx.table("t").to_arrow().read_all()["v"].to_pylist() == read


def test_a_reader_of_no_rows_has_a_batch(db: Database) -> None:
    """Polars takes the columns from the first one."""
    db.set_schema("t", {"id": int, "name": str}, row_key="id")
    with db.snapshot() as tx:
        assert [batch.num_rows for batch in tx.table("t").to_arrow()] == [0]


@pytest.mark.parametrize(
    "data",
    [
        pa.chunked_array([[1]]),
        pa.array([{"id": 1}, None]),
        pa.table([[1], ["a"], ["b"]], names=["id", "name", "name"]),
        pa.table({"id": pa.chunked_array([], pa.int64()), "name": pa.chunked_array([], pa.int64())}),
        pa.RecordBatchReader.from_batches(pa.schema([("id", pa.string())]), []),
        pd.DataFrame({"id": [1], "name": [object()]}),
        pd.DataFrame([[1, "a", "b"]], columns=["id", "name", "name"]),
        pd.DataFrame({"id": [1]}).set_index("id", drop=False),
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_is_no_table_of_the_columns_is_refused_without_a_row(typed: Database, data: object) -> None:
    with typed.begin() as tx, pytest.raises(Misuse):
        tx.table("t").write_arrow(data)


@pytest.mark.parametrize(
    "text",
    [
        *(NO_TEXT.cast(kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        pa.ListArray.from_arrays([0, 1], NO_TEXT),
    ],
    ids=lambda text: str(text.type),
)
def test_a_text_that_is_no_utf8_is_refused_with_its_column(db: Database, text: pa.Array) -> None:
    db.set_schema("t", {"id": int, "v": LIST.format('"string"') if pa.types.is_list(text.type) else str}, row_key="id")
    with db.begin() as tx, pytest.raises(Misuse, match=r"'v'.*UTF-?8"):
        tx.table("t").write_arrow(pa.table({"id": [1], "v": text}))


def test_typed_rows_need_no_arrow(memory_url: str) -> None:
    """pyarrow is imported when Arrow is asked for."""
    tags = '{"type":"array","elementType":"string","containsNull":true}'
    code = (
        "import sys, pyomid; sys.modules['pyarrow'] = None\n"
        f"db = pyomid.connect({memory_url!r}); db.create_table('t', ['f'])\n"
        f"db.set_schema('t', {{'id': int, 'tags': {tags!r}}}, row_key='id')\n"
        "tx = db.begin(); t = tx.table('t', codec=dict); t.put({'id': 1, 'tags': ['x']}); print(t.get(1)['tags'])\n"
        "try: tx.table('t').to_arrow()\n"
        "except pyomid.ExtraMissing as error: print(error.values, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == (
        "['x']\n{'extra': 'arrow'} Arrow needs the package pyarrow, which is not installed: "
        "pip install 'pyomid[arrow]'\n"
    ), done.stderr


def test_columns_read_by_kernels_are_those_of_the_rows(memory_db: Database) -> None:
    names = [b"f:x", b"g:none", b"f:y"]
    with memory_db.begin() as tx:
        table = tx.table("t")
        for number in range(200):
            table.put(b"%03d\0" % number, dict.fromkeys(names[:: number % 2 + 1], b"%d" % number * (number % 4 + 1)))
            table.put(b"%03d\0" % number, {b"f:other": b"1"})
    with memory_db.begin() as tx:
        tx.table("t").delete_rows(b"%03d\0" % number for number in range(0, 200, 7))
        tx.table("t").delete(b"003\0", [b"f:other"])
    with memory_db.begin() as tx:
        rules, store = memory_db._core.table_rules("t", BeginReply(tx.start_ts)), memory_db._core.deployment.store
        for asked in (names, names[1:2], []):
            untyped = arrow.converter(rules, asked)
            for batch in store.scan("t", KeyRange(), batch_rows_max=37):
                visible = visible_cells(batch, tx.start_ts)
                found = untyped.decode(batch, visible)
                found.validate(full=True)
                rows = list(visible_rows(batch, visible, batch.columns))
                values = [[row.get(column) for _, row in rows] for column in untyped.columns]
                assert found.to_pydict() == dict(
                    zip(found.schema.names, [[key for key, _ in rows], *values], strict=True)
                )
