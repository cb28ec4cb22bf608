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
    with pyomid.spark.connect(spark, url).begin() as tx:
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
        with pytest.raises(Misuse, match="reads the same table at another snapshot"):
            with db.begin() as tx:
                write(tx)
    with db.begin() as tx:
        tx.write(tx.read("t").selectExpr("id", "twice + 1 AS twice"), "t")
        tx.write(stale.where("id = 0"), "t", stale_read="allow")
    assert sorted(row["twice"] for row in load(spark, url, "t").collect()) == [0, 3, 5, 7, 9]
    assert not spark.getTags()


def test_statements_change_the_database(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    db.sql("CREATE TABLE days (id BIGINT, at TIMESTAMP, note STRING, PRIMARY KEY (id))")
    db.sql("INSERT INTO days SELECT id, DATE'2026-01-01', twice FROM t")
    with db.begin() as tx:
        assert tx.sql("UPDATE days SET note = :v WHERE id = 1", {"v": "it's"}).rows == 1
        assert tx.sql("DELETE FROM days WHERE id >= 3").rows == 2
        merge = "MERGE INTO days d USING {frame} s ON d.id = s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT"
        done = tx.sql(f"{merge} (id, note) VALUES (s.id, 'new')", frame=spark.sql("SELECT 2 AS id UNION ALL SELECT 9"))
        assert (done.deleted, done.inserted) == (1, 1)
    found = db.sql("SELECT id, note, at = TIMESTAMP'2026-01-01' AS same FROM days ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(0, "0", True), (1, "it's", True), (9, "new", None)]
    db.sql("DROP TABLE days")
    assert "days" not in [row[0] for row in db.sql("SHOW TABLES").collect()]


BAD_STATEMENTS = [
    ("SELEC id FROM t", "cannot be parsed"),
    ("UPDATE t SET twice = 1 AS one", "Syntax error at or near 'AS'"),
    ("DELETE FROM t WHERE id = 1 x", "Syntax error at or near 'x'"),
    ("CREATE TABLE IDENTIFIER (k INT PRIMARY KEY)", "Syntax error at or near 'k'"),
    ("DELETE FROM t WHERE nope = 1", "nope"),
    ("UPDATE t SET twice = 'many'", "'twice' has type bigint, but the given value has type string; cast it"),
    ("UPDATE t SET twice = twice + 0.5", "cast it"),
    ("INSERT INTO t VALUES (1)", "1 values for 2 columns"),
    ("SELECT nope FROM t", "nope"),
    ("SELECT 1", "names no table of the database"),
    ("SELECT * FROM tt", "there is no table 'tt' in the database; did you mean 't'"),
    ("UPDATE t SET twice = many", "a text value needs quotes"),
    ("DELETE FROM t WHERE IDENTIFIER('id') = 1", "IDENTIFIER is not supported"),
    ("DELETE FROM t WHERE CAST(id AS STRING) RLIKE concat(id, '(')", "a task of Spark failed: java"),
]


def test_statements_that_fail_are_refused_in_one_sentence(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    before = sorted(tuple(row) for row in db.read("t").collect())
    for statement, message in BAD_STATEMENTS:
        with pytest.raises(Misuse, match=message) as error:
            db.sql(statement).collect()
        assert "\n" not in str(error.value), statement
    assert sorted(tuple(row) for row in db.read("t").collect()) == before


def test_a_frame_of_another_session_is_refused(spark: SparkSession, url: str) -> None:
    """Its jobs would be the other session's, whose tasks are not told of the write."""
    other = spark.newSession()
    with pytest.raises(Misuse, match="does not belong to the Spark Connect session"):
        with pyomid.spark.connect(spark, url).begin() as tx:
            tx.write(other.range(3).selectExpr("id", "id AS twice"), "t")


def test_a_folder_is_refused_where_spark_is_elsewhere(url: str, tmp_path: Path) -> None:
    """Before a database is made here."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    far = ConnectSession("sc://198.51.100.7:15002")
    folder = f"omid://{tmp_path}/none"
    with pytest.raises(Misuse, match=r"a folder on this machine, but this session's Spark runs on '198\.51\."):
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
