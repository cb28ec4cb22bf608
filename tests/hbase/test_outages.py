"""Services and clients while HBase and ZooKeeper start and stop, and while tables are disabled and dropped."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hbase_processes import TsoProcess

import pyomid
from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Unavailable, UnknownTable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import META_TABLE
from pyomid.omid.hbase.regions.admin import Admin
from pyomid.omid.hbase.rpc.requests import RowGet
from pyomid.omid.hbase.store import HBaseStore
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.omid.tso.leadership import DOUBT_EXIT_CODE
from pyomid.types import KeyRange, TableInfo
from region_admin import OperatorsAdmin
from zookeeper_process import ZooKeeperProcess, announce_hbase

FOR_EVER_S = 3600.0
"""A wait of so long ends these tests, unless it is cut short."""


def wait_for_log(path: Path, text: str) -> None:
    waiting = threading.Event()
    while not path.exists() or text not in path.read_text():
        waiting.wait(0.02)


@pytest.fixture
def starting(hbase: HBaseServer, cluster: Cluster, table_name: str) -> Iterator[HBaseStart]:
    made = HBaseStart(cluster.zookeeper, f"/{table_name}")
    yield made
    made.end()


class HBaseStart:
    """A root in ZooKeeper under which HBase has no server until `go`: it is starting."""

    NAMES = ("meta-region-server", "master")

    def __init__(self, zookeeper: ZooKeeper, root: str) -> None:
        self._zookeeper = zookeeper
        self.root = root
        zookeeper.ask("create", root)

    def go(self) -> None:
        for name in self.NAMES:
            content = self._zookeeper.read_hbase(name)
            self._zookeeper.ask("create", f"{self.root}/{name}", content, makepath=True)

    def end(self) -> None:
        for name in self._zookeeper.ask("get_children", self.root):
            self._zookeeper.ask("delete", f"{self.root}/{name}")
        self._zookeeper.ask("delete", self.root)


def test_a_tso_and_a_client_wait_for_an_hbase_that_starts(
    hbase: HBaseServer, starting: HBaseStart, tmp_path: Path, table_name: str
) -> None:
    url = f"omid+hbase://{hbase.quorum}{starting.root}"
    opened: list[pyomid.Database] = []
    connecting = threading.Thread(target=lambda: opened.append(pyomid.connect(url, storeRetrySeconds=FOR_EVER_S)))
    with TsoProcess(url, tmp_path / "log", options=("--store-retry", str(FOR_EVER_S))) as tso:
        connecting.start()
        wait_for_log(tso.log, "HBase is down, starting")
        starting.go()
        tso.wait_until_leading()
        connecting.join()
        with opened[0] as database:
            database.create_table(table_name, ["f"])
            with database.begin() as tx:
                tx.table(table_name).put(b"r", {b"f:q": b"v"})
            database.drop_table(table_name)
        assert tso.stop() == 0


@pytest.mark.long
def test_a_tso_that_waits_for_hbase_reacts_to_sigterm(hbase: HBaseServer, starting: HBaseStart, tmp_path: Path) -> None:
    url = f"omid+hbase://{hbase.quorum}{starting.root}"
    with TsoProcess(url, tmp_path / "log", options=("--store-retry", str(FOR_EVER_S))) as tso:
        wait_for_log(tso.log, "HBase is down, starting")
        assert tso.stop() == 0


@pytest.mark.long
def test_a_standby_survives_a_store_failure_of_its_leader(
    url: str, cluster: Cluster, tmp_path: Path, table_name: str
) -> None:
    """Of the leader nothing can be expected; the standby takes the lease, cannot take over, and gives it back."""
    admin = OperatorsAdmin(cluster)
    options = ("--store-retry", "2")
    with TsoProcess(url, tmp_path / "one.log", lease_s=6.0, options=options) as one:
        one.wait_until_leading()
        with pyomid.connect(url) as database:
            database.create_table(table_name, ["f"])
            with TsoProcess(url, tmp_path / "two.log", lease_s=6.0, options=options) as two:
                two.wait_until_standing_by()
                admin.disable_table(META_TABLE)
                try:
                    one.kill()
                    wait_for_log(two.log, "releases the lease and stands by again")
                finally:
                    admin.enable_table(META_TABLE)
                two.wait_until_leading()
                with database.begin() as tx:
                    tx.table(table_name).put(b"r", {b"f:q": b"v"})
                database.drop_table(table_name)
                assert two.stop() == 0


@pytest.mark.long
def test_a_disabled_table_has_a_clear_error_at_once(
    hbase: HBaseServer, store: HBaseStore, cluster: Cluster, bare_table: str, caplog: pytest.LogCaptureFixture
) -> None:
    OperatorsAdmin(cluster).disable_table(bare_table)
    patient = Cluster(ZooKeeper(hbase.quorum), deadline_s=FOR_EVER_S)
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable, match=f"{bare_table} is disabled: enable it"):
        patient.rows(bare_table, [RowGet(b"r")])
    assert re.search(rf"rows of {bare_table}: has waited \d+ s \(limit 3600 s\)", caplog.text)
    with pytest.raises(Unavailable, match=f"{bare_table} is disabled: enable it"):
        patient.start_of_last_rows(bare_table, KeyRange(), 3)
    patient.close()


def test_a_table_dropped_during_a_wait_is_unknown(
    hbase: HBaseServer, store: HBaseStore, cluster: Cluster, table_name: str
) -> None:
    store.create_table(TableInfo(table_name, (b"f",)))
    patient = Cluster(ZooKeeper(hbase.quorum), deadline_s=FOR_EVER_S)
    patient.rows(table_name, [RowGet(b"r")])
    Admin(cluster).drop_table(table_name)
    with pytest.raises(UnknownTable, match=table_name):
        patient.rows(table_name, [RowGet(b"r")])
    patient.close()


@pytest.fixture
def own_zookeeper(hbase: HBaseServer, cluster: Cluster, tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """In which TSOs and clients find the shared HBase."""
    made = ZooKeeperProcess(tmp_path / "zookeeper")
    made.start()
    try:
        here = ZooKeeper(made.quorum, connect_s_max=120.0)
        announce_hbase(cluster.zookeeper, here)
        here.close()
        yield made
    finally:
        made.kill()


@pytest.mark.long
def test_a_standby_and_clients_survive_a_zookeeper_outage(
    own_zookeeper: ZooKeeperProcess, tmp_path: Path, table_name: str
) -> None:
    """Killed, and stopped for longer than sessions live. The leader ends, as its lease does; who stands by leads once
    ZooKeeper is back, and a client that was there before commits."""
    url = f"omid+hbase://{own_zookeeper.quorum}/hbase"
    options = ("--store-retry", "2")
    with TsoProcess(url, tmp_path / "one.log", lease_s=3.0, options=options) as first:
        first.wait_until_leading()
        with (
            TsoProcess(url, tmp_path / "two.log", lease_s=3.0, options=options) as second,
            pyomid.connect(url, storeRetrySeconds=FOR_EVER_S, commitRetrySeconds=FOR_EVER_S) as database,
        ):
            second.wait_until_standing_by()
            database.create_table(table_name, ["f"])
            own_zookeeper.kill()
            assert first.process.wait() == DOUBT_EXIT_CODE
            wait_for_log(second.log, "ZooKeeper")
            assert second.process.poll() is None
            own_zookeeper.start()
            second.wait_until_leading()
            with database.begin() as tx:
                tx.table(table_name).put(b"r", {b"f:q": b"v"})
            with TsoProcess(url, tmp_path / "three.log", lease_s=3.0, options=options) as third:
                third.wait_until_standing_by()
                own_zookeeper.send(signal.SIGSTOP)
                assert second.process.wait() == DOUBT_EXIT_CODE
                own_zookeeper.send(signal.SIGCONT)
                third.wait_until_leading()
                with database.begin() as tx:
                    assert tx.table(table_name).get(b"r") == {b"f:q": b"v"}
                database.drop_table(table_name)
                assert third.stop() == 0
