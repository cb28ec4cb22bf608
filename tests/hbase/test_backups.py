"""HBase's own snapshots of transactional tables: which may be restored, and why no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_hbase_cleaning import Cleaned, commit_without_completion

from conformance import put_entry
from pyomid.errors import Misuse
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.regions.admin import FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.store import HBaseStore
from pyomid.types import KeyRange, TableInfo
from region_admin import OperatorsAdmin

ROW = b"a"


@pytest.fixture
def database(cluster: Cluster, table_name: str) -> Iterator[Cleaned]:
    """One committed row that no client completed, in a table that is in the catalog."""
    made = Cleaned(cluster, table_name)
    made.store.create_table(TableInfo(table_name, (b"f",)))
    put_entry(made.catalog, TableInfo(table_name, (b"f",)))
    commit_without_completion(made, table_name, ROW)
    made.pass_time()
    yield made
    for name in (table_name, f"{table_name}_ct", f"{table_name}_meta"):
        made.store.drop_table(name)


def restore(cluster: Cluster, snapshot: str, table: str) -> None:
    admin = OperatorsAdmin(cluster)
    admin.disable_table(table)
    admin.clone_snapshot(snapshot, table)
    admin.enable_table(table)


def commits(database: Cleaned, table: str) -> dict[bytes, int]:
    """Row → commit timestamp beside its cell, 0 where there is none."""
    batches = list(database.store.scan(table, KeyRange()))
    return {cell.row: cell.commit_ts for batch in batches for cell in batch.all_cells()}


def test_a_snapshot_in_which_every_cell_has_its_shadow_cell_comes_back_whole(
    database: Cleaned, cluster: Cluster, table_name: str
) -> None:
    database.compact(table_name)
    OperatorsAdmin(cluster).take_snapshot(f"whole_{table_name}", table_name)
    commit_without_completion(database, table_name, b"later")
    assert database.sanitise() == 1
    restore(cluster, f"whole_{table_name}", table_name)
    (found,) = commits(database, table_name).items()
    assert found[0] == ROW
    assert found[1] > 0


def test_any_other_snapshot_lacks_commits_completed_since(database: Cleaned, cluster: Cluster, table_name: str) -> None:
    OperatorsAdmin(cluster).take_snapshot(f"early_{table_name}", table_name)
    database.compact(table_name)
    assert database.sanitise() == 1
    assert commits(database, table_name)[ROW] > 0
    restore(cluster, f"early_{table_name}", table_name)
    assert commits(database, table_name) == {ROW: 0}, "below H without a shadow cell: nobody sees it"
    assert database.leader_state.read_watermarks()[1] > 0


def test_altering_a_table_as_the_error_says_makes_it_usable(
    cluster: Cluster, store: HBaseStore, table_name: str
) -> None:
    admin = OperatorsAdmin(cluster)
    admin.create_table(TableDescriptor(table_name, (FamilyDescriptor(b"f", 3, ttl_s=3600),)))
    with pytest.raises(Misuse, match=r"keeps only 3 versions for 3600 s.*VERSIONS => 2147483647, TTL => 'FOREVER'"):
        store.create_table(TableInfo(table_name, (b"f",)))
    admin.modify_table(TableDescriptor(table_name, (FamilyDescriptor(b"f"),)))
    store.create_table(TableInfo(table_name, (b"f",)))
    store.drop_table(table_name)
