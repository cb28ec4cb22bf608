"""Reads, writes, upserts, a transaction and a stream, shortly: what runs on every PySpark that is declared
(`make test-pysparks`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_sessions import REMOTE

import pyomid.spark
from pyomid.spark.transactions import SparkTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.connect]

ROWS = """
    select id, id * 2 as twice, timestamp'2013-01-01 10:00:00' as at, array(id) as list,
           map('a', struct(id as x)) as nested, cast(null as string) as nothing
    from range(5)
"""


def written(spark: SparkSession, url: str, table: str) -> DataFrame:
    frame = spark.sql(ROWS)
    frame.write.format("omid").option("url", url).option("table", table).option("rowKey", "id").mode("append").save()
    return frame


def load(spark: SparkSession, url: str, table: str) -> DataFrame:
    return spark.read.format("omid").option("url", url).option("table", table).load()


def test_what_was_written_is_read(spark: SparkSession, url: str) -> None:
    frame = written(spark, url, "read")
    found = load(spark, url, "read")
    assert found.schema.simpleString() == frame.schema.simpleString()
    assert sorted(map(repr, found.collect())) == sorted(map(repr, frame.collect()))
    assert [row["twice"] for row in found.where("id = 3").select("twice").collect()] == [6]


def test_a_transaction_upserts_and_deletes_in_two_tables_or_in_none(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    for table in ("left", "right"):
        written(spark, url, table)
    with db.transaction(transaction_id="smoke") as tx:
        tx.write(tx.read("left").where("id < 2").selectExpr("id", "twice + 100 as twice"), "left")
        tx.delete(tx.read("right").where("id < 4").select("id"), "right")

    def fails() -> None:
        with db.transaction() as tx:
            tx.write(tx.read("left").selectExpr("id", "0L as twice"), "left")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert sorted(row["twice"] for row in load(spark, url, "left").select("twice").collect()) == [4, 6, 8, 100, 102]
    assert [row["id"] for row in load(spark, url, "right").select("id").collect()] == [4]
    assert db.verify().ok


def test_each_batch_of_a_stream_is_one_transaction(spark: SparkSession, url: str, tmp_path: Path) -> None:
    spark.range(3).write.json(f"{tmp_path}/in")

    def upsert(tx: SparkTransaction, batch: DataFrame) -> None:
        tx.write(batch, "streamed", row_key=["id"])

    stream = spark.readStream.schema("id long").json(f"{tmp_path}/in").writeStream
    sink = pyomid.spark.connect(spark, url).stream_sink(upsert, query_id="smoke" if REMOTE in os.environ else None)
    query = stream.foreachBatch(sink).option("checkpointLocation", f"{tmp_path}/at").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(row["id"] for row in load(spark, url, "streamed").collect()) == [0, 1, 2]
