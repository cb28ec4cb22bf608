"""The LMDB environments of this process: each opened once however many use it, safe with threads and forks.

LMDB's conditions, and how they are met here:

    an environment is opened once in a process          `open_environment` keeps a register by device and inode, counted
    no read transaction lives long                      `read` runs one function inside one transaction
    its writer's lock is waited for without a bound     each takes its turn first, which has one (`writer_turn`)
    write transactions are serial, their sync is slow   `write` lets one thread commit for all that wait
    the map is resized only while no thread reads       `_alone` waits until no call is inside
    a child of fork neither uses nor closes it          forks wait until no call is inside; the child then closes
                                                        its copy, which frees nothing of the parent's
    readers that died pin old pages                     they are looked for when opening, and each second that writes

A durable commit of LMDB syncs twice under the writer lock: its pages, then the root that points to them. Where
`many_writers` share an environment, the root is synced after the lock is given up (LMDB's NOMETASYNC, then a sync of
our own before any caller is told): processes that wait for the lock wait half as long, and the kernel makes one sync of
several. What may be seen before it is durable would be lost together with all that was built on it in this environment;
nothing outside it is done before the sync (decision 0010). NOSYNC would lose LMDB's order of pages before root, and
with it the store; it is never used.

An open environment stays open when its folder is removed or replaced: LMDB would go on in files that no other process
finds. So each write first checks, inside its transaction, whether the file under the name is the one that is open, and
refuses if it is not; reads check every `LOOK_S`. A snapshot that the TSO of the next folder gave out is never read in
the former folder: that TSO takes longer to start.

Forks are also why read transactions are not kept between calls: if the parent held one during a fork, the child's close
would release it in the lock file.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import lmdb

from pyomid.errors import Corruption, Misuse, OmidError, StoreFull, Unavailable
from pyomid.owned_files import FileId, file_id, file_mode, is_shared, open_own
from pyomid.platforms import reserve
from pyomid.storage.checks import ProcessGuard
from pyomid.storage.embedded.commit_log.memory_order import IS_STRONG
from pyomid.storage.embedded.group_commit import Group, Member, next_members
from pyomid.storage.embedded.root_pages import RootPages, mapped_root_pages
from pyomid.storage.embedded.writer_turn import WriterTurn

T = TypeVar("T")
Transaction = Any
"""`lmdb.Transaction`, whose stub is generic over bytes and memoryview."""
Commit = tuple[FileId, int]
"""Which data file, and the number of LMDB's transaction in it."""
_DATA: Final = "data.mdb"
_LOCK: Final = "lock.mdb"
_LOCK_BYTES: Final = 1 << 14
"""Of LMDB's lock file: its head, and the slots of 200 readers at a time."""

MAP_BYTES_DEFAULT: Final = 1 << 40
"""Address space, not disk: the file grows with its content. 1 TiB of the 128 TiB that Linux gives a process."""
_MAP_BYTES_MIN: Final = 1 << 26
READERS_MAX: Final = 4096
"""LMDB's default of 126 is fewer than the threads of one busy machine; a slot costs 64 bytes of the lock file."""
_GROUP_RECORDS_MAX: Final = 4000
"""A group commit holds the writer lock for a few milliseconds at most (C6)."""
_READER_CHECK_S: Final = 1.0
"""A process that was killed amid a read keeps pages from being used again until somebody looks for it: where a hundred
commits are made a second the file grows by some megabytes each second."""
_FORK_WAIT_S: Final = 5.0
WRITER_WAIT_S = 30.0
"""A write waits for so long for those of other processes. One holds the lock for milliseconds."""
LOOK_S = 0.01
"""One check costs as much as a small read."""
_FREE_BYTES_MIN: Final = 1 << 20
"""LMDB reports a short write as EIO. If less space than this is free, the disk was full."""


class _Group(Group):
    """Functions that share one write transaction."""

    __slots__ = ("is_undone", "members", "transaction")

    def __init__(self, members: list[_Pending[Any]]) -> None:
        super().__init__()
        self.members = members
        self.transaction: Transaction = None
        self.is_undone = False
        """The transaction ended, or is about to end, without its commit."""


class _Pending(Member[_Group], Generic[T]):
    """One function that waits for its write transaction; later its result."""

    __slots__ = ("done", "value", "work")

    def __init__(self, work: Callable[[Transaction], T], records: int, *, is_patient: bool = False) -> None:
        super().__init__(records)
        self.work = work
        self.value: T | None = None
        self.done = _held_lock() if is_patient else None
        """Released once its group ended, for a thread that lets others write first."""

    def run(self, transaction: Transaction) -> None:
        self.value = self.work(transaction)

    def result(self) -> T:
        self.raise_error()
        return self.value  # type: ignore[return-value]


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Environment:
    """An open environment. Only `open_environment` makes it; `release` ends it."""

    def __init__(
        self, folder: Path, databases: Sequence[bytes], *, writable: bool, many_writers: bool, map_bytes: int
    ) -> None:
        self._folder = folder
        self._file = os.fspath(folder / _DATA)
        self._many_writers = many_writers
        self._names = tuple(databases)
        self._map_bytes = map_bytes
        self._guard = ProcessGuard(f"the embedded store in {folder}")
        self._inside: list[object] = []
        """One entry for each call inside LMDB. Appending and removing are atomic, so entering takes no lock: a call
        appends, then looks at `_paused`; a thread that wants to be alone sets `_paused`, then looks at this list."""
        self._paused = False
        self._pausing = threading.RLock()
        self._queue: deque[_Pending[Any]] = deque()
        self._group: _Group | None = None
        self._writer = threading.Lock()
        """Held by the thread that writes `_group`."""
        self._readers_checked_s = 0.0
        self._panicked = False
        """Why calls are refused until it is opened again: its root page could not be written, or it is being
        upgraded."""
        self._closed = False
        self.users = 0
        self.writable = writable
        self._looked_s = time.monotonic()
        self.databases: dict[bytes, Any] = {}
        self._turn: WriterTurn | None = None
        self.data_file: FileId = (0, 0)
        """The file that LMDB has open. It does not change inside a transaction."""
        self._roots: RootPages | None = None
        self._open()

    @property
    def folder(self) -> Path:
        return self._folder

    # Transactions

    def read(self, work: Callable[..., T], *arguments: object) -> T:
        """Runs `work(transaction, *arguments)` inside one fresh read transaction. Its result must not point into the
        map."""
        inside = object()
        try:
            self._enter(inside)
            with self._begin(inside, write=False) as transaction:
                if time.monotonic() - self._looked_s > LOOK_S:
                    self._check_file()
                return work(transaction, *arguments)
        except lmdb.Error as error:
            raise self._failed(error) from error
        finally:
            if inside in self._inside:  # not in a function: an interrupt could come while it is entered
                self._inside.remove(inside)

    def newest_commit(self) -> Commit | None:
        """The newest commit of whatever process that a read which begins now may see. None: unknown.

        LMDB writes a commit's root page before any reader begins at that commit, so while the newest root page is that
        of an earlier read, a new read would find what the earlier one found. Costs less than a read
        transaction with its two lookups.
        """
        self._guard.check()
        if not IS_STRONG or self._paused or self._closed or time.monotonic() - self._looked_s > LOOK_S:
            return None
        data_file, roots = self.data_file, self._roots
        if roots is not None:
            return data_file, roots.newest()
        inside = object()
        try:
            self._enter(inside)
            return self.data_file, self._lmdb.info()["last_txnid"]
        except lmdb.Error as error:
            raise self._failed(error) from error
        finally:
            if inside in self._inside:
                self._inside.remove(inside)

    def commit_of(self, transaction: Transaction) -> Commit:
        """The commit that a read transaction sees."""
        return self.data_file, transaction.id()

    def write(self, work: Callable[[Transaction], T], *, records: int = 1, patience_s: float = 0.0) -> T:
        """Runs `work` inside one durable write transaction, perhaps together with the work of other threads.

        `patience_s`: how long it waits for another thread to take it along; its sync then costs nothing.

        `work` may be run twice (when another member of its group fails), so it must not change anything but the
        store. Its exception undoes the transaction and is raised here. `records`: about how much it writes. After an
        interrupt it has been written, or is written before anything later, or is never written.
        """
        self._guard.check()
        if not self.writable:
            raise Misuse(f"the environment {self._folder} is open for reading only: the TSO alone writes it")
        pending = _Pending(work, records, is_patient=patience_s > 0)
        try:
            self._queue.append(pending)
            if pending.done is not None:
                pending.done.acquire(timeout=patience_s)
            if not pending.is_done:
                self._see_to(pending)
        finally:
            pending.is_abandoned = True
        return pending.result()

    def _see_to(self, pending: _Pending[Any]) -> None:
        began_s = time.monotonic()
        with self._writer:
            while not pending.is_done:
                self._write_group(began_s)

    # After an interrupt the group under way is ended by what LMDB says of it (`group_commit`):
    #
    #     transaction open        nothing was written: it is undone, and its functions are still in the queue
    #     transaction ended       it was committed: once that is synced, every member is told so

    def _write_group(self, began_s: float) -> None:
        """`began_s`: since when the thread waits that writes for all."""
        try:
            self._end_group()
            self._write_together(next_members(self._queue, _GROUP_RECORDS_MAX), began_s)
        finally:
            self._end_group()

    def _write_together(self, members: list[_Pending[Any]], began_s: float) -> None:
        try:
            self._commit(_Group(members), began_s)
        except MemoryError:
            raise  # of this thread; the other threads need not fail
        except Exception as error:
            self._end_group()
            left = [member for member in members if not member.is_done and not member.is_abandoned]
            if len(members) > 1:
                for member in left:
                    self._write_together([member], began_s)
            elif left:
                left[0].error = error

    def _commit(self, group: _Group, began_s: float) -> None:
        self._group = group
        try:
            self._take_turn(began_s)
            self._enter(group)
            group.transaction = self._begin(group, write=True)
            self._check_file()
            for member in group.members:
                member.group = group
                member.run(group.transaction)
            try:
                group.transaction.commit()
            except lmdb.Error:
                group.is_undone = True
                raise
        except lmdb.Error as error:
            raise self._failed(error) from error
        finally:
            self._end_group()
        now_s = time.monotonic()
        if now_s >= self._readers_checked_s + _READER_CHECK_S:
            self._readers_checked_s = now_s
            self._forget_dead_readers()

    def _end_group(self) -> None:
        """Ends the group under way: nothing of it stays open or untold. It may be called any number of times; a thread
        that is interrupted here leaves the rest to the next one."""
        group = self._group
        if group is None:
            return
        was_open = group.transaction is not None and _is_open(group.transaction)
        if was_open:
            group.is_undone = True  # first: a thread that sees it undone must not take it for committed
            group.transaction.abort()
        if self._turn is not None:
            self._turn.release()
        if not was_open and group.transaction is not None and not group.is_undone:
            self._make_durable(group)
        if group in self._inside:
            self._inside.remove(group)
        for member in group.members:
            if member.done is not None and member.done.locked():
                with suppress(RuntimeError):  # another thread has released it meanwhile
                    member.done.release()
        self._group = None

    def _take_turn(self, began_s: float) -> None:
        try:
            if self._turn is None:
                self._turn = WriterTurn(self._folder)
            self._turn.take(began_s + WRITER_WAIT_S, began_s)
        except OSError as error:
            raise self._mapped(error) from error

    def _make_durable(self, group: _Group) -> None:
        try:
            if self._many_writers and not group.is_committed:
                self._lmdb.sync(True)
        except lmdb.Error as error:
            group.error = self._failed(error)
        else:
            group.is_committed = True

    def _begin(self, inside: object, *, write: bool) -> Transaction:
        try:
            return self._lmdb.begin(write=write)
        except lmdb.MapResizedError:
            self._adopt_map_size(inside)
            return self._lmdb.begin(write=write)
        except lmdb.ReadersFullError:
            self._lmdb.reader_check()
            return self._lmdb.begin(write=write)

    # Lifetime

    def upgrade(self) -> None:
        """Opens an environment that was open for reading for writing too."""
        self.writable = True
        self._panicked = True
        self._alone(self._reopen)

    def _reopen(self) -> None:
        """Syncs, once for all that wait; again after an interrupt."""
        if not self._panicked or self._closed:
            return
        self._check_file()
        self._lmdb.close()
        self._roots = None
        self._open()
        self._panicked = False

    def close(self) -> None:
        self._closed = True
        self._alone(self._close)

    def _close(self) -> None:
        self._roots = None
        self._lmdb.close()
        if self._turn is not None:
            self._turn.close()

    def close_in_child(self) -> None:
        """Frees the child's copy after a fork, which waited until no call was inside."""
        if self._turn is not None:
            self._turn.close()
        if not self._inside:
            self._lmdb.close()

    def pause(self, wait_s: float | None = None) -> None:
        """Returns once no call is inside, or after `wait_s`. Later calls wait for `resume`."""
        self._pausing.acquire()
        self._keep_out(wait_s)

    def resume(self) -> None:
        if not self._pausing.acquire(blocking=False):
            return  # `pause` was interrupted before it held the lock, and another thread holds it now
        self._paused = False
        self._pausing.release()
        with suppress(RuntimeError):
            self._pausing.release()

    def _keep_out(self, wait_s: float | None) -> None:
        self._paused = True
        give_up = None if wait_s is None else time.monotonic() + wait_s
        while self._inside and (give_up is None or time.monotonic() < give_up):
            time.sleep(0.0001)

    def _alone(self, work: Callable[[], None]) -> None:
        """Runs `work` while no call is inside. Not a context manager: entering one could be interrupted half-way."""
        with self._pausing:
            try:
                self._keep_out(None)
                work()
            finally:
                self._paused = False

    def _enter(self, inside: object) -> None:
        """The caller removes `inside` from `_inside`, however this call ends."""
        self._guard.check()
        if self._panicked:
            self._alone(self._reopen)
        self._inside.append(inside)
        while self._paused:
            self._inside.remove(inside)
            with self._pausing:
                pass
            self._inside.append(inside)
        if self._closed:
            raise Misuse(f"the embedded store in {self._folder} was closed")

    def _adopt_map_size(self, inside: object) -> None:
        """Another process wrote beyond our map. This call is inside: it leaves, waits for the others, and enters
        again."""
        self._inside.remove(inside)
        self._alone(lambda: self._lmdb.set_mapsize(0))
        self._enter(inside)

    @property
    def is_in_place(self) -> bool:
        return _data_file(self._file) == self.data_file

    def check_in_place(self) -> None:
        """`Misuse` if what was written just now lies in files that no other process finds: it must not be promised."""
        self._check_file("what was written last is not in it")

    def _check_file(self, what: str = "nothing was read or written") -> None:
        if not self.is_in_place:
            raise Misuse(
                f"the folder {self._folder.parent} was removed or replaced while it was open: {what}; connect again",
                folder=str(self._folder),
            )
        self._looked_s = time.monotonic()

    def _open(self) -> None:
        """Whether `data_file` is the open file. If it was replaced meanwhile, the two checks differ."""
        before = _data_file(self._file)
        self._open_map()
        if self.data_file != before:
            self._lmdb.close()
            raise Unavailable(f"the embedded store in {self._folder} was replaced while it was opened")

    def _open_map(self) -> None:
        map_bytes = self._map_bytes
        try:
            make_lock_file(self._folder, shared=is_shared(self._folder.parent))
        except OSError as error:
            raise self._mapped(error) from error
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
            self.data_file = file_id(os.stat(self._file))
            self._roots = mapped_root_pages(Path(self._file), self.data_file, self._lmdb)
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
            mode=file_mode(is_shared(self._folder.parent)),
        )

    def _forget_dead_readers(self) -> None:
        """Housekeeping: what was written is durable, even if this fails."""
        with suppress(lmdb.Error):
            self._lmdb.reader_check()

    def _failed(self, error: lmdb.Error) -> OmidError:
        self._panicked = self._panicked or isinstance(error, lmdb.PanicError)
        return self._mapped(error)

    def _mapped(self, error: BaseException) -> OmidError:
        return mapped(error, self._folder)


class HeldState:
    """One committed state of an environment, for a copy. Until `end` its pages are not used again: where others write,
    the file grows. It counts as a call inside LMDB, for which a fork waits some seconds."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._transaction: Transaction = None

    def hold(self, *, in_write: bool = False) -> None:
        """Holds the newest state. `in_write`: called by a function of `write`, so nothing is committed before that
        returns."""
        if in_write:  # inside already: `_enter` might wait for a thread that waits for this call
            self._environment._inside.append(self)
        else:
            self._environment._enter(self)
        self._transaction = self._environment._begin(self, write=False)

    def is_newest(self) -> bool:
        """Whether nothing was committed since, by any process."""
        newest, held = self._environment._lmdb.info()["last_txnid"], self._transaction.id()
        return int(newest) == int(held)

    def copy_to(self, folder: Path) -> None:
        """LMDB's own copy, without free pages, into an existing folder. Not synced."""
        try:
            self._environment._lmdb.copy(os.fspath(folder), compact=True, txn=self._transaction)
        except TypeError as error:
            raise Misuse(
                "this lmdb package cannot copy a chosen state (it was built with LMDB_PURE): pip install "
                "--force-reinstall lmdb, whose wheels can"
            ) from error
        except lmdb.Error as error:
            raise mapped(error, folder) from error

    @contextmanager
    def records(self, database: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """All of one database, in the order of keys."""
        with self._transaction.cursor(self._environment.databases[database]) as cursor:
            yield cursor.iternext()

    def get(self, database: bytes, key: bytes) -> bytes | None:
        found: bytes | None = self._transaction.get(key, db=self._environment.databases[database])
        return found

    def counts(self) -> list[int]:
        """How many records each database has, in the order of their names as it was opened."""
        databases = self._environment.databases.values()
        return [int(self._transaction.stat(database)["entries"]) for database in databases]

    def end(self) -> None:
        """Any number of times."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        if self in self._environment._inside:
            self._environment._inside.remove(self)


def make_lock_file(folder: Path, *, shared: bool) -> None:
    """LMDB maps its lock file, which begins as a hole: to touch that on a full disk ends the process. So what is
    touched first gets its room before. Not where LMDB has it open: a close here would release its locks there."""
    path = folder / _LOCK
    with suppress(FileNotFoundError):
        if os.stat(path).st_size >= _LOCK_BYTES:
            return
    file = open_own(path, os.O_RDWR | os.O_CREAT, shared=shared)
    try:
        reserve(file, _LOCK_BYTES)
    finally:
        os.close(file)


def _is_open(transaction: Transaction) -> bool:
    """Whether the transaction ended: LMDB gives no number to one that was committed or undone."""
    try:
        transaction.id()
    except lmdb.Error:
        return False
    return True


def mapped(error: BaseException, folder: Path) -> OmidError:
    """The error of `pyomid.errors` for an error of LMDB."""
    where = f"the embedded store in {folder}"
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(f"{where} reached the end of its map: open it with a greater map_bytes", folder=str(folder))
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.NotFoundError)):
        return Corruption(f"{where} is damaged: {error}", folder=str(folder))
    if isinstance(error, lmdb.VersionMismatchError):
        return Corruption(f"{where} was written by another version of LMDB: {error}", folder=str(folder))
    if isinstance(error, (lmdb.BadValsizeError, lmdb.ReadonlyError, lmdb.InvalidParameterError)):
        return Misuse(f"{where}: {error}")
    if "already open in this process" in str(error):
        return Unavailable(
            f"{where} is open in this process from before it was forked, while its parent took a back-up: fork before "
            "or after a back-up, or start processes otherwise (spawn)",
            folder=str(folder),
        )
    code = getattr(error, "code", 0) or getattr(error, "errno", 0)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (code == errno.EIO and _is_out_of_room(folder)):
        return StoreFull(f"the disk of {where} is full: {error}", folder=str(folder))
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        return Misuse(f"{where} is not writable for this user: {error}", folder=str(folder))
    if code == errno.EAGAIN:
        return Unavailable(
            f"{where} is open in a process with this one's number, {os.getpid()}, by which LMDB tells processes apart: "
            "containers that share a folder share their process numbers too (podman run --pid=container:NAME)",
            folder=str(folder),
        )
    return Unavailable(f"{where}: {error}", folder=str(folder))


def _is_out_of_room(folder: Path) -> bool:
    """Whether a short write means a full disk or the limit of `ulimit -f`."""
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

_register: list[Environment] = []
"""Searched by the file that each has open now: opening again may have found another one under the folder's name."""
_register_lock = threading.RLock()


def open_environment(
    folder: Path,
    databases: Sequence[bytes],
    *,
    writable: bool,
    many_writers: bool,
    map_bytes: int = MAP_BYTES_DEFAULT,
) -> Environment:
    """The process's one environment of that folder. Its users are counted; each gives it back by `release`.

    It is opened for writing as soon as one user wants to write. Only the first user's `map_bytes` counts.
    """
    with _register_lock:
        wanted = _data_file(os.fspath(folder / _DATA))
        environment = next((known for known in _register if known.data_file == wanted), None)
        if environment is None:
            environment = Environment(
                folder, databases, writable=writable, many_writers=many_writers, map_bytes=map_bytes
            )
            _register.append(environment)
        elif writable and not environment.writable:
            environment.upgrade()
        environment.users += 1
        return environment


def _data_file(file: str) -> FileId | None:
    try:
        return file_id(os.stat(file))
    except (FileNotFoundError, NotADirectoryError):
        return None


def release(environment: Environment) -> None:
    """The last user closes it."""
    with _register_lock:
        environment.users -= 1
        if environment.users == 0:
            if environment in _register:  # not in a child of fork: it opens the folder for itself
                _register.remove(environment)
            environment.close()


def _before_fork() -> None:
    _register_lock.acquire()
    give_up_s = time.monotonic() + _FORK_WAIT_S
    for environment in _register:
        environment.pause(max(0.0, give_up_s - time.monotonic()))


def _after_fork_in_parent() -> None:
    for environment in _register:
        environment.resume()
    with suppress(RuntimeError):  # not held if `_before_fork` was interrupted
        _register_lock.release()


def _after_fork_in_child() -> None:
    global _register_lock
    for environment in _register:
        environment.close_in_child()
    _register.clear()
    _register_lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
