"""The LMDB environments of this process. Each is opened once for all its users, and may be used with threads and forks.

LMDB imposes these conditions, and this module meets them as follows:

    a process opens an environment only once            `open_environment` keeps a counted register by device and inode
    read transactions must be short                     `read` runs one function inside one transaction
    the wait for the write lock has no timeout          every writer first takes a lock of ours, with a timeout
                                                        (`writer_turns`)
    write transactions are serial, and syncs are slow   in `write` one thread commits for all that wait
    the map is resized only while no thread reads       `_alone` waits until no call is inside
    a forked child must not use or close it             forks wait until no call is inside; then the child closes its
                                                        copy, which frees nothing of the parent's
    dead readers pin old pages                          they are removed at the opening, and once per second by writers
    a process must not close another descriptor of      the locks belong to a descriptor of ours (`lmdb_files`)
    the lock file, because that would end its locks

Every commit keeps LMDB's own order: its pages are synced, then its root page is written through a descriptor with
O_DSYNC, and only then does LMDB publish the transaction's number in the lock file (`mdb_env_write_meta`), where every
transaction begins (`mdb_txn_renew0`). So no process sees a state that a loss of power could undo (decision 0125).
NOMETASYNC and NOSYNC would break this; they are never used.

An open environment stays open when its folder is removed or replaced. Then LMDB would continue in files that no other
process finds. So each write first checks, inside its transaction, whether the files with these names are the open ones,
and refuses if they are not. Reads check this every `LOOK_S`, and again at the end of a long read: with another lock
file, no other process would see this one's readers.

Because of forks, read transactions are not kept between calls either. If the parent held one during a fork, the child's
close would release it in the lock file.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from operator import attrgetter
from pathlib import Path
from threading import get_ident
from typing import Any, Final, Generic, Protocol, TypeVar

import lmdb

from pyomid import system
from pyomid.checks import ProcessGuard
from pyomid.crashpoints import crash_point
from pyomid.errors import Corruption, Misuse, OmidError, OutcomeUnknown, StoreFull, Unavailable
from pyomid.folder.folder_clock import FolderClock
from pyomid.folder.lmdb_files import (
    DATA_FILE,
    LMDB_LOCK_FILE,
    UNNAMED,
    hold_locks,
    make_lock_file,
    open_database,
    open_lmdb,
    records_in,
    release_locks,
)
from pyomid.folder.open_starts import OpenStarts
from pyomid.folder.shared_file import Posted, SharedFile
from pyomid.folder.shared_file import opened as opened_shared
from pyomid.folder.writer_turns import Group, Member, WriterTurn, next_members
from pyomid.system import FileId, file_id, file_mode, id_at, inside, is_shared, nested_call, refuse_nested

T = TypeVar("T")
Transaction = Any
"""An `lmdb.Transaction`. Its stub is generic over bytes and memoryview, so it is not used here."""
Commit = tuple[FileId, int]
"""A data file, and the number of an LMDB transaction in it."""
MAP_BYTES_DEFAULT: Final = 1 << 40
"""This is address space, not disk space; the file grows with its content. 1 TiB of the 128 TiB of a Linux process."""
_MAP_BYTES_MIN: Final = 1 << 26
_GIB: Final = 1 << 30
READERS_MAX: Final = 4096
"""LMDB's default of 126 is less than the number of threads on one busy machine. A slot costs 64 bytes of the lock
file."""
_GROUP_RECORDS_MAX: Final = 4000
"""Limits the time for which a group commit holds the write lock to a few milliseconds (C6)."""
_READER_CHECK_S: Final = 1.0
"""How often dead readers are removed. Until the reader of a killed process is removed, LMDB does not reuse the pages
that it pins. At a hundred commits per second the file then grows by some megabytes per second."""
_FORK_WAIT_S: Final = 5.0
WRITER_WAIT_S = 30.0
"""The timeout of a write that waits for other processes. They normally hold the lock for milliseconds."""
_TURN_STEP_S: Final = 0.002
"""How long the owner of posted requests waits before it tries to take the turn itself, because the turn's holder may
have died."""
_TAKEN_WAIT_S: Final = 1.0
LOOK_S = 0.01
"""How often reads check the file. One check costs as much as a small read."""
_FREE_BYTES_MIN: Final = 1 << 20
"""LMDB reports a short write as EIO. If less than this is free, EIO means that the disk is full."""


_request_of: Final = attrgetter("request")


class _Group(Group):
    """Functions that share one write transaction."""

    __slots__ = ("is_undone", "members", "others", "posted", "transaction")

    def __init__(self, members: list[_Pending[Any]]) -> None:
        self.error, self.is_committed = None, False
        self.members = members
        self.transaction: Transaction = None
        self.others: list[Posted] = []
        """Requests of other processes that this group's transaction performs."""
        self.posted: Posted | None = None
        """The group's own requests, if posted. Other processes may have taken or performed them."""
        self.is_undone = False
        """True if the transaction ended, or is about to end, without a commit."""


class _Pending(Member[_Group], Generic[T]):
    """A function that waits for its write transaction, and later the function's result."""

    __slots__ = ("request", "value", "work")

    def __init__(self, work: Callable[[Transaction], T], records: int) -> None:
        self.weight, self.error, self.group, self.is_abandoned = records, None, None, False
        self.work = work
        self.request = b""
        """The request that another process can perform instead of `work`."""
        self.value: T | None = None

    def result(self) -> T:
        error = self.found_error()
        if error is not None:
            raise error
        return self.value  # type: ignore[return-value]

    def error_or_value(self) -> T | BaseException | None:
        return self.found_error() or self.value


class Requests(Protocol):
    """Performs requests of this process and of others in write transactions."""

    def perform(self, transaction: Transaction, requests: Sequence[bytes]) -> list[Any]: ...

    def packed(self, requests: Sequence[bytes]) -> bytes: ...

    def perform_posted(self, transaction: Transaction, posted: Sequence[Posted]) -> list[list[Any]]: ...

    def known(self, transaction: Transaction, posted: Posted) -> list[Any] | None: ...


class _WithOthers(Exception):
    """Raised if a transaction failed that also performed requests of other processes."""


class Environment:
    """An open environment. It is created by `open_environment` only, and `release` ends its use."""

    def __init__(self, folder: Path, databases: Sequence[bytes], *, map_bytes: int) -> None:
        self._folder = folder
        self._file = os.fspath(folder / DATA_FILE)
        self._names = tuple(databases)
        self._map_bytes = map_bytes
        self._guard = ProcessGuard(f"the embedded store in {folder}")
        self._inside: list[object] = []
        """One entry per call inside LMDB. Appending and removing are atomic, so entering takes no lock. A call appends,
        then checks `_paused`; a thread that needs to be alone sets `_paused`, then checks this list."""
        self._paused = False
        self._pausing = threading.RLock()
        self._queue: deque[_Pending[Any]] = deque()
        self._group: _Group | None = None
        self._writer = threading.Lock()
        """Held by the thread that writes `_group`."""
        self._readers_checked_s = 0.0
        self._panicked = False
        """True if a root page could not be written. Then the environment must be reopened before the next call."""
        self._closed = False
        self.users = 0
        self._looked_s = time.monotonic()
        self.databases: dict[bytes, Any] = {}
        self._turn: WriterTurn | None = None
        self._lock_file = os.fspath(folder / LMDB_LOCK_FILE)
        self._locks: FileIO | None = None
        """The file that holds LMDB's locks while LMDB is open. If an interrupt loses this object, its finalizer closes
        the file."""
        self._lock_id: FileId = (0, 0)
        self.requests: Requests | None = None
        self.shared: SharedFile | None = None
        self._is_alone = False
        """True if the current transaction performs nothing for other processes, because it failed with their
        requests."""
        self.data_file: FileId = (0, 0)
        """The file that LMDB has open. It does not change inside a transaction."""
        try:
            self._open_in_turn()
            self.shared = opened_shared(folder)
        except BaseException:
            if any(self.data_file):
                self._close_lmdb()
            raise
        self.starts = OpenStarts(self.shared)
        self.wall = FolderClock()

    @property
    def folder(self) -> Path:
        return self._folder

    # Transactions

    def read(self, work: Callable[..., T], *arguments: object) -> T:
        """Run `work(transaction, *arguments)` inside a fresh read transaction and return its result, which must not
        point into the map."""
        call = object()
        try:
            with self._begin(call, write=False) as transaction:
                if time.monotonic() - self._looked_s > LOOK_S:
                    self._check_file()
                result = work(transaction, *arguments)
                if time.monotonic() - self._looked_s > LOOK_S:
                    self._check_file()
                return result
        except lmdb.Error as error:
            raise self._failed(error) from error
        finally:
            if call in self._inside:  # inline, because an interrupt at a call's entry would skip it
                self._inside.remove(call)

    def write(self, work: Callable[[Transaction], T], *, records: int = 1) -> T:
        """Run `work` inside a durable write transaction, perhaps together with the work of other threads, and return
        its result.

        `work` may run twice (if another member of its group fails), so it must change nothing but the store. If it
        raises an exception, the transaction is undone and the exception is raised here. `records` says about how much
        it writes. If this call is interrupted, the write commits before any later write, or never.
        """
        self._guard.check()
        pending = _Pending(work, records)
        if (me := get_ident()) in inside:
            refuse_nested()
        try:
            inside[me] = sys._getframe()
            self._queue.append(pending)
            self._see_to(pending)
        finally:
            inside.pop(me, None)
            pending.is_abandoned = True
        return pending.result()

    def request(self, request: bytes) -> Any:
        """Return the durable outcome of a request. The request is performed here, or by another process that has the
        turn."""
        (outcome,) = self.request_many((request,))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def request_many(self, requests: Sequence[bytes]) -> list[Any]:
        """Like `request`, for several requests, which share a transaction if they fit. If a request was not performed,
        its error stands in place of its outcome."""
        if self._guard.made_in is not system.here:
            self._guard.check()
        waiting: list[_Pending[Any]] = []
        if (me := get_ident()) in inside:
            refuse_nested()
        try:
            inside[me] = sys._getframe()
            for request in requests:
                pending = _Pending(partial(self._perform_one, request=request), 1 + len(request) // 500)
                pending.request = request
                waiting.append(pending)
                self._queue.append(pending)
            for pending in waiting:
                self._see_to(pending)
        finally:
            inside.pop(me, None)
            for pending in waiting:
                pending.is_abandoned = True
        return [pending.error_or_value() for pending in waiting]

    def write_at_once(self, work: Callable[[Transaction], T], *, records: int = 1) -> T:
        """Like `write`, but do not wait for another writer. If another one has the turn, raise `Unavailable` and write
        nothing."""
        self._guard.check()
        pending = _Pending(work, records)
        if (me := get_ident()) in inside:
            refuse_nested()
        if self._writer.locked():
            raise Unavailable(f"another thread is writing the embedded store in {self._folder}; try again")
        try:
            inside[me] = sys._getframe()
            with self._writer:
                try:
                    self._end_group()
                    self._write_together([pending], time.monotonic() - WRITER_WAIT_S)
                finally:
                    self._end_group()
        finally:
            inside.pop(me, None)
        return pending.result()

    def _see_to(self, pending: _Pending[Any]) -> None:
        """Return once the write has its outcome."""
        if pending.group is not None and pending.is_done:
            return
        began_s = time.monotonic()
        with self._writer:
            while not pending.is_done:
                try:
                    if self._group is not None:
                        self._end_group()
                    self._write_together(next_members(self._queue, _GROUP_RECORDS_MAX), began_s)
                finally:
                    if self._group is not None:
                        try:
                            self._end_group()
                        finally:  # after two interrupts, other processes would wait for this one's next write
                            self._end_group()

    # After an interrupt, LMDB's state of the transaction decides how the current group ends (`writer_turns`):
    #
    #     transaction open        nothing was written: it is undone, and its functions are still in the queue
    #     transaction ended       it was committed durably: every member gets that outcome

    def _write_together(self, members: list[_Pending[Any]], began_s: float) -> None:
        """Write a group. `began_s` is the time at which this thread began to wait."""
        try:
            self._commit(_Group(members), began_s)
        except (MemoryError, RecursionError):
            raise  # the error concerns this thread only; the other members need not fail
        except _WithOthers as error:
            self._end_group()
            self._is_alone = True
            try:
                self._write_together(members, began_s)
            finally:
                self._is_alone = False
            del error
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
            try:
                if not self._has_turn(group, began_s):
                    return  # another process performed the group's requests
            except OmidError:
                raise
            except ValueError as error:  # closed meanwhile, because this thread is not inside LMDB
                raise self._was_closed() from error
            group.transaction = self._begin(group, write=True)
            self._check_file()
            self._perform(group, group.transaction)
            if self.shared is not None and self.requests is not None and not self._is_alone:
                for posted in self.shared.gather():
                    group.others.append(posted)
                if group.others:
                    self.requests.perform_posted(group.transaction, group.others)
            crash_point("storage.commit.taken")
            try:
                group.transaction.commit()
            except lmdb.Error:
                group.is_undone = True
                raise
            crash_point("storage.commit.durable")
        except lmdb.Error as error:
            if group.others and len(group.members) == 1:
                raise _WithOthers from error
            raise self._failed(error) from error
        finally:
            self._end_group()
        now_s = time.monotonic()
        if now_s >= self._readers_checked_s + _READER_CHECK_S:
            self._readers_checked_s = now_s
            self._forget_dead_readers()

    def _perform(self, group: _Group, transaction: Transaction) -> None:
        if group.posted is not None:
            (outcomes,) = self.requests.perform_posted(transaction, [group.posted])  # type: ignore[union-attr]
        elif all(requests := list(map(_request_of, group.members))):
            outcomes = self.requests.perform(transaction, requests)  # type: ignore[union-attr]
        else:
            for member in group.members:
                member.group = group
                member.value = member.work(transaction)
            return
        for member, outcome in zip(group.members, outcomes, strict=True):
            member.value, member.group = outcome, group

    def _perform_one(self, transaction: Transaction, request: bytes) -> Any:
        (outcome,) = self.requests.perform(transaction, [request])  # type: ignore[union-attr]
        return outcome

    # Posted requests
    #
    # If another process has the turn, the group's requests are posted. That process performs them; or this process gets
    # the turn, and performs them itself. `_group.posted` says which requests wait, so that after an interrupt the next
    # thread can find out what became of them.

    def _has_turn(self, group: _Group, began_s: float) -> bool:
        """Take the turn. Returns False if that is not needed, because another process performed the group's
        requests."""
        turn = self._turn or self._opened_turn()
        if turn.try_to_take():
            return True
        requests = [member.request for member in group.members]
        if self.shared is None or self.requests is None or not all(requests):
            self._take_turn(began_s)
            return True
        posted = self.shared.prepared(self.requests.packed(requests))
        if posted is None:
            self._take_turn(began_s)
            return True
        group.posted = posted
        self.shared.post(posted)
        crash_point("storage.commit.posted")
        while not self._is_settled(group, wait_until_s=began_s + WRITER_WAIT_S):
            pass
        return not group.is_committed

    def _is_settled(self, group: _Group, *, wait_until_s: float) -> bool:
        """Wait a little for the posted requests. Returns True if they have their outcomes, or this process has the
        turn. When the time is over, raises `Unavailable` if they could be withdrawn, and `OutcomeUnknown` if another
        process took them."""
        posted, shared, turn = group.posted, self.shared, self._opened_turn()
        if posted is None or shared is None:
            return True
        seen = shared.turns()
        if shared.is_done(posted.number) and self._has_outcomes(group, posted):
            shared.clear(posted.number)
            return True
        if turn.try_to_take():
            if shared.withdraw(posted.number):
                group.posted = None  # nobody took them, and nobody can any more
            return True
        now_s = time.monotonic()
        if now_s >= wait_until_s:
            error = turn.refused(WRITER_WAIT_S)
            if shared.withdraw(posted.number):
                group.posted = None
                raise error
            if now_s >= wait_until_s + WRITER_WAIT_S:
                raise error
        shared.wait(seen, _TURN_STEP_S)
        return False

    def _has_outcomes(self, group: _Group, posted: Posted) -> bool:
        """L6: take the group's outcomes from the database. Returns whether they are there."""
        outcomes = self.read(self.requests.known, posted)  # type: ignore[union-attr]
        if outcomes is None:
            return False
        for member, outcome in zip(group.members, outcomes, strict=True):
            member.value, member.group = outcome, group
        group.is_committed = True
        return True

    def _withdraw_posted(self, group: _Group) -> None:
        """After an interrupt, withdraw the group's requests if they are still posted. If they were taken, wait a second
        for their outcomes."""
        posted, shared = group.posted, self.shared
        if posted is None or shared is None or group.transaction is not None or group.is_committed:
            return
        with suppress(OmidError, ValueError):  # closed meanwhile; the outcome of taken requests stays unknown
            if shared.withdraw(posted.number):
                group.posted = None
                return
            give_up_s = time.monotonic() + _TAKEN_WAIT_S
            while time.monotonic() < give_up_s and not self._has_outcomes(group, posted):
                shared.wait(shared.turns(), _TURN_STEP_S)

    def _end_group(self) -> None:
        """End the current group: close its transaction, and set the outcome of its members. Idempotent. If a thread is
        interrupted here, the next thread does the rest."""
        group = self._group
        if group is None:
            return
        if group.posted is not None:
            self._withdraw_posted(group)
        was_open = group.transaction is not None and _is_open(group.transaction)
        if was_open:
            group.is_undone = True  # set this before the abort, or another thread could take the group for committed
            group.transaction.abort()
        if not was_open and group.transaction is not None and not group.is_undone:
            group.is_committed = True
        if group.posted is not None and not group.is_committed:
            # Another process took the requests, and may still perform them, so no member may be written again.
            writer = "" if self._turn is None else f"; the embedded store was last written by {self._turn.holder()}"
            group.error = OutcomeUnknown(
                f"another process took over this commit and did not report whether it wrote it{writer}"
            )
            for member in group.members:
                member.group = group
        if self.shared is not None:
            for posted in group.others:
                (self.shared.mark_done if group.is_committed else self.shared.give_back)(posted)
        if self._turn is not None and self._turn.is_held:
            self._turn.release()
            if self.shared is not None:
                self.shared.end_turn()
        if group in self._inside:
            self._inside.remove(group)
        group.members = []  # the members refer to the group; this leaves no cycle
        self._group = None

    def _opened_turn(self) -> WriterTurn:
        if self._closed:
            raise self._was_closed()
        if self._turn is None:
            try:
                self._turn = WriterTurn(self._folder)
            except OSError as error:
                raise self._mapped(error) from error
        return self._turn

    def _take_turn(self, began_s: float) -> None:
        """Take the writer's lock. This thread is not inside LMDB, so another thread may close the environment
        meanwhile."""
        turn = self._opened_turn()
        try:
            turn.take(began_s + WRITER_WAIT_S, began_s, shared=self.shared)
        except OmidError:
            raise
        except ValueError as error:
            raise self._was_closed() from error
        except OSError as error:
            raise self._mapped(error) from error

    def _begin(self, call: object, *, write: bool) -> Transaction:
        """Register a call, and return its transaction. The caller must remove `call` from `_inside`, however this call
        ends."""
        if self._guard.made_in is not system.here:
            self._guard.check()
        if self._panicked:
            self._alone(self._reopen)
        self._inside.append(call)
        while self._paused:
            self._inside.remove(call)
            if self._pausing._is_owned():  # type: ignore[attr-defined]  # in a handler, within a fork or a close
                raise nested_call()
            with self._pausing:
                pass
            self._inside.append(call)
        if self._closed:
            raise self._was_closed()
        try:
            return self._lmdb.begin(write=write)
        except lmdb.MapResizedError:
            self._adopt_map_size(call)
            return self._begin(call, write=write)
        except lmdb.ReadersFullError:
            self._lmdb.reader_check()
            return self._lmdb.begin(write=write)

    # Lifetime

    def _reopen(self) -> None:
        """Open the environment again, once for all calls that wait. After an interrupt it is repeated."""
        if not self._panicked or self._closed:
            return
        self._check_file()
        self._close_lmdb()
        self._open()
        self._panicked = False

    def close(self) -> None:
        self._closed = True
        give_up_s = time.monotonic() + 2 * _TAKEN_WAIT_S
        while (group := self._group) is not None and group.posted is not None and time.monotonic() < give_up_s:
            time.sleep(_TURN_STEP_S)  # the group's thread withdraws what it posted, or finds out what became of it
        self._alone(self._close)

    def _close(self) -> None:
        self._close_lmdb()
        if self._turn is not None:
            self._turn.close()
        if self.shared is not None:
            self.shared.close()

    def _close_lmdb(self) -> None:
        """Close LMDB and release its locks. Idempotent; an interrupt leaves neither the locks nor their descriptor."""
        try:
            self._lmdb.close()
        finally:
            if self._locks is not None:
                try:
                    release_locks(self._locks)
                finally:
                    self._locks.close()

    def close_in_child(self) -> None:
        """Free the child's copy after a fork. The fork waited until no call was inside."""
        if self._turn is not None:
            self._turn.close()
        if self._locks is not None:
            self._locks.close()  # the locks stay the parent's
        if self.shared is not None:
            self.shared.close()
        if not self._inside:
            self._lmdb.close()

    def pause(self, wait_s: float | None = None) -> None:
        """Return once no call is inside, or after `wait_s`. Later calls wait until `resume`."""
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
        """Run `work` while no call is inside. This is not a context manager, because an interrupt could come halfway
        through its entry."""
        with self._pausing:
            try:
                self._keep_out(None)
                work()
            finally:
                self._paused = False

    def _was_closed(self) -> Misuse:
        return Misuse(f"the embedded store in {self._folder} was closed")

    def _adopt_map_size(self, call: object) -> None:
        """Adopt the map size of another process that wrote beyond our map. This call is counted as inside LMDB; it
        leaves, and waits until all others have left."""
        self._inside.remove(call)
        self._alone(lambda: self._lmdb.set_mapsize(0))

    @property
    def is_in_place(self) -> bool:
        try:
            data, lock = os.stat(self._file), os.lstat(self._lock_file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (data.st_dev, data.st_ino) == self.data_file and (lock.st_dev, lock.st_ino) == self._lock_id

    def _check_file(self) -> None:
        """C8: raise `Misuse` if the folder's files are no longer those that this process opened."""
        if not self.is_in_place:
            raise Misuse(
                f"the folder {self._folder.parent}, or the file {DATA_FILE} or {LMDB_LOCK_FILE} in it, was removed or "
                "replaced while it was open: nothing was read or written; close the database and connect again",
                folder=str(self._folder),
            )
        self._looked_s = time.monotonic()

    def check_name(self, folder: Path) -> None:
        """Raise `Misuse` if this environment's folder was renamed, because its users find no file at the former
        name."""
        if _data_file(self._file) != self.data_file:
            raise Misuse(
                f"this process opened the folder {folder.parent} under its former name, {self._folder.parent}: close "
                "the databases that were opened under the former name, then connect again",
                folder=str(folder),
            )

    def _open_in_turn(self) -> None:
        """Open LMDB while this process has the turn: py-lmdb opens named databases in a write transaction, so an
        opening waits for other writers, with a timeout."""
        began_s = time.monotonic()
        try:
            turn = WriterTurn(self._folder)
        except OSError as error:
            raise self._mapped(error) from error
        try:
            turn.take(began_s + WRITER_WAIT_S, began_s)
            self._open()
        finally:
            try:
                turn.release()
            finally:  # close it even if an interrupt prevented the release
                turn.close()

    def _open(self) -> None:
        """Open LMDB, and check that `data_file` is the file that was opened. If the file was replaced meanwhile, the
        two stats differ."""
        before = _data_file(self._file)
        self._open_map()
        if self.data_file != before:
            self._close_lmdb()
            raise self._was_replaced()

    def _was_replaced(self) -> Unavailable:
        return Unavailable(f"the embedded store in {self._folder} was replaced while it was being opened")

    def _open_map(self) -> None:
        map_bytes = self._map_bytes
        try:
            make_lock_file(self._folder, shared=is_shared(self._folder.parent))
        except OSError as error:
            raise self._mapped(error) from error
        lock_file = id_at(self._lock_file)
        while True:
            try:
                self._lmdb = self._open_with(map_bytes)
                break
            except (lmdb.MemoryError, MemoryError, lmdb.Error) as error:
                if not _is_out_of_address_space(error) or map_bytes <= _MAP_BYTES_MIN:
                    raise self._mapped(error) from error
                map_bytes //= 4
        try:
            self._locks = hold_locks(self._folder, self._lmdb)
            self._lock_id = file_id(os.fstat(self._locks.fileno()))
            if self._lock_id != lock_file:
                raise self._was_replaced()
            self._lmdb.reader_check()
            self.databases = {name: open_database(self._lmdb, name) for name in self._names}
            self.data_file = file_id(os.stat(self._file))
        except BaseException as error:
            self._close_lmdb()
            if isinstance(error, (lmdb.Error, OSError)):
                raise self._mapped(error) from error
            raise

    def _open_with(self, map_bytes: int) -> lmdb.Environment:
        return open_lmdb(
            self._folder,
            map_bytes,
            create=False,
            max_dbs=len(self._names),
            max_readers=READERS_MAX,
            max_spare_txns=0,
            readahead=False,
            mode=file_mode(is_shared(self._folder.parent)),
        )

    def _forget_dead_readers(self) -> None:
        """Remove dead readers. Errors are ignored, because the write is durable already."""
        with suppress(lmdb.Error):
            self._lmdb.reader_check()

    def _failed(self, error: lmdb.Error) -> OmidError:
        self._panicked = self._panicked or isinstance(error, lmdb.PanicError)
        return self._mapped(error)

    def _mapped(self, error: BaseException) -> OmidError:
        return self._full() if isinstance(error, lmdb.MapFullError) else mapped(error, self._folder)

    def _full(self) -> StoreFull:
        size_gib, wanted_gib = self._lmdb.info()["map_size"] / _GIB, self._map_bytes / _GIB
        if size_gib < wanted_gib:
            way_out = (
                f"The option mapSizeGib asks for {wanted_gib:.3g} GiB, but this process's address space is limited: "
                "raise that limit (ulimit -v, RLIMIT_AS)"
            )
        else:
            way_out = "Close the database in this process and connect with a greater option mapSizeGib"
        return StoreFull(
            f"the embedded store in {self._folder} is full: its map has {size_gib:.3g} GiB. {way_out}",
            folder=str(self._folder),
        )


class HeldState:
    """One committed state of an environment, held for a copy. Until `end`, LMDB does not reuse the state's pages, so
    the file grows while others write. It counts as a call inside LMDB; a fork waits for it, for some seconds."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._transaction: Transaction = None

    def hold(self) -> None:
        """Hold the newest committed state."""
        self._transaction = self._environment._begin(self, write=False)

    def copy_to(self, folder: Path) -> None:
        """Write LMDB's own copy, without free pages, into an existing folder. The copy is not synced."""
        try:
            self._environment._lmdb.copy(os.fspath(folder), compact=True, txn=self._transaction)
        except TypeError as error:
            raise Misuse(
                "this lmdb package cannot copy a snapshot (it was built with LMDB_PURE): run pip install "
                "--force-reinstall lmdb, which installs a wheel that can copy snapshots"
            ) from error
        except lmdb.Error as error:
            raise mapped(error, folder) from error

    @contextmanager
    def records(self, database: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """Yield all records of one database, in the order of keys."""
        with self._transaction.cursor(self._environment.databases[database]) as cursor:
            yield records_in(cursor, self._environment.databases if database == UNNAMED else ())

    def get(self, database: bytes, key: bytes) -> bytes | None:
        found: bytes | None = self._transaction.get(key, db=self._environment.databases[database])
        return found

    def counts(self) -> list[int]:
        """Return the number of records of each database, in the order in which the databases were given at the
        opening."""
        databases = self._environment.databases.values()
        return [int(self._transaction.stat(database)["entries"]) for database in databases]

    def check(self) -> None:
        """Raise `Misuse` if the folder's files are no longer those that this process opened. Then what was read is
        void."""
        self._environment._check_file()

    def end(self) -> None:
        """Release the held state. Idempotent."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        if self in self._environment._inside:
            self._environment._inside.remove(self)


def _is_open(transaction: Transaction) -> bool:
    """Return whether the transaction is still open. LMDB gives no number to a transaction that was committed or
    undone."""
    try:
        transaction.id()
    except lmdb.Error:
        return False
    return True


def mapped(error: BaseException, folder: Path) -> OmidError:
    """Return the error of `pyomid.errors` that corresponds to an error of LMDB."""
    where = f"the embedded store in {folder}"
    if _is_out_of_address_space(error):
        return Unavailable(
            f"{where} needs more address space than this process may use: raise that limit (ulimit -v, RLIMIT_AS)",
            folder=str(folder),
        )
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(f"{where} reached the end of its map", folder=str(folder))
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.NotFoundError)):
        return Corruption(f"{where} is damaged: {error}", folder=str(folder))
    if isinstance(error, lmdb.VersionMismatchError):
        return Corruption(f"{where} was written by another version of LMDB: {error}", folder=str(folder))
    if isinstance(error, (lmdb.BadValsizeError, lmdb.ReadonlyError, lmdb.InvalidParameterError)):
        return Misuse(f"{where}: {error}")
    if "already open in this process" in str(error):
        return Unavailable(
            f"{where} is already open in this process, but not by these modules: either pyomid was imported a second "
            "time or reloaded (restart the program or notebook), or the process was forked while its parent took a "
            "backup (fork before or after a backup, or start processes by spawn)",
            folder=str(folder),
        )
    code = getattr(error, "code", 0) or getattr(error, "errno", 0)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (code == errno.EIO and _is_out_of_room(folder)):
        return StoreFull(f"the disk of {where} is full: {error}", folder=str(folder))
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        return Misuse(f"{where} is not writable for this user: {error}", folder=str(folder))
    if code == errno.EAGAIN:
        return Unavailable(
            f"{where} is open in another process that has the same process ID as this one, {os.getpid()}, and LMDB "
            "identifies processes by their IDs: containers that share a folder must share a PID namespace (podman "
            "run --pid=container:NAME)",
            folder=str(folder),
        )
    return Unavailable(f"{where}: {error}", folder=str(folder))


def _is_out_of_room(folder: Path) -> bool:
    """Return whether a short write means that the disk is full, or that the limit of `ulimit -f` is reached."""
    try:
        disk, size = os.statvfs(folder), os.stat(folder / DATA_FILE).st_size
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
"""The open environments. They are searched by the file that each has open now, because reopening may have found another
file under the folder's name."""
_register_lock = threading.RLock()


def open_environment(folder: Path, databases: Sequence[bytes], *, map_bytes: int = MAP_BYTES_DEFAULT) -> Environment:
    """Return the process's one environment of that folder, opening it if needed. Its users are counted; each must call
    `release` at the end.

    Only the first user's `map_bytes` has an effect.
    """
    with _register_lock:
        for left in [known for known in _register if not known.users]:  # an interrupt ended its close
            _end(left)
        wanted = _data_file(os.fspath(folder / DATA_FILE))
        environment = next((known for known in _register if known.data_file == wanted), None)
        if environment is not None:
            environment.check_name(folder)
        else:
            environment = Environment(folder, databases, map_bytes=map_bytes)
            _register.append(environment)
        environment.users += 1
        return environment


def _data_file(file: str) -> FileId | None:
    try:
        return file_id(os.stat(file))
    except (FileNotFoundError, NotADirectoryError):
        return None


def release(environment: Environment) -> None:
    """End one use. The end of the last use closes the environment."""
    with _register_lock:
        environment.users -= 1
        if environment.users == 0:
            _end(environment)


def _end(environment: Environment) -> None:
    """Close the environment, then forget it. After an interrupt, the next opening repeats this."""
    environment.close()
    if environment in _register:  # not in a forked child, which opens the folder for itself
        _register.remove(environment)


@atexit.register
def _keep_all() -> None:
    """Keep the open environments until the process ends. Another exit handler may use them later. And a daemon thread
    may be inside LMDB when the interpreter destroys its objects, which would close LMDB."""
    for environment in _register:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment))


def _before_fork() -> None:
    _register_lock.acquire()
    give_up_s = time.monotonic() + _FORK_WAIT_S
    for environment in _register:
        environment.pause(max(0.0, give_up_s - time.monotonic()))


def _after_fork_in_parent() -> None:
    for environment in _register:
        environment.resume()
    with suppress(RuntimeError):  # the lock is not held if `_before_fork` was interrupted
        _register_lock.release()


def _after_fork_in_child() -> None:
    global _register_lock
    for environment in _register:
        environment.close_in_child()
    _register.clear()
    _register_lock = threading.RLock()


os.register_at_fork(before=_before_fork)
for _ in range(2):  # if one hook is interrupted, Python still calls the next; both may run twice
    os.register_at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
