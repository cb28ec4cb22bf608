"""Who is the TSO of a folder: whoever holds the lock in it. And how a leader in doubt ends.

The lock file is never unlinked (T14): a second file of the same name would be a second lock. It is closed at exec,
so no child holds it by accident; the system drops it when the process dies, however it dies. The socket is unlinked
before the lock is released, so that whoever finds it finds a process that has not finished yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from pyomid.errors import Misuse, Unavailable
from pyomid.owned_files import open_own, user_text

LOCK_FILE: Final = "tso.lock"
SOCKET_FILE: Final = "tso.sock"
_SIGNATURE_BYTES: Final = 1024
"""Always written whole, so that nobody reads half of it."""
_REASON_CHARS_MAX: Final = 300

DOUBT_EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the process ended itself because it could not know whether it still leads."""


def boot_clock() -> float:
    """Seconds that go on counting while the machine sleeps (T4)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def die_now(reason: str) -> NoReturn:
    """Ends the process without sending, flushing or closing anything but its log."""
    logging.shutdown()
    os._exit(DOUBT_EXIT_CODE)


class Leadership(Protocol):
    """A lease on being the TSO, of those who may (protocol.md, Leadership). The epoch row is what really fences."""

    def acquire(self, stop: threading.Event) -> float | None:
        """Waits until this process leads; until when (of `boot_clock`) without a renewal. None where `stop` was set.

        The time counts from before the write that took the lease.
        """

    def keep(self, renewed: Callable[[float], object], lost: Callable[[str], object]) -> None:
        """From now on renewed by a thread: `renewed(until_s)` after each renewal, `lost(why)` once."""

    def announce(self, epoch: int) -> None:
        """Clients find this TSO when it returns. `Deposed` where a later one was faster."""

    def release(self) -> None:
        """The end in order, when nothing is served any more: a standby may take over at once."""


class FolderLock:
    """The lease of a folder's TSO."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd = -1

    def acquire(self) -> bool:
        """False where another process holds it. `Misuse` where the file is another user's."""
        path = self.folder / LOCK_FILE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise Misuse(
                f"{path} is not yours: {owner_text(path)} runs the TSO here", folder=str(self.folder)
            ) from error
        except OSError as error:
            raise Misuse(f"{path} cannot be opened: {error.strerror}", folder=str(self.folder)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        self._sign()
        return True

    def release(self, died_of: str = "") -> None:
        """The socket goes first, the lock after it; the file stays, and says how its holder ended."""
        if self._fd >= 0:
            (self.folder / SOCKET_FILE).unlink(missing_ok=True)
            self._sign({"died_of": died_of[:_REASON_CHARS_MAX]} if died_of else {"ended": True})
            os.close(self._fd)
            self._fd = -1

    def disown(self) -> None:
        """After a fork, in the process that does not serve: its copy of the lock is closed, the child's holds."""
        os.close(self._fd)
        self._fd = -1

    def sign_again(self) -> None:
        """After a fork, in the process that serves: the file names it."""
        self._sign()

    def _sign(self, end: Mapping[str, object] | None = None) -> None:
        """For people, for messages and for the pace of restarts; the lock itself is the system's."""
        said = json.dumps({"pid": os.getpid(), **(end or {})}).encode()
        with contextlib.suppress(OSError):  # a full disk
            os.pwrite(self._fd, said.ljust(_SIGNATURE_BYTES), 0)


def holder(folder: Path) -> dict[str, Any]:
    """What the last holder of the lock wrote into it: `pid`, and at its end `ended` (in order) or `died_of`; empty
    where nothing is known. One that was killed wrote no end."""
    try:
        said = json.loads((folder / LOCK_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def is_held(folder: Path) -> bool:
    """Whether somebody holds the lock at this moment; for messages."""
    try:
        fd = open_own(folder / LOCK_FILE, os.O_RDONLY)
    except (OSError, Misuse):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def state_text(pid: int) -> str:
    """Of a process of this machine; for messages."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "it is not seen from here"
    return {"T": "it is stopped", "t": "it is stopped", "D": "it waits for a disk", "Z": "it is dead"}.get(
        state, "it is alive"
    )


def owner_text(path: Path) -> str:
    """The user a file belongs to, by name where it has one."""
    try:
        return user_text(path.stat().st_uid)
    except OSError:
        return "an unknown user"


def listen_in(folder: Path, *, name: str = SOCKET_FILE, backlog: int = 1024) -> socket.socket:
    """The folder's Unix socket, listening; only its owner may connect. The lock must be held: a leftover is removed."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        with short_path(folder, name) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            sock.bind(path)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen in {folder}: {error.strerror}", folder=str(folder)) from error
    finally:
        os.umask(mask)
    return sock


def connect_in(folder: Path, *, timeout_s: float) -> socket.socket:
    """A connection to the folder's TSO. `OSError` as the system raises it: nobody there is no error of the caller."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        with short_path(folder, SOCKET_FILE) as path:
            sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A path to `name` in `folder` that fits a Unix socket's 107 bytes, however long the folder's own is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
