"""Features of Linux and their replacements elsewhere, so that developers can use pyomid on a Mac.

    Linux                          elsewhere
    CLOCK_BOOTTIME                 CLOCK_MONOTONIC
    SO_PEERCRED                    the owner of the socket's file
    SO_PEERPIDFD (Linux 6.5)       nothing: the end of a peer's process goes unnoticed
    /proc/self/fd/N/socket         the path, or a link to its folder if the path is too long for a socket's address
    /proc/PID/stat                 ps
    posix_fallocate                zeros written into holes and at the end of the file
    epoll                          the TSO's machine without compiled code (`server/startup.py`)

PYOMID_PORTABLE=1 selects the right side on Linux too, for tests; set it in all processes of a folder.

`here` identifies the process: each forked child has another object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, Protocol

IS_LINUX: Final = sys.platform == "linux" and os.environ.get("PYOMID_PORTABLE") != "1"


class ThisProcess:
    """A process. Comparing the object costs a tenth of the system call for the number."""

    def __init__(self) -> None:
        self.pid: Final = os.getpid()


here = ThisProcess()
"""This process: another object in a forked child."""


def python_program() -> str:
    """Return the path of this Python interpreter, also in a process that embeds it (uWSGI)."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return os.fspath(Path(sys.prefix) / "bin" / "python3")


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


_kept_from_children: Final[dict[int, weakref.ref[HasDescriptor]]] = {}
"""By descriptor. The entry of a closed socket stays until another socket gets its number."""


def keep_from_children(sock: HasDescriptor) -> None:
    """Keep forked children from inheriting this socket (C5), so that its connection ends with this process."""
    _kept_from_children[sock.fileno()] = weakref.ref(sock)


def _after_fork_in_child() -> None:
    """In the child, replace the descriptors by /dev/null: objects that hold their numbers may still close them."""
    global here
    here = ThisProcess()
    kept = [fd for fd, reference in _kept_from_children.items() if (sock := reference()) and sock.fileno() == fd]
    _kept_from_children.clear()
    if kept:
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for fd in kept:
                os.dup2(null, fd, inheritable=False)
            os.close(null)


os.register_at_fork(after_in_child=_after_fork_in_child)

_SOCKET_PATH_BYTES_MAX: Final = 103
"""Linux has 107, a Mac 103."""
_ZEROS: Final = bytes(1 << 20)


_CLOCK: Final = time.CLOCK_BOOTTIME if IS_LINUX else time.CLOCK_MONOTONIC


boot_clock: Final = partial(time.clock_gettime, _CLOCK)
"""Returns monotonic seconds that include suspension, the same in all processes of the machine."""


def peer_uid(sock: socket.socket, path: Path) -> int:
    """Return the user of the process that listens at the socket `path`, to which `sock` is connected."""
    if not IS_LINUX:
        return os.lstat(path).st_uid
    return _peer_credentials(sock)[1]


def is_of_this_process(sock: socket.socket) -> bool:
    """Return whether this process is its own peer on this local socket. False if the system does not report it."""
    if not IS_LINUX or sock.family != socket.AF_UNIX:
        return False
    return _peer_credentials(sock)[0] == os.getpid()


def _peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group of a local socket's peer, on Linux."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", credentials)
    return pid, uid, gid


_SO_PEERPIDFD: Final = 77


def peer_process(sock: socket.socket) -> int | None:
    """Return a descriptor of the process that connected to a local socket; it becomes readable when the process ends.

    The caller closes it. None if the system cannot report it; `ProcessLookupError` if the process has ended.
    """
    if not IS_LINUX or sock.family != socket.AF_UNIX:
        return None
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno == errno.EINVAL and _reports_peers():  # Linux 6.5 to 6.15, if the peer was reaped
            raise ProcessLookupError("the peer was reaped") from error
        return None


def _reports_peers() -> bool:
    """Return whether SO_PEERPIDFD works, tried with a peer that is alive: this process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def socket_path(folder_fd: int, folder: Path, name: str) -> Iterator[str]:
    """Yield a path to `name` in an open folder that fits a Unix socket's address, however long the folder's path is."""
    path = str(folder.absolute() / name)
    if IS_LINUX:
        yield f"/proc/self/fd/{folder_fd}/{name}"
    elif len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        yield path
    else:
        with tempfile.TemporaryDirectory(prefix="pyomid-") as short:
            os.symlink(folder.absolute(), f"{short}/f")
            yield f"{short}/f/{name}"


def process_state(pid: int) -> str:
    """Return the process state as the letter that ps shows; empty if the process cannot be found."""
    if not IS_LINUX:
        return _output("ps", "-o", "state=", "-p", str(pid)).decode(errors="replace").strip()[:1]
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def reserve(file: int, size: int) -> None:
    """Allocate `size` bytes of disk space for the file; its content stays. No other process may write it meanwhile."""
    if IS_LINUX:
        os.posix_fallocate(file, 0, size)
        return
    end = os.fstat(file).st_size
    at = _hole(file, 0, end)
    while at < size:
        count = os.pwrite(file, _ZEROS[: min(len(_ZEROS), (_data(file, at, end) or size) - at)], at)
        at = _hole(file, at + count, end)


def _hole(file: int, at: int, end: int) -> int:
    """Return the offset of the next hole; the end of the file counts as one."""
    return os.lseek(file, at, os.SEEK_HOLE) if at < end else at


def _data(file: int, at: int, end: int) -> int:
    """Return the offset of the next data; 0 if there are none."""
    if at >= end:
        return 0
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return 0


def _output(*command: str) -> bytes:
    """Return what a command printed; nothing if it does not exist or failed."""
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return b""
