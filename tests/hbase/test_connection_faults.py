"""Faults of the network and of other threads amid a call: no frame is completed by another's bytes, no thread gets an
error that is not the connection's, and a connection through which nothing passes is replaced."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from on_loop import opened_on_loop, run_on_loop
from test_deadlines import NoZooKeeper, TlsEchoServer
from test_interrupts import DEADLINE_S, EchoServer, asked

from certificates import make_certificates
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.loop_client import LoopClient
from pyomid.omid.hbase.regions.calls import ask_server
from pyomid.omid.hbase.rpc import connection
from pyomid.omid.hbase.rpc.connection import Connection
from pyomid.omid.hbase.rpc.failures import CallTimedOut, ConnectionLost
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, Reply
from pyomid.omid.hbase.rpc.handshake import SimpleHandshake
from pyomid.tls import TlsSocket, trusting

pytestmark = pytest.mark.fast

HUGE = b"x" * 30_000_000
"""More than the buffers of two sockets hold."""


class StalledServer:
    """Reads nothing until `goes_on`, and then all. `ended`: the stream has ended, or the awaited bytes have come."""

    def __init__(self, awaited: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._awaited = awaited
        self.goes_on, self.ended = threading.Event(), threading.Event()
        self.has_come = False
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.goes_on.set()
        self._listener.close()

    def _serve(self) -> None:
        accepted, _ = self._listener.accept()
        assert self.goes_on.wait(DEADLINE_S)
        tail = b""
        with suppress(OSError), accepted:
            while not self.has_come and (data := accepted.recv(1 << 20)):
                self.has_come = self._awaited in tail + data
                tail = data[-len(self._awaited) :]
        self.ended.set()


def limit_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send ends soon without progress, and TCP itself never ends the connection, as on systems without this option:
    what was sent until then still arrives."""
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    monkeypatch.setattr(connection, "_SEND_S_MAX", 0.2)


def test_nobody_completes_the_frame_that_another_thread_could_not_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would take the second call's bytes for the rest of the first call's cells, and store them."""
    limit_sends(monkeypatch)
    server = StalledServer(awaited=b"call other")
    line = Connection(server.address, CLIENT, SimpleHandshake("tester"), connect_timeout_s=DEADLINE_S)
    outcomes: list[object] = []

    def ask(name: bytes, cells: bytes) -> None:
        try:
            outcomes.append(asked(line, name, cells))
        except ConnectionLost as error:
            outcomes.append(error)

    other = threading.Thread(target=ask, args=(b"other", b""), daemon=True)

    def probed(*_: object) -> None:
        """While the reason is sought, the server reads on and another thread makes a call."""
        other.start()
        server.goes_on.set()
        server.ended.wait(1.0)

    monkeypatch.setattr(connection, "probe", probed)
    ask(b"first", HUGE)
    other.join(DEADLINE_S)
    assert server.ended.wait(DEADLINE_S)
    assert not server.has_come
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 2
    server.close()


def test_a_frame_torn_by_a_timeout_closes_the_connection_if_the_probe_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_sends(monkeypatch)
    server = StalledServer(awaited=b"call other")
    line = Connection(server.address, CLIENT, SimpleHandshake("tester"), connect_timeout_s=DEADLINE_S)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "probe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked(line, b"first", HUGE)
    assert line.is_lost
    server.close()


def test_a_tls_connection_that_is_closed_amid_a_send_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads closes it when the server ends. The sender gets the connection's error, no other."""
    server = TlsEchoServer(make_certificates(tmp_path))
    server.answers.clear()
    tls = trusting(str(tmp_path / "ca.pem"))
    line = Connection(server.address, CLIENT, SimpleHandshake("tester"), connect_timeout_s=DEADLINE_S, tls=tls)
    send = TlsSocket.send

    def closes_if_full(self: TlsSocket, data: Any) -> int:
        try:
            return send(self, data)
        except BlockingIOError:
            line.close()
            raise

    monkeypatch.setattr(TlsSocket, "send", closes_if_full)
    line.start(Call(CLIENT, "Echo", b"call first"), timeout_s=DEADLINE_S)  # the server waits with its answer
    with pytest.raises(ConnectionLost, match="closed"):
        line.start(Call(CLIENT, "Echo", b"call second", HUGE), timeout_s=DEADLINE_S)
    server.close()


def test_a_tls_socket_is_not_closed_under_the_hands_of_a_sender() -> None:
    """OpenSSL keeps the descriptor's number, which the next socket or file of the process may have."""
    inside, goes_on, order = threading.Event(), threading.Event(), list[str]()

    class Ssl:
        family = socket.AF_INET

        def gettimeout(self) -> float:
            return 1.0

        def setblocking(self, _: bool) -> None:
            pass

        def send(self, data: bytes) -> int:
            inside.set()
            goes_on.wait(0.2)
            order.append("sent")
            return len(data)

        def close(self) -> None:
            order.append("closed")
            goes_on.set()

    shared = TlsSocket(Ssl())  # type: ignore[arg-type]
    sender = threading.Thread(target=shared.send, args=(b"x",), daemon=True)
    sender.start()
    assert inside.wait(DEADLINE_S)
    shared.close()
    sender.join(DEADLINE_S)
    assert order == ["sent", "closed"]


class BlackHoleServer(EchoServer):
    """After `swallow`, all packets of the existing connections are dropped, as by a firewall that forgot them. New
    connections are served."""

    def __init__(self) -> None:
        self._accepted: list[socket.socket] = []
        super().__init__()

    def _serve(self, opened: socket.socket) -> None:
        self._accepted.append(opened)
        super()._serve(opened)

    def swallow(self) -> None:
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
        program = struct.pack("HP", 1, ctypes.addressof(drop_all))
        for each in self._accepted:
            each.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


@pytest.mark.parametrize("on_loop", [False, True], ids=["threads", "loop"])
def test_a_connection_through_which_nothing_passes_is_replaced(monkeypatch: pytest.MonkeyPatch, on_loop: bool) -> None:
    monkeypatch.setattr(connection, "_SEND_S_MAX", 0.5)
    server = BlackHoleServer()
    cluster = Cluster(NoZooKeeper(), handshake=SimpleHandshake("tester"), call_s_max=0.3)  # type: ignore[arg-type]

    async def body() -> None:
        client = LoopClient(cluster)
        run: Any = partial(run_on_loop, client) if on_loop else partial(asyncio.to_thread, cluster.run)

        async def ask() -> object:
            budget = cluster.budget("echo", DEADLINE_S)
            try:
                return await run(ask_server(server.address, Call(CLIENT, "Echo", b"call me"), budget))
            except (CallTimedOut, ConnectionLost) as failure:
                return failure

        assert isinstance(await ask(), Reply)
        server.swallow()
        assert not isinstance(await ask(), Reply)
        while not isinstance(await ask(), Reply):
            pass
        client.close()

    asyncio.run(asyncio.wait_for(body(), DEADLINE_S))
    cluster.close()
    server.close()


def test_an_asyncio_call_that_cannot_be_sent_names_the_server() -> None:
    server = EchoServer()

    async def body() -> None:
        line = await opened_on_loop(server.address, SimpleHandshake("tester"))
        line._socket.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionLost, match=f"connection to {server.address} lost while sending"):
            line.start(Call(CLIENT, "Echo", b"call me"), timeout_s=DEADLINE_S)

    asyncio.run(asyncio.wait_for(body(), DEADLINE_S))
    server.close()
