"""`df.write` as Spark calls it, step by step and without Spark: two drivers, lost leases, lost answers (S2, S3)."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import pyomid
from pyomid import crashpoints
from pyomid.database.transaction import State
from pyomid.errors import ConflictError, Misuse, Unavailable
from pyomid.protocol.compaction import compact_region
from pyomid.protocol.effects import WriteShadowCells
from pyomid.protocol.reading import Snapshot
from pyomid.rows.decode import arrow_schema
from pyomid.rows.schema import Field, schema_of
from pyomid.spark.connections import Connection, connection
from pyomid.spark.large_transaction import LargeTransaction
from pyomid.spark.run_outcome import RunState, outcome_of
from pyomid.spark.source.datasource import OmidDataSource
from pyomid.spark.source.options import Options
from pyomid.spark.source.read_task import ReadPlan, read_range
from pyomid.spark.source.writer import BranchMessage, OmidWriter
from pyomid.types import BeginReply, KeyRange, TableInfo, life_of
from waiting import until

pytestmark = pytest.mark.fast

FIELDS = (Field("name", "string"), Field("count", "long"))
ARROW = pa.schema([("name", pa.string()), ("count", pa.int64())])
_numbers = itertools.count()

Row = tuple[str, int | None]


@pytest.fixture
def conn() -> Connection:
    return connection(f"omid-memory:spark-writer-{next(_numbers)}?conflictMapEntries=64")


def begin(conn: Connection) -> BeginReply:
    """As a data source that was made: a start under a lease."""
    begun = conn.deployment.tso.begin()
    conn.deployment.tso.grant_lease(begun.start_ts)
    begun.end()  # the lease holds it
    return begun


def prepared(
    conn: Connection, begun: BeginReply | None = None, *, overwrite: bool = False, partitions: int = 1, **how: str
) -> OmidWriter:
    options = Options({"url": conn.url, "table": "t", "rowKey": "name", **how})
    return OmidWriter.prepared(conn, options, begun or begin(conn), FIELDS, overwrite=overwrite, partitions=partitions)


def written(writer: OmidWriter, *rows: Row, task: int = 0) -> BranchMessage:
    """One task."""
    batch = pa.RecordBatch.from_pylist([dict(zip(ARROW.names, r, strict=True)) for r in rows], schema=ARROW)
    return writer.write_as(task, iter([batch]))


def save(conn: Connection, *rows: Row, **how: str) -> None:
    writer = prepared(conn, **how)
    writer.commit([written(writer, *rows)])


def rows_of(conn: Connection, name: str = "t") -> list[tuple[Any, ...]]:
    info = conn.deployment.catalog.table(name)
    begun = conn.deployment.tso.begin()
    schema = schema_of(info)
    plan = ReadPlan(conn.task_url, life_of(info), schema, ("name", "count"), Snapshot(begun.start_ts, begun.epoch), 9)
    batches = read_range(conn, plan, KeyRange(), arrow_schema(schema, plan.wanted))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def leases(conn: Connection) -> tuple[int, ...]:
    return tuple(conn.deployment.leader_state.read().leases)


def push_watermark_past(conn: Connection, start_ts: int) -> None:
    """Others commit until W, which follows what is open (T16), has passed it."""
    numbers = itertools.count()
    with pyomid.connect(conn.url) as db:
        db.create_table("crowd", families=["f"], if_not_exists=True)

        def has_passed() -> bool:
            number = next(numbers)
            with db.begin() as tx:
                for row in range(8):
                    tx.table("crowd").put(b"%d-%d" % (number, row), {b"f:x": b"1"})
            return conn.deployment.leader_state.read_watermarks()[0] >= start_ts

        until(has_passed, "W does not rise")


def compact(conn: Connection, info: TableInfo) -> None:
    conn.driver.run(compact_region(info.name, info.generation, KeyRange(), conn.cache, now_s=time.time()))


def test_a_write_names_no_snapshot(conn: Connection) -> None:
    """It would write under the start of another transaction, and be acknowledged by that one's commit."""
    save(conn, ("first", 1))
    start_ts = begin(conn).start_ts
    struct = StructType([StructField("name", StringType()), StructField("count", LongType())])
    for epoch in ({}, {"_snapshotEpoch": "0"}):
        source = OmidDataSource({"url": conn.url, "table": "t", "_snapshotVersion": str(start_ts), **epoch})
        with pytest.raises(Misuse, match="_snapshotVersion is for reads"):
            source.writer(struct, False)
    assert leases(conn) == (start_ts,)
    assert rows_of(conn) == [("first", 1)]


# One id, two drivers


def test_of_two_writes_under_one_id_one_set_of_rows_is_seen(conn: Connection) -> None:
    """Both looked for a finished run before either committed. Who loses must not decide again under a newer start."""
    one, other = prepared(conn, runId="load"), prepared(conn, runId="load")
    first, second = written(one, ("a", 1)), written(other, ("b", 2))
    one.commit([first])
    other.commit([second])
    assert rows_of(conn) == [("a", 1)]
    found = outcome_of(conn, "load")
    assert (found.state, found.start_ts) == (RunState.COMMITTED, one.begun.start_ts)
    assert leases(conn) == ()


def test_a_write_that_lost_to_a_stranger_does_not_spend_its_id(conn: Connection) -> None:
    writer = prepared(conn, runId="load")
    message = written(writer, ("a", 1))
    save(conn, ("a", 7))
    with pytest.raises(ConflictError):
        writer.commit([message])
    writer.abort([message])
    assert rows_of(conn) == [("a", 7)]
    assert outcome_of(conn, "load").state is not RunState.COMMITTED
    save(conn, ("a", 1), runId="load")
    assert rows_of(conn) == [("a", 1)]
    assert leases(conn) == ()


def test_a_task_that_told_nothing_keeps_the_others_from_counting(conn: Connection) -> None:
    writer = prepared(conn)
    message = written(writer, ("a", 1))
    with pytest.raises(Unavailable, match="1 of 2 tasks did not report"):
        writer.commit([message, None])
    writer.abort([message, None])
    assert rows_of(conn) == []
    assert leases(conn) == ()


# Lost leases


@pytest.mark.parametrize("how", [{}, {"runId": "load"}])
def test_a_write_whose_cells_were_cleaned_away_is_not_acknowledged(conn: Connection, how: dict[str, str]) -> None:
    """Its lease is lost, W passes its branches, compaction takes them for orphans. Deciding again with what is left
    would tell success for none of its rows, or half of them."""
    writer = prepared(conn, **how)
    messages = [written(writer, *[(f"{task}-{n}", n) for n in range(4)]) for task in range(3)]
    conn.deployment.tso.end_lease(writer.begun.start_ts)
    push_watermark_past(conn, max(m.report.branch for m in messages if m.report is not None))
    assert writer.plan is not None
    compact(conn, writer.plan.info)
    with pytest.raises(ConflictError):
        writer.commit(list(messages))
    writer.abort(list(messages))
    assert rows_of(conn) == []


# Behind the answer


def failing_repair(conn: Connection, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[WriteShadowCells]:
    """The store does not answer once the commit is decided."""
    tried: list[WriteShadowCells] = []
    perform = conn.driver.perform

    def refuse(effect: Any) -> Any:
        if isinstance(effect, WriteShadowCells):
            tried.append(effect)
            raise error
        return perform(effect)

    monkeypatch.setattr(conn.driver, "perform", refuse)
    return tried


@pytest.mark.parametrize("error", [Unavailable("no answer"), RuntimeError("can't start new thread"), MemoryError()])
def test_a_failure_behind_the_answer_does_not_say_not_committed(
    conn: Connection, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    writer = prepared(conn, runId="load")
    message = written(writer, ("a", 1))
    tried = failing_repair(conn, monkeypatch, error)
    writer.commit([message])
    assert len(tried) == 1
    monkeypatch.undo()
    assert rows_of(conn) == [("a", 1)]
    assert outcome_of(conn, "load").state is RunState.COMMITTED
    again = prepared(conn, runId="load")
    again.commit([written(again, ("b", 2))])
    assert rows_of(conn) == [("a", 1)]


@pytest.mark.parametrize("error", [Unavailable("no answer"), RuntimeError("can't start new thread")])
def test_a_lease_that_cannot_be_ended_fails_no_committed_write(
    conn: Connection, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(start_ts: int) -> None:
        raise error

    for how in ({}, {"runId": "load"}, {"runId": "load"}):
        writer = prepared(conn, **how)
        message = written(writer, ("a", 1))
        with monkeypatch.context() as patch:
            patch.setattr(type(conn.deployment.tso), "end_lease", lambda tso, start_ts: refuse(start_ts))
            writer.commit([message])
    assert rows_of(conn) == [("a", 1)]


# What counts as a table that exists


@pytest.mark.parametrize("mode", ["ignore", "error"])
@pytest.mark.parametrize("how", [{}, {"runId": "load"}])
def test_a_failed_tries_own_table_hides_no_rows(conn: Connection, mode: str, how: dict[str, str]) -> None:
    """The first try makes the table, durable at once, and dies before its commit. The next one must write."""
    first = prepared(conn, ifExists=mode, **how)
    written(first, ("a", 1))
    first.abort([])
    save(conn, ("a", 1), ifExists=mode, **how)
    assert rows_of(conn) == [("a", 1)]
    if how:
        assert outcome_of(conn, "load").state is RunState.COMMITTED


def test_ignore_and_error_see_the_rows_of_their_snapshot_only(conn: Connection) -> None:
    before = begin(conn)
    save(conn, ("a", 1), ("b", 2))
    assert prepared(conn, before, ifExists="ignore").plan is not None
    assert prepared(conn, before, ifExists="error").plan is not None
    assert prepared(conn, ifExists="ignore").plan is None
    with pytest.raises(Misuse, match="'t' has rows"):
        prepared(conn, ifExists="error")
    emptied = prepared(conn, overwrite=True)
    emptied.commit([])
    assert prepared(conn, ifExists="ignore").plan is not None


def test_an_ignored_write_spends_its_id_and_changes_nothing(conn: Connection) -> None:
    save(conn, ("a", 1))
    save(conn, ("b", 2), ifExists="ignore", runId="load")
    assert rows_of(conn) == [("a", 1)]
    assert outcome_of(conn, "load").state is RunState.COMMITTED
    assert leases(conn) == ()


def test_a_write_whose_id_is_done_makes_no_table_anew(conn: Connection) -> None:
    save(conn, ("a", 1), runId="load")
    with pyomid.connect(conn.url) as db:
        db.drop_table("t")
    save(conn, ("a", 1), runId="load")
    assert "t" not in {info.name for info in conn.deployment.catalog.tables()}
    assert leases(conn) == ()


# Overwriting


@pytest.mark.parametrize("tasks", [1, 3, 5])
def test_the_tasks_of_an_overwrite_delete_and_the_commit_deletes_the_rest(conn: Connection, tasks: int) -> None:
    """Every task also writes a row of another task's range, whose tombstone may come later."""
    save(conn, *((f"{n}", n) for n in range(9)))
    writer = prepared(conn, overwrite=True, partitions=3)
    assert writer.replaced is not None
    assert len(writer.replaced.parts) == 3
    messages = [written(writer, (f"{8 - task}", -task), task=task) for task in range(tasks)]
    assert sum(message.report.deleted for message in messages if message.report) == 3 * min(tasks, 3)
    writer.commit([*messages])
    assert rows_of(conn) == [(f"{8 - task}", -task) for task in reversed(range(tasks))]


def test_tombstones_of_an_overwrite_may_land_again_even_after_its_commit(conn: Connection) -> None:
    """Another attempt's, whose write was delayed: at once, and when compaction has dropped the first ones."""
    save(conn, ("a", 1), ("b", 2), ("c", 3))
    writer = prepared(conn, overwrite=True)
    assert writer.replaced is not None
    late = list(writer.replaced.tombstones(conn, writer.replaced.parts))
    crashpoints.arm_action("spark.task.after_write", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            written(writer, ("lost", 1))
    finally:
        crashpoints.disarm()
    writer.commit([written(writer, ("a", 9))])
    for expected in [[("a", 9)], [("a", 9), ("b", 5)]]:
        for batch in late:
            conn.deployment.store.write_batch("t", writer.replaced.branch, batch)
        assert rows_of(conn) == expected
        save(conn, ("b", 5))
        push_watermark_past(conn, conn.deployment.tso.begin().start_ts)
        compact(conn, conn.deployment.catalog.table("t"))
        assert rows_of(conn) == [("a", 9), ("b", 5)]


def test_no_tombstone_that_may_land_again_is_evidence_for_a_lost_reply(conn: Connection) -> None:
    """Once it was cleaned away and landed again without a shadow cell, it would prove that nothing was committed."""
    save(conn, ("a", 1))
    writer = prepared(conn, overwrite=True)
    deleted, replaced = writer.write_as(0, iter([])).report, written(writer, ("n", 1)).report
    assert deleted is not None
    assert (deleted.deleted, deleted.rows, deleted.witness) == (1, 0, None)
    assert replaced is not None
    assert replaced.witness is not None
    assert (replaced.deleted, replaced.witness.version) == (1, replaced.branch)


def test_an_overwrite_by_tasks_conflicts_with_a_writer_of_a_deleted_row(conn: Connection) -> None:
    save(conn, ("a", 1), ("b", 2))
    writer = prepared(conn, overwrite=True)
    done = written(writer, ("c", 3))
    save(conn, ("b", 5))
    with pytest.raises(ConflictError):
        writer.commit([done])
    assert rows_of(conn) == [("a", 1), ("b", 5)]


# The state that a commit leaves


@pytest.mark.parametrize(
    ("point", "state", "seen", "is_leased"),
    [
        ("client.flush.after", State.ROLLBACK_ONLY, [], True),
        ("client.commit.answered", State.UNKNOWN, [("a", 1)], False),
        ("spark.commit.after", State.COMMITTED, [("a", 1)], False),
    ],
)
def test_an_interrupted_commit_leaves_a_true_state(
    conn: Connection, point: str, state: State, seen: list[Row], is_leased: bool
) -> None:
    """Rollback-only before the request, unknown until the answer, committed behind it."""
    writer = prepared(conn, runId="load")
    message = written(writer, ("a", 1))
    transaction = LargeTransaction(
        conn,
        writer.begun,
        level=None,
        run_id="load",
        lease=conn.leases.grant(writer.begun.start_ts, None),
    )
    assert writer.plan is not None
    assert message.report is not None
    transaction.note(writer.plan, [message.report])
    crashpoints.arm_action(point, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            transaction.commit()
    finally:
        crashpoints.disarm()
    assert transaction.state is state
    assert transaction.is_leased == is_leased
    assert (transaction.start_ts in {grant.start_ts for grant in conn.leases._grants}) == is_leased
    if state is State.ROLLBACK_ONLY:
        transaction.rollback()
    assert rows_of(conn) == seen
    save(conn, ("b", 2), runId="load")
    assert rows_of(conn) == (seen or [("b", 2)])


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_table_dropped_before_the_commit_rolls_it_back(conn: Connection) -> None:
    writer = prepared(conn)
    message = written(writer, ("a", 1))
    with pyomid.connect(conn.url) as db:
        db.drop_table("t")
    with pytest.raises(ConflictError, match="was dropped or created again"):
        writer.commit([message])
    assert leases(conn) == ()


def test_a_table_made_anew_before_its_keys_are_compared_rolls_it_back(conn: Connection) -> None:
    """Two tasks told of one key; in the new table nobody wrote it."""
    writer = prepared(conn)
    messages = [written(writer, ("a", 1), task=task) for task in range(2)]
    with pyomid.connect(conn.url) as db:
        db.drop_table("t")
        db.create_table("t", families=["d"])
    with pytest.raises(ConflictError, match="was dropped or created again"):
        writer.commit(messages)
    assert leases(conn) == ()
