"""Whose turn it is to write: a wait for LMDB's writer that ends, and an error that names who holds it.

LMDB's own lock cannot be waited for with a bound, nor says who has it. So a process takes a lock of ours first, on the
file `writer` beside LMDB's files, and waits for that in short steps. LMDB's lock still decides: who comes past ours (a
tool of LMDB's) is excluded by it, and waited for as ever. A process that dies loses the lock. The file holds the number
of the process that took it last.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import Final

from pyomid.errors import Unavailable
from pyomid.owned_files import is_shared, open_own, process_text

WRITER_FILE: Final = "writer"
_BYTES: Final = 8
_STEP_S, _STEP_S_MAX = 0.00005, 0.001
"""The wait between two tries grows: most turns last less than a millisecond."""


class WriterTurn:
    """The lock of one open environment. One thread at a time calls it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = open_own(folder / WRITER_FILE, os.O_RDWR | os.O_CREAT, shared=is_shared(folder.parent))
        try:
            if os.fstat(self._file).st_size < _BYTES:
                os.pwrite(self._file, bytes(_BYTES), 0)  # to touch a mapped hole on a full disk ends the process
            self._map = mmap.mmap(self._file, _BYTES)
        except BaseException:
            os.close(self._file)
            raise

    def take(self, give_up_s: float, began_s: float) -> None:
        """`Unavailable` if another process has it at `give_up_s`, of `time.monotonic`."""
        step_s = _STEP_S
        while not self._is_taken():
            if time.monotonic() >= give_up_s:
                raise self._refused(time.monotonic() - began_s)
            time.sleep(step_s)
            step_s = min(2 * step_s, _STEP_S_MAX)
        self._map[:_BYTES] = os.getpid().to_bytes(_BYTES, "little")

    def release(self) -> None:
        """Any number of times."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """In a child of fork too: what its parent holds stays held."""
        if self._file >= 0:
            file, self._file = self._file, -1
            self._map.close()
            os.close(file)

    def _is_taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _refused(self, waited_s: float) -> Unavailable:
        pid = int.from_bytes(self._map[:_BYTES], "little")
        return Unavailable(
            f"the embedded store in {self._folder} has been written by process {pid} ({process_text(pid)}) for"
            f" {waited_s:.1f} s, and others wait for it: nothing was written; let that process go on, or end it",
            folder=str(self._folder),
            pid=pid,
        )
