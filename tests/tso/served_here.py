"""A service on the test's own event loop, with real sockets; its table flushes on a thread, as one over HBase does."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from service_process import cell

from pyomid.omid.client.async_session import AsyncTsoSession, ConnectedSocket
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.ports import CommitTable
from pyomid.omid.tso.service import TsoService
from pyomid.omid.tso.startup import take_over_and_build
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.types import CommitRequest

DEADLINE_S = 60
SETTINGS = TsoSettings(conflict_map_entries=28 * 64, store_retry_s=0.2)
SESSIONS = 4


Flushed = list[int]
Flush = Callable[[], Flushed]


class ThreadedTable(MemoryCommitTable):
    submit = CommitTable.submit


def instead_of_flushes(monkeypatch: pytest.MonkeyPatch, act: Callable[[Flush], Flushed]) -> None:
    """Where the table would flush, `act` gets that flush."""
    flush = ThreadedTable.put_block

    def acted(table: ThreadedTable, entries: NDArray[np.int64]) -> Flushed:
        return act(partial(flush, table, entries))

    monkeypatch.setattr(ThreadedTable, "put_block", acted)


class Served:
    """A service in this loop, and its clients."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: TsoSettings = SETTINGS) -> None:
        self.table, self.row, self.catalog = ThreadedTable(), MemoryLeaderState(), MemoryCatalog()
        self.deaths: list[str] = []
        self.begun = 0
        """Flushes on a thread."""
        self.slept_s = 0.0
        self.stands_at_s: float | None = None
        """What its clock says while it does not go on by itself."""
        self.leads_until_s = float("inf")
        self.drained: bool | None = None
        self.once_begun: Callable[[], object] = lambda: None
        """Called between the submission of a flush and its end, on the flush's thread."""
        loop_thread = threading.get_ident()

        def flushed(flush: Flush) -> Flushed:
            if threading.get_ident() != loop_thread:
                self.begun += 1
                self.once_begun()
            return flush()

        instead_of_flushes(monkeypatch, flushed)
        stores = TsoStores(self.table, self.row, self.catalog)
        machine = take_over_and_build(stores, settings, BucketMap(settings.conflict_map_entries))
        self.service = TsoService(
            machine, stores, clock=self.clock, die=self.deaths.append, lease_until_s=lambda: self.leads_until_s
        )
        self.service.switch_to_native(wait_for_memory=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sessions: list[AsyncTsoSession] = []

    def clock(self) -> float:
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME) if self.stands_at_s is None else self.stands_at_s
        return now_s + self.slept_s

    def session(self, *, request_s: float = DEADLINE_S) -> AsyncTsoSession:
        address = self.listener.getsockname()

        async def dial() -> ConnectedSocket:
            return ConnectedSocket(await asyncio.to_thread(socket.create_connection, address))

        self.sessions.append(AsyncTsoSession(dial, request_s=request_s, retry_s=request_s))
        return self.sessions[-1]

    async def drain(self) -> bool:
        """Once."""
        if self.drained is None:
            self.drained = await self.service.drain(drain_s_max=0.5 if self.deaths else DEADLINE_S)
        return self.drained

    async def until_dead(self) -> None:
        give_up_s = time.monotonic() + DEADLINE_S
        while not self.deaths:
            assert time.monotonic() < give_up_s, "it should have died"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch, settings: TsoSettings = SETTINGS) -> AsyncIterator[Served]:
    """Told to stop at the end, unless a test did so, and drained."""
    each = Served(monkeypatch, settings)
    running = asyncio.create_task(each.service.run([(each.listener, None)]))
    try:
        yield each
        for session in each.sessions:
            await session.close()
    finally:
        each.service.stop()
        await running
        drained = await each.drain()
    assert drained or each.deaths


async def transact(session: AsyncTsoSession, count: int) -> dict[int, int]:
    """One after the other; start and commit of each."""
    done = {}
    for _ in range(count):
        start_ts = (await session.begin()).start_ts
        reply = await session.commit(CommitRequest(start_ts, (cell(start_ts),)))
        assert reply.committed
        done[start_ts] = reply.commit_ts
    return done


async def together(each: Served, count: int, *, tasks: int = 8) -> dict[int, int]:
    done: dict[int, int] = {}
    sessions = [each.session() for _ in range(SESSIONS)]
    for part in await asyncio.gather(*(transact(session, count) for session in sessions for _ in range(tasks))):
        done |= part
    return done


def limit_store_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], None]:
    """The system refuses store threads beyond so many, until the result is called."""
    limits = [count]
    begun: list[str] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("tso-store"):
            if limits and len(begun) >= limits[0]:
                raise RuntimeError("can't start new thread")
            begun.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return limits.clear
