"""One peer that sends a thousand requests at once has a turn like everybody else (decision 0040). By counts, not by
times: how many requests one step of the machine is given, how much of a peer is held, who is answered when."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle.instructions import Event, Instruction, RequestCame
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.tso import metrics
from pyomid.omid.tso.peer import QUANTUM, SLOW_OUTSTANDING_MAX, Connection
from pyomid.omid.tso.service import RECEIVE_BYTES, TURNS_AT_ONCE, TsoService
from pyomid.omid.tso.startup import Watched, take_over_and_build
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.omid.wire.codec import Handshake, ReceivedAnswer, decode_answer, encode_handshake, encode_request
from pyomid.omid.wire.frames import FrameCutter
from pyomid.omid.wire.messages import AskStatus, Begin, Fence, Request, Seal
from pyomid.types import CommitRequest

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]

UVLOOP = pytest.mark.parametrize("on_loop", ["uvloop"], indirect=True)
SETTINGS = TsoSettings(conflict_map_entries=28 * 64)


class Peer:
    """Says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._cutter = FrameCutter(1 << 30)
        self._answers: list[ReceivedAnswer] = []

    async def send(self, *requests: Request) -> None:
        self.writer.write(b"".join(encode_request(request, request_id=1) for request in requests))
        await self.writer.drain()

    async def answer(self) -> ReceivedAnswer:
        while not self._answers:
            chunk = await asyncio.wait_for(self._reader.read(1 << 16), 60)
            assert chunk, "closed by the TSO"
            self._answers += [decode_answer(payload) for payload in self._cutter.feed(chunk)]
        return self._answers.pop(0)

    async def read_all(self) -> None:
        while await self._reader.read(1 << 20):
            pass


class Watch:
    """A service in this loop, and what its machine is given."""

    def __init__(self, *, kernel: bool) -> None:
        self.table = MemoryCommitTable()
        stores = TsoStores(self.table, MemoryLeaderState(), MemoryCatalog())
        self.machine = take_over_and_build(stores, SETTINGS, BucketMap(SETTINGS.conflict_map_entries))
        self.service = TsoService(self.machine, stores, clock=time.monotonic, die=lambda reason: None)
        if kernel:
            self.service.switch_to_native(wait_for_memory=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.came: list[object] = []
        """The peer of each request, in order."""
        self.turns: list[int] = []
        """How many requests came between two looks of the loop at its sockets."""
        self._watch_machine()

    def _watch_machine(self) -> None:
        handle = self.machine.handle

        def watched(events: Sequence[Event], now_s: float, wall_ns: int = 0) -> list[Instruction]:
            self.came += [event.peer for event in events if isinstance(event, RequestCame)]
            return handle(events, now_s, wall_ns)

        self.machine.handle = watched  # type: ignore[assignment,method-assign]
        turn = self.service._take_turns

        def counted() -> None:
            before = len(self.came)
            turn()
            self.turns.append(len(self.came) - before)

        self.service._take_turns = counted  # type: ignore[method-assign]

    async def peer(self) -> Peer:
        made = Peer(*await asyncio.open_connection(*self.listener.getsockname()))
        made.writer.write(encode_handshake(Handshake(1)))
        await made.answer()
        return made


@asynccontextmanager
async def watched(*, kernel: bool) -> AsyncIterator[Watch]:
    watch = Watch(kernel=kernel)
    running = asyncio.create_task(watch.service.run([(watch.listener, None)]))
    try:
        yield watch
    finally:
        watch.service.stop()
        await running
        await watch.service.drain()


BURSTS: dict[str, Request] = {
    "status": AskStatus(),
    "fences": Fence(1),
    "retries": CommitRequest(50, (1,), is_retry=True),
    "seals": Seal((50,)),
}


@pytest.mark.parametrize("kernel", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("kind", BURSTS)
async def test_a_burst_is_processed_in_turns(kind: str, kernel: bool) -> None:
    """Else everybody waits until the last request of it was done."""
    async with watched(kernel=kernel) as watch:
        many, one = await watch.peer(), await watch.peer()
        await many.send(*[BURSTS[kind]] * 2000)
        await many.answer()
        await one.send(AskStatus())
        await one.answer()
        [lone] = [peer for peer, count in Counter(watch.came).items() if count == 1]
        assert watch.came.index(lone) < 1000, "it waited for those that had come before"
        for _ in range(1999):
            await many.answer()
        assert max(watch.turns) <= QUANTUM * TURNS_AT_ONCE


@pytest.mark.parametrize("kernel", [True, False], ids=["compiled", "plain"])
async def test_requests_without_an_answer_are_bounded_per_peer(kernel: bool) -> None:
    """Their answers cost as much as they, and all come in one step, when the flush that they wait for ends."""
    async with watched(kernel=kernel) as watch:
        many, one = await watch.peer(), await watch.peer()
        held: list[Any] = []
        watch.table.submit = lambda *flush: held.append(flush)  # type: ignore[method-assign]
        await many.send(Fence(1), *[Fence(1)] * 3000)
        await one.send(Begin())
        await one.answer()
        while len(watch.came) < SLOW_OUTSTANDING_MAX:
            await asyncio.sleep(0)
        for _ in range(100):
            await one.send(AskStatus())
            await one.answer()
        asked = Counter(watch.came).most_common()
        assert asked[0][1] <= SLOW_OUTSTANDING_MAX + 1
        assert all(connection.held_bytes <= RECEIVE_BYTES for connection in watch.service._connections)
        del watch.table.submit  # type: ignore[method-assign]
        for flush in held:
            watch.table.submit(*flush)
        for _ in range(3001):
            await many.answer()


@UVLOOP
async def test_a_peer_gets_one_chunk_before_others_are_read(on_loop: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else libuv receives from one socket 32 times in a row, which is a quarter of a second of begins."""
    looks, taken = [0], Counter[int]()
    took = Connection.buffer_updated

    def counted(connection: Connection, nbytes: int) -> None:
        taken[looks[0]] += nbytes
        took(connection, nbytes)

    monkeypatch.setattr(Connection, "buffer_updated", counted)

    def look() -> None:
        looks[0] += 1
        asyncio.get_running_loop().call_soon(look)

    async with watched(kernel=True) as watch:
        many = await watch.peer()
        look()
        begin = encode_request(Begin(), request_id=1)
        count = 8 * RECEIVE_BYTES // len(begin)
        many.writer.write(begin * count)
        reading = asyncio.create_task(many.read_all())
        while watch.machine.step.counters["begins"] < count:
            await asyncio.sleep(0)
        reading.cancel()
        assert max(taken.values()) <= RECEIVE_BYTES


async def test_a_peer_skips_turns_after_an_expensive_request() -> None:
    """Else its next one follows at once, and the others have every second moment at best."""
    async with watched(kernel=True) as watch:
        many = await watch.peer()
        await many.send(CommitRequest(50, tuple(range(50_000))))
        while len(watch.came) < 1:
            await asyncio.sleep(0)
        [connection] = watch.service._connections
        assert connection.owes_work
        await many.send(AskStatus())
        before = len(watch.turns)
        for _ in range(2):
            await many.answer()
        assert len(watch.turns) - before >= 4
        assert not connection.owes_work


async def test_unread_bytes_of_a_peer_that_left_are_dropped() -> None:
    """Nobody waits for its answers any more."""
    async with watched(kernel=True) as watch:
        many, one = await watch.peer(), await watch.peer()
        await many.send(*[Seal((50,))] * 5000)
        await many.answer()
        many.writer.transport.abort()
        while watch.service.connections > 1:
            await one.send(AskStatus())
            await one.answer()
        assert len(watch.machine.state.peer_requests) == 0
        before = len(watch.came)
        for _ in range(20):
            await one.send(AskStatus())
            await one.answer()
        assert len(watch.came) - before == 20
        assert before < 5000


@UVLOOP
async def test_metrics_requests_are_answered_one_at_a_time(on_loop: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else fifty of them hold up every client as long as all their answers take to write; and one that gave way to
    a newer one was answered all the same, which put a traceback into the log each time."""
    looks, written, complaints = [0], Counter[int](), list[dict[str, Any]]()
    respond = metrics._response

    def counted(*arguments: Any) -> bytes:
        written[looks[0]] += 1
        return respond(*arguments)

    monkeypatch.setattr(metrics, "_response", counted)
    monkeypatch.setattr(metrics, "PAUSE_S", 0.0)

    async def ask(address: tuple[str, int], connected: asyncio.Barrier) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        await connected.wait()
        try:
            writer.write(b"\r\n")
            return await reader.read()
        except ConnectionError:
            return b""  # it gave way to a newer one

    def look() -> None:
        looks[0] += 1
        asyncio.get_running_loop().call_soon(look)

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with watched(kernel=False) as watch:
        told = Watched()
        told.service = watch.service
        server = await metrics.serve_metrics(told, "127.0.0.1:0")
        look()
        address, connected = server.sockets[0].getsockname(), asyncio.Barrier(100)
        answers = await asyncio.gather(*[ask(address, connected) for _ in range(100)])
        server.close()
        assert sum(b"pyomid_tso_leads 1.0" in answer for answer in answers) >= metrics.CONNECTIONS_MAX
        assert max(written.values()) == 1
        assert not complaints
