"""What comes before what around a flush on a thread: each order that only shows when the disk is slow.

The disk is as slow as a test says: a flush that has begun ends when `let_it_end` was called, not before. Ticks are
far apart, and the clock goes on only where a test says so: what happens, happens because the flush has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from served_here import DEADLINE_S, SETTINGS, Flush, Flushed, Served, instead_of_flushes, served, transact
from service_process import cell

from pyomid.errors import Corruption, OmidError
from pyomid.omid.client.async_session import AsyncTsoSession
from pyomid.omid.wire.messages import Fence, FenceReply
from pyomid.types import CommitReply, CommitRequest

pytestmark = [pytest.mark.fast, pytest.mark.timeout(240), pytest.mark.usefixtures("on_loop")]

NO_TICKS = replace(SETTINGS, stall_s_max=4 * 3600.0, store_retry_s=3600.0, flushes_in_flight_max=1)

LOOKS = 20
"""So often a test looks whether something happens that must not."""


class SlowDisk:
    """A service of two clients or more (a lone one is flushed at once), whose flushes end when they are let."""

    def __init__(self, each: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.each = each
        self.is_slow = False
        self.ended = 0
        """Flushes that have."""

        def slow_flush(flush: Flush) -> Flushed:
            result = flush()
            while self.is_slow:
                time.sleep(0.002)
            self.ended += 1
            return result

        instead_of_flushes(monkeypatch, slow_flush)

    async def stop_the_clock(self) -> None:
        """Nothing is due by time alone from now on, and nothing that was due is under way."""
        self.each.stands_at_s = self.each.clock()
        self.each.service.feed([])
        await until(lambda: self.each.service.machine.is_quiet, "it has done what was due")

    def let_it_end(self) -> None:
        self.is_slow = False

    @property
    def undecided(self) -> int:
        """Commits that are decided and not yet answered."""
        return self.each.service.machine.status().in_flight

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.each.service.machine.step.counters)

    async def commit_slowly(self, session: AsyncTsoSession) -> asyncio.Task[CommitReply]:
        """A commit whose flush is under way, and stays so."""
        start_ts = (await session.begin()).start_ts
        before = self.each.begun
        self.is_slow = True
        committing = asyncio.create_task(session.commit(CommitRequest(start_ts, (cell(start_ts),))))
        await until(lambda: self.each.begun > before, "the flush begins")
        return committing


async def until(condition: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"in vain waited until {what}"
        await asyncio.sleep(0.005)


async def answered(committing: asyncio.Task[CommitReply]) -> CommitReply:
    """With no request, and no tick, that would wake the service."""
    return await asyncio.wait_for(committing, DEADLINE_S)


@asynccontextmanager
async def slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowDisk]:
    async with served(monkeypatch, NO_TICKS) as each:
        disk = SlowDisk(each, monkeypatch)
        try:
            yield disk
        finally:
            disk.let_it_end()
            each.stands_at_s = None


async def two_sessions(each: Served) -> tuple[AsyncTsoSession, AsyncTsoSession]:
    """Connected, greeted, and with a commit behind them; patient enough to send nothing twice."""
    first, second = (each.session(request_s=4 * DEADLINE_S) for _ in range(2))
    await asyncio.gather(transact(first, 1), transact(second, 1))
    return first, second


async def test_commits_decided_meanwhile_are_flushed_when_the_flush_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait in the open batch: nobody put a flush of theirs out, and nothing else will come."""
    async with slow_disk(tmp_path, monkeypatch) as disk:
        first, second = await two_sessions(disk.each)
        start_ts = (await second.begin()).start_ts
        await disk.stop_the_clock()
        slow = await disk.commit_slowly(first)
        flushes = disk.counters["flushes"]
        meanwhile = asyncio.create_task(second.commit(CommitRequest(start_ts, (cell(start_ts),))))
        await until(lambda: disk.undecided == 2, "the second is decided")
        assert disk.counters["flushes"] == flushes, "its flush was put out already: another test's case"
        disk.let_it_end()
        assert (await answered(slow)).committed
        assert (await answered(meanwhile)).committed


@pytest.mark.parametrize("with_fence", [False, True])
async def test_only_one_flush_at_a_time_goes_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_fence: bool
) -> None:
    """Not by a step of the machine either; at its end the next one begins, also where its batch is closed by then."""
    async with slow_disk(tmp_path, monkeypatch) as disk:
        first, second = await two_sessions(disk.each)
        start_ts = (await second.begin()).start_ts
        await disk.stop_the_clock()
        slow = await disk.commit_slowly(first)
        flushes, begun = disk.counters["flushes"], disk.each.begun
        waiting = asyncio.create_task(second.commit(CommitRequest(start_ts, (cell(start_ts),))))
        await until(lambda: disk.undecided == 2, "the second is decided")
        fencing = [asyncio.create_task(first.ask(Fence(7), FenceReply))] if with_fence else []
        await until(lambda: disk.counters.get("fences", 0) == len(fencing), "the fence came")
        disk.each.service.feed([])  # as a tick, or anybody's rarer request
        assert disk.counters["flushes"] == flushes, "it gathers"
        assert disk.each.begun == begun, "one write at a time"
        disk.let_it_end()
        assert (await answered(slow)).committed
        assert (await answered(waiting)).committed
        for each in fencing:
            assert (await asyncio.wait_for(each, DEADLINE_S)).fence_ts > start_ts


async def test_a_drain_waits_for_the_flush_in_flight_and_sends_its_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_disk(tmp_path, monkeypatch) as disk:
        first, _ = await two_sessions(disk.each)
        slow = await disk.commit_slowly(first)
        disk.each.service.stop()
        draining = asyncio.create_task(disk.each.drain())
        for _ in range(LOOKS):
            await asyncio.sleep(0.005)
            assert not draining.done(), "it did not wait for what the disk has not said"
        assert disk.each.service.connections == 2, "who waits for an answer was hung up on"
        disk.let_it_end()
        assert (await answered(slow)).committed
        assert await draining


@pytest.mark.parametrize("notices_first", ["the flush's end", "another step"])
async def test_t4_a_leader_whose_lease_ended_during_a_flush_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices_first: str
) -> None:
    """The entries are durable and the epoch is still its own: only its clock says that it leads no more."""
    async with slow_disk(tmp_path, monkeypatch) as disk:
        first, _ = await two_sessions(disk.each)
        await disk.stop_the_clock()
        commits, ended = disk.counters["commits"], disk.ended
        slow = await disk.commit_slowly(first)
        disk.each.leads_until_s = disk.each.service.now_s() + 10.0
        disk.each.slept_s += 100.0
        if notices_first == "another step":
            disk.each.service.feed([])
            assert disk.each.deaths
        disk.let_it_end()
        await disk.each.until_dead()
        await until(lambda: disk.ended > ended, "the flush has ended")
        assert len(disk.each.deaths) == 1
        assert "lease ended" in disk.each.deaths[0]
        assert disk.counters["commits"] == commits, "it counts one as committed that it may not answer"
        assert not slow.done()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


async def test_corruption_during_a_flush_ends_the_service_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no failure of the moment: nothing is repeated, nobody is answered."""
    async with slow_disk(tmp_path, monkeypatch) as disk:
        sessions = await two_sessions(disk.each)

        def damaged(flush: Flush) -> Flushed:
            flush()
            raise Corruption("the leader state is not what was written")

        instead_of_flushes(monkeypatch, damaged)
        with caplog.at_level(logging.WARNING, "pyomid.tso"):
            working = [asyncio.create_task(transact(session, 1000)) for session in sessions]
            await disk.each.until_dead()
        for each in working:
            each.cancel()
        results = await asyncio.gather(*working, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError | OmidError) for result in results), results
        assert "the leader state is not what was written" in disk.each.deaths[0]
        failures = [record for record in caplog.records if "a flush failed" in record.getMessage()]
        assert failures
        assert {record.__dict__.get("code") for record in failures} == {Corruption.code}
        assert not any(record.exc_info for record in failures), "an error of the tree needs no traceback"
