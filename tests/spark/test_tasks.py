"""What tasks and driver do to a database, without Spark: the same code over the memory store and a whole TSO."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

import pyomid
from pyomid.client.session.leases import Lease
from pyomid.client.table_admin import create_table
from pyomid.errors import ConflictError, Misuse
from pyomid.protocol.reading import Snapshot
from pyomid.spark.databases import Connection, connection
from pyomid.spark.large_transaction import LargeTransaction, ids_for
from pyomid.spark.options import TABLE_LEVEL
from pyomid.spark.read_task import ReadPlan, divided, read_range
from pyomid.spark.row_codec.decode import arrow_schema
from pyomid.spark.run_outcome import RunState, look_up_run
from pyomid.spark.schema import Field, WriteOptions, prepared_table, row_key_parts, schema_of
from pyomid.spark.write_task import BranchReport, WritePlan, check_distinct, delete_ranges, delete_rows, write_rows
from pyomid.types import BeginReply, ColumnSchema, KeyRange, RowKeyPart, TableInfo, TableSchema

pytestmark = pytest.mark.fast

FIELDS = (Field("name", "string"), Field("count", "long"), Field("note", "string"))
KEY = row_key_parts("name")
_numbers = itertools.count()


@pytest.fixture
def conn() -> Connection:
    return connection(f"omid-memory:spark-tasks-{next(_numbers)}")


def table(conn: Connection, name: str = "t", level: str | None = None) -> TableInfo:
    return prepared_table(conn, name, FIELDS, WriteOptions(row_key=KEY), level)


def begin(conn: Connection) -> BeginReply:
    begun = conn.parts.tso.begin()
    conn.parts.tso.grant_lease(begun.start_ts)
    return begun


def plan_for(conn: Connection, info: TableInfo, begun: BeginReply, level: str | None = None, **how: Any) -> WritePlan:
    names = tuple(field.name for field in FIELDS)
    return WritePlan(conn.url, info, schema_of(info), names, begun.start_ts, ids=ids_for(info, level), **how)


def frame(info: TableInfo, *rows: tuple[str, int | None, str | None]) -> pa.RecordBatch:
    names = [field.name for field in FIELDS]
    schema = arrow_schema(schema_of(info), names)
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)


def rows_at(conn: Connection, info: TableInfo, begun: BeginReply, own: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
    schema = schema_of(info)
    names = tuple(column.name for column in schema.columns)
    snapshot = Snapshot(begun.start_ts, begun.epoch, frozenset(own))
    plan = ReadPlan(conn.url, info.name, schema, names, snapshot, 3, leased=False)
    batches = read_range(conn, plan, KeyRange(), arrow_schema(schema, names))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def written(conn: Connection, plan: WritePlan, *batches: pa.RecordBatch) -> BranchReport:
    report = write_rows(plan, batches)
    assert report is not None
    return report


def commit(
    conn: Connection,
    begun: BeginReply,
    writes: dict[TableInfo, list[BranchReport]],
    *,
    level: str | None,
    transaction_id: str | None,
) -> int:
    """The commit timestamp of a transaction whose tasks wrote this."""
    lease = Lease.of_another(begun.start_ts)
    transaction = LargeTransaction(conn, begun, level=level, transaction_id=transaction_id, lease=lease)
    for info, reports in writes.items():
        transaction.note(transaction.plan(info), reports)
    transaction.commit()
    assert transaction.commit_ts is not None
    return transaction.commit_ts


def put(conn: Connection, info: TableInfo, *rows: tuple[str, int | None, str | None], level: str | None = None) -> int:
    begun = begin(conn)
    report = written(conn, plan_for(conn, info, begun, level), frame(info, *rows))
    return commit(conn, begun, {info: [report]}, level=level, transaction_id=None)


@pytest.mark.parametrize("level", [None, TABLE_LEVEL])
def test_named_branches_are_seen_by_later_snapshots_only_and_forgotten_ones_by_none(
    conn: Connection, level: str | None
) -> None:
    info = table(conn)
    before, begun = begin(conn), begin(conn)
    plan = plan_for(conn, info, begun, level)
    winner = written(conn, plan, frame(info, ("a", 1, None)), frame(info, ("b", None, "")))
    loser = written(conn, plan, frame(info, ("a", 9, "lost"), ("c", 9, "lost")))
    assert rows_at(conn, info, begun) == []
    assert rows_at(conn, info, begun, own=(winner.branch,)) == [("a", 1, None), ("b", None, "")]
    assert loser.branch > winner.branch > begun.start_ts
    commit(conn, begun, {info: [winner]}, level=level, transaction_id=None)
    assert rows_at(conn, info, before) == []
    assert rows_at(conn, info, begin(conn)) == [("a", 1, None), ("b", None, "")]


def test_an_upsert_replaces_the_row_and_a_row_of_nulls_exists(conn: Connection) -> None:
    info = table(conn)
    put(conn, info, ("a", 1, "x"), ("b", 2, "y"))
    put(conn, info, ("a", None, None))
    assert rows_at(conn, info, begin(conn)) == [("a", None, None), ("b", 2, "y")]


@pytest.mark.parametrize("level", [None, TABLE_LEVEL])
def test_of_two_writers_of_one_row_the_later_commit_fails(conn: Connection, level: str | None) -> None:
    info = table(conn)
    one, other = begin(conn), begin(conn)
    reports = {
        begun: written(conn, plan_for(conn, info, begun, level), frame(info, ("a", begun.start_ts, None)))
        for begun in (one, other)
    }
    commit(conn, one, {info: [reports[one]]}, level=level, transaction_id=None)
    with pytest.raises(ConflictError):
        commit(conn, other, {info: [reports[other]]}, level=level, transaction_id=None)
    assert rows_at(conn, info, begin(conn)) == [("a", one.start_ts, None)]


@pytest.mark.parametrize("level", [None, TABLE_LEVEL])
def test_of_two_runs_under_one_id_at_most_one_commits(conn: Connection, level: str | None) -> None:
    info, other_table = table(conn), table(conn, "u")
    one, other = begin(conn), begin(conn)
    writes = {
        one: {info: [written(conn, plan_for(conn, info, one, level), frame(info, ("a", 1, None)))]},
        other: {other_table: [written(conn, plan_for(conn, other_table, other, level), frame(info, ("b", 2, None)))]},
    }
    assert look_up_run(conn.url, "run").state is RunState.ABSENT
    commit(conn, one, writes[one], level=level, transaction_id="run")
    with pytest.raises(ConflictError):
        commit(conn, other, writes[other], level=level, transaction_id="run")
    found = look_up_run(conn.url, "run")
    assert (found.state, found.start_ts) == (RunState.COMMITTED, one.start_ts)


def test_runs_under_other_ids_do_not_disturb_a_table_level_commit(conn: Connection) -> None:
    info, other_table = table(conn), table(conn, "u")
    begun = begin(conn)
    report = written(conn, plan_for(conn, info, begun, TABLE_LEVEL), frame(info, ("a", 1, None)))
    quick = begin(conn)
    commit(conn, quick, {}, level=None, transaction_id="quick")
    put(conn, other_table, ("x", 1, None))
    assert commit(conn, begun, {info: [report]}, level=TABLE_LEVEL, transaction_id="slow")


def test_a_deleted_row_is_gone_with_its_marker_and_may_come_back(conn: Connection) -> None:
    info = table(conn)
    put(conn, info, ("a", None, None), ("b", 2, "y"), ("c", 3, None))
    begun = begin(conn)
    plan = plan_for(conn, info, begun)
    read = ReadPlan(conn.url, info.name, plan.schema, (), Snapshot(begun.start_ts, begun.epoch), 10, leased=True)
    keys = frame(info, ("a", None, None), ("c", None, None), ("none", None, None)).select(["name"])
    report = delete_rows(plan, read, [keys])
    assert report is not None
    assert report.rows == 2
    commit(conn, begun, {info: [report]}, level=None, transaction_id=None)
    assert rows_at(conn, info, begin(conn)) == [("b", 2, "y")]
    put(conn, info, ("a", None, None))
    assert rows_at(conn, info, begin(conn)) == [("a", None, None), ("b", 2, "y")]


def test_overwriting_deletes_below_the_new_rows(conn: Connection) -> None:
    info = table(conn)
    put(conn, info, ("a", 1, None), ("b", 2, None))
    begun = begin(conn)
    plan = plan_for(conn, info, begun)
    read = ReadPlan(conn.url, info.name, plan.schema, (), Snapshot(begun.start_ts, begun.epoch), 10, leased=True)
    deleted = delete_ranges(plan, read, [KeyRange()])
    assert deleted is not None
    new = written(conn, plan, frame(info, ("b", 3, None)))
    commit(conn, begun, {info: [deleted, new]}, level=None, transaction_id=None)
    assert rows_at(conn, info, begin(conn)) == [("b", 3, None)]


def test_equal_keys_of_two_batches_or_tasks_are_found_and_named(conn: Connection) -> None:
    info = table(conn)
    plan = plan_for(conn, info, begin(conn))
    in_one_task = [written(conn, plan, frame(info, ("a", 1, None)), frame(info, ("b", 1, None), ("a", 2, None)))]
    in_two_tasks = [written(conn, plan, frame(info, (key, 1, None))) for key in ("x", "y", "x")]
    check_distinct(conn, plan, in_two_tasks[:2])
    for reports, key in ((in_one_task, "'a'"), (in_two_tasks, "'x'")):
        with pytest.raises(Misuse, match=f"row key name={key}"):
            check_distinct(conn, plan, reports)


def test_a_range_is_divided_without_gap_or_overlap(conn: Connection) -> None:
    info = table(conn)
    put(conn, info, *[(f"{number:03}", number, None) for number in range(100)])
    parts = divided(conn.parts.store, info.name, KeyRange(b"010", b"090"), 4)
    assert len(parts) == 4
    assert (parts[0].start, parts[-1].stop) == (b"010", b"090")
    assert all(one.stop == other.start for one, other in itertools.pairwise(parts))


def test_what_the_client_wrote_is_read_with_a_schema_of_the_reader(conn: Connection) -> None:
    with pyomid.connect(conn.url) as db:
        db.create_table("plain", families=["f"])
        with db.begin() as tx:
            tx.table("plain").put(b"alice", {b"f:balance": b"100"})
    info = create_table(conn.parts, "plain", ["f"], if_not_exists=True)
    columns = (
        ColumnSchema("who", "string", None),
        ColumnSchema("balance", "string", pyomid.types.Column(b"f", b"balance")),
    )
    schema = TableSchema(columns, (RowKeyPart("who"),))
    begun = begin(conn)
    plan = ReadPlan(conn.url, info.name, schema, ("who", "balance"), Snapshot(begun.start_ts, begun.epoch), 9, False)
    batches = read_range(conn, plan, KeyRange(), arrow_schema(schema, plan.wanted))
    assert [row for batch in batches for row in batch.to_pylist()] == [{"who": "alice", "balance": "100"}]


def test_ids_beyond_a_quarter_of_the_conflict_map_are_refused_with_the_way_out() -> None:
    conn = connection(f"omid-memory:spark-ids-{next(_numbers)}?conflictMapEntries=64")
    info = table(conn)
    begun = begin(conn)
    report = written(conn, plan_for(conn, info, begun), frame(info, *[(f"{n}", n, "x") for n in range(40)]))
    with pytest.raises(Misuse, match=r"80 ids.*conflict level 'table'"):
        commit(conn, begun, {info: [report]}, level=None, transaction_id=None)


def test_two_conflict_levels_on_one_table_are_refused(conn: Connection) -> None:
    info = table(conn, level="row")
    with pytest.raises(Misuse, match="conflict level 'row', not 'cell'"):
        ids_for(info, "cell")
