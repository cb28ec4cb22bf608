"""Mistakes of users of HBase, and the errors that they get (more of them in test_regions)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyomid.cells import batch_of
from pyomid.cli.tables import chosen_level
from pyomid.database.database import Database
from pyomid.database.table_admin import alter_table, create_table
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.omid.hbase.catalog import HBaseCatalog
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import KeyValue
from pyomid.omid.hbase.codec.layout import (
    COMPACTION_ATTRIBUTE,
    COPROCESSOR,
    META_FAMILY,
    PHOENIX_COPROCESSOR,
    TIMESTAMP_FAMILY,
)
from pyomid.omid.hbase.leader_state import ChosenCeiling, HBaseCeiling, ZooKeeperCeiling
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.regions.bulk_writes import put_batch
from pyomid.omid.hbase.rpc.failures import RemoteFailure
from pyomid.omid.hbase.rpc.requests import RowMutation, puts
from pyomid.omid.hbase.store import LIMITS, HBaseStore
from pyomid.types import Cell, Column, ConflictLevel, RowWrite

TOO_LARGE = b"v" * ((10 << 20) + 1)


@pytest.mark.parametrize(
    ("class_name", "message", "kind", "said"),
    [
        ("org.apache.hadoop.hbase.security.AccessDeniedException", "no WRITE", Misuse, "permission denied: grant"),
        ("org.apache.hadoop.hbase.DoNotRetryIOException", "Cell x exceeds limit of 9 bytes", Misuse, "maxsize"),
        ("org.apache.hadoop.hbase.TableNotEnabledException", "t", Unavailable, "enable it"),
        ("org.apache.hadoop.hbase.regionserver.NoSuchColumnFamilyException", "g", Misuse, "no such family"),
        ("org.apache.hadoop.hbase.RegionTooBusyException", "t", Unavailable, "RegionTooBusy"),
    ],
)
def test_a_server_exception_has_advice(class_name: str, message: str, kind: type[OmidError], said: str) -> None:
    error = RemoteFailure(class_name, message).as_error("writing 3 rows of t")
    assert type(error) is kind
    assert said in error.message
    assert error.message.startswith("writing 3 rows of t: ")


def test_a_value_over_the_limit_is_refused_before_anything_is_sent(store: HBaseStore, bare_table: str) -> None:
    with pytest.raises(Misuse, match=str(LIMITS.value_bytes_max)):
        store.write_cells(bare_table, 50, [RowWrite(b"r", ((Column(b"f", b"q"), TOO_LARGE),))])


def test_the_error_for_a_cell_over_the_limit_names_the_setting(
    store: HBaseStore, cluster: Cluster, bare_table: str
) -> None:
    """The server may have a smaller limit than the one that is known here: both ways of writing tell it."""
    large = RowMutation(b"r", (puts([KeyValue(b"r", b"f", b"q", 50, TOO_LARGE)]),), repeatable=False)
    with pytest.raises(Misuse, match=r"hbase\.server\.keyvalue\.maxsize"):
        cluster.rows(bare_table, [large])
    batch = batch_of([[Cell(b"r", b"f", b"q", 50, TOO_LARGE)], [Cell(b"s", b"f", b"q", 50, b"v")]])
    with pytest.raises(Misuse, match=r"hbase\.server\.keyvalue\.maxsize"):
        cluster.run(put_batch(cluster.operations, bare_table, 50, batch, cluster.budget("writing a batch")))


def test_a_table_of_another_conflict_level_is_refused(database: Database, table: str) -> None:
    with pytest.raises(Misuse, match="conflict level 'cell', not 'row'"):
        database.create_table(table, ["f"], conflict_level="row", if_not_exists=True)


def test_a_deployment_has_one_conflict_level(database: Database, cluster: Cluster, table_name: str) -> None:
    """In a table of its own: that of the session's deployment would be the other tests' too."""
    Admin(cluster).create_table(TableDescriptor(table_name, (FamilyDescriptor(META_FAMILY, 1),)), [])
    catalog = HBaseCatalog(cluster, table=table_name)
    assert catalog.tables_level() is None
    assert [chosen_level(catalog, wanted) for wanted in (None, "any", None, "row")] == ["cell", "any", "any", "row"]
    deployment = replace(database._core.deployment, catalog=catalog)
    with pytest.raises(Misuse, match="this deployment's level is 'row': requests of Java clients do not name"):
        create_table(deployment, f"{table_name}_data", ["f"], conflict_level="cell")
    made = create_table(deployment, f"{table_name}_data", ["f"])
    assert (made.conflict_level.value, catalog.table(made.name)) == ("row", made)
    changing = replace(made, next_level=ConflictLevel.CELL)
    assert alter_table(deployment, made, lambda _: changing) == catalog.table(made.name) == changing
    with pytest.raises(Misuse, match="cannot be the conflict level of all tables"):
        chosen_level(catalog, "cell")
    assert catalog.tables_level() is None, "the table has two by now, so neither is given back"
    database._core.deployment.store.drop_table(made.name)
    Admin(cluster).drop_table(table_name)


@pytest.mark.parametrize(
    ("coprocessor", "flags"), [(COPROCESSOR, {COMPACTION_ATTRIBUTE: b"true"}), (PHOENIX_COPROCESSOR, {})]
)
def test_leases_and_cleaning_are_refused_on_a_table_with_omid_s_coprocessor(
    database: Database,
    cluster: Cluster,
    store: HBaseStore,
    table_name: str,
    coprocessor: str,
    flags: dict[bytes, bytes],
) -> None:
    family = FamilyDescriptor(b"f", attributes=flags)
    attributes = {b"coprocessor$1": b"|%s|1001|" % coprocessor.encode()}
    Admin(cluster).create_table(TableDescriptor(table_name, (family,), attributes))
    database.create_table(table_name, ["f"])
    with pytest.raises(Misuse, match="coprocessor"), database.begin(lease=True) as tx:
        tx.table(table_name)
    nothing = np.array([], dtype=np.int64)
    with pytest.raises(Misuse, match="coprocessor"):
        store.clean_batch(table_name, batch_of([[Cell(b"r", b"f", b"q", 50, b"v")]]), nothing, nothing)
    with database.begin() as tx:
        tx.table(table_name).put(b"r", {b"f:q": b"v"})
    database.drop_table(table_name)


def test_a_higher_ceiling_in_the_other_store_is_refused(cluster: Cluster, table_name: str) -> None:
    """Two places, one of them higher: whoever went by the lower would hand out timestamps twice."""
    Admin(cluster).create_table(TableDescriptor(table_name, (FamilyDescriptor(TIMESTAMP_FAMILY, 1),)))
    in_hbase = HBaseCeiling(cluster, table=table_name)
    in_zookeeper = ZooKeeperCeiling(cluster.zookeeper, path=f"/omid-test/{table_name}")
    assert in_hbase.compare_and_set(0, 1000)
    chosen = ChosenCeiling(in_zookeeper, {"hbase": in_hbase})
    with pytest.raises(Misuse, match=r"hbase holds the timestamp ceiling 1000.*ceiling=hbase"):
        chosen.read()
    assert chosen.move_here() == 1000
    assert chosen.read() == in_zookeeper.read() == 1000
    assert chosen.compare_and_set(1000, 2000)
    assert chosen.move_here() == 2000
    with pytest.raises(Misuse, match="ceiling=zookeeper"):
        ChosenCeiling(in_hbase, {"zookeeper": in_zookeeper}).read()
    HBaseStore(cluster).drop_table(table_name)
