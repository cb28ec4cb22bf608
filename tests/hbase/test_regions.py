"""Reads and writes continue while regions split and tables are created anew. Scans of changing regions are those of
`test_parallel_scan`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Misuse, Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.batches import batch_of_writes
from pyomid.omid.hbase.store import HBaseStore
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.types import Column, KeyRange, RowWrite, TableInfo
from region_admin import OperatorsAdmin

ROWS = 3000
Q = Column(b"f", b"q")


@pytest.fixture
def filled(store: HBaseStore, table_name: str) -> Iterator[str]:
    store.create_table(TableInfo(table_name, (b"f",)))
    store.write_cells(table_name, 50, [RowWrite(key(number), ((Q, b"v" * 50),)) for number in range(ROWS)])
    yield table_name
    store.drop_table(table_name)


def key(number: int) -> bytes:
    return b"%06d" % number


ALL = [key(number) for number in range(ROWS)]


def test_writes_and_reads_follow_a_split(store: HBaseStore, cluster: Cluster, filled: str) -> None:
    """The cache knows the parent; each half answers for itself afterwards."""
    OperatorsAdmin(cluster).split(filled, key(1500))
    store.write_cells(filled, 100, [RowWrite(key(number), ((Q, b"new"),)) for number in range(0, ROWS, 500)])
    found = store.read_rows(filled, [key(number) for number in range(0, ROWS, 500)], [Q])
    assert [sorted(cell.version for cell in cells) for cells in found] == [[50, 100]] * 6


def test_a_region_that_is_split_before_its_flush_is_flushed(store: HBaseStore, cluster: Cluster, filled: str) -> None:
    """A compactor lists regions, and one of them splits before it comes to it."""
    admin = OperatorsAdmin(cluster)
    (parent,) = cluster.regions(filled)
    admin.split(filled, key(1500))
    admin.flush_region(parent)
    assert [cell.row for batch in store.scan(filled, KeyRange()) for cell in batch.all_cells()] == ALL


def test_a_quorum_without_servers_has_a_clear_error() -> None:
    with pytest.raises(Unavailable, match=r"no ZooKeeper server of 127\.0\.0\.1:1"):
        ZooKeeper("127.0.0.1:1", connect_s_max=0.5).session()


def test_a_wrong_znode_has_a_clear_error(hbase: HBaseServer) -> None:
    wrong = Cluster(ZooKeeper(hbase.quorum, "/nobody"), deadline_s=2.0)
    with pytest.raises(Misuse, match="/nobody"):
        wrong.regions("t")
    wrong.close()


def test_regions_and_families_are_read_again_after_another_process_created_the_table_anew(
    own_cluster: Cluster, store: HBaseStore, table_name: str
) -> None:
    other = HBaseStore(own_cluster)
    store.create_table(TableInfo(table_name, (b"f",)))
    store.write_cells(table_name, 50, [RowWrite(b"r", ((Column(b"f", b"q"), b"v"),))])
    other.drop_table(table_name)
    other.create_table(TableInfo(table_name, (b"g",)))
    store.write_cells(table_name, 100, [RowWrite(b"r", ((Column(b"g", b"q"), b"v"),))])
    batch = batch_of_writes([RowWrite(b"s", ((Column(b"g", b"q"), b"v"),))])
    assert batch is not None
    store.write_batch(table_name, 150, batch)
    with pytest.raises(Misuse, match="the table has no family for column f:q"):
        store.write_cells(table_name, 200, [RowWrite(b"r", ((Column(b"f", b"q"), b"v"),))])
    store.drop_table(table_name)
