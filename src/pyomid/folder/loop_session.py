"""A folder for asyncio: `ports.AsyncTso`. This is a separate module so that blocking programs need not import
asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pyomid import system
from pyomid.errors import OutcomeUnknown, Unavailable
from pyomid.folder import watermark
from pyomid.folder.environment import Environment
from pyomid.folder.session import FolderSession, closed_session
from pyomid.types import BeginReply, CommitReply, CommitRequest

_TAKEN_MAX: Final = 500
"""The most commits of tasks that are performed together."""


class LoopSession:
    """An implementation of `ports.AsyncTso` for a folder. Begins return at once; one thread commits for all tasks of
    the loop."""

    def __init__(self, session: FolderSession, environment: Environment) -> None:
        self._session, self._environment = session, environment
        self._made_in = system.here
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that used the client first. Only this loop may use it."""
        self._waiting: deque[tuple[bytes, asyncio.Future[CommitReply]]] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def write_set_ids_max(self) -> int:
        return 0

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        system.check_loop(self._made_in, self._loop, loop)
        self._loop = loop
        return loop

    async def begin(self, *, not_before: int = 0) -> BeginReply:
        self._own_loop()
        return self._session.begin(not_before=not_before)

    async def commit(self, request: CommitRequest) -> CommitReply:
        future: asyncio.Future[CommitReply] = self._own_loop().create_future()
        if self._closed:
            raise closed_session()
        if self._thread is None or not self._thread.is_alive():
            self._start_thread()
        self._waiting.append((request.packed, future))
        self._wake.set()
        return await future

    def _start_thread(self) -> None:
        """Start the thread, or another one if an interrupt or the system kept it from starting."""
        self._thread = threading.Thread(target=self._run, name="pyomid-commits", daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            raise Unavailable(
                f"nothing was committed, because the system cannot start a thread for the commit: {error}"
            ) from error

    def _run(self) -> None:
        ends = False
        while not ends:
            with suppress(BaseException):  # an exception must not end this thread, because tasks wait for it
                self._wake.wait()
                ends = self._closed  # read this first, so that commits sent before the close are performed
                self._wake.clear()
                while self._waiting:
                    self._perform()

    def _perform(self) -> None:
        taken: list[tuple[bytes, asyncio.Future[CommitReply]]] = []
        try:
            while self._waiting and len(taken) < _TAKEN_MAX:
                taken.append(self._waiting.popleft())
            watermark.look_if_due(self._environment, self._session.options.max_transaction_age_s)
            outcomes: list[Any] = self._environment.request_many([each[0] for each in taken])
        except Exception as error:
            outcomes = [error] * len(taken)
        except BaseException as error:
            outcomes = [OutcomeUnknown(f"the thread that commits was interrupted: {error!r}")] * len(taken)
        answers = [(each[1], outcome) for each, outcome in zip(taken, outcomes, strict=True)]
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed, so no task waits
            self._loop.call_soon_threadsafe(partial(_answer, answers))

    async def close(self) -> None:
        self._closed = True
        self._wake.set()


def _answer(answers: list[tuple[asyncio.Future[CommitReply], Any]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
