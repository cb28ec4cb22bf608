"""The guarantees of a submitted flush, for every kind of commit table."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from served_here import limit_store_threads

from pyomid.errors import OmidError, Unavailable
from pyomid.omid.memory import MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle.instructions import Flush, Flushed
from pyomid.omid.ports import CommitTable, FlushEnded, FlushLoop
from pyomid.omid.tso.store_calls import Flushes
from pyomid.types import LeaderRecord

pytestmark = [pytest.mark.fast, pytest.mark.timeout(60), pytest.mark.usefixtures("on_loop")]

ENTRIES = np.array([(50, 110), (100, 160)], dtype=np.int64)


class OnThreads(MemoryCommitTable):
    """With the default: `put` on a thread. `before` is called by that thread."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._before = before

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        CommitTable.submit(self, entries, ended, loop)

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        self._before()
        return super().put_block(entries)


class Told:
    """Keeps what it is told; `once` is over then."""

    def __init__(self) -> None:
        self.results: list[Flushed | OmidError] = []
        self.once = asyncio.Event()

    def __call__(self, result: Flushed | OmidError) -> None:
        self.results.append(result)
        self.once.set()


def never(error: Exception) -> None:
    raise AssertionError from error


class RowThatLooks(MemoryLeaderState):
    """Notes what was durable whenever its epoch was read."""

    def __init__(self, table: CommitTable) -> None:
        super().__init__()
        self._table = table
        self.found: list[Sequence[int]] = []

    def read(self) -> LeaderRecord:
        self.found.append(self._table.lookup(ENTRIES[:, 0].tolist()))
        return super().read()


@pytest.mark.parametrize("kind", [OnThreads, MemoryCommitTable], ids=["on a thread", "at once"])
async def test_t5_the_epoch_is_read_after_the_entries(kind: type[CommitTable]) -> None:
    table = kind()
    row = RowThatLooks(table)
    flushes, told = Flushes(table, row, threads_max=1, fail=never), Told()
    flushes.submit(Flush((), ENTRIES), told)
    await told.once.wait()
    flushes.close(wait=True)
    assert told.results == [Flushed(frozenset(), 0)]
    assert row.found == [[110, 160]]


async def test_a_blocking_table_does_not_block_the_loop() -> None:
    """And the array stays as it is until the end."""
    may_go = threading.Event()
    table = OnThreads(before=may_go.wait)
    flushes, told = Flushes(table, MemoryLeaderState(), threads_max=2, fail=never), Told()
    for _ in range(2):
        flushes.submit(Flush((), ENTRIES), told)
    await asyncio.sleep(0)
    assert not told.results
    may_go.set()
    while len(told.results) < 2:
        await asyncio.sleep(0.001)
    flushes.close(wait=True)


def fails() -> None:
    raise Unavailable("no room")


def breaks() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("what", "message"), [(fails, "no room"), (breaks, "ZeroDivisionError")])
@pytest.mark.parametrize("on_thread", [False, True])
async def test_an_error_is_reported_once_as_an_omid_error(
    what: Callable[[], None], message: str, on_thread: bool
) -> None:
    class Failing(MemoryCommitTable):
        def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
            what()

    table = OnThreads(before=what) if on_thread else Failing()
    flushes, told = Flushes(table, MemoryLeaderState(), threads_max=1, fail=never), Told()
    flushes.submit(Flush((), ENTRIES), told)
    await told.once.wait()
    flushes.close(wait=True)
    (error,) = told.results
    assert isinstance(error, Unavailable)
    assert message in str(error)


@pytest.mark.parametrize("on_thread", [False, True])
async def test_an_error_of_the_callback_does_not_fail_the_flush(on_thread: bool) -> None:
    """The entries are durable: told of a failure, it would put them out again."""
    told: list[Any] = []
    table = OnThreads() if on_thread else MemoryCommitTable()

    def stumbles(result: Flushed | OmidError) -> None:
        told.append(result)
        raise ZeroDivisionError

    failed, once = list[Exception](), asyncio.Event()
    flushes = Flushes(table, MemoryLeaderState(), threads_max=1, fail=lambda error: (failed.append(error), once.set()))
    flushes.submit(Flush((), ENTRIES), stumbles)
    await once.wait()
    flushes.close(wait=True)
    assert [type(error) for error in failed] == [ZeroDivisionError]
    assert told == [Flushed(frozenset(), 0)]


@pytest.mark.parametrize("threads", [0, 1])
async def test_a_flush_without_a_thread_fails_once_and_does_not_run(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """The pool keeps what it has no thread for: a thread that is free later must not do it."""
    may_go = threading.Event()
    table = OnThreads(before=may_go.wait)
    lift = limit_store_threads(monkeypatch, threads)
    flushes = Flushes(table, MemoryLeaderState(), threads_max=2, fail=never)
    busy = [Told() for _ in range(threads)]
    for each in busy:
        flushes.submit(Flush((), ENTRIES), each)
    told = Told()
    flushes.submit(Flush((), ENTRIES + 1000), told)
    assert not told.results, "it is told of later: whoever asks has not yet noted that it asked"
    await told.once.wait()
    lift()
    may_go.set()
    after = Told()
    flushes.submit(Flush((), ENTRIES + 2000), after)
    await asyncio.gather(*(each.once.wait() for each in (*busy, after)))
    flushes.close(wait=True)
    (error,) = told.results
    assert isinstance(error, Unavailable)
    assert "new thread" in str(error)
    assert table.lookup([1050, 2050]) == [0, 2110]


async def test_all_threads_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of processes that is reached later stops no flush."""
    flushes = Flushes(OnThreads(), MemoryLeaderState(), threads_max=3, fail=never)
    limit_store_threads(monkeypatch, 0)
    told = [Told() for _ in range(6)]
    for each in told:
        flushes.submit(Flush((), ENTRIES), each)
    await asyncio.gather(*(each.once.wait() for each in told))
    flushes.close(wait=True)
    assert all(each.results == [Flushed(frozenset(), 0)] for each in told)


async def test_the_table_is_notified_when_the_loop_ends() -> None:
    left: list[bool] = []

    class Leaving(MemoryCommitTable):
        def leave_loop(self) -> None:
            left.append(True)

    Flushes(Leaving(), MemoryLeaderState(), threads_max=1, fail=never).close(wait=True)
    assert left == [True]
