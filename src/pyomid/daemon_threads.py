"""Threads for which a program does not wait when it exits.

After a task was cancelled or timed out, its call continues in the thread until the call's own deadline (a minute if no
TSO replies). `asyncio.run` would wait for threads of `asyncio.to_thread`, and Python would wait at its exit for the
threads of any `ThreadPoolExecutor`.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """An executor like `ThreadPoolExecutor`, but with daemon threads. It raises `RuntimeError` if the system cannot
    start the first thread. After `shutdown`, or when the executor is garbage, the threads finish the submitted calls
    and end."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._threads = 0
        self._is_shut = False
        self._starting = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._calls: SimpleQueue[Any] = SimpleQueue()
        """Pairs (future, call); any other item ends the threads."""
        self._forgotten = weakref.ref(self, self._calls.put)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._starting:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if not self._idle.acquire(blocking=False) and self._threads < self._threads_max:
                self._start()
            self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _start(self) -> None:
        work = (self._calls, self._idle, self._forgotten)
        thread = threading.Thread(target=_work, args=work, name=f"{self._name}-{self._threads}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            if not self._threads:
                raise
        else:
            self._threads += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the submitted calls. The call never waits."""
        with self._starting:
            self._is_shut = True
            self._calls.put(None)


def _work(calls: SimpleQueue[Any], idle: threading.Semaphore, forgotten: object) -> None:
    """Make submitted calls until the executor ends. `forgotten` keeps the executor's weak reference alive, because its
    callback runs only while the weak reference exists."""
    while isinstance(work := calls.get(), tuple):
        future, call = work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del work, future, call  # keep no reference to the result
        idle.release()
    calls.put(None)


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """Run `call` in a daemon thread and return its result, like `asyncio.to_thread`."""
    return await asyncio.get_running_loop().run_in_executor(DaemonThreads(1, "pyomid-call"), call)
