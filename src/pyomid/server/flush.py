"""Flushes that go on while the event loop does, with no thread between.

    a disk:    begin ─► its descriptor is readable ─► the loop ends it ─► whoever began it is told ─► the next one
    a server:  begin ─► answers come to the loop ─► whoever began it is told; several beside each other

Where a flush cannot be begun so, its begin says so and a store thread does it: when another thread writes, when the
log needs room, on a disk or a system without such writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.crashpoints import crash_point
from pyomid.errors import OmidError, Unavailable
from pyomid.oracle.instructions import Flushed
from pyomid.ports import CommitTable, FlushesInBackground, FlushesOnLoop

log = logging.getLogger(__name__)

Ended = Callable[["Flushed | OmidError"], None]


class Background(Protocol):
    """How a table's flushes go on without a thread. On the loop's thread only."""

    @property
    def is_busy(self) -> bool:
        """Until it is not, no other flush may be begun, and nothing else put into the table on this thread."""

    def begin(self, entries: NDArray[np.int64], ended: Ended) -> bool:
        """`ended` is called with the result, or the error, from the loop. False: it was not begun."""

    def delete_at_once(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those entries that need a store thread."""

    def close(self) -> None: ...


def background_flush(table: CommitTable) -> Background | None:
    """None where this table, or this machine, has none."""
    if isinstance(table, FlushesOnLoop):
        return LoopFlush(table) if table.flushes_on_loop else None
    if not isinstance(table, FlushesInBackground):
        return None
    fileno = table.flush_ended_fileno()
    return None if fileno is None else BackgroundFlush(table, fileno)


class LoopFlush:
    """Of a table on a server: as many at once as are begun."""

    is_busy = False

    def __init__(self, table: FlushesOnLoop) -> None:
        self._table = table

    def begin(self, entries: NDArray[np.int64], ended: Ended) -> bool:
        crash_point("tso.flush.before")
        self._table.flush_on_loop(entries, partial(self._tell, ended))
        return True

    @staticmethod
    def _tell(ended: Ended, result: tuple[list[int], int] | Exception) -> None:
        if isinstance(result, Exception):
            ended(_as_failure(result))
        else:
            crash_point("tso.flush.after")
            ended(Flushed(frozenset(result[0]), result[1]))

    def delete_at_once(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        return starts

    def close(self) -> None:
        self._table.leave_loop()


def _as_failure(error: Exception) -> OmidError:
    if isinstance(error, OmidError):
        log.warning("a flush failed: %s", error, extra={"code": error.code})
        return error
    log.exception("a flush failed", exc_info=error)
    return Unavailable(f"{type(error).__name__}: {error}")


class BackgroundFlush:
    """Of a table on a disk: one at a time."""

    def __init__(self, table: FlushesInBackground, fileno: int) -> None:
        self._table = table
        self._fileno = fileno
        self._ended: Ended | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_busy(self) -> bool:
        """Until it is not, nothing else may be put into the table on this thread."""
        return self._ended is not None

    def begin(self, entries: NDArray[np.int64], ended: Ended) -> bool:
        """`ended` is called with the result, or the error, from the loop. False: it was not begun."""
        assert self._ended is None, "one flush at a time"
        crash_point("tso.flush.before")
        try:
            self._watch()
            begun = self._table.begin_flush(entries)
        except OmidError:  # of lasting ones the ordinary flush says the same, where errors are handled
            return False
        except Exception:
            log.exception("a flush failed before it began")
            return False
        if begun:
            self._ended = ended
        return begun

    def delete_at_once(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those entries that need a store thread."""
        try:
            return self._table.delete_at_once(starts)
        except OmidError:
            return starts

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fileno)
            self._loop = None

    def _watch(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._fileno, self._look)

    def _look(self) -> None:
        if self._ended is None:
            return
        result: Flushed | OmidError
        try:
            flushed = self._table.end_flush()
            if flushed is None:
                return
            crash_point("tso.flush.after")
            result = Flushed(frozenset(flushed[0]), flushed[1])
        except Exception as error:
            result = _as_failure(error)
        ended, self._ended = self._ended, None
        ended(result)
