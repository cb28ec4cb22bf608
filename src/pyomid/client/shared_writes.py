"""Small writes of many tasks in one call of the store: what arrives while a call is under way shares the next one.

    task 1   ── write ─────────▶ (alone: at once)
    task 2        wait ···········── 2, 3, 4 in one call ──▶
    task 3            wait ·······························▶
    task 4                wait ···························▶

As `storage.hbase.rpc.group_commit` does for threads. There the bound is the number of threads; here two hundred tasks
fill one call, which one thread makes. A write whose task was cancelled before its call began is never sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyomid.crashpoints import crash_point
from pyomid.ports import DataStore
from pyomid.protocol.effects import WriteCells
from pyomid.types import VersionedRows

ROWS_MAX: Final = 1000
BYTES_MAX: Final = 4 << 20
"""Rows, and bytes of values, in one shared call, of which the last write may bring some more. Bounded, so that other
writers of the server get their turn."""

_Outcomes = list[Exception | None]
_Written = asyncio.Future[None]


@dataclass(slots=True)
class _Line:
    """Those that write to one table. There is one while a call for it is under way."""

    waiting: deque[tuple[WriteCells, _Written]] = field(default_factory=deque)


class SharedWrites:
    """For the tasks of one event loop. Its calls are made in `threads`."""

    def __init__(self, store: DataStore, threads: Executor) -> None:
        self._store = store
        self._threads = threads
        self._lines: dict[str, _Line] = {}

    async def write(self, effect: WriteCells) -> None:
        """Performs the effect. An error is of its own rows, or of the call that carried them."""
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
        """The next call; none if nobody waits for one."""
        while taken := _taken(line):
            writes = [VersionedRows(effect.version, effect.rows) for effect, _ in taken]
            told = [written for _, written in taken]
            try:
                call = asyncio.get_running_loop().run_in_executor(self._threads, _made, self._store, table, writes)
            except RuntimeError as error:  # there is no thread, or the client is closed: nothing was sent
                _tell(told, [error] * len(told))
            else:
                call.add_done_callback(partial(self._ended, table, line, told))
                return
        del self._lines[table]

    def _ended(self, table: str, line: _Line, told: Sequence[_Written], call: asyncio.Future[_Outcomes]) -> None:
        try:
            outcomes = call.result()
        except Exception as error:
            outcomes = [error] * len(told)
        _tell(told, outcomes)
        self._send(table, line)


def _taken(line: _Line) -> list[tuple[WriteCells, _Written]]:
    """The next writes for one call, without those whose tasks were cancelled."""
    taken: list[tuple[WriteCells, _Written]] = []
    rows = size = 0
    while line.waiting and rows < ROWS_MAX and size < BYTES_MAX:
        effect, written = line.waiting.popleft()
        if not written.done():
            taken.append((effect, written))
            rows += len(effect.rows)
            size += sum(len(value) for row in effect.rows for _, value in row.cells if value is not None)
    return taken


def _tell(told: Sequence[_Written], outcomes: Sequence[Exception | None]) -> None:
    for written, outcome in zip(told, outcomes, strict=True):
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
