"""What keeps a client from ZooKeeper for good is found within seconds, and named by one sentence."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import pyomid
from certificates import make_certificates
from pyomid.cli import main
from pyomid.errors import Unavailable
from pyomid.omid.hbase import zookeeper as module
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.tls import trusting

FOUND_S_MAX = 8.0
"""Of it two seconds pass before the client looks for a reason."""


@contextmanager
def served(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that does this with each connection, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    threading.Thread(target=answer, args=(sock,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def at_its_limit(sock: socket.socket) -> None:
    """As ZooKeeper does with a client that has `maxClientCnxns` connections."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def closed(sock: socket.socket) -> None:
    """The same by Netty."""
    sock.close()


def plain(sock: socket.socket) -> None:
    """As ZooKeeper does with bytes that are no request of its own."""
    with suppress(OSError):
        sock.recv(1)
        sock.close()


def refused(zookeeper: ZooKeeper) -> str:
    began_s = time.monotonic()
    with pytest.raises(Unavailable) as raised:
        zookeeper.session()
    assert time.monotonic() - began_s < FOUND_S_MAX
    assert raised.value.values["may_pass"] is False
    return raised.value.message


@pytest.mark.parametrize("closes", [at_its_limit, closed])
def test_the_limit_of_connections_is_named(closes: Callable[[socket.socket], object]) -> None:
    with served(closes) as address:
        assert "maxClientCnxns" in refused(ZooKeeper(address))


@pytest.mark.parametrize("quorum", ["zk.invalid:2181", "zk1.invalid:2181,zk2.invalid:2181"])
def test_unknown_hosts_are_named(quorum: str) -> None:
    assert "the host zk" in (said := refused(ZooKeeper(quorum)))
    assert "is unknown" in said


def test_one_unknown_host_of_several_is_advice_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other server may only be starting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setattr(module, "_LOG_AFTER_S", 0.2)
    with pytest.raises(Unavailable, match=r"answered within 3 s: the host zk1\.invalid is unknown") as raised:
        ZooKeeper(f"{address},zk1.invalid:2181", connect_s_max=3.0).session()
    assert "may_pass" not in raised.value.values


def test_tls_on_one_side_only_is_named(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server.pem", made / "server.key")

    def by_tls(sock: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(sock, server_side=True) as opened:
            opened.recv(1)

    with served(by_tls) as address:
        assert "speaks TLS at this port: set option zookeeperTlsCa" in refused(ZooKeeper(address))
    with served(plain) as address:
        said = refused(ZooKeeper(address, tls=trusting(str(made / "ca.pem"), names="zookeeperTls")))
        assert "broke off the TLS handshake; check that this is its TLS port" in said


@pytest.mark.parametrize("how", ["connect", "status", "init"])
def test_clients_and_commands_do_not_wait_for_the_rest_of_their_deadline(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    began_s = time.monotonic()
    with served(at_its_limit) as address:
        url = f"omid+hbase://{address}/hbase"
        if how == "connect":
            with pytest.raises(Unavailable, match="maxClientCnxns"):
                pyomid.connect(url)
        else:
            assert main([how, url]) == 1
            assert "maxClientCnxns" in capsys.readouterr().err
    assert time.monotonic() - began_s < FOUND_S_MAX
