"""The change feed as a stream, and a stream into a table, on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from streaming_driver import SEEN, copy, make_tables, put_files

import pyomid
import pyomid.spark
from pyomid.client.database import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

TABLE = "accounts"
UPDATED = [("alice", "update_postimage", 2), ("alice", "update_preimage", 1)]
LATER = [("alice", "update_postimage", 3), ("alice", "update_preimage", 2)]


@pytest.fixture
def database(spark: SparkSession, url: str) -> Iterator[Database]:
    """The table with alice and bob."""
    make(spark, url, TABLE)
    with pyomid.connect(url) as opened:
        yield opened


def make(spark: SparkSession, url: str, table: str) -> None:
    with pyomid.spark.transaction(spark, url) as tx:
        rows = spark.createDataFrame([("alice", 1), ("bob", 1)], "name string, balance long")
        tx.write(rows, table, row_key=["name"], mode="overwrite")


def put(database: Database, name: str, balance: int) -> None:
    with database.begin() as tx:
        tx.table(TABLE, codec=dict).put({"name": name, "balance": balance})


def place(database: Database) -> str:
    """Where a stream begins: now."""
    since = database.bookmark(keep_seconds=600)
    return f"{since.start_ts}:{since.watermark}"


def told(batch: DataFrame) -> list[tuple[str, str, int]]:
    rows = batch.select("name", "_change_type", "balance").collect()
    return sorted((row["name"], row["_change_type"], row["balance"]) for row in rows)


def start(
    spark: SparkSession, url: str, folder: Path, *, table: str = TABLE, sink: Any = None, **options: str
) -> StreamingQuery:
    """A query that appends the changes there are now to a folder of JSON, or hands them to `sink`; and ends."""
    options = {"readChangeFeed": "true", "bookmarkSeconds": "600", **options}
    changes = spark.readStream.format("omid").options(url=url, table=table, **options).load()
    writer = changes.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    if sink is None:
        return writer.format("json").option("path", str(folder / "out")).start()
    return writer.foreachBatch(sink).start()


def patiently(follow: Callable[[], None]) -> None:
    """Spark gives a stream's source ten seconds to start its process, and has done nothing yet where that takes longer.
    A busy machine gets more."""
    for _ in range(5):
        try:
            return follow()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    return follow()


def run(spark: SparkSession, url: str, folder: Path, **options: Any) -> None:
    def follow() -> None:
        query = start(spark, url, folder, **options)
        query.awaitTermination(60)
        assert not query.isActive
        assert query.exception() is None

    patiently(follow)


def written(folder: Path) -> list[tuple[str, str, int]]:
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return sorted((row["name"], row["_change_type"], row["balance"]) for row in rows)


def test_a_stream_goes_on_exactly_where_it_was(
    spark: SparkSession, url: str, database: Database, tmp_path: Path
) -> None:
    starting = place(database)
    put(database, "alice", 2)
    run(spark, url, tmp_path, starting=starting)
    assert written(tmp_path) == UPDATED
    run(spark, url, tmp_path, starting=starting)
    assert written(tmp_path) == UPDATED
    batches = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    put(database, "dora", 4)
    put(database, "dora", 5)
    run(spark, url, tmp_path, starting=starting, maxRowsPerTrigger="1")
    dora = [("dora", "insert", 4), ("dora", "update_postimage", 5), ("dora", "update_preimage", 4)]
    assert written(tmp_path) == [*UPDATED, *dora]
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= batches + 2, "one commit a batch"
    begun = int(starting.split(":")[0])
    assert any(start_ts > begun for start_ts in database.status().tso.leases), "the checkpoint's place is kept"


def test_a_batch_that_died_is_handed_out_again_the_same(
    spark: SparkSession, url: str, database: Database, tmp_path: Path
) -> None:
    """What is written after it died comes in the next one."""
    starting = place(database)
    put(database, "alice", 2)
    batches: list[tuple[int, list[tuple[str, str, int]]]] = []

    def sink(batch: DataFrame, number: int) -> None:
        batches.append((number, told(batch)))
        if len(batches) == 1:
            raise RuntimeError("on purpose")

    with pytest.raises(Exception, match="on purpose"):
        run(spark, url, tmp_path, sink=sink, starting=starting)
    put(database, "alice", 3)
    run(spark, url, tmp_path, sink=sink, starting=starting)
    assert [batch for batch in batches if batch[1]] == [(0, UPDATED), (0, UPDATED), (1, LATER)]


# ---------------------------------------------------------------- into a table


def copied(spark: SparkSession, url: str) -> list[str]:
    return sorted(row["line"] for row in spark.read.format("omid").options(url=url, table=SEEN).load().collect())


def test_a_written_stream_counts_each_batch_once(
    spark: SparkSession, url: str, database: Database, tmp_path: Path
) -> None:
    """Spark forgets that its batches were done, as if it had died behind each commit: it hands them out again."""
    make_tables(spark, url)
    lines = put_files(tmp_path, batches=2)
    copy(spark, url, tmp_path).awaitTermination(60)
    assert copied(spark, url) == lines
    since = database.bookmark(keep_seconds=600)
    for note in (tmp_path / "checkpoint" / "commits").iterdir():
        note.unlink()
    (tmp_path / "in" / "2.txt").write_text("new\n")
    copy(spark, url, tmp_path).awaitTermination(60)
    changes = pyomid.spark.changes(spark, url, SEEN, starting=since)
    assert [(row["line"], row["_change_type"]) for row in changes.collect()] == [("new", "insert")]
    database.release_bookmark(since)


def test_a_written_stream_refuses_an_id_of_its_own(spark: SparkSession, url: str, tmp_path: Path) -> None:
    put_files(tmp_path, batches=1)
    with pytest.raises(Exception, match="transactionId is not for streams"):
        copy(spark, url, tmp_path, transactionId="mine").awaitTermination(60)
