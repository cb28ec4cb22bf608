"""Two writers that make or extend one table at once: what is acknowledged is read, by its name and type."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from test_writer import begin

from pyomid.errors import Misuse, OmidError
from pyomid.protocol.reading import Snapshot
from pyomid.row_codec.decode import arrow_schema
from pyomid.row_codec.schema import Field, schema_of
from pyomid.spark import schema as schema_module
from pyomid.spark.databases import Connection, connection
from pyomid.spark.schema import check_same_columns
from pyomid.spark.source.datasource import OmidWriter
from pyomid.spark.source.options import Options
from pyomid.spark.source.read_task import ReadPlan, read_range
from pyomid.types import KeyRange

pytestmark = pytest.mark.fast

_numbers = itertools.count()
_ARROW = {"string": pa.string(), "long": pa.int64(), "double": pa.float64()}


@pytest.fixture
def conn() -> Connection:
    return connection(f"omid-memory:schema-races-{next(_numbers)}")


def prepared(conn: Connection, fields: Sequence[Field], **how: str) -> OmidWriter:
    return OmidWriter.prepared(Options({"url": conn.url, "table": "t", **how}), begin(conn), fields, overwrite=False)


def save(conn: Connection, fields: Sequence[Field], row: dict[str, Any], **how: str) -> None:
    writer = prepared(conn, fields, **how)
    arrow = pa.schema([(each.name, _ARROW[each.spark_type]) for each in fields])
    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist([row], schema=arrow)]))])


def rows_of(conn: Connection) -> list[dict[str, Any]]:
    begun = conn.deployment.tso.begin()
    schema = schema_of(conn.deployment.catalog.table("t"))
    names = tuple(column.name for column in schema.columns)
    plan = ReadPlan(conn.url, "t", schema, names, Snapshot(begun.start_ts, begun.epoch), 9, leased=False)
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
        save(conn, other, {"id": "k", "a": 5}, mergeSchema="true", columnMapping="a=d:q")

    happens_behind(monkeypatch, "fit_frame", another_adds)
    with pytest.raises(OmidError, match="'a' and 'b' are both stored in"):
        prepared(conn, own, mergeSchema="true", columnMapping="b=d:q")
    assert rows_of(conn) == [{"id": "a", "x": 1, "a": None}, {"id": "k", "x": None, "a": 5}]


def test_a_column_that_was_added_in_between_is_told(conn: Connection) -> None:
    save(conn, [Field("k", "string"), Field("a", "long")], {"k": "x", "a": 1}, rowKey="k")
    schema = schema_of(conn.deployment.catalog.table("t"))
    check_same_columns("the update of 't'", schema, ["k", "a"])
    with pytest.raises(Misuse, match="the update of 't': another transaction added a column"):
        check_same_columns("the update of 't'", schema, ["k", "a", "b"])
