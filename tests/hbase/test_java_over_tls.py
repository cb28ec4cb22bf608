"""Apache Omid's own client and ours over TLS, on one TSO that requires certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hbase_processes import TsoProcess, leading_tso

import pyomid
from certificates import PASSWORD, make_certificates, make_java_stores
from java_omid import JavaClient, JavaError
from pyomid.cli.hbase import HBaseServer
from pyomid.errors import ConflictError

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def certificates(hbase: HBaseServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    make_java_stores(folder)
    return folder


def showing(certificates: Path, name: str) -> tuple[str, ...]:
    """Options of a TSO that shows this certificate, and asks for those of clients."""
    given = {"cert": f"{name}.pem", "key": f"{name}.key", "client-ca": "ca.pem"}
    return tuple(text for option, file in given.items() for text in (f"--tls-{option}", str(certificates / file)))


@pytest.fixture(scope="module")
def tso(url: str, certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TsoProcess]:
    log = tmp_path_factory.mktemp("tso") / "log"
    with leading_tso(url, log, options=showing(certificates, "server")) as process:
        yield process


def java_client(hbase: HBaseServer, trusting: Path, key_store: str) -> JavaClient:
    stores = str(trusting / "trust.p12"), key_store, PASSWORD
    return JavaClient(hbase.ports.zookeeper, stores=stores)


def test_java_does_not_verify_host_names(hbase: HBaseServer, url: str, certificates: Path, tmp_path: Path) -> None:
    """The TSO shows one that names no address of this machine. It leads alone: this test is the first of the file."""
    with leading_tso(url, tmp_path / "log", options=showing(certificates, "client")):
        with java_client(hbase, certificates, str(certificates / "client.p12")) as java:
            assert java.begin("a") > 0


def test_java_and_python_commit_over_tls_with_certificates(
    url: str, hbase: HBaseServer, tso: TsoProcess, certificates: Path, table_name: str
) -> None:
    """What one commits the other reads, and the first of two committers wins, as without TLS."""
    files = {"tlsCa": "ca.pem", "tlsCert": "client.pem", "tlsKey": "client.key"}
    shown = {name: str(certificates / file) for name, file in files.items()}
    with (
        pyomid.connect(url, **shown) as database,
        java_client(hbase, certificates, str(certificates / "client.p12")) as java,
    ):
        table = table_name
        database.create_table(table, ["f"])
        for number in range(50):
            java.begin("a")
            java.put("a", table, b"java%d" % number, b"f", b"q", b"1")
            java.commit("a")
        with database.begin() as tx:
            assert len(list(tx.table(table).scan())) == 50
            tx.table(table).put(b"python", {b"f:q": b"2"})
        java.begin("b")
        assert java.get("b", table, b"python") == {b"f:q": b"2"}
        java.rollback("b")
        late = database.begin()
        java.begin("wins")
        java.put("wins", table, b"r", b"f", b"q", b"java's")
        java.commit("wins")
        late.table(table).put(b"r", {b"f:q": b"ours"})
        with pytest.raises(ConflictError):
            late.commit()
        database.drop_table(table)


def test_a_java_client_without_a_certificate_begins_nothing(
    hbase: HBaseServer, tso: TsoProcess, certificates: Path
) -> None:
    with pytest.raises(JavaError), java_client(hbase, certificates, "-") as java:
        java.begin("a")


def test_java_begins_nothing_with_a_tso_of_another_authority(
    hbase: HBaseServer, tso: TsoProcess, certificates: Path, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path)
    make_java_stores(others)
    with pytest.raises(JavaError), java_client(hbase, others, str(certificates / "client.p12")) as java:
        java.begin("a")
