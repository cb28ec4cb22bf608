"""The asyncio driver of routines.

Over HBase, small writes of several tasks share calls: writes that arrive during a call share the next call.

    task 1   ── write ─────────▶ (alone: at once)
    task 2        wait ···········── 2, 3, 4 in one call ──▶
    task 3            wait ·······························▶
    task 4                wait ···························▶

`omid.hbase.group_commit` does the same for threads; in this module, one thread makes a call for hundreds of tasks. If a
task is cancelled before its call begins, its write is never sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from pyomid.coroutines import Blocking, Effect, Pause, Routine, adrive
from pyomid.crashpoints import crash_point
from pyomid.database.driver import CallProgram, Driver
from pyomid.ports import DataStore
from pyomid.protocol import effects
from pyomid.protocol.effects import WriteCells
from pyomid.types import VersionedRows

T = TypeVar("T")


AsyncHandler = Callable[[Any], Awaitable[Any]]


class AsyncRun(Protocol):
    """The type of `AsyncDriver.run`."""

    async def __call__(self, routine: Routine[T], /) -> T: ...


class AsyncDriver:
    """Runs routines in the event loop. Effects with a handler in `awaited` are awaited. All other effects block on a
    disk or a socket, so they run in threads, one at a time for each transaction. Requests to the TSO run in
    `tso_threads`, so that no begin waits for a disk; other calls run in `store_threads`.
    """

    def __init__(
        self,
        blocking: Driver,
        awaited: Mapping[type[Effect[Any]], AsyncHandler],
        *,
        tso_threads: Executor,
        store_threads: Executor,
    ) -> None:
        self._blocking = blocking
        self._awaited: dict[type[Effect[Any]], AsyncHandler] = {
            CallProgram: lambda e: e.call(),
            Pause: lambda e: asyncio.sleep(e.pause_s),
            **awaited,
        }
        self._tso_threads = tso_threads
        self._store_threads = store_threads

    def perform(self, effect: Effect[Any]) -> Awaitable[Any]:
        awaited = self._awaited.get(type(effect))
        return self._in_thread(effect) if awaited is None else awaited(effect)

    async def _in_thread(self, effect: Effect[Any]) -> Any:
        kind = type(effect)
        if kind is effects.Heal or kind is effects.DeleteOrphans:
            return self._blocking.perform(effect)  # does not block: it only queues for the background
        threads = self._tso_threads if kind in ASKS_TSO else self._store_threads
        return await asyncio.get_running_loop().run_in_executor(threads, self._blocking.perform, effect)

    def run(self, routine: Routine[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs a routine, which the caller must await at once. If a task were cancelled before
        that, the routine would never start, and Python would warn."""
        return adrive(routine, self.perform)

    async def in_thread(self, call: Callable[[], T]) -> T:
        result: T = await self.perform(Blocking(call))
        return result


ASKS_TSO: Final = frozenset({effects.Begin, effects.SendCommit, effects.SealStarts})


# Shared writes

ROWS_MAX: Final = 1000
BYTES_MAX: Final = 4 << 20
"""Limits of one shared call, which its last write may exceed. Between two calls, the server can serve other writers."""

_Outcomes = list[Exception | None]
_Written = asyncio.Future[None]


@dataclass(slots=True)
class _Line:
    """The wait queue of one table. It exists while a call for the table is in flight."""

    waiting: deque[tuple[WriteCells, _Written]] = field(default_factory=deque)


class SharedWrites:
    """Combines writes of the tasks of one event loop into shared calls, which `threads` make."""

    def __init__(self, store: DataStore, threads: Executor) -> None:
        self._store = store
        self._threads = threads
        self._lines: dict[str, _Line] = {}

    async def write(self, effect: WriteCells) -> None:
        """Perform the effect. If its own rows or the whole shared call failed, raise that error."""
        written: _Written = asyncio.get_running_loop().create_future()
        line = self._lines.get(effect.table)
        if line is None:
            line = self._lines[effect.table] = _Line()
            line.waiting.append((effect, written))
            self._send(effect.table, line)
        else:
            line.waiting.append((effect, written))
        await written

    def _send(self, table: str, line: _Line) -> None:
        """Begin the next call, if a write waits."""
        while taken := _taken(line):
            writes = [VersionedRows(effect.version, effect.rows) for effect, _ in taken]
            futures = [written for _, written in taken]
            try:
                call = asyncio.get_running_loop().run_in_executor(self._threads, _made, self._store, table, writes)
            except RuntimeError as error:  # no thread can start, or the client is closed: nothing was sent
                _set_outcomes(futures, [error] * len(futures))
            else:
                call.add_done_callback(partial(self._ended, table, line, futures))
                return
        del self._lines[table]

    def _ended(self, table: str, line: _Line, futures: Sequence[_Written], call: asyncio.Future[_Outcomes]) -> None:
        try:
            outcomes = call.result()
        except Exception as error:
            outcomes = [error] * len(futures)
        _set_outcomes(futures, outcomes)
        self._send(table, line)


def _taken(line: _Line) -> list[tuple[WriteCells, _Written]]:
    """Return the next writes for one call, without writes of cancelled tasks."""
    taken: list[tuple[WriteCells, _Written]] = []
    rows = size = 0
    while line.waiting and rows < ROWS_MAX and size < BYTES_MAX:
        effect, written = line.waiting.popleft()
        if not written.done():
            taken.append((effect, written))
            rows += len(effect.rows)
            size += sum(len(value) for row in effect.rows for _, value in row.cells if value is not None)
    return taken


def _set_outcomes(futures: Sequence[_Written], outcomes: Sequence[Exception | None]) -> None:
    for written, outcome in zip(futures, outcomes, strict=True):
        if written.done():
            continue  # its task was cancelled meanwhile, and rolls back
        if outcome is None:
            written.set_result(None)
        else:
            written.set_exception(outcome)


def _made(store: DataStore, table: str, writes: Sequence[VersionedRows]) -> _Outcomes:
    crash_point("client.flush.before")
    outcomes = store.write_shared(table, writes)
    crash_point("client.flush.after")
    return outcomes
