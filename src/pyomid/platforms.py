"""What only Linux has, and what replaces it elsewhere, so that a Mac can develop with pyomid.

    Linux                          elsewhere
    CLOCK_BOOTTIME                 CLOCK_MONOTONIC
    SO_PEERCRED                    the owner of the socket's file
    SO_PEERPIDFD (Linux 6.5)       nothing: how a peer's process fares is not told
    /proc/self/fd/N/socket         the path, or a link to its folder where a socket's address has no room for it
    /proc/PID/stat                 ps
    posix_fallocate                zeros, where a file has holes or ends
    fdatasync, O_DIRECT            F_FULLFSYNC
    io_submit, eventfd             a write that waits (`storage/embedded/commit_log/background_write.py`)
    epoll                          the TSO's machine without compiled code (`server/startup.py`)

PYOMID_PORTABLE=1 takes the right side on Linux too: for tests, in all processes of a folder.

`here` tells processes apart: it is another object in each forked child.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

IS_LINUX: Final = sys.platform == "linux" and os.environ.get("PYOMID_PORTABLE") != "1"

here: object = object()
"""Of this process. To compare it before every use of something costs a tenth of asking the system for the pid."""


def python_program() -> str:
    """This interpreter's program, also in a process that embeds it under another name (uWSGI)."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return os.fspath(Path(sys.prefix) / "bin" / "python3")


def _after_fork_in_child() -> None:
    global here
    here = object()


os.register_at_fork(after_in_child=_after_fork_in_child)

_SOCKET_PATH_BYTES_MAX: Final = 103
"""Linux has 107, a Mac 103."""
_ZEROS: Final = bytes(1 << 20)


_CLOCK: Final = time.CLOCK_BOOTTIME if IS_LINUX else time.CLOCK_MONOTONIC


def boot_clock() -> float:
    """Monotonic seconds that go on while the machine sleeps, the same in all its processes."""
    return time.clock_gettime(_CLOCK)


def boot_number() -> int:
    """A number that differs for each start of the machine; 0 where it cannot be told."""
    try:
        return crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return crc32(_said("sysctl", "-n", "kern.bootsessionuuid"))


def peer_uid(sock: socket.socket, path: Path) -> int:
    """The user of the process that listens at the socket `path`, to which `sock` is connected."""
    if not IS_LINUX:
        return os.lstat(path).st_uid
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


_SO_PEERPIDFD: Final = 77


def peer_process(sock: socket.socket) -> int | None:
    """A descriptor of the process that connected to a local socket, which can be read once the process has ended; the
    caller closes it. None where the system does not tell. `ProcessLookupError`: the process has ended."""
    if not IS_LINUX or sock.family != socket.AF_UNIX:
        return None
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno == errno.EINVAL and _tells_of_peers():  # what Linux 6.5 to 6.15 says of one that was reaped
            raise ProcessLookupError("the peer was reaped") from error
        return None


def _tells_of_peers() -> bool:
    """Of a process that is alive, this one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def socket_path(folder_fd: int, folder: Path, name: str) -> Iterator[str]:
    """A path to `name` in an open folder that fits a Unix socket's address, however long the folder's own is."""
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
    """The letter that ps has for what a process does; empty where it is not seen."""
    if not IS_LINUX:
        return _said("ps", "-o", "state=", "-p", str(pid)).decode(errors="replace").strip()[:1]
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def reserve(file: int, size: int) -> None:
    """The file has room for `size` bytes on the disk; what it holds stays. No other process changes it meanwhile."""
    if IS_LINUX:
        os.posix_fallocate(file, 0, size)
        return
    end = os.fstat(file).st_size
    at = _hole(file, 0, end)
    while at < size:
        count = os.pwrite(file, _ZEROS[: min(len(_ZEROS), (_data(file, at, end) or size) - at)], at)
        at = _hole(file, at + count, end)


def _hole(file: int, at: int, end: int) -> int:
    """Where the next hole begins; the end of the file is one."""
    return os.lseek(file, at, os.SEEK_HOLE) if at < end else at


def _data(file: int, at: int, end: int) -> int:
    """Where data begin again; 0 if nowhere."""
    if at >= end:
        return 0
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return 0


def sync_data(file: int) -> None:
    """What was written to the file is on the disk, and so is its length."""
    if IS_LINUX:
        os.fdatasync(file)
    elif hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def open_direct(path: Path) -> int | None:
    """A descriptor whose every write is durable by itself; None where the system or the file system has none."""
    if not IS_LINUX or not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
    except OSError:
        return None


def _said(*command: str) -> bytes:
    """What a command printed; nothing where there is none, or it failed."""
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return b""
