"""What verification finds, and what it says it cannot know: over the memory store, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from test_writer import compact, prepared, push_watermark_past, written

import pyomid
from pyomid.database import idempotency
from pyomid.database.upkeep.jobs import Partition
from pyomid.database.upkeep.verification import Verification, look, verified
from pyomid.database.upkeep.verification import verify as verify_here
from pyomid.spark.connections import Connection, connection
from pyomid.types import (
    CellVersion,
    Column,
    CommitRequest,
    KeyRange,
    LeaderStateChanges,
    PendingCommit,
    RowWrite,
    ShadowWrite,
    TableInfo,
)

pytestmark = pytest.mark.fast

COLUMN = Column(b"d", b"count")
_numbers = itertools.count()


@pytest.fixture
def conn() -> Connection:
    return connection(f"omid-memory:spark-verified-{next(_numbers)}?conflictMapEntries=64")


def verify(conn: Connection) -> Verification:
    return verify_here(conn.deployment)


def large_commit(conn: Connection, **how: str) -> tuple[int, list[int], int]:
    """Rows a and b, a branch each: start, branches, commit."""
    writer = prepared(conn, **how)
    messages = [written(writer, (row, 1)) for row in ("a", "b")]
    writer.commit(list(messages))
    branches = [message.report.branch for message in messages if message.report is not None]
    (commit_ts,) = set(conn.deployment.commit_table.lookup(branches))
    return writer.begun.start_ts, branches, commit_ts


def test_a_sound_large_commit_leaves_no_doubt(conn: Connection) -> None:
    large_commit(conn)
    large_commit(conn, runId="load")
    found = verify(conn)
    assert (found.ok, found.doubts, found.torn_starts) == (True, [], [])


def test_a_lost_entry_of_a_named_branch_is_a_torn_commit(conn: Connection) -> None:
    """Its rows would count as open, then as orphans, and go at the next compaction."""
    _, branches, _ = large_commit(conn, runId="load")
    conn.deployment.commit_table.delete([branches[1]])
    found = verify(conn)
    assert not found.ok
    assert found.torn_starts == [branches[1]]
    push_watermark_past(conn, branches[1])
    assert verify(conn).torn_starts == [branches[1]]


def test_a_lost_entry_of_a_nameless_branch_is_a_doubt(conn: Connection) -> None:
    start_ts, branches, commit_ts = large_commit(conn)
    conn.deployment.commit_table.delete([branches[1]])
    found = verify(conn)
    assert found.ok, "it looks as a failed attempt does"
    (doubt,) = found.doubts
    assert f"1 starts without an entry lie inside the large commit {start_ts} → {commit_ts}" in doubt
    assert f"({branches[1]})" in doubt
    assert f"cannot tell: {doubt}" in str(found)


def test_branches_of_an_unfinished_commit_are_not_torn(conn: Connection) -> None:
    start_ts, branches, _ = large_commit(conn, runId="load")
    conn.deployment.commit_table.delete([branches[1]])
    pending = PendingCommit(start_ts, tuple(branches))
    row = conn.deployment.leader_state
    row.update(row.read().epoch, LeaderStateChanges(pending_added=(pending,)))
    assert verify(conn).torn_starts == []


def test_timestamps_of_the_future_are_violations(conn: Connection) -> None:
    """After sanitising nothing else speaks against them: no entry is left to compare."""
    _, branches, _ = large_commit(conn)
    future = conn.deployment.tso.begin().start_ts + 10**9
    cell = CellVersion(b"a", *COLUMN, branches[0])
    conn.deployment.commit_table.delete(branches)
    conn.deployment.store.write_shadow_cells("t", [ShadowWrite(cell, future)])
    conn.deployment.store.write_cells("t", future + 50, [RowWrite(b"c", ((COLUMN, b"1"),))])
    found = verify(conn)
    assert not found.ok
    assert f"start {branches[0]}: shadow timestamp {future} was never handed out" in "\n".join(found.violations)
    assert f"start {future + 50}: it was never handed out" in "\n".join(found.violations)


def test_a_commit_whose_batch_is_not_released_is_not_of_the_future(conn: Connection) -> None:
    """While its batch is flushed, a commit can be read, and begins still get starts below it."""
    _, branches, _ = large_commit(conn)
    tso = conn.deployment.tso
    in_flight = tso.commit(CommitRequest(tso.begin().start_ts, (1,))).commit_ts
    assert in_flight < tso.status().last_ts
    conn.deployment.commit_table.delete(branches)
    conn.deployment.store.write_shadow_cells("t", [ShadowWrite(CellVersion(b"a", *COLUMN, branches[0]), in_flight)])
    assert not [each for each in verify(conn).violations if "never handed out" in each]


def test_an_orphan_that_compaction_cannot_have_left_is_a_doubt(conn: Connection) -> None:
    """The only shadow cell of an acknowledged commit is lost, and its entry was sanitised."""
    _, branches, commit_ts = large_commit(conn)
    push_watermark_past(conn, commit_ts)
    compact(conn, conn.deployment.catalog.table("t"))
    conn.deployment.commit_table.delete(branches)
    assert verify(conn).doubts == []
    lost = CellVersion(b"b", *COLUMN, branches[1])
    conn.deployment.store.delete_versions("t", [lost])
    conn.deployment.store.write_cells("t", branches[1], [RowWrite(b"b", ((COLUMN, b"1"),))])
    doubts = verify(conn).doubts
    assert any("table t: cells of 1 starts are orphans at or below" in doubt for doubt in doubts), doubts
    assert all(str(branches[1]) in doubt for doubt in doubts)


def test_a_marker_names_the_branches_of_its_run(conn: Connection) -> None:
    _, branches, _ = large_commit(conn, runId="load")
    (cells,) = conn.deployment.store.read_rows(idempotency.KEYS_TABLE, [b"load"], [idempotency.BRANCHES_COLUMN])
    assert [(idempotency.branches_of(cell.value or b""), cell.commit_ts > 0) for cell in cells] == [(branches, True)]


def test_commits_that_complete_between_two_reads_are_not_torn(conn: Connection) -> None:
    """In each reading another transaction: its row of one table is read without a shadow cell, the other one with."""
    deployment = conn.deployment
    tables = [TableInfo(name, (b"f",)) for name in ("one", "two")]
    cell = Column(b"f", b"x")
    for info in tables:
        deployment.store.create_table(info)

    def looked() -> Iterator[dict[str, Any]]:
        begun_start = deployment.tso.begin()
        start = begun_start.start_ts
        for info in tables:
            deployment.store.write_cells(info.name, start, [RowWrite(b"%d" % start, ((cell, b"v"),))])
        commit_ts = start + 1
        deployment.commit_table.put([(start, commit_ts)])
        yield look(deployment, Partition("one", 1, KeyRange()))
        name = CellVersion(b"%d" % start, *cell, start)
        for info in tables:
            deployment.store.write_shadow_cells(info.name, [ShadowWrite(name, commit_ts)])
        deployment.commit_table.delete([start])
        yield look(deployment, Partition("two", 1, KeyRange()))

    found = verified(deployment, tables, looked)
    assert (found.ok, found.torn_starts, found.missing_shadow_cells) == (True, [], 1)


def test_a_commit_that_lost_a_shadow_cell_and_its_entry_is_torn(conn: Connection) -> None:
    deployment = conn.deployment
    info, cell = TableInfo("one", (b"f",)), Column(b"f", b"x")
    deployment.store.create_table(info)
    begun_start = deployment.tso.begin()
    start = begun_start.start_ts
    deployment.store.write_cells("one", start, [RowWrite(row, ((cell, b"v"),)) for row in (b"a", b"b")])
    deployment.store.write_shadow_cells("one", [ShadowWrite(CellVersion(b"a", *cell, start), start + 1)])
    looked = lambda: [look(deployment, Partition("one", 1, KeyRange()))]  # noqa: E731
    found = verified(deployment, [info], looked)
    assert (found.ok, found.torn_starts) == (False, [start])


def test_what_compaction_drops_during_the_look_is_no_doubt(conn: Connection) -> None:
    """A folder's TSO compacts by itself: orphans were read before they went, the watermark was recorded after."""
    with pyomid.connect(conn.url) as db:
        db.create_table("t", families=["d"])
    info = conn.deployment.catalog.table("t")
    orphan = conn.deployment.tso.begin().start_ts
    conn.deployment.store.write_cells("t", orphan, [RowWrite(b"b", ((COLUMN, b"1"),))])
    push_watermark_past(conn, orphan)

    def looked() -> Iterator[dict[str, Any]]:
        yield look(conn.deployment, Partition(info.name, info.generation, KeyRange()))
        compact(conn, info)

    found = verified(conn.deployment, [info], looked)
    assert (found.orphan_starts, found.doubts) == ({orphan: 1}, [])
    assert [table.cleaned_to >= orphan for table in verify(conn).tables if table.table == "t"] == [True]
