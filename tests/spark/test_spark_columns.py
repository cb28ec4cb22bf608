"""Columns change beside Spark: a job that was planned before goes by what it was planned with, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as t
from spark_frames import load

import pyomid
import pyomid.spark
from pyomid.errors import ConflictError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def made(spark: SparkSession, url: str, table: str) -> DataFrame:
    """The table's frame, loaded before anything changes."""
    frame = spark.createDataFrame([("k", 1, 2, 0.5)], "id string, a int, b int, f float")
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame, table, row_key=["id"])
    return load(spark, url, table)


def as_dicts(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: str(row["id"]))


def test_a_frame_reads_the_columns_that_it_was_loaded_with(spark: SparkSession, url: str) -> None:
    """A name that went to another column meanwhile, a dropped and a widened one: what is read is what was planned."""
    db = pyomid.spark.connect(spark, url)
    before = made(spark, url, "swapped")
    with db.begin() as tx:
        inside = tx.read("swapped")
        db.alter_columns("swapped", rename={"a": "b", "b": "a"}, drop=["f"], add={"f": t.StringType()})
        assert as_dicts(inside) == [{"id": "k", "a": 1, "b": 2, "f": 0.5}]
        with pytest.raises(ConflictError, match="another column got the name 'a'"):
            tx.read("swapped")
    db.alter_columns("swapped", widen={"b": t.LongType(), "a": "long"}, order=["f", "id"])
    with db.begin() as tx:
        tx.write(spark.createDataFrame([("m", 2**40, "x")], "id string, b long, f string"), "swapped")
    assert as_dicts(before) == [{"id": "k", "a": 1, "b": 2, "f": 0.5}]
    after = load(spark, url, "swapped")
    assert after.columns == ["f", "id", "b", "a"]
    old, new = {"id": "k", "b": 1, "a": 2, "f": None}, {"id": "m", "b": 2**40, "a": None, "f": "x"}
    assert as_dicts(after) == [old, new]
    with pyomid.connect(url) as client, client.snapshot() as snapshot:
        assert list(snapshot.table("swapped", codec=dict).scan()) == [old, new]
    narrow = spark.createDataFrame([("k", 5)], "id string, b int")
    with db.begin() as tx:
        tx.write(narrow, "swapped")
    assert as_dicts(load(spark, url, "swapped"))[0]["b"] == 5


def test_a_write_that_was_planned_before_brings_no_column_back(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    made(spark, url, "planned")
    tx = db.begin()
    tx.write(spark.createDataFrame([("m", 7, 8)], "id string, a int, b int"), "planned")
    db.alter_columns("planned", drop=["a"], rename={"b": "c"})
    with pytest.raises(ConflictError):
        tx.commit()
    assert as_dicts(load(spark, url, "planned")) == [{"id": "k", "c": 2, "f": 0.5}]
    writer = (
        spark.createDataFrame([("m", 9)], "id string, b int").write.format("omid").options(url=url, table="planned")
    )
    with pytest.raises(Exception, match="no column 'b'"):
        writer.mode("append").save()
    writer.option("mergeSchema", "true").mode("append").save()
    found = as_dicts(load(spark, url, "planned"))
    assert found == [{"id": "k", "c": 2, "f": 0.5, "b": None}, {"id": "m", "c": None, "f": None, "b": 9}]
