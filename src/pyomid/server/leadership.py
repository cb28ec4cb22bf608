"""Which process is the TSO of a folder: the one that holds the lock in it. And how a leader in doubt ends.

The lock file is never unlinked (T14): a second file of the same name would be a second lock. It is closed at exec,
so no child holds it by accident; the system drops it when the process dies, however it dies. The socket is unlinked
before the lock is released, so that a client which finds it finds a process that has not finished yet.

A folder may be removed, or moved, and made again while its TSO lives. Lock and socket are therefore the ones in the
folder that was opened, whatever lies under its path by now: a TSO removes no socket but its own, and ends when the lock
under the path is another one.

    TSO 1 serves ─► folder removed, made again ─► TSO 2 serves ─► TSO 1 sees it (or idles), ends: its socket is gone
                                                                  already; by path it would have taken TSO 2's
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from pyomid.errors import Misuse, Unavailable
from pyomid.owned_files import file_id, file_mode, id_at, is_shared, open_own, user_text
from pyomid.platforms import peer_uid, socket_path

LOCK_FILE: Final = "tso.lock"
SOCKET_FILE: Final = "tso.sock"
BACKLOG: Final = 1024
_SIGNATURE_BYTES: Final = 1024
"""It is always written whole, so that no process reads half of it."""
_REASON_CHARS_MAX: Final = 300

DOUBT_EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the process ended itself because it could not know whether it still leads."""


def die_now(reason: str) -> NoReturn:
    """Ends the process without sending, flushing or closing anything but its log."""
    try:
        logging.shutdown()
    finally:
        os._exit(DOUBT_EXIT_CODE)


class Leadership(Protocol):
    """A lease on being the TSO, of those who may (protocol.md, Leadership). The leader state is what really fences."""

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
        self._folder_fd = -1
        """The folder itself, whatever its path leads to later."""
        self._fd = -1
        self._socket: _SocketId | None = None

    def acquire(self) -> bool:
        """False where another process holds it. `Misuse` where the file is another user's, or a link."""
        path = self.folder / LOCK_FILE
        try:
            folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Misuse(f"{self.folder} cannot be opened: {error.strerror}", folder=str(self.folder)) from error
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
                f"{path} is not yours: {owner_text(path)} runs the TSO here", folder=str(self.folder)
            ) from error
        except OSError as error:
            raise Misuse(f"{path} cannot be opened: {error.strerror}", folder=str(self.folder)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd, self._folder_fd = fd, folder_fd
        self._sign()
        return True

    def listen(self) -> socket.socket:
        """The folder's socket, anew; who finds it finds this process."""
        sock = _listen_at(self._folder_fd, SOCKET_FILE, self.folder, shared=is_shared(self.folder))
        self._socket = _socket_id(self._folder_fd, SOCKET_FILE)
        return sock

    def is_in_place(self) -> bool:
        """Whether the lock under the folder's path is this one: not where the folder was removed, moved or replaced."""
        try:
            return id_at(self.folder / LOCK_FILE) == file_id(os.fstat(self._fd))
        except OSError:  # a disk that does not answer says nothing about the folder
            return True

    def has_socket(self) -> bool:
        """Whether clients still find it."""
        return _socket_id(self._folder_fd, SOCKET_FILE) == self._socket

    def release(self, died_of: str = "") -> None:
        """The socket goes first, the lock after it; the file stays, and says how its holder ended."""
        if self._fd >= 0:
            if self._socket is not None and self.has_socket():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(SOCKET_FILE, dir_fd=self._folder_fd)
            self._sign({"died_of": died_of[:_REASON_CHARS_MAX]} if died_of else {"ended": True})
            os.close(self._folder_fd)
            os.close(self._fd)
            self._fd = self._folder_fd = -1

    def disown(self) -> None:
        """After a fork, in the process that does not serve: its copy of the lock is closed, the child's holds."""
        os.close(self._folder_fd)
        os.close(self._fd)
        self._fd = self._folder_fd = -1

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
    """Whether a process holds the lock at this moment; for messages."""
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
    """The user a file belongs to, by name where it has one."""
    try:
        return user_text(path.stat().st_uid)
    except OSError:
        return "an unknown user"


@contextlib.contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    """A Unix socket of this user's own choice, listening; its name goes at the end, if it is still this socket's."""
    folder = path.parent.absolute()
    with _opened(folder) as fd:
        sock = _listen_at(fd, path.name, folder, shared=False)
        mine = _socket_id(fd, path.name)
        try:
            yield sock
        finally:
            sock.close()
            if mine is not None and _socket_id(fd, path.name) == mine:
                os.unlink(path.name, dir_fd=fd)


def _listen_at(folder_fd: int, name: str, folder: Path, *, shared: bool) -> socket.socket:
    """Only its owner may connect (or the folder's group). A leftover is removed, but no file, and no socket that
    somebody listens at, but for the folder's own, whose lock is held."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~file_mode(shared))
    try:
        _remove_leftover(folder_fd, name, folder)
        with socket_path(folder_fd, folder, name) as path:
            sock.bind(path)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen at {folder / name}: {error.strerror}", folder=str(folder)) from error
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


_SocketId = tuple[int, int, int]
"""Device, inode, and when it was bound: not every system keeps the inode of a removed name from being used again."""


def _socket_id(folder_fd: int, name: str) -> _SocketId | None:
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _remove_leftover(folder_fd: int, name: str, folder: Path) -> None:
    try:
        mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Misuse(f"{folder / name} is there, and is not a socket: remove it", path=str(folder / name))
    if name != SOCKET_FILE and _answers(folder_fd, folder, name):
        raise Misuse(f"another process listens at {folder / name}", path=str(folder / name))
    os.unlink(name, dir_fd=folder_fd)


def _answers(folder_fd: int, folder: Path, name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            with socket_path(folder_fd, folder, name) as path:
                sock.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def connect_in(folder: Path, *, timeout_s: float) -> socket.socket:
    """A connection to the folder's TSO. `OSError` as the system raises it: nobody there is no error of the caller;
    `Misuse` where the process behind it is of another user who does not share the folder."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        with _opened(folder) as fd, socket_path(fd, folder, SOCKET_FILE) as path:
            sock.connect(path)
        _check_peer(sock, folder)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_peer(sock: socket.socket, folder: Path) -> None:
    uid = peer_uid(sock, folder / SOCKET_FILE)
    if uid != os.geteuid() and not is_shared(folder):
        raise Misuse(f"the TSO of {folder} belongs to {user_text(uid)}, not to you", folder=str(folder))


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
