"""Two writers that make or extend one table at once: what is acknowledged is read, by its name and type."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from test_writer import begin

import pyomid
from pyomid.database.table_admin import alter_columns
from pyomid.errors import ConflictError, Misuse, OmidError
from pyomid.protocol.reading import Snapshot
from pyomid.rows.decode import arrow_schema
from pyomid.rows.schema import Field, schema_of
from pyomid.spark import frame_schema as schema_module
from pyomid.spark.connections import Connection, connection
from pyomid.spark.frame_schema import WriteOptions, check_same_columns
from pyomid.spark.large_transaction import LargeTransaction
from pyomid.spark.source.datasource import OmidDataSource
from pyomid.spark.source.options import Options
from pyomid.spark.source.read_task import ReadPlan, read_range
from pyomid.spark.source.writer import OmidWriter
from pyomid.types import KeyRange, life_of

pytestmark = pytest.mark.fast

_numbers = itertools.count()
_ARROW = {"string": pa.string(), "long": pa.int64(), "double": pa.float64()}


@pytest.fixture
def conn() -> Connection:
    return connection(f"omid-memory:schema-races-{next(_numbers)}")


def prepared(conn: Connection, fields: Sequence[Field], **how: str) -> OmidWriter:
    return OmidWriter.prepared(
        conn, Options({"url": conn.url, "table": "t", **how}), begin(conn), fields, overwrite=False
    )


def save(conn: Connection, fields: Sequence[Field], row: dict[str, Any], **how: str) -> None:
    writer = prepared(conn, fields, **how)
    arrow = pa.schema([(each.name, _ARROW[each.spark_type]) for each in fields])
    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist([row], schema=arrow)]))])


def rows_of(conn: Connection) -> list[dict[str, Any]]:
    begun = conn.deployment.tso.begin()
    info = conn.deployment.catalog.table("t")
    schema = schema_of(info)
    names = tuple(column.name for column in schema.columns)
    plan = ReadPlan(conn.task_url, life_of(info), schema, names, Snapshot(begun.start_ts, begun.epoch), 9)
    return [
        row for batch in read_range(conn, plan, KeyRange(), arrow_schema(schema, names)) for row in batch.to_pylist()
    ]


def happens_behind(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """`act` once, as soon as the next call of this function of the schema's module has returned."""
    real = getattr(schema_module, name)

    def then_act(*given: Any, **how: Any) -> Any:
        monkeypatch.undo()
        found = real(*given, **how)
        act()
        return found

    monkeypatch.setattr(schema_module, name, then_act)


ID, X, PRICE = Field("id", "string"), Field("x", "long"), Field("price", "long")


@pytest.mark.parametrize(
    ("fields", "how", "told"),
    [
        ((ID, Field("day", "string"), X), {"rowKey": "id,day"}, "has the row key"),
        ((ID, Field("x", "double")), {"rowKey": "id"}, "the frame has double"),
        ((ID, X, PRICE), {"rowKey": "id"}, "no column 'price'"),
    ],
)
def test_who_lost_the_making_of_a_table_must_fit_it(
    conn: Connection, monkeypatch: pytest.MonkeyPatch, fields: Sequence[Field], how: dict[str, str], told: str
) -> None:
    """It looked before the table was there, and comes when another made it of other columns."""
    happens_behind(monkeypatch, "table_or_none", lambda: save(conn, (ID, X), {"id": "a", "x": 1}, rowKey="id"))
    with pytest.raises(Misuse, match=told):
        prepared(conn, fields, **how)
    assert rows_of(conn) == [{"id": "a", "x": 1}]


def test_who_lost_the_making_of_a_table_extends_it(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    happens_behind(monkeypatch, "table_or_none", lambda: save(conn, (ID, X), {"id": "a", "x": 1}, rowKey="id"))
    save(conn, (ID, X, PRICE), {"id": "b", "x": 2, "price": 20}, rowKey="id", mergeSchema="true")
    assert rows_of(conn) == [{"id": "a", "x": 1, "price": None}, {"id": "b", "x": 2, "price": 20}]


def test_two_columns_added_at_once_never_share_a_place(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    save(conn, (ID, X), {"id": "a", "x": 1}, rowKey="id")
    other, own = (ID, Field("a", "long")), (ID, Field("b", "string"))

    def another_adds() -> None:
        save(conn, other, {"id": "k", "a": 5}, mergeSchema="true", mapping="a=d:q")

    happens_behind(monkeypatch, "fit_frame", another_adds)
    with pytest.raises(OmidError, match="'a' and 'b' have the same place"):
        prepared(conn, own, mergeSchema="true", mapping="b=d:q")
    assert rows_of(conn) == [{"id": "a", "x": 1, "a": None}, {"id": "k", "x": None, "a": 5}]


def test_a_column_that_was_added_in_between_is_told(conn: Connection) -> None:
    save(conn, [Field("k", "string"), Field("a", "long")], {"k": "x", "a": 1}, rowKey="k")
    schema = schema_of(conn.deployment.catalog.table("t"))
    check_same_columns("the update of 't'", schema, ["k", "a"])
    with pytest.raises(Misuse, match="the update of 't': another transaction has changed the columns"):
        check_same_columns("the update of 't'", schema, ["k", "a", "b"])


def test_a_load_reads_the_columns_that_it_was_planned_with(conn: Connection) -> None:
    """In whichever process, and whatever columns have the names by then (X1)."""
    save(conn, (ID, X, PRICE), {"id": "a", "x": 1, "price": 20}, rowKey="id")
    source = OmidDataSource({"url": conn.url, "table": "t"})
    planned = source.schema()
    source = pickle.loads(pickle.dumps(source))
    alter_columns(conn.deployment, "t", rename={"x": "price", "price": "x"}, add={"note": "string"})
    alter_columns(conn.deployment, "t", drop=["x"])
    reader = source.reader(planned)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [{"id": "a", "x": 1, "price": 20}]
    assert rows_of(conn) == [{"id": "a", "price": 1, "note": None}]


def test_a_transaction_that_meets_two_meanings_of_a_name_begins_anew(conn: Connection) -> None:
    save(conn, (ID, X, PRICE), {"id": "a", "x": 1, "price": 20}, rowKey="id")
    tx = LargeTransaction(conn, begin(conn), level=None, run_id=None, lease=None)
    tx.noticed(conn.deployment.catalog.table("t"))
    alter_columns(conn.deployment, "t", rename={"x": "price", "price": "x"})
    with pytest.raises(ConflictError, match="another column got the name"):
        tx.prepared("t", (ID, X), WriteOptions())


def test_a_write_brings_no_dropped_column_back(conn: Connection) -> None:
    """It was planned before, and looks at the table once more at its commit."""
    save(conn, (ID, X, PRICE), {"id": "a", "x": 1, "price": 20}, rowKey="id")
    writer = prepared(conn, (ID, X))
    message = writer.write(iter([pa.RecordBatch.from_pylist([{"id": "b", "x": 2}])]))
    alter_columns(conn.deployment, "t", drop=["x"])
    with pytest.raises(ConflictError):
        writer.commit([message])
    assert rows_of(conn) == [{"id": "a", "price": 20}]


def test_a_write_of_a_table_with_an_index_is_refused(conn: Connection) -> None:
    save(conn, (ID, X), {"id": "a", "x": 1}, rowKey="id")
    with pyomid.connect(conn.url) as db:
        db.create_index("t", "by_x", ["x"])
    with pytest.raises(Misuse, match="index 'by_x', which Spark's writes do not maintain"):
        prepared(conn, (ID, X))
