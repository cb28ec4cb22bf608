"""Hand out start timestamps: at once from the begin windows, or from the next window (protocol.md).

    Begin ─► `Begins`: a window serves it ─► BeginReply
                     └► it waits (`WaitingBegins`) ─► a batch is released ─► BeginReply

There is one window of starts below each commit batch, so that begins need not wait:

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
ceiling above a timestamp precedes its use (law 8, T3); `Ceiling` moves it ahead of the clock. A new TSO starts above
the ceiling that it found.

Timestamps are times (T18): each step raises the clock to the wall clock, which never lowers it. What the clock skips
becomes part of the window of an open batch without entries. So windows lie in the past, and the clock is ahead of the
wall clock by no more than the few starts that a batch gets when it opens:

    batch 1, in flight     open batch, still empty                     its first commit
    [ … )  150 200         [250 … ──── grows with the wall clock ─── )  9 350
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Misuse
from pyomid.omid.oracle.instructions import MoveCeiling
from pyomid.omid.oracle.outgoing import Death, EpochWrite
from pyomid.omid.wire.messages import Request
from pyomid.protocol.timestamps import dated, snapshot_after
from pyomid.types import TIMESTAMP_MAX, TIMESTAMP_STEP, BeginReply, LeaderStateChanges, start_of

if TYPE_CHECKING:
    from pyomid.omid.oracle.machine import TsoMachine

BEGINS_A_STEP: Final = 256
"""Waiting begins answered per step: a few milliseconds of work."""
STARTS_AHEAD: Final = 256
"""Starts that a batch gets when it opens: 12.8 µs ahead of the wall clock, which no flush is faster than."""


@dataclass(slots=True)
class TimestampClock:
    """`next_ts` is the next timestamp to be handed out; `ceiling` is durable."""

    next_ts: int
    ceiling: int
    step: int
    """How far the ceiling moves at a time."""
    renew_remaining: int
    """The ceiling moves when less than this remains."""

    @property
    def last_issued(self) -> int:
        """The last timestamp handed out or reserved."""
        return self.next_ts - TIMESTAMP_STEP

    def take(self) -> int | None:
        """Return one timestamp, or None until the ceiling has moved."""
        return self.reserve(1)

    def reserve(self, count: int) -> int | None:
        """Return the first of `count` timestamps, all below the durable ceiling; None until the ceiling has moved."""
        first = self.next_ts
        end = first + count * TIMESTAMP_STEP
        if end > self.ceiling:
            return None
        self.next_ts = end
        return first

    def reachable(self, wall_ns: int, *, is_moving: bool) -> int:
        """Return the timestamp to which the wall clock raises `next_ts` now.

        The wall clock may have passed the ceiling. After a quiet time no timestamp is left then, so that none is
        handed out that is older than its request. If the store is slow to move the ceiling (`is_moving`), some are
        kept back: they are a little older than the wall clock, but begins go on.
        """
        reached_ts = start_of(wall_ns)
        if reached_ts >= self.ceiling:
            reached_ts = start_of(self.ceiling - self.renew_remaining // 2 if is_moving else self.ceiling)
        return max(self.next_ts, reached_ts)

    def wanted_ceiling(self, wall_ns: int = 0) -> int:
        """Return the ceiling to make durable now; the present one if enough remains."""
        reached_ts = max(self.next_ts, start_of(wall_ns))
        return self.ceiling if reached_ts + self.renew_remaining <= self.ceiling else reached_ts + self.step


class BatchState(Enum):
    """The states in their order. After DURABLE a batch is released and forgotten."""

    OPEN = auto()
    CLOSED = auto()
    """Takes no more entries and waits for its flush to begin."""
    IN_FLIGHT = auto()
    DURABLE = auto()
    """Its entries, also those of branches, are durable, and the epoch was read after that."""


class EntryBlock:
    """The entries of one batch that a kernel decided, as rows (start, commit) with ascending commits."""

    __slots__ = ("count", "rows")

    def __init__(self, rows_min: int) -> None:
        self.rows: NDArray[np.int64] = np.empty((rows_min, 2), dtype=np.int64)
        self.count = 0

    @property
    def entries(self) -> NDArray[np.int64]:
        """The filled rows, as a view."""
        return self.rows[: self.count]

    def grow(self, rows_max: int) -> bool:
        """Double the capacity, up to `rows_max`. False if it is there already."""
        if len(self.rows) >= rows_max:
            return False
        rows = np.empty((min(rows_max, 2 * len(self.rows)), 2), dtype=np.int64)
        rows[: self.count] = self.entries
        self.rows = rows
        return True


@dataclass(slots=True)
class Batch:
    """A group of decided commits that are flushed together, and the window of starts reserved below them."""

    seq: int
    next_start: int
    window_end: int
    state: BatchState = BatchState.OPEN
    entries: list[tuple[int, int]] = field(default_factory=list)
    """(start, commit) to be flushed, with ascending commits."""
    block: EntryBlock | None = None
    """Further entries, decided by a kernel."""
    answers: list[Any] = field(default_factory=list)
    """The answers to send, in this order, when the batch is released."""
    fenced: bool = False
    large: bool = False
    """The batch holds one large commit alone, which becomes durable by steps of its own, not by a flush."""

    @property
    def is_empty(self) -> bool:
        return not (self.entries or self.answers or self.fenced or (self.block is not None and self.block.count))

    @property
    def size(self) -> int:
        return len(self.entries) + (self.block.count if self.block is not None else 0)

    def holds_any(self, starts: frozenset[int]) -> bool:
        """Whether the batch has an entry of one of these starts."""
        if any(start in starts for start, _ in self.entries):
            return True
        block = self.block
        return block is not None and bool(np.isin(block.entries[:, 0], list(starts)).any())

    def all_entries(self) -> list[tuple[int, int]]:
        """Return all entries, ordered by commit. Slow: for rare requests."""
        if self.block is None:
            return self.entries
        decided = [(start, commit) for start, commit in self.block.entries.tolist()]
        return sorted(self.entries + decided, key=lambda entry: entry[1])


class BeginWindows:
    """All unreleased batches, the oldest first. The last one is open."""

    def __init__(self, clock: TimestampClock, *, window_starts: int) -> None:
        self.clock = clock
        self.window_starts = window_starts
        self.starts_ahead = min(window_starts, STARTS_AHEAD)
        self.batches: deque[Batch] = deque()
        self.released_seq = 0
        self.closed_ts = 0
        """Every commit and fence of a closed batch lies below it."""
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
        """The number of flushes in flight, not counting large commits."""
        count = 0
        for batch in self.batches:
            if batch.state is BatchState.IN_FLIGHT and not batch.large:
                count += 1
        return count

    @property
    def newest_flight(self) -> Batch | None:
        """The batch in flight whose flush began last."""
        for batch in reversed(self.batches):
            if batch.state is BatchState.IN_FLIGHT and not batch.large:
                return batch
        return None

    @property
    def is_idle(self) -> bool:
        """Whether no decided commit waits for its answer. Then the window lies above every timestamp handed out before
        it."""
        return len(self.batches) == 1 and self.open_batch.is_empty

    def take_start(self, bound: int) -> int | None:
        """T1: return a start above `bound`. None: the begin waits for a release, or for the ceiling."""
        head = self.head
        if self._first_above(head, bound) >= head.window_end:
            self._widen(head)
        start_ts = self._first_above(head, bound)
        if start_ts >= head.window_end:
            return None
        head.next_start = start_ts + TIMESTAMP_STEP
        return start_ts

    def reaches(self, bound: int) -> bool:
        """Whether a begin with this lower bound can be served from the same window as one without."""
        head = self.head
        is_below = bound < head.next_start or self._first_above(head, bound) < head.window_end
        return is_below or (head.state is BatchState.OPEN and head.is_empty)

    def close_after_fences(self) -> None:
        """T8: close the oldest batch if it has a fence, so that no start below the fence is handed out after it."""
        if self.head.state is BatchState.OPEN and self.head.fenced:
            self.close_open_batch()

    def follow(self, wall_ns: int, *, is_moving: bool) -> None:
        """Raise the clock to the wall clock. What it skips becomes part of the open batch's window, if the batch is
        still empty; starts older than `window_starts` leave the window, so that new transactions begin near now."""
        clock, batch = self.clock, self.open_batch
        reached_ts = clock.reachable(wall_ns, is_moving=is_moving)
        is_used_up = wall_ns >= clock.ceiling and not is_moving
        if (is_used_up or reached_ts > clock.next_ts) and batch.is_empty:
            oldest = reached_ts - (0 if is_used_up else self.window_starts * TIMESTAMP_STEP)
            batch.next_start = max(batch.next_start, oldest)
            batch.window_end = reached_ts
        clock.next_ts = reached_ts

    def close_open_batch(self) -> Batch:
        """Close the open batch and open the next. Return the closed batch."""
        batch = self.open_batch
        batch.state = BatchState.CLOSED
        self.closed_ts = self.clock.next_ts
        self._append_batch(batch.seq + 1)
        return batch

    def next_to_flush(self) -> Batch | None:
        """Return the oldest closed batch: flushes begin in order, though they end in any order."""
        for batch in self.batches:
            if batch.state is BatchState.CLOSED and not batch.large:
                return batch
        return None

    def release(self) -> Batch | None:
        """Remove and return the oldest batch if it is durable; the next window serves from then on. Otherwise None."""
        if self.head.state is not BatchState.DURABLE:
            return None
        batch = self.batches.popleft()
        self.released_seq = batch.seq
        return batch

    def find(self, seq: int) -> Batch | None:
        """Return the batch; None if it was released."""
        index = seq - self.head.seq
        return self.batches[index] if 0 <= index < len(self.batches) else None

    def _append_batch(self, seq: int) -> None:
        batch = Batch(seq, self.clock.next_ts, self.clock.next_ts)
        self.batches.append(batch)
        self._reserve(batch)

    def _widen(self, batch: Batch) -> None:
        """Give an empty open batch a new window: it has no entry that could be in flight below a new start."""
        if batch.state is BatchState.OPEN and batch.is_empty:
            self._reserve(batch)

    def _reserve(self, batch: Batch) -> None:
        """Reserve a new window above every timestamp handed out, unless the ceiling is too low."""
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
        """Check: windows and commits ascend, do not overlap, and lie below the clock; only the last batch is open."""
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


class Begins:
    """Hands out starts. They leave in ascending order."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso
        self.newest_start = tso.epoch
        """The newest start handed out."""
        self.fenced_ts = 0
        """The newest fence that was requested; each later start carries it (`protocol.commit.may_use_rules`)."""
        self.waiting = WaitingBegins()

    def ask(self, peer: Hashable, tag: int, not_before: int) -> None:
        last_issued = self._tso.windows.clock.last_issued
        if not_before > last_issued:
            self._tso.step.refuse(peer, tag, Misuse(
                f"not_before {not_before} is above every timestamp issued ({last_issued})",
                not_before=not_before,
                last_issued=last_issued,
            ))  # fmt: skip
        elif self.waiting.are_ready or not self._answer(peer, tag, not_before):
            self.waiting.add(WaitingBegin(peer, tag, not_before), is_ready=self._tso.windows.reaches(not_before))
            self._tso.step.counters["begin_waits"] += 1

    def _answer(self, peer: Hashable, tag: int, not_before: int) -> bool:
        answer = self.take(peer, not_before)
        if answer is not None:
            self._tso.step.reply(peer, tag, answer)
        return answer is not None

    def take(self, peer: Hashable, not_before: int) -> BeginReply | None:
        """Hand out a start above LWM, so that the transaction can commit, and above `not_before`. It is open from now
        on (T16)."""
        start_ts = self._tso.windows.take_start(max(not_before, self._tso.oracle.low_watermark))
        if start_ts is None:
            return None
        self._tso.open_starts.handed_out(peer, self.newest_start, start_ts)
        self.newest_start = start_ts
        self._tso.step.counters["begins"] += 1
        return BeginReply(start_ts, self._tso.oracle.epoch, self.fenced_ts)

    def draw_start(self) -> int | None:
        """Return a start for the machine's own use; None if no window has one."""
        start_ts = self._tso.windows.take_start(self._tso.oracle.low_watermark)
        if start_ts is not None:
            self.newest_start = start_ts
        return start_ts

    def answer_waiting(self) -> None:
        """Answer waiting begins, one per peer in turn. A begin whose `not_before` is not reached delays no other. A
        step answers at most `BEGINS_A_STEP`, so that other requests do not wait for all of them."""
        waiting = self.waiting
        self._tso.step.has_more_begins = False
        if not waiting:
            return
        waiting.line_up(self._tso.windows.reaches)
        for _ in range(BEGINS_A_STEP):
            begin = waiting.first()
            if begin is None or not self._answer(begin.peer, begin.tag, begin.not_before):
                return
            waiting.pop_first()
        self._tso.step.has_more_begins = waiting.are_ready

    # ── valid starts ─────────────────────────────────────────────────────────────────────────────────────────────

    def is_issued(self, start_ts: int) -> bool:
        return 0 < start_ts <= self.newest_start and start_ts % TIMESTAMP_STEP == 0

    def are_issued(self, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`is_issued` of each."""
        found: NDArray[np.bool_] = (starts > 0) & (starts <= self.newest_start) & (starts % TIMESTAMP_STEP == 0)
        return found

    def not_a_start(self, start_ts: int) -> Misuse:
        return Misuse(
            f"start_ts {start_ts} was never handed out: starts are multiples of {TIMESTAMP_STEP}, "
            f"the newest is {dated(self.newest_start)}",
            start_ts=start_ts,
        )


class Ceiling:
    """Law 8: moves the durable ceiling ahead before timestamps run out, then handles the requests that waited for it
    again."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso
        self.is_moving = False
        self._moved_for = (0, 0)
        self.waiting: deque[tuple[Hashable, int, Request]] = deque()

    def wait(self, peer: Hashable, tag: int, request: Request) -> None:
        self.waiting.append((peer, tag, request))
        self._tso.first_attempts.wait(request)

    def forget(self, peer: Hashable) -> None:
        """The peer disconnected: drop its requests."""
        waiting, self.waiting = self.waiting, deque()
        for entry in waiting:
            if entry[0] == peer:
                self._tso.first_attempts.end_wait(entry[2])
            else:
                self.waiting.append(entry)

    def renew(self) -> None:
        """Move the ceiling if little remains. In a quiet time it stays, and the next request waits for its move."""
        clock = self._tso.clock
        wanted = clock.wanted_ceiling(self._tso.step.wall_ns)
        if wanted > clock.ceiling and not self.is_moving and self._is_used():
            if wanted > TIMESTAMP_MAX:
                raise Death(f"timestamps are used up: {wanted} does not fit 63 bits")
            self.is_moving, self._moved_for = True, self._used()
            self._tso.store.run(self._move(wanted))

    def _used(self) -> tuple[int, int]:
        return self._tso.begins.newest_start, self._tso.windows.closed_ts

    def _is_used(self) -> bool:
        """Whether a timestamp was handed out since the ceiling moved last, or is waited for."""
        waits = bool(self.waiting) or len(self._tso.begins.waiting) > 0 or self._tso.watermarks.needs_start
        return waits or self._used() != self._moved_for or not self._tso.windows.open_batch.is_empty

    async def _move(self, ceiling: int) -> None:
        await EpochWrite(LeaderStateChanges(ceiling=ceiling))
        if self._tso.settings.ceiling_elsewhere:  # noted first: the next TSO recognizes it as pyomid's (`takeover`)
            moved: bool = await MoveCeiling(self._tso.clock.ceiling, ceiling)
            if not moved:
                raise Death("another TSO moved the timestamp ceiling")
        self._tso.clock.ceiling = ceiling
        self.is_moving = False
        # If the store was slow, the wall clock may have passed this ceiling too: the requests that waited get the rest.
        self._tso.windows.follow(self._tso.step.wall_ns, is_moving=True)
        if self._tso.watermarks.needs_start:
            self._tso.watermarks.draw_if_quiet()
        waited, self.waiting = self.waiting, deque()
        for peer, tag, request in waited:
            self._tso.first_attempts.end_wait(request)
            self._tso.take_request(peer, tag, request)


@dataclass(slots=True)
class WaitingBegin:
    peer: Hashable
    tag: int
    not_before: int
    is_awaited: bool = True


class WaitingBegins:
    """Begins for which there is no window yet. Each peer's begins keep their order, and peers take turns.

    The cost of one begin does not grow with the number that waits. A begin whose `not_before` no window has reached
    waits in a heap and delays no other. Windows ascend, so once its `not_before` is reached it stays ready.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[WaitingBegin]] = {}
        self._turns: deque[Hashable] = deque()
        """Peers with ready begins, each once."""
        self._unreached: list[tuple[int, int, WaitingBegin]] = []
        """A heap by `not_before` and arrival; `_gone` counts its begins of disconnected peers."""
        self._unreached_of: dict[Hashable, dict[int, WaitingBegin]] = {}
        self._arrivals = 0
        self._gone = 0
        self._ready = 0

    def __len__(self) -> int:
        return self._ready + len(self._unreached) - self._gone

    @property
    def are_ready(self) -> bool:
        return self._ready > 0

    def add(self, begin: WaitingBegin, *, is_ready: bool) -> None:
        if is_ready:
            self._line_up(begin)
            return
        self._arrivals += 1
        self._unreached_of.setdefault(begin.peer, {})[self._arrivals] = begin
        heapq.heappush(self._unreached, (begin.not_before, self._arrivals, begin))

    def line_up(self, reaches: Callable[[int], bool]) -> None:
        """Make the begins ready whose `not_before` is reached."""
        while self._unreached and reaches(self._unreached[0][0]):
            _, arrival, begin = heapq.heappop(self._unreached)
            if not begin.is_awaited:
                self._gone -= 1
                continue
            of_peer = self._unreached_of[begin.peer]
            del of_peer[arrival]
            if not of_peer:
                del self._unreached_of[begin.peer]
            self._line_up(begin)

    def first(self) -> WaitingBegin | None:
        """The next begin to answer."""
        return self._lines[self._turns[0]][0] if self._turns else None

    def pop_first(self) -> None:
        """Remove `first`, and continue with the next peer."""
        peer = self._turns.popleft()
        line = self._lines[peer]
        line.popleft()
        self._ready -= 1
        if line:
            self._turns.append(peer)
        else:
            del self._lines[peer]

    def forget(self, peer: Hashable) -> None:
        """The peer disconnected: drop its begins."""
        line = self._lines.pop(peer, None)
        if line is not None:
            self._ready -= len(line)
            self._turns.remove(peer)
        for begin in self._unreached_of.pop(peer, {}).values():
            begin.is_awaited = False
            self._gone += 1
        if 2 * self._gone > len(self._unreached):
            self._unreached = [entry for entry in self._unreached if entry[2].is_awaited]
            heapq.heapify(self._unreached)
            self._gone = 0

    def _line_up(self, begin: WaitingBegin) -> None:
        line = self._lines.get(begin.peer)
        if line is None:
            line = self._lines[begin.peer] = deque()
            self._turns.append(begin.peer)
        line.append(begin)
        self._ready += 1
