"""Background work: post-commit clean-up of finished transactions (shadow cells, commit-table entries), shadow-cell
repair, rollbacks.

One thread for each database; if the system gives none, a thread that waits does the work. Jobs that arrive within the
linger are done together: the shadow cells of many transactions in one durable write for each table, then their
commit-table entries in one request (law 5 holds for each transaction: its entry goes only after its own shadow cells
are durable). Readers, compaction and sanitizing repair whatever is lost here, by an error or with the process. So
repairs are dropped when there is too much to do, and nothing is tried twice.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyomid.errors import OmidError
from pyomid.protocol import effects
from pyomid.protocol.commit import CELLS_AT_ONCE, WriteSet, complete_steps, rollback_steps
from pyomid.protocol.effects import Effect, Steps

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""A thread that waits for room checks at this interval that the background thread is alive."""


@dataclass(slots=True)
class BackgroundCounters:
    """Counts since the start, for status and tests."""

    completed: int = 0
    rolled_back: int = 0
    heals_dropped: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    steps: Steps[None]
    cells: int


class Background:
    """Bounded by cells. `perform` runs one effect, on the background thread or on a thread that waits for it."""

    def __init__(self, perform: Callable[[Effect], Any], *, linger_s: float, cells_max: int) -> None:
        self.counters = BackgroundCounters()
        self._perform = perform
        self._linger_s = linger_s
        self._cells_max = cells_max
        self._jobs: list[_Job] = []
        self._cells = 0
        self._busy = 0
        self._urgent = False
        self._closed = False
        self._lock = threading.RLock()
        """Acquired itself, not through its condition: that acquires it in Python, where an interrupt can come between.
        """
        self._changed = threading.Condition(self._lock)
        self._lacks_thread = False
        self._thread: threading.Thread | None = None

    def complete(self, start_ts: int, commit_ts: int, written: WriteSet) -> None:
        """Shadow cells, then the entry. Waits for room: commits that outrun their own completion slow down."""
        cells = _cells(written)
        with self._lock:
            self._wait_for_room()
            self._add(_Job(complete_steps(start_ts, commit_ts, written), cells))
            self.counters.completed += 1

    def roll_back(self, written: WriteSet, begun: Sequence[object] = ()) -> None:
        """Exact deletes of a transaction that certainly never commits. Waits for room likewise. `begun`: its writes
        that may be under way, which are awaited first (`effects.EndWrites`)."""
        with self._lock:
            self._wait_for_room()
            self._add(_Job(_rollback_steps(written, tuple(begun)), _cells(written)))
            self.counters.rolled_back += 1

    def offer(self, effect: effects.Heal | effects.DeleteOrphans) -> None:
        """Repairs later. Dropped if there is no room, or after the end."""
        cells = len(effect.shadows) if isinstance(effect, effects.Heal) else len(effect.cells)
        with self._lock:
            if self._cells + cells > self._cells_max or self._closed:
                self.counters.heals_dropped += cells
                return
            self._add(_Job(_single_step(effect), cells))

    def drain(self, timeout_s: float | None = None) -> bool:
        """Does everything that waits, without the linger. True when all is done, False after `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._urgent = True
            self._changed.notify_all()
            while self._jobs or self._busy:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._wait_or_work(left)
            self._urgent = False
        return True

    def close(self, timeout_s: float | None = None) -> bool:
        """Drains, then ends the thread. False if the time ran out: the rest is left to readers and compaction."""
        drained = self.drain(timeout_s)
        with self._lock:
            self._closed = True
            if not drained:
                self._jobs.clear()
            self._changed.notify_all()
        if drained and self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)
        return drained

    # The thread

    def _add(self, job: _Job) -> None:
        if self._closed:
            return
        self._jobs.append(job)
        self._cells += job.cells
        self._has_thread()
        if len(self._jobs) == 1 or self._cells >= self._cells_max:
            self._changed.notify_all()  # Not for each job: the lingering thread would wake, and take the interpreter.

    def _has_thread(self) -> bool:
        """Whether the background thread runs. Starts it if there is none: it may have died, or not have started.

        If the system gives no thread, this is not an error of the commit, which was answered already.
        """
        if self._thread is not None and self._thread.is_alive():
            return True
        thread = threading.Thread(target=self._run, name="pyomid-background", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not self._lacks_thread:
                logger.warning("no thread to complete transactions; threads that wait for completion do it: %s", error)
            self._lacks_thread, self._thread = True, None
            return False
        self._lacks_thread, self._thread = False, thread
        return True

    def _wait_for_room(self) -> None:
        while self._cells >= self._cells_max and not self._closed:
            self._wait_or_work(_LOOK_S)

    def _wait_or_work(self, wait_s: float | None) -> None:
        """Waits for a change, at most `wait_s`; works itself if there is no thread. Called with the lock held."""
        if not self._jobs or self._has_thread():
            self._changed.wait(wait_s)
            return
        jobs = self._begin()
        try:
            self._lock.release()
            self._work(jobs)
        finally:
            self._lock.acquire()
            self._end(jobs)

    def _run(self) -> None:
        while (jobs := self._take()) is not None:
            try:
                self._work(jobs)
            finally:
                with self._lock:
                    self._end(jobs)

    def _work(self, jobs: Sequence[_Job]) -> None:
        try:
            run_together([job.steps for job in jobs], self._perform, self.failed)
        except (
            Exception
        ) as error:  # an error of the steps themselves: only these jobs are left to readers and compaction
            self.failed(error)

    def _begin(self) -> list[_Job]:
        jobs, self._jobs = self._jobs, []
        self._busy += 1
        return jobs

    def _end(self, jobs: Sequence[_Job]) -> None:
        self._cells -= sum(job.cells for job in jobs)
        self._busy -= 1
        self._changed.notify_all()

    def _take(self) -> list[_Job] | None:
        """All jobs that arrived by the end of the linger; None after `close`."""
        with self._lock:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            linger_until = time.monotonic() + self._linger_s
            while not (self._urgent or self._closed or self._cells >= self._cells_max):
                left = linger_until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._begin()

    def failed(self, error: Exception) -> None:
        """Counts and logs. The transactions are committed or rolled back all the same."""
        self.counters.failures += 1
        if isinstance(error, OmidError):
            logger.warning("completion left to readers and compaction: %s", error)
        else:
            logger.error("completion failed; left to readers and compaction", exc_info=error)


def run_together(
    jobs: Iterable[Steps[None]], perform: Callable[[Effect], Any], failed: Callable[[Exception], None]
) -> None:
    """Runs all jobs to their end, in rounds. The effects of one round are merged by kind and table.

    An error goes to the jobs whose effects were merged, and to `failed` once. The others go on.
    """
    waiting = [(job, effect) for job in jobs if (effect := _next_effect(job, None)) is not None]
    while waiting:
        next_round: list[tuple[Steps[None], Effect]] = []
        for group in _groups(waiting):
            error = _perform_merged([effect for _, effect in group], perform)
            if error is not None:
                failed(error)
            for job, _ in group:
                effect = _next_effect(job, error)
                if effect is not None:
                    next_round.append((job, effect))
        waiting = next_round


def _next_effect(job: Steps[None], error: Exception | None) -> Effect | None:
    try:
        return job.throw(error) if error is not None else job.send(None)
    except StopIteration:
        return None
    except Exception as raised:
        if raised is not error:
            raise
        return None


def _groups(waiting: Sequence[tuple[Steps[None], Effect]]) -> Iterable[list[tuple[Steps[None], Effect]]]:
    """Jobs by kind of effect and table, in groups of at most `CELLS_AT_ONCE` cells."""
    open_groups: dict[tuple[type[Effect], str], list[tuple[Steps[None], Effect]]] = defaultdict(list)
    sizes: dict[tuple[type[Effect], str], int] = defaultdict(int)
    for job, effect in waiting:
        key = (type(effect), getattr(effect, "table", ""))
        size = _size(effect)
        if open_groups[key] and sizes[key] + size > CELLS_AT_ONCE:
            yield open_groups.pop(key)
            sizes[key] = 0
        open_groups[key].append((job, effect))
        sizes[key] += size
    yield from open_groups.values()


def _perform_merged(group: Sequence[Effect], perform: Callable[[Effect], Any]) -> Exception | None:
    try:
        perform(_merged(group))
    except Exception as error:
        return error
    return None


def _merged(group: Sequence[Effect]) -> Effect:
    first = group[0]
    if len(group) == 1:
        return first
    match first:
        case effects.WriteShadowCells() | effects.Heal():
            shadows = {shadow: None for effect in group for shadow in effect.shadows}  # type: ignore[attr-defined]
            return type(first)(first.table, tuple(shadows))
        case effects.DeleteVersions() | effects.DeleteOrphans():
            cells = {cell: None for effect in group for cell in effect.cells}  # type: ignore[attr-defined]
            return type(first)(first.table, tuple(cells))
        case effects.DeleteCommitEntries():
            starts = tuple(start for effect in group for start in effect.starts)  # type: ignore[attr-defined]
            return effects.DeleteCommitEntries(starts)
        case effects.EndWrites():
            return effects.EndWrites(tuple(begun for effect in group for begun in effect.begun))  # type: ignore[attr-defined]
    raise AssertionError(f"{first} is not background work")


def _size(effect: Effect) -> int:
    match effect:
        case effects.WriteShadowCells(shadows=named) | effects.Heal(shadows=named):
            return len(named)
        case effects.WriteShadowBatches(batches=batches):
            return max(CELLS_AT_ONCE, sum(batch.cells for batch in batches))  # Alone: batches are not merged.
        case effects.DeleteVersions(cells=names) | effects.DeleteOrphans(cells=names):
            return len(names)
    return 1


def _rollback_steps(written: WriteSet, begun: tuple[object, ...]) -> Steps[None]:
    """Deletes what may have been written, whatever became of the write."""
    if begun:
        with contextlib.suppress(OmidError):
            yield effects.EndWrites(begun)
    yield from rollback_steps(written)


def _single_step(effect: Effect) -> Steps[None]:
    yield effect


def _cells(written: WriteSet) -> int:
    return sum(len(cells) for cells in written.values())
