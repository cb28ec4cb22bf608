"""Turns of a folder's writers: threads share group commits, and processes a lock.

Group commit: the first thread that gets the lock writes for several, and makes their writes durable together. A thread
that writes for others may be interrupted anywhere (Ctrl-C, no memory) without an effect on the others (decision 0039):
a member stays in the queue until its outcome is known. The next thread that gets the lock (perhaps the interrupted one,
on its way out) ends the present group before it begins its own. A member whose own caller was interrupted is not begun
any more.

The lock: a wait for LMDB's writer with a timeout, and an error that names the holder.

LMDB's own lock has no timeout and does not name its holder. So a process first takes a lock of ours, on the file
`writer` next to LMDB's files, and waits for it in short steps. Tools that skip our lock still contend on LMDB's,
without a timeout. A process that dies loses the lock. The first 8 bytes are the number of the process that took the
lock last.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pyomid.errors import OmidError, Unavailable
from pyomid.folder.shared_file import SharedFile
from pyomid.system import is_shared, open_own, process_text

WRITER_FILE: Final = "writer"
_PID: Final = slice(0, 8)
_BYTES: Final = 8
_STEP_S, _STEP_S_MAX = 0.00005, 0.001
"""The first and longest delay between two attempts: the lock is mostly held for less than a millisecond."""


class WriterTurn:
    """The lock of one open environment. One thread at a time may use it, and another may close it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.is_held = False
        self._file = open_own(folder / WRITER_FILE, os.O_RDWR | os.O_CREAT, shared=is_shared(folder.parent))
        try:
            if os.fstat(self._file).st_size < _BYTES:
                os.pwrite(self._file, bytes(_BYTES), 0)  # touching a mapped hole on a full disk kills the process
            self._map = mmap.mmap(self._file, _BYTES)
        except BaseException:
            os.close(self._file)
            raise

    def try_to_take(self) -> bool:
        """Take the lock if nobody has it."""
        self.is_held = True  # first: an interrupt behind the lock must not leave it held
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.is_held = False
            return False
        self._map[_PID] = os.getpid().to_bytes(8, "little")
        return True

    def take(self, give_up_s: float, began_s: float, *, shared: SharedFile | None = None) -> None:
        """Take the lock. `Unavailable` if another process holds it until `give_up_s` (`time.monotonic`); `ValueError`
        if it is closed."""
        step_s = _STEP_S
        while True:
            seen = 0 if shared is None else shared.turns()
            if self.try_to_take():
                return
            if time.monotonic() >= give_up_s:
                raise self.refused(time.monotonic() - began_s)
            if shared is None:
                time.sleep(step_s)
            else:
                shared.wait(seen, step_s)
            step_s = min(2 * step_s, _STEP_S_MAX)

    def release(self) -> None:
        """Release the lock. Idempotent, also after `close`."""
        try:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except ValueError:  # another thread is closing it
            return
        finally:
            self.is_held = False

    def close(self) -> None:
        """Close the file. In a child of fork the parent's lock stays held."""
        if self._file >= 0:
            file, self._file = self._file, -1
            self._map.close()
            os.close(file)

    def holder(self) -> str:
        """Return who took the lock last, for messages; nobody in particular if it is closed."""
        pid = 0 if self._file < 0 else int.from_bytes(self._map[_PID], "little")
        return f"process {pid} ({process_text(pid)})" if pid else "a process"

    def refused(self, waited_s: float) -> Unavailable:
        pid = int.from_bytes(self._map[_PID], "little")
        return Unavailable(
            f"nothing was written: the embedded store in {self._folder} has been written by {self.holder()} for "
            f"{waited_s:.1f} s, and other writers wait; let that process continue, or end it",
            folder=str(self._folder),
            pid=pid,
        )


# Group commit


class Group:
    """Members that share one write, and its outcome, which any thread may read at any time."""

    __slots__ = ("error", "is_committed")

    error: OmidError | None
    """The error of the write: no member may be written again."""
    is_committed: bool
    """The members' writes are durable, and every process sees them."""


G = TypeVar("G", bound=Group)


class Member(Generic[G]):
    """One thread's write; later its outcome. `weight`: its share of a group's limit."""

    __slots__ = ("error", "group", "is_abandoned", "weight")

    weight: int
    error: BaseException | None
    """The error of this member alone."""
    group: G | None
    is_abandoned: bool
    """Its caller was interrupted."""

    @property
    def is_done(self) -> bool:
        group = self.group
        return self.error is not None or (group is not None and (group.is_committed or group.error is not None))

    def found_error(self) -> BaseException | None:
        return self.error or (self.group.error if self.group is not None else None)


M = TypeVar("M", bound=Member[Any])


def next_members(queue: deque[M], weight_max: int) -> list[M]:
    """Return the members of the next group, which stay in the queue: the first that waits, and later ones that fit."""
    members: list[M] = []
    weight = 0
    for member in list(queue):
        if member.is_abandoned or member.is_done:
            if not members:
                queue.popleft()
        elif members and weight + member.weight > weight_max:
            break
        else:
            members.append(member)
            weight += member.weight
    return members
