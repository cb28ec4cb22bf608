"""The change feed as a stream, and a stream into a table, on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_sessions import kill_driver, stopped_driver
from streaming_driver import ACCOUNTS, MIRROR, SEEN, copy, make_tables, mirror, patiently, put_files

import pyomid
import pyomid.spark
from pyomid.database.database import Database
from pyomid.database.transaction import Transaction
from pyomid.spark.source.stream_reader import HAS_READ_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

TABLE = ACCOUNTS
UPDATED = [("alice", "update_postimage", 2), ("alice", "update_preimage", 1)]
LATER = [("alice", "update_postimage", 3), ("alice", "update_preimage", 2)]


@pytest.fixture
def database(spark: SparkSession, url: str) -> Iterator[Database]:
    """The table with alice and bob."""
    make(spark, url, TABLE)
    with pyomid.connect(url) as opened:
        yield opened


def make(spark: SparkSession, url: str, table: str) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        rows = spark.createDataFrame([("alice", 1), ("bob", 1)], "name string, balance long")
        tx.write(rows, table, row_key=["name"], mode="overwrite")


def put(database: Database, name: str, balance: int) -> int:
    """Its commit. Made again where it took longer than a transaction lives, on a busy machine."""
    made = []

    def body(tx: Transaction) -> None:
        tx.table(TABLE, codec=dict).put({"name": name, "balance": balance})
        made.append(tx)

    database.run(body)
    assert made[-1].commit_ts is not None
    return made[-1].commit_ts


def place(database: Database) -> str:
    """Where a stream begins: now."""
    return str(database.bookmark(keep_seconds=600))


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


def run(spark: SparkSession, url: str, folder: Path, **options: Any) -> StreamingQuery:
    return patiently(lambda: start(spark, url, folder, **options))


def written(folder: Path) -> list[tuple[str, str, int]]:
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return sorted((row["name"], row["_change_type"], row["balance"]) for row in rows)


def test_a_stream_goes_on_exactly_where_it_was(
    spark: SparkSession, url: str, database: Database, tmp_path: Path
) -> None:
    starting = place(database)
    put(database, "alice", 2)
    run(spark, url, tmp_path, startingBookmark=starting)
    assert written(tmp_path) == UPDATED
    run(spark, url, tmp_path, startingBookmark=starting)
    assert written(tmp_path) == UPDATED
    batches = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    put(database, "dora", 4)
    put(database, "dora", 5)
    limited = run(spark, url, tmp_path, startingBookmark=starting, maxRowsPerTrigger="1")
    if HAS_READ_LIMITS:  # then Spark asks for the lag, too
        lags = [json.loads(progress.sources[0].latestOffset)["rowsBehind"] for progress in limited.recentProgress]
        assert (lags[0], lags[-1]) == (2, 0)
    dora = [("dora", "insert", 4), ("dora", "update_postimage", 5), ("dora", "update_preimage", 4)]
    assert written(tmp_path) == [*UPDATED, *dora]
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= batches + 2, "one commit a batch"
    begun = int(starting.split(":")[0])
    assert any(start_ts > begun for start_ts in database.status().tso.leases), "the checkpoint's place is kept"


def test_a_batch_that_died_is_handed_out_again_the_same(
    spark: SparkSession, url: str, database: Database, tmp_path: Path
) -> None:
    """What is written after it died comes in the next one. Where the first one began is in the checkpoint, and not
    what a query that is started again without that option would begin at."""
    starting = place(database)
    put(database, "alice", 2)
    batches: list[tuple[int, list[tuple[str, str, int]]]] = []

    def sink(batch: DataFrame, number: int) -> None:
        batches.append((number, told(batch)))
        if len(batches) == 1:
            raise RuntimeError("on purpose")

    with pytest.raises(Exception, match="on purpose"):
        run(spark, url, tmp_path, sink=sink, startingBookmark=starting)
    put(database, "alice", 3)
    run(spark, url, tmp_path, sink=sink)
    assert [batch for batch in batches if batch[1]] == [(0, UPDATED), (0, UPDATED), (1, LATER)]


@pytest.mark.long
def test_a_running_stream_tells_what_is_new_until_a_column_is_widened(
    spark: SparkSession, url: str, database: Database
) -> None:
    """Whose values it cannot have: it ends, and says what to do."""
    database.alter_columns(TABLE, add={"note": "integer"})
    options = {"startingBookmark": place(database), "readChangeFeed": "true", "bookmarkSeconds": "600"}
    changes = spark.readStream.format("omid").options(url=url, table=TABLE, **options).load()
    queries: list[StreamingQuery] = []

    def follow() -> StreamingQuery:
        """Until it has told twice; the last one runs on."""
        queries.append(changes.writeStream.format("memory").queryName(f"told{len(queries)}").start())
        for balance in (2, 3):
            put(database, "alice", balance)
            queries[-1].processAllAvailable()
            assert ("alice", "update_postimage", balance) in told(spark.table(queries[-1].name))
        database.alter_columns(TABLE, widen={"note": "long"})
        put(database, "alice", 4)
        return queries[-1]

    with pytest.raises(Exception, match="'note' was widened from integer to long while the query ran"):
        patiently(follow)
    assert sorted([*UPDATED, *LATER]) == told(spark.table(queries[-1].name))


def test_a_query_whose_table_is_dropped_says_so(spark: SparkSession, url: str, database: Database) -> None:
    make(spark, url, "short")
    changes = spark.readStream.format("omid").options(url=url, table="short", readChangeFeed="true").load()

    def follow() -> StreamingQuery:
        query = changes.writeStream.format("memory").queryName("of_short").start()
        query.processAllAvailable()
        if "short" in [table.name for table in database.tables()]:
            database.drop_table("short")
        return query

    with pytest.raises(Exception, match="no table 'short'"):
        patiently(follow)


# ---------------------------------------------------------------- killed

STEPS = (
    "spark.stream.plan",  # where the batch ends is noted
    "spark.stream.read",  # it is planned
    "spark.task.written",  # its rows are written
    "spark.commit.before",
    "spark.stream.committed",  # its transaction is committed
    "spark.stream.done",  # Spark noted that it is done
)


class Payments:
    """Into the table `accounts`, of which a stream writes the changes into the table `mirror`."""

    def __init__(self, spark: SparkSession, url: str, database: Database) -> None:
        empty = spark.createDataFrame([], "name string, balance long, kind string, version long, id string")
        with pyomid.spark.connect(spark, url).begin() as tx:
            tx.write(empty, MIRROR, row_key=["name", "version", "kind"], mode="overwrite")
        self.starting = place(database)
        self._database = database
        self._since = database.bookmark(keep_seconds=600)
        self._balances = {"alice": 1, "bob": 1}
        self._expected: set[tuple[str, int, str, int]] = set()
        for name in ("alice", "bob", "alice"):
            self.pay(name)

    def pay(self, name: str) -> None:
        before = self._balances[name]
        self._balances[name] = after = before + 1
        version = put(self._database, name, after)
        self._expected |= {(name, version, "update_preimage", before), (name, version, "update_postimage", after)}

    def check(self) -> None:
        """Each change is there, and none was ever written twice."""
        with self._database.snapshot() as tx:
            rows = list(tx.table(MIRROR, codec=dict).scan())
        assert {(row["name"], row["version"], row["kind"], row["balance"]) for row in rows} == self._expected
        written = [change.kind for change in self._database.changes(MIRROR, self._since)]
        assert written == ["insert"] * len(self._expected), "some row was written twice"
        assert len({row["id"] for row in rows}) == len(self._expected)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(("spark.stream.plan", "spark.stream.committed"), id="two steps"),
        *(pytest.param((step, step), id=step, marks=pytest.mark.soak) for step in STEPS),
        pytest.param(("spark.stream.plan:2", "spark.stream.done:2"), id="later batches", marks=pytest.mark.soak),
    ],
)
def test_a_query_from_table_to_table_that_is_killed_delivers_exactly_once(
    spark: SparkSession, url: str, database: Database, tmp_path: Path, points: tuple[str, ...]
) -> None:
    """kill −9 of the driver, its JVM and all their processes; started again from its checkpoint it goes on."""
    payments = Payments(spark, url, database)
    for number, point in enumerate(points):
        (tmp_path / f"kill-{number}").mkdir()
        arguments = url, str(tmp_path), "mirror", payments.starting
        kill_driver("streaming_driver.py", *arguments, point=point, folder=tmp_path / f"kill-{number}")
        payments.pay("bob")
    patiently(lambda: mirror(spark, url, tmp_path, payments.starting))
    payments.check()


# ---------------------------------------------------------------- run twice at once


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "point",
    [
        "spark.commit.before",
        *(pytest.param(step, marks=pytest.mark.soak) for step in STEPS if step != "spark.commit.before"),
        pytest.param("client.commit.answered", marks=pytest.mark.soak),
        pytest.param("spark.stream.plan:2", marks=pytest.mark.soak),
    ],
)
def test_of_two_drivers_of_one_checkpoint_each_change_counts_once(
    spark: SparkSession, url: str, database: Database, tmp_path: Path, point: str
) -> None:
    """One stands still amid a batch, while the other one delivers that batch and all others; then it goes on, and is
    told."""
    payments = Payments(spark, url, database)
    arguments = url, str(tmp_path), "mirror", payments.starting
    with stopped_driver("streaming_driver.py", *arguments, point=point, folder=tmp_path) as late:
        patiently(lambda: mirror(spark, url, tmp_path, payments.starting))
        payments.check()
        payments.pay("bob")
        code, told = late.go_on()
    assert code, told
    assert "CONCURRENT_STREAM_LOG_UPDATE" in told or "was reset to an earlier state, or another driver" in told
    patiently(lambda: mirror(spark, url, tmp_path, payments.starting))
    payments.check()


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
    changes = pyomid.spark.connect(spark, url).changes(SEEN, starting=since)
    assert [(row["line"], row["_change_type"]) for row in changes.collect()] == [("new", "insert")]
    database.release_bookmark(since)


def test_a_written_stream_refuses_an_id_of_its_own(spark: SparkSession, url: str, tmp_path: Path) -> None:
    put_files(tmp_path, batches=1)
    with pytest.raises(Exception, match="runId is not for streams"):
        copy(spark, url, tmp_path, runId="mine").awaitTermination(60)
