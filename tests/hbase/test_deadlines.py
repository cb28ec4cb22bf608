"""Deadlines: a call ends at its timeout whatever other calls do, and a read without progress at its deadline."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from imitated_regions import TABLE, ImitatedRows, failure
from on_loop import answer_of, opened_on_loop, run_on_loop
from test_interrupts import DEADLINE_S, asked, opened, server
from test_interrupts import EchoServer as EchoServer

from certificates import make_certificates
from pyomid.coroutines import Pause, Routine
from pyomid.errors import Misuse, Unavailable
from pyomid.omid.hbase import cluster as client_module
from pyomid.omid.hbase.codec.keyvalues import KeyValue
from pyomid.omid.hbase.loop_client import LoopClient, LoopConnection
from pyomid.omid.hbase.regions import calls as calls_module
from pyomid.omid.hbase.regions import row_reads
from pyomid.omid.hbase.regions.calls import Budget, SentCall, Start, ask_server
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.row_reads import WantedCells, read_rows
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.failures import CallTimedOut, ConnectionLost
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, Reply
from pyomid.omid.hbase.rpc.handshake import SimpleHandshake
from pyomid.omid.hbase.rpc.hbase_pb2 import ScanRequest
from pyomid.tls import trusting
from pyomid.types import KeyRange, ReadBounds
from waiting import until

__all__ = ["server"]

pytestmark = pytest.mark.fast

T = TypeVar("T")
STUCK = b"call stuck"


# ── One call ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_ends_in_time_while_others_are_answered(server: EchoServer) -> None:
    """Its thread reads for all, and there is always something to read."""
    server.unanswered = STUCK
    line = opened(server)
    ended = threading.Event()

    def stuck() -> None:
        with pytest.raises(CallTimedOut):
            line.finish(line.start(Call(CLIENT, "Echo", STUCK), timeout_s=0.3), timeout_s=0.3)
        ended.set()

    waiting = threading.Thread(target=stuck, daemon=True)
    waiting.start()
    for _ in range(int(DEADLINE_S / 0.02)):
        assert asked(line, b"other") == b"call other"
        if ended.wait(0.02):
            break
    assert ended.is_set(), "it waits as long as others are answered"
    assert not line.is_lost
    line.close()


def test_an_asyncio_call_ends_in_time_while_others_are_answered(server: EchoServer) -> None:
    server.unanswered = STUCK

    async def body() -> None:
        line = await opened_on_loop(server.address, SimpleHandshake("tester"))
        waiting = asyncio.create_task(answer_of(line.start(Call(CLIENT, "Echo", STUCK), timeout_s=0.3), 0.3))
        while not waiting.done():
            answer = await answer_of(line.start(Call(CLIENT, "Echo", b"call other"), timeout_s=DEADLINE_S), DEADLINE_S)
            assert isinstance(answer, Reply)
        assert isinstance(waiting.result(), CallTimedOut)
        line.close()

    asyncio.run(asyncio.wait_for(body(), DEADLINE_S))


class TlsEchoServer(EchoServer):
    def __init__(self, certificates: Path) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        super().__init__()

    def _serve(self, opened: socket.socket) -> None:
        super()._serve(self._tls.wrap_socket(opened, server_side=True))


@pytest.mark.parametrize("by_tls", [False, True], ids=["plain", "tls"])
def test_a_server_that_reads_nothing_does_not_block_the_loop(by_tls: bool, tmp_path: Path) -> None:
    """What its socket does not take is sent later, in the order of the calls."""
    server = TlsEchoServer(make_certificates(tmp_path)) if by_tls else EchoServer()
    tls = trusting(str(tmp_path / "ca.pem")) if by_tls else None
    server.answers.clear()  # it waits with its first answer, and reads no further call before

    async def body() -> None:
        line = await opened_on_loop(server.address, SimpleHandshake("tester"), tls)
        texts = [b"call %d" % number for number in range(4)]
        calls = [line.start(Call(CLIENT, "Echo", text, b"x" * 8_000_000), timeout_s=DEADLINE_S) for text in texts]
        await asyncio.sleep(0.1)
        assert server.calls <= 1
        server.answers.set()
        answers = [await answer_of(call, DEADLINE_S) for call in calls]
        assert [bytes(answer.message) for answer in answers if isinstance(answer, Reply)] == texts
        assert server.broken == []
        line.close()

    asyncio.run(asyncio.wait_for(body(), DEADLINE_S))
    server.close()


# ── One connection ───────────────────────────────────────────────────────────────────────────────────────────────


class NoZooKeeper:
    def close(self) -> None:
        pass


class GoneServer:
    """A server whose machine is gone: an attempt to connect gets no answer until `give_up`."""

    address = Address("127.0.0.1", 1)

    def __init__(self) -> None:
        self.attempts = 0
        self.give_up = threading.Event()

    def connect(self, real: Callable[..., T]) -> Callable[..., T]:
        def connected(address: Address, *args: Any, **kwargs: Any) -> T:
            if address != self.address:
                return real(address, *args, **kwargs)
            self.attempts += 1
            assert self.give_up.wait(DEADLINE_S)
            raise ConnectionLost(f"no connection to {address}: timed out")

        return connected


def echoed(server: EchoServer) -> tuple[Address, Call]:
    return server.address, Call(CLIENT, "Echo", b"call me")


def test_threads_share_an_attempt_to_connect_to_a_dead_server(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would wait as many times as long as there are threads, and calls to other servers with them."""
    gone = GoneServer()
    monkeypatch.setattr(client_module, "Connection", gone.connect(client_module.Connection))
    cluster = client_module.Cluster(NoZooKeeper(), handshake=SimpleHandshake("tester"))  # type: ignore[arg-type]
    answers: list[object] = []

    def ask() -> None:
        budget = cluster.budget("echo", DEADLINE_S)
        answers.append(cluster.run(ask_server(gone.address, Call(CLIENT, "Echo", b"x"), budget)))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: gone.attempts == 1 and len(cluster._attempts) == 1, "nobody tries")
    sent = cluster.run(start_calls(echoed(server)))
    assert sent[0].failure is None, "who calls another server does not wait"
    gone.give_up.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(answers) == 8
    assert all(isinstance(answer, ConnectionLost) for answer in answers)
    assert gone.attempts <= 2, "a thread that came late may have tried once more"
    cluster.close()


def test_a_call_to_a_connected_server_does_not_wait_for_another(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = GoneServer()
    monkeypatch.setattr(client_module, "Connection", gone.connect(client_module.Connection))
    cluster = client_module.Cluster(NoZooKeeper(), handshake=SimpleHandshake("tester"))  # type: ignore[arg-type]
    cluster.run(start_calls(echoed(server)))
    both = (gone.address, Call(CLIENT, "Echo", b"x")), echoed(server)
    until(lambda: server.calls == 1, "the first call never came")
    waiting = threading.Thread(target=lambda: cluster.run(start_calls(*both)), daemon=True)
    waiting.start()
    until(lambda: server.calls == 2, "the second call never came")
    assert waiting.is_alive()
    gone.give_up.set()
    waiting.join(DEADLINE_S)
    cluster.close()


def test_operations_of_a_loop_share_an_attempt(server: EchoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, real = GoneServer(), LoopConnection.__init__
    monkeypatch.setattr(
        LoopConnection,
        "__init__",
        lambda self, *args, **kwargs: gone.connect(partial(real, self))(*args, **kwargs),
    )
    cluster = client_module.Cluster(NoZooKeeper(), handshake=SimpleHandshake("tester"))  # type: ignore[arg-type]

    async def body() -> None:
        client = LoopClient(cluster)
        lost = [
            asyncio.create_task(run_on_loop(client, start_calls((gone.address, Call(CLIENT, "Echo", b"x")))))
            for _ in range(8)
        ]
        while not gone.attempts:
            await asyncio.sleep(0.01)
        (healthy,) = await run_on_loop(client, start_calls(echoed(server)))
        assert healthy.failure is None, "who calls another server does not wait"
        gone.give_up.set()
        assert all(isinstance(sent[0].failure, ConnectionLost) for sent in await asyncio.gather(*lost))
        assert gone.attempts == 1
        client.close()

    asyncio.run(asyncio.wait_for(body(), DEADLINE_S))


def test_closing_a_loop_client_does_not_wait_for_connecting(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[LoopConnection] = []
    may_connect, real = threading.Event(), LoopConnection.__init__

    def connect(self: LoopConnection, *args: Any, **kwargs: Any) -> None:
        assert may_connect.wait(DEADLINE_S)
        real(self, *args, **kwargs)
        opened.append(self)

    monkeypatch.setattr(LoopConnection, "__init__", connect)
    cluster = client_module.Cluster(NoZooKeeper(), handshake=SimpleHandshake("tester"))  # type: ignore[arg-type]

    async def body() -> None:
        client = LoopClient(cluster)
        begun = asyncio.create_task(run_on_loop(client, start_calls(echoed(server))))
        while not client._openings:
            await asyncio.sleep(0)
        client.close()
        with pytest.raises(Misuse, match="closed"):
            await begun
        may_connect.set()
        while not (opened and opened[0].is_lost):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(body(), DEADLINE_S))


def test_a_call_that_cannot_be_encoded_leaves_no_entry(server: EchoServer) -> None:
    line = opened(server)
    with pytest.raises(TypeError):
        line.start(Call(CLIENT, "Echo", object()), timeout_s=1.0)  # type: ignore[arg-type]
    assert line._calls == {}
    assert asked(line, b"other") == b"call other"
    line.close()


async def start_calls(*sends: tuple[Address, Call]) -> list[SentCall]:
    return await Start(sends, DEADLINE_S)


# ── Reads of many calls, whose every call has a budget of its own ────────────────────────────────────────────────


class Poisoned(ImitatedRows):
    """Of a row that needs several answers the second one fails. Time passes in pauses, and with each failure."""

    how: Callable[[], Reply | ConnectionLost | CallTimedOut]
    failures_left = 10_000
    failure_s = 0.0
    now_s = 0.0

    def _answer(self, parameter: bytes) -> Reply | ConnectionLost | CallTimedOut:
        assert self.calls < 1_000, "the read goes on for ever"
        if ScanRequest.FromString(parameter).HasField("scanner_id") and self.failures_left:
            self.calls += 1
            self.failures_left -= 1
            self.now_s += self.failure_s
            return self.how()
        return super()._answer(parameter)

    def drive(self, operations: RegionOperations, steps: Routine[T]) -> T:
        return super().drive(operations, self._timed(steps))

    async def _timed(self, steps: Routine[T]) -> T:
        answer: Any = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(request, Pause):
                self.now_s += request.pause_s
            answer = await request


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Poisoned:
    """Three rows of ten answers each."""
    names = (b"a", b"b", b"c")
    made = Poisoned(
        {}, cells={row: [KeyValue(row, b"f", b"q%02d" % n, 50, bytes(100)) for n in range(20)] for row in names}
    )
    monkeypatch.setattr(calls_module, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    monkeypatch.setattr(row_reads, "SCAN_BYTES", 200)
    return made


def read_poisoned(world: Poisoned) -> int:
    operations = world.operations()
    wanted = WantedCells(TABLE, (), ReadBounds())
    steps = read_rows(operations, wanted, [b"a", b"b", b"c"], lambda: Budget("reading three rows", 60.0))
    return sum(len(cells) for cells in world.drive(operations, steps))


def scan(world: Poisoned, *, is_fresh: bool) -> int:
    spec = ScanSpec(TABLE, KeyRange(), max_versions=9, bytes_per_call=200, is_fresh=is_fresh)
    return sum(world.scan(world.operations(), spec).values())


READS: dict[str, Callable[[Poisoned], int]] = {
    "rows": read_poisoned,
    "scan": lambda world: scan(world, is_fresh=False),
    "fresh scan": lambda world: scan(world, is_fresh=True),
}
FAILURES: dict[str, Callable[[], Reply | ConnectionLost | CallTimedOut]] = {
    "lost": lambda: ConnectionLost("the server ended"),
    "late": lambda: CallTimedOut("late"),
    "scanner": lambda: failure("UnknownScannerException"),
    "busy": lambda: failure("RegionTooBusyException"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("how", FAILURES)
def test_a_read_that_always_fails_at_one_position_ends(rows: Poisoned, read: str, how: str) -> None:
    """The first answer of a row comes each time, and the second one never: it ends its server, say."""
    rows.how = FAILURES[how]
    with pytest.raises(Unavailable, match=r"within 60 s|after 60 s"):
        READS[read](rows)
    assert rows.calls < 500, "it waits before it asks again"


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("how", FAILURES)
def test_a_read_that_makes_progress_gets_a_new_deadline(rows: Poisoned, read: str, how: str) -> None:
    """Each row fails twice, far apart, and then comes: all of it takes longer than one deadline."""
    rows.how, rows.failure_s = FAILURES[how], 25.0
    served = ImitatedRows._page
    seen: set[bytes] = set()

    def page(self: ImitatedRows, number: int, name: bytes, left: list[KeyValue], opened: ScanRequest) -> Reply:
        if left and left[0].row not in seen and left[0].qualifier == b"q00":
            seen.add(left[0].row)
            rows.failures_left = 2
        return served(self, number, name, left, opened)

    rows.failures_left = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ImitatedRows, "_page", page)
        assert READS[read](rows) == 60
    assert rows.now_s > 100.0
