"""The service over a folder: real folder, real sockets, one process. Each test runs on both event loops."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from served_folder import DEADLINE_S, SESSIONS, Flush, Flushed, Served, instead_of_flushes, served, together, transact

from pyomid.client.session.async_session import AsyncTsoSession
from pyomid.client.session.blocking import TsoSession
from pyomid.errors import OmidError, Unavailable
from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded.writer_turns import WriterTurn
from pyomid.types import SealOutcome

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120), pytest.mark.usefixtures("on_loop")]


async def test_acknowledged_commits_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seals, completions and clean-ups come between, on other threads."""

    async def others(each: Served) -> None:
        session = each.session()
        blocking = TsoSession(lambda: socket.create_connection(each.listener.getsockname()))
        for _ in range(30):
            start_ts = (await session.begin()).start_ts
            assert await asyncio.to_thread(blocking.seal, [start_ts]) == [SealOutcome(True)]
            mine = await transact(session, 1)
            await asyncio.to_thread(blocking.complete, list(mine))
        blocking.close()

    async with served(tmp_path / "db", monkeypatch) as each:
        beside = asyncio.create_task(others(each))
        done = await together(each, 25)
        await beside
        reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
        assert reader.lookup(list(done)) == list(done.values())
        reader.close()
        assert each.begun > 0
        assert not each.deaths


async def test_lone_client_is_flushed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path / "db", monkeypatch) as each:
        done = await transact(each.session(), 20)
        assert each.begun < 10, "but where the service itself writes just then"
        assert each.table.lookup(list(done)) == list(done.values())


async def test_a_lone_client_waits_on_a_thread_for_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may be stopped inside its transaction: the loop answers others meanwhile."""
    async with served(tmp_path / "db", monkeypatch) as each:
        session = each.session()
        await transact(session, 1)
        turn = WriterTurn(tmp_path / "db" / "data")  # as another process has it
        turn.take(now_s := time.monotonic(), now_s + 30.0)  # an entry may be being deleted
        committing = asyncio.create_task(transact(session, 1))
        while not each.begun:
            await asyncio.sleep(0.005)
        other = each.session()
        assert (await other.begin()).start_ts > 0
        assert not committing.done()
        turn.release()
        done = await committing
        assert each.table.lookup(list(done)) == list(done.values())
        turn.close()


async def test_a_service_stopped_during_a_flush_replies_and_exits_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged: dict[int, int] = {}

    async def work(session: AsyncTsoSession) -> None:
        with suppress(OmidError):
            while True:
                acknowledged.update(await transact(session, 1))

    async with served(tmp_path / "db", monkeypatch) as each:
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


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_t4_a_process_suspended_during_a_flush_checks_the_leader_before_it_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """T5 too: the epoch is read behind the write, when it was noticed, not when it was begun."""
    async with served(tmp_path / "db", monkeypatch) as each:
        sessions = [each.session(request_s=DEADLINE_S if not is_replaced else 2) for _ in range(SESSIONS)]
        await asyncio.gather(*(transact(session, 1) for session in sessions))
        committed_before = each.service.machine.step.counters["commits"]
        stalls_before = each.service.machine.step.counters["stalls"]

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
            assert each.service.machine.step.counters["commits"] == committed_before
        else:
            assert all(isinstance(result, dict) for result in await works)
            assert each.service.machine.step.counters["stalls"] > stalls_before
            assert not each.deaths


async def test_a_failed_flush_is_retried_and_answered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries are durable, the look at the epoch behind them failed."""
    failures: list[int] = []
    async with served(tmp_path / "db", monkeypatch) as each:

        def fails(flush: Flush) -> Flushed:
            result = flush()
            if len(failures) < 3:
                failures.append(1)
                raise Unavailable("the leader state could not be read")
            return result

        instead_of_flushes(monkeypatch, fails)
        done = await together(each, 10)
        assert len(failures) == 3
        assert dict(each.table.entries()) == done
        assert not each.deaths


async def test_a_failing_disk_ends_the_service_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(table: EmbeddedCommitTable, entries: NDArray[np.int64], *, at_once: bool) -> list[int]:
        raise Unavailable("the disk is broken")

    async with served(tmp_path / "db", monkeypatch) as each:
        before = await together(each, 2)
        monkeypatch.setattr(EmbeddedCommitTable, "_put", fails)
        sessions = [each.session(request_s=2) for _ in range(SESSIONS)]
        works = asyncio.gather(*(transact(session, 1) for session in sessions), return_exceptions=True)
        await each.until_dead()
        assert "the disk is broken" in each.deaths[0]
        assert all(isinstance(result, OmidError) for result in await works)
        assert each.table.lookup(list(before)) == list(before.values())
