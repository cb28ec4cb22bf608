"""Features of the operating system that pyomid uses: Linux features and their replacements elsewhere, so that
developers can use pyomid on a Mac; and files that belong to one user, or to a group.

    Linux                          elsewhere
    CLOCK_BOOTTIME                 CLOCK_MONOTONIC
    /proc/PID/stat                 ps
    posix_fallocate                zeros written into holes and at the end of the file
    locks of a file description    locks of a process, which end when it closes any descriptor of the file
    boot_id in /proc               sysctl
    a file's birth by statx        none: a Mac's file system never reuses the number of a file
    epoll                          the TSO's machine without compiled code (`omid/tso/startup.py`)

PYOMID_PORTABLE=1 selects the right side on Linux too, for tests; set it in all processes of a folder.

`here` identifies the process: in each forked child it is another object.

    folder created      0700, its files 0600          shared by a group: 02770 and 0660, recorded by the mode of LAYOUT
    folder opened       its owner is this user, or it is shared with a group of this user and the option asks for that
    file opened         with O_NOFOLLOW, regular files only: writing through a link would overwrite the link's target

A user who may write in the folder may replace its files, so a world-writable folder is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pwd
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

from pyomid.errors import Misuse

IS_LINUX: Final = sys.platform == "linux" and os.environ.get("PYOMID_PORTABLE") != "1"


class ThisProcess:
    """Identifies a process. Comparing this object costs a tenth of the system call for the process's number."""

    def __init__(self) -> None:
        self.pid: Final = os.getpid()


here = ThisProcess()
"""This process; in a forked child it is another object."""


def python_program() -> str:
    """Return the path of this Python interpreter, even in a process that embeds the interpreter (uWSGI)."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return os.fspath(Path(sys.prefix) / "bin" / "python3")


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class StreamSocket(Protocol):
    """A connected socket, with or without TLS (`tls.TlsSocket`)."""

    def settimeout(self, timeout_s: float | None, /) -> None: ...


_kept_from_children: Final[dict[int, weakref.ref[HasDescriptor]]] = {}
"""The sockets by descriptor. The entry of a closed socket stays until another socket gets its number."""


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

# A call within a call of the same thread
#
# A signal handler, or another function that Python runs between two instructions, may call pyomid while its thread is
# inside a call. That call holds a resource for which the second call would wait: the folder's writer, or the reading
# end of a connection. So the second call is refused at once. The functions that hold such a resource note their frame
# here:
#
#     if (me := get_ident()) in inside: refuse_nested()
#     try:
#         inside[me] = _getframe()
#         …
#     finally:
#         inside.pop(me, None)

inside: Final[dict[int, FrameType]] = {}
"""For each thread, the frame of the call that the thread is inside."""


def check_loop(made_in: object, first: object | None, running: object) -> None:
    """Raise `Misuse` unless a client of pyomid.aio that process `made_in` opened, and event loop `first` used first,
    may be used by the running loop of this process."""
    if here is not made_in:
        raise Misuse("an asyncio session belongs to the process that opened it: connect again after a fork")
    if first is not None and first is not running:
        raise Misuse(
            "a client of pyomid.aio belongs to the event loop that used it first: connect again in this event loop"
        )


def refuse_nested() -> None:
    """Raise `Misuse` if this thread is inside a call that is noted in `inside`. An entry may be left over from a call
    that was interrupted while it returned: then the call's frame is no longer on the stack."""
    noted = inside.get(threading.get_ident())
    frame: FrameType | None = sys._getframe()
    while frame is not None and noted is not None:
        if frame is noted:
            raise nested_call()
        frame = frame.f_back


def nested_call() -> Misuse:
    return Misuse(
        "this call interrupted another pyomid call of the same thread (in a signal handler?) and would wait for that "
        "call forever, so it did nothing; set a flag in the handler, or make the call in another thread"
    )


class OwnLock:
    """A lock that refuses the thread that already has it, in a call that interrupts the thread's own call: `with
    lock.held(): …`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def held(self) -> threading.RLock:
        """Return the lock itself, which `with` acquires and releases. An interrupt cannot stop the lock's entry or exit
        halfway. It could stop a context manager in Python halfway, which would then keep the lock as long as the
        exception exists."""
        self.refuse_nested()
        return self._lock

    def refuse_nested(self) -> None:
        """Raise `Misuse` if this thread has the lock."""
        if self._lock._is_owned():  # type: ignore[attr-defined]  # only the lock itself knows its owner at every point
            raise nested_call()


# Descriptors and signals
#
# A program may run with its standard descriptors closed. The next file that it opens then gets number 0, 1 or 2, and
# the output of the program or a library goes into that file. A program may also run with SIGPIPE at its default action,
# which ends the process when it sends to a peer that is gone.


def occupy_standard() -> None:
    """Open /dev/null, for good, in place of each closed standard descriptor. Call this before opening a file or socket
    that stays open, so that it gets no number below 3."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STANDARD_MAX:
        pass
    os.close(fd)


_STANDARD_MAX: Final = 2

NO_SIGNAL: Final[int] = getattr(socket, "MSG_NOSIGNAL", 0)
"""The flag of `socket.send` with which a closed connection raises an error, never SIGPIPE."""


class QuietSocket(socket.socket):
    """A socket whose sends never raise SIGPIPE, for code that gives no flags: kazoo, and asyncio's transports."""

    @classmethod
    def of(cls, sock: socket.socket) -> QuietSocket:
        """Return a quiet socket with the connection of `sock`, which `sock` then no longer has."""
        timeout_s = sock.gettimeout()
        quiet = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        quiet.settimeout(timeout_s)
        return quiet

    def send(self, data: Any, flags: int = 0, /) -> int:
        return super().send(data, flags | NO_SIGNAL)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        super().sendall(data, flags | NO_SIGNAL)

    def sendmsg(self, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None, /) -> int:
        return super().sendmsg(buffers, ancdata, flags | NO_SIGNAL, address)


def block_sigpipe() -> None:
    """Block SIGPIPE in this thread if its action would end the process. This is for writes of OpenSSL and libuv, whose
    flags cannot be chosen; they fail with EPIPE instead."""
    if hasattr(signal, "pthread_sigmask") and signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])


@contextlib.contextmanager
def without_sigpipe() -> Iterator[None]:
    """Block SIGPIPE like `block_sigpipe`, but only inside the `with` block."""
    if not hasattr(signal, "pthread_sigmask") or signal.getsignal(signal.SIGPIPE) is not signal.SIG_DFL:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            if signal.SIGPIPE in signal.sigpending():
                signal.sigwait([signal.SIGPIPE])
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_ZEROS: Final = bytes(1 << 20)


_CLOCK: Final = time.CLOCK_BOOTTIME if IS_LINUX else time.CLOCK_MONOTONIC


boot_clock: Final = partial(time.clock_gettime, _CLOCK)
"""Returns monotonic seconds, which continue during suspension and are the same in all processes of the machine."""

boot_clock_ns: Final = partial(time.clock_gettime_ns, _CLOCK)
"""Returns the time of `boot_clock` in nanoseconds."""


def bound_sends(sock: StreamSocket, timeout_s: float) -> None:
    """Make the socket blocking. A send that makes no progress for `timeout_s` fails with `OSError`."""
    if not isinstance(sock, socket.socket):  # a `tls.TlsSocket`, which never blocks in a system call
        sock.settimeout(timeout_s)
        return
    sock.settimeout(None)
    sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1_000_000))
    )


@lru_cache(maxsize=1)
def boot_id() -> bytes:
    """Return 8 bytes that differ after each start of the machine, and are the same in all its containers."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes() if IS_LINUX else b""
    except OSError:
        text = b""
    return blake2b(text or _output("sysctl", "-n", "kern.bootsessionuuid"), digest_size=8).digest()


def process_state(pid: int) -> str:
    """Return the process state as the letter that ps shows; empty if the process cannot be found."""
    if not IS_LINUX:
        return _output("ps", "-o", "state=", "-p", str(pid)).decode(errors="replace").strip()[:1]
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def reserve(file: int, size: int, first: int = 0) -> None:
    """Allocate `size` bytes of disk space for the file, from byte `first` on; existing content stays. No other process
    may write these bytes meanwhile."""
    if IS_LINUX:
        os.posix_fallocate(file, first, size)
        return
    end, stop = os.fstat(file).st_size, first + size
    at = _hole(file, first, end)
    while at < stop:
        count = os.pwrite(file, _ZEROS[: min(len(_ZEROS), (_data(file, at, end) or stop) - at, stop - at)], at)
        at = _hole(file, at + count, end)


_FLOCK: Final = struct.Struct("hhqqi4x" if sys.platform == "linux" else "qqihh")
"""`struct flock`."""
_F_OFD_GETLK, _F_OFD_SETLK = 36, 37


def _flock(byte: int) -> bytes:
    if sys.platform == "linux":
        return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    return _FLOCK.pack(byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)


def lock_byte(file: int, byte: int) -> bool:
    """Lock a byte of the file until this process ends or closes `file`. Return False if another process has locked it.
    A forked child must close `file`."""
    try:
        fcntl.fcntl(file, _F_OFD_SETLK if IS_LINUX else fcntl.F_SETLK, _flock(byte))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_byte_locked(file: int, byte: int) -> bool:
    """Whether another process has locked this byte."""
    found = _FLOCK.unpack(fcntl.fcntl(file, _F_OFD_GETLK if IS_LINUX else fcntl.F_GETLK, _flock(byte)))
    return bool(found[0 if sys.platform == "linux" else 3] != fcntl.F_UNLCK)


def _hole(file: int, at: int, end: int) -> int:
    """Return the offset of the next hole; the end of the file counts as one."""
    return os.lseek(file, at, os.SEEK_HOLE) if at < end else at


def _data(file: int, at: int, end: int) -> int:
    """Return the offset of the next data; 0 if there is none."""
    if at >= end:
        return 0
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return 0


def _output(*command: str) -> bytes:
    """Return the output of a command; empty if the command does not exist or failed."""
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


LAYOUT_FILE: Final = "LAYOUT"
"""The file that makes a folder a database. Its mode records whether a group shares the folder."""

FileId = tuple[int, int]
"""Device and inode: identify a file regardless of its name."""

_OWNER_FILE, _OWNER_FOLDER = 0o600, 0o700
_GROUP_FILE, _GROUP_FOLDER = 0o660, 0o2770


def file_id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def id_at(path: str | os.PathLike[str]) -> FileId | None:
    """Return the id of the file at `path` (for a link, of the link itself); None if there is no file."""
    try:
        return file_id(os.stat(path, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return None


_AT_FDCWD: Final = -100
_STATX_BTIME, _STATX_SUBVOL = 0x800, 0x8000
_StatxBytes: Final = ctypes.c_char * 256
_STATX: Final = struct.Struct("=I76xqI68xQ")
"""The mask of known fields, the seconds and nanoseconds of the time of birth, and the subvolume."""


@lru_cache
def _libc() -> ctypes.CDLL:
    """Return the C library, loaded once, because each `CDLL` makes a type that only the garbage collector frees."""
    return ctypes.CDLL(None)


def file_birth(path: str | os.PathLike[str]) -> dict[str, int]:
    """Return properties that only the file system sets when it creates a file, so that a copy has other values: `born`,
    in nanoseconds since 1970, and on btrfs the `subvolume`. The result lacks properties that the file system or the
    kernel does not report."""
    found = _StatxBytes()
    try:
        if not IS_LINUX or _libc().statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME | _STATX_SUBVOL, found):
            return {}
    except (AttributeError, OSError):  # a C library without statx
        return {}
    mask, seconds, nanoseconds, subvolume = _STATX.unpack_from(found)
    birth = {}
    if mask & _STATX_BTIME and seconds:  # 0 in a file system image that was made without times
        birth["born"] = seconds * 1_000_000_000 + nanoseconds
        if mask & _STATX_SUBVOL:
            birth["subvolume"] = subvolume
    return birth


MOUNTS: Final = "/proc/self/mountinfo"
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "vboxsf"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.cephfs", "fuse.rclone"),
    )
)


def network_file_system(path: Path) -> str:
    """Return the kind of network file system on which `path` is, or will be; empty if the file system is local or
    unknown."""
    while not os.path.exists(path) and path.parent != path:  # `Path.exists` raises if it lacks permission
        path = path.parent
    try:
        device = path.stat().st_dev
        with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                mount, _, kind = line.partition(" - ")
                if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                    found = kind.split()[0]
                    return found if found in _NETWORK_FILE_SYSTEMS else ""
    except (OSError, IndexError):  # no /proc, or no such table
        pass
    return ""


def is_shared(folder: Path) -> bool:
    """Return whether the database in `folder` was created for a group."""
    try:
        return bool(os.stat(folder / LAYOUT_FILE).st_mode & stat.S_IWGRP)
    except OSError:
        return False


def file_mode(shared: bool) -> int:
    return _GROUP_FILE if shared else _OWNER_FILE


def folder_mode(shared: bool) -> int:
    return _GROUP_FOLDER if shared else _OWNER_FOLDER


def open_own(path: str | os.PathLike[str], flags: int, *, shared: bool = False, dir_fd: int | None = None) -> int:
    """Open a regular file and return its descriptor. A new file is accessible to its owner only, or, if `shared`, to
    the group too.

    Raise `Misuse` for a link and for anything but a regular file, and otherwise the `OSError` of `os.open`.
    """
    occupy_standard()
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, file_mode(shared), dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Misuse(
                f"{path} is a symbolic link, which pyomid does not follow: remove the link", path=str(path)
            ) from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Misuse(f"{path} is not a regular file: remove it", path=str(path))
        if shared and flags & os.O_CREAT and status.st_uid == os.geteuid():
            os.fchmod(fd, _GROUP_FILE)  # the umask removed the group's bits
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_folder(path: Path, *, shared: bool) -> None:
    """Create the folder for its owner (or the group) alone. An existing empty folder gets this mode too; a folder that
    is not empty keeps its mode. Missing parents are created with the umask's mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_OWNER_FOLDER, exist_ok=True)
    status = os.stat(path)
    if status.st_uid == os.geteuid() and not any(path.iterdir()):
        os.chmod(path, folder_mode(shared))


def check_owner(folder: Path, *, shared: bool) -> None:
    """Raise `Misuse` if the folder is world-writable, or if it belongs to another user and is not shared with this
    user."""
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise Misuse(f"{folder} is not a folder", folder=str(folder))
    if status.st_mode & stat.S_IWOTH:
        raise Misuse(
            f"folder {folder} is world-writable, so anyone could replace a database in it; use a folder of your own "
            f"(a new folder inside this one is enough), or run chmod o-w {folder}",
            folder=str(folder),
        )
    if status.st_uid == os.geteuid():
        return
    owner, me = user_text(status.st_uid), user_text(os.geteuid())
    if not shared:
        raise Misuse(
            f"folder {folder} belongs to {owner}, not to you ({me}): connect as the owner, or, if a group shares the "
            "folder, set option folderAccess=group",
            folder=str(folder),
        )
    if not is_shared(folder) or (os.geteuid() != 0 and status.st_gid not in (os.getegid(), *os.getgroups())):
        raise Misuse(
            f"folder {folder} belongs to {owner} and is not shared with any group of yours ({me}); its owner must "
            "create it with option folderAccess=group",
            folder=str(folder),
        )


def user_text(uid: int) -> str:
    """Return the user by name, or by number if it has no name."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def process_text(pid: int) -> str:
    """Return the state of a process of this machine, for messages."""
    state = process_state(pid)
    if not state:
        return "it cannot be found on this machine"
    return {"T": "it is stopped", "t": "it is stopped", "D": "it waits for a disk", "Z": "it is dead"}.get(
        state, "it is running"
    )


def sync_folder(path: Path) -> None:
    """Make the names of the files in the folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
