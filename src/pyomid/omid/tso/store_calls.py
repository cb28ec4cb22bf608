"""Perform the machine's store operations on the ports: `perform` blocks, and a service uses `Flushes`.

    entries ─► CommitTable.submit ─► … durable, then the epoch ─► the loop ─► `ended`
    work    ─► a store thread     ─► …                         ─► the loop ─► `ended`

Each commit table makes flushes durable in its own way (`ports.CommitTable.submit`): within the call, by asynchronous
calls on the loop, or on a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from pyomid.coroutines import drive
from pyomid.crashpoints import crash_point
from pyomid.errors import OmidError, Unavailable
from pyomid.omid.oracle.instructions import (
    DeleteBelow,
    Flush,
    Flushed,
    LookupEntries,
    MarkUnknownTable,
    MoveCeiling,
    PutBranches,
    PutDecision,
    ReadCeiling,
    ReadEpoch,
    ReadLeaderState,
    ReadTables,
    SealEntries,
    StoreOperation,
    TakeOverEpoch,
    UpdateLeaderState,
)
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.takeover import TakenOver, take_leadership
from pyomid.omid.ports import CeilingStore, CommitTable, FlushEnd, LeaderState
from pyomid.ports import Catalog
from pyomid.protocol.hashing import table_id
from pyomid.protocol.timestamps import NS_PER_S


@dataclass(frozen=True, slots=True)
class TsoStores:
    """The stores of a TSO. `ceiling` is None if the leader state holds the ceiling. `check` raises `Unavailable` while
    the store does not answer, and `UnknownTable` if the database was never created."""

    commit_table: CommitTable
    leader_state: LeaderState
    catalog: Catalog
    ceiling: CeilingStore | None = None
    check: Callable[[], None] = lambda: None


def perform(stores: TsoStores, operation: StoreOperation) -> object:
    """Perform the operation and return the result that the operation's docstring describes. Raises the errors of the
    ports."""
    table, row = stores.commit_table, stores.leader_state
    match operation:
        case Flush(entries, block):
            crash_point("tso.flush.before")
            refused = frozenset(table.put(entries)) if entries else frozenset()
            if block is not None and len(block):
                refused |= frozenset(table.put_block(block))
            crash_point("tso.flush.after")
            return Flushed(refused, row.read().epoch)
        case PutDecision(start_ts, commit_ts):
            crash_point("tso.decision.before")
            placed = table.put_unless_sealed(start_ts, commit_ts)
            crash_point("tso.decision.after")
            return Flushed(frozenset() if placed else frozenset((start_ts,)), row.read().epoch)
        case PutBranches(branches, commit_ts):
            crash_point("tso.branches.before")
            table.put_branches(branches, commit_ts)
            crash_point("tso.branches.after")
            return row.read().epoch
        case LookupEntries(starts):
            return table.lookup(starts)
        case SealEntries(starts):
            return table.seal_many(starts)
        case DeleteBelow(horizon):
            return table.delete_below(horizon)
        case ReadEpoch():
            return row.read().epoch
        case ReadLeaderState():
            return row.read()
        case TakeOverEpoch(expected, epoch, ceiling):
            return row.take_over(expected=expected, epoch=epoch, ceiling=ceiling)
        case UpdateLeaderState(epoch, changes):
            if changes.leases_added:
                crash_point("tso.lease.before")
            if changes.pending_added:
                crash_point("tso.pending.before")
            crash_point("tso.leader_state.before")
            row.update(epoch, changes)
            crash_point("tso.leader_state.after")
        case ReadCeiling():
            return _ceiling(stores).read()
        case MoveCeiling(expected, ceiling):
            crash_point("tso.ceiling.before")
            return _ceiling(stores).compare_and_set(expected, ceiling)
        case ReadTables():
            return frozenset(table_id(info.name.encode()) for info in stores.catalog.tables())
        case MarkUnknownTable(unknown):
            stores.catalog.mark_unknown_table(unknown)
    return None


CLOCK_WAIT_S_MAX: Final = 10.0
"""The longest wait, as long as a lease. If the clock is further behind, a clock is wrong, and waiting would not help
(`timestamps.clock_trouble`)."""


def wait_for_clock(epoch: int) -> None:
    """T18: wait until the wall clock has passed all timestamps that an earlier TSO may have handed out, so that commits
    get their true time. If the clock is too far behind, return at once; then timestamps run ahead of the clock."""
    give_up_s = time.monotonic() + CLOCK_WAIT_S_MAX
    while 0 < (ahead_s := (epoch - time.time_ns()) / NS_PER_S) <= give_up_s - time.monotonic():
        time.sleep(min(ahead_s, 0.1))


def take_over(stores: TsoStores, settings: TsoSettings, *, wall_ns: int) -> TakenOver:
    """Take over as the leader of the stores, and return what the machine needs. Raises `Deposed` if another TSO is
    faster."""
    steps = take_leadership(
        ceiling_step=settings.ceiling_step,
        ceiling_elsewhere=settings.ceiling_elsewhere,
        retention_s=settings.retention_s,
        wall_ns=wall_ns,
        accept_clock=settings.accept_clock,
    )
    return drive(steps, dict.fromkeys(get_args(StoreOperation), partial(perform, stores)))


def _ceiling(stores: TsoStores) -> CeilingStore:
    assert stores.ceiling is not None, "the machine's settings say that the ceiling is kept elsewhere"
    return stores.ceiling


log = logging.getLogger(__name__)

BOUNDS_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Flushes:
    """The store calls of a service's event loop (a `ports.FlushLoop` of one commit table). Use it on the loop's thread
    only."""

    def __init__(
        self,
        table: CommitTable,
        leader_state: LeaderState,
        *,
        threads_max: int,
        fail: Callable[[Exception], None],
    ) -> None:
        """`fail` receives the errors that `ended` callbacks raise, because these have no caller to handle them."""
        self._table = table
        self.leader_state = leader_state
        self._fail = fail
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="tso-store")
        self._start_threads(threads_max)

    def submit(self, flush: Flush, ended: Callable[[Flushed | OmidError], None]) -> None:
        """Submit a flush. `ended` is called once, with the result or the error, possibly within this call."""
        crash_point("tso.flush.before")
        submitted = _Submitted(ended, self._fail)
        try:
            self._table.submit(rows_of(flush), submitted, self)
        except Exception as error:
            if submitted.has_ended:
                self._fail(error)
            else:
                submitted(error)

    def on_thread(self, work: Callable[[], Any], ended: Callable[[Any], None]) -> None:
        """Run `work` on a thread; later call `ended` once on the loop, with the result or error. If no thread can be
        started, `work` does not run, and `ended` receives that error."""
        loop = asyncio.get_running_loop()
        claim = Lock()  # whichever side acquires the lock reports the end

        def call() -> None:
            if not claim.acquire(blocking=False):
                return
            try:
                result = work()
            except Exception as error:
                result = error
            with suppress(RuntimeError):  # the loop may be closed, because the service stopped without waiting
                loop.call_soon_threadsafe(self._report, ended, result)

        try:
            self._threads.submit(call)
        except RuntimeError as error:  # the pool may have queued the call before it failed to start a thread
            if claim.acquire(blocking=False):
                loop.call_soon(self._report, ended, error)

    def _report(self, ended: Callable[[Any], None], result: Any) -> None:
        try:
            ended(result)
        except Exception as error:
            self._fail(error)

    def _start_threads(self, count: int) -> None:
        """Start all threads now. So a store call never waits for a thread that the system refuses later."""
        go = Event()
        try:
            for _ in range(count):
                self._threads.submit(go.wait)
        except RuntimeError as error:
            log.warning("could start only some of %d store threads: %s", count, error)
        finally:
            go.set()

    def close(self, *, wait: bool) -> None:
        """Shut down and drop queued calls. With `wait`, wait for running calls."""
        self._threads.shutdown(wait=wait, cancel_futures=True)
        self._table.leave_loop()


class _Submitted:
    """Reports the end of one flush, once. An error of the callback is not an error of the flush, whose entries are
    durable."""

    __slots__ = ("_fail", "_report", "has_ended")

    def __init__(self, report: Callable[[Flushed | OmidError], None], fail: Callable[[Exception], None]) -> None:
        self._report = report
        self._fail = fail
        self.has_ended = False

    def __call__(self, result: FlushEnd | Exception) -> None:
        try:
            assert not self.has_ended, "a flush ends once"
            self.has_ended = True
            if isinstance(result, Exception):
                self._report(as_failure(result, "a flush"))
            else:
                crash_point("tso.flush.after")
                self._report(Flushed(frozenset(result.refused), result.epoch))
        except Exception as error:
            self._fail(error)


def as_failure(error: Exception, what: str) -> OmidError:
    """Log the error and return it as an `OmidError` for the machine."""
    if isinstance(error, OmidError):
        log.warning("%s failed: %s", what, error, extra={"code": error.code})
        return error
    log.error("%s failed", what, exc_info=error)
    return Unavailable(f"{type(error).__name__}: {error}")


def rows_of(flush: Flush) -> NDArray[np.int64]:
    """Return all entries of the flush as rows (start, commit)."""
    if flush.block is not None and not flush.entries:
        return flush.block
    rows = np.array(flush.entries, dtype=np.int64).reshape(-1, 2)
    return rows if flush.block is None else np.concatenate([rows, flush.block])


class Durations:
    """A histogram of flush durations in fixed buckets. Not thread-safe."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """Return Prometheus' cumulative buckets (bound, count at or below it), and the sum in seconds."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets, self._sum_s
