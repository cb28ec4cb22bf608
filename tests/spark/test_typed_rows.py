"""What Spark wrote is read as Python values by typed tables of the client, and the other way."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

import pyomid
import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = [
    {
        "id": number,
        "name": name,
        "money": Decimal(number).scaleb(-2),
        "at": datetime(2026, 1, 1, number, tzinfo=UTC),
        "days": [date(2026, 1, 1), None],
        "more": {"x": 1.5, "y": None},
    }
    for number, name in ((1, "a"), (2, ""), (3, None))
]
DDL = "id long, name string, money decimal(10,2), at timestamp, days array<date>, more struct<x double, y string>"


def test_spark_and_typed_rows_read_each_other(spark: SparkSession, url: str) -> None:
    frame = spark.createDataFrame(ROWS, DDL)
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame, "typed", row_key="id")
    with pyomid.connect(url) as db:
        with db.begin() as tx:
            table = tx.table("typed", codec=dict)
            assert list(table.scan()) == ROWS
            table.put({**ROWS[0], "id": 4, "name": "client"})
            table.put({"id": 5})
            table.delete(1)
        with db.snapshot() as tx:
            expected = list(tx.table("typed", codec=dict).scan())
            assert tx.table("typed").to_arrow().read_all().to_pylist() == expected
    found = spark.read.format("omid").option("url", url).option("table", "typed").load()
    rows = [row.asDict(recursive=True) for row in found.orderBy("id").collect()]
    assert [row["id"] for row in rows] == [2, 3, 4, 5]
    for row, wanted in zip(rows, expected, strict=True):
        at = row.pop("at")
        assert row == {name: value for name, value in wanted.items() if name != "at"}
        assert (at is None) == (wanted["at"] is None)
