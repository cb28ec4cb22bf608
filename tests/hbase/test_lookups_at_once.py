"""Entries, then W and H, in one call where one server has both (decision 0027): H is never older than the entries (R4).
And a flush, then the epoch.

A writer moves H and, when that is durable, puts entries whose commit timestamp says how far H was. Whoever reads the
entries first finds an H that is at least as high; whoever reads H first does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from led_tables import EPOCH, commits_of

from pyomid.config import Settings
from pyomid.database.driver import store_handlers
from pyomid.omid.hbase.catalog import HBaseCatalog
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import COMMIT_FAMILY, COMMIT_QUALIFIER, commit_of_value, commit_row
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.leader_state import ROW, HBaseLeaderState
from pyomid.omid.hbase.regions.commit_entries import CommitCalls
from pyomid.omid.hbase.regions.operations import MULTI_ROWS_MAX
from pyomid.omid.hbase.rpc.frames import Address
from pyomid.omid.hbase.rpc.requests import RowGet
from pyomid.omid.hbase.store import HBaseStore
from pyomid.ports import Deployment
from pyomid.protocol.effects import LookupThenWatermarks
from pyomid.types import NOT_FOUND, SEALED, LeaderStateChanges
from region_admin import OperatorsAdmin

STARTS = tuple(range(50, 50 + 50 * 1600, 50))
"""Enough of them that a read of H before the look-up would be far from its end."""
WRITTEN = (STARTS[0], STARTS[5], STARTS[-1])
READS = 60

LookUp = Callable[[tuple[int, ...]], tuple[list[int], int, int]]


@pytest.fixture
def table(own_cluster: Cluster, row: HBaseLeaderState) -> HBaseCommitTable:
    return HBaseCommitTable(own_cluster, table=commits_of(row), leader_state=row)


def look_up_by_client(cluster: Cluster, table: HBaseCommitTable, row: HBaseLeaderState) -> LookUp:
    """As a client performs the core's effect."""
    parts = Deployment(HBaseStore(cluster), table, row, HBaseCatalog(cluster), None, Settings())  # type: ignore[arg-type]
    perform = store_handlers(parts)[LookupThenWatermarks]
    return lambda starts: perform(LookupThenWatermarks(starts))


def in_one_call(table: HBaseCommitTable) -> LookUp:
    def look_up(starts: tuple[int, ...]) -> tuple[list[int], int, int]:
        found = table.lookup_then_watermarks(starts)
        assert found is not None
        return found

    return look_up


def check_no_h_is_older_than_the_entries(look_up: LookUp, table: HBaseCommitTable, row: HBaseLeaderState) -> None:
    done = threading.Event()
    moved: list[int] = []

    def move() -> None:
        while not done.is_set():
            horizon = len(moved) + 1
            row.update(EPOCH, LeaderStateChanges(horizon=horizon))
            table.put([(start, EPOCH + horizon) for start in WRITTEN])
            moved.append(horizon)

    writer = threading.Thread(target=move)
    writer.start()
    try:
        seen = set()
        reads = 0
        while reads < READS or len(seen) < READS // 4:
            states, _, horizon = look_up(STARTS)
            newest = max(states) - EPOCH
            assert newest <= horizon, f"an entry of H {newest} beside an H of {horizon}, which is older"
            seen.add(horizon)
            reads += 1
            assert writer.is_alive(), "the writer failed"
    finally:
        done.set()
        writer.join()
    assert len(moved) >= len(seen) - 1


def test_entries_marks_and_watermarks_come_together(table: HBaseCommitTable, row: HBaseLeaderState) -> None:
    table.put([(start, start + 7) for start in range(50, 850, 50)])
    assert table.seal(900).placed
    row.update(EPOCH, LeaderStateChanges(watermark=450, horizon=300))
    starts = [*range(1000, 0, -50)]
    expected = table.lookup(starts)
    assert (expected[0], expected[2], expected[-1]) == (NOT_FOUND, SEALED, 57)
    assert table.lookup_then_watermarks(starts) == (expected, 450, 300)


def test_the_watermarks_are_read_after_the_entries(table: HBaseCommitTable, row: HBaseLeaderState) -> None:
    """The law stands on this: a server takes the region actions of one call in their order."""
    check_no_h_is_older_than_the_entries(in_one_call(table), table, row)


def test_the_read_after_a_flush_sees_its_puts(own_cluster: Cluster, row: HBaseLeaderState) -> None:
    """So does this one, of puts and what is read behind them: here the last of the entries."""
    commits = commits_of(row)
    for round_ in range(300):
        starts = [50 + 50 * (16 * round_ + index) for index in range(16)]
        entries = np.array([(start, start + 7) for start in starts], dtype=np.int64)
        last = starts[round_ % 16]
        get = RowGet(commit_row(last), ((COMMIT_FAMILY, (COMMIT_QUALIFIER,)),))
        flush = CommitCalls(commits, get, commits, get).put_indexed(
            own_cluster.operations, entries, own_cluster.budget("a flush")
        )
        found = own_cluster.run(flush)
        assert found is not None
        assert [commit_of_value(last, cell.value) for cell in found] == [last + 7]


def test_separate_calls_read_the_watermarks_after_the_entries(
    own_cluster: Cluster, table: HBaseCommitTable, row: HBaseLeaderState
) -> None:
    apart = HBaseCommitTable(own_cluster, table=commits_of(row))
    assert apart.lookup_then_watermarks(STARTS) is None
    check_no_h_is_older_than_the_entries(look_up_by_client(own_cluster, apart, row), table, row)


def test_separate_calls_are_used_where_one_does_not_suffice(table: HBaseCommitTable) -> None:
    assert table.lookup_then_watermarks([]) is None
    assert table.lookup_then_watermarks(range(50, 50 * (MULTI_ROWS_MAX + 2), 50)) is None
    assert table.lookup_then_watermarks(range(50, 50 * (MULTI_ROWS_MAX + 1), 50)) is not None


def test_regions_on_two_servers_need_two_calls(
    own_cluster: Cluster, table: HBaseCommitTable, row: HBaseLeaderState
) -> None:
    """The client believes that one of the regions, or the leader state's, lies elsewhere."""
    table.put([(start, start + 7) for start in STARTS[:64]])
    row.update(EPOCH, LeaderStateChanges(watermark=70, horizon=60))
    look_up = look_up_by_client(own_cluster, table, row)
    for name, key in ((commits_of(row), commit_row(STARTS[3])), (row.table, ROW)):
        assert table.lookup_then_watermarks(STARTS[:64]) is not None
        cache = own_cluster.operations.cache
        region = cache.find(name, key)
        assert region is not None
        cache.put(name, [replace(region, server=Address("127.0.0.1", 1))])
        assert table.lookup_then_watermarks(STARTS[:64]) is None
        assert look_up(STARTS[:64]) == ([start + 7 for start in STARTS[:64]], 70, 60)


def test_lookups_follow_regions_that_split(
    table: HBaseCommitTable, own_cluster: Cluster, row: HBaseLeaderState
) -> None:
    """What the client believed of a region is wrong, whichever of the call's regions it is."""
    starts = STARTS[:64]
    table.put([(start, start + 7) for start in starts])
    expected = [start + 7 for start in starts]
    look_up = look_up_by_client(own_cluster, table, row)
    assert look_up(starts) == (expected, 0, 0)
    OperatorsAdmin(own_cluster).split(commits_of(row), commit_row(starts[30]))
    assert table.lookup(starts) == expected
    OperatorsAdmin(own_cluster).split(commits_of(row), commit_row(starts[37]))
    assert look_up(starts) == (expected, 0, 0)
    assert table.lookup_then_watermarks(starts) == (expected, 0, 0)
