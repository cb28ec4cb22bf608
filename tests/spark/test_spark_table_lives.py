"""R10 on Spark: jobs whose table is dropped, and created again, while they read it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyomid
import pyomid.spark
from pyomid.database.database import Database
from pyomid.errors import SnapshotTooOld

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 20_000
"""Enough for several tasks."""


@pytest.fixture
def database(spark: SparkSession, url: str) -> Iterator[Database]:
    """With the table "lives"."""
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(spark.range(ROWS).selectExpr("id", "id AS v"), "lives", row_key="id")
    with pyomid.connect(url) as opened:
        yield opened
        for name in ("lives", "sums"):
            if name in [info.name for info in opened.tables()]:
                opened.drop_table(name)


def make_anew(database: Database) -> None:
    database.drop_table("lives")
    database.create_table("lives", families=["d"])
    database.set_schema("lives", {"id": int, "v": int}, row_key="id")


def amid_its_tasks(frame: DataFrame, url: str, folder: Path, change: Callable[[Database], None]) -> DataFrame:
    """The frame; the first of its tasks makes the change, others wait for that."""
    mine, done = folder / "mine", folder / "done"

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                os.close(os.open(mine, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                while not done.exists():
                    time.sleep(0.01)
            else:
                with pyomid.connect(url) as database:
                    change(database)
                done.touch()
            yield batch

    return frame.mapInArrow(through, frame.schema)


@pytest.mark.parametrize("is_in_transaction", [False, True], ids=["load", "tx.read"])
def test_tasks_that_begin_behind_a_drop_are_refused(
    spark: SparkSession, url: str, database: Database, tmp_path: Path, is_in_transaction: bool
) -> None:
    """Each is tried again, and refused again. There are more tasks than run at once: some begin after the drop."""

    def anew(database: Database) -> None:
        database.drop_table("lives")
        database.create_table("lives", families=["d"])

    with pyomid.spark.connect(spark, url).begin() as tx:
        loaded = spark.read.format("omid").options(url=url, table="lives", numPartitions="8").load()
        frame = tx.read("lives", partitions=8) if is_in_transaction else loaded
        with pytest.raises(SnapshotTooOld, match="table 'lives' any more"), pyomid.spark.original_errors():
            amid_its_tasks(frame, url, tmp_path, anew).selectExpr("sum(v)").collect()
        tx.rollback()


def test_tasks_go_on_by_the_columns_that_were_planned(
    spark: SparkSession, url: str, database: Database, tmp_path: Path
) -> None:
    frame = spark.read.format("omid").options(url=url, table="lives", numPartitions="8").load()

    def renamed(database: Database) -> None:
        database.alter_columns("lives", rename={"v": "w"})

    (row,) = amid_its_tasks(frame, url, tmp_path, renamed).selectExpr("sum(v)").collect()
    assert row[0] == sum(range(ROWS))


def test_a_run_that_met_a_later_table_runs_again(spark: SparkSession, url: str, database: Database) -> None:
    """Its first snapshot knows a full table; nothing had been read of it."""
    tries: list[int] = []

    def add_up(tx: Any) -> int:
        tries.append(tx.start_ts)
        if len(tries) == 1:
            make_anew(database)
        total = tx.read("lives").selectExpr("'all' AS name", "coalesce(sum(v), 0) AS total")
        tx.write(total, "sums", row_key="name")
        return len(tries)

    assert pyomid.spark.connect(spark, url).run(add_up) == 2
    with database.snapshot() as tx:
        assert tx.table("sums", codec=dict).get("all") == {"name": "all", "total": 0}


def test_a_merge_into_a_later_table_is_refused(spark: SparkSession, url: str, database: Database) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        make_anew(database)
        changed = spark.createDataFrame([(1, 7)], "id long, v long")
        merge = tx.merge(changed, "lives", on=["id"]).whenMatched().updateAll().whenNotMatched().insertAll()
        with pytest.raises(SnapshotTooOld, match="a former table"), pyomid.spark.original_errors():
            merge.merge()
        tx.rollback()
