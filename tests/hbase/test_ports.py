"""The conformance suites of the ports, over HBase."""

from __future__ import annotations

import pytest

from conformance import (
    FAMILIES,
    CatalogConformance,
    CommitTableConformance,
    DataStoreConformance,
    LeaderStateConformance,
)
from pyomid.omid.hbase.catalog import HBaseCatalog
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import COMMIT_FAMILY, META_FAMILY, WATERMARK_FAMILY
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.store import HBaseStore
from pyomid.types import TableInfo


def empty_table(cluster: Cluster, name: str, *families: bytes) -> str:
    made = Admin(cluster).create_table(TableDescriptor(name, tuple(FamilyDescriptor(family, 1) for family in families)))
    assert made, f"table {name} was there before"
    return name


class TestHBaseStore(DataStoreConformance):
    @pytest.fixture
    def store(self, cluster: Cluster) -> HBaseStore:
        return HBaseStore(cluster)

    @pytest.fixture
    def table(self, store: HBaseStore, table_name: str) -> str:
        """Left behind, as the tables of the other ports: to drop it takes longer than most tests."""
        store.create_table(TableInfo(table_name, FAMILIES))
        return table_name


class TestHBaseCommitTable(CommitTableConformance):
    @pytest.fixture
    def commits(self, cluster: Cluster, table_name: str) -> HBaseCommitTable:
        table = empty_table(cluster, table_name, COMMIT_FAMILY, WATERMARK_FAMILY)
        return HBaseCommitTable(cluster, table=table, others_seal=True)


class TestHBaseEpochRow(LeaderStateConformance):
    @pytest.fixture
    def leader_state(self, cluster: Cluster, table_name: str) -> HBaseLeaderState:
        return HBaseLeaderState(cluster, table=empty_table(cluster, table_name, META_FAMILY))


class TestHBaseCatalog(CatalogConformance):
    @pytest.fixture
    def catalog(self, cluster: Cluster, table_name: str) -> HBaseCatalog:
        return HBaseCatalog(cluster, table=empty_table(cluster, table_name, META_FAMILY))
