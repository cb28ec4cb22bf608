"""The change feed as a frame on a real Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import pyomid
import pyomid.spark
from pyomid.errors import Misuse, UnknownTable
from pyomid.protocol.timestamps import time_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TABLE = "accounts"


@pytest.fixture
def database(spark: SparkSession, url: str) -> Any:
    """The table with alice and bob."""
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame(spark, [("alice", 1), ("bob", 1)]), TABLE, row_key=["name"], mode="overwrite")
    with pyomid.connect(url) as db:
        yield db


def frame(spark: SparkSession, rows: list[tuple[str, int | None]]) -> DataFrame:
    return spark.createDataFrame(rows, "name string, balance long")


def write(spark: SparkSession, url: str, rows: list[tuple[str, int | None]]) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame(spark, rows), TABLE)


def told(changes: DataFrame) -> list[tuple[Any, ...]]:
    rows = changes.select("name", "balance", "_change_type").collect()
    return sorted((row["name"], row["_change_type"], row["balance"]) for row in rows)


def test_changes_have_deltas_columns_and_are_exact(spark: SparkSession, url: str, database: Any) -> None:
    db = pyomid.spark.connect(spark, url)
    since = database.bookmark(keep_seconds=600)
    write(spark, url, [("alice", 2), ("carol", 3)])
    with db.begin() as tx:
        tx.delete(TABLE, where="name = 'bob'")
    until = database.bookmark()
    write(spark, url, [("alice", 9)])
    found = db.changes(TABLE, starting=since, ending=until)
    assert found.columns == ["name", "balance", "_change_type", "_commit_version", "_commit_timestamp"]
    expected = [
        ("alice", "update_postimage", 2),
        ("alice", "update_preimage", 1),
        ("bob", "delete", 1),
        ("carol", "insert", 3),
    ]
    assert told(found) == expected
    by_commit = {row["name"]: row["_commit_version"] for row in found.collect()}
    assert by_commit["alice"] == by_commit["carol"] < by_commit["bob"] < until.start_ts
    assert [row["name"] for row in found.filter("_change_type = 'delete'").select("name").collect()] == ["bob"]
    database.release_bookmark(since)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give one of the options startingVersion, startingTimestamp, startingBookmark"),
        ({"startingBookmark": "yesterday"}, "is not a bookmark"),
        (
            {"startingBookmark": "5:9"},
            "option startingBookmark 5:9 is not a bookmark: its first number is greater than its second",
        ),
        ({"startingTimestamp": "2020-01-01T00:00:00"}, "no time zone"),
        ({"startingVersion": "5", "startingBookmark": "5:0"}, "give only one of them"),
        ({"startingVersion": str(1 << 62)}, f"startingVersion={1 << 62} lies after ending"),
        (
            {"startingVersion": str(1 << 62), "endingVersion": "1"},
            f"startingVersion={1 << 62} lies after endingVersion=1",
        ),
    ],
)
def test_a_bad_read_of_changes_is_one_sentence(
    spark: SparkSession, url: str, database: Any, options: dict[str, str], says: str
) -> None:
    reader = spark.read.format("omid").options(url=url, table=TABLE, readChangeFeed="true")
    with pytest.raises(Exception, match=says):
        reader.options(**options).load().collect()


def test_f5_changes_from_before_a_tables_creation_are_all_of_it(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """As Delta's version 0; unless another table had the name."""
    kept = url + "&retention=1h"
    db = pyomid.spark.connect(spark, kept)
    since = db.bookmark()
    with db.begin() as tx:
        tx.write(frame(spark, [("alice", 1), ("bob", 2)]), "born", row_key=["name"])
    inserts = [("alice", "insert", 1), ("bob", "insert", 2)]
    options = {"url": kept, "table": "born", "readChangeFeed": "true"}

    def changes(**begins: Any) -> list[tuple[Any, ...]]:
        return told(spark.read.format("omid").options(**options, **begins).load())

    assert changes(startingBookmark=str(since)) == changes(startingVersion=1) == inserts
    assert changes(startingTimestamp="2020-01-01T00:00:00Z") == inserts
    stream = spark.readStream.format("omid").options(**options, startingBookmark=str(since)).load()
    query = stream.writeStream.format("memory").queryName("born")
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    started.awaitTermination()
    assert told(spark.table("born")) == inserts
    with pyomid.connect(url) as client:
        client.drop_table("born")
    with db.begin() as tx:
        tx.write(frame(spark, [("carol", 3)]), "born", row_key=["name"])
    with pytest.raises(Exception, match=r"created at .*, after startingBookmark=.*.* a former table"):
        changes(startingBookmark=str(since))
    with pytest.raises(Exception, match=r"created at .*, after startingVersion=2.* a former table"):
        changes(startingVersion=2)


def test_changes_begin_and_end_at_versions_and_timestamps_as_in_delta(spark: SparkSession, url: str) -> None:
    """A version is included, on both sides; a time counts everything that was acknowledged by it."""
    kept = url + "&retention=1h"
    db = pyomid.spark.connect(spark, kept)
    versions, times = [], []
    for count in range(4):
        with db.begin() as tx:
            tx.write(frame(spark, [("alice", count)]), "timed", row_key=["name"])
        assert tx.commit_ts is not None
        versions.append(tx.commit_ts)
        times.append(datetime.now(UTC))

    def read(**options: Any) -> set[int]:
        reader = spark.read.format("omid").options(url=kept, table="timed", readChangeFeed="true", **options)
        return {row["_commit_version"] for row in reader.load().collect()}

    assert read(startingVersion=versions[1], endingVersion=versions[2]) == set(versions[1:3])
    assert read(startingVersion=versions[1] + 1) == set(versions[2:])
    assert read(startingVersion=versions[1], endingTimestamp=times[2].isoformat()) == set(versions[1:3])
    assert read(startingTimestamp=times[1].isoformat()) == set(versions[2:])
    assert read(startingTimestamp=times[1].isoformat(), endingTimestamp=times[2].isoformat()) == {versions[2]}
    assert read(startingTimestamp="2200-01-01T00:00:00Z") == set(), "a time in the future is now"
    at = {row["_commit_timestamp"] for row in db.changes("timed", versions[2], versions[2]).collect()}
    assert [time_of(versions[2])] == [each.astimezone(UTC) for each in at]
    found = db.changes("timed", times[2], times[3]).where("_change_type <> 'update_preimage'")
    assert {row["_commit_version"] for row in found.collect()} == {versions[3]}


def test_the_call_fixes_both_ends_of_the_changes(spark: SparkSession, url: str) -> None:
    """Also one that is a time in the future: it is now, and now is when the call was made."""
    db = pyomid.spark.connect(spark, url + "&retention=1h")

    def commit(name: str) -> None:
        with db.begin() as tx:
            tx.write(frame(spark, [(name, 1)]), "ends", row_key=["name"])

    since = db.bookmark()
    commit("alice")
    later = datetime.now(UTC) + timedelta(hours=1)
    found = [db.changes("ends", since), db.changes("ends", since, later), db.changes("ends", later)]
    commit("bob")
    assert [told(each) for each in found] == [[("alice", "insert", 1)], [("alice", "insert", 1)], []]


def test_a_bookmark_of_a_dropped_table_is_refused(spark: SparkSession, url: str, database: Any) -> None:
    """Also where a table of its name is there again."""
    db = pyomid.spark.connect(spark, url)
    since = database.bookmark(keep_seconds=600)
    planned = db.changes(TABLE, starting=since)
    database.drop_table(TABLE)
    with pytest.raises(UnknownTable, match=TABLE):
        db.changes(TABLE, starting=since)
    with pytest.raises(UnknownTable, match=TABLE), pyomid.spark.original_errors():
        planned.collect()
    with db.begin() as tx:
        tx.write(frame(spark, [("alice", 7)]), TABLE, row_key=["name"])
    with (
        pytest.raises(Misuse, match=r"after startingBookmark=.* a former table"),
        pyomid.spark.original_errors(),
    ):
        db.changes(TABLE, starting=since).collect()
    database.release_bookmark(since)
