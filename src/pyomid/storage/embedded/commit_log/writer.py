"""The writer of the commit table: the log first, then the index that all processes map, LMDB in the background.

    put ─► segment A of the log, synced ─► table A of the index ─► answered
                segment or table full ─► the same with B
                B half full ─► what is left in table A ─► LMDB, durable ─► segment A forgotten ─► table A emptied

A flush is one disk write; a commit of LMDB would be two, and its B-tree's pages (decision 0013). Most entries are
completed, and so deleted, before their table is emptied: they never reach LMDB. A completion is written with the next
flush, and no caller waits for it; one that is lost leaves an entry to the sanitizer.

Puts of several threads at the same time are written together, by the first of them; an event loop begins a put and goes
on (`begin_put`), if the system can write in the background. All decisions about a start (is it sealed? has it
committed?) are made under one lock, so of an invalidation marker and an entry exactly one wins.

A crash leaves rows in the log: the next process that opens the table for writing first brings them to LMDB. A row that
was durable and not yet in the index was answered to no client, and lies above every start handed out (law 3).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pyomid.arrays import NDArray, np
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.owned_files import is_shared, open_own
from pyomid.storage.checks import ProcessGuard
from pyomid.storage.embedded.commit_log.background_write import BackgroundWriter, open_writer
from pyomid.storage.embedded.commit_log.compacted import CompactedCommits
from pyomid.storage.embedded.commit_log.index import LOG_FILES, CommitIndex, rows_of
from pyomid.storage.embedded.commit_log.index_kernels import RECORDS
from pyomid.storage.embedded.commit_log.segment import Rows, Segment, failed, read_segment
from pyomid.storage.embedded.group_commit import Group, Member, next_members
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

log = logging.getLogger(__name__)

T = TypeVar("T")
Int64s = NDArray[np.int64]

LOCK_FILE: Final = "recent.lock"
ROWS_MAX: Final = 32_768
"""Rows of one record. More at once are not a flush of a TSO: they go to LMDB."""
SEALED_MAX: Final = 100_000
"""Sealed starts that are remembered, so that they need no lookup; the others are looked up."""
_RECORDS_MAX: Final = RECORDS * 3 // 4
_LOCK_S_MAX: Final = 5.0
_UNLOGGED_MAX: Final = ROWS_MAX
_NO_ROWS: Final[Rows] = np.empty((0, 2), dtype=np.int64)


class _Group(Group):
    """Rows that share one record of the log."""

    __slots__ = ("at", "is_placing", "number", "refused", "rows")

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows
        self.refused: list[int] = []
        self.number = -1
        """The number of the segment, and of the table to which they go."""
        self.at = -1
        """Where that segment ended before them. It ends after them once they are durable."""
        self.is_placing = False


class _Put(Member[_Group]):
    """One thread's entries, until they are durable."""

    __slots__ = ("epoch", "refused", "rows")

    def __init__(self, rows: Rows, epoch: int | None) -> None:
        super().__init__(len(rows))
        self.rows = rows
        self.epoch = epoch
        self.refused: list[int] = []

    def result(self) -> list[int]:
        self.raise_error()
        return self.refused


class CommitLog:
    """The one writer of a folder's commit table. Thread-safe."""

    def __init__(self, folder: Path, compacted: CompactedCommits) -> None:
        self._guard = ProcessGuard(f"the commit table in {folder}")
        self._compacted = compacted
        self._writing = threading.RLock()
        """Held while rows are decided, written and placed; by a put in the background from its begin to its end. It
        knows its owner, so a thread that is interrupted while it takes it gives it back."""
        self._waiting: deque[object] = deque()
        """Threads that wait for it. An event loop only tries to take it, and not while a thread waits, which might
        otherwise wait for ever."""
        self._group: _Group | None = None
        """The group that is written to the log, or placed in the table."""
        self._background = open_writer()
        self._begun: tuple[int, _Group] | None = None
        """Which thread began what."""
        self._state = threading.RLock()
        """Held for a short time: while a table is emptied, or slots are cleared."""
        self._checkpoint_turn = threading.Lock()
        """Held while a table is brought to LMDB, and while another one becomes the table in use: a table is never
        both."""
        self._queue: deque[_Put] = deque()
        self._sealed: set[int] = set()
        """Starts above `_floor` that this process sealed: their entries are refused."""
        self._unlogged: list[Rows] = []
        self._late: list[Int64s] = []
        """Starts that were completed while their table was brought to LMDB."""
        self._checkpointing: int | None = None
        self._checkpointer: threading.Thread | None = None
        self._used = [0, 0]
        self._is_dirty = [False, False]
        self._lock_file = _locked(folder / LOCK_FILE)
        self._recover(folder)
        self._floor = compacted.newest()
        """LMDB has no start above it but those that this process brought there; `_sealed` has all markers above it."""

    def put(self, rows: Rows, epoch: int | None) -> list[int]:
        """Puts entries, durable on return. Returns the starts that an invalidation marker refused."""
        self._guard.check()
        if len(rows) > ROWS_MAX:
            return self._in_turn(lambda: self._put_bulk(rows, epoch))
        pending = _Put(rows, epoch)
        try:
            self._queue.append(pending)
            self._in_turn(lambda: self._see_to(pending))
        finally:
            pending.is_abandoned = True
        return pending.result()

    def _see_to(self, pending: _Put) -> None:
        while not pending.is_done:
            self._write_group()

    def _in_turn(self, work: Callable[[], T]) -> T:
        """Runs `work` while no other thread decides or writes, after what an interrupted thread left was ended."""
        if self.has_begun:
            raise Misuse("this thread began a put, and has to end it before it asks for anything else")
        place = object()
        try:
            self._waiting.append(place)
            with self._writing:
                self._waiting.remove(place)
                self._end_group()
                return work()
        finally:
            if place in self._waiting:
                self._waiting.remove(place)

    @property
    def writes_in_background(self) -> bool:
        """Whether `begin_put` can begin anything: system and disk support such writes."""
        return self._background is not None and self._segments[self._active].is_direct

    @property
    def has_begun(self) -> bool:
        """Whether this thread began a put that has not ended."""
        return self._begun is not None and self._begun[0] == threading.get_ident()

    def put_ended_fileno(self) -> int | None:
        """Readable once the put of `begin_put` has ended; None if there are no background writes."""
        return None if self._background is None else self._background.fileno()

    def begin_put(self, rows: Rows, epoch: int | None) -> bool:
        """Begins a `put` that waits neither for the disk nor for another thread; `end_put` has its result.

        False: nothing was begun; only `put` can do it, which makes room or waits. For one thread, which must not `put`
        in between, because it holds the lock.
        """
        self._guard.check()
        background = self._background
        if background is None or background.is_busy or self._begun is not None or not self._is_quick(len(rows)):
            return False
        try:
            if not self._waiting and self._writing.acquire(blocking=False):
                self._end_group()
                self._begin_write(rows, epoch, background)
        except BaseException:
            if self._begun is not None:
                self._begun = None
                background.reset()
            raise
        finally:
            if self._begun is None:
                # No `suppress`: an interrupt could come on its way in, before the release.
                try:  # noqa: SIM105
                    self._writing.release()
                except RuntimeError:
                    pass  # it was not had
        return self._begun is not None

    def end_put(self, *, wait: bool = False) -> list[int] | None:
        """The result of the put that was begun, or its error. None: it has not ended; never None with `wait`.

        After an interrupt nothing is begun any more, and its rows are as after an interrupted `put`.
        """
        assert self._begun is not None, "no put was begun"
        assert self._background is not None
        _, group = self._begun
        is_over = True
        try:
            result = self._result_of(self._background.wait if wait else self._background.end)
            if result is None:
                is_over = False
                return None
            self._segments[group.number].end_append(result)
            self._end_group()
            self._checkpoint_other_soon()
            return group.refused
        except BaseException:
            if not group.is_committed:
                self._background.reset()
            raise
        finally:
            if is_over:
                self._begun = None
                self._writing.release()

    def finish_put(self) -> None:
        """Waits for the put that was begun, if there is one. Its result is dropped."""
        if self._begun is not None:
            with contextlib.suppress(OmidError):
                self.end_put(wait=True)

    @staticmethod
    def _result_of(end: Callable[[], int | None]) -> int | None:
        try:
            return end()
        except OSError as error:
            return -(error.errno or errno.EIO)

    def _is_quick(self, count: int) -> bool:
        return count <= ROWS_MAX and self._index.is_quick(count)

    def _begin_write(self, rows: Rows, epoch: int | None, background: BackgroundWriter) -> None:
        """`_begun` is set, unless only `put` can do it."""
        put = _Put(rows, epoch)
        accepted = self._accepted(put)
        if put.error is not None:
            raise put.error
        if not len(accepted):
            return
        completed = self._take_completed(wait=False)
        number = self._active
        if self._has_room(number, len(completed) + len(accepted)):
            group = _Group(accepted)
            group.refused = put.refused
            self._begin_group(group, number)
            self._begun = threading.get_ident(), group
            if self._segments[number].begin_append((completed, accepted), background):
                return
            self._group = self._begun = None
        if len(completed):
            with self._state:
                self._unlogged.insert(0, completed)

    def seal(self, starts: Sequence[int], epoch: int | None) -> list[SealOutcome]:
        """Durable on return."""
        self._guard.check()
        return self._in_turn(lambda: self._seal(starts, epoch))

    def _seal(self, starts: Sequence[int], epoch: int | None) -> list[SealOutcome]:
        self._compacted.check_epoch(epoch)
        found = self.lookup(starts)
        is_free = [value in (NOT_FOUND, SEALED) for value in found]
        marked = [start for start, free, value in zip(starts, is_free, found, strict=True) if free and not value]
        # Before they are durable: if that fails half-way, those that are durable still refuse.
        self._sealed.update(start for start in marked if start > self._floor)
        self._append_all(np.array([(start, SEALED) for start in marked], dtype=np.int64).reshape(-1, 2))
        self._forget_old_seals()
        return [
            SealOutcome(placed=True) if free else SealOutcome(placed=False, commit_ts=value)
            for free, value in zip(is_free, found, strict=True)
        ]

    def _forget_old_seals(self) -> None:
        """They are too many to remember: the older half is looked up from now on, as all starts up to `_floor` are."""
        if len(self._sealed) > SEALED_MAX:
            self._floor = sorted(self._sealed)[len(self._sealed) // 2]
            self._sealed = {start for start in self._sealed if start > self._floor}

    def replace(self, rows: Rows, epoch: int | None) -> None:
        """`put` that replaces invalidation markers too: the branches of a decided commit."""
        self._guard.check()
        self._in_turn(lambda: self._replace(rows, epoch))

    def _replace(self, rows: Rows, epoch: int | None) -> None:
        self._compacted.check_epoch(epoch)
        self._append_all(rows)
        self._replace_markers(rows)
        self._sealed.difference_update(rows[:, 0].tolist())

    def _replace_markers(self, rows: Rows) -> None:
        """Removes markers in the other table or in LMDB: they would be found first, or after the entries are
        deleted."""
        starts = rows[:, 0]
        with self._checkpoint_turn:
            with self._state:
                for number in (0, 1):
                    is_mark = self._index.find_all(number, starts) == SEALED
                    self._index.place(number, rows[is_mark])
            old = starts[np.array(self._compacted.lookup(starts.tolist()), dtype=np.int64) == SEALED]
            if len(old):
                self._compacted.store(np.stack([old, np.full_like(old, NOT_FOUND)], axis=1))

    def delete(self, starts: Int64s, epoch: int | None) -> None:
        """Deletes entries, without a wait for those in the log. Invalidation markers stay."""
        self._guard.check()
        self._compacted.check_epoch(epoch)
        with self._state:
            missing = self._delete_recent(starts)
        self._compacted.delete(missing, epoch)

    def delete_at_once(self, starts: Int64s, epoch: int | None) -> Int64s:
        """`delete` of entries that need no wait for the disk or for another thread. Returns the other starts."""
        self._guard.check()
        self._compacted.check_epoch(epoch)
        if not self._is_quick(len(starts)):
            return starts
        try:
            return self._delete_recent(starts) if self._state.acquire(blocking=False) else starts
        finally:
            try:  # noqa: SIM105
                self._state.release()
            except RuntimeError:
                pass

    def _delete_recent(self, starts: Int64s) -> Int64s:
        """Under `_state`. Returns the starts that are in no table."""
        is_missing = np.ones(len(starts), dtype=np.bool_)
        for number in (0, 1):
            rows = self._index.clear(number, starts, is_missing)
            if len(rows):
                self._unlogged.append(rows)
                if number == self._checkpointing:
                    self._late.append(rows[:, 0])
        return starts[is_missing]

    def delete_below(self, horizon: int, epoch: int | None) -> int:
        """Rare, so everything is brought to LMDB first."""
        self._guard.check()
        self._in_turn(lambda: self._checkpoint_below(horizon, epoch))
        return self._compacted.delete_below(horizon, epoch)

    def _checkpoint_below(self, horizon: int, epoch: int | None) -> None:
        self._compacted.check_epoch(epoch)
        self._checkpoint_all()
        self._sealed = {start for start in self._sealed if start >= horizon}

    def lookup(self, starts: Sequence[int]) -> list[int]:
        """The state by which the writer decides. Under `_writing`."""
        found = [NOT_FOUND] * len(starts)
        with self._state:
            for number in (0, 1):
                found = [old or new for old, new in zip(found, self._index.find(number, starts), strict=True)]
        missing = [start for start, value in zip(starts, found, strict=True) if value == NOT_FOUND]
        known = dict(zip(missing, self._compacted.lookup(missing), strict=True)) if missing else {}
        return [value or known[start] for start, value in zip(starts, found, strict=True)]

    def close(self) -> None:
        """Brings everything to LMDB and closes. No put may be begun and not ended."""
        with self._writing:
            try:
                self._end_group()
                self._checkpoint_all()
            except OmidError as error:
                log.warning("left %s of the commit log for the next start: %s", _rows_of(self._used), error)
            self._index.close()
            for segment in self._segments:
                segment.close()
            if self._background is not None:
                self._background.close()
            os.close(self._lock_file)

    # ── the log ──────────────────────────────────────────────────────────────────────────────────────────────────

    # After an interrupt the group under way is ended by where its segment ends now (`group_commit`):
    #
    #     where it ended before       it is not durable: its record is overwritten, its puts are still in the queue
    #     after it                    it is: placed, once more if need be; then every put is told

    def _write_group(self) -> None:
        """Writes all that wait as one record. Threads take turns, and each writes for all before it, so none
        starves."""
        members = next_members(self._queue, ROWS_MAX)
        accepted = [self._accepted(member) for member in members]
        group = _Group(accepted[0] if len(accepted) == 1 else np.concatenate(accepted))
        for member in members:
            member.group = group
        try:
            self._append(group)
        except OmidError as error:
            group.error = error

    def _end_group(self) -> None:
        """Ends the group under way. It may be called any number of times."""
        group = self._group
        if group is None:
            return
        if self._segments[group.number].end != group.at:
            self._check_in_place(group)
            is_again, group.is_placing = group.is_placing, True
            taken = self._index.place(group.number, group.rows)
            if is_again:
                self._used[group.number] = self._index.used(group.number)
            else:
                self._used[group.number] += taken
            group.is_committed = True
        self._group = None

    def _check_in_place(self, group: _Group) -> None:
        """Durable rows count only if their file is still in the folder, which may have been removed a moment ago."""
        try:
            self._segments[group.number].check_in_place()
            self._compacted.check_in_place()
        except OmidError as error:
            group.error, self._group = error, None
            raise

    def _accepted(self, put: _Put) -> Rows:
        """The rows that may be written; `refused` gets the others."""
        rows, put.refused = put.rows, []
        try:
            self._compacted.check_epoch(put.epoch)
        except OmidError as error:
            put.error = error
            return _NO_ROWS
        starts = rows[:, 0]
        if not self._sealed and len(starts) and int(starts.min()) > self._floor:
            return rows
        is_old = starts <= self._floor
        refused = self._sealed.intersection(starts.tolist())
        old = starts[is_old].tolist()
        refused.update(start for start, value in zip(old, self.lookup(old), strict=True) if value == SEALED)
        if not refused:
            return rows
        put.refused = [start for start in starts.tolist() if start in refused]
        return rows[~np.isin(starts, list(refused))]

    def _put_bulk(self, rows: Rows, epoch: int | None) -> list[int]:
        put = _Put(rows, epoch)
        accepted = self._accepted(put)
        if put.error is not None:
            raise put.error
        self._checkpoint_all()
        self._compacted.store(accepted[np.argsort(accepted[:, 0], kind="stable")], epoch)
        self._floor = max(self._floor, self._compacted.newest())
        return put.refused

    def _append_all(self, rows: Rows) -> None:
        for first in range(0, len(rows), ROWS_MAX):
            self._append(_Group(rows[first : first + ROWS_MAX]))

    def _append(self, group: _Group) -> None:
        """Makes rows durable in the log, then visible to all. Completions since the last time are written before
        them."""
        if not len(group.rows):
            group.is_committed = True
            return
        completed = self._take_completed()
        self._make_room(len(completed) + len(group.rows))
        number = self._active
        self._begin_group(group, number)
        self._segments[number].append((completed, group.rows))
        self._end_group()
        self._checkpoint_other_soon()

    def _begin_group(self, group: _Group, number: int) -> None:
        group.number, group.at = number, self._segments[number].end
        self._is_dirty[number] = True
        self._group = group

    def _take_completed(self, *, wait: bool = True) -> Rows:
        """Completions that are not yet in the log, up to a bound; the rest is left to the sanitizer. None of them if
        that needs a wait and `wait` is False: then the next record has them."""
        unlogged: list[Rows] = []
        try:
            if self._state.acquire(blocking=wait):
                unlogged, self._unlogged = self._unlogged, []
        finally:
            try:  # noqa: SIM105
                self._state.release()
            except RuntimeError:
                pass
        return np.concatenate(unlogged)[:_UNLOGGED_MAX] if unlogged else _NO_ROWS

    def _has_room(self, number: int, rows: int) -> bool:
        return self._segments[number].has_room(rows) and self._used[number] + rows <= _RECORDS_MAX

    def _make_room(self, rows: int) -> None:
        if self._has_room(self._active, rows):
            return
        other = 1 - self._active
        with self._checkpoint_turn:
            self._checkpoint(other)
            self._begin(other)

    def _begin(self, number: int) -> None:
        self._generation += 1
        self._segments[number].begin(self._generation)
        self._active = number

    # ── to LMDB ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _checkpoint_other_soon(self) -> None:
        """Begins once half of the active table is used: until then the other one's entries had time to be completed."""
        other = 1 - self._active
        is_half_full = self._segments[self._active].is_half_full or self._used[self._active] > _RECORDS_MAX // 2
        if is_half_full and self._is_dirty[other] and (self._checkpointer is None or not self._checkpointer.is_alive()):
            checkpointer = threading.Thread(target=self._checkpoint_in_background, args=(other,), daemon=True)
            try:
                checkpointer.start()
            except RuntimeError as error:  # the caller's rows are durable; `_make_room` does without the thread
                log.warning("no thread for a checkpoint of the commit log: %s", error)
            else:
                self._checkpointer = checkpointer

    def _checkpoint_in_background(self, number: int) -> None:
        """A thread that comes late may find the table emptied and in use again. Rows that are placed meanwhile would be
        removed with the others."""
        try:
            with self._checkpoint_turn:
                if number != self._active:
                    self._checkpoint(number)
        except OmidError as error:
            log.warning("a checkpoint failed, its commits stay in the log: %s", error)

    def _checkpoint_all(self) -> None:
        """Under `_writing`. The older table first: of a start in both tables the newer row counts."""
        if not any(self._is_dirty):
            return
        with self._checkpoint_turn:
            for number in (1 - self._active, self._active):
                self._checkpoint(number)
            self._begin(1 - self._active)

    def _checkpoint(self, number: int) -> None:
        """A checkpoint: what is left in one table becomes durable in LMDB, then leaves log and index, in this order.

        Under `_checkpoint_turn`; the table in use under `_writing` too.
        """
        if not self._is_dirty[number]:
            return
        with self._state:
            self._checkpointing = number
            rows = self._index.rows(number)
        self._compacted.store(rows)
        self._segments[number].forget(self._generation)
        with self._state:
            late, self._late, self._checkpointing = self._late, [], None
            self._index.empty(number)
            self._used[number], self._is_dirty[number] = 0, False
        if late:
            self._compacted.delete(np.concatenate(late))

    def _recover(self, folder: Path) -> None:
        """Brings to LMDB what a crash left in the log; then empties the tables, makes them valid, and forgets the log.

        The older segment is forgotten first: without the newer one its rows would count as the last ones.
        """
        found = [read_segment(folder / name, is_at_rest=True) for name in LOG_FILES]
        oldest_first = sorted((0, 1), key=lambda number: found[number][0])
        rows = rows_of(found)
        if len(rows):
            self._compacted.store(rows)
            log.info("recovered %s of the commit log", _rows_of([len(rows)]))
        self._generation = found[oldest_first[-1]][0]
        self._segments = [Segment(folder / name) for name in LOG_FILES]
        self._index = CommitIndex(folder, writable=True)
        for number in (0, 1):
            self._index.empty(number)
        self._index.believe()
        for number in oldest_first:
            self._segments[number].forget(self._generation)
        self._active = 0
        self._begin(0)


def _locked(path: Path) -> int:
    """A lock that is held until this process ends or closes it. A child of fork does not inherit it."""
    file = open_own(path, os.O_RDWR | os.O_CREAT, shared=is_shared(path.parent.parent))
    give_up_s = time.monotonic() + _LOCK_S_MAX
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except (BlockingIOError, PermissionError) as error:
            if time.monotonic() > give_up_s:
                os.close(file)
                raise Unavailable(f"another process writes the commit table in {path.parent}") from error
            time.sleep(0.01)
        except OSError as error:
            os.close(file)
            raise failed(error, path) from error


def _rows_of(counts: Sequence[int]) -> str:
    return f"{sum(counts)} rows"
