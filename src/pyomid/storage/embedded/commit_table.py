"""`CommitTable` of a folder: the TSO writes it, all other processes map it read-only.

    put     the log, durable, then an index that all processes map        `commit_log/writer`, `commit_log/index`
    later   LMDB: what was not completed soon                             `commit_log/compacted`

A lookup reads in the same order: the index, then LMDB. An entry is durable in LMDB before it leaves the index, so in
this order it is found. Every write is refused once the leader state holds another epoch (`serve_epoch`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby
from pathlib import Path

from pyomid.arrays import NDArray, np
from pyomid.errors import Misuse, OmidError
from pyomid.owned_files import FileId
from pyomid.ports import CommitTable, FlushEnded, FlushLoop
from pyomid.storage.checks import ProcessGuard
from pyomid.storage.embedded.commit_log.compacted import RECORD_BYTES, RECORD_TIMESTAMPS, CompactedCommits
from pyomid.storage.embedded.commit_log.index import CommitLogReader, load_kernels
from pyomid.storage.embedded.commit_log.writer import CommitLog
from pyomid.storage.embedded.environment import MAP_BYTES_DEFAULT, Environment, release
from pyomid.storage.embedded.layout import open_commits, open_folder
from pyomid.types import NOT_FOUND, TIMESTAMP_STEP, SealOutcome

__all__ = ["RECORD_BYTES", "RECORD_TIMESTAMPS", "EmbeddedCommitTable"]

log = logging.getLogger(__name__)

Int64s = NDArray[np.int64]


class EmbeddedCommitTable(CommitTable):
    """The commit table of one folder.

    A submitted flush goes one of three ways. The disk writes it while the loop goes on, one flush at a time. If that
    cannot be begun (another thread writes, the log needs room, the system has no such writes), a thread does it. And if
    the loop may wait, it does it itself, which takes about as long as to pass it to a thread.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        writable: bool,
        create: bool = True,
        map_bytes: int = MAP_BYTES_DEFAULT,
    ) -> None:
        path = open_folder(folder, create=create)
        self._path = path / "commits"
        self._guard = ProcessGuard(f"the commit table in {path}")
        self._environment = open_commits(path, writable=writable, map_bytes=map_bytes)
        self._compacted = CompactedCommits(self._environment)
        self._reader = CommitLogReader(self._path)
        self._epoch: int | None = None
        self._closed = False
        self._writer: CommitLog | None = None
        self._began = False
        """Whether this table began the writer's last put."""
        self._flush_ended: FlushEnded | None = None
        """The callback of the flush that the disk writes for a loop."""
        if writable:
            try:
                self._writer = _open_writer(self._path, self._environment)
            except BaseException:
                release(self._environment)
                raise

    def serve_epoch(self, epoch: int) -> None:
        """From now on no write is begun once the leader state has another epoch.

        The folder's lock excludes a second writer while this process lives, so nothing comes between check and write.
        """
        self._epoch = epoch

    def prepare(self) -> None:
        load_kernels()

    def lookup(self, starts: Sequence[int]) -> list[int]:
        self._check()
        while True:
            found, sequences = self._reader.lookup(starts)
            missing = [start for start, value in zip(starts, found, strict=True) if value == NOT_FOUND]
            if missing:
                known = dict(zip(missing, self._compacted.lookup(missing), strict=True))
                found = [value or known[start] for start, value in zip(starts, found, strict=True)]
            if self._reader.is_unchanged(sequences):
                return found

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        return self.put_block(np.array(entries, dtype=np.int64).reshape(-1, 2))

    def put_block(self, entries: Int64s) -> list[int]:
        """If a start comes twice, the last row counts."""
        _check_starts(entries[:, 0])
        return self._writing().put(entries, self._epoch)

    def flush(self, entries: Int64s) -> tuple[list[int], int]:
        """`put_block`, and the epoch read after it."""
        return self.put_block(entries), self._compacted.epoch()

    @property
    def flushes_in_flight_max(self) -> int:
        """One if the disk writes in the background: what comes meanwhile is the next write."""
        return 1 if self._writing().writes_in_background else super().flushes_in_flight_max

    def submit(self, entries: Int64s, ended: FlushEnded, loop: FlushLoop) -> None:
        if self._is_flushing(self._writing()):  # its end comes to this thread, which must not wait for the turn
            loop.on_thread(partial(self.flush, entries), ended)
        elif loop.may_wait:
            ended(self.flush(entries))
        elif not self._begin_watched(entries, ended, loop):
            loop.on_thread(partial(self.flush, entries), ended)

    def _begin_watched(self, entries: Int64s, ended: FlushEnded, loop: FlushLoop) -> bool:
        is_begun = False
        try:
            fileno = self.flush_ended_fileno()
            if fileno is not None:
                loop.watch(fileno, self._look)
                self._flush_ended = ended
                is_begun = self.begin_flush(entries)
        except OmidError:
            pass  # if the error lasts, the flush on a thread raises it too
        except Exception:
            log.exception("a flush failed before it began")
        finally:
            if not is_begun:
                self._flush_ended = None
        return is_begun

    def _look(self) -> None:
        """The descriptor was readable. The end of a flush whose submission was interrupted is told to no caller."""
        if not self._is_flushing(self._writing()):
            return
        result: tuple[list[int], int] | Exception | None
        try:
            result = self.end_flush()
        except Exception as error:
            result = error
        if result is not None:
            ended, self._flush_ended = self._flush_ended, None
            if ended is not None:
                ended(result)

    def leave_loop(self) -> None:
        """Waits for the write under way, which would keep the lock; its end is told to no caller."""
        self._flush_ended = None
        writer = self._writing()
        if self._is_flushing(writer):
            writer.finish_put()

    def flush_ended_fileno(self) -> int | None:
        """A descriptor that becomes readable when the flush has ended. None if the system has none: then nothing is
        begun."""
        return self._writing().put_ended_fileno()

    def begin_flush(self, entries: Int64s) -> bool:
        """Begins `flush` without a wait. False: nothing was begun. Until its end the array must not change, and this
        thread must not put, seal or delete: the flush holds the lock."""
        _check_starts(entries[:, 0])
        writer = self._writing()
        if writer.has_begun:
            return False
        self._began = True  # first: an interrupt after the call loses its result, not what it began
        self._began = writer.begin_put(entries, self._epoch)
        return self._began

    def end_flush(self) -> tuple[list[int], int] | None:
        """The flush's result, or its error; None: it has not ended yet."""
        refused = self._writing().end_put()
        return None if refused is None else (refused, self._compacted.epoch())

    def _is_flushing(self, writer: CommitLog) -> bool:
        return self._began and writer.has_begun

    def delete_at_once(self, starts: Int64s) -> Int64s:
        _check_starts(starts)
        return self._writing().delete_at_once(starts, self._epoch)

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return not self.put([(start, commit_ts)])

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        starts = np.array(branches, dtype=np.int64)
        _check_starts(starts)
        self._writing().replace(np.stack([starts, np.full_like(starts, commit_ts)], axis=1), self._epoch)

    def seal(self, start: int) -> SealOutcome:
        return self.seal_many([start])[0]

    def seal_many(self, starts: Sequence[int]) -> list[SealOutcome]:
        """Seals all in one record: a large commit that a take-over finds undecided has thousands of branches."""
        _check_starts(np.array(starts, dtype=np.int64))
        return self._writing().seal(starts, self._epoch)

    def delete(self, starts: Sequence[int]) -> None:
        wanted = np.array(starts, dtype=np.int64)
        _check_starts(wanted)
        self._writing().delete(wanted, self._epoch)

    def delete_below(self, horizon: int) -> int:
        return self._writing().delete_below(horizon, self._epoch)

    def entries(self) -> Iterator[tuple[int, int]]:
        """In the order of starts, a bounded number at a time."""
        self._check()
        recent = [(start, value) for start, value in self._reader.rows().tolist() if value != NOT_FOUND]
        return self._merged(recent)

    def _merged(self, recent: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for _, same in groupby(merge(recent, self._compacted.entries(), key=_start), key=_start):
            yield next(same)

    def count(self) -> int:
        return sum(1 for _ in self.entries())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._reader.close()
            if self._writer is not None:
                finish_put = self._is_flushing(self._writer)
                _close_writer(self._environment.data_file, self._writer, finish_put=finish_put)
            release(self._environment)

    def _writing(self) -> CommitLog:
        self._check()
        if self._writer is None:
            raise Misuse(f"the commit table {self._path} is open for reading only: the TSO alone writes it")
        return self._writer

    def _check(self) -> None:
        self._guard.check()
        if self._closed:
            raise Misuse(f"the commit table in {self._path} was closed")


def _start(entry: tuple[int, int]) -> int:
    return entry[0]


def _check_starts(starts: Int64s) -> None:
    bad = starts[(starts % TIMESTAMP_STEP != 0) | (starts <= 0)]
    if len(bad):
        raise Misuse(f"start {int(bad[0])} is not a start timestamp: those are multiples of {TIMESTAMP_STEP} above 0")


# One writer for each process and environment, however many tables are open; its users are counted.

_writers: dict[FileId, tuple[CommitLog, int]] = {}
_writers_lock = threading.RLock()


def _open_writer(path: Path, environment: Environment) -> CommitLog:
    key = environment.data_file
    with _writers_lock:
        writer, users = _writers.get(key) or (CommitLog(path, CompactedCommits(environment)), 0)
        _writers[key] = writer, users + 1
        return writer


def _close_writer(key: FileId, writer: CommitLog, *, finish_put: bool) -> None:
    """Ends what this table began, so that it does not keep the lock from others."""
    with _writers_lock:
        known, users = _writers.get(key, (None, 0))
        if known is not writer:  # the parent's, in a child of fork
            return
        if finish_put:
            writer.finish_put()
        if users == 1:
            del _writers[key]
            writer.close()
        else:
            _writers[key] = writer, users - 1


def _after_fork_in_child() -> None:
    """A child of fork has no writer: the parent's files are closed in it, and the lock is the parent's."""
    global _writers_lock
    _writers.clear()
    _writers_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
