"""Reads and writes continue while regions split, merge and move, tables are created anew, and servers die."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Misuse, Unavailable, UnknownTable
from pyomid.storage.hbase.cluster import Cluster
from pyomid.storage.hbase.codec.batches import batch_of_writes
from pyomid.storage.hbase.regions.admin import FamilyDescriptor, TableDescriptor
from pyomid.storage.hbase.rpc.requests import RowGet
from pyomid.storage.hbase.store import HBaseStore
from pyomid.storage.hbase.zookeeper import ZooKeeper
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


def scanned_rows(store: HBaseStore, table: str, between: Callable[[], None] = lambda: None) -> list[bytes]:
    rows: list[bytes] = []
    for batch in store.scan(table, KeyRange(), batch_rows_max=200):
        rows += [batch.row_key(index) for index in range(batch.rows)]
        if len(rows) == 400:
            between()
    return rows


ALL = [key(number) for number in range(ROWS)]


def test_a_scan_continues_through_a_split(store: HBaseStore, cluster: Cluster, filled: str) -> None:
    admin = OperatorsAdmin(cluster)
    assert scanned_rows(store, filled, lambda: admin.split(filled, key(1500))) == ALL
    assert [region.start for region in store.regions(filled)] == [b"", key(1500)]


def test_a_scan_continues_through_a_merge(store: HBaseStore, cluster: Cluster, table_name: str) -> None:
    admin = OperatorsAdmin(cluster)
    admin.create_table(TableDescriptor(table_name, (FamilyDescriptor(b"f"),)), [key(1000), key(2000)])
    store.write_cells(table_name, 50, [RowWrite(row, ((Q, b"v" * 50),)) for row in ALL])
    assert scanned_rows(store, table_name, lambda: admin.merge(table_name, key(1000))) == ALL
    assert [region.start for region in store.regions(table_name)] == [b"", key(2000)]
    store.drop_table(table_name)


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
    assert scanned_rows(store, filled) == ALL


def test_a_table_created_anew_is_found(store: HBaseStore, filled: str, hbase: HBaseServer) -> None:
    other = Cluster(ZooKeeper(hbase.quorum), deadline_s=120.0)
    HBaseStore(other).drop_table(filled)
    HBaseStore(other).create_table(TableInfo(filled, (b"f",)))
    other.close()
    store.write_cells(filled, 100, [RowWrite(b"r", ((Q, b"v"),))])
    assert scanned_rows(store, filled) == [b"r"]


@pytest.mark.long
def test_regions_move_to_another_server_and_back_when_it_dies(
    store: HBaseStore, cluster: Cluster, hbase: HBaseServer, filled: str
) -> None:
    """Move under a scan; then kill -9 of the server that holds the region, under a reader that waits."""
    admin = OperatorsAdmin(cluster)
    process, port = hbase.start_region_server()
    try:
        (target,) = [(address, code) for address, code in admin.servers() if address.port == port]
        (region,) = cluster.regions(filled)

        def move() -> None:
            # A server registers itself before it takes regions: until then a move comes to nothing.
            waiting = threading.Event()
            while cluster.regions(filled)[0].server != target[0]:
                admin.move(region, *target)
                waiting.wait(0.5)

        assert scanned_rows(store, filled, move) == ALL
        store.write_cells(filled, 100, [RowWrite(b"moved", ((Q, b"v"),))])
        process.send(signal.SIGKILL)
        assert scanned_rows(store, filled) == [*ALL, b"moved"], "the log of the dead server was replayed"
    finally:
        process.send(signal.SIGKILL)


def test_an_unserved_region_is_unavailable_after_the_deadline(
    hbase: HBaseServer, cluster: Cluster, filled: str
) -> None:
    OperatorsAdmin(cluster).disable_table(filled)
    impatient = Cluster(ZooKeeper(hbase.quorum), deadline_s=1.0)
    try:
        with pytest.raises(Unavailable, match=filled):
            impatient.rows(filled, [RowGet(b"r")])
    finally:
        impatient.close()


class TestBadAddresses:
    """Each says what to do."""

    def test_no_quorum(self) -> None:
        with pytest.raises(Unavailable, match=r"no ZooKeeper server of 127\.0\.0\.1:1"):
            ZooKeeper("127.0.0.1:1", connect_s_max=0.5).session()

    def test_wrong_znode(self, hbase: HBaseServer) -> None:
        wrong = Cluster(ZooKeeper(hbase.quorum, "/nobody"), deadline_s=2.0)
        with pytest.raises(Misuse, match="/nobody"):
            wrong.regions("t")
        wrong.close()

    def test_no_such_table(self, cluster: Cluster) -> None:
        with pytest.raises(UnknownTable, match="nobody"):
            cluster.rows("nobody", [RowGet(b"r")])

    def test_a_family_that_keeps_too_few_versions(self, cluster: Cluster, store: HBaseStore, table_name: str) -> None:
        OperatorsAdmin(cluster).create_table(TableDescriptor(table_name, (FamilyDescriptor(b"f", 3),)))
        with pytest.raises(Misuse, match="keeps only 3 versions"):
            store.create_table(TableInfo(table_name, (b"f",)))
        store.drop_table(table_name)


def test_families_are_read_again_after_another_process_created_the_table_anew(
    cluster: Cluster, store: HBaseStore, table_name: str
) -> None:
    other = HBaseStore(cluster)
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
