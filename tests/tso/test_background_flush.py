"""The service whose disk writes its flushes in the background: real folder, real sockets, one process.

Each test is run on both event loops, and, where it says nothing of the background, without it too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from numpy.typing import NDArray

from pyomid.client.async_session import AsyncTsoSession
from pyomid.core.conflict_map import BucketMap
from pyomid.core.tso_machine import TsoSettings
from pyomid.errors import OmidError, Unavailable
from pyomid.storage.embedded import (
    EmbeddedCatalogue,
    EmbeddedCommitTable,
    EmbeddedEpochRow,
    open_folder,
    recent_commits,
)
from pyomid.storage.embedded.recent_log import Segment
from pyomid.tso.service import TsoService
from pyomid.tso.startup import take_over_and_build
from pyomid.tso.store_calls import TsoStores
from pyomid.types import CommitRequest, SealOutcome

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]

DEADLINE_S = 60
SETTINGS = TsoSettings(conflict_map_entries=28 * 64, store_retry_s=0.2)
SESSIONS = 4


def cell(number: int) -> int:
    """An id as evenly spread as a hash's."""
    return (number * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)) - (1 << 63)


class Served:
    """A service in this loop, and its clients."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        open_folder(folder)
        self.folder = folder
        self.table = EmbeddedCommitTable(folder, writable=True)
        self.table.prepare()
        self.row = EmbeddedEpochRow(folder, writable=True)
        self.catalogue = EmbeddedCatalogue(folder)
        self.deaths: list[str] = []
        self.begun = 0
        """Flushes in the background."""
        self.slept_s = 0.0
        self.drained: bool | None = None
        self.once_begun: Callable[[], object] = lambda: None
        """Called between the begin of a flush and its end."""
        begin = EmbeddedCommitTable.begin_flush

        def begin_flush(table: EmbeddedCommitTable, entries: NDArray[np.int64]) -> bool:
            if is_begun := begin(table, entries):
                self.begun += 1
                self.once_begun()
            return is_begun

        monkeypatch.setattr(EmbeddedCommitTable, "begin_flush", begin_flush)
        stores = TsoStores(self.table, self.row, self.catalogue)
        machine = take_over_and_build(stores, SETTINGS, BucketMap(SETTINGS.conflict_map_entries))
        self.service = TsoService(machine, stores, clock=self.clock, die=self.deaths.append)
        self.service.use_kernel(wait_for_memory=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sessions: list[AsyncTsoSession] = []

    def clock(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.slept_s

    @property
    def has_background(self) -> bool:
        return self.table.flush_ended_fileno() is not None and self._segment._direct

    @property
    def _segment(self) -> Segment:
        assert self.table._writer is not None
        return self.table._writer._segments[self.table._writer._active]

    def session(self, *, request_s: float = DEADLINE_S) -> AsyncTsoSession:
        address = self.listener.getsockname()

        async def dial() -> socket.socket:
            return await asyncio.get_running_loop().run_in_executor(None, socket.create_connection, address)

        self.sessions.append(AsyncTsoSession(dial, request_s=request_s, retry_s=request_s))
        return self.sessions[-1]

    def fail_all_writes(self) -> None:
        """The system refuses every write of a file that is open for reading."""
        for_reading = os.open(self._segment._path, os.O_RDONLY)
        os.dup2(for_reading, self._segment._file)
        os.close(for_reading)

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
async def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """Told to stop at the end, unless a test did so, and drained."""
    each = Served(folder, monkeypatch)
    running = asyncio.create_task(each.service.run([(each.listener, None)]))
    try:
        yield each
        for session in each.sessions:
            await session.close()
    finally:
        each.service.stop()
        await running
        drained = await each.drain()
        each.catalogue.close()
        each.row.close()
        each.table.close()
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


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, 2 * DEADLINE_S))

    return run


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("background", [True, False])
def test_what_is_answered_is_durable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    """Seals, completions and clean-ups come between, on threads that need the turn."""
    if not background:
        monkeypatch.setattr(recent_commits, "open_writer", lambda: None)

    async def others(session: AsyncTsoSession) -> None:
        for _ in range(30):
            start_ts = (await session.begin()).start_ts
            assert await session.seal([start_ts]) == [SealOutcome(True)]
            mine = await transact(session, 1)
            await session.complete(list(mine))

    async def scenario() -> None:
        async with served(tmp_path / "db", monkeypatch) as each:
            beside = asyncio.create_task(others(each.session()))
            done = await together(each, 25)
            await beside
            reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
            assert reader.lookup(list(done)) == list(done.values())
            reader.close()
            assert (each.begun > 0) == (background and each.has_background), each.begun
            assert not each.deaths

    run(scenario())


def test_lone_client_is_flushed_at_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with served(tmp_path / "db", monkeypatch) as each:
            done = await transact(each.session(), 20)
            assert each.begun == 0
            assert each.table.lookup(list(done)) == list(done.values())

    run(scenario())


def test_told_to_stop_between_begin_and_end_it_answers_and_ends_clean(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        acknowledged: dict[int, int] = {}

        async def work(session: AsyncTsoSession) -> None:
            with suppress(OmidError):
                while True:
                    acknowledged.update(await transact(session, 1))

        async with served(tmp_path / "db", monkeypatch) as each:
            if not each.has_background:
                pytest.skip("no writes in the background here")
            working = [asyncio.create_task(work(each.session(request_s=1))) for _ in range(SESSIONS)]
            stopped = asyncio.Event()

            def stop() -> None:
                if acknowledged:
                    each.service.stop()
                    stopped.set()

            each.once_begun = stop
            await stopped.wait()
            assert await each.drain()
            assert each.service.machine.is_quiet
            await asyncio.gather(*working)
            assert each.begun > 0
            assert acknowledged
            assert each.table.lookup(list(acknowledged)) == list(acknowledged.values())

    run(scenario())


@pytest.mark.parametrize("is_replaced", [False, True])
def test_t4_process_that_slept_between_begin_and_end_looks_who_leads_before_it_answers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """T5 too: the epoch is read behind the write, when it was noticed, not when it was begun."""

    async def scenario() -> None:
        async with served(tmp_path / "db", monkeypatch) as each:
            if not each.has_background:
                pytest.skip("no writes in the background here")
            sessions = [each.session(request_s=DEADLINE_S if not is_replaced else 2) for _ in range(SESSIONS)]
            await asyncio.gather(*(transact(session, 1) for session in sessions))
            committed_before = each.service.machine.counters["commits"]
            stalls_before = each.service.machine.counters["stalls"]

            def sleeps() -> None:
                each.once_begun = lambda: None
                each.slept_s += 100.0
                if is_replaced:
                    state = each.row.read()
                    epoch = state.ceiling + 50
                    assert each.row.take_over(expected=state.epoch, epoch=epoch, ceiling=epoch + 1_000_000)

            each.once_begun = sleeps
            works = asyncio.gather(*(transact(session, 5) for session in sessions), return_exceptions=True)
            if is_replaced:
                await each.until_dead()
                results = await works
                assert all(isinstance(result, OmidError) for result in results), results
                assert each.service.machine.counters["commits"] == committed_before
            else:
                assert all(isinstance(result, dict) for result in await works)
                assert each.service.machine.counters["stalls"] > stalls_before
                assert not each.deaths

    run(scenario())


def test_flush_whose_end_fails_is_repeated_and_answered_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are durable, the look at the epoch behind them failed."""
    end = EmbeddedCommitTable.end_flush
    failures: list[int] = []

    def end_flush(table: EmbeddedCommitTable) -> tuple[list[int], int] | None:
        result = end(table)
        if result is not None and len(failures) < 3:
            failures.append(1)
            raise Unavailable("the epoch row could not be read")
        return result

    async def scenario() -> None:
        async with served(tmp_path / "db", monkeypatch) as each:
            if not each.has_background:
                pytest.skip("no writes in the background here")
            monkeypatch.setattr(EmbeddedCommitTable, "end_flush", end_flush)
            done = await together(each, 10)
            assert len(failures) == 3
            assert dict(each.table.entries()) == done
            assert not each.deaths

    run(scenario())


def test_disk_that_fails_ends_the_service_by_its_own_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with served(tmp_path / "db", monkeypatch) as each:
            before = await together(each, 2)
            each.fail_all_writes()
            sessions = [each.session(request_s=2) for _ in range(SESSIONS)]
            works = asyncio.gather(*(transact(session, 1) for session in sessions), return_exceptions=True)
            await each.until_dead()
            assert "Bad file descriptor" in each.deaths[0]
            assert all(isinstance(result, OmidError) for result in await works)
            assert each.table.lookup(list(before)) == list(before.values())

    run(scenario())
