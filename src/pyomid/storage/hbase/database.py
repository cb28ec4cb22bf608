"""The parts of one database in HBase, over one client; chosen by `wiring`."""

from __future__ import annotations

from dataclasses import dataclass

from pyomid.storage.hbase.catalogue import HBaseCatalogue
from pyomid.storage.hbase.ceiling import HBaseCeiling
from pyomid.storage.hbase.cluster import Cluster
from pyomid.storage.hbase.commit_table import HBaseCommitTable
from pyomid.storage.hbase.epoch_row import HBaseEpochRow
from pyomid.storage.hbase.store import HBaseStore
from pyomid.storage.hbase.tables import check_database
from pyomid.storage.hbase.zookeeper import ZooKeeper


@dataclass(frozen=True, slots=True)
class HBaseDatabase:
    """`close` ends the connections of all of them."""

    cluster: Cluster
    store: HBaseStore
    commit_table: HBaseCommitTable
    epoch_row: HBaseEpochRow
    catalogue: HBaseCatalogue
    ceiling: HBaseCeiling

    @property
    def zookeeper(self) -> ZooKeeper:
        return self.cluster.zookeeper

    def close(self) -> None:
        self.cluster.close()


def open_hbase(quorum: str, znode: str, *, deadline_s: float = 60.0, others_seal: bool = False) -> HBaseDatabase:
    """`UnknownTable` where `pyomid init` never ran; `Unavailable` or `Misuse` where no HBase is found there.

    `others_seal`: see `HBaseCommitTable`.
    """
    cluster = Cluster(ZooKeeper(quorum, znode), deadline_s=deadline_s)
    try:
        check_database(cluster)
    except BaseException:
        cluster.close()
        raise
    epoch_row = HBaseEpochRow(cluster)
    return HBaseDatabase(
        cluster,
        HBaseStore(cluster, read_watermark=lambda: epoch_row.read_watermarks()[0]),
        HBaseCommitTable(cluster, others_seal=others_seal, epoch_row=epoch_row),
        epoch_row,
        HBaseCatalogue(cluster),
        HBaseCeiling(cluster),
    )
