"""A handshake that is a dialogue goes through both clients unchanged; what follows it belongs to the calls."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pyomid.storage.hbase.rpc.aio_connection import AsyncConnection
from pyomid.storage.hbase.rpc.connection import Connection
from pyomid.storage.hbase.rpc.failures import ConnectionLost
from pyomid.storage.hbase.rpc.frames import CLIENT, Address, Call, Reply, preamble, varint
from pyomid.storage.hbase.rpc.handshake import HandshakeSteps, SimpleHandshake
from pyomid.storage.hbase.rpc.hbase_pb2 import ResponseHeader


class Dialogue:
    """Two rounds: who, challenge, answer, word of welcome."""

    def steps(self, service: str, host: str) -> HandshakeSteps:
        yield b"WHO:" + service.encode() + b"\n"
        challenge = yield 16
        yield bytes(reversed(challenge))
        welcome = yield 2
        if welcome != b"ok":
            raise ConnectionLost("the server does not want us")
        return None


class Server:
    """Plays the other side once, then answers one call with call id 1. `said`: what it was told."""

    def __init__(self, welcome: bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listener.getsockname()[1])
        self.said = b""
        self._welcome = welcome
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        peer, _ = self.listener.accept()
        with peer:
            file = peer.makefile("rb")
            self.said += file.readline()
            peer.sendall(b"0123456789")
            peer.sendall(b"abcdef")
            self.said += file.read(16)
            header = ResponseHeader(call_id=1).SerializeToString()
            reply = varint(len(header)) + header + varint(3) + b"yes"
            # The first reply comes in one packet with the last word of the handshake.
            peer.sendall(self._welcome + len(reply).to_bytes(4, "big") + reply)
            with suppress(ConnectionResetError):  # a client that did not want our reply
                file.read()


@pytest.fixture(params=[b"ok", b"no"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(request.param)
    yield made
    made.listener.close()
    made.thread.join(30.0)


CALL = Call(CLIENT, "Get", b"")


@pytest.mark.parametrize("server", [b"ok"], indirect=True)
def test_a_dialogue_comes_before_the_first_call(server: Server) -> None:
    connection = Connection(server.address, CLIENT, Dialogue(), connect_timeout_s=30.0)
    reply = connection.finish(connection.start(CALL, timeout_s=30.0), timeout_s=30.0)
    connection.close()
    assert bytes(reply.message) == b"yes"
    assert server.said == b"WHO:ClientService\nfedcba9876543210"


@pytest.mark.parametrize("server", [b"ok"], indirect=True)
def test_the_same_under_asyncio(server: Server) -> None:
    async def ask() -> bytes:
        connection = await AsyncConnection.open(server.address, CLIENT, Dialogue())
        reply = await connection.start(CALL, timeout_s=30.0).wait(30.0)
        connection.close()
        assert isinstance(reply, Reply)
        return bytes(reply.message)

    assert asyncio.run(ask()) == b"yes"
    assert server.said == b"WHO:ClientService\nfedcba9876543210"


@pytest.mark.parametrize("server", [b"no"], indirect=True)
def test_whoever_is_refused_hears_why(server: Server) -> None:
    with pytest.raises(ConnectionLost, match="does not want us"):
        Connection(server.address, CLIENT, Dialogue(), connect_timeout_s=30.0)


def test_simple_authentication_waits_for_nothing() -> None:
    assert list(SimpleHandshake("joe").steps(CLIENT, "h1")) == [preamble(CLIENT, "joe")]
