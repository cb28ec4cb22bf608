"""Open LMDB's two files with descriptors that no child inherits, and with locks that survive the close of other
descriptors.

LMDB locks two bytes of `lock.mdb` with POSIX locks (`mdb_env_excl_lock`, `mdb_reader_pid` in `mdb.c`):

    byte 0      locked, shared, by each process that has the environment open. A process that can lock it exclusively
                assumes that it is the only one, and initializes the file: its mutexes and its table of readers
    byte PID    locked by each process that reads. Without this lock its readers count as dead, and writers reuse their
                pages

When a process closes any descriptor of a file, the system releases all POSIX locks that the process has on that file. A
program that copies or checksums the folder in which it works would lose the locks, and read pages that others
overwrite. So both locks are moved to a descriptor of our own, as locks of its open file description (F_OFD_SETLK). LMDB
in other processes respects these locks too. Only the close of that descriptor releases them: it is close-on-exec, and a
forked child closes its copy. LMDB never checks its own locks again.

On a system without such locks, LMDB's own locks stay.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final

import lmdb

from pyomid.system import IS_LINUX, file_id, id_at, is_shared, occupy_standard, open_own, reserve

DATA_FILE: Final = "data.mdb"
LMDB_LOCK_FILE: Final = "lock.mdb"
UNNAMED: Final = b""
"""Our name for LMDB's unnamed database, which has a record for each named database."""
_LOCK_BYTES: Final = 1 << 14
"""The size of the beginning of LMDB's lock file: its head, and the slots of 200 readers."""
_SHARED_BYTE: Final = 0
_NO_SUCH_LOCKS: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def make_lock_file(folder: Path, *, shared: bool) -> None:
    """Create LMDB's lock file and allocate its beginning; an existing file is left alone. LMDB maps the file, which
    starts as a hole. Touching a hole on a full disk would kill the process."""
    path = folder / LMDB_LOCK_FILE
    with suppress(FileNotFoundError):
        if os.stat(path).st_size >= _LOCK_BYTES:
            return
    file = open_own(path, os.O_RDWR | os.O_CREAT, shared=shared)
    try:
        reserve(file, _LOCK_BYTES)
    finally:
        os.close(file)


def open_lmdb(folder: Path, map_bytes: int = 10 << 20, **options: Any) -> lmdb.Environment:
    """Open LMDB in `folder` with py-lmdb's `options`, and return the environment."""
    occupy_standard()
    environment = lmdb.open(os.fspath(folder), map_bytes, **options)
    try:
        _keep_from_programs(folder / DATA_FILE)
    except BaseException:
        environment.close()  # the error's traceback would keep it open, and LMDB opens a file once per process
        raise
    return environment


def open_database(environment: lmdb.Environment, name: bytes, *, create: bool = False, transaction: Any = None) -> Any:
    """Return the handle of a named database, or of the unnamed one if the name is empty."""
    return environment.open_db(name or None, txn=transaction, create=create)


def records_in(cursor: Any, named: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a database in the order of keys. For the unnamed database, `named` lists the names of all
    others, so that LMDB's own records of these are omitted."""
    return (record for record in cursor.iternext() if record[0] not in named)


def _keep_from_programs(file: Path) -> None:
    """Make this process's descriptors of the file close-on-exec, because LMDB leaves one inheritable."""
    wanted = id_at(file)
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):
                if file_id(os.fstat(int(name))) == wanted:
                    os.set_inheritable(int(name), False)


def hold_locks(folder: Path, environment: lmdb.Environment) -> FileIO:
    """C16: move LMDB's locks to a new descriptor, and return it; the caller releases it after the environment. Call
    this once, right after the opening, before any read has begun.

    If a thread of this process closes the lock file between the opening and this call, another process may assume that
    it is the first one. That is harmless: nothing was read yet, and the first lock here waits until that process has
    finished.
    """
    locks = FileIO(open_own(folder / LMDB_LOCK_FILE, os.O_RDWR, shared=is_shared(folder.parent)), "r+")
    try:
        file = locks.fileno()
        if IS_LINUX and _lock(file, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, _SHARED_BYTE):
            environment.begin().abort()  # LMDB locks byte PID before its first read, and never again
            fcntl.lockf(file, fcntl.LOCK_UN)
            _lock(file, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, os.getpid())
    except BaseException:
        release_locks(locks)
        raise
    return locks


def release_locks(locks: FileIO) -> None:
    """Release the locks, and close their descriptor. Idempotent. A close alone would leave the locks to a child that
    was forked just now and has not yet closed its copy. Until then this process could not take them again."""
    if locks.closed:
        return
    if IS_LINUX:
        with suppress(OSError):
            fcntl.fcntl(locks, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
    locks.close()


def _lock(file: int, command: int, kind: int, byte: int) -> bool:
    """Lock one byte for the open file description. Returns False if the system has no such locks."""
    try:
        fcntl.fcntl(file, command, struct.pack("hhqqi", kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in _NO_SUCH_LOCKS:
            return False
        raise
    return True
