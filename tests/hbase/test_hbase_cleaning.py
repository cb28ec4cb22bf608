"""Compaction and sanitizing over real regions (K4, K5, T13), and tables on which they are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_ports import empty_table

from conformance import put_entry
from pyomid.config import Settings
from pyomid.database.driver import Driver
from pyomid.omid.hbase.catalog import HBaseCatalog
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import (
    COMMIT_FAMILY,
    META_FAMILY,
    WATERMARK_FAMILY,
)
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.store import HBaseStore
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.tso.local import LocalTso
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.ports import Deployment
from pyomid.protocol.compaction import compact_region
from pyomid.protocol.reading import CommitCache
from pyomid.protocol.sanitize import sanitize_entries
from pyomid.types import Column, CommitRequest, KeyRange, RowWrite, TableInfo
from region_admin import OperatorsAdmin

AGE_S = 600.0


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Cleaned:
    """A database of its own on the shared HBase, its TSO and its clock in hand."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.clock = Hand()
        self.store = HBaseStore(cluster)
        self.commits = HBaseCommitTable(
            cluster, table=empty_table(cluster, f"{name}_ct", COMMIT_FAMILY, WATERMARK_FAMILY)
        )
        meta = empty_table(cluster, f"{name}_meta", META_FAMILY)
        self.leader_state = HBaseLeaderState(cluster, table=meta, commit_table=f"{name}_ct")
        self.catalog = HBaseCatalog(cluster, table=meta)
        settings = TsoSettings(conflict_map_entries=4096, max_transaction_age_s=AGE_S)
        self.tso = LocalTso(TsoStores(self.commits, self.leader_state, self.catalog), settings, clock=self.clock)
        self.deployment = Deployment(
            self.store,
            self.commits,
            self.leader_state,
            self.catalog,
            self.tso,
            Settings(),
            clock=self.clock,
            foreign=self.store,
        )
        self.driver = Driver(self.deployment)

    def pass_time(self) -> None:
        for _ in range(40):
            self.clock.now_s += AGE_S / 10
            self.tso.begin()
            self.tso.tick()

    def compact(self, table: str) -> None:
        for region in self.store.regions(table):
            steps = compact_region(table, 1, region, CommitCache(), now_s=self.clock(), rows_max=100)
            self.driver.run(steps)

    def sanitise(self) -> int:
        return self.driver.run(sanitize_entries(now_s=self.clock() + 3600.0, retry_bound_s=60.0)).entries_deleted


@pytest.fixture
def cleaned(cluster: Cluster, table_name: str) -> Iterator[Cleaned]:
    made = Cleaned(cluster, table_name)
    made.store.create_table(TableInfo(table_name, (b"f",)))
    put_entry(made.catalog, TableInfo(table_name, (b"f",)))
    yield made
    for name in (table_name, f"{table_name}_ct", f"{table_name}_meta"):
        made.store.drop_table(name)


def commit_without_completion(cleaned: Cleaned, table: str, row: bytes) -> int:

    begun_start_ts = cleaned.tso.begin()
    start_ts = begun_start_ts.start_ts
    cleaned.store.write_cells(table, start_ts, [RowWrite(row, ((Column(b"f", b"q"), b"v"),))])
    reply = cleaned.tso.commit(CommitRequest(start_ts, (hash(row) >> 1,)))
    assert reply.committed
    return start_ts


def test_a_region_that_split_after_compaction_does_not_count_as_compacted(
    cleaned: Cleaned, cluster: Cluster, table_name: str
) -> None:
    """K5: new regions lie wholly within the cleaned range, so the record still covers them; a merge with a region
    that has no record does not."""
    start_ts = commit_without_completion(cleaned, table_name, b"a")
    cleaned.pass_time()
    assert cleaned.sanitise() == 0, "no region was cleaned yet"
    assert cleaned.commits.lookup([start_ts]) != [0]
    OperatorsAdmin(cluster).split(table_name, b"m")
    (first, second) = cleaned.store.regions(table_name)
    cleaned.driver.run(compact_region(table_name, 1, first, CommitCache(), now_s=cleaned.clock(), rows_max=100))
    assert cleaned.sanitise() == 0, "the second half has no record: it counts as 0"
    cleaned.driver.run(compact_region(table_name, 1, second, CommitCache(), now_s=cleaned.clock(), rows_max=100))
    assert cleaned.sanitise() == 1
    assert cleaned.commits.lookup([start_ts]) == [0]
    (cells,) = cleaned.store.read_rows(table_name, [b"a"])
    assert cells[0].commit_ts > start_ts, "healed before its entry went"


def test_cells_in_memory_and_in_files_are_cleaned_alike(cleaned: Cleaned, cluster: Cluster, table_name: str) -> None:
    """K4: what lies in memory when the compactor comes is not missed."""
    in_files = commit_without_completion(cleaned, table_name, b"a")
    OperatorsAdmin(cluster).flush(table_name)
    in_memory = commit_without_completion(cleaned, table_name, b"b")
    cleaned.pass_time()
    cleaned.compact(table_name)
    found = {cell.version: cell.commit_ts for b in cleaned.store.scan(table_name, KeyRange()) for cell in b.all_cells()}
    assert found.keys() == {in_files, in_memory}
    assert all(commit_ts > version for version, commit_ts in found.items())


def test_branches_of_a_decided_commit_replace_seals(cleaned: Cleaned, table_name: str) -> None:
    """T13: somebody else sealed one branch between the tasks and the commit: no half a job."""
    begun_start_ts = cleaned.tso.begin()
    start_ts = begun_start_ts.start_ts
    cleaned.tso.grant_lease(start_ts)
    branches = tuple(cleaned.tso.begin().start_ts for _ in range(3))
    assert cleaned.commits.seal(branches[1]).placed
    reply = cleaned.tso.commit(CommitRequest(start_ts, (1, 2, 3), branches=branches))
    assert reply.committed
    assert cleaned.commits.lookup([start_ts, *branches]) == [reply.commit_ts] * 4
    assert not cleaned.commits.seal(branches[1]).placed
