"""HBase and ZooKeeper that accept only TLS with client certificates: our clients work, others are refused."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hbase_processes import leading_tso
from java_needed import needs_java

import pyomid.aio
from certificates import PASSWORD, make_certificates, make_java_stores
from pyomid.cli import main
from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import LATEST, KeyValue
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.rpc.requests import RowMutation, puts
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.tls import trusting
from zookeeper_process import ZooKeeperProcess, announce_hbase

pytestmark = [pytest.mark.hbase, pytest.mark.long]

ROWS = 3000

FOR_EVER_S = 3600.0


@dataclass(frozen=True)
class Secured:
    """`url` has the options of a client that both let in; `plain` is HBase's own ZooKeeper, which its tests need."""

    folder: Path
    quorum: str
    plain: str
    url: str

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def trusted(self) -> ssl.SSLContext:
        """What a client that is let in trusts and shows."""
        return trusting(*map(self.file, ("ca.pem", "client.pem", "client.key")))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    needs_java()
    folder = make_certificates(tmp_path_factory.mktemp("secured"))
    make_java_stores(folder)
    (folder / "others").mkdir()
    make_certificates(folder / "others")
    server = HBaseServer(folder / "hbase", heap_mb=512, settings=_hbase_settings(folder))
    zookeeper = _zookeeper(folder)
    zookeeper.start()
    server.start()
    try:
        files = {"Ca": "ca.pem", "Cert": "client.pem", "Key": "client.key"}
        given = {
            f"{who}Tls{what}": str(folder / file) for who in ("hbase", "zookeeper") for what, file in files.items()
        }
        url = f"omid+hbase://{zookeeper.quorum}/hbase?{urlencode(given)}"
        made = Secured(folder, zookeeper.quorum, server.quorum, url)
        _announce_hbase(made)
        assert main(["init", made.url]) == 0
        yield made
    finally:
        zookeeper.kill()
        server.kill()


def _hbase_settings(folder: Path) -> dict[str, str]:
    stores = {}
    for kind, file in (("keystore", "server.p12"), ("truststore", "trust.p12")):
        stores |= {
            f"hbase.rpc.tls.{kind}.location": str(folder / file),
            f"hbase.rpc.tls.{kind}.type": "pkcs12",
            f"hbase.rpc.tls.{kind}.password": PASSWORD,
        }
    return stores | {
        "hbase.server.netty.tls.enabled": "true",
        "hbase.server.netty.tls.supportplaintext": "false",
        "hbase.server.netty.tls.client.auth.mode": "NEED",
        "hbase.server.netty.tls.verify.client.hostname": "false",
        "hbase.client.netty.tls.enabled": "true",
    }


def _zookeeper(folder: Path) -> ZooKeeperProcess:
    """One that has a port for TLS alone, and wants certificates."""
    return ZooKeeperProcess(
        folder / "zookeeper",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        f"ssl.keyStore.location={folder}/server.p12\nssl.keyStore.password={PASSWORD}\n"
        f"ssl.trustStore.location={folder}/trust.p12\nssl.trustStore.password={PASSWORD}\n",
        port_setting="secureClientPort",
    )


def _announce_hbase(secured: Secured) -> None:
    own, ours = ZooKeeper(secured.plain), ZooKeeper(secured.quorum, tls=secured.trusted(), connect_s_max=120.0)
    announce_hbase(own, ours)
    own.close()
    ours.close()


def test_transactions_run_and_a_table_is_adopted_over_tls(secured: Secured, tmp_path: Path) -> None:
    """Threads that share connections, an event loop, answers of many TLS records; cells of the wall clock."""
    cluster = Cluster(ZooKeeper(secured.plain), tls=secured.trusted())
    Admin(cluster).create_table(TableDescriptor("old", (FamilyDescriptor(b"f"),)))
    cluster.rows("old", [RowMutation(b"r", (puts([KeyValue(b"r", b"f", b"q", LATEST, b"v")]),))])
    cluster.close()

    async def commit_on_a_loop() -> None:
        async with await pyomid.aio.connect(secured.url) as database, database.begin() as tx:
            await (await tx.table("t")).put(b"loop", {b"f:q": b"v"})

    with leading_tso(secured.url, tmp_path / "log"):
        with pyomid.connect(secured.url) as database:
            database.create_table("t", ["f"])

            def commit(thread: int) -> None:
                with database.begin() as tx:
                    for number in range(thread, ROWS, 4):
                        tx.table("t").put(b"%06d" % number, {b"f:q": b"v" * 1000})

            threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            asyncio.run(commit_on_a_loop())
            with database.begin() as tx:
                assert len(list(tx.table("t").scan())) == ROWS + 1
            assert main(["adopt", secured.url, "old", "f"]) == 0
            with database.begin() as tx:
                assert tx.table("old").get(b"r") == {b"f:q": b"v"}


@pytest.mark.parametrize(
    ("authority", "why"),
    [("ca.pem", "refuses the client's certificate"), ("others/ca.pem", "not trusted")],
)
def test_untrusted_clients_get_the_reason_at_once(secured: Secured, authority: str, why: str) -> None:
    """A client without a certificate, and one that trusts another authority, at HBase and at ZooKeeper."""
    tls = trusting(secured.file(authority))
    stranger = Cluster(ZooKeeper(secured.plain), tls=tls)
    with pytest.raises(Unavailable, match=rf"the HBase server \w+:[0-9]+ .*{why}"):
        stranger.regions("t")
    stranger.close()
    with pytest.raises(Unavailable, match=rf"the ZooKeeper server {secured.quorum} .*{why}"):
        ZooKeeper(secured.quorum, tls=tls, connect_s_max=FOR_EVER_S).session()


def test_a_plaintext_client_gets_a_clear_error(secured: Secured) -> None:
    stranger = Cluster(ZooKeeper(secured.plain), deadline_s=1.0, call_s_max=1.0)
    with pytest.raises(Unavailable, match="option hbaseTlsCa"):
        stranger.regions("t")
    stranger.close()
    with pytest.raises(Unavailable, match=f"{secured.quorum} speaks TLS at this port: set option zookeeperTlsCa"):
        ZooKeeper(secured.quorum, connect_s_max=1.0).session()
    with pytest.raises(
        Unavailable, match=f"{secured.plain} broke off the TLS handshake; check that this is its TLS port"
    ):
        ZooKeeper(secured.plain, tls=secured.trusted(), connect_s_max=1.0).session()
