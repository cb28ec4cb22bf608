"""`CommitTable` in little memory: entries that come in blocks stay rows of 16 bytes, and are sorted on demand.

    dictionary   entries that come one by one, branches
    segments     rows (start, commit) in order of arrival, 65 536 each; the last one is being filled

The start of a transaction and those of its neighbours lie close together, so a lookup sorts one or two segments, once.
A dictionary of all entries would need ten times the memory, and filling it would take longer than the flush.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

from pyomid.arrays import NDArray, np
from pyomid.ports import CommitTable, FlushEnded, FlushLoop
from pyomid.storage.checks import ProcessGuard
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

SEGMENT_ROWS: Final = 1 << 16


class _Segment:
    """Rows in order of arrival. A row whose commit is 0 was deleted."""

    __slots__ = ("_bounds", "_order", "count", "live", "rows")

    def __init__(self) -> None:
        self.rows: NDArray[np.int64] = np.empty((SEGMENT_ROWS, 2), dtype=np.int64)
        self.count = self.live = 0
        self._order: NDArray[np.int64] | None = None
        self._bounds: tuple[int, int] | None = None

    def append(self, entries: NDArray[np.int64]) -> int:
        """Adds rows; returns how many of them found room."""
        taken = min(len(entries), SEGMENT_ROWS - self.count)
        self.rows[self.count : self.count + taken] = entries[:taken]
        self.count += taken
        self.live += taken
        self._order = self._bounds = None
        return taken

    @property
    def is_full(self) -> bool:
        return self.count == SEGMENT_ROWS

    @property
    def filled(self) -> NDArray[np.int64]:
        return self.rows[: self.count]

    def is_below(self, horizon: int) -> bool:
        return self._low_and_high()[1] < horizon

    def find(self, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of `starts` are in this segment, and in which rows."""
        low, high = self._low_and_high()
        asked = np.flatnonzero((starts >= low) & (starts <= high))
        if not self.count or not len(asked):
            return asked[:0], asked[:0]
        order = self._sorted()
        kept = self.rows[order, 0]
        at = np.searchsorted(kept, starts[asked])
        rows = order[np.minimum(at, self.count - 1)]
        is_there = (self.rows[rows, 0] == starts[asked]) & (self.rows[rows, 1] != 0)
        return asked[is_there], rows[is_there]

    def delete(self, starts: NDArray[np.int64]) -> None:
        """Deletes every row of these starts: a repeated flush leaves two rows of one entry."""
        while True:
            _, rows = self.find(starts)
            if not len(rows):
                return
            self._clear(np.unique(rows))

    def delete_below(self, horizon: int) -> int:
        gone = np.flatnonzero((self.filled[:, 0] < horizon) & (self.filled[:, 1] != 0))
        self._clear(gone)
        return len(gone)

    def entries(self) -> list[tuple[int, int]]:
        return [(start, commit) for start, commit in self.filled.tolist() if commit]

    def _clear(self, rows: NDArray[np.int64]) -> None:
        """Of the rows of one start, deleted ones are sorted last, so that `find` meets the present one first."""
        self.rows[rows, 1] = 0
        self.live -= len(rows)
        self._order = None

    def _sorted(self) -> NDArray[np.int64]:
        if self._order is None:
            self._order = np.lexsort((self.filled[:, 1] == 0, self.filled[:, 0]))
        return self._order

    def _low_and_high(self) -> tuple[int, int]:
        """The range of all starts that were ever in this segment."""
        if self._bounds is None:
            starts = self.filled[:, 0]
            self._bounds = (int(starts.min()), int(starts.max())) if self.count else (0, -1)
        return self._bounds


class MemoryCommitTable(CommitTable):
    """`CommitTable` in memory. `submit` tells the end of a flush within the call."""

    def __init__(self) -> None:
        self._commits: dict[int, int] = {}
        self._segments: list[_Segment] = []
        self._marks: set[int] = set()
        self._lock = threading.Lock()
        self._guard = ProcessGuard("MemoryCommitTable")

    def lookup(self, starts: Sequence[int]) -> list[int]:
        self._guard.check()
        with self._lock:
            found = self._found(starts)
            return [SEALED if start in self._marks else found.get(start, NOT_FOUND) for start in starts]

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        self._guard.check()
        with self._lock:
            self._commits.update((start, commit) for start, commit in entries if start not in self._marks)
            return [start for start, _ in entries if start in self._marks]

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        self._guard.check()
        with self._lock:
            if not self._marks or self._marks.isdisjoint(entries[:, 0].tolist()):
                self._append(entries)
                return []
        return self.put([(start, commit) for start, commit in entries.tolist()])

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        refused = self.put_block(entries)
        ended((refused, loop.leader_state.read().epoch))

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return not self.put([(start, commit_ts)])

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        self._guard.check()
        with self._lock:
            self._marks.difference_update(branches)
            self._commits.update((branch, commit_ts) for branch in branches)

    def seal(self, start: int) -> SealOutcome:
        self._guard.check()
        with self._lock:
            commit_ts = self._found([start]).get(start, NOT_FOUND)
            if start in self._marks or commit_ts == NOT_FOUND:
                self._marks.add(start)
                return SealOutcome(placed=True)
            return SealOutcome(placed=False, commit_ts=commit_ts)

    def delete(self, starts: Sequence[int]) -> None:
        self._guard.check()
        with self._lock:
            for start in starts:
                self._commits.pop(start, None)
            if self._segments:
                wanted = np.array(starts, dtype=np.int64)
                for segment in self._segments:
                    segment.delete(wanted)
                self._drop_empty()

    def delete_below(self, horizon: int) -> int:
        self._guard.check()
        with self._lock:
            gone = [start for start in {*self._commits, *self._marks} if start < horizon]
            for start in gone:
                self._commits.pop(start, None)
                self._marks.discard(start)
            deleted = len(gone)
            for segment in self._segments:
                if segment.is_below(horizon):
                    deleted, segment.live = deleted + segment.live, 0
                else:
                    deleted += segment.delete_below(horizon)
            self._drop_empty()
            return deleted

    def entries(self) -> Iterator[tuple[int, int]]:
        self._guard.check()
        with self._lock:
            return iter(sorted(self._all().items()))

    def count(self) -> int:
        self._guard.check()
        with self._lock:
            return len(self._all())

    def close(self) -> None:
        pass

    def _append(self, entries: NDArray[np.int64]) -> None:
        while len(entries):
            if not self._segments or self._segments[-1].is_full:
                self._segments.append(_Segment())
            entries = entries[self._segments[-1].append(entries) :]

    def _found(self, starts: Sequence[int]) -> dict[int, int]:
        found = {start: self._commits[start] for start in starts if start in self._commits}
        if self._segments:
            wanted = np.array(starts, dtype=np.int64)
            for segment in self._segments:
                asked, rows = segment.find(wanted)
                if len(asked):
                    found.update(zip(wanted[asked].tolist(), segment.rows[rows, 1].tolist(), strict=True))
        return found

    def _drop_empty(self) -> None:
        """Frees empty segments. The one that is being filled stays; otherwise each small delete would begin a new
        one."""
        filling = self._segments[-1:]
        self._segments = [segment for segment in self._segments[:-1] if segment.live]
        self._segments += [segment for segment in filling if segment.live or not segment.is_full]

    def _all(self) -> dict[int, int]:
        rows = {start: commit for segment in self._segments for start, commit in segment.entries()}
        return {**rows, **self._commits, **dict.fromkeys(self._marks, SEALED)}
