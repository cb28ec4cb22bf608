"""What is otherwise over Spark Connect. These run, with all that is marked `connect`, if PYOMID_TEST_REMOTE says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from spark_frames import load
from spark_sessions import REMOTE

import pyomid.spark
from pyomid.errors import Misuse
from pyomid.spark import SparkTransaction
from pyomid.spark.sessions import check_same_machine, is_connect, parallelism

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.connect,
    pytest.mark.skipif(REMOTE not in os.environ, reason=f"over Spark Connect only, which {REMOTE} names"),
]


@pytest.fixture(autouse=True)
def table(spark: SparkSession, url: str) -> None:
    with pyomid.spark.connect(spark, url).transaction() as tx:
        tx.write(spark.range(5).selectExpr("id", "id * 2 AS twice"), "t", row_key="id", mode="overwrite")


def test_the_servers_parallelism_is_known(spark: SparkSession) -> None:
    assert is_connect(spark)
    assert parallelism(spark) == 2


def test_a_stale_frame_is_refused_by_its_tasks(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    stale = load(spark, url, "t")
    writes: list[Callable[[SparkTransaction], object]] = [
        lambda tx: tx.write(stale, "t"),
        lambda tx: tx.merge(stale, "t", on="id").whenMatched().updateAll().merge(),
        lambda tx: tx.delete(stale.where("id = 1"), "t"),
    ]
    for write in writes:
        with pytest.raises(Misuse, match="computed from a read of the same table at another snapshot"):
            with db.transaction() as tx:
                write(tx)
    with db.transaction() as tx:
        tx.write(tx.read("t").selectExpr("id", "twice + 1 AS twice"), "t")
        tx.write(stale.where("id = 0"), "t", stale_read="allow")
    assert sorted(row["twice"] for row in load(spark, url, "t").collect()) == [0, 3, 5, 7, 9]
    assert not spark.getTags()


def test_a_frame_of_another_session_is_refused(spark: SparkSession, url: str) -> None:
    """Its jobs would be the other session's, whose tasks are not told of the write."""
    other = spark.newSession()
    with pytest.raises(Misuse, match="belongs to another Spark Connect session"):
        with pyomid.spark.connect(spark, url).transaction() as tx:
            tx.write(other.range(3).selectExpr("id", "id AS twice"), "t")


def test_a_folder_is_refused_where_spark_is_elsewhere(url: str, tmp_path: Path) -> None:
    """Before a database is made here."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    far = ConnectSession("sc://198.51.100.7:15002")
    folder = f"omid://{tmp_path}/none"
    with pytest.raises(Misuse, match=r"a folder of this machine, but this session's Spark runs on '198\.51\."):
        pyomid.spark.connect(far, folder)
    assert not list(tmp_path.iterdir())
    check_same_machine(far, "omid+hbase://zk1:2181/hbase")
    for here in ("localhost", "127.0.0.1", "no-such-host.invalid"):
        check_same_machine(ConnectSession(f"sc://{here}:15002"), url)


def test_a_sink_needs_to_be_told_its_query(spark: SparkSession, url: str, tmp_path: Path) -> None:
    spark.range(3).write.json(f"{tmp_path}/in")
    sink = pyomid.spark.connect(spark, url).stream_sink(lambda tx, batch: tx.write(batch, "streamed", row_key="id"))
    stream = spark.readStream.schema("id long").json(f"{tmp_path}/in").writeStream.foreachBatch(sink)
    query = stream.option("checkpointLocation", f"{tmp_path}/at").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="over Spark Connect a batch does not carry the id of its query"):
        query.awaitTermination(60)
