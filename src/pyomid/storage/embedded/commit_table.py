"""`CommitTable` of a folder: each write is one LMDB transaction, conditional on the stored epoch.

A start's marker or entry, the epoch and the time of the last commit are read and written in one transaction. So of a
marker and an entry exactly one wins, and a deposed TSO writes nothing.

Completion is not urgent: deletes join the next write of the table, or get a transaction of their own a second later.
Their shadow cells are durable before that (law 5). If a delete is lost, the sanitizer deletes the entry.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Misuse, OmidError, StoreFull, UnknownTable
from pyomid.ports import CommitTable, FlushEnd, FlushEnded, FlushLoop
from pyomid.storage.checks import ProcessGuard
from pyomid.storage.embedded.commit_entries import (
    RECORD_BYTES,
    RECORD_TIMESTAMPS,
    delete_entries,
    delete_some_below,
    entries_from,
    find_entries,
    put_entries,
    records_of,
    replace_entries,
    seal_starts,
)
from pyomid.storage.embedded.environment import MAP_BYTES_DEFAULT, Transaction, release
from pyomid.storage.embedded.layout import COMMITS, open_data, open_folder
from pyomid.storage.embedded.leader_state import check_epoch, read_number
from pyomid.storage.embedded.packed import ONE_STEP_BYTES_MAX, put_carried, unpack
from pyomid.storage.embedded.records import VALUE_BYTES_MAX
from pyomid.storage.embedded.tables import Table, Tables
from pyomid.types import TIMESTAMP_STEP, CellsOfCommit, SealOutcome

__all__ = ["RECORD_BYTES", "RECORD_TIMESTAMPS", "EmbeddedCommitTable"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Int64s = NDArray[np.int64]

_WRITE_RECORDS_MAX: Final = 2000
"""Records per transaction of `delete_below`: the next flush waits a few milliseconds for it."""
_READ_RECORDS_MAX: Final = 500
COMPLETION_S = 1.0
"""A completed entry is deleted after this time, if no other write deletes it before."""
_NO_STARTS: Final = np.empty(0, dtype=np.int64)


class _Unpacked(NamedTuple):
    """A commit that carries its cells, unpacked: the tables and records that it writes."""

    start_ts: int
    commit_ts: int
    tables: list[Table]
    records: list[tuple[bytes, bytes]]


class EmbeddedCommitTable(CommitTable):
    """The commit table of one folder. `writable`: for the TSO; other processes only look entries up."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        writable: bool,
        create: bool = True,
        map_bytes: int = MAP_BYTES_DEFAULT,
    ) -> None:
        path = open_folder(folder, create=create)
        self._path = path
        self._guard = ProcessGuard(f"the commit table in {path}")
        self._environment = open_data(path, map_bytes=map_bytes)
        self._tables = Tables(self._environment)
        self._writable = writable
        self._epoch: int | None = None
        self._closed = False
        self._completed: list[Int64s] = []
        """Starts whose entries the next write deletes. Append and pop are atomic."""
        self._timer: threading.Timer | None = None

    def serve_epoch(self, epoch: int) -> None:
        """Make every later write fail if the leader state has another epoch."""
        self._epoch = epoch

    # Reading

    def lookup(self, starts: Sequence[int]) -> list[int]:
        self._check()
        return self._environment.read(find_entries, self._commits, starts)

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int]:
        """See the port. All are read from one state of the folder, so H is not newer than the entries."""
        self._check()
        return self._environment.read(self._with_watermarks, starts)

    def _with_watermarks(self, transaction: Transaction, starts: Sequence[int]) -> tuple[list[int], int, int]:
        watermark, horizon = (read_number(self._environment, transaction, name) for name in (b"watermark", b"horizon"))
        return find_entries(transaction, self._commits, starts), watermark, horizon

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield entries in the order of starts, reading a bounded number at a time."""
        self._check()
        return self._entries()

    def _entries(self) -> Iterator[tuple[int, int]]:
        bucket: int | None = 0
        while bucket is not None:
            found, bucket = self._environment.read(entries_from, self._commits, bucket, _READ_RECORDS_MAX)
            yield from found

    def count(self) -> int:
        return sum(1 for _ in self.entries())

    # Writing

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        return self.put_block(np.array(entries, dtype=np.int64).reshape(-1, 2))

    def put_block(self, entries: Int64s) -> list[int]:
        """See the port. If a start is listed twice, the last row counts."""
        return self._put(entries)

    def _put(self, entries: Int64s, *, at_once: bool = False) -> list[int]:
        _check_starts(entries[:, 0])
        return self._write(partial(self._put_in, entries=entries), entries[:, 0], at_once=at_once)

    def _put_in(self, transaction: Transaction, entries: Int64s) -> list[int]:
        """`put_block` within a write transaction, after `_begin_in`."""
        return put_entries(transaction, self._commits, entries)

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return not self.put([(start, commit_ts)])

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        starts = np.array(branches, dtype=np.int64)
        _check_starts(starts)
        rows = np.stack([starts, np.full_like(starts, commit_ts)], axis=1)

        def replace(transaction: Transaction) -> None:
            replace_entries(transaction, self._commits, rows)

        self._write(replace, starts)

    def seal(self, start: int) -> SealOutcome:
        return self.seal_many([start])[0]

    def seal_many(self, starts: Sequence[int]) -> list[SealOutcome]:
        """Seal all starts in one transaction: an undecided large commit has thousands of branches at a takeover."""
        wanted = np.array(starts, dtype=np.int64)
        _check_starts(wanted)
        return self._write(lambda transaction: seal_starts(transaction, self._commits, wanted), wanted)

    def delete(self, starts: Sequence[int]) -> None:
        wanted = np.array(starts, dtype=np.int64)
        _check_starts(wanted)
        self._write(lambda transaction: delete_entries(transaction, self._commits, wanted), wanted)

    def delete_at_once(self, starts: Int64s) -> Int64s:
        """See the port. Returns none: the next write deletes them all."""
        _check_starts(starts)
        self._check_writable()
        if len(starts):
            self._completed.append(starts.copy())
            self._delete_soon()
        return _NO_STARTS

    def delete_below(self, horizon: int) -> int:
        """Delete in several transactions, oldest first, so that another write waits for at most one of them."""
        total = 0
        while True:
            gone, is_done = self._write(
                lambda transaction: delete_some_below(transaction, self._commits, horizon, _WRITE_RECORDS_MAX),
                records=_WRITE_RECORDS_MAX,
            )
            total += gone
            if is_done:
                return total

    # Flushes of a service

    def flush(self, entries: Int64s, *, at_once: bool = False) -> FlushEnd:
        """`put_block`, then read the epoch. `at_once`: `Unavailable` if another writer holds the write lock."""
        refused = self._put(entries, at_once=at_once) if len(entries) else []
        return FlushEnd(refused, self._environment.read(partial(read_number, self._environment, name=b"epoch")))

    @property
    def flushes_in_flight_max(self) -> int:
        """1: LMDB writes one transaction at a time, and commits decided meanwhile form the next batch."""
        return 1

    def submit(self, entries: Int64s, ended: FlushEnded, loop: FlushLoop) -> None:
        """Flush in the loop if it may wait for the disk: a flush of one entry takes less time than a switch to a
        thread. The loop never waits for another writer."""
        if loop.may_wait:
            try:
                result = self.flush(entries, at_once=True)
            except OmidError:  # if the error persists, the flush on a thread reports it
                pass
            else:
                return ended(result)
        loop.on_thread(partial(self.flush, entries), ended)

    # Commits that carry their cells

    @property
    def one_step_bytes_max(self) -> int:
        return ONE_STEP_BYTES_MAX if self._writable else 0

    def put_with_cells(
        self, entries: Int64s, cells: Sequence[CellsOfCommit], epoch: int, *, at_once: bool = False
    ) -> FlushEnd:
        """See the port. If the disk is full, commits that carry cells fail, and the other entries are put without
        them."""
        self._check_writable()
        _check_starts(entries[:, 0])
        unpacked, malformed = self._unpacked(cells)

        def write(transaction: Transaction) -> FlushEnd:
            check_epoch(self._environment, transaction, epoch)
            return self._put_with_cells_in(transaction, entries, unpacked, malformed, epoch)

        records = sum(len(each.records) for each in unpacked)
        try:
            return self._write(write, entries[:, 0], records=records, at_once=at_once, is_urgent=True)
        except StoreFull as error:
            failed = {**dict.fromkeys((each.start_ts for each in cells), error), **malformed}
            if len(others := _without(entries, failed)):
                self.put_block(others)
            return FlushEnd([], epoch, failed)

    def _unpacked(self, cells: Sequence[CellsOfCommit]) -> tuple[list[_Unpacked], dict[int, OmidError]]:
        """Unpack with the cached tables, before the write lock is taken. Under the lock `_put_with_cells_in` checks
        that the tables still exist."""
        try:
            return [_unpack(each, self._tables.last_seen) for each in cells], {}
        except OmidError:  # a new table or column, or malformed cells
            return self._environment.read(self._unpacked_anew, cells)

    def _unpacked_anew(
        self, transaction: Transaction, cells: Sequence[CellsOfCommit]
    ) -> tuple[list[_Unpacked], dict[int, OmidError]]:
        """Unpack with the tables of this read transaction, and cache them."""
        unpacked: list[_Unpacked] = []
        failed: dict[int, OmidError] = {}

        def find(name: str) -> Table:
            table = self._tables.loaded(transaction, name)
            table.load_new(transaction, self._tables.database)
            return table

        for each in cells:
            try:
                unpacked.append(_unpack(each, find))
            except OmidError as error:
                failed[each.start_ts] = error
        return unpacked, failed

    def _put_with_cells_in(
        self,
        transaction: Transaction,
        entries: Int64s,
        unpacked: Sequence[_Unpacked],
        malformed: Mapping[int, OmidError],
        epoch: int,
    ) -> FlushEnd:
        failed = dict(malformed)
        for each in unpacked:
            for table in each.tables:
                if not self._tables.is_there(transaction, table):
                    why = f"table {table.name!r} was dropped since it was written"
                    failed[each.start_ts] = UnknownTable(why, table=table.name)
        refused = self._put_in(transaction, _without(entries, failed) if failed else entries)
        for each in unpacked:
            if each.start_ts not in refused and each.start_ts not in failed:
                put_carried(transaction, self._environment, each.commit_ts, each.records)
        return FlushEnd(refused, epoch, failed)

    # Transactions

    def _begin_in(self, transaction: Transaction, completed: Int64s) -> None:
        """Begin a write: `Deposed` if another TSO leads; otherwise do the waiting deletes."""
        if self._epoch is not None:
            check_epoch(self._environment, transaction, self._epoch)
        if len(completed):
            delete_entries(transaction, self._commits, completed)

    def _take_completed(self) -> Int64s:
        """Take the starts whose entries the caller's transaction is to delete. If it fails, the caller puts them back,
        or the sanitizer deletes them."""
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._completed.pop())
        return np.concatenate(taken) if taken else _NO_STARTS

    def _write(
        self,
        work: Callable[[Transaction], T],
        starts: Int64s = _NO_STARTS,
        *,
        records: int = 0,
        at_once: bool = False,
        is_urgent: bool | None = None,
    ) -> T:
        """Run one transaction, durable on return in the folder's own file. `is_urgent`: before waiting writers; None:
        unless it has many records."""
        self._check_writable()
        completed = self._take_completed()

        def write(transaction: Transaction) -> T:
            self._begin_in(transaction, completed)
            return work(transaction)

        weight = records + records_of(starts) + records_of(completed)
        try:
            if at_once:
                result = self._environment.write_at_once(write, records=weight)
            else:
                result = self._environment.write(
                    write, records=weight, is_urgent=not records if is_urgent is None else is_urgent
                )
        except OmidError:
            if len(completed):
                self._completed.append(completed)
            raise
        self._environment.check_in_place()
        return result

    def _delete_soon(self) -> None:
        if self._timer is None:
            self._timer = timer = threading.Timer(COMPLETION_S, self._delete_completed)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # no thread: the next write deletes them
                self._timer = None

    def _delete_completed(self, *, at_once: bool = False) -> None:
        self._timer = None  # first: entries completed from now on get a timer of their own
        if not self._completed or self._closed:
            return
        try:
            self._write(lambda transaction: None, at_once=at_once)
        except OmidError as error:
            log.warning("could not delete completed commit entries, the sanitizer will: %s", error)

    def close(self) -> None:
        if not self._closed:
            if self._timer is not None:
                self._timer.cancel()
            self._delete_completed(at_once=True)
            self._closed = True
            release(self._environment)

    @property
    def _commits(self) -> Any:
        return self._environment.databases[COMMITS]

    def _check_writable(self) -> None:
        self._check()
        if not self._writable:
            raise Misuse(f"the commit table in {self._path} is open for reading only: only the TSO writes it")

    def _check(self) -> None:
        self._guard.check()
        if self._closed:
            raise Misuse(f"the commit table in {self._path} was closed")


def _unpack(cells: CellsOfCommit, find: Callable[[str], Table]) -> _Unpacked:
    return _Unpacked(cells.start_ts, cells.commit_ts, *unpack(cells.cells, cells.start_ts, find, VALUE_BYTES_MAX))


def _without(entries: Int64s, starts: Collection[int]) -> Int64s:
    return entries[~np.isin(entries[:, 0], list(starts))]


def _check_starts(starts: Int64s) -> None:
    if len(starts) == 1:  # the most common flush: faster without arrays
        is_bad = int(starts[0]) % TIMESTAMP_STEP != 0 or int(starts[0]) <= 0
        bad = starts if is_bad else _NO_STARTS
    else:
        bad = starts[(starts % TIMESTAMP_STEP != 0) | (starts <= 0)]
    if len(bad):
        raise Misuse(f"{int(bad[0])} is not a start timestamp: starts are multiples of {TIMESTAMP_STEP} above 0")
