"""The system tables of a database in HBase. `pyomid init` makes them once, two of them as Apache Omid's own tool
does."""

from __future__ import annotations

from pyomid.errors import UnknownTable
from pyomid.storage.hbase.codec.layout import (
    COMMIT_FAMILY,
    COMMIT_TABLE,
    META_FAMILY,
    META_TABLE,
    TIMESTAMP_FAMILY,
    TIMESTAMP_TABLE,
    WATERMARK_FAMILY,
    commit_table_splits,
)
from pyomid.storage.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.storage.hbase.rpc.client import Cluster


def create_database(cluster: Cluster, *, commit_table_regions: int = 16) -> list[str]:
    """Makes the missing tables and returns their names. Tables that Java Omid made are used as they are. Idempotent."""
    admin = Admin(cluster)
    made = []
    for descriptor, splits in (
        (TableDescriptor(META_TABLE, (FamilyDescriptor(META_FAMILY, 1),)), []),
        (
            TableDescriptor(COMMIT_TABLE, (FamilyDescriptor(COMMIT_FAMILY, 1), FamilyDescriptor(WATERMARK_FAMILY, 1))),
            commit_table_splits(commit_table_regions),
        ),
        (TableDescriptor(TIMESTAMP_TABLE, (FamilyDescriptor(TIMESTAMP_FAMILY, 1),)), []),
    ):
        if admin.create_table(descriptor, splits):
            made.append(descriptor.name)
    return made


def check_database(cluster: Cluster) -> None:
    """`UnknownTable`, with what to do, if the database was never made."""
    found = set(Admin(cluster).tables())
    missing = sorted({META_TABLE, COMMIT_TABLE} - found)
    if missing:
        raise UnknownTable(
            f"HBase at {cluster.zookeeper.quorum} has no table {', '.join(missing)}: run `pyomid init URL` once",
            table=missing[0],
        )
