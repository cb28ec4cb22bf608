"""Ctrl-C at each place in turn: no other thread waits for ever, no partial frame is left, and the next call works."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from on_loop import answer_of, opened_on_loop

from interrupts import Interrupter, every_place
from pyomid.errors import Unavailable
from pyomid.omid.hbase import cluster, group_commit, loop_client
from pyomid.omid.hbase.group_commit import GroupCommit
from pyomid.omid.hbase.regions.calls import ask_server
from pyomid.omid.hbase.rpc import connection
from pyomid.omid.hbase.rpc.connection import Connection
from pyomid.omid.hbase.rpc.failures import ConnectionLost
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, delimited, read_varint
from pyomid.omid.hbase.rpc.handshake import SimpleHandshake
from pyomid.omid.hbase.rpc.hbase_pb2 import RequestHeader, ResponseHeader
from pyomid.omid.hbase.rpc.requests import RowMutation

pytestmark = pytest.mark.fast

DEADLINE_S = 20.0
LARGE = b"x" * 300_000
"""A cell block that leaves apart from its call's head."""


class EchoServer:
    """Answers each call by its parameter, and counts its cells, as long as what it gets are whole calls."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.broken: list[str] = []
        self.calls = 0
        self.unanswered = b""
        """A parameter whose call gets no answer, and holds no other one back."""
        self.together = 1
        """So many answers leave at once."""
        self.answers = threading.Event()
        self.answers.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                opened, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(opened,), daemon=True).start()

    def _serve(self, opened: socket.socket) -> None:
        with suppress(OSError, struct.error):  # a client that is gone
            self._answer(opened)
        opened.close()

    def _answer(self, opened: socket.socket) -> None:
        stream = opened.makefile("rb")
        stream.read(6)
        stream.read(struct.unpack(">I", stream.read(4))[0])
        held: list[bytes] = []
        while len(size := stream.read(4)) == 4:
            frame = stream.read(struct.unpack(">I", size)[0])
            if len(frame) < struct.unpack(">I", size)[0]:
                break  # closed in the middle: so the half call was nobody else's rest
            try:
                length, at = read_varint(frame, 0)
                header = RequestHeader.FromString(frame[at : at + length])
                length, begin = read_varint(frame, at + length)
                parameter, cells = frame[begin : begin + length], frame[begin + length :]
                assert header.method_name == "Echo"
                assert set(cells) <= {ord("x")}
                assert parameter.startswith(b"call ")
            except Exception as error:  # whatever a half call looks like
                self.broken.append(repr(error))
                break
            self.calls += 1
            if parameter == self.unanswered:
                continue
            encoded = delimited(ResponseHeader(call_id=header.call_id).SerializeToString()) + delimited(parameter)
            held.append(struct.pack(">I", len(encoded)) + encoded)
            if len(held) == self.together:
                self.answers.wait(DEADLINE_S)
                opened.sendall(b"".join(held))
                held.clear()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    made = EchoServer()
    yield made
    made.close()


def opened(server: EchoServer) -> Connection:
    return Connection(server.address, CLIENT, SimpleHandshake("tester"), connect_timeout_s=DEADLINE_S)


def asked(line: Connection, name: bytes, cells: bytes = b"") -> bytes:
    pending = line.start(Call(CLIENT, "Echo", b"call " + name, cells), timeout_s=DEADLINE_S)
    return bytes(line.finish(pending, timeout_s=DEADLINE_S).message)


def check_usable(line: Connection, server: EchoServer) -> None:
    assert not line._state.locked()
    assert not line._sending.locked()
    assert line._reader is None
    if line.is_lost:
        line = opened(server)
    assert asked(line, b"next", LARGE) == b"call next"
    assert server.broken == []
    line.close()


class Asker(threading.Thread):
    """Asks once on a shared connection."""

    def __init__(self, line: Connection) -> None:
        super().__init__(daemon=True)
        self._line = line
        self.outcome: object = None

    def run(self) -> None:
        try:
            self.outcome = asked(self._line, b"other")
        except ConnectionLost as error:
            self.outcome = error


@pytest.mark.parametrize("cells", [b"", LARGE])
def test_an_interrupted_call_leaves_no_partial_frame(server: EchoServer, cells: bytes) -> None:
    """The rest of it would be taken from the next call of whichever thread comes."""

    def scene(interrupter: Interrupter) -> None:
        line = opened(server)
        answer, error = interrupter.outcome(lambda: asked(line, b"mine", cells))
        assert error is interrupter.error or answer == b"call mine"
        check_usable(line, server)

    assert every_place((connection,), KeyboardInterrupt, scene) > 30


def test_threads_beside_an_interrupted_reader_get_their_replies(server: EchoServer) -> None:
    def scene(interrupter: Interrupter) -> None:
        line = opened(server)
        server.answers.clear()
        server.together = 2
        first = line.start(Call(CLIENT, "Echo", b"call mine"), timeout_s=DEADLINE_S)
        other = Asker(line)
        reads = threading.Timer(0.0, lambda: (other.start(), _until(lambda: _waits(line, other)), server.answers.set()))
        reads.start()
        interrupter.outcome(lambda: line.finish(first, timeout_s=DEADLINE_S))
        reads.join(DEADLINE_S)
        other.join(DEADLINE_S / 2)
        assert not other.is_alive(), "nobody reads for it"
        assert other.outcome == b"call other" or isinstance(other.outcome, ConnectionLost)
        server.together = 1
        check_usable(line, server)

    assert every_place((connection,), KeyboardInterrupt, scene) > 10


def _waits(line: Connection, other: Asker) -> bool:
    return (
        other.outcome is not None
        or any(each.waiting for each in list(line._calls.values()))
        or (line._reader is not None and len(line._calls) < 2)
    )


def _until(holds: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(200):
        if holds():
            return
        pause.wait(0.005)


def test_an_interrupted_wait_keeps_the_connection_open(server: EchoServer) -> None:
    """Other threads' calls are on the same line, and writes among them."""
    line = opened(server)
    server.answers.clear()
    other = Asker(line)
    other.start()
    _until(lambda: line._reader is not None)
    pending = line.start(Call(CLIENT, "Echo", b"call mine"), timeout_s=DEADLINE_S)
    waits = line._wait_woken

    def interrupted(*_: object) -> None:
        line._wait_woken = waits  # type: ignore[method-assign]
        raise KeyboardInterrupt

    line._wait_woken = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        line.finish(pending, timeout_s=DEADLINE_S)
    server.answers.set()
    other.join(DEADLINE_S)
    assert other.outcome == b"call other"
    assert not line.is_lost
    check_usable(line, server)


def test_an_interrupted_loop_call_leaves_no_partial_frame(server: EchoServer) -> None:
    async def body(interrupter: Interrupter) -> None:
        line = await opened_on_loop(server.address, SimpleHandshake("tester"))
        interrupter.outcome(lambda: line.start(Call(CLIENT, "Echo", b"call mine", LARGE), timeout_s=DEADLINE_S))
        if line.is_lost:
            line = await opened_on_loop(server.address, SimpleHandshake("tester"))
        answer = await answer_of(
            line.start(Call(CLIENT, "Echo", b"call next", LARGE), timeout_s=DEADLINE_S), DEADLINE_S
        )
        assert bytes(answer.message) == b"call next"  # type: ignore[union-attr]
        assert server.broken == []
        line.close()

    modules = loop_client, connection, asyncio.selector_events
    assert every_place(modules, KeyboardInterrupt, lambda interrupter: asyncio.run(body(interrupter))) > 10


def test_writers_beside_an_interrupted_leader_finish() -> None:
    """Theirs went with its call, or it had the turn to send for them."""

    def scene(interrupter: Interrupter) -> None:
        came, answers = threading.Semaphore(0), threading.Semaphore(0)

        def send(requests: Any) -> Any:
            came.release()
            assert answers.acquire(timeout=DEADLINE_S)
            return [True for _ in requests]

        gatherer = GroupCommit(send)
        outcomes: list[object] = []

        def write(name: bytes) -> None:
            try:
                outcomes.append(list(gatherer.write([RowMutation(name, ())])))
            except Unavailable as error:
                outcomes.append(error)

        first = threading.Thread(target=write, args=(b"first",), daemon=True)
        first.start()
        assert came.acquire(timeout=DEADLINE_S)
        behind = threading.Thread(target=write, args=(b"behind",), daemon=True)

        def let() -> None:
            _until(lambda: len(gatherer._waiting) >= 1 or interrupter.hit)
            behind.start()
            _until(lambda: len(gatherer._waiting) >= 2 or interrupter.hit)
            for _ in range(3):
                answers.release()

        lets = threading.Thread(target=let, daemon=True)
        lets.start()
        interrupter.outcome(lambda: gatherer.write([RowMutation(b"mine", ())]))
        for each in (lets, first, behind):
            each.join(DEADLINE_S)
            assert not each.is_alive(), "it waits for ever"
        assert len(outcomes) == 2
        assert not gatherer._state.locked()
        answers.release()
        assert gatherer.write([RowMutation(b"next", ())]) == [True]

    assert every_place((group_commit,), KeyboardInterrupt, scene) > 20


def test_a_cluster_is_usable_after_an_interrupt(server: EchoServer) -> None:
    """While it opens a connection, sends and waits: the next caller finds no lock held, and a whole line."""

    class NoZooKeeper:
        def close(self) -> None:
            pass

    def once(client: cluster.Cluster, name: bytes) -> object:
        budget = client.budget("echo", DEADLINE_S)
        return client.run(ask_server(server.address, Call(CLIENT, "Echo", b"call " + name, LARGE), budget))

    def scene(interrupter: Interrupter) -> None:
        client = cluster.Cluster(NoZooKeeper(), handshake=SimpleHandshake("tester"))  # type: ignore[arg-type]
        interrupter.outcome(lambda: once(client, b"mine"))
        assert not any(attempt.lock.locked() for attempt in client._attempts.values())
        answer = once(client, b"next")
        while isinstance(answer, ConnectionLost):
            answer = once(client, b"next")
        assert bytes(answer.message) == b"call next"  # type: ignore[attr-defined]
        assert server.broken == []
        client.close()

    assert every_place((cluster, connection), KeyboardInterrupt, scene) > 50
