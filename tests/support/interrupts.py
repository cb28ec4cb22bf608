"""Raises an error at each place in turn where one can come into a thread by itself: Ctrl-C, no memory, a cancellation.

CPython lets a signal's handler run (and so `KeyboardInterrupt` come up) at these places only, and a test of all others
would ask what no program can give, such as a `finally` that is not begun:

    a function's first instruction          on the way in, before anything of it
    behind a call of C                      what it did is done, its result is lost
    instead of a call of C that waits       a lock, a socket, a sleep: it ends with the error
    a jump backwards                        each turn of a loop

`every_place` runs one scene again and again, the error one place further each time, until it comes no more.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, TypeVar

from pyomid.database.writes import (
    conflict_ids,
    open_reads,
    outbox,
    overlay,
    own_cells,
    packed_outbox,
    savepoints,
    store_view,
    write_buffer,
)

T = TypeVar("T")

OWN_WRITES: Final = (
    *(conflict_ids, open_reads, outbox, overlay, own_cells),
    *(packed_outbox, savepoints, store_view, write_buffer),
)
"""The modules of a transaction's own writes."""

WAITING: Final = frozenset({"acquire", "poll", "recv", "sendall", "sleep", "wait", "connect"})
JUMPS_BACK: Final = frozenset(
    number for name, number in dis.opmap.items() if name.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD"))
)
ENTERS: Final = frozenset(
    number for name, number in dis.opmap.items() if name.startswith(("BEFORE_WITH", "LOAD_SPECIAL"))
)


class Interrupter:
    """Raises `error` at the place number `at` of this thread in `modules`."""

    def __init__(self, modules: tuple[ModuleType, ...], error: BaseException, at: int) -> None:
        self.error = error
        self.hit = ""
        """Where it was raised; empty: there was no such place."""
        self._files = frozenset(module.__file__ for module in modules)
        self._left = at
        self._codes: dict[CodeType, bytes] = {}

    def __enter__(self) -> None:
        """Not by a generator: interrupted on its way, it would end this at any later time, when it is collected."""
        sys.setprofile(self._profile)
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def outcome(self, call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        """What `call` returned, or what it raised, with the error coming in its turn."""
        try:
            with self:
                return call(), None
        except BaseException as raised:
            return None, raised

    def _is_inside(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename in self._files

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" or not self._is_inside(frame):
            return
        if event in ("call", "c_return") or (event == "c_call" and argument.__name__ in WAITING):
            self._place(frame, event)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_inside(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace_inside

    def _trace_inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            code = self._codes.setdefault(frame.f_code, frame.f_code.co_code)
            if code[frame.f_lasti] in JUMPS_BACK or code[frame.f_lasti] in ENTERS:
                self._place(frame, dis.opname[code[frame.f_lasti]])
        return self._trace_inside

    def _place(self, frame: FrameType, what: str) -> None:
        self._left -= 1
        if self._left == -1:
            self.hit = f"{frame.f_code.co_qualname}:{frame.f_lineno} {what}"
            sys.settrace(None)
            sys.setprofile(None)
            raise self.error


def every_place(
    modules: tuple[ModuleType, ...],
    error: Callable[[], BaseException],
    scene: Callable[[Interrupter], None],
    *,
    step: int = 1,
) -> int:
    """Runs `scene` for every place; it arms the interrupter, and checks what it left. The number of places."""
    at = 0
    while True:
        interrupter = Interrupter(modules, error(), at)
        try:
            scene(interrupter)
        except BaseException as failed:
            failed.add_note(f"place {at}: {interrupter.hit}")
            raise
        if not interrupter.hit:
            return at
        at += step


def with_frames_left(left: int, call: Callable[[], Any]) -> Any:
    """Call at a depth from which the recursion limit is so many frames away."""
    used, frame = 0, sys._getframe()
    while frame.f_back is not None:
        used, frame = used + 1, frame.f_back
    return at_depth(sys.getrecursionlimit() - used - left, call)


def at_depth(more: int, call: Callable[[], Any]) -> Any:
    return call() if more <= 0 else at_depth(more - 1, call)
