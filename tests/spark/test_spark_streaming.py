"""The streaming sink: a batch counts once, whoever is handed it, how often, wherever its driver died (S4)."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_sessions import run_driver, stopped_driver
from streaming_driver import COUNTED, SEEN, count, make_tables, put_files, stream

import pyomid
import pyomid.spark
from portions import first
from pyomid.database.idempotency import KEYS_TABLE
from pyomid.database.upkeep.expire import expire_keys
from pyomid.errors import ConflictError, Misuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ANSWERED = "client.commit.answered"

Sink = Callable[["DataFrame", int], None]


def counted(spark: SparkSession, url: str) -> tuple[dict[str, int], int]:
    """How often each line was seen, by the transactions that wrote it, and the total that they kept."""
    with pyomid.spark.connect(spark, url).begin() as tx:
        seen = {row["line"]: row["count"] for row in tx.read(SEEN, partitions=1).collect()}
        ((total,),) = [(row["count"],) for row in tx.read(COUNTED, partitions=1).collect()] or [(0,)]
    return seen, total


def run_until_nothing_is_left(spark: SparkSession, folder: Path, sink: Sink) -> None:
    query = stream(spark, folder, sink)
    query.awaitTermination(120)
    assert not query.isActive
    assert query.exception() is None


def test_each_batch_is_one_transaction_and_a_replayed_one_counts_once(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """The query dies behind each batch's commit, before Spark notes it: the next start hands the batch out again."""
    make_tables(spark, url)
    lines = put_files(tmp_path, batches=3)
    sink = pyomid.spark.connect(spark, url).stream_sink(count)
    handed_out: list[int] = []

    def dies_behind_it(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        handed_out.append(batch_id)
        if handed_out.count(batch_id) == 1:
            raise RuntimeError("on purpose, behind the commit")

    for _ in range(3):
        query = stream(spark, tmp_path, dies_behind_it)
        with pytest.raises(Exception, match="behind the commit"):
            query.awaitTermination(120)
    run_until_nothing_is_left(spark, tmp_path, dies_behind_it)
    assert sorted(handed_out) == [0, 0, 1, 1, 2, 2]
    assert counted(spark, url) == (dict.fromkeys(lines, 1), len(lines))


def test_what_a_batch_raises_ends_the_query_and_leaves_nothing(spark: SparkSession, url: str, tmp_path: Path) -> None:
    db = pyomid.spark.connect(spark, url)
    make_tables(spark, url)
    lines = put_files(tmp_path, batches=1)
    failing = [True]

    def fail_once(tx: pyomid.spark.SparkTransaction, batch: DataFrame) -> None:
        count(tx, batch)
        if failing:
            raise RuntimeError("on purpose, in the batch")

    query = stream(spark, tmp_path, db.stream_sink(fail_once))
    with pytest.raises(Exception, match="in the batch"):
        query.awaitTermination(120)
    assert counted(spark, url) == ({}, 0)
    failing.clear()
    run_until_nothing_is_left(spark, tmp_path, db.stream_sink(fail_once))
    assert counted(spark, url) == (dict.fromkeys(lines, 1), len(lines))


@pytest.mark.parametrize("query_id", first(1, ["put-back", None]))
def test_a_checkpoint_that_was_put_back_loses_nothing_in_silence(
    spark: SparkSession, url: str, tmp_path: Path, query_id: str | None
) -> None:
    """It numbers later rows as a batch that has committed; or the same rows, which are then skipped by request."""
    db = pyomid.spark.connect(spark, url)
    make_tables(spark, url)
    lines = put_files(tmp_path, batches=3)
    put_back, kept = tmp_path / "checkpoint", tmp_path / "kept"
    sink = db.stream_sink(count, query_id=query_id)
    (tmp_path / "in" / "2.txt").rename(tmp_path / "2.txt")
    run_until_nothing_is_left(spark, tmp_path, noted(lambda: shutil.copytree(put_back, kept), sink))
    shutil.rmtree(put_back)
    shutil.move(kept, put_back)
    (tmp_path / "2.txt").rename(tmp_path / "in" / "2.txt")
    with pytest.raises(Exception, match=r"batches 0 and 1 of the streaming query .* have committed already") as refused:
        run_until_nothing_is_left(spark, tmp_path, sink)
    given, own = re.findall(r"query_id='([^']+)', adopt_checkpoint='([0-9a-f-]{36})'", str(refused.value))[0]
    skipping = db.stream_sink(count, query_id=given, adopt_checkpoint=own)
    run_until_nothing_is_left(spark, tmp_path, skipping)
    assert counted(spark, url) == (dict.fromkeys(lines, 1), len(lines))


def noted(action: Callable[[], object], sink: Sink) -> Sink:
    """The sink, with an action when its first batch begins."""

    def with_action(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            action()
        sink(batch, batch_id)

    return with_action


def test_whose_a_query_id_is_outlives_the_keys_of_its_batches(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """The query rests for longer than keys are kept, between a batch's commit and Spark's note of it."""
    make_tables(spark, url)
    lines = put_files(tmp_path / "own", batches=2)
    put_files(tmp_path / "other", batches=1)
    sink = pyomid.spark.connect(spark, url).stream_sink(count, query_id="resting")

    def dies_behind_it(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        raise RuntimeError("on purpose, behind the commit")

    with pytest.raises(Exception, match="behind the commit"):
        stream(spark, tmp_path / "own", dies_behind_it).awaitTermination(120)
    time.sleep(0.1)
    with pyomid.connect(url) as db:
        expire_keys(db, 0.05)
        with db.snapshot() as tx:
            assert not [row for _, row in tx.table(KEYS_TABLE).scan() if b"m:run" in row]
    with pytest.raises(Exception, match="query_id 'resting' belongs to the checkpoint of"):
        run_until_nothing_is_left(spark, tmp_path / "other", sink)
    run_until_nothing_is_left(spark, tmp_path / "own", sink)
    assert counted(spark, url) == (dict.fromkeys(lines, 1), len(lines))


def test_keys_that_note_no_checkpoint_are_the_first_ones(
    spark: SparkSession, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier versions noted none."""
    make_tables(spark, url)
    for folder in ("own", "other"):
        put_files(tmp_path / folder, batches=1)
    sink = pyomid.spark.connect(spark, url).stream_sink(count, query_id="old")
    sink(spark.createDataFrame([("by hand",)], "line string"), 0)
    run_until_nothing_is_left(spark, tmp_path / "own", sink)
    assert "skipped run 'stream old batch 0', which has committed already" in caplog.text
    with pytest.raises(Exception, match="query_id 'old' belongs to the checkpoint of"):
        run_until_nothing_is_left(spark, tmp_path / "other", sink)
    assert counted(spark, url) == ({"by hand": 1}, 1)


def adding_to(table: str) -> Callable[[pyomid.spark.SparkTransaction, DataFrame], None]:
    def add(tx: pyomid.spark.SparkTransaction, batch: DataFrame) -> None:
        tx.write(batch.selectExpr("line", "1L AS count"), table)

    return add


def lines_of(spark: SparkSession, url: str, table: str) -> list[str]:
    with pyomid.spark.connect(spark, url).begin() as tx:
        return sorted(row["line"] for row in tx.read(table, partitions=1).collect())


def make_two_tables(spark: SparkSession, url: str) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        for table in ("left", "right"):
            tx.write(spark.createDataFrame([], "line string, count long"), table, row_key=["line"], mode="overwrite")


def test_two_named_sinks_of_one_query_both_count_once(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """The query dies between the two sinks of its first batch: the first is not counted again, the second is."""
    make_two_tables(spark, url)
    lines = put_files(tmp_path, batches=1)
    sinks = [pyomid.spark.connect(spark, url).stream_sink(adding_to(table), name=table) for table in ("left", "right")]
    dying = [True]

    def both(batch: DataFrame, batch_id: int) -> None:
        sinks[0](batch, batch_id)
        if dying.pop() if dying else False:
            raise RuntimeError("on purpose, between the sinks")
        sinks[1](batch, batch_id)

    with pytest.raises(Exception, match="between the sinks"):
        stream(spark, tmp_path, both).awaitTermination(120)
    assert (lines_of(spark, url, "left"), lines_of(spark, url, "right")) == (lines, [])
    run_until_nothing_is_left(spark, tmp_path, both)
    assert (lines_of(spark, url, "left"), lines_of(spark, url, "right")) == (lines, lines)


def test_a_second_function_under_one_id_is_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """Skipped without a word its rows would be lost. The way out it is told works from the same checkpoint."""
    db = pyomid.spark.connect(spark, url)
    make_two_tables(spark, url)
    lines = put_files(tmp_path, batches=1)

    def both(batch: DataFrame, batch_id: int) -> None:
        db.stream_sink(adding_to("left"))(batch, batch_id)
        db.stream_sink(adding_to("right"))(batch, batch_id)

    for _ in range(2):
        with pytest.raises(Exception, match=r"two functions have the same run id.*name="):
            stream(spark, tmp_path, both).awaitTermination(120)
    assert lines_of(spark, url, "right") == []

    def named(batch: DataFrame, batch_id: int) -> None:
        db.stream_sink(adding_to("left"))(batch, batch_id)
        db.stream_sink(adding_to("right"), name="right")(batch, batch_id)

    run_until_nothing_is_left(spark, tmp_path, named)
    assert (lines_of(spark, url, "left"), lines_of(spark, url, "right")) == (lines, lines)


def test_a_conflict_runs_the_batch_again(spark: SparkSession, url: str, tmp_path: Path) -> None:
    db = pyomid.spark.connect(spark, url)
    make_tables(spark, url)
    lines = put_files(tmp_path, batches=1)
    begun: list[int] = []

    def beaten_once(tx: pyomid.spark.SparkTransaction, batch: DataFrame) -> None:
        count(tx, batch)
        if not begun:
            with pyomid.spark.connect(batch.sparkSession, url).begin() as other:
                other.write(batch.sparkSession.createDataFrame([("all", 100)], "name string, count long"), COUNTED)
        begun.append(tx.start_ts)

    run_until_nothing_is_left(spark, tmp_path, db.stream_sink(beaten_once))
    assert len(begun) == 2
    assert counted(spark, url) == (dict.fromkeys(lines, 1), 100 + len(lines))

    def always_beaten(tx: pyomid.spark.SparkTransaction, batch: DataFrame) -> None:
        begun.clear()
        beaten_once(tx, batch)

    batch = spark.createDataFrame([("late",)], "line string")
    with pytest.raises(ConflictError):
        db.stream_sink(always_beaten, query_id="beaten", retries=0)(batch, 0)


def test_bad_use_is_told(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    batch = spark.createDataFrame([("a",)], "line string")
    with pytest.raises(Misuse, match="no streaming query runs in this thread"):
        db.stream_sink(count)(batch, 0)
    with pytest.raises(Misuse, match=r"must have 1 to 200 bytes"):
        db.stream_sink(count, query_id="q" * 201)
    with pytest.raises(Misuse, match="together with query_id"):
        db.stream_sink(count, adopt_checkpoint="8d5d9a4c-0b1e-4a55-9d5d-000000000000")
    for name in ("", "two words", "a\n"):
        with pytest.raises(Misuse, match="sink name"):
            db.stream_sink(count, name=name)


@pytest.mark.long
@pytest.mark.parametrize("point", [pytest.param("spark.commit.before", marks=pytest.mark.soak), ANSWERED])
def test_a_driver_killed_around_a_batchs_commit_and_started_again_counts_it_once(
    spark: SparkSession, url: str, tmp_path: Path, point: str
) -> None:
    """kill −9 of the whole driver, in its first batch; started again from its checkpoint it reads on."""
    make_tables(spark, url)
    lines = put_files(tmp_path, batches=2)
    note = tmp_path / "note"
    armed = {"PYOMID_CRASH_AT": point, "PYOMID_CRASH_NOTE": str(note)}
    killed = run_driver("streaming_driver.py", url, str(tmp_path), environment=armed)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert note.read_text().split()[0] == point
    seen, total = counted(spark, url)
    assert total == len(seen) == (0 if point == "spark.commit.before" else len(lines) // 2)
    ended = run_driver("streaming_driver.py", url, str(tmp_path), environment={})
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert told["batches"] == 2, "the first was handed out again"
    assert counted(spark, url) == (dict.fromkeys(lines, 1), len(lines))


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    ["spark.commit.before", *(pytest.param(p, marks=pytest.mark.soak) for p in ("spark.task.written", ANSWERED))],
)
def test_of_two_drivers_of_one_checkpoint_a_sink_counts_once(
    spark: SparkSession, url: str, tmp_path: Path, point: str
) -> None:
    """One stands still amid a batch, while the other one counts that batch and all others; then it goes on, and is
    told."""
    make_tables(spark, url)
    lines = put_files(tmp_path, batches=2)
    sink = pyomid.spark.connect(spark, url).stream_sink(count)
    with stopped_driver("streaming_driver.py", url, str(tmp_path), point=point, folder=tmp_path) as late:
        run_until_nothing_is_left(spark, tmp_path, sink)
        assert counted(spark, url) == (dict.fromkeys(lines, 1), len(lines))
        (tmp_path / "in" / "2.txt").write_text("late\n")
        code, told = late.go_on()
    assert code, told
    assert re.search("CONCURRENT_STREAM_LOG_UPDATE|another driver runs the query", told), told
    run_until_nothing_is_left(spark, tmp_path, sink)
    assert counted(spark, url) == (dict.fromkeys([*lines, "late"], 1), len(lines) + 1)
