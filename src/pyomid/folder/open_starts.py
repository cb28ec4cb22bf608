"""The open starts of this process in one folder. The process's place in the shared file shows the oldest of them
(folder.md, L7)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Final
from weakref import ReferenceType

from pyomid import system
from pyomid.folder.shared_file import SharedFile
from pyomid.types import OpenStart

_TIDY_S: Final = 1.0


class _HeldStart(OpenStart):
    """An open start. The process's place in the shared file follows its end."""

    __slots__ = ("_starts", "since_ns")

    def __init__(self, starts: OpenStarts, number: int, at_least: int) -> None:
        self._starts, self.since_ns = starts, starts.now_ns()  # first: later another thread may read it
        super().__init__(starts.held, number, at_least, 0.0)

    def end(self) -> None:
        self._held.pop(self._number, None)
        self._starts.ended()


class OpenStarts:
    """The open starts of one process. All its sessions with the folder share this object, because they share a place.
    Thread-safe."""

    def __init__(self, shared: SharedFile | None) -> None:
        self.held: dict[int, ReferenceType[OpenStart]] = {}
        self.now_ns: Callable[[], int] = system.boot_clock_ns
        """Returns the time of a clock that all processes share. The age of a start is the time it has been open, not
        its timestamp's age."""
        self._shared = shared
        self._numbers = itertools.count(1)
        self._newest = 1
        """The newest start that this process knows. The start of a later begin is at or above it."""
        self._noting = threading.RLock()
        """Held while the slot is compared with the open starts. It is reentrant, because a signal handler may begin and
        end a transaction of its own at any point."""
        self._tidied_s = time.monotonic()
        self.released = 0
        """Every start above this timestamp may be open. 0 means that W was raised to it, or as far as permitted
        (`watermark`)."""
        self.looked_s = float("-inf")

    def begin(self) -> OpenStart:
        """Note a start that is about to be read from the clock. The slot is lowered if needed."""
        with self._noting:
            held = _HeldStart(self, next(self._numbers), self._newest)
            if self._shared is not None and not 0 < self._shared.held() <= held.at_least:
                self._shared.hold(held.at_least, held.since_ns)
        return held

    def begun(self, held: OpenStart, start_ts: int) -> None:
        was_first, held.at_least = held.at_least == 1, start_ts
        if start_ts > self._newest:
            self._newest = start_ts
        if was_first or time.monotonic() > self._tidied_s + _TIDY_S:
            self.tidy()

    def ended(self) -> None:
        """Clear the slot if no start is open, and correct it if the oldest start has become garbage."""
        if self._shared is None or not system.here.pid:
            return
        if self.held:
            try:
                oldest = next(iter(self.held.values()), None)
            except RuntimeError:  # another thread ends a start at this moment
                return
            if oldest is not None and oldest() is None:
                self.tidy()
            return
        with self._noting:
            if not self.held:
                self._shared.hold(0)

    def tidy(self) -> None:
        """Note the oldest start that is still open, because others may have ended or become garbage."""
        self._tidied_s = time.monotonic()
        if self._shared is None:
            return
        with self._noting:
            for _, oldest, since_ns in self.oldest() or [(0, 0, 0)]:
                self._shared.hold(oldest, since_ns)

    def oldest(self) -> list[tuple[int, int, int]]:
        """Return one tuple (process id, oldest open start, since when), or nothing if no start is open."""
        oldest, since_ns = 0, 0
        for number, reference in list(self.held.items()):
            held = reference()
            if held is None:
                self.held.pop(number, None)
            elif not oldest or held.at_least < oldest:
                oldest, since_ns = held.at_least, held.since_ns  # type: ignore[attr-defined]
        return [(system.here.pid, oldest, since_ns)] if oldest else []
