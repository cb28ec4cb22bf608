"""Tasks, workers and drivers that fail, die and run twice: what counts is counted once, whatever happens (S1–S3)."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import spark_drivers
from spark_drivers import LEDGER, TOTALS, Run
from spark_frames import load
from spark_sessions import run_driver, small_batches

import pyomid
import pyomid.spark
from portions import first
from pyomid import crashpoints
from pyomid.database.transaction import State
from pyomid.spark import RunState
from pyomid.spark.source.datasource import OmidDataSource

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DDL = "key string, value long"


def contents(spark: SparkSession, url: str, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in load(spark, url, table).select("key", "value").collect())


def unnamed_cells(spark: SparkSession, url: str, table: str) -> int:
    """Stored cells of branches that no commit named. The store is sound besides."""
    found = pyomid.spark.connect(spark, url).verify([table])
    assert found.ok, found
    (report,) = found.tables
    return report.orphans + report.open


def twenty(spark: SparkSession) -> DataFrame:
    return spark.range(20, numPartitions=2).selectExpr("format_string('%02d', id) AS key", "id AS value")


TWENTY = [(f"{n:02}", n) for n in range(20)]


@contextmanager
def armed_workers(spark: SparkSession, point: str, note: Path) -> Iterator[None]:
    """One of Spark's Python workers dies at this point, once; asserts that one did."""
    armed = {
        "PYOMID_CRASH_AT": point,
        "PYOMID_CRASH_NOTE": str(note),
        "PYOMID_CRASH_ONCE": f"{note}.once",
    }
    environment = spark.sparkContext.environment
    environment.update(armed)
    spark.dataSource.register(OmidDataSource)
    try:
        yield
    finally:
        for name in armed:
            del environment[name]
        spark.dataSource.register(OmidDataSource)
    name, pid = note.read_text().split()
    assert name == point.partition(":")[0]
    assert int(pid) != os.getpid()


# Tasks (S1)


@pytest.mark.parametrize(
    "point", first(1, ["spark.task.after_write:2", "spark.task.before_write:2", "spark.task.written"])
)
def test_a_worker_killed_in_the_middle_of_its_writing_is_replaced_and_nothing_counts_twice(
    spark: SparkSession, url: str, tmp_path: Path, point: str
) -> None:
    table = "killed_" + point.split(".")[-1].replace(":", "_")
    with small_batches(spark), armed_workers(spark, point, tmp_path / "note"):
        with pyomid.spark.connect(spark, url).begin() as tx:
            written = tx.write(twenty(spark), table, row_key=["key"])
    assert (written.rows, written.branches) == (20, 2)
    assert contents(spark, url, table) == TWENTY
    assert unnamed_cells(spark, url, table) >= 3


@pytest.mark.long
def test_a_worker_of_a_plain_write_killed_in_the_middle_is_replaced_and_nothing_counts_twice(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    with small_batches(spark), armed_workers(spark, "spark.task.after_write:2", tmp_path / "note"):
        saving = twenty(spark).write.format("omid").option("url", url).option("table", "plain_killed")
        saving.option("rowKey", "key").mode("append").save()
    assert contents(spark, url, "plain_killed") == TWENTY
    assert unnamed_cells(spark, url, "plain_killed") >= 6


PADDED = f"{DDL}, pad string"


def failing_once(url: str, table: str, flag: Path) -> Any:
    """A step of a frame that raises once in all its attempts, after rows that it handed on are in the store; each
    attempt gives its rows other keys and values. The padding is larger than the pipes' buffers, so
    that rows arrive while the step still runs."""
    path = str(flag)

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        import pyarrow
        from pyspark import TaskContext

        from pyomid.spark.connections import connection

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        first = ""
        for batch in batches:
            keys = [f"{key}-{attempt}" for key in batch.column("key").to_pylist()]
            values = [value + 100 * attempt for value in batch.column("value").to_pylist()]
            first = first or keys[0]
            columns = [pyarrow.array(column) for column in (keys, values, ["-" * 40_000] * len(keys))]
            yield pyarrow.RecordBatch.from_arrays(columns, ["key", "value", "pad"])
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        deadline_s = time.monotonic() + 120
        while not connection(url).deployment.store.read_rows(table, [first.encode()])[0]:
            if time.monotonic() > deadline_s:
                os.unlink(path)
                raise TimeoutError("no row was written")
            time.sleep(0.05)
        raise RuntimeError("failed on purpose, after its rows were written")

    return step


def test_a_source_that_gives_other_rows_at_each_attempt_leaves_those_of_one_attempt_a_task(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    flag = tmp_path / "failed"
    changing = twenty(spark).mapInArrow(failing_once(url, "changing", flag), PADDED)
    with small_batches(spark), pyomid.spark.connect(spark, url).begin() as tx:
        assert tx.write(changing, "changing", row_key=["key"]).rows == 20
        assert tx.read("changing", columns=["key"]).count() == 20
    assert flag.exists()
    assert unnamed_cells(spark, url, "changing") >= 3
    found = contents(spark, url, "changing")
    assert [key[:2] for key, _ in found] == [key for key, _ in TWENTY], "each row once, under one attempt's key"
    attempts = [{key[3:] for key, _ in found if key[:2] in half} for half in halves()]
    assert sorted(attempts, key=repr) == [{"0"}, {"1"}], "one task failed once; no task's attempts are mixed"
    for key, value in found:
        assert value == int(key[:2]) + 100 * int(key[3:])


def halves() -> tuple[set[str], set[str]]:
    keys = [key for key, _ in TWENTY]
    return set(keys[:10]), set(keys[10:])


def test_a_job_that_fails_for_good_leaves_nothing_visible(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    with db.begin() as tx:
        tx.write(spark.range(1).selectExpr("id", "0L AS v"), "failed", row_key=["id"])
    bad = spark.range(0, 100, numPartitions=2).selectExpr("id", "CASE WHEN id = 99 THEN 1 DIV 0 ELSE 7 END AS v")
    with pytest.raises(Exception, match=r"(?i)divi"):
        bad.write.format("omid").option("url", url).option("table", "failed").mode("append").save()
    with db.begin() as tx:
        assert [tuple(row) for row in tx.read("failed").collect()] == [(0, 0)]


# Behind the answer (S2)


@pytest.mark.parametrize(
    ("point", "counted"),
    first(1, [("client.commit.answered", True), ("spark.commit.before", False), ("spark.commit.after", True)]),
)
def test_a_plain_write_that_dies_around_its_commit_is_counted_once_under_its_id(
    spark: SparkSession, url: str, tmp_path: Path, point: str, counted: bool
) -> None:
    """Spark calls `abort` after it, in another process: what was committed stays."""
    table = "dying_" + point.replace(".", "_")

    def save(value: int) -> None:
        content = spark.createDataFrame([("a", value)], DDL)
        saving = content.write.format("omid").option("url", url).option("table", table).option("rowKey", "key")
        saving.option("runId", table).mode("append").save()

    with armed_workers(spark, point, tmp_path / "note"):
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            save(1)
    assert contents(spark, url, table) == ([("a", 1)] if counted else [])
    save(2)
    assert contents(spark, url, table) == [("a", 1 if counted else 2)]
    assert pyomid.spark.connect(spark, url).look_up_run(table).state is RunState.COMMITTED


def test_an_exception_between_the_answer_and_the_end_of_the_block_loses_and_repeats_nothing(
    spark: SparkSession, url: str
) -> None:
    db = pyomid.spark.connect(spark, url)

    def fail() -> None:
        raise RuntimeError("on purpose, behind the answer")

    begun: list[pyomid.spark.SparkTransaction] = []

    def put(tx: pyomid.spark.SparkTransaction) -> None:
        begun.append(tx)
        tx.write(spark.createDataFrame([("a", tx.start_ts)], DDL), "behind", row_key=["key"])

    crashpoints.arm_action("spark.commit.after", fail)
    try:
        with pytest.raises(RuntimeError, match="behind the answer"):
            db.run_once("behind", put)
    finally:
        crashpoints.disarm()
    assert begun[0].state is State.COMMITTED
    kept = {grant.start_ts for grant in begun[0]._conn.leases._grants}
    assert begun[0].start_ts not in kept, "renewed, its lease would hold W back for ever"
    ((_, start_ts),) = contents(spark, url, "behind")
    done = db.run_once("behind", put)
    assert isinstance(done, pyomid.AlreadyDone)
    assert done.start_ts == start_ts
    assert contents(spark, url, "behind") == [("a", start_ts)]


# Drivers (S3)

DECIDED = {
    "client.begin.after": False,
    "spark.write.noted": False,
    "client.flush.after": False,
    "client.commit.answered": True,
    "client.complete.shadows_before": True,
    "spark.commit.after": True,
}
"""Crash points on a driver's way → whether its transaction is committed there. `client.flush.after`: its marker is
durable, nothing was asked of the TSO."""


@pytest.fixture(scope="module")
def fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["spark_drivers", "pyspark.sql", "pyspark.java_gateway", "pyomid.spark.transactions", "pyomid.folder"]
    )
    return context


@pytest.fixture(scope="module")
def _counted(spark: SparkSession, url: str) -> None:
    """The tables of the counting drivers, empty."""
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(spark.createDataFrame([], "entry string, line long"), LEDGER, row_key=["entry", "line"])
        tx.write(spark.createDataFrame([], "name string, count long"), TOTALS, row_key=["name"])


def check_counted(spark: SparkSession, url: str, run_id: str) -> None:
    """This id is in the ledger, once; and the total is what the ledger says."""
    with pyomid.spark.connect(spark, url).begin() as tx:
        entries = [row["entry"] for row in tx.read(LEDGER, partitions=1).collect()]
        totals = [row["count"] for row in tx.read(TOTALS, partitions=1).collect()]
    assert entries.count(run_id) == 3
    assert totals == [len(entries)]


def kill_and_run_again(
    spark: SparkSession, url: str, tmp_path: Path, fork_server: ForkServerContext, point: str, times: int
) -> None:
    db = pyomid.spark.connect(spark, url)
    gateway = spark.sparkContext._gateway.gateway_parameters
    for number in range(times):
        run_id, note = f"{point}-{number}", tmp_path / f"note-{number}"
        run = Run(url, run_id, gateway.port, gateway.auth_token, point, str(note))
        process = fork_server.Process(target=spark_drivers.run_attached, args=(run,), daemon=True)
        process.start()
        process.join(120)
        process.kill()
        assert process.exitcode == -signal.SIGKILL, "the driver ended by itself, or hangs"
        assert note.read_text().split()[0] == point
        found = db.look_up_run(run_id, settle=True)
        assert (found.state is RunState.COMMITTED) == DECIDED[point], found
        again = spark_drivers.run_to_its_end(spark, url, run_id)
        assert isinstance(again, pyomid.AlreadyDone) == DECIDED[point]
        check_counted(spark, url, run_id)
    assert db.verify().ok


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("point", DECIDED)
def test_a_driver_killed_at_each_step_and_run_again_under_its_id_is_counted_once(
    spark: SparkSession, url: str, tmp_path: Path, fork_server: ForkServerContext, point: str
) -> None:
    kill_and_run_again(spark, url, tmp_path, fork_server, point, times=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("point", DECIDED)
def test_fifty_drivers_killed_at_each_step_are_counted_once(
    spark: SparkSession, url: str, tmp_path: Path, fork_server: ForkServerContext, point: str
) -> None:
    kill_and_run_again(spark, url, tmp_path, fork_server, point, times=50)


@pytest.mark.long
@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("point", ["client.commit.answered", "spark.commit.before"])
def test_a_driver_killed_with_its_jvm_and_run_again_under_its_id_is_counted_once(
    spark: SparkSession, url: str, tmp_path: Path, point: str
) -> None:
    run_id, note = f"whole-{point}", tmp_path / "note"
    environment = {"PYOMID_CRASH_AT": point, "PYOMID_CRASH_NOTE": str(note)}
    ended = run_driver("spark_drivers.py", url, run_id, environment=environment)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert note.read_text().split()[0] == point
    again = spark_drivers.run_to_its_end(spark, url, run_id)
    assert isinstance(again, pyomid.AlreadyDone) == (point == "client.commit.answered")
    check_counted(spark, url, run_id)
