"""A leader state that is led and the commit table beside it, by names of one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from test_ports import empty_table

from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import COMMIT_FAMILY, META_FAMILY, WATERMARK_FAMILY, commit_table_splits
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.store import HBaseStore

EPOCH = 1 << 40


@contextmanager
def led_row(cluster: Cluster, name: str) -> Iterator[HBaseLeaderState]:
    """Led under `EPOCH`, beside a commit table of 16 regions; both are dropped afterwards."""
    families = (FamilyDescriptor(COMMIT_FAMILY, 1), FamilyDescriptor(WATERMARK_FAMILY, 1))
    commits = f"{name}_ct"
    Admin(cluster).create_table(TableDescriptor(commits, families), commit_table_splits())
    meta = empty_table(cluster, f"{name}_meta", META_FAMILY)
    made = HBaseLeaderState(cluster, table=meta, commit_table=commits)
    assert made.take_over(expected=0, epoch=EPOCH, ceiling=EPOCH + 1000)
    yield made
    for each in (commits, meta):
        HBaseStore(cluster).drop_table(each)


def commits_of(row: HBaseLeaderState) -> str:
    """The commit table beside it."""
    return row.table.removesuffix("_meta") + "_ct"
