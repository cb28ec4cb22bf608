"""A flush and its epoch in one call (decision 0027): the epoch is read after the puts, or in a second call."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from test_ports import empty_table

from pyomid.storage.hbase.cluster import Cluster
from pyomid.storage.hbase.codec.layout import (
    COMMIT_FAMILY,
    COMMIT_QUALIFIER,
    META_FAMILY,
    WATERMARK_FAMILY,
    commit_of_value,
    commit_row,
    commit_table_splits,
)
from pyomid.storage.hbase.commit_table import HBaseCommitTable
from pyomid.storage.hbase.leader_state import HBaseLeaderState
from pyomid.storage.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.storage.hbase.regions.commit_entries import ENTRIES_MAX, CommitCalls
from pyomid.storage.hbase.rpc.requests import RowGet
from pyomid.storage.hbase.store import HBaseStore
from pyomid.types import NOT_FOUND
from region_admin import OperatorsAdmin


@pytest.fixture
def names(cluster: Cluster, table_name: str) -> Iterator[tuple[str, str]]:
    """A commit table of 16 regions, and a table for the leader state."""
    families = (FamilyDescriptor(COMMIT_FAMILY, 1), FamilyDescriptor(WATERMARK_FAMILY, 1))
    commits = f"{table_name}_ct"
    Admin(cluster).create_table(TableDescriptor(commits, families), commit_table_splits())
    yield commits, empty_table(cluster, f"{table_name}_meta", META_FAMILY)
    for name in (commits, f"{table_name}_meta"):
        HBaseStore(cluster).drop_table(name)


def entries_from(start: int, count: int) -> np.ndarray:
    return np.array([(start + 50 * index, start + 50 * index + 7) for index in range(count)], dtype=np.int64)


def flush(cluster: Cluster, names: tuple[str, str], entries: np.ndarray) -> int | None:
    """The epoch of the row, where all was one call."""
    row = HBaseLeaderState(cluster, table=names[1], commit_table=names[0])
    entry_get = RowGet(commit_row(0), ((COMMIT_FAMILY, (COMMIT_QUALIFIER,)),))
    calls = CommitCalls(names[0], entry_get, row.table, row.state_get)
    found = cluster.run(calls.put_steps(cluster.operations, entries, cluster.budget("a flush")))
    return None if found is None else row.epoch_of(found)


def test_a_flush_returns_the_epoch(cluster: Cluster, names: tuple[str, str]) -> None:
    row = HBaseLeaderState(cluster, table=names[1], commit_table=names[0])
    table = HBaseCommitTable(cluster, table=names[0])
    assert flush(cluster, names, entries_from(50, 100)) == 0
    assert row.take_over(expected=0, epoch=5000, ceiling=9000)
    assert flush(cluster, names, entries_from(10_000, 100)) == 5000
    assert row.read().epoch == 5000
    starts = [*range(50, 5050, 50), *range(10_000, 15_000, 50)]
    assert table.lookup(starts) == [start + 7 for start in starts]


def test_the_read_after_a_flush_sees_its_puts(cluster: Cluster, names: tuple[str, str]) -> None:
    """The law stands on this: a server takes the region actions of one call in their order."""
    for round_ in range(300):
        start = 50 + 50 * 16 * round_
        entries = entries_from(start, 16)
        last = start + 50 * (round_ % 16)
        get = RowGet(commit_row(last), ((COMMIT_FAMILY, (COMMIT_QUALIFIER,)),))
        calls = CommitCalls(names[0], get, names[0], get)
        found = cluster.run(calls.put_steps(cluster.operations, entries, cluster.budget("a flush")))
        assert found is not None
        assert [commit_of_value(last, cell.value) for cell in found] == [last + 7]


def test_separate_calls_are_used_where_one_does_not_suffice(cluster: Cluster, names: tuple[str, str]) -> None:
    assert flush(cluster, names, entries_from(50, ENTRIES_MAX + 1)) is None
    assert flush(cluster, names, entries_from(50, 0)) is None
    assert HBaseCommitTable(cluster, table=names[0]).lookup([50]) == [NOT_FOUND]


def test_a_flush_after_a_region_move_is_complete(cluster: Cluster, names: tuple[str, str]) -> None:
    """What the client believed of the regions is wrong: the answer is None, or it is right."""
    table = HBaseCommitTable(cluster, table=names[0])
    assert flush(cluster, names, entries_from(50, 64)) == 0
    OperatorsAdmin(cluster).split(names[0], commit_row(50 * 1000))
    entries = entries_from(50 * 900, 200)
    if flush(cluster, names, entries) is None:
        assert table.put_block(entries) == []
    starts = entries[:, 0].tolist()
    assert table.lookup(starts) == [start + 7 for start in starts]
    assert flush(cluster, names, entries_from(50 * 2000, 64)) == 0
