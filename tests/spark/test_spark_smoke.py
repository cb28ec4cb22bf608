"""Each operation once, shortly: what runs on every PySpark that is declared (`make test-pysparks`) and over Spark
Connect (`make test-long`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_frames import load
from spark_sessions import REMOTE
from streaming_driver import patiently

import pyomid.spark
from pyomid.errors import ConflictError
from pyomid.spark.transactions import SparkTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

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
    with db.begin(run_id="smoke") as tx:
        tx.write(tx.read("left").where("id < 2").selectExpr("id", "twice + 100 as twice"), "left")
        tx.delete(tx.read("right").where("id < 4").select("id"), "right")

    def fails() -> None:
        with db.begin() as tx:
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


def test_changes_stream_from_table_to_table(spark: SparkSession, url: str, tmp_path: Path) -> None:
    db = pyomid.spark.connect(spark, url)
    written(spark, url, "from")
    since = db.bookmark(keep_seconds=600)
    with db.begin() as tx:
        tx.write(spark.range(3, 7).selectExpr("id", "id * 3 AS twice"), "from")
    options = {"readChangeFeed": "true", "startingBookmark": str(since)}
    changes = spark.readStream.format("omid").options(url=url, table="from", **options).load()
    told = changes.selectExpr("id", "twice", "_change_type AS kind")

    def started() -> StreamingQuery:
        writer = told.writeStream.format("omid").options(url=url, table="told", rowKey="id,kind")
        return writer.option("checkpointLocation", f"{tmp_path}/at").trigger(availableNow=True).start()

    patiently(started)
    found = spark.read.format("omid").options(url=url, table="told").load().collect()
    assert sorted((row["id"], row["kind"], row["twice"]) for row in found) == [
        (3, "update_postimage", 9),
        (3, "update_preimage", 6),
        (4, "update_postimage", 12),
        (4, "update_preimage", 8),
        (5, "insert", 15),
        (6, "insert", 18),
    ]


def test_sql_asks_and_changes(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    written(spark, url, "asked")
    with db.begin() as tx:
        assert tx.sql("UPDATE asked SET twice = twice + :more WHERE id >= 3", {"more": 100}).rows == 2
        tx.sql("INSERT INTO asked (id, twice) SELECT id, twice FROM {new}", new=spark.sql("SELECT 5L id, 9L twice"))
        assert tx.sql("SELECT sum(twice) FROM asked").first()[0] == 229
    db.sql("DELETE FROM asked WHERE id BETWEEN 1 AND 3")
    assert db.sql("SELECT id, twice FROM asked ORDER BY id").collect() == [(0, 0), (4, 108), (5, 9)]
    assert [name for name in db.views("asked", prefix="v_") if spark.table(name).count() == 3] == ["v_asked"]


def test_change_data_is_applied_and_a_range_is_deleted(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    frame = spark.range(30_000).selectExpr("id", "cast(id % 100 as int) AS part", "id AS lsn")
    with db.begin() as tx:
        assert tx.write(frame, "applied", row_key=["part desc", "id"], mode="insert").rows == 30_000
    with db.begin() as tx:
        assert tx.delete("applied", where="part >= 3").rows == 29_100
        feed = spark.sql("SELECT id, cast(id % 100 as int) AS part, 7L AS lsn, id = 1 AS gone FROM range(3)")
        done = tx.apply_changes(feed, "applied", sequence_by="lsn", deletes="gone")
    assert (done.updated, done.deleted) == (2, 1)
    assert db.sql("SELECT count(*), sum(lsn) FROM applied WHERE id < 200").collect() == [(5, 14 + 100 + 101 + 102)]


def test_an_insert_and_a_transaction_that_lost_are_refused_while_they_write(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    frame = written(spark, url, "lost").repartition(2)
    with pytest.raises(pyomid.errors.Misuse, match=r"'id'|id=.*exists in table"), db.begin() as tx:
        tx.write(frame, "lost", mode="insert")
    tx = db.begin()
    written(spark, url, "lost")
    with pytest.raises(ConflictError):
        tx.write(frame, "lost")
    tx.rollback()


def test_changes_are_read_as_in_delta_and_undone(spark: SparkSession, url: str) -> None:
    kept = url + "&retention=1h"
    db = pyomid.spark.connect(spark, kept)
    with db.begin() as tx:
        tx.write(spark.range(3).selectExpr("id", "0L AS v"), "undone", row_key="id")
    first, before = tx.commit_ts, db.bookmark()
    assert first is not None
    db.sql("UPDATE undone SET v = 1 WHERE id > 1")
    db.sql("INSERT INTO undone VALUES (7, 7)")
    by_option = {"readChangeFeed": "true", "startingVersion": str(first + 1)}
    frame = spark.read.format("omid").options(url=kept, table="undone", **by_option).load()
    for changes in (db.changes("undone", before), frame):
        found = sorted((row["id"], row["v"], row["_change_type"]) for row in changes.collect())
        assert found == [(2, 0, "update_preimage"), (2, 1, "update_postimage"), (7, 7, "insert")]
    assert db.read("undone", at=first).count() == 3
    restored = db.restore("undone", first)
    assert (restored.rows_written, restored.rows_deleted) == (1, 1)
    assert sorted(db.read("undone").collect()) == [(0, 0), (1, 0), (2, 0)]
    newest, *_, oldest = db.history("undone").collect()
    assert (newest.version, newest.inserted, newest.updated, newest.deleted) == (restored.commit_version, 0, 1, 1)
    assert (oldest.version, oldest.inserted) == (first, 3)
