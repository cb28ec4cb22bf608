"""HBase's own tool exports a backup, and another cluster restores it, as docs/hbase.md describes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hbase_processes import leading_tso
from java_needed import needs_java

import pyomid
from pyomid.cli import main
from pyomid.cli.hbase import Bundle, HBaseServer, class_path, java, join
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.zookeeper import ZooKeeper
from region_admin import OperatorsAdmin

pytestmark = [pytest.mark.hbase, pytest.mark.soak]

EXPORT: Final = Bundle(
    "hbase-export",
    ("org.apache.hbase:hbase-mapreduce:2.6.1-hadoop3", "org.apache.hadoop:hadoop-mapreduce-client-common:3.3.5"),
)

ROWS: Final = {b"%04d" % number: {b"f:q": b"%d" % number} for number in range(500)}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[HBaseServer, HBaseServer]]:
    needs_java()
    both = HBaseServer(tmp_path / "first", heap_mb=512), HBaseServer(tmp_path / "second", heap_mb=512)
    try:
        for each in both:
            each.start()
        yield both
    finally:
        for each in both:
            each.kill()


def url_of(server: HBaseServer) -> str:
    return f"omid+hbase://{server.quorum}/hbase"


def export(snapshot: str, source: HBaseServer, target: HBaseServer) -> None:
    """As an operator does, between two folders of this machine in place of two file systems."""
    tool = "org.apache.hadoop.hbase.snapshot.ExportSnapshot"
    arguments = ["-snapshot", snapshot, "-copy-from", f"file://{source.folder}/data"]
    arguments += ["-copy-to", f"file://{target.folder}/data", "-mappers", "1"]
    arguments += ["-no-checksum-verify"]  # local files have none
    classes = join([source.folder / "conf", *class_path(EXPORT)])
    command = java("-Xmx256m", "-XX:+UseSerialGC", "-cp", classes, tool, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=target.folder)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_a_backup_is_restored_in_another_cluster(
    servers: tuple[HBaseServer, HBaseServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under its own name, and under one of a namespace; what committed behind it is not there. An id stays taken."""
    first, second = servers
    assert main(["init", url_of(first), "--commit-table-regions", "2"]) == 0
    with leading_tso(url_of(first), tmp_path / "first.log"):
        with pyomid.connect(url_of(first)) as db:
            for table in ("orders", "stock"):
                db.create_table(table, ["f"], split_keys=[b"0250"])
            with db.begin() as tx:
                for table in ("orders", "stock"):
                    for row, cells in ROWS.items():
                        tx.table(table).put(row, cells)
            assert db.run_once("job", lambda tx: tx.table("stock").delete(b"0000")) is None
            taken = db.backup("monday")
            with db.begin() as tx:
                tx.table("orders").put(b"later", {b"f:q": b"v"})
    for snapshot in taken.snapshots:
        export(snapshot, first, second)
    first.kill()

    there = url_of(second)
    assert main(["init", there, "--commit-table-regions", "2", "--above-backup", "monday"]) == 0
    cluster = Cluster(ZooKeeper(second.quorum))
    OperatorsAdmin(cluster).create_namespace("shop")
    cluster.close()
    with leading_tso(there, tmp_path / "second.log"):
        names = ["--as", "orders=shop:orders", "--table", "stock", "--table", "PYOMID_MARKERS"]
        assert main(["restore", "monday", there, *names]) == 0
        with pyomid.connect(there) as db:
            with db.begin(lease=True) as tx:
                assert dict(tx.table("shop:orders").scan()) == ROWS
                assert dict(tx.table("stock").scan()) == {row: ROWS[row] for row in ROWS if row != b"0000"}
            done = db.run_once("job", lambda tx: tx.table("stock").delete(b"0001"))
            assert isinstance(done, pyomid.AlreadyDone)
            with db.begin() as tx:
                tx.table("shop:orders").put(b"new", {b"f:q": b"v"})
            db.compact()
            assert db.verify().ok
