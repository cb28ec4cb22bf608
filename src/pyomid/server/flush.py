"""A service's flushes are submitted to the commit table; its other store calls run on threads.

    entries ─► CommitTable.submit ─► … durable, then the epoch ─► the loop ─► `ended`
    work    ─► a store thread     ─► …                         ─► the loop ─► `ended`

The table decides how a flush is made durable (`ports.CommitTable.submit`): at once, by the disk, by answers that come
to the loop, or on a thread.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock
from typing import Any, Final

from pyomid.arrays import NDArray, np
from pyomid.crashpoints import crash_point
from pyomid.errors import OmidError, Unavailable
from pyomid.oracle.instructions import Flush, Flushed
from pyomid.ports import CommitTable, LeaderState

log = logging.getLogger(__name__)

BOUNDS_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Flushes:
    """`ports.FlushLoop` of one commit table. On the loop's thread only."""

    def __init__(
        self,
        table: CommitTable,
        leader_state: LeaderState,
        *,
        threads_max: int,
        fail: Callable[[Exception], None],
    ) -> None:
        """`fail` is called with an error that `ended` raises: it has no caller that could handle it."""
        self._table = table
        self.leader_state = leader_state
        self.may_wait = False
        self._fail = fail
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="tso-store")
        self._start_threads(threads_max)
        self._watched: dict[int, asyncio.AbstractEventLoop] = {}

    def submit(
        self, entries: NDArray[np.int64], ended: Callable[[Flushed | OmidError], None], *, may_wait: bool
    ) -> None:
        """`ended` is called once, with the result or the error; possibly within this call."""
        crash_point("tso.flush.before")
        submitted = _Submitted(ended, self._fail)
        self.may_wait = may_wait
        try:
            self._table.submit(entries, submitted, self)
        except Exception as error:
            if submitted.has_ended:
                self._fail(error)
            else:
                submitted(error)

    def prepare(self) -> None:
        """Prepares the commit table, on a thread; without one its first flush does so."""
        with suppress(RuntimeError):
            self._threads.submit(self._table.prepare)

    def on_thread(self, work: Callable[[], Any], ended: Callable[[Any], None]) -> None:
        """Calls `ended` once with the result or error of `work`, on the loop, later. A thread that cannot be had is an
        error too: then `work` is not done."""
        loop = asyncio.get_running_loop()
        turn = Lock()  # the thread that takes it reports the end

        def call() -> None:
            if not turn.acquire(blocking=False):
                return
            try:
                result = work()
            except Exception as error:
                result = error
            with suppress(RuntimeError):  # the loop is closed: the service was told to stop and could not wait
                loop.call_soon_threadsafe(self._tell, ended, result)

        try:
            self._threads.submit(call)
        except RuntimeError as error:  # the pool may have queued the call before it failed to start a thread for it
            if turn.acquire(blocking=False):
                loop.call_soon(self._tell, ended, error)

    def _tell(self, ended: Callable[[Any], None], result: Any) -> None:
        try:
            ended(result)
        except Exception as error:
            self._fail(error)

    def _start_threads(self, count: int) -> None:
        """All now, where they can be had: a system that refuses one later holds up no store call."""
        go = Event()
        try:
            for _ in range(count):
                self._threads.submit(go.wait)
        except RuntimeError as error:
            log.warning("begins with fewer threads than it may need: %s", error)
        finally:
            go.set()

    def watch(self, fileno: int, is_readable: Callable[[], None]) -> None:
        """Calls `is_readable` whenever the descriptor is readable, until `close`."""
        if fileno not in self._watched:
            self._watched[fileno] = loop = asyncio.get_running_loop()
            loop.add_reader(fileno, is_readable)

    def close(self, *, wait: bool) -> None:
        """`wait`: waits for the threads. Otherwise calls that have not begun are dropped."""
        self._threads.shutdown(wait=wait, cancel_futures=True)
        for fileno, loop in self._watched.items():
            loop.remove_reader(fileno)
        self._watched.clear()
        self._table.leave_loop()


class _Submitted:
    """Reports the end of one flush, once. An error of the callback is not the flush's: its entries are durable."""

    __slots__ = ("_fail", "_tell", "has_ended")

    def __init__(self, tell: Callable[[Flushed | OmidError], None], fail: Callable[[Exception], None]) -> None:
        self._tell = tell
        self._fail = fail
        self.has_ended = False

    def __call__(self, result: tuple[list[int], int] | Exception) -> None:
        try:
            assert not self.has_ended, "a flush ends once"
            self.has_ended = True
            if isinstance(result, Exception):
                self._tell(as_failure(result, "a flush"))
            else:
                crash_point("tso.flush.after")
                self._tell(Flushed(frozenset(result[0]), result[1]))
        except Exception as error:
            self._fail(error)


def as_failure(error: Exception, what: str) -> OmidError:
    """The error that the machine is told. It is logged, too."""
    if isinstance(error, OmidError):
        log.warning("%s failed: %s", what, error, extra={"code": error.code})
        return error
    log.error("%s failed", what, exc_info=error)
    return Unavailable(f"{type(error).__name__}: {error}")


def rows_of(flush: Flush) -> NDArray[np.int64]:
    """All entries of the flush, as rows (start, commit)."""
    rows = np.array(flush.entries, dtype=np.int64).reshape(-1, 2)
    if flush.block is None:
        return rows
    return np.concatenate([rows, flush.block]) if len(rows) else flush.block


class Durations:
    """Durations of flushes in fixed buckets: cheap enough for each flush, enough for percentiles. Not thread-safe."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """As Prometheus wants them: each bound with how many were at or below it; the sum in seconds."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets, self._sum_s
