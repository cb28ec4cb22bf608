"""What Spark does behind our back: an abort behind a commit, a job that fails for good, another interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

import pyomid
import pyomid.spark
from pyomid.spark.source.writer import OmidWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 500


def check_each_partition_is_one_attempt(stored: DataFrame, partitions: int = 3) -> None:
    found = stored.groupBy(f.expr(f"id div {ROWS}").alias("p")).agg(
        f.count("*").alias("n"), f.countDistinct("attempt").alias("attempts")
    )
    assert sorted((row["p"], row["n"], row["attempts"]) for row in found.collect()) == [
        (partition, ROWS, 1) for partition in range(partitions)
    ]


@pytest.mark.long
def test_an_exception_behind_the_commit_does_not_undo_it(spark: SparkSession, url: str) -> None:
    """Spark calls `abort` after an exception in `commit`, in another process: the commit stays."""

    db = pyomid.spark.connect(spark, url)

    class Interrupted(OmidWriter):
        def commit(self, messages: list[Any]) -> None:
            super().commit(messages)
            raise RuntimeError("behind the commit")

    class Source(pyomid.spark.source.datasource.OmidDataSource):
        @classmethod
        def name(cls) -> str:
            return "omid_interrupted"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            made = super().writer(schema, overwrite)
            made.__class__ = Interrupted
            return made

    spark.dataSource.register(Source)
    frame = spark.range(10).selectExpr("id", "id * 2 AS twice")
    writer = frame.write.format("omid_interrupted").option("url", url).option("table", "kept").option("rowKey", "id")
    with pytest.raises(Exception, match="behind the commit"):
        writer.mode("append").save()
    with db.transaction() as tx:
        assert tx.read("kept").count() == 10
    assert db.verify().ok


def test_a_job_that_fails_for_good_leaves_nothing_visible(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    with db.transaction() as tx:
        tx.write(spark.range(1).selectExpr("id", "0L AS v"), "failed", row_key=["id"])
    bad = spark.range(0, 100, numPartitions=2).selectExpr("id", "CASE WHEN id = 99 THEN 1 DIV 0 ELSE 7 END AS v")
    with pytest.raises(Exception, match=r"(?i)divi"):
        bad.write.format("omid").option("url", url).option("table", "failed").mode("append").save()
    with db.transaction() as tx:
        assert [tuple(row) for row in tx.read("failed").collect()] == [(0, 0)]


def test_python_of_the_workers_is_the_environment_s_own(spark: SparkSession) -> None:
    def interpreter(batches: Iterator[Any]) -> Iterator[Any]:
        import sys as worker_sys

        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [worker_sys.executable]})

    found = spark.range(1).mapInArrow(interpreter, "python string").first()["python"]
    assert Path(found).resolve() == Path(sys.executable).resolve()
