"""LMDB environments of this process: opened once however many use them, safe with threads and forks.

What LMDB asks of its users, and who obeys it here:

    an environment is opened once in a process          `open_environment` keeps a register by path, counted
    no read transaction lives long                      `read` runs one function inside one transaction
    write transactions are serial, their sync is dear   `write` lets one thread commit for all that wait
    the map is resized only while nobody reads          `_alone` waits until no call is inside
    a child of fork neither uses nor closes it          forks wait until no call is inside; the child then closes
                                                        its copy, which frees nothing of the parent's
    readers that died pin old pages                     looked for when opening and now and then when writing

A durable commit of LMDB syncs twice under the writer lock: its pages, then the root that points to them. Where
`many_writers` share an environment, the root is synced after the lock is given up (LMDB's NOMETASYNC, then our own
sync before anyone is told): processes that wait for the lock wait half as long, and the syncs of several of them
become one in the kernel. What may be seen that is not durable yet is lost together with whatever was built upon it in
this environment; nothing outside it is done before the sync (decision 0010). NOSYNC would lose LMDB's order of pages
before root, and with it the store, and is never used.

Row four of the table is also why read transactions are not kept between calls: one that the parent held during a fork
would be released in the lock file by the child's close.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import lmdb

from pyomid.errors import Corruption, Misuse, OmidError, StoreFull, Unavailable
from pyomid.storage.forks import ProcessGuard

T = TypeVar("T")
Transaction = Any
"""`lmdb.Transaction`, whose stub is generic over bytes and memoryview."""
FileId = tuple[int, int]
"""Device and inode: a file, whatever its name."""

MAP_BYTES_DEFAULT: Final = 1 << 40
"""Address space, not disk: the file grows with its content. 1 TiB of the 128 TiB that Linux gives a process."""
_MAP_BYTES_MIN: Final = 1 << 26
READERS_MAX: Final = 4096
"""LMDB's default of 126 is fewer than the threads of one busy machine; a slot costs 64 bytes of the lock file."""
_GROUP_RECORDS_MAX: Final = 4000
"""A group commit holds the writer lock for milliseconds at most (C6)."""
_READER_CHECK_EVERY: Final = 256
_PATIENCE_STEP_S: Final = 0.001
_FORK_WAIT_S: Final = 5.0
_FREE_BYTES_MIN: Final = 1 << 20
"""LMDB reports a short write as EIO; with less room than this it was for want of room."""


class _Pending(Generic[T]):
    """One function that waits for its write transaction, then its result."""

    __slots__ = ("done", "error", "records", "value", "work")

    def __init__(self, work: Callable[[Transaction], T], records: int) -> None:
        self.work = work
        self.records = records
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None

    def run(self, transaction: Transaction) -> None:
        self.value = self.work(transaction)

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Environment:
    """One opened environment. Made by `open_environment` only; ended by `release`."""

    def __init__(
        self, folder: Path, databases: Sequence[bytes], *, writable: bool, many_writers: bool, map_bytes: int
    ) -> None:
        self._folder = folder
        self._many_writers = many_writers
        self._names = tuple(databases)
        self._map_bytes = map_bytes
        self._guard = ProcessGuard(f"the embedded store in {folder}")
        self._inside: list[None] = []
        """One entry for each call inside LMDB. Appending and popping are atomic, so the way in takes no lock:
        it appends, then looks at `_paused`; who wants to be alone sets `_paused`, then looks at this list."""
        self._paused = False
        self._pausing = threading.RLock()
        self._queue: deque[_Pending[Any]] = deque()
        self._writer = threading.Lock()
        self._writes = 0
        self._panicked = False
        """LMDB refuses this environment until it is opened again: its root page could not be written."""
        self._closed = False
        self.users = 0
        self.writable = writable
        self.databases: dict[bytes, Any] = {}
        self.data_file: FileId = (0, 0)
        """The file that LMDB has open; inside a transaction it stays the same."""
        self._open()

    @property
    def folder(self) -> Path:
        return self._folder

    # Transactions

    def read(self, work: Callable[[Transaction], T]) -> T:
        """`work` inside one fresh read transaction; what it returns must not point into the map."""
        self._enter()
        try:
            with self._begin(write=False) as transaction:
                return work(transaction)
        except lmdb.Error as error:
            raise self._failed(error) from error
        finally:
            self._inside.pop()

    def write(self, work: Callable[[Transaction], T], *, records: int = 1, patience_s: float = 0.0) -> T:
        """`work` inside one durable write transaction, perhaps together with that of other threads.

        With `patience_s` it waits so long for another thread to take it along: its sync then costs nothing.

        May be run twice (when another member of its group fails), so it must not change anything but the store.
        An exception from it undoes the transaction and is raised here. `records` says about how much it writes.
        """
        self._guard.check()
        if not self.writable:
            raise Misuse(f"the environment {self._folder} is open for reading only: the TSO alone writes it")
        pending = _Pending(work, records)
        self._queue.append(pending)
        give_up_s = time.monotonic() + patience_s
        while patience_s and not pending.done and time.monotonic() < give_up_s:
            time.sleep(_PATIENCE_STEP_S)
        with self._writer:
            while not pending.done:
                self._write_group(self._take_group())
        return pending.result()

    def _take_group(self) -> list[_Pending[Any]]:
        group: list[_Pending[Any]] = []
        records = 0
        while self._queue and (not group or records + self._queue[0].records <= _GROUP_RECORDS_MAX):
            group.append(self._queue.popleft())
            records += group[-1].records
        return group

    def _write_group(self, group: list[_Pending[Any]]) -> None:
        try:
            self._commit(group)
        except Exception as error:
            if len(group) == 1:
                group[0].error = error
            else:
                for member in group:
                    self._write_group([member])
        except BaseException:  # this thread was interrupted while it wrote for the others
            for member in group:
                member.error = Unavailable(f"a write to the embedded store in {self._folder} was interrupted")
            raise
        finally:
            for member in group:
                member.done = True

    def _commit(self, group: list[_Pending[Any]]) -> None:
        self._enter()
        try:
            with self._begin(write=True) as transaction:
                for member in group:
                    member.run(transaction)
            if self._many_writers:
                self._lmdb.sync(True)
        except lmdb.Error as error:
            raise self._failed(error) from error
        finally:
            self._inside.pop()
        self._writes += 1
        if self._writes % _READER_CHECK_EVERY == 0:
            self._forget_dead_readers()

    def _begin(self, *, write: bool) -> Transaction:
        try:
            return self._lmdb.begin(write=write)
        except lmdb.MapResizedError:
            self._adopt_map_size()
            return self._lmdb.begin(write=write)
        except lmdb.ReadersFullError:
            self._lmdb.reader_check()
            return self._lmdb.begin(write=write)

    # Lifetime

    def upgrade(self) -> None:
        """From reading to writing, for the process that turns out to be the writer."""
        self.writable = True
        self._reopen()

    def _reopen(self) -> None:
        with self._alone():
            self._lmdb.close()
            self._panicked = False
            self._open()

    def close(self) -> None:
        with self._alone():
            self._closed = True
            self._lmdb.close()

    def close_in_child(self) -> None:
        """After a fork, which waited until no call was inside: frees the child's copy alone."""
        if not self._inside:
            self._lmdb.close()

    def pause(self, wait_s: float | None = None) -> None:
        """Returns once no call is inside (or after `wait_s`); calls that come later wait for `resume`."""
        self._pausing.acquire()
        self._paused = True
        give_up = None if wait_s is None else time.monotonic() + wait_s
        while self._inside and (give_up is None or time.monotonic() < give_up):
            time.sleep(0.0001)

    def resume(self) -> None:
        self._paused = False
        self._pausing.release()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _enter(self) -> None:
        self._guard.check()
        if self._panicked:
            self._reopen()
        self._inside.append(None)
        while self._paused:
            self._inside.pop()
            with self._pausing:
                pass
            self._inside.append(None)
        if self._closed:
            self._inside.pop()
            raise Misuse(f"the embedded store in {self._folder} was closed")

    def _adopt_map_size(self) -> None:
        """Another process wrote beyond our map. We are inside ourselves: step out, wait for the others, step in."""
        self._inside.pop()
        try:
            with self._alone():
                self._lmdb.set_mapsize(0)
        finally:
            self._enter()

    def _open(self) -> None:
        map_bytes = self._map_bytes
        while True:
            try:
                self._lmdb = self._open_with(map_bytes)
                break
            except (lmdb.MemoryError, MemoryError, lmdb.Error) as error:
                if not _is_out_of_address_space(error) or map_bytes <= _MAP_BYTES_MIN:
                    raise self._mapped(error) from error
                map_bytes //= 4
        try:
            self._lmdb.reader_check()
            self.databases = {name: self._lmdb.open_db(name, create=False) for name in self._names}
            status = os.stat(self._folder / "data.mdb")
            self.data_file = status.st_dev, status.st_ino
        except (lmdb.Error, OSError) as error:
            self._lmdb.close()
            raise self._mapped(error) from error

    def _open_with(self, map_bytes: int) -> lmdb.Environment:
        return lmdb.open(
            os.fspath(self._folder),
            map_size=map_bytes,
            readonly=not self.writable,
            metasync=not self._many_writers,
            create=False,
            max_dbs=len(self._names),
            max_readers=READERS_MAX,
            max_spare_txns=0,
            readahead=False,
        )

    def _forget_dead_readers(self) -> None:
        try:
            self._lmdb.reader_check()
        except lmdb.Error as error:
            raise self._mapped(error) from error

    def _failed(self, error: lmdb.Error) -> OmidError:
        self._panicked = self._panicked or isinstance(error, lmdb.PanicError)
        return self._mapped(error)

    def _mapped(self, error: BaseException) -> OmidError:
        return mapped(error, self._folder)


def mapped(error: BaseException, folder: Path) -> OmidError:
    """The error of our tree that says what to do about one of LMDB's."""
    where = f"the embedded store in {folder}"
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(f"{where} reached the end of its map: open it with a greater map_bytes", folder=str(folder))
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.NotFoundError)):
        return Corruption(f"{where} is damaged: {error}", folder=str(folder))
    if isinstance(error, lmdb.VersionMismatchError):
        return Corruption(f"{where} was written by another version of LMDB: {error}", folder=str(folder))
    if isinstance(error, (lmdb.BadValsizeError, lmdb.ReadonlyError, lmdb.InvalidParameterError)):
        return Misuse(f"{where}: {error}")
    code = getattr(error, "code", 0)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (code == errno.EIO and _is_out_of_room(folder)):
        return StoreFull(f"the disk of {where} is full: {error}", folder=str(folder))
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        return Misuse(f"{where} is not writable for this user: {error}", folder=str(folder))
    return Unavailable(f"{where}: {error}", folder=str(folder))


def _is_out_of_room(folder: Path) -> bool:
    """Whether a short write was the disk's end, or that of `ulimit -f`."""
    try:
        disk, size = os.statvfs(folder), os.stat(folder / "data.mdb").st_size
    except OSError:
        return False
    size_max = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    left = disk.f_bavail * disk.f_frsize
    if size_max != resource.RLIM_INFINITY:
        left = min(left, size_max - size)
    return left < _FREE_BYTES_MIN


def _is_out_of_address_space(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or getattr(error, "code", 0) == errno.ENOMEM


# The register of this process.

_register: dict[str, Environment] = {}
_register_lock = threading.RLock()


def open_environment(
    folder: Path,
    databases: Sequence[bytes],
    *,
    writable: bool,
    many_writers: bool,
    map_bytes: int = MAP_BYTES_DEFAULT,
) -> Environment:
    """The process's one environment of that folder, counted; give it back with `release`.

    Opened for writing as soon as one user wants to write. `map_bytes` counts for the first user only.
    """
    key = os.path.realpath(folder)
    with _register_lock:
        environment = _register.get(key)
        if environment is None:
            environment = _register[key] = Environment(
                folder, databases, writable=writable, many_writers=many_writers, map_bytes=map_bytes
            )
        elif writable and not environment.writable:
            environment.upgrade()
        environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """The last user closes it."""
    with _register_lock:
        environment.users -= 1
        if environment.users == 0:
            key = os.path.realpath(environment._folder)
            if _register.get(key) is environment:  # a child of fork has its own of the same folder
                del _register[key]
            environment.close()


def _before_fork() -> None:
    _register_lock.acquire()
    for environment in _register.values():
        environment.pause(_FORK_WAIT_S)


def _after_fork_in_parent() -> None:
    for environment in _register.values():
        environment.resume()
    _register_lock.release()


def _after_fork_in_child() -> None:
    global _register_lock
    for environment in _register.values():
        environment.close_in_child()
    _register.clear()
    _register_lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
