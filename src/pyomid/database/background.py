"""Background work of a client: completion of committed transactions (shadow cells, then commit-table entries), repair
of shadow cells, and rollbacks.

Each database has one background thread; if the system cannot start it, the threads that wait for the work do the work.
Jobs that arrive within the linger time are done together. The shadow cells of many transactions go into one durable
write per table, then their commit-table entries are deleted in one request (law 5: an entry is deleted only after its
own shadow cells are durable). Nothing is retried, and repairs are dropped under load: after an error or a crash,
readers, compaction and sanitizing do the remaining work.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyomid.coroutines import Effect, Routine
from pyomid.errors import OmidError
from pyomid.protocol import effects
from pyomid.protocol.commit import CELLS_AT_ONCE, WriteSet, complete, delete_writes

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""While a thread waits for room, it checks at this interval whether the background thread is alive."""


@dataclass(slots=True)
class BackgroundCounters:
    """Counts since the database was opened, for status and tests."""

    completed: int = 0
    rolled_back: int = 0
    heals_dropped: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    begin: Callable[[], Routine[None]]
    cells: int


@dataclass(slots=True, eq=False)
class _Batch:
    """Jobs that are done together, their number of cells, and the thread that does them."""

    jobs: list[_Job] = field(default_factory=list)
    cells: int = 0
    worker: threading.Thread | None = None


class Background:
    """The background work of a database, bounded by cells. `perform` runs one effect, on the background thread or on a
    thread that waits for it."""

    def __init__(self, perform: Callable[[Effect[Any]], Any], *, linger_s: float, cells_max: int) -> None:
        self.counters = BackgroundCounters()
        self._perform = perform
        self._linger_s = linger_s
        self._cells_max = cells_max
        self._waiting = _Batch()
        self._begun: list[_Batch] = []
        """The batches in progress. All counts are computed from the batches, so an interrupted thread leaves no wrong
        count."""
        self._urgent = False
        self._closed = False
        self._lock = threading.RLock()
        """Acquired directly, not through the condition, whose Python code an interrupt can stop halfway.
        """
        self._changed = threading.Condition(self._lock)
        self._lacks_thread = False
        self._thread: threading.Thread | None = None
        self._failed_last: tuple[int, Exception] | None = None
        """The number of calls that failed after the close, and the last error. They are logged together, once."""

    def complete(self, start_ts: int, commit_ts: int, written: WriteSet) -> None:
        """Complete a commit in the background: write its shadow cells, then delete its entry. The call waits for room,
        which slows down commits that outrun completion."""
        self._add_where_room(_Job(partial(complete, start_ts, commit_ts, written), _cells(written)))
        with self._lock:
            self.counters.completed += 1

    def complete_at_once(self, start_ts: int, commit_ts: int, written: WriteSet) -> bool:
        """Complete a commit, like `complete`, if there is room; otherwise do nothing and return False."""
        with self._lock:
            if self._cells >= self._cells_max and not self._closed:
                return False
            self._add(_Job(partial(complete, start_ts, commit_ts, written), _cells(written)))
            self.counters.completed += 1
            return True

    def roll_back(self, written: WriteSet, begun: Sequence[object] = ()) -> None:
        """Delete the versions of a transaction that certainly never commits. The call waits for room. `begun` are its
        writes that may be in flight, which are awaited first (`effects.EndWrites`)."""
        self._add_where_room(_Job(partial(_delete_writes, written, tuple(begun)), _cells(written)))
        with self._lock:
            self.counters.rolled_back += 1

    def offer(self, effect: effects.Heal | effects.DeleteOrphans) -> None:
        """Do a repair later. The repair is dropped if there is no room, or after `close`."""
        cells = len(effect.shadows) if isinstance(effect, effects.Heal) else len(effect.cells)
        with self._lock:
            if self._cells + cells > self._cells_max or self._closed:
                self.counters.heals_dropped += cells
                return
            self._add(_Job(partial(_single_step, effect), cells))

    def drain(self, timeout_s: float | None = None) -> bool:
        """Do all waiting work, without the linger time. Return True when all work is done, False after `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                with self._lock:
                    if self._is_idle():
                        return True
                    left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
                    if left <= 0:
                        return False
                    if not self._urgent:
                        self._urgent = True
                        self._changed.notify_all()
                    if self._waited(left):
                        continue
                self._work_here()
        finally:
            self._urgent = False  # another draining thread sets it again

    def close(self, timeout_s: float | None = None) -> bool:
        """Drain, then end the thread. Return False on timeout; readers and compaction then do the remaining work."""
        drained = False
        try:
            drained = self.drain(timeout_s)
        finally:
            with self._lock:
                self._closed = True
                if not drained:
                    self._waiting = _Batch()
                self._changed.notify_all()
        if drained and self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)
        return drained

    # The thread

    @property
    def _cells(self) -> int:
        return self._waiting.cells + sum(batch.cells for batch in self._begun)

    def _is_idle(self) -> bool:
        """Whether no work waits or is in progress. The call removes the work of a dead thread, or of this thread if it
        was interrupted; readers and compaction do that work."""
        for batch in list(self._begun):
            if batch.worker is None or not batch.worker.is_alive() or batch.worker is threading.current_thread():
                self._begun.remove(batch)
        return not self._waiting.jobs and not self._begun

    def _add(self, job: _Job) -> None:
        if self._closed:
            return
        waiting = self._waiting
        waiting.jobs.append(job)
        waiting.cells += job.cells
        self._has_thread()
        if len(waiting.jobs) == 1 or self._cells >= self._cells_max:
            self._changed.notify_all()  # not for each job: the thread would wake from its linger and take the GIL

    def _add_where_room(self, job: _Job) -> None:
        while True:
            with self._lock:
                if self._closed or self._cells < self._cells_max or self._is_idle():
                    self._add(job)
                    return
                if self._waited(_LOOK_S):
                    continue
            self._work_here()

    def _has_thread(self) -> bool:
        """Whether the background thread runs. The call starts the thread if it has died or was never started.

        If the system cannot start a thread, no error is raised, because the commit already has its reply.
        """
        if self._thread is not None and self._thread.is_alive():
            return True
        thread = threading.Thread(target=self._run, name="pyomid-background", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not self._lacks_thread:
                logger.warning(
                    "cannot start the thread that completes transactions; threads that wait for a completion perform "
                    "it themselves: %s",
                    error,
                )
            self._lacks_thread, self._thread = True, None
            return False
        self._lacks_thread, self._thread = False, thread
        return True

    def _waited(self, wait_s: float) -> bool:
        """Wait for a change, at most `wait_s`. If there is work and no thread to do it, return False at once. The
        caller holds the lock."""
        if self._waiting.jobs and not self._has_thread():
            return False
        self._changed.wait(wait_s)
        return True

    def _work_here(self) -> None:
        """Do the waiting work in this thread. The caller does not hold the lock. `_end` is called twice, in case an
        interrupt hits the first call."""
        batch = None
        try:
            try:
                with self._lock:
                    batch = self._waiting
                    self._begin(batch)
                self._work(batch.jobs)
            finally:
                if batch is not None:
                    self._end(batch)
        finally:
            if batch is not None:
                self._end(batch)

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            try:
                self._work(batch.jobs)
            finally:
                self._end(batch)
        if self._failed_last:
            count, error = self._failed_last
            logger.warning(
                "%d calls that complete transactions failed after the close (readers and compaction complete them "
                "later): %s",
                count,
                error,
            )

    def _work(self, jobs: Sequence[_Job]) -> None:
        try:
            run_together([job.begin() for job in jobs], self._perform, self.failed)
        except Exception as error:  # an error in a routine: readers and compaction do these jobs
            self.failed(error)

    def _begin(self, batch: _Batch) -> _Batch:
        batch.worker = threading.current_thread()
        self._begun.append(batch)
        self._waiting = _Batch()
        return batch

    def _end(self, batch: _Batch) -> None:
        with self._lock:
            if batch in self._begun:
                self._begun.remove(batch)
            self._changed.notify_all()

    def _take(self) -> _Batch | None:
        """Return all jobs that arrived by the end of the linger; None after `close`."""
        with self._lock:
            while not self._waiting.jobs:
                if self._closed:
                    return None
                self._changed.wait()
            linger_until = time.monotonic() + self._linger_s
            while not (self._urgent or self._closed or self._cells >= self._cells_max):
                left = linger_until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._begin(self._waiting)

    def failed(self, error: Exception) -> None:
        """Count and log an error. The transactions' outcomes do not change."""
        self.counters.failures += 1
        if (
            self._closed and threading.current_thread() is self._thread
        ):  # the store may be closed, so all remaining calls fail
            count, _ = self._failed_last or (0, error)
            self._failed_last = count + 1, error
        elif isinstance(error, OmidError) or self._closed:
            logger.warning("could not complete transactions (readers and compaction complete them later): %s", error)
        else:
            logger.error("completing transactions failed; readers and compaction complete them later", exc_info=error)


def run_together(
    jobs: Iterable[Routine[None]], perform: Callable[[Effect[Any]], Any], failed: Callable[[Exception], None]
) -> None:
    """Run all jobs to their end, in rounds. The effects of a round are merged by kind and table.

    An error is thrown into the jobs whose effects were merged, and passed once to `failed`. Other jobs continue.
    """
    waiting = [(job, effect) for job in jobs if (effect := _next_effect(job, None)) is not None]
    while waiting:
        next_round: list[tuple[Routine[None], Effect[Any]]] = []
        for group in _groups(waiting):
            error = _perform_merged([effect for _, effect in group], perform)
            if error is not None:
                failed(error)
            for job, _ in group:
                effect = _next_effect(job, error)
                if effect is not None:
                    next_round.append((job, effect))
        waiting = next_round


def _next_effect(job: Routine[None], error: Exception | None) -> Effect[Any] | None:
    try:
        return job.throw(error) if error is not None else job.send(None)
    except StopIteration:
        return None
    except Exception as raised:
        if raised is not error:
            raise
        return None


def _groups(waiting: Sequence[tuple[Routine[None], Effect[Any]]]) -> Iterable[list[tuple[Routine[None], Effect[Any]]]]:
    """Yield jobs grouped by kind of effect and table, in groups of at most `CELLS_AT_ONCE` cells."""
    open_groups: dict[tuple[type[Effect[Any]], str], list[tuple[Routine[None], Effect[Any]]]] = defaultdict(list)
    sizes: dict[tuple[type[Effect[Any]], str], int] = defaultdict(int)
    for job, effect in waiting:
        key = (type(effect), getattr(effect, "table", ""))
        size = _size(effect)
        if open_groups[key] and sizes[key] + size > CELLS_AT_ONCE:
            yield open_groups.pop(key)
            sizes[key] = 0
        open_groups[key].append((job, effect))
        sizes[key] += size
    yield from open_groups.values()


def _perform_merged(group: Sequence[Effect[Any]], perform: Callable[[Effect[Any]], Any]) -> Exception | None:
    try:
        perform(_merged(group))
    except Exception as error:
        return error
    return None


def _merged(group: Sequence[Effect[Any]]) -> Effect[Any]:
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


def _size(effect: Effect[Any]) -> int:
    match effect:
        case effects.WriteShadowCells(shadows=named) | effects.Heal(shadows=named):
            return len(named)
        case effects.WriteShadowBatches(batches=batches):
            # Fills a group alone, because batches are not merged.
            return max(CELLS_AT_ONCE, sum(batch.cells for batch in batches))
        case effects.DeleteVersions(cells=names) | effects.DeleteOrphans(cells=names):
            return len(names)
    return 1


async def _delete_writes(written: WriteSet, begun: tuple[object, ...]) -> None:
    """Delete the versions that may have been written, whatever the outcome of the writes in flight."""
    if begun:
        with contextlib.suppress(OmidError):
            await effects.EndWrites(begun)
    await delete_writes(written)


async def _single_step(effect: Effect[Any]) -> None:
    await effect


def _cells(written: WriteSet) -> int:
    return sum(len(cells) for cells in written.values())
