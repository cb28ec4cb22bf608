"""Transactions over DataFrames: seen whole or not at all, conflicts at each level, ids, threads and other programs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f
from spark_frames import Row, load, rows
from spark_sessions import url_of

import pyomid
import pyomid.spark
from portions import first
from pyomid.database.transaction import State
from pyomid.errors import (
    AlreadyCommitted,
    ConflictError,
    Corruption,
    Misuse,
    MisuseType,
    SnapshotTooOld,
    TransactionEnded,
)
from pyomid.spark import RunState, SparkTransaction
from pyomid.spark.connections import close_connections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DDL = "name string, count long, note string"


def frame(spark: SparkSession, *rows: Row, ddl: str = DDL) -> DataFrame:
    return spark.createDataFrame(list(rows), ddl).coalesce(1)


def write(spark: SparkSession, url: str, table: str, *content: Row, level: str | None = None, **how: Any) -> int:
    with pyomid.spark.connect(spark, url).begin(conflict_level=level) as tx:
        tx.write(frame(spark, *content), table, row_key=["name"], **how)
    assert tx.commit_ts is not None
    return tx.commit_ts


@contextmanager
def watching(look: Callable[[], None]) -> Iterator[list[int]]:
    """Looks again and again in a thread of its own while the block runs, at least once; what it raises is raised."""
    done = threading.Event()
    failures: list[BaseException] = []
    looks = [0]

    def work() -> None:
        try:
            while not done.is_set():
                look()
                looks[0] += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield looks
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]
    assert looks[0] > 0


# Whole or not at all


def test_a_reader_beside_the_writer_never_sees_half_of_a_commit_over_three_tables(
    spark: SparkSession, url: str
) -> None:
    """The reader is no Spark program; it takes snapshot after snapshot while the transactions write and commit."""
    db = pyomid.spark.connect(spark, url)
    tables = ("whole_a", "whole_b", "whole_c")
    seen: set[int] = set()
    with db.begin() as tx:
        for table in tables:
            tx.write(frame(spark, *[(f"{n}", 0, None) for n in range(8)]), table, row_key=["name"])
    with pyomid.connect(url) as client:

        def generations(reader: pyomid.Transaction) -> set[bytes]:
            return {row[b"d:count"] for table in tables for _, row in reader.table(table).scan()}

        def look() -> None:
            """A snapshot that grew too old on a busy machine says so, and `run` takes another."""
            found = client.run(generations)
            assert len(found) == 1, f"half a commit: {sorted(found)}"
            seen.add(int.from_bytes(found.pop(), "big"))

        look()
        with watching(look):
            for generation in (1, 2, 3):
                with db.begin() as tx:
                    for table in tables:
                        tx.write(tx.read(table).withColumn("count", f.lit(generation).cast("long")), table)
        look()
    assert {0, 3} <= seen <= {0, 1, 2, 3}


def test_a_transaction_reads_its_own_writes_and_deletes_in_their_order(spark: SparkSession, url: str) -> None:
    write(spark, url, "own", ("a", 1, "x"), ("b", 2, "y"))
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.delete(frame(spark, ("a",), ddl="name string"), "own")
        assert rows(tx.read("own")) == [("b", 2, "y")]
        tx.write(frame(spark, ("a", 3, None)), "own")
        assert rows(tx.read("own")) == [("a", 3, None), ("b", 2, "y")]
        tx.write(frame(spark, ("a", 4, "z")), "own")
        assert rows(tx.read("own")) == [("a", 4, "z"), ("b", 2, "y")]
        assert rows(load(spark, url, "own")) == [("a", 1, "x"), ("b", 2, "y")]
    assert rows(load(spark, url, "own")) == [("a", 4, "z"), ("b", 2, "y")]
    assert len(tx.branches) == 3


def test_deleting_rows_that_are_not_there_is_no_error_and_null_keys_are_refused(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    write(spark, url, "absent", ("a", 1, None))
    with db.begin() as tx:
        assert tx.delete(frame(spark, ("z", 7, None)), "absent").rows == 0
    assert tx.commit_ts is None
    with pytest.raises(Misuse, match="'name' is null"), db.begin() as tx:
        tx.delete(frame(spark, (None,), ddl="name string"), "absent")
    assert rows(load(spark, url, "absent")) == [("a", 1, None)]


def test_an_overwrite_and_its_rollback(spark: SparkSession, url: str) -> None:
    write(spark, url, "overwritten", ("a", 1, None), ("b", 2, None))
    tx = pyomid.spark.connect(spark, url).begin()
    tx.write(frame(spark, ("c", 3, None)), "overwritten", mode="overwrite")
    assert rows(tx.read("overwritten")) == [("c", 3, None)]
    tx.rollback()
    assert rows(load(spark, url, "overwritten")) == [("a", 1, None), ("b", 2, None)]
    write(spark, url, "overwritten", ("c", 3, None), mode="overwrite")
    assert rows(load(spark, url, "overwritten")) == [("c", 3, None)]


@pytest.mark.parametrize("mode", first(1, ["ignore", "error"]))
def test_a_failed_tries_own_table_hides_no_rows_of_the_next(spark: SparkSession, url: str, mode: str) -> None:
    """The first try makes the table, which is durable at once, and fails: the next one must not take it for another's,
    write nothing and spend the id."""
    db = pyomid.spark.connect(spark, url)
    table = f"own_{mode}"
    tries: list[int] = []

    def put(tx: SparkTransaction) -> None:
        tx.write(frame(spark, ("a", 1, None)), table, row_key=["name"], mode=mode)
        tries.append(tx.start_ts)
        if len(tries) == 1:
            raise ConflictError("on purpose, behind the write")

    assert db.run_once(table, put) is None
    assert len(tries) == 2
    assert rows(load(spark, url, table)) == [("a", 1, None)]
    assert db.look_up_run(table).start_ts == tries[1]
    with db.begin() as tx:
        assert tx.write(frame(spark, ("b", 2, None)), table, mode="ignore").rows == 0
        with pytest.raises(Misuse, match=f"{table!r} has rows"):
            tx.write(frame(spark, ("b", 2, None)), table, mode="error")


# Conflicts


@pytest.mark.parametrize(
    ("level", "other", "loses"),
    [
        ("cell", {"count": "a"}, True),
        ("cell", {"note": "a"}, False),
        ("cell", {"count": "b"}, False),
        ("row", {"note": "a"}, True),
        ("row", {"count": "b"}, False),
        ("table", {"count": "b"}, True),
    ],
)
def test_what_another_transaction_must_have_written_to_conflict(
    spark: SparkSession, url: str, level: str, other: dict[str, str], loses: bool
) -> None:
    """The first writes the count of row a; the other, which commits meanwhile, one cell."""
    db = pyomid.spark.connect(spark, url)
    ((column, row),) = other.items()
    table = f"level_{level}_{column}_{row}"
    write(spark, url, table, ("a", 0, "-"), ("b", 0, "-"), level=level)
    value: Any = 5 if column == "count" else "new"
    ddl = f"name string, {column} {'long' if column == 'count' else 'string'}"
    tx = db.begin(conflict_level=level)
    tx.write(frame(spark, ("a", 1), ddl="name string, count long"), table)
    with db.begin(conflict_level=None if level == "table" else level) as second:
        second.write(frame(spark, (row, value), ddl=ddl), table)
    if loses:
        with pytest.raises(ConflictError, match=rf"it wrote {table} \(name='a'\)") as raised:
            tx.commit()
        assert raised.value.values.get("commit_ts", second.commit_ts) == second.commit_ts
        assert tx.state is State.ROLLED_BACK
        assert rows(load(spark, url, table).where("name = 'a' and count = 1")) == []
    else:
        tx.commit()
        assert load(spark, url, table).where("name = 'a' and count = 1").count() == 1
    assert load(spark, url, table).where(f.col(column) == f.lit(value)).count() == 1


def test_a_spark_transaction_and_a_program_without_spark_conflict_with_each_other(
    spark: SparkSession, url: str
) -> None:
    write(spark, url, "mixed", ("a", 0, None))
    with pyomid.connect(url) as db:
        tx = pyomid.spark.connect(spark, url).begin()
        tx.write(frame(spark, ("a", 1, None)), "mixed")
        db.run(lambda other: other.table("mixed").put(b"a", {b"d:count": (2).to_bytes(8, "big")}))
        with pytest.raises(ConflictError):
            tx.commit()
        small = db.begin()
        small.table("mixed").put(b"a", {b"d:count": (3).to_bytes(8, "big")})
        write(spark, url, "mixed", ("a", 4, None))
        with pytest.raises(ConflictError):
            small.commit()
    assert rows(load(spark, url, "mixed")) == [("a", 4, None)]


def test_two_pipelines_that_add_to_one_total_both_count(spark: SparkSession, url: str) -> None:
    write(spark, url, "total", ("all", 0, None))
    conflicts: list[ConflictError] = []
    failures: list[BaseException] = []

    def add(tx: SparkTransaction) -> None:
        tx.write(tx.read("total", partitions=1).withColumn("count", f.col("count") + 1), "total")

    def pipeline() -> None:
        try:
            for _ in range(2):
                pyomid.spark.connect(spark, url).run(add, on_conflict=conflicts.append)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=pipeline) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert rows(load(spark, url, "total")) == [("all", 4, None)]
    print(f"{len(conflicts)} conflicts")


def test_retries_end_and_the_last_conflict_is_raised(spark: SparkSession, url: str) -> None:
    write(spark, url, "hopeless", ("a", 0, None))
    tries: list[int] = []

    def lose(tx: SparkTransaction) -> None:
        tries.append(tx.start_ts)
        tx.write(frame(spark, ("a", -1, None)), "hopeless")
        write(spark, url, "hopeless", ("a", len(tries), None))

    with pytest.raises(ConflictError):
        pyomid.spark.connect(spark, url).run(lose, retries=1)
    assert len(tries) == 2
    assert tries[1] > tries[0]
    assert rows(load(spark, url, "hopeless")) == [("a", 2, None)]


# Durable ids


def test_of_two_runs_under_one_id_at_the_same_time_one_commits(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    write(spark, url, "raced", ("a", 0, None))

    def begun(value: int) -> SparkTransaction:
        tx = db.begin(run_id="race")
        tx.write(frame(spark, (f"row {value}", value, None)), "raced")
        return tx

    first, second = begun(1), begun(2)
    second.commit()
    with pytest.raises(ConflictError):
        first.commit()
    assert rows(load(spark, url, "raced")) == [("a", 0, None), ("row 2", 2, None)]
    found = db.look_up_run("race")
    assert (found.state, found.start_ts, found.commit_ts) == (RunState.COMMITTED, second.start_ts, second.commit_ts)
    with pytest.raises(AlreadyCommitted, match="race"):
        begun(3)


def test_a_run_under_an_id_that_rolled_back_may_run_again_and_one_that_wrote_nothing_counts_as_done(
    spark: SparkSession, url: str
) -> None:
    db = pyomid.spark.connect(spark, url)

    def put(tx: SparkTransaction, *, fail: bool) -> None:
        tx.write(frame(spark, ("a", 1, None)), "again", row_key=["name"])
        if fail:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        db.run_once("again", lambda tx: put(tx, fail=True))
    assert db.look_up_run("again").state is RunState.ABSENT
    assert db.run_once("again", lambda tx: put(tx, fail=False)) is None
    assert rows(load(spark, url, "again")) == [("a", 1, None)]
    assert db.run_once("nothing", lambda tx: 7) == 7
    assert isinstance(db.run_once("nothing", lambda tx: 7), pyomid.AlreadyDone)


@pytest.mark.parametrize("bad", ["", "x" * 10_000])
def test_an_id_that_cannot_be_a_row_key_is_refused(spark: SparkSession, url: str, bad: str) -> None:
    with pytest.raises(Misuse):
        pyomid.spark.connect(spark, url).begin(run_id=bad)


# Misuse


def test_a_transaction_belongs_to_its_thread_and_process(spark: SparkSession, url: str) -> None:
    write(spark, url, "owned", ("a", 1, None))
    tx = pyomid.spark.connect(spark, url).begin()
    tx.write(frame(spark, ("a", 2, None)), "owned")
    errors: list[BaseException] = []

    def elsewhere() -> None:
        for use in (lambda: tx.read("owned"), tx.commit, tx.rollback):
            try:
                use()
            except Misuse as error:
                errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 3
    assert all(f"transaction {tx.start_ts} belongs to the thread" in str(error) for error in errors)
    child = os.fork()
    if child == 0:
        try:
            tx.commit()
        except Misuse:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    tx.commit()
    assert rows(load(spark, url, "owned")) == [("a", 2, None)]


def test_after_its_end_a_transaction_is_of_no_more_use(spark: SparkSession, url: str) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame(spark, ("a", 1, None)), "over", row_key=["name"])
    for use in (
        lambda: tx.read("over"),
        lambda: tx.write(frame(spark, ("b", 1, None)), "over"),
        lambda: tx.delete(frame(spark, ("a", 1, None)), "over"),
        lambda: tx.mark_rollback_only("late"),
        tx.commit,
    ):
        with pytest.raises(TransactionEnded, match=str(tx.start_ts)):
            use()
    tx.rollback()  # does nothing after the end
    doomed = pyomid.spark.connect(spark, url).begin()
    doomed.mark_rollback_only("the program said so")
    with pytest.raises(TransactionEnded, match="the program said so"):
        doomed.commit()
    doomed.rollback()
    with pytest.raises(TransactionEnded, match="rolled back"):
        doomed.read("over")
    assert rows(load(spark, url, "over")) == [("a", 1, None)]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_frame_with_own_writes_ends_with_its_transaction(spark: SparkSession, tmp_path: Path, end: str) -> None:
    """Otherwise it would show writes that were rolled back. The retention keeps its snapshot readable."""
    url = f"{url_of(tmp_path)}&retention=1d"
    write(spark, url, "kept", ("a", 1, None))
    tx = pyomid.spark.connect(spark, url).begin()
    tx.write(frame(spark, ("b", 2, None)), "kept")
    seen = tx.read("kept")
    assert len(rows(seen)) == 2
    past = pyomid.spark.connect(spark, url).read("kept", at=tx.start_ts - 1)  # its lease is on the transaction's start
    assert rows(past) == [("a", 1, None)]
    getattr(tx, end)()
    with pytest.raises(
        SnapshotTooOld, match=r"transaction has ended, .* Use a transaction's frames before the transaction ends"
    ):
        with pyomid.spark.original_errors():
            seen.collect()
    close_connections()


def test_a_merge_that_was_not_performed_does_not_commit(spark: SparkSession, url: str) -> None:
    write(spark, url, "merged", ("a", 1, None))
    db = pyomid.spark.connect(spark, url)
    source = frame(spark, ("b", 2, None))
    never = r"a merge into 'merged' was never performed; call \.merge\(\) after its last clause"

    def forgets(tx: SparkTransaction) -> None:
        tx.merge(source, "merged", on="name").whenNotMatched().insertAll()

    with pytest.raises(Misuse, match=never):
        db.run_once("merge", forgets)
    with pytest.raises(Misuse, match=never), db.begin() as tx:
        forgets(tx)
    assert tx.state is State.ROLLED_BACK
    assert rows(load(spark, url, "merged")) == [("a", 1, None)]
    assert db.run_once("merge", lambda tx: tx.merge(source, "merged", on="name").whenNotMatched().insertAll().merge())
    with db.begin() as tx:
        tx.merge(source, "merged", on="name")  # without a clause it asks for nothing
        with pytest.raises(Misuse, match="no clause"):
            tx.merge(source, "merged", on="name").merge()
        refused = tx.merge(source, "merged", on="name").whenMatched().delete()
        with pytest.raises(MisuseType, match="a merge's insert: 'nope' is not a mapping"):
            refused.whenNotMatched().insert("nope")  # type: ignore[arg-type]
        done = tx.merge(source, "merged", on="name").whenNotMatched().insertAll()
        done.merge()
        with pytest.raises(Misuse, match="has already been performed"):
            done.whenMatched().updateAll()
    assert rows(load(spark, url, "merged")) == [("a", 1, None), ("b", 2, None)]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"conflict_level": "rows"}, "'rows' is not one of auto, cell, row, table"),
        ({"lease_seconds": -1}, "invalid lease_seconds=-1; give a number of seconds above 0"),
        ({"not_before": 1 << 62}, str(1 << 62)),
    ],
)
def test_a_transaction_that_cannot_be_is_refused_with_its_value(
    spark: SparkSession, url: str, how: dict[str, Any], words: str
) -> None:
    with pytest.raises(pyomid.OmidError, match=words):
        pyomid.spark.connect(spark, url).begin(**how)


@pytest.mark.long
def test_a_value_over_the_stores_limit_dooms_the_transaction_and_nothing_is_lost(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    from pyomid.spark.connections import connection

    write(spark, url, "limits", ("kept", 1, None))
    limits = connection(url).deployment.store.limits
    long = f.repeat(f.lit("v"), limits.value_bytes_max + 1)
    with pytest.raises(Misuse, match=rf"limit of {limits.value_bytes_max}"):
        with db.begin() as tx:
            tx.write(frame(spark, ("big", 1, None)).withColumn("note", long), "limits")
    assert rows(load(spark, url, "limits")) == [("kept", 1, None)]


def test_two_columns_of_one_place_and_two_of_one_name_are_refused(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    twice = frame(spark, ("a", 1, "x")).selectExpr("name", "count", "count")
    with pytest.raises(Misuse, match="named 'count'"), db.begin() as tx:
        tx.write(twice, "places", row_key=["name"])
    mapping = {"count": "d:x", "note": "d:x"}
    with pytest.raises(Misuse, match="'count' and 'note' have the same place"):
        with db.begin() as tx:
            tx.write(frame(spark, ("a", 1, "x")), "places", row_key=["name"], mapping=mapping)


def test_bytes_that_are_no_value_of_their_column_are_corruption_and_not_silence(spark: SparkSession, url: str) -> None:
    write(spark, url, "damaged", ("a", 1, None))
    with pyomid.connect(url) as db, db.begin() as tx:
        tx.table("damaged").put(b"a", {b"d:count": b"seven bytes"})
    with pytest.raises(Exception, match="OMID-CORRUPTION") as raised:
        load(spark, url, "damaged").collect()
    assert isinstance(pyomid.spark.original_error(raised.value), Corruption)
