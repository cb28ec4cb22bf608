"""Leadership: a folder's TSO is the process that holds the folder's lock; a leader in doubt exits at once.

The lock file is never unlinked (T14): a second file of the same name would be a second lock. The lock file closes at
exec, so no child holds the lock by accident; the system releases the lock when the process dies. The TSO unlinks its
socket before it releases the lock, so a client that finds the socket finds a process that has not finished yet.

A folder may be removed or moved, and created again, while its TSO lives. The TSO uses lock and socket in the folder
that it opened, even if the path leads to another folder later. It removes no socket but its own, and ends when the path
leads to another lock.

    TSO 1 serves ─► folder removed, created again ─► TSO 2 serves ─► TSO 1 notices (or idles) and ends. Its own socket
                                                                     is gone; by path it would have removed TSO 2's
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from pyomid.errors import Misuse, Unavailable
from pyomid.system import file_id, file_mode, id_at, is_shared, open_own, socket_path, user_text

LOCK_FILE: Final = "tso.lock"
SOCKET_FILE: Final = "tso.sock"
BACKLOG: Final = 1024
_RECORD_BYTES: Final = 1024
"""All records have this length, so that no process reads the mixture of two."""
_REASON_CHARS_MAX: Final = 300

DOUBT_EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the process exited because it could not know whether it still leads."""


def die_now(reason: str) -> NoReturn:
    """End the process without sending, flushing or closing anything but its log."""
    try:
        logging.shutdown()
    finally:
        os._exit(DOUBT_EXIT_CODE)


class Leadership(Protocol):
    """One candidate's lease on the leadership (protocol.md, Leadership). The actual fence is the leader state."""

    def acquire(self, stop: threading.Event) -> float | None:
        """Wait until this process leads; return the time (of `boot_clock`) until which it leads without a renewal.
        None if `stop` was set.

        The time counts from before the write that took the lease.
        """

    def keep(self, renewed: Callable[[float], object], lost: Callable[[str], object]) -> None:
        """Start a thread that renews the lease: `renewed(until_s)` after each renewal, `lost(why)` once."""

    def announce(self, epoch: int) -> None:
        """Publish this TSO's address; on return clients find it. `Deposed` if a later TSO was faster."""

    def release(self) -> None:
        """Give the lease back after serving has ended: a standby may take over at once."""


class FolderLock:
    """A folder's lock, and the socket of the TSO that holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._folder_fd = -1
        """The opened folder; its path may lead to another one later."""
        self._fd = -1
        self._socket: _SocketId | None = None

    def acquire(self) -> bool:
        """Take the lock; False if another process holds it. `Misuse` if the file is another user's, or a link."""
        path = self.folder / LOCK_FILE
        try:
            folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Misuse(f"cannot open {self.folder}: {error.strerror}", folder=str(self.folder)) from error
        try:
            is_mine = self._acquire_in(folder_fd, path)
        except BaseException:
            os.close(folder_fd)
            raise
        if not is_mine:
            os.close(folder_fd)
        return is_mine

    def _acquire_in(self, folder_fd: int, path: Path) -> bool:
        try:
            fd = open_own(LOCK_FILE, os.O_RDWR | os.O_CREAT, shared=is_shared(self.folder), dir_fd=folder_fd)
        except PermissionError as error:
            raise Misuse(
                f"{path} belongs to {owner_text(path)}, who runs the TSO of this folder", folder=str(self.folder)
            ) from error
        except OSError as error:
            raise Misuse(f"cannot open {path}: {error.strerror}", folder=str(self.folder)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd, self._folder_fd = fd, folder_fd
        self._write_holder()
        return True

    def listen(self) -> socket.socket:
        """Create the folder's socket and return it, listening."""
        sock = _listen_in(self._folder_fd, self.folder, shared=is_shared(self.folder))
        self._socket = _socket_id(self._folder_fd)
        return sock

    def is_in_place(self) -> bool:
        """Return whether the folder's path still leads to this lock; False if the folder was removed or replaced."""
        try:
            return id_at(self.folder / LOCK_FILE) == file_id(os.fstat(self._fd))
        except OSError:  # a failing disk does not prove that the folder is gone
            return True

    def has_socket(self) -> bool:
        """Return whether the socket file is still this process's, so that clients find it."""
        return _socket_id(self._folder_fd) == self._socket

    def release(self, died_of: str = "") -> None:
        """Remove the socket, then release the lock. The lock file stays and records how its holder ended."""
        if self._fd >= 0:
            if self._socket is not None and self.has_socket():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(SOCKET_FILE, dir_fd=self._folder_fd)
            self._write_holder({"died_of": died_of[:_REASON_CHARS_MAX]} if died_of else {"ended": True})
            os.close(self._folder_fd)
            os.close(self._fd)
            self._fd = self._folder_fd = -1

    def close_copy(self) -> None:
        """Close this process's copy of the lock after a fork; the child's copy still holds the lock."""
        os.close(self._folder_fd)
        os.close(self._fd)
        self._fd = self._folder_fd = -1

    def record_pid(self) -> None:
        """Write this process's pid into the lock file, in the child after a fork."""
        self._write_holder()

    def _write_holder(self, end: Mapping[str, object] | None = None) -> None:
        """Write pid and `end` into the lock file. That record is for operators, messages and the pace of restarts; only
        flock decides who holds the lock."""
        record = json.dumps({"pid": os.getpid(), **(end or {})}).encode()
        with contextlib.suppress(OSError):  # a full disk
            os.pwrite(self._fd, record.ljust(_RECORD_BYTES), 0)


def holder(folder: Path) -> dict[str, Any]:
    """Return the record of the lock's last holder: `pid`, and `ended` (normal shutdown) or `died_of`. A holder that was
    killed recorded neither. Empty if there is no record."""
    try:
        written = json.loads((folder / LOCK_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock now. For messages only: the state may change at once."""
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


def owner_text(path: Path) -> str:
    """Return the name of a file's owner, for messages."""
    try:
        return user_text(path.stat().st_uid)
    except OSError:
        return "an unknown user"


def _listen_in(folder_fd: int, folder: Path, *, shared: bool) -> socket.socket:
    """Return a listening socket to which only its owner (or the folder's group) may connect. This process holds the
    lock, so an existing socket is a leftover and is removed; a file of another kind raises `Misuse`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~file_mode(shared))
    try:
        _remove_leftover(folder_fd, folder)
        with socket_path(folder_fd, folder, SOCKET_FILE) as path:
            sock.bind(path)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen at {folder / SOCKET_FILE}: {error.strerror}", folder=str(folder)) from error
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


_SocketId = tuple[int, int, int]
"""Device, inode and time of bind: some systems reuse the inode of a removed socket."""


def _socket_id(folder_fd: int) -> _SocketId | None:
    try:
        status = os.stat(SOCKET_FILE, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _remove_leftover(folder_fd: int, folder: Path) -> None:
    try:
        mode = os.stat(SOCKET_FILE, dir_fd=folder_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        path = folder / SOCKET_FILE
        raise Misuse(f"{path} exists and is not a socket: remove it", path=str(path))
    os.unlink(SOCKET_FILE, dir_fd=folder_fd)
