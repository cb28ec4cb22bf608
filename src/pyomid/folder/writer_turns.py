"""Order a folder's writers: threads share group commits, and processes take turns by a lock.

Group commit: the first thread that gets the lock writes for several, and makes their writes durable together. A thread
that writes for others may be interrupted anywhere (Ctrl-C, no memory) without an effect on the others (decision 0039):
a member stays in the queue until its outcome is known. The next thread that gets the lock (perhaps the interrupted one,
on its way out) ends the current group before it begins its own. If a member's own caller was interrupted, the member is
not begun any more.

The lock lets a process wait for other writers with a timeout, and with an error that names the holder. LMDB's own lock
offers neither. So a process first takes a lock of ours, on the file `writer` next to LMDB's files, and waits for it in
short steps. Tools that skip our lock still contend on LMDB's, without a timeout. A process that dies loses the lock.
The first 8 bytes of the file are the number of the process that took the lock last.
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
"""The first and the longest delay between two attempts. The lock is mostly held for less than a millisecond."""


class WriterTurn:
    """The writers' lock of one open environment. One thread at a time may use it; another thread may close it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.is_held = False
        self._file = open_own(folder / WRITER_FILE, os.O_RDWR | os.O_CREAT, shared=is_shared(folder.parent))
        try:
            if os.fstat(self._file).st_size < _BYTES:
                os.pwrite(self._file, bytes(_BYTES), 0)  # touching a mapped hole on a full disk would kill the process
            self._map = mmap.mmap(self._file, _BYTES)
        except BaseException:
            os.close(self._file)
            raise

    def try_to_take(self) -> bool:
        """Take the lock if nobody has it, and return whether this process now holds it."""
        self.is_held = True  # set first: an interrupt after the lock call must not leave it held
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.is_held = False
            return False
        self._map[_PID] = os.getpid().to_bytes(8, "little")
        return True

    def take(self, give_up_s: float, began_s: float, *, shared: SharedFile | None = None) -> None:
        """Take the lock. Raises `Unavailable` if another process holds it until `give_up_s` (`time.monotonic`), and
        `ValueError` if the lock is closed."""
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
        """Release the lock. Idempotent, and allowed after `close`."""
        try:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except ValueError:  # another thread is closing it
            return
        finally:
            self.is_held = False

    def close(self) -> None:
        """Close the lock's file. In a forked child, the parent's lock stays held."""
        if self._file >= 0:
            file, self._file = self._file, -1
            self._map.close()
            os.close(file)

    def holder(self) -> str:
        """Return the process that took the lock last, as text for messages; only "a process" if that is unknown."""
        pid = 0 if self._file < 0 else int.from_bytes(self._map[_PID], "little")
        return f"process {pid} ({process_text(pid)})" if pid else "a process"

    def refused(self, waited_s: float) -> Unavailable:
        pid = int.from_bytes(self._map[_PID], "little")
        return Unavailable(
            f"nothing was written: {self.holder()} has been writing the embedded store in {self._folder} for "
            f"{waited_s:.1f} s, and other writers wait; let that process continue, or end it",
            folder=str(self._folder),
            pid=pid,
        )


# Group commit


class Group:
    """Members that share one write, and the outcome of the write. Any thread may read it at any time."""

    __slots__ = ("error", "is_committed")

    error: OmidError | None
    """The error of the write. With an error, no member may be written again."""
    is_committed: bool
    """True if the members' writes are durable, so that every process sees them."""


G = TypeVar("G", bound=Group)


class Member(Generic[G]):
    """One thread's write, and later its outcome. `weight` is its share of a group's limit."""

    __slots__ = ("error", "group", "is_abandoned", "weight")

    weight: int
    error: BaseException | None
    """The error of this member alone."""
    group: G | None
    is_abandoned: bool
    """True if the member's caller was interrupted."""

    @property
    def is_done(self) -> bool:
        group = self.group
        return self.error is not None or (group is not None and (group.is_committed or group.error is not None))

    def found_error(self) -> BaseException | None:
        return self.error or (self.group.error if self.group is not None else None)


M = TypeVar("M", bound=Member[Any])


def next_members(queue: deque[M], weight_max: int) -> list[M]:
    """Return the members of the next group: the first member that still waits, and those after it that fit within
    `weight_max`. The members stay in the queue."""
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
