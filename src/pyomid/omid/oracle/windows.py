"""The windows that start timestamps come from, and the commit batches above them (protocol.md).

Each commit batch has a window of starts below it, so that begins need not wait:

    batch 1, in flight          batch 2, in flight          batch 3, open
    [100 … 150)  150 200 250    [300 … 350)  350 400        [450 … 500)  500
     ^ begins are answered from here: above every released commit, below every commit that may be in flight

Law 3: a start S is handed out only when every commit below S is durable. So a begin is answered from the window of the
oldest unreleased batch, and from no other. Flushes end in any order; batches are released in order. Special cases:
  - when a window is exhausted, an empty open batch gets a new one at once (`_widen`); a non-empty batch must be
    flushed, and begins wait. No batch is skipped, and no begin is served from a batch that follows one in flight;
  - a begin with a lower bound (LWM, `not_before`) waits until the window lies above the bound;
  - a fence is an entry of its batch, and the oldest batch closes after it. Fences that come while their batch waits
    behind others share that batch: no begin is served from its window before it is the oldest (T8).

Timestamps are unique, ascending multiples of 50, and above every timestamp that an earlier TSO handed out. A durable
ceiling above a timestamp precedes its use (law 8, T3); `ceiling` moves it ahead of the clock. A new TSO starts above
the ceiling that it found.

Timestamps are times (T18): each step raises the logical clock to the wall clock, which never lowers it. The skipped
timestamps become part of the open batch's window, if the batch has no entries. So windows lie in the past. The logical
clock is ahead of the wall clock by no more than the few starts that a batch gets when it opens:

    batch 1, in flight     open batch, still empty                     its first commit
    [ … )  150 200         [250 … ──── grows with the wall clock ─── )  9 350
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle.records import Numbers, Window
from pyomid.protocol.timestamps import snapshot_after
from pyomid.types import TIMESTAMP_STEP, start_of

STARTS_AHEAD: Final = 256
"""The number of starts that a batch gets when it opens. They reach 12.8 µs ahead of the wall clock; every flush takes
longer."""


@dataclass(slots=True)
class TimestampClock:
    """Hands out timestamps below the durable ceiling."""

    numbers: Numbers
    step: int
    """How far one move raises the ceiling."""
    renew_remaining: int
    """The ceiling is moved when less than this remains below it."""

    @property
    def next_ts(self) -> int:
        return self.numbers.next_ts

    @next_ts.setter
    def next_ts(self, next_ts: int) -> None:
        self.numbers.next_ts = next_ts

    @property
    def ceiling(self) -> int:
        return self.numbers.ceiling

    @ceiling.setter
    def ceiling(self, ceiling: int) -> None:
        self.numbers.ceiling = ceiling

    @property
    def last_issued(self) -> int:
        """The last timestamp handed out or reserved."""
        return self.next_ts - TIMESTAMP_STEP

    def take(self) -> int | None:
        """Return one timestamp, or None if the ceiling must move first."""
        return self.reserve(1)

    def reserve(self, count: int) -> int | None:
        """Reserve `count` timestamps below the durable ceiling and return the first, or None if the ceiling must move
        first."""
        first = self.next_ts
        end = first + count * TIMESTAMP_STEP
        if end > self.ceiling:
            return None
        self.next_ts = end
        return first

    def reachable(self, wall_ns: int, *, is_moving: bool) -> int:
        """Return the timestamp to which the wall clock raises `next_ts` now.

        The wall clock may have passed the ceiling. After an idle time no timestamp is left then, so a request never
        gets one that is older than itself. If the store is slow to move the ceiling (`is_moving`), some timestamps are
        kept back. They are a little older than the wall clock, but begins go on.
        """
        reached_ts, ceiling = start_of(wall_ns), self.numbers.ceiling
        if reached_ts >= ceiling:
            reached_ts = start_of(ceiling - self.renew_remaining // 2 if is_moving else ceiling)
        return max(self.numbers.next_ts, reached_ts)

    def wanted_ceiling(self, wall_ns: int = 0) -> int:
        """Return the ceiling to make durable now. It is the current ceiling if enough remains below that."""
        reached_ts, ceiling = max(self.numbers.next_ts, start_of(wall_ns)), self.numbers.ceiling
        return ceiling if reached_ts + self.renew_remaining <= ceiling else reached_ts + self.step


class BatchState(Enum):
    """The states of a batch, in order. After DURABLE a batch is released and forgotten."""

    OPEN = auto()
    CLOSED = auto()
    """The batch takes no more entries and waits for its flush to begin."""
    IN_FLIGHT = auto()
    DURABLE = auto()
    """The entries of the batch, those of branches too, are durable, and the epoch was read after that."""


class Batch(Window):
    """A group of decided commits that are flushed together, with the window of starts reserved below them."""

    def __init__(self, seq: int, next_start: int, window_end: int) -> None:
        super().__init__(next_start, window_end, 0)
        self.seq = seq
        self.state = BatchState.OPEN
        self.entries: list[tuple[int, int]] = []
        """The entries (start, commit) to flush, with ascending commits."""
        self.rows: NDArray[np.int64] | None = None
        """Memory for the entries that compiled code decides, as rows (start, commit) with ascending commits."""
        self.answers: list[Any] = []
        """The answers to send, in this order, when the batch is released."""
        self.fenced = False
        self.large = False
        """True if the batch holds a single large commit. That becomes durable by steps of its own, not by a flush."""

    @property
    def is_empty(self) -> bool:
        return not (self.entries or self.answers or self.fenced or self.row_count)

    @property
    def size(self) -> int:
        return len(self.entries) + self.row_count

    @property
    def block(self) -> NDArray[np.int64] | None:
        """The entries that compiled code decided, as a view of `rows`."""
        return None if self.rows is None else self.rows[: self.row_count]

    def make_rows(self, count: int) -> None:
        """Allocate `rows` for `count` entries that compiled code will decide."""
        self.rows = np.empty((count, 2), dtype=np.int64)

    def grow(self, rows_max: int) -> bool:
        """Double `rows`, to at most `rows_max`, if they are full, and return True. Returns False if there is room, or
        `rows` are at their maximum."""
        if self.rows is None or self.row_count < len(self.rows) or len(self.rows) >= rows_max:
            return False
        rows = np.empty((min(rows_max, 2 * len(self.rows)), 2), dtype=np.int64)
        rows[: self.row_count] = self.rows[: self.row_count]
        self.rows = rows
        return True

    def holds_any(self, starts: frozenset[int]) -> bool:
        """Return whether the batch has an entry of one of these starts."""
        if any(start in starts for start, _ in self.entries):
            return True
        block = self.block
        return block is not None and bool(np.isin(block[:, 0], list(starts)).any())

    def all_entries(self) -> list[tuple[int, int]]:
        """Return all entries in the order of their commits. Slow, so only for rare requests."""
        block = self.block
        if block is None:
            return self.entries
        decided = [(start, commit) for start, commit in block.tolist()]
        return sorted(self.entries + decided, key=lambda entry: entry[1])


class BeginWindows:
    """All unreleased batches, from the oldest to the newest. The last one is open."""

    def __init__(self, clock: TimestampClock, *, window_starts: int) -> None:
        self.clock = clock
        self.window_starts = window_starts
        self.starts_ahead = min(window_starts, STARTS_AHEAD)
        self.batches: deque[Batch] = deque()
        self.released_seq = 0
        self.closed_ts = 0
        """Every commit and fence of a closed batch lies below this timestamp."""
        self._append_batch(1)

    @property
    def head(self) -> Batch:
        """The oldest unreleased batch."""
        return self.batches[0]

    @property
    def open_batch(self) -> Batch:
        return self.batches[-1]

    @property
    def flushes_in_flight(self) -> int:
        """The number of flushes in flight; large commits do not count."""
        count = 0
        for batch in self.batches:
            if batch.state is BatchState.IN_FLIGHT and not batch.large:
                count += 1
        return count

    @property
    def newest_flight(self) -> Batch | None:
        """The batch in flight whose flush began last, or None; large commits do not count."""
        for batch in reversed(self.batches):
            if batch.state is BatchState.IN_FLIGHT and not batch.large:
                return batch
        return None

    @property
    def is_idle(self) -> bool:
        """Whether no decided commit waits for its answer. If so, the window's next start lies above every timestamp
        handed out before."""
        return len(self.batches) == 1 and self.open_batch.is_empty

    def take_start(self, bound: int) -> int | None:
        """T1: return a start above `bound`. None means that the begin must wait for the release of a batch, or for the
        ceiling."""
        head = self.head
        if self._first_above(head, bound) >= head.window_end:
            self._widen(head)
        start_ts = self._first_above(head, bound)
        if start_ts >= head.window_end:
            return None
        head.next_start = start_ts + TIMESTAMP_STEP
        return start_ts

    def reaches(self, bound: int) -> bool:
        """Return whether the oldest batch's window can serve a begin with this lower bound whenever it can serve one
        without."""
        head = self.head
        is_below = bound < head.next_start or self._first_above(head, bound) < head.window_end
        return is_below or (head.state is BatchState.OPEN and head.is_empty)

    def close_after_fences(self) -> None:
        """T8: close the oldest batch if it has a fence, so that no start below the fence is handed out after the
        fence."""
        if self.head.state is BatchState.OPEN and self.head.fenced:
            self.close_open_batch()

    def follow(self, wall_ns: int, *, is_moving: bool) -> None:
        """Raise the logical clock to the wall clock. If the open batch is still empty, the skipped timestamps become
        its window, of which only the newest `window_starts` are kept. So new transactions begin near now."""
        numbers, batch = self.clock.numbers, self.open_batch
        reached_ts = self.clock.reachable(wall_ns, is_moving=is_moving)
        is_used_up = wall_ns >= numbers.ceiling and not is_moving
        if not is_used_up and reached_ts <= numbers.next_ts:
            return
        if batch.is_empty:
            oldest = reached_ts - (0 if is_used_up else self.window_starts * TIMESTAMP_STEP)
            batch.next_start = max(batch.next_start, oldest)
            batch.window_end = reached_ts
        numbers.next_ts = reached_ts

    def close_open_batch(self) -> Batch:
        """Close the open batch, open the next one, and return the closed batch."""
        batch = self.open_batch
        batch.state = BatchState.CLOSED
        self.closed_ts = self.clock.next_ts
        self._append_batch(batch.seq + 1)
        return batch

    def next_to_flush(self) -> Batch | None:
        """Return the oldest closed batch, or None. Flushes begin in order, although they end in any order."""
        for batch in self.batches:
            if batch.state is BatchState.CLOSED and not batch.large:
                return batch
        return None

    def release(self) -> Batch | None:
        """Remove and return the oldest batch if it is durable; otherwise return None. From then on the next window
        serves begins."""
        if self.head.state is not BatchState.DURABLE:
            return None
        batch = self.batches.popleft()
        self.released_seq = batch.seq
        return batch

    def find(self, seq: int) -> Batch | None:
        """Return the batch with this number, or None if it was released."""
        index = seq - self.head.seq
        return self.batches[index] if 0 <= index < len(self.batches) else None

    def _append_batch(self, seq: int) -> None:
        batch = Batch(seq, self.clock.next_ts, self.clock.next_ts)
        self.batches.append(batch)
        self._reserve(batch)

    def _widen(self, batch: Batch) -> None:
        """Give an empty open batch a new window. No entry of the batch can be in flight below a new start, because
        there is none."""
        if batch.state is BatchState.OPEN and batch.is_empty:
            self._reserve(batch)

    def _reserve(self, batch: Batch) -> None:
        """Reserve a new window for the batch, above every timestamp handed out. Does nothing if the ceiling is too
        low."""
        first = self.clock.reserve(self.starts_ahead)
        if first is not None:
            batch.next_start = first
            batch.window_end = self.clock.next_ts

    @staticmethod
    def _first_above(batch: Batch, bound: int) -> int:
        if batch.next_start > bound:
            return batch.next_start
        return snapshot_after(bound)

    def validate(self) -> None:
        """Check that windows and commits ascend, do not overlap and lie below the clock, and that only the last batch
        is open."""
        behind = 0
        for position, batch in enumerate(self.batches):
            assert batch.seq == self.released_seq + 1 + position, (batch.seq, self.released_seq, position)
            is_last = position == len(self.batches) - 1
            assert (batch.state is BatchState.OPEN) == is_last, (batch.seq, batch.state)
            assert not (batch.fenced and is_last and position == 0), "the oldest batch closes after its fence"
            assert behind <= batch.next_start <= batch.window_end, (behind, batch)
            behind = batch.window_end
            for start_ts, commit_ts in batch.all_entries():
                assert start_ts < commit_ts, (start_ts, commit_ts)
                assert commit_ts >= behind, (commit_ts, behind)
                behind = commit_ts + TIMESTAMP_STEP
            assert behind <= self.clock.next_ts, (behind, self.clock)
        assert self.clock.next_ts <= self.clock.ceiling, self.clock
