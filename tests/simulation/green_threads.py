"""Blocking code as tasks of a simulated universe: each thread is a greenlet that gives way where it waits.

What the shipped front ends take from `threading`, `concurrent.futures`, `time` and asyncio's event loop has a stand-in
here that waits in the universe's time, so that who runs next is the seed's choice at every wait. Between two waits
nothing else runs: what interleaves are calls to the ports, waits for locks and conditions, sleeps, and the loop's
turns.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar
from unittest.mock import patch

from greenlet import GreenletExit, getcurrent, greenlet

from simulation.universe import Process, Sleep, Task, Universe


class Green(greenlet):
    """One thread of a simulated process."""

    universe: Universe
    process: Process
    task: Task
    loop: Loop | None = None

    living: ClassVar[dict[Process, list[Green]]] = {}


def spawn(universe: Universe, process: Process, name: str, function: Callable[[], Any]) -> Task:
    """A task that runs `function`, which may `wait`."""
    green = Green(function)
    green.universe, green.process = universe, process
    green.task = universe.spawn(process, name, _steps(green))
    Green.living.setdefault(process, []).append(green)
    return green.task


def _steps(green: Green) -> Generator[Any, Any, Any]:
    green.parent = getcurrent()
    waited_for = green.switch()
    while not green.dead:
        try:
            answer = yield waited_for
        except GeneratorExit:
            raise
        except BaseException as error:
            waited_for = green.throw(error)
        else:
            waited_for = green.switch(answer)
    return waited_for


def this_green() -> Green:
    """The thread that runs. What the garbage collector ends for a dead process runs in none, and goes no further."""
    green = getcurrent()
    if not isinstance(green, Green):
        raise GreenletExit
    return green


def wait(effect: Any) -> Any:
    """Gives way until the universe answers `effect`. In a process that died nothing goes on."""
    green = this_green()
    if not green.process.alive:
        raise GreenletExit
    assert green.parent is not None
    return green.parent.switch(effect)


def drive(steps: Generator[Any, Any, Any]) -> Any:
    """A generator of the simulation, its effects waited for here."""
    try:
        effect = steps.send(None)
        while True:
            try:
                answer = wait(effect)
            except Exception as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(answer)
    except StopIteration as stop:
        return stop.value


def bury(process: Process) -> None:
    """Its threads end where they stand; nothing that they do on the way out reaches anybody."""
    for green in Green.living.pop(process, []):
        if not green.dead:
            green.throw(GreenletExit)
        if green.loop is not None:
            green.loop.bury()


# What the front ends import


class Lock:
    """`threading.RLock`, and `threading.Lock` for who takes it once."""

    def __init__(self) -> None:
        self._owner: Green | None = None
        self._depth = 0
        self._waiting: list[Green] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = this_green()
        until_s = None if timeout < 0 else me.universe.now_s + timeout
        while self._owner not in (None, me) and self._owner is not None and self._owner.process.alive:
            left = None if until_s is None else until_s - me.universe.now_s
            if not blocking or (left is not None and left <= 0):
                return False
            self._waiting.append(me)
            wait(Sleep(left))
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            _wake(self._waiting)

    def let_go(self) -> int:
        """However often it was entered; how often, for `take_again`."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_again(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.release()


class Condition:
    """`threading.Condition`, over a lock that others may enter by itself."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._sleeping: list[Green] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        me = this_green()
        depth = self._lock.let_go()
        self._sleeping.append(me)
        try:
            wait(Sleep(timeout if timeout is None else max(0.0, timeout)))
        finally:
            told = me not in self._sleeping
            if not told:
                self._sleeping.remove(me)
            if me.process.alive:
                self._lock.take_again(depth)
        return told

    def notify_all(self) -> None:
        _wake(self._sleeping)

    notify = notify_all


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._sleeping: list[Green] = []

    def set(self) -> None:
        self._set = True
        _wake(self._sleeping)

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            me = this_green()
            self._sleeping.append(me)
            wait(Sleep(timeout))
            if me in self._sleeping:
                self._sleeping.remove(me)
        return self._set


class SimpleQueue:
    """`queue.SimpleQueue`. The garbage collector may put something into it, outside of every thread."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._sleeping: list[Green] = []

    def put(self, item: object) -> None:
        self._items.append(item)
        _wake(self._sleeping)

    def get(self, timeout: float | None = None) -> Any:
        me = this_green()
        until_s = None if timeout is None else me.universe.now_s + timeout
        while not self._items:
            left_s = None if until_s is None else until_s - me.universe.now_s
            if left_s is not None and left_s <= 0:
                raise Empty
            self._sleeping.append(me)
            wait(Sleep(left_s))
            if me in self._sleeping:
                self._sleeping.remove(me)
        return self._items.pop(0)

    def get_nowait(self) -> Any:
        return self.get(0.0)


class Thread:
    """`threading.Thread` of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        daemon: bool = False,
    ) -> None:
        self._run = lambda: target(*args, **kwargs or {}) if target is not None else None
        self.name, self.daemon = name, daemon
        self._task: Task | None = None

    def start(self) -> None:
        me = this_green()
        self._task = spawn(me.universe, me.process, f"{me.process.name}.{self.name}", self._run)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.finished

    def join(self, timeout: float | None = None) -> None:
        me = this_green()
        until_s = me.universe.now_s + (1e9 if timeout is None else timeout)
        while self.is_alive() and me.universe.now_s < until_s:
            wait(Sleep(0.05))


class Executor:
    """`ThreadPoolExecutor`, with a thread for each call."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._closed = False

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        me = this_green()
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call(*arguments)
            except GreenletExit:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        spawn(me.universe, me.process, f"{me.process.name}.pool", run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True


class Loop(asyncio.BaseEventLoop):
    """An event loop that waits for nothing but the universe: it has no sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.green = this_green()
        self.green.loop = self
        self._selector = self
        self._waits = False
        self.set_exception_handler(lambda loop, context: None)

    def bury(self) -> None:
        """Its coroutines end as the process did: without a word."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]

    def time(self) -> float:
        return self.green.universe.now_s

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            asyncio._set_running_loop(None)
            self._waits = True
            try:
                wait(Sleep(timeout))
            finally:
                self._waits = False
                asyncio._set_running_loop(self)
        return []

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None:
        if self._waits:
            self.green.task.ready = True

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:
        pool = executor if executor is not None else Executor()
        return asyncio.wrap_future(pool.submit(function, *arguments), loop=self)


def _wake(sleeping: list[Green]) -> None:
    for green in sleeping:
        green.task.ready = True
    sleeping.clear()


def _sleep(seconds: float) -> None:
    wait(Sleep(seconds))


def _now_s() -> float:
    green = getcurrent()
    return green.universe.now_s if isinstance(green, Green) else 0.0


def _process_id() -> int:
    """A number for each simulated process; the real one for whoever asks from outside."""
    green = getcurrent()
    return 1_000_000 + green.universe.processes.index(green.process) if isinstance(green, Green) else os.getpid()


ROOT: dict[str, Any] = {}
"""What the universe that plays now is."""

OS = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
OS.getpid = _process_id

THREADING = SimpleNamespace(
    Lock=Lock,
    RLock=Lock,
    Condition=Condition,
    Event=Event,
    Thread=Thread,
    get_ident=lambda: id(getcurrent()),
    current_thread=threading.current_thread,
    excepthook=threading.excepthook,
    TIMEOUT_MAX=threading.TIMEOUT_MAX,
)
TIME = SimpleNamespace(
    monotonic=_now_s, time=_now_s, sleep=_sleep, perf_counter=_now_s, clock_gettime=lambda _: _now_s(), CLOCK_BOOTTIME=7
)


@contextmanager
def simulated(modules: list[Any]) -> Iterator[None]:
    """While it lasts the threads, clocks and pools of these modules are the simulation's."""
    stand_ins = {
        "threading": THREADING, "time": TIME, "ThreadPoolExecutor": Executor, "DaemonThreads": Executor,
        "SimpleQueue": SimpleQueue, "os": OS,
    }  # fmt: skip
    with ExitStack() as patches:
        for module in modules:
            for name, stand_in in stand_ins.items():
                if hasattr(module, name):
                    patches.enter_context(patch.object(module, name, stand_in))
        yield
