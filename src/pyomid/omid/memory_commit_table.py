"""A compact `CommitTable` in memory. Entries that arrive in blocks are kept as rows of 16 bytes.

    dictionary   branches, and entries that arrive one by one
    segments     rows (start, commit) in order of arrival, 16 384 each; the last one is being filled

Starts that are looked up or deleted together are close to each other, so a call searches one or two segments. A
dictionary of all entries would need ten times the memory, and filling it would take longer than the flush. The last
rows of an almost empty segment move to the segment that is being filled, so that a few old entries keep no segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.checks import ProcessGuard
from pyomid.omid.ports import CommitTable, FlushEnd, FlushEnded, FlushLoop
from pyomid.system import OwnLock
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

SEGMENT_ROWS: Final = 1 << 14
SPARSE_ROWS: Final = SEGMENT_ROWS // 8
_NO_ROWS: Final[NDArray[np.int64]] = np.empty(0, dtype=np.int64)


class _Segment:
    """Rows (start, commit) in order of arrival. A row whose commit is 0 was deleted."""

    __slots__ = ("_bounds", "count", "live", "rows")

    def __init__(self) -> None:
        self.rows: NDArray[np.int64] = np.empty((SEGMENT_ROWS, 2), dtype=np.int64)
        self.count = self.live = 0
        self._bounds: tuple[int, int] | None = None

    def append(self, entries: NDArray[np.int64]) -> int:
        """Add rows until the segment is full, and return their number."""
        taken = min(len(entries), SEGMENT_ROWS - self.count)
        self._bounds = None
        self.rows[self.count : self.count + taken] = entries[:taken]
        self.count += taken
        self.live += taken
        return taken

    @property
    def is_full(self) -> bool:
        return self.count == SEGMENT_ROWS

    @property
    def filled(self) -> NDArray[np.int64]:
        return self.rows[: self.count]

    def find(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the live rows that have one of the ascending `starts`."""
        low, high = self._low_and_high()
        if not len(starts) or starts[0] > high or starts[-1] < low:
            return _NO_ROWS
        kept, commits = self.filled.T
        is_asked = starts.take(starts.searchsorted(kept), mode="clip") == kept
        return np.flatnonzero(is_asked & (commits != 0))

    def delete(self, starts: NDArray[np.int64]) -> None:
        """Delete every row of these ascending starts. After a retried flush an entry may have two rows."""
        self._clear(self.find(starts))

    def delete_below(self, horizon: int) -> NDArray[np.int64]:
        """Delete the rows with start < `horizon`, and return their starts."""
        gone = np.flatnonzero((self.filled[:, 0] < horizon) & (self.filled[:, 1] != 0))
        self._clear(gone)
        starts: NDArray[np.int64] = self.rows[gone, 0]
        return starts

    def entries(self) -> list[tuple[int, int]]:
        return [(start, commit) for start, commit in self.filled.tolist() if commit]

    def _clear(self, rows: NDArray[np.int64]) -> None:
        self.rows[rows, 1] = 0
        self.live -= len(rows)

    def _low_and_high(self) -> tuple[int, int]:
        """Return the least and the greatest start that was ever in this segment."""
        if self._bounds is None:
            starts = self.filled[:, 0]
            self._bounds = (int(starts.min()), int(starts.max())) if self.count else (0, -1)
        return self._bounds


class MemoryCommitTable(CommitTable):
    """A commit table in memory. `submit` calls `ended` before it returns."""

    def __init__(self) -> None:
        self._commits: dict[int, int] = {}
        self._segments: list[_Segment] = []
        self._marks: set[int] = set()
        self.lock = OwnLock()
        self._guard = ProcessGuard("MemoryCommitTable")

    def lookup(self, starts: Sequence[int]) -> list[int]:
        self._guard.check()
        with self.lock.held():
            found = self._found(starts)
            return [SEALED if start in self._marks else found.get(start, NOT_FOUND) for start in starts]

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        self._guard.check()
        with self.lock.held():
            self._commits.update((start, commit) for start, commit in entries if start not in self._marks)
            return [start for start, _ in entries if start in self._marks]

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        self._guard.check()
        with self.lock.held():
            if not self._marks or self._marks.isdisjoint(entries[:, 0].tolist()):
                self._append(entries)
                return []
        return self.put([(start, commit) for start, commit in entries.tolist()])

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        ended(FlushEnd(self.put_block(entries), loop.leader_state.read().epoch))

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return not self.put([(start, commit_ts)])

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        self._guard.check()
        with self.lock.held():
            self._marks.difference_update(branches)
            self._commits.update((branch, commit_ts) for branch in branches)

    def seal(self, start: int) -> SealOutcome:
        self._guard.check()
        with self.lock.held():
            commit_ts = self._found([start]).get(start, NOT_FOUND)
            if start in self._marks or commit_ts == NOT_FOUND:
                self._marks.add(start)
                return SealOutcome(placed=True)
            return SealOutcome(placed=False, commit_ts=commit_ts)

    def delete(self, starts: Sequence[int]) -> None:
        self._guard.check()
        with self.lock.held():
            for start in starts:
                self._commits.pop(start, None)
            wanted = np.sort(np.array(starts, dtype=np.int64))
            for segment in self._segments:
                segment.delete(wanted)
            self._free_segments()

    def delete_below(self, horizon: int) -> int:
        self._guard.check()
        with self.lock.held():
            gone = [start for start in {*self._commits, *self._marks} if start < horizon]
            for start in gone:
                self._commits.pop(start, None)
                self._marks.discard(start)
            of_segments = [segment.delete_below(horizon) for segment in self._segments]
            self._free_segments()
            return len(np.unique(np.concatenate([np.array(gone, dtype=np.int64), *of_segments])))

    def entries(self) -> Iterator[tuple[int, int]]:
        self._guard.check()
        with self.lock.held():
            return iter(sorted(self._all().items()))

    def count(self) -> int:
        self._guard.check()
        with self.lock.held():
            return len(self._all())

    def close(self) -> None:
        pass

    def _append(self, entries: NDArray[np.int64]) -> None:
        while len(entries):
            if not self._segments or self._segments[-1].is_full:
                self._segments.append(_Segment())
            entries = entries[self._segments[-1].append(entries) :]

    def _found(self, starts: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        wanted = np.array(sorted(starts), dtype=np.int64)
        for segment in self._segments:
            found.update(segment.rows[segment.find(wanted)].tolist())
        return {**found, **{start: self._commits[start] for start in starts if start in self._commits}}

    def _free_segments(self) -> None:
        """Move the last rows of full but almost empty segments to the segment being filled, and free those segments."""
        freed = {segment for segment in self._segments if segment.is_full and segment.live <= SPARSE_ROWS}
        for segment in freed:
            self._append(segment.filled[segment.filled[:, 1] != 0])
        if freed:
            self._segments = [segment for segment in self._segments if segment not in freed]

    def _all(self) -> dict[int, int]:
        rows = {start: commit for segment in self._segments for start, commit in segment.entries()}
        return {**rows, **self._commits, **dict.fromkeys(self._marks, SEALED)}
