"""When kernels are loaded: on a thread of their own, while the program goes on in plain Python.

    is_ready ── loaded ──────────────────────────────► yes
       ├ few rows so far in this process ─────────────► no: a Python process of Spark's often does no more
       ├ numba is loaded, the kernel is kept on disk ─► loaded now (milliseconds), yes
       ├ many rows at once, the kernel is kept ───────► loaded now, yes: plain Python would take as long
       └ else ────────────────────────────────────────► no; a thread loads numba and the kernel (a second)
                                                          └ not kept: a process compiles it first (some 30 s, once)

Compiling in a process of its own takes nothing from this one's interpreter lock, and one process of the machine does it
for all. `PYOMID_KERNELS`: `auto` as above; `first` loads or compiles at the first use, which waits for it; `off` never.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol, TypeVar

from pyomid.arrays import is_numpy
from pyomid.kernels.cache import CACHE_VARIABLE, cache_folder
from pyomid.platforms import python_program

log = logging.getLogger(__name__)

MODE_VARIABLE: Final = "PYOMID_KERNELS"
FEW_ROWS: Final = 1_000
"""In plain Python they take a tenth of a second; loading numba and a few kernels takes half of one."""
MANY_ROWS: Final = 5_000
_COMPILE_S_MAX: Final = 300.0
NO_FOLDER: Final = (
    f"finds no folder to keep compiled kernels in, so each process would compile anew: set {CACHE_VARIABLE} to one that"
    " `pyomid warm-up` has filled, or that can be written"
)

T = TypeVar("T")
_Handler = Callable[[int, FrameType | None], Any]


class Loadable(Protocol):
    """A kernel."""

    @property
    def package(self) -> str: ...

    @property
    def source(self) -> Path: ...

    @property
    def is_kept(self) -> bool: ...

    def compiled(self) -> Any: ...


def is_ready(kernel: Loadable, rows: int = 0) -> bool:
    """Whether to call a kernel that is not loaded yet, on so many rows; if not, it may be a second later."""
    if not can_compile():
        return False
    is_now = os.environ.get(MODE_VARIABLE) == "first" or (_beside.is_idle and anything_is_loaded() and kernel.is_kept)
    if is_now or (rows >= MANY_ROWS and kernel.is_kept):
        kernel.compiled()
        return True
    _beside.load(kernel)
    return False


def is_worth_loading(kernel: Loadable, rows: int) -> bool:
    """Whether a kernel that is not loaded yet is wanted in a process that has, with these, had so many rows for it."""
    return rows > FEW_ROWS or os.environ.get(MODE_VARIABLE) == "first" or (anything_is_loaded() and kernel.is_kept)


@cache
def can_compile() -> bool:
    """Whether numba and numpy are there, and wanted; says once what lacks without them."""
    if os.environ.get(MODE_VARIABLE) == "off":
        return False
    if is_numpy() and find_spec("numba") is not None:
        return True
    log.warning(
        "works in plain Python: pip install 'pyomid[fast]' (numba, numpy) makes scans and large writes some ten times"
        " faster; PYOMID_KERNELS=off says that this is wanted"
    )
    return False


def are_kept(kernels: Sequence[Loadable]) -> bool:
    """Whether these are kept on disk, after another process has compiled what was missing, or none is ever loaded. For
    a program that would not answer while it compiles."""
    if not can_compile():
        return True
    missing = [each for each in kernels if not each.is_kept]
    return not missing or _compile_in_a_process(missing)


def anything_is_loaded() -> bool:
    """Whether this process has paid for its first kernel: importing numba takes half a second, a further kernel
    milliseconds."""
    return "numba" in sys.modules


def undisturbed(load: Callable[[], T]) -> T:
    """Loads while no signal's handler runs; those that came run behind it, each, whatever another one raises. What
    Ctrl-C broke off in numba it would never load again in this process: its lists of functions are generators, and have
    ended."""
    if threading.current_thread() is not threading.main_thread():
        return load()
    found = [(number, signal.getsignal(number)) for number in signal.valid_signals()]
    handlers: dict[int, _Handler] = {number: handler for number, handler in found if callable(handler)}
    present = [(number, handler, _action(number)) for number, handler in handlers.items()]
    came: list[tuple[int, FrameType | None]] = []
    try:
        for number in handlers:
            signal.signal(number, lambda *signalled: came.append(signalled))
        return load()
    finally:
        try:
            _restore(present)
        finally:
            _handle(handlers, came)


_ACTION_BYTES: Final = 512
"""Some times what `struct sigaction` takes on any system."""


def _action(number: int) -> bytes:
    """What the operating system does at this signal, in its own bytes: by them alone one knows whether it breaks off
    system calls (`signal.siginterrupt`)."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw


def _restore(present: list[tuple[int, _Handler, bytes]]) -> None:
    """All of them, though one that is restored may raise at once."""
    try:
        while present:
            number, handler, action = present[-1]
            signal.signal(number, handler)
            ctypes.CDLL(None).sigaction(number, action, None)
            present.pop()
    finally:
        if present:
            _restore(present)


def _handle(handlers: dict[int, _Handler], came: list[tuple[int, FrameType | None]]) -> None:
    """All of them, though one raises, in the order in which they came."""
    try:
        while came:
            number, frame = came.pop(0)
            handlers[number](number, frame)
    finally:
        if came:
            _handle(handlers, came)


@cache
def tell_of_compiling() -> None:
    """Once in a process, before the first kernel that is not kept."""
    log.warning("compiles its kernels, some 30 s, once; `pyomid warm-up` does so ahead")


@cache
def tell_of_no_folder() -> None:
    log.warning("%s", NO_FOLDER)


class _Beside:
    """Loads kernels on a thread. After a fork the child begins anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[Loadable] = []
        self._given_up: set[int] = set()
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        return self._thread is None

    def load(self, kernel: Loadable) -> None:
        with self._lock:
            if id(kernel) in self._given_up:
                return
            if kernel not in self._wanted:
                self._wanted.append(kernel)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="pyomid-kernels", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread can be had now
                    thread.start()
                    self._thread = thread

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted = list(self._wanted)
                if not wanted:
                    self._thread = None
                    return
            done = self._load(wanted)
            with self._lock:
                if not done:
                    self._given_up.update(map(id, wanted))
                self._wanted = [each for each in self._wanted if each not in wanted]

    def _load(self, wanted: list[Loadable]) -> bool:
        try:
            if not are_kept(wanted):
                return False
            for each in wanted:
                each.compiled()
        except Exception:
            log.exception("goes on in plain Python: kernels could not be loaded")
            return False
        return True


def _compile_in_a_process(missing: list[Loadable]) -> bool:
    """False: they cannot be kept."""
    folder = cache_folder(missing[0].source)
    if folder is None:
        tell_of_no_folder()
        return False
    with _turn(folder):
        missing = [each for each in missing if not each.is_kept]
        if missing:
            tell_of_compiling()
            packages = sorted({each.package for each in missing})
            command = [python_program(), "-P", "-m", "pyomid.kernels.compile_packages", "--beside", *packages]
            pipes: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
            try:
                why = subprocess.run(command, timeout=_COMPILE_S_MAX, check=False, **pipes).stderr[-2000:]
            except (OSError, subprocess.SubprocessError) as error:
                why = str(error)
            if not all(each.is_kept for each in missing):
                log.warning("goes on in plain Python: kernels could not be compiled: %s", why)
                return False
    return True


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One process of the machine compiles for all."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "pyomid-compiling", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_beside = _Beside()


def _begin_anew() -> None:
    global _beside
    _beside = _Beside()


os.register_at_fork(after_in_child=_begin_anew)
