"""A real HBase and ZooKeeper that ask for Kerberos, and a real KDC: one server for all protections, which the clients
choose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hbase_processes import TsoProcess
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL, make_acl
from many_messages import check_puts_are_read, check_puts_are_read_on_a_loop, protections

import pyomid
from kdc import REALM, Kdc
from kerberized import ALICE, SERVERS, ZOOKEEPER, kerberos_options, opened, url_by_keytab, url_by_ticket
from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Misuse, Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.deployment import HBaseOptions
from pyomid.omid.hbase.kerberos import Kerberos, KerberosFailed, KerberosOptions
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.rpc.requests import RowGet
from pyomid.omid.hbase.sasl import Protection
from pyomid.omid.hbase.zookeeper import ZooKeeper

pytestmark = [pytest.mark.hbase, pytest.mark.long]


@pytest.fixture(scope="module")
def table(kdc: Kdc, secured: HBaseServer) -> Iterator[str]:
    cluster = opened(secured, kerberos_options(kdc), deadline_s=120.0)
    Admin(cluster).create_table(TableDescriptor("t", (FamilyDescriptor(b"f", 1),)))
    yield "t"
    cluster.close()


@pytest.mark.parametrize("protection", Protection)
def test_puts_are_readable_under_each_protection(
    secured: HBaseServer, table: str, kdc: Kdc, protection: Protection
) -> None:
    cluster = opened(secured, kerberos_options(kdc, protection))
    check_puts_are_read(cluster, table, 100 * protection.value)
    assert protections(cluster) == {protection}
    check_puts_are_read_on_a_loop(cluster, table, 1000 * protection.value)
    cluster.close()


def test_zookeeper_authenticates_its_client(secured: HBaseServer, kdc: Kdc) -> None:
    cluster = opened(secured, kerberos_options(kdc))
    ask = cluster.zookeeper.ask
    ask("create", "/alice", b"hers", acl=CREATOR_ALL_ACL)
    (acl,) = ask("get_acls", "/alice")[0]
    cluster.close()
    assert (acl.id.scheme, acl.id.id) == ("sasl", ALICE)


def test_a_client_without_a_ticket_is_refused(secured: HBaseServer, table: str) -> None:
    cluster = Cluster(ZooKeeper(secured.quorum), user="alice", deadline_s=30.0)
    with pytest.raises(Misuse, match="add the option authentication=kerberos"):
        cluster.rows(table, [RowGet(b"r")])
    cluster.close()


def test_hbase_decides_whom_a_user_may_run_as(secured: HBaseServer, table: str, kdc: Kdc) -> None:
    for_carol, for_bob = (opened(secured, kerberos_options(kdc, run_as=name)) for name in ("carol", "bob"))
    assert for_carol.rows(table, [RowGet(b"no row")]) == [[]]
    with pytest.raises(Misuse, match="not allowed to impersonate"):
        for_bob.rows(table, [RowGet(b"no row")])
    for_carol.close()
    for_bob.close()


def test_an_expired_ticket_keeps_connections_open(
    secured: HBaseServer, table: str, kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kdc.kinit(ALICE, kdc.folder / f"{ALICE}.keytab", tmp_path / "cache", lifetime="2s")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/cache")
    by_ticket = HBaseOptions(
        kerberos=KerberosOptions(hbase_principal=f"hbase/_HOST@{REALM}", zookeeper_principal=ZOOKEEPER)
    )
    early = opened(secured, by_ticket)
    assert early.rows(table, [RowGet(b"no row")]) == [[]]
    late = None
    while late is None:
        with suppress(KerberosFailed):
            Kerberos(KerberosOptions()).context(SERVERS, "localhost").begin()
            continue
        late = opened(secured, by_ticket)
    with pytest.raises(Unavailable, match="has expired: run kinit"):
        late.rows(table, [RowGet(b"no row")])
    assert early.rows(table, [RowGet(b"no row")]) == [[]]
    kdc.kinit(ALICE, kdc.folder / f"{ALICE}.keytab", tmp_path / "cache")
    assert late.rows(table, [RowGet(b"no row")]) == [[]]
    early.close()
    late.close()


def test_permanent_failures_are_not_retried(secured: HBaseServer, table: str, kdc: Kdc) -> None:
    """Within a deadline that the test itself does not reach."""

    def said(chosen: HBaseOptions) -> str:
        cluster = opened(secured, chosen, deadline_s=3600.0)
        with pytest.raises(Unavailable) as found:
            cluster.rows(table, [RowGet(b"r")])
        cluster.close()
        return str(found.value)

    assert "the KDC does not know nobody/localhost@" in said(
        kerberos_options(kdc, hbase_principal=f"nobody/_HOST@{REALM}")
    )
    assert "does not know nobody/localhost@" in said(
        kerberos_options(kdc, zookeeper_principal=f"nobody/localhost@{REALM}")
    )
    # A ticket for another server: its key does not open it.
    refused = said(kerberos_options(kdc, hbase_principal=ZOOKEEPER))
    assert f"{ZOOKEEPER} refuses this client" in refused
    assert "The server's log says why" in refused
    refused = said(kerberos_options(kdc, zookeeper_principal=SERVERS))
    assert "ZooKeeper" in refused
    kdc.stop()
    try:
        kdc.start(ahead_s=3600)
        assert "clocks differ too much" in said(kerberos_options(kdc, zookeeper_principal=""))
    finally:
        kdc.stop()
        kdc.start()


def test_a_kdc_that_is_down_is_named_and_retried(
    secured: HBaseServer, table: str, kdc: Kdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    kdc.stop()
    hasty = opened(secured, kerberos_options(kdc, zookeeper_principal=""), deadline_s=1.0)
    with pytest.raises(Unavailable, match=r"no KDC answers: check krb5\.conf and the network"):
        hasty.rows(table, [RowGet(b"r")])
    hasty.close()
    begin, refused = Kerberos.begin, list[str]()

    def noted(kerberos: Kerberos, service: str) -> object:
        try:
            return begin(kerberos, service)
        except KerberosFailed as error:
            if not refused:
                kdc.start()
            refused.append(str(error))
            raise

    monkeypatch.setattr(Kerberos, "begin", noted)
    patient = opened(secured, kerberos_options(kdc, zookeeper_principal=""))
    assert patient.rows(table, [RowGet(b"no row")]) == [[]]
    assert refused
    assert "no KDC answers" in refused[0]
    patient.close()


def test_a_deployment_commits_by_keytab_and_by_ticket(
    secured: HBaseServer, kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keytab = kdc.folder / f"{ALICE}.keytab"
    by_ticket = url_by_ticket(secured, rpcProtection="privacy")
    by_keytab = url_by_keytab(secured, kdc, rpcProtection="privacy")
    made = subprocess.run(
        [sys.executable, "-m", "pyomid", "init", by_keytab, "--commit-table-regions", "1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    kdc.kinit(ALICE, keytab, tmp_path / "cache")
    with TsoProcess(by_keytab, tmp_path / "tso.log") as tso:
        tso.wait_until_leading()
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/cache")
        with pyomid.connect(by_ticket) as database:
            database.create_table("accounts", families=["f"])
            with database.begin() as tx:
                tx.table("accounts").put(b"r", {b"f:q": b"v"})
            with database.begin() as tx:
                assert tx.table("accounts").get(b"r") == {b"f:q": b"v"}
        anyone, alice = ZooKeeper(secured.quorum), opened(secured, kerberos_options(kdc)).zookeeper
        lease = "/omid/tso-lease"
        alice.ask("set_acls", lease, [make_acl("world", "anyone", read=True), make_acl("sasl", ALICE, all=True)])
        with pytest.raises(NoAuthError):
            anyone.ask("set", lease, b"")
        assert tso.stop() == 0  # it gave back the lease, which is hers alone by now
        assert anyone.ask("get", lease)[0] == b""
        anyone.close()
        alice.close()
