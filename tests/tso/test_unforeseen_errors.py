"""An error that nobody foresaw, in the TSO (T11). About one peer's bytes: that peer is cut off, nobody else notices.
Anywhere else nobody knows the state behind it: the process ends, and answers nothing more."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served_here import SETTINGS, Served, limit_store_threads, served, transact
from service_process import cell

from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle import commits
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.omid.oracle.native.memory import populate
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.tso import peer
from pyomid.omid.tso.peer import Connection
from pyomid.omid.tso.service import TsoService
from pyomid.omid.tso.startup import take_over_and_build
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.omid.wire.codec import EXTENSIONS_VERSION, Handshake, encode_handshake, encode_request
from pyomid.omid.wire.messages import Begin, Fence, Seal, SealReply
from pyomid.ports import boot_clock
from pyomid.types import CommitRequest

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]

TABLE_OF_THE_ERROR = 13
BOTH_LOOPS = pytest.mark.usefixtures("on_loop")


def once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception) -> Callable[[], None]:
    """From the call of the result on, the next call of the method raises."""
    original = getattr(owner, name)
    armed: list[Exception] = []

    def instead(*arguments: Any, **named: Any) -> Any:
        if armed:
            raise armed.pop()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, instead)
    return lambda: armed.append(error)


def test_t11_an_error_of_the_machine_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = TsoStores(MemoryCommitTable(), MemoryLeaderState(), MemoryCatalog())
    machine = take_over_and_build(stores, SETTINGS, BucketMap(SETTINGS.conflict_map_entries))
    deaths: list[str] = []
    service = TsoService(machine, stores, clock=boot_clock, die=deaths.append)
    once(monkeypatch, TsoMachine, "_notice_time", MemoryError())()
    service.feed([])
    assert deaths == ["MemoryError"]
    assert machine.dead


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (TsoMachine, "_dispatch"),
        (TsoMachine, "_start_what_is_due"),
        (commits, "_end_flush"),
        (CompiledOracle, "decide"),
        (CompiledOracle, "_prepare"),
        (Connection, "send"),
        (Connection, "take_turn"),
        (TsoService, "_ended"),
        (TsoService, "_cut_off_slow_peers"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_t11_an_unexpected_error_ends_the_tso(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """It neither lives on without the flush that got lost, nor calls itself healthy."""
    fail = once(monkeypatch, owner, name, MemoryError())
    async with served(monkeypatch) as each:
        one, two = each.session(request_s=5), each.session(request_s=5)
        await asyncio.gather(transact(one, 3), transact(two, 3))
        starts = [(await one.begin()).start_ts for _ in range(300)]
        fail()
        working = [
            asyncio.create_task(one.ask(Seal(tuple(starts)), SealReply)),
            *(asyncio.create_task(two.ask(Seal((start_ts,)), SealReply)) for start_ts in starts[:100]),
            asyncio.create_task(transact(two, 100)),
        ]
        await each.until_dead()
        assert each.deaths[0] == "MemoryError"
        assert not each.service.is_serving
        assert not each.service.machine.may_decide_fast
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


@BOTH_LOOPS
async def test_t11_an_unexpected_error_in_a_peers_bytes_closes_only_that_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off. The answer of another peer whose request the same step read leaves, though no other step comes."""
    decode = peer.decode_request

    def decode_request(payload: bytes) -> Any:
        incoming = decode(payload)
        if incoming.body == Fence(TABLE_OF_THE_ERROR):
            raise ZeroDivisionError
        return incoming

    monkeypatch.setattr(peer, "decode_request", decode_request)
    async with served(monkeypatch) as each:
        other, hit = [await greeted(each) for _ in range(2)]
        other.send(encode_request(Begin(), request_id=1))
        hit.send(encode_request(Fence(TABLE_OF_THE_ERROR), request_id=1))
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(other, 1 << 16)
        assert await loop.sock_recv(hit, 1 << 16) == b""
        await transact(each.session(), 3)
        assert not each.deaths
        assert each.service.is_serving
        other.close()
        hit.close()


async def greeted(each: Served) -> socket.socket:
    """A connection after its handshake."""
    sock = socket.create_connection(each.listener.getsockname())
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, encode_handshake(Handshake(EXTENSIONS_VERSION)))
    await loop.sock_recv(sock, 1 << 16)
    return sock


@BOTH_LOOPS
async def test_native_code_serves_without_a_thread_for_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread._target is populate:  # type: ignore[attr-defined]
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    async with served(monkeypatch) as each:
        await transact(each.session(), 3)
        assert each.service.chunk_oracle is not None


@BOTH_LOOPS
async def test_store_calls_without_a_thread_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind such a call in the list of a step is performed all the same: a flush, for example."""
    lift = limit_store_threads(monkeypatch, 1)
    async with served(monkeypatch) as each:
        one, two = each.session(), each.session()
        await asyncio.gather(transact(one, 3), transact(two, 3))
        starts = [(await one.begin()).start_ts for _ in range(3)]
        sealing = [asyncio.create_task(one.ask(Seal((start_ts,)), SealReply)) for start_ts in starts[:2]]
        committing = asyncio.create_task(one.commit(CommitRequest(starts[2], (cell(starts[2]),))))
        assert (await committing).committed
        await transact(two, 3)
        lift()
        for task in sealing:
            assert (await task).outcomes[0].placed
        assert not each.deaths
