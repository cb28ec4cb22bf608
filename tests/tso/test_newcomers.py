"""Silent connections do not keep legitimate clients out (decision 0041)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from served_here import served as served_here
from service_process import RawPeer, served, tls_options, trusting

from pyomid.errors import Unavailable
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.tso.peer import Connection
from pyomid.omid.tso.unauthenticated import UnauthenticatedPeers
from pyomid.tls import tcp_connector

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

FEW_FILES = ("bash", "-c", 'ulimit -n 240; exec "$@"', "bash")
STRANGERS = 400


@contextlib.contextmanager
def silent(address: str, count: int = STRANGERS) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(count)]


def test_half_open_tls_connections_do_not_block_others(certificates: Path, tmp_path: Path) -> None:
    """They fill the table of descriptors, and no rightful client is accepted until they time out."""
    with served(tmp_path, *tls_options(certificates), before=FEW_FILES, limits={"handshake_s_max": 60.0}) as running:
        context = trusting(certificates)
        with silent(running.address):
            tso = TsoSession(tcp_connector(running.address, tls=context, timeout_s=20.0), request_s=20.0, retry_s=20.0)
            assert tso.begin().start_ts
            with silent(running.address):
                assert tso.begin().start_ts, "one who had its handshake never gives way"
            tso.close()
        assert running.has_logged("without a handshake")


def test_silent_connections_do_not_block_others(tmp_path: Path) -> None:
    with served(tmp_path, before=FEW_FILES, limits={"handshake_s_max": 60.0}) as running:
        with silent(running.address):
            tso = running.session()
            for _ in range(3):
                assert tso.begin().start_ts
            tso.close()


def test_idle_metrics_connections_do_not_block_others(tmp_path: Path) -> None:
    """A health check without an answer ends a process that is well."""
    with served(tmp_path, "--metrics", "127.0.0.1:0", before=FEW_FILES) as running:
        [port] = [line["port"] for line in running.log_lines() if line["message"] == "metrics and health"]
        with silent(f"127.0.0.1:{port}"):
            assert running.page("/health") == "serving\n"
            tso = running.session()
            assert tso.begin().start_ts
            tso.close()


def test_a_listener_that_ran_out_of_descriptors_accepts_again(tmp_path: Path) -> None:
    with served(tmp_path, before=FEW_FILES) as running:
        peers = [running.raw() for _ in range(100)]
        for peer in peers:
            with contextlib.suppress(EOFError, ConnectionError):  # the hundred and twelfth is refused
                peer.greet()
        with silent(running.address):
            pass
        for peer in peers:
            peer.close()
        again: RawPeer = running.raw()
        again.greet()
        again.close()


async def test_a_full_tso_refuses_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_here(monkeypatch) as running:
        running.service._connections_max = 1
        assert (await running.session().begin()).start_ts
        with pytest.raises(Unavailable, match="has 1 connections, and its maximum is 1: close some"):
            await running.session(request_s=1.0).begin()


@pytest.mark.fast
def test_the_address_with_most_unauthenticated_peers_loses_one() -> None:
    newcomers = UnauthenticatedPeers(10)
    peers = [cast(Connection, f"peer {number}") for number in range(6)]
    for number, address in enumerate(("a", "b", "b", "b", "a", "c")):
        newcomers.add(peers[number], address)
    assert newcomers.peer_to_close() == peers[1]
    newcomers.remove(peers[1], "b")
    newcomers.remove(peers[1], "b")
    newcomers.remove(peers[2], "b")
    assert len(newcomers) == 4
    assert newcomers.peer_to_close() == peers[0]
    for peer, address in ((peers[0], "a"), (peers[3], "b"), (peers[4], "a"), (peers[5], "c")):
        newcomers.remove(peer, address)
    assert newcomers.peer_to_close() is None
