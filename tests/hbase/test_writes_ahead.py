"""Rows sent to HBase while the caller continues: regions split, connections break and clients die meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from portions import first
from pyomid.cells import CellNames, batch_of_rows
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.database.transaction import State
from pyomid.errors import TransactionEnded, Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.requests import ALL_VERSIONS
from pyomid.omid.hbase.store import HBaseStore
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.types import Cell, Column, KeyRange, TableInfo
from region_admin import OperatorsAdmin

ROWS = 2_000
"""Several times what is held back before it leaves."""


def key(number: int) -> bytes:
    return b"%06d" % number


def stored(store: HBaseStore, table: str) -> list[Cell]:
    return [cell for batch in store.scan(table, KeyRange()) for cell in batch.all_cells()]


def break_lines(cluster: Cluster) -> None:
    """As a network does that forgets its connections: what was sent may have been done, its answers never come."""
    for connection in cluster._connections.values():
        connection.close()


def test_begun_writes_are_stored_once_they_have_ended(store: HBaseStore, table_name: str) -> None:
    store.create_table(TableInfo(table_name, (b"f", b"g")))
    rows = {key(number): {Column(b"f", b"q"): b"v%d" % number, Column(b"g", b"t"): None} for number in range(ROWS)}
    batches = [batch_of_rows({row: rows[row] for row in list(rows)[at::3]}) for at in range(3)]
    store.end_writes([store.begin_write(table_name, 50, batch) for batch in batches])
    store.write_shadow_batches(table_name, 50, batches, 150)
    found = stored(store, table_name)
    assert {cell[:5] for cell in found} == {
        (row, column.family, column.qualifier, 50, value)
        for row, cells in rows.items()
        for column, value in cells.items()
    }
    assert {cell.commit_ts for cell in found} == {150}
    assert sorted(CellNames(batches, 50)) == sorted(cell.name for cell in found)
    store.drop_table(table_name)


def test_shadow_cells_of_batches_exist_only_beside_data_cells(store: HBaseStore, bare_table: str) -> None:
    """The store of this test knows no W, so each cell is looked at, as if a compactor might have been there."""
    batch = batch_of_rows({key(number): {Column(b"f", b"q"): b"v"} for number in range(30)})
    store.write_batch(bare_table, 50, batch)
    store.delete_versions(bare_table, [name for name in CellNames([batch], 50) if name.row < key(10)])
    store.write_shadow_batches(bare_table, 50, [batch], 150)
    store.write_batch(bare_table, 100, batch)
    shown = {(cell.row, cell.version): cell.commit_ts for cell in stored(store, bare_table)}
    assert {row for row, version in shown if version == 50} == {key(number) for number in range(10, 30)}
    scan = store._cluster.scan(ScanSpec(bare_table, KeyRange(), max_versions=ALL_VERSIONS))
    blocks = b"".join(bytes(block.cells) for block in iter(scan.fetch, None))
    assert blocks.count((150).to_bytes(8, "big")) == 20


def test_rows_of_a_region_that_split_meanwhile_are_resent(
    store: HBaseStore, cluster: Cluster, hbase: HBaseServer, bare_table: str
) -> None:
    batch = batch_of_rows({key(number): {Column(b"f", b"q"): b"v"} for number in range(ROWS)})
    late = Cluster(ZooKeeper(hbase.quorum), deadline_s=120.0)
    late_store = HBaseStore(late)
    late_store.write_batch(bare_table, 50, batch)  # From now on it knows one region.
    OperatorsAdmin(cluster).split(bare_table, key(ROWS // 2))
    late_store.end_writes([late_store.begin_write(bare_table, 100, batch)])
    assert [cell.row for cell in stored(store, bare_table) if cell.version == 100] == [key(n) for n in range(ROWS)]
    late.close()


def test_a_lost_connection_makes_the_transaction_rollback_only(database: Database, table: str) -> None:
    store = database._core.deployment.store
    assert isinstance(store, HBaseStore)
    tx = database.begin()
    for number in range(ROWS):
        tx.table(table).put(key(number), {b"f:q": b"v" * 100})
    assert tx._core.writes.is_writing
    break_lines(store._cluster)
    with pytest.raises(Unavailable):
        tx.commit()
    assert tx.state is State.ROLLBACK_ONLY
    with pytest.raises(TransactionEnded):
        tx.commit()
    tx.rollback()
    assert database.drain(120.0)
    assert stored(store, table) == []
    with database.begin() as again:
        assert list(again.table(table).scan()) == []
        again.table(table).put(key(7), {b"f:q": b"later"})
    with database.begin() as later:
        assert list(later.table(table).scan()) == [(key(7), {b"f:q": b"later"})]


DIES = """
import sys, pyomid
url, table = sys.argv[1:]
with pyomid.connect(url) as db, db.begin() as tx:
    for number in range(2_000):
        tx.table(table).put(b"%06d" % number, {b"f:q": b"v" * 100})
"""


@pytest.mark.parametrize("at", first(1, ["client.flush.after", "client.flush.before:3", "client.commit.before"]))
def test_orphans_of_a_client_that_died_after_an_early_write_are_invisible(
    database: Database, url: str, table: str, tmp_path: Path, at: str
) -> None:
    note = tmp_path / "note"
    environment = {**os.environ, "PYOMID_CRASH_AT": at, "PYOMID_CRASH_NOTE": str(note)}
    ended = subprocess.run([sys.executable, "-c", DIES, url, table], env=environment, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    assert note.read_text().split()[0] == at.split(":")[0]
    store = database._core.deployment.store
    assert isinstance(store, HBaseStore)
    if at != "client.flush.before:3":  # There, what was sent may still arrive.
        assert len(stored(store, table)) == ROWS
    assert all(cell.commit_ts == 0 for cell in stored(store, table))
    with database.begin() as tx:
        assert list(tx.table(table).scan()) == []
        tx.table(table).put(key(7), {b"f:q": b"later"})
    with database.begin() as tx:
        assert list(tx.table(table).scan()) == [(key(7), {b"f:q": b"later"})]


def test_a_large_transaction_reads_its_writes_and_is_completed(database: Database, table: str) -> None:
    store = database._core.deployment.store
    assert isinstance(store, HBaseStore)
    with database.begin() as tx:
        for number in range(ROWS):
            tx.table(table).put(key(number), {b"f:q": b"1", b"f:r": b"v" * 100})
        assert tx.table(table).get(key(3)) == {b"f:q": b"1", b"f:r": b"v" * 100}
        tx.table(table).put(key(3), {b"f:q": b"2"})
        assert sum(1 for _ in tx.table(table).scan()) == ROWS
    assert database.drain(120.0)
    cells = stored(store, table)
    assert len(cells) == 2 * ROWS
    assert {cell.commit_ts for cell in cells} == {tx.commit_ts}
    with database.begin() as reader:
        assert reader.table(table).get(key(3), [b"f:q"]) == {b"f:q": b"2"}
