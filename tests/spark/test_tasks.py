"""What tasks and driver do to a database, without Spark: the same code over the memory store and a whole TSO."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyomid.database.lease_keeper import Lease
from pyomid.errors import ConflictError, Misuse, Unavailable
from pyomid.omid.oracle.status_oracle import PART_COST
from pyomid.protocol.reading import Snapshot
from pyomid.rows.decode import arrow_schema
from pyomid.rows.encode import Duplicates, Nulls
from pyomid.rows.schema import Field, row_key_parts, schema_of
from pyomid.spark.connections import Connection, connection
from pyomid.spark.frame_schema import WriteOptions, prepared_table, table_or_none
from pyomid.spark.large_transaction import LargeTransaction
from pyomid.spark.run_outcome import RunState, outcome_of
from pyomid.spark.source import write_task
from pyomid.spark.source.options import TABLE_LEVEL
from pyomid.spark.source.read_task import ReadPlan, divided, pair_rows, read_range
from pyomid.spark.source.write_task import (
    DELETE,
    INSERT,
    RUN_VARIABLE,
    UPDATE,
    BranchReport,
    MergePlan,
    WritePlan,
    check_distinct_keys,
    delete_range,
    delete_rows,
    merge_rows,
    reported_by_task,
    write_rows,
)
from pyomid.types import BeginReply, ConflictLevel, KeyRange, TableInfo, life_of

pytestmark = pytest.mark.fast

FIELDS = (Field("name", "string"), Field("count", "long"), Field("note", "string"))
KEY = row_key_parts("name")
_numbers = itertools.count()


@pytest.fixture
def conn() -> Connection:
    return connection(f"omid-memory:spark-tasks-{next(_numbers)}")


@pytest.fixture
def batches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task writes each batch as it comes."""
    monkeypatch.setenv(RUN_VARIABLE, "0")


def table(conn: Connection, name: str = "t", level: str | None = None) -> TableInfo:
    return prepared_table(conn, name, FIELDS, WriteOptions(row_key=KEY), level)


def begin(conn: Connection) -> BeginReply:
    begun = conn.deployment.tso.begin()
    conn.deployment.tso.grant_lease(begun.start_ts)
    return begun


def plan_for(conn: Connection, info: TableInfo, begun: BeginReply, level: str | None = None, **how: Any) -> WritePlan:
    names = tuple(field.name for field in FIELDS)
    ids = () if level == TABLE_LEVEL else info.id_levels
    return WritePlan(conn.task_url, info, schema_of(info), names, begun.start_ts, ids=ids, **how)


def frame(info: TableInfo, *rows: tuple[str, int | None, str | None]) -> pa.RecordBatch:
    names = [field.name for field in FIELDS]
    schema = arrow_schema(schema_of(info), names)
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)


def rows_at(conn: Connection, info: TableInfo, begun: BeginReply, own: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
    schema = schema_of(info)
    names = tuple(column.name for column in schema.columns)
    snapshot = Snapshot(begun.start_ts, begun.epoch, frozenset(own))
    plan = ReadPlan(conn.task_url, life_of(info), schema, names, snapshot, 3)
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
    run_id: str | None,
) -> int:
    """The commit timestamp of a transaction whose tasks wrote this."""
    lease = Lease.of_another(begun.start_ts)
    transaction = LargeTransaction(conn, begun, level=level, run_id=run_id, lease=lease)
    for info, reports in writes.items():
        transaction.note(transaction.plan(info), reports)
    transaction.commit()
    assert transaction.commit_ts is not None
    return transaction.commit_ts


def put(conn: Connection, info: TableInfo, *rows: tuple[str, int | None, str | None], level: str | None = None) -> int:
    begun = begin(conn)
    report = written(conn, plan_for(conn, info, begun, level), frame(info, *rows))
    return commit(conn, begun, {info: [report]}, level=level, run_id=None)


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
    commit(conn, begun, {info: [winner]}, level=level, run_id=None)
    assert rows_at(conn, info, before) == []
    assert rows_at(conn, info, begin(conn)) == [("a", 1, None), ("b", None, "")]


@pytest.mark.parametrize("level", [None, TABLE_LEVEL])
def test_of_two_runs_under_one_id_at_most_one_commits(conn: Connection, level: str | None) -> None:
    info, other_table = table(conn), table(conn, "u")
    one, other = begin(conn), begin(conn)
    writes = {
        one: {info: [written(conn, plan_for(conn, info, one, level), frame(info, ("a", 1, None)))]},
        other: {other_table: [written(conn, plan_for(conn, other_table, other, level), frame(info, ("b", 2, None)))]},
    }
    assert outcome_of(conn, "run").state is RunState.ABSENT
    commit(conn, one, writes[one], level=level, run_id="run")
    with pytest.raises(ConflictError):
        commit(conn, other, writes[other], level=level, run_id="run")
    found = outcome_of(conn, "run")
    assert (found.state, found.start_ts) == (RunState.COMMITTED, one.start_ts)


def test_runs_under_other_ids_do_not_disturb_a_table_level_commit(conn: Connection) -> None:
    info, other_table = table(conn), table(conn, "u")
    begun = begin(conn)
    report = written(conn, plan_for(conn, info, begun, TABLE_LEVEL), frame(info, ("a", 1, None)))
    quick = begin(conn)
    commit(conn, quick, {}, level=None, run_id="quick")
    put(conn, other_table, ("x", 1, None))
    assert commit(conn, begun, {info: [report]}, level=TABLE_LEVEL, run_id="slow")


@pytest.mark.usefixtures("batches_alone")
def test_equal_keys_of_two_batches_or_tasks_are_found_and_named(conn: Connection) -> None:
    info = table(conn)
    plan = plan_for(conn, info, begin(conn))
    in_one_task = [written(conn, plan, frame(info, ("a", 1, None)), frame(info, ("b", 1, None), ("a", 2, None)))]
    in_two_tasks = [written(conn, plan, frame(info, (key, 1, None))) for key in ("x", "y", "x")]
    check_distinct_keys(conn, plan, in_two_tasks[:2])
    for reports, key in ((in_one_task, "'a'"), (in_two_tasks, "'x'")):
        with pytest.raises(Misuse, match=f"row key name={key}"):
            check_distinct_keys(conn, plan, reports)


def test_a_task_writes_its_batches_in_the_order_of_keys(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one run; of a row that comes twice the later one stays, and keeps what a null of it says nothing of."""
    info, first_keys = table(conn), list[bytes]()
    real = conn.deployment.store.write_batch
    monkeypatch.setattr(
        conn.deployment.store,
        "write_batch",
        lambda name, version, batch: (first_keys.append(batch.row_key(0)), real(name, version, batch)),
    )
    monkeypatch.setattr(write_task, "BATCH_ROWS", 3)
    plan = replace(plan_for(conn, info, begin(conn)), duplicates=Duplicates.LAST, nulls=Nulls.KEEP)
    batches = [
        frame(info, ("e", 1, None), ("a", 1, "old")),
        frame(info, ("d", 1, None), ("b", 1, None)),
        frame(info, ("c", 1, None), ("a", 2, None)),
    ]
    report = written(conn, plan, *batches)
    assert first_keys == [b"a", b"c"]
    begun = BeginReply(report.branch + 1, 1)
    assert rows_at(conn, info, begun, (report.branch,))[0] == ("a", 2, "old")
    first_keys.clear()
    monkeypatch.setenv(RUN_VARIABLE, "0")
    written(conn, plan, *batches)
    assert first_keys == [b"a", b"b", b"a"], "each batch is a run"


_SMALL_WORK = """
import sys
import pyarrow as pa
import test_tasks as of
from pyomid.rows.arrow_arrays import binary_array_of, int64_array
from pyomid.types import BeginReply, KeyRange, life_of
from pyomid.spark.source.key_ranges import Where
from pyomid.spark.source.read_task import ReadPlan, read_range
from pyomid.spark.source.write_task import reporting, write_rows

conn = of.connection("omid:///" + sys.argv[1])
info = of.table(conn)
values = [
    binary_array_of([b"b", b"a"]).cast(pa.string()),
    int64_array([1, 2]),
    binary_array_of([b"x", None]).cast(pa.string()),
]
rows = pa.RecordBatch.from_arrays(values, schema=of.arrow_schema(of.schema_of(info), ["name", "count", "note"]))
plan = of.plan_for(conn, info, of.begin(conn))
[report] = reporting(lambda batches: write_rows(plan, batches), plan.written, iter([rows]))
branch = report.branch
snapshot = of.Snapshot(branch + 50, 1, frozenset([branch]))
schema = of.schema_of(info)
where = Where.of("name = 'a' and count = 2", info.name, schema)
read = ReadPlan(conn.task_url, life_of(info), schema, plan.written, snapshot, 10, where=where)
[found] = read_range(conn, read, KeyRange(), of.arrow_schema(schema, plan.written))
assert found.to_pylist() == [{"name": "a", "count": 2, "note": None}]
print("loaded", {"pandas"} & set(sys.modules))
"""


def test_a_run_that_is_no_number_is_refused(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    info = table(conn)
    monkeypatch.setenv(RUN_VARIABLE, "48M")
    with pytest.raises(Misuse, match="PYOMID_RUN_BYTES='48M' is not a number of bytes"):
        written(conn, plan_for(conn, info, begin(conn)), frame(info, ("a", 1, None)))


@pytest.mark.process
def test_a_small_write_and_read_do_not_load_pandas(tmp_path: Path) -> None:
    """It takes longer to load than all else that a Python process of Spark's does for a few rows."""
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", _SMALL_WORK, os.fspath(tmp_path / "db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.stdout == "loaded set()\n", done.stderr


@pytest.mark.usefixtures("batches_alone")
def test_keys_that_were_not_told_are_found_too(conn: Connection) -> None:
    """In the store's order; beside an orphan, another's row, and rows that an overwrite deleted."""
    info = table(conn)
    put(conn, info, ("c", 1, None), ("x", 1, None))
    transaction = begun_by(conn, None)
    plan = replace(transaction.plan(info, ("name", "count", "note")), reported_max=1, ends_early=False)
    deleted = delete_range(plan, transaction.read_plan(info), KeyRange())
    assert deleted is not None
    written(conn, plan, frame(info, ("a", 0, None), ("b", 0, None)))
    put(conn, info, ("b", 7, None))
    one, other = (
        written(conn, plan, frame(info, *[(key, 1, None) for key in keys])) for keys in (("a", "b", "c"), ("x", "y"))
    )
    assert (len(one.keys), one.keys_count, one.span) == (0, 3, KeyRange(b"a", b"c\0"))
    transaction.note(plan, [deleted, one, other])
    twice = written(conn, plan, frame(info, ("x", 2, None), ("z", 2, None)))
    with pytest.raises(Misuse, match="row key name='x'"):
        transaction.note(plan, [one, other, twice])
    in_one_task = written(conn, plan, frame(info, ("q", 1, None)), frame(info, ("p", 1, None), ("q", 2, None)))
    assert len(in_one_task.keys) == 2
    with pytest.raises(Misuse, match="row key name='q'"):
        transaction.note(plan, [in_one_task])


@pytest.mark.parametrize("tasks", [1, 2, 10_000])
def test_what_tasks_tell_is_bounded_by_their_number(tasks: int) -> None:
    shares = [reported_by_task(1 << 21, number) for number in range(tasks)]
    assert shares[-1] * tasks <= 1 << 21 < shares[-1] * tasks + tasks
    assert sum(shares) <= (1 << 21) * (1 + math.log(tasks))


def test_a_range_is_divided_without_gap_or_overlap(conn: Connection) -> None:
    info = table(conn)
    put(conn, info, *[(f"{number:03}", number, None) for number in range(100)])
    parts = divided(conn.deployment.store, info.name, KeyRange(b"010", b"090"), 4)
    assert len(parts) == 4
    assert (parts[0].start, parts[-1].stop) == (b"010", b"090")
    assert all(one.stop == other.start for one, other in itertools.pairwise(parts))


# Levels


def small(level: str | None = None, **options: int) -> tuple[Connection, TableInfo]:
    """A database whose TSO has room for one part of 16 ids, and a table in it."""
    told = "".join(f"&{name}={value}" for name, value in options.items())
    conn = connection(f"omid-memory:spark-ids-{next(_numbers)}?reportedIdsMax={PART_COST + 16}{told}")
    return conn, table(conn, level=level)


def many(info: TableInfo, rows: int, first: int = 0) -> pa.RecordBatch:
    return frame(info, *[(f"{number:04}", number, "x") for number in range(first, first + rows)])


def begun_by(conn: Connection, level: str | None, run_id: str | None = None) -> LargeTransaction:
    begun = begin(conn)
    lease = Lease.of_another(begun.start_ts)
    return LargeTransaction(conn, begun, level=level, run_id=run_id, lease=lease)


def write(transaction: LargeTransaction, info: TableInfo, *batches: pa.RecordBatch) -> BranchReport:
    names = tuple(field.name for field in FIELDS)
    plan = transaction.plan(info, names)
    report = write_rows(plan, batches)
    assert report is not None
    transaction.note(plan, [report])
    return report


@pytest.mark.parametrize("run_id", [None, "load"])
def test_ids_are_reported_to_the_tso_while_it_has_room(run_id: str | None, caplog: pytest.LogCaptureFixture) -> None:
    conn, info = small()
    transaction = begun_by(conn, "auto", run_id)
    write(transaction, info, many(info, 16))
    request = transaction.writes.commit_request()
    assert (len(request.cell_ids), request.reported_ids) == (0 if run_id is None else 1, 16)
    assert (request.level.name, caplog.records) == ("IDS", [])
    one_more = write(transaction, info, many(info, 1, first=16))
    request = transaction.writes.commit_request()
    assert (one_more.ids_count, request.level.name, len(request.table_ids)) == (None, "TABLE", 1)
    assert request.reported_ids == 0
    write(transaction, info, many(info, 100, first=100))
    (told,) = caplog.records
    assert "claims every table that it writes (t) as a whole" in told.getMessage()
    transaction.commit()
    assert len(rows_at(conn, info, begin(conn))) == 117


def test_while_a_level_changes_the_ids_of_both_are_reported() -> None:
    conn, info = small()
    changing = replace(info, next_level=ConflictLevel.CELL)
    transaction = begun_by(conn, "auto")
    report = write(transaction, changing, many(changing, 4))
    assert report.ids_count == transaction.writes.commit_request().reported_ids == report.rows + report.cells


@pytest.mark.usefixtures("batches_alone")
@pytest.mark.parametrize("rows", [8, 9, 20])
def test_ids_are_reported_in_parts(conn: Connection, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(write_task, "IDS_A_PART", 4)
    info = table(conn)
    load, point = begun_by(conn, None), begun_by(conn, None)
    report = write(load, info, *[many(info, 1, first=row) for row in range(rows)])
    assert report.ids_count == rows
    load.commit()
    with pytest.raises(ConflictError):
        write(point, info, many(info, 1, first=rows - 1))


@pytest.mark.usefixtures("batches_alone")
@pytest.mark.parametrize("ends_early", [True, False])
@pytest.mark.parametrize(
    ("level", "beaten", "last"),
    [("row", 0, 0), ("row", 4, 7), ("row", 11, 11), ("table", 0, 0), ("table", 4, 4), ("table", 11, 11)],
)
def test_a_task_that_lost_ends_at_a_batch(
    conn: Connection, level: str, beaten: int, last: int, *, ends_early: bool
) -> None:
    """Of twelve rows, each a batch. As the frame yields the row `beaten`, another transaction commits it. Ids are
    reported with rows 0, 1, 3 and 7, as each part is as large as those before it, and at the end; a claim is asked
    with each row."""
    info = table(conn)
    load = begun_by(conn, level)
    yielded: list[int] = []

    def batches() -> Any:
        for row in range(12):
            if row == beaten:
                put(conn, info, (f"{row:04}", 1, None))
            yielded.append(row)
            yield many(info, 1, first=row)

    plan = replace(load.plan(info, tuple(field.name for field in FIELDS)), ends_early=ends_early)
    if ends_early:
        with pytest.raises(ConflictError):
            write_rows(plan, batches())
        assert yielded[-1] == last
        return
    report = write_rows(plan, batches())
    assert report is not None
    assert report.ids_count == (12 if level == "row" else 0)
    load.note(plan, [report])
    with pytest.raises(ConflictError):
        load.commit()


@pytest.mark.usefixtures("batches_alone")
@pytest.mark.parametrize("level", ["cell", "row"])
def test_a_given_level_is_refused_by_the_first_task_without_room(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_task, "IDS_A_PART", 17)
    conn, info = small(level)
    transaction = begun_by(conn, level)
    never: list[int] = []

    def batches() -> Any:
        yield many(info, 17)
        never.append(1)

    plan = transaction.plan(info, tuple(field.name for field in FIELDS))
    with pytest.raises(Unavailable, match="no room for the conflict ids"):
        write_rows(plan, batches())
    assert not never


@pytest.mark.usefixtures("batches_alone")
def test_a_task_that_claims_its_table_for_lack_of_room_says_so_when_it_loses() -> None:
    conn, info = small()

    def batches() -> Any:
        yield many(info, 17)
        put(conn, info, ("elsewhere", 1, None))
        yield many(info, 1, first=17)

    plan = begun_by(conn, None).plan(info, tuple(field.name for field in FIELDS))
    with pytest.raises(ConflictError, match="claimed the whole table because the TSO has no room") as lost:
        write_rows(plan, batches())
    assert lost.value.values["commit_ts"] > plan.start_ts


@pytest.mark.parametrize("point_level", ["cell", "row"])
@pytest.mark.parametrize("point_first", [True, False])
def test_a_load_that_claims_its_table_meets_writers_by_id(point_level: str, point_first: bool) -> None:
    """One of two that overlap wins, at whatever level the other writes, and though they have no row in common."""
    conn, info = small(point_level)
    load, point = begun_by(conn, None), begun_by(conn, None)
    write(load, info, many(info, 40))
    write(point, info, frame(info, ("elsewhere", 1, None)))
    assert (load.claims_tables, point.claims_tables) == (True, False)
    first, second = (point, load) if point_first else (load, point)
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    assert len(rows_at(conn, info, begin(conn))) == (1 if point_first else 40)


def test_loads_beside_point_writers_of_other_rows_commit() -> None:
    """Two loads, and points that committed before and after them; of what both wrote, the first commit counts."""
    conn = connection(f"omid-memory:spark-beside-{next(_numbers)}")
    info = table(conn)
    loads = [begun_by(conn, None) for _ in range(3)]
    late, lost = begun_by(conn, None), begun_by(conn, None)
    for at, load in enumerate(loads):
        write(load, info, many(info, 100, first=1000 * min(at, 1)))
    put(conn, info, ("elsewhere", 1, None))
    loads[0].commit()
    loads[1].commit()
    with pytest.raises(ConflictError):
        loads[2].commit()
    write(late, info, frame(info, ("late", 1, None)))
    late.commit()
    with pytest.raises(ConflictError):
        write(lost, info, many(info, 1, first=1050))
    assert len(rows_at(conn, info, begin(conn))) == 202


def test_a_table_stays_when_the_load_that_made_it_rolls_back(conn: Connection) -> None:
    """Others may have begun to use it: taking it back would hide or delete what they committed."""
    load = begun_by(conn, None)
    load.prepared("new", FIELDS, WriteOptions(row_key=KEY))
    other = begun_by(conn, None)
    plan = other.prepared("new", FIELDS, WriteOptions(row_key=KEY))
    report = write_rows(plan, [frame(plan.info, ("kept", 1, None))])
    assert report is not None
    other.note(plan, [report])
    other.commit()
    load.rollback()
    assert rows_at(conn, conn.table("new"), begin(conn)) == [("kept", 1, None)]


def test_a_level_that_cannot_be_kept_is_refused(conn: Connection) -> None:
    load = begun_by(conn, TABLE_LEVEL)
    load.prepared("first", FIELDS, WriteOptions(row_key=KEY))
    with pytest.raises(Misuse, match="conflict level 'row' is not possible"):
        load.prepared("second", FIELDS, WriteOptions(row_key=KEY), level="row")
    assert table_or_none(conn, "second") is None


# Merges


def test_rows_are_paired_with_the_tables_by_key(conn: Connection) -> None:
    """A null key finds nothing, nor does an empty one, which no row has; and two rows with one key find the same."""
    info, begun = table(conn), begin(conn)
    rows = frame(info, ("a", 1, None), ("c", 3, "x"))
    commit(conn, begun, {info: [written(conn, plan_for(conn, info, begun), rows)]}, level=None, run_id=None)
    later = begin(conn)
    names = tuple(field.name for field in FIELDS)
    plan = ReadPlan(conn.task_url, life_of(info), schema_of(info), names, Snapshot(later.start_ts, later.epoch), 3)
    source = pa.RecordBatch.from_pydict({"more": [1, 2, 3, 4, 5, 6], "key": ["c", "b", None, "c", "a", ""]})
    batches = [source, source.slice(1, 2), source.slice(0, 0)]
    found = [*pair_rows(plan, [1], arrow_schema(schema_of(info), names), batches)]
    assert [batch.num_rows for batch in found] == [6, 2, 0]
    c, none = ("c", 3, "x", True), (None, None, None, False)
    pairs = [tuple(row.values())[2:] for row in found[0].to_pylist()]
    assert pairs == [c, none, none, c, ("a", 1, None, True), none]
    assert found[0].schema.names == ["s0", "s1", "t0", "t1", "t2", "in_target"]
    assert found[1].schema.equals(found[0].schema)


@pytest.mark.parametrize("level", ["row", "cell"])
def test_a_merge_task_writes_what_its_rows_become(conn: Connection, level: str) -> None:
    info, begun = table(conn, level=level), begin(conn)
    rows = frame(info, ("a", 1, "x"), ("b", 2, None), ("c", 3, "x"))
    commit(conn, begun, {info: [written(conn, plan_for(conn, info, begun), rows)]}, level=None, run_id=None)
    later = begin(conn)
    plan = plan_for(conn, info, later, duplicates=Duplicates.MERGE)
    names = tuple(field.name for field in FIELDS)
    read = ReadPlan(conn.task_url, life_of(info), schema_of(info), names, Snapshot(later.start_ts, later.epoch), 3)
    changes = frame(info, ("b", None, None), ("n", 9, None), ("a", 5, "ignored"))
    changes = pa.RecordBatch.from_arrays([pa.array([DELETE, INSERT, UPDATE]), *changes.columns], ["do", *names])
    merge = MergePlan(read, ("count",), new_keys=True)
    report = merge_rows(plan, merge, [changes])
    assert report is not None
    assert (report.rows, report.inserted, report.deleted, len(report.keys)) == (3, 1, 1, 3)
    assert report.ids_count == (3 if level == "row" else 8)
    commit(conn, later, {info: [report]}, level=None, run_id=None)
    assert rows_at(conn, info, begin(conn)) == [("a", 5, "x"), ("c", 3, "x"), ("n", 9, None)]
    seen = replace(merge, read=replace(read, snapshot=Snapshot(begin(conn).start_ts, later.epoch)))
    with pytest.raises(Misuse, match="would insert the row name='n', which already exists in table 't'"):
        merge_rows(replace(plan, start_ts=begin(conn).start_ts), seen, [changes])


# Level cell: a row that shows no value exists by its sentinel alone


def rewritten(conn: Connection, info: TableInfo, tx: LargeTransaction, action: int | None, told: int) -> None:
    """The row k, with count 1 and note null: by an update (None), or by this action of a merge."""
    names, row = tuple(field.name for field in FIELDS), frame(info, ("k", 1, None))
    plan = replace(tx.plan(info, names, WriteOptions(whole=True)), reported_max=told)
    if action is None:
        report = write_rows(plan, [row])
    else:
        plan = replace(plan, duplicates=Duplicates.MERGE)
        changes = pa.RecordBatch.from_arrays([pa.array([action], pa.int32()), *row.columns], names=["do", *names])
        merge = MergePlan(replace(tx.read_plan(info), wanted=names), ("count", "note"), new_keys=False)
        report = merge_rows(plan, merge, [changes])
    assert report is not None
    tx.note(plan, [report])


def removed(conn: Connection, info: TableInfo, tx: LargeTransaction, *, whole: bool) -> None:
    plan = tx.plan(info)
    report = delete_rows(plan, tx.read_plan(info), [pa.RecordBatch.from_pydict({"name": ["k"]})], whole=whole)
    assert report is not None
    tx.note(plan, [report])


def existing(conn: Connection, info: TableInfo, tx: LargeTransaction) -> None:
    """Writes the row k without any column but its key's."""
    plan = tx.plan(info, ("name",))
    report = write_rows(plan, [pa.RecordBatch.from_pydict({"name": ["k"]})])
    assert report is not None
    tx.note(plan, [report])


@pytest.mark.parametrize("told", [1 << 20, 1])
@pytest.mark.parametrize("action", [None, UPDATE, DELETE])
@pytest.mark.parametrize("delete_first", [True, False])
def test_a_delete_of_a_row_of_nulls_meets_its_change(
    conn: Connection, action: int | None, told: int, *, delete_first: bool
) -> None:
    info = table(conn, level="cell")
    put(conn, info, ("k", None, None))
    deletes, changes = begun_by(conn, None), begun_by(conn, None)
    removed(conn, info, deletes, whole=False)
    rewritten(conn, info, changes, action, told)
    first, second = (deletes, changes) if delete_first else (changes, deletes)
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    gone = delete_first or action == DELETE
    assert rows_at(conn, info, begin(conn)) == ([] if gone else [("k", 1, None)])


@pytest.mark.parametrize("whole_first", [True, False])
@pytest.mark.parametrize("how", ["insert", "update", "delete where", "delete"])
def test_whole_row_writes_meet_one_of_the_key_alone(conn: Connection, how: str, *, whole_first: bool) -> None:
    info = table(conn, level="cell")
    if how != "insert":
        put(conn, info, ("k", 5, None))
    whole, key_alone = begun_by(conn, None), begun_by(conn, None)
    if how in ("insert", "update"):
        rewritten(conn, info, whole, INSERT if how == "insert" else None, 1 << 20)
    else:
        removed(conn, info, whole, whole=how == "delete where")
    existing(conn, info, key_alone)
    first, second = (whole, key_alone) if whole_first else (key_alone, whole)
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()


def test_a_row_that_was_changed_whole_is_gone_with_its_values(conn: Connection) -> None:
    """Its sentinel went when it got a value, and comes back with the last one's going."""
    info = table(conn, level="cell")
    put(conn, info, ("k", None, None))
    for row, action in (("k", 1, None), None), (("k", None, None), None), (("k", 1, None), UPDATE):
        tx = begun_by(conn, None)
        if row[1] is not None:
            rewritten(conn, info, tx, action, 1 << 20)
        else:
            plan = tx.plan(info, tuple(field.name for field in FIELDS), WriteOptions(whole=True))
            tx.note(plan, [written(conn, plan, frame(info, row))])
        tx.commit()
        assert rows_at(conn, info, begin(conn)) == [row]
    tx = begun_by(conn, None)
    removed(conn, info, tx, whole=False)
    tx.commit()
    assert rows_at(conn, info, begin(conn)) == []
