"""The whole state of a TSO, in one record. Its parts (`windows` … `outgoing`) are data that knows nothing of the whole.

The functions of `begins`, `commits`, `large_commits`, `table_requests`, `lease_requests`, `outcomes`, `watermarks` and
`ceiling` take this record as their first argument; `machine` calls them, one event at a time.

    in memory only       windows, waiting begins, conflict map, fences, refused starts, open starts
    also durable         ceiling, leases, pending large commits, W, H: changed here first or last, as each field says
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from pyomid.omid.oracle.leases import Leases
from pyomid.omid.oracle.open_starts import Held, OpenStarts
from pyomid.omid.oracle.outgoing import PeerRequests, Step, StoreRequests
from pyomid.omid.oracle.records import Numbers
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.status_oracle import BucketMap, ConflictMap, RareStarts, StatusOracle
from pyomid.omid.oracle.tables import KnownTables
from pyomid.omid.oracle.takeover import TakenOver
from pyomid.omid.oracle.waiting import FirstAttempts, WaitingBegins
from pyomid.omid.oracle.windows import STARTS_AHEAD, BeginWindows, TimestampClock
from pyomid.omid.wire.messages import Request
from pyomid.protocol.wall_clock import WallClock
from pyomid.types import TIMESTAMP_STEP, CommitRequest, PendingCommit

PEER_REQUESTS_MAX: Final = 4
"""Seals, retries, large commits and sanitizings of one peer that run at once."""

Asked = tuple[Hashable, int, Request]
"""A request as it came: peer, tag, request."""


@dataclass(slots=True)
class Watermarks:
    """H ≤ W ≤ D ≤ E ≤ LWM (`watermarks`). LWM itself is the status oracle's."""

    published: int
    """The durable W."""
    sent: int
    """The highest W sent to the store; it may be durable already (T12)."""
    decided: int
    """D. It never goes back. A lease at or below it is a reader's and holds W alone."""
    horizon: int
    """H: raised before it is durable, so that no outcome below it is reported meanwhile (R4)."""
    ended: int
    """E."""
    durable_ended: int
    """The highest E with every commit that started at or below it durable (law 4)."""
    drawn_start: int
    """The start drawn last in a quiet time."""
    now_s: float
    """When the TSO took over: timers begin here."""
    rises: deque[tuple[int, int]] = field(default_factory=deque)
    """(E, the batch after whose release that E counts), ascending."""
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, the newest start then), for some times of the last `max_transaction_age_s`."""
    aged_start: int = 0
    """The start that was the newest `max_transaction_age_s` ago."""
    needs_start: bool = False
    """A start is to be drawn above the last commits, and no window has one."""
    open_held: Held | None = None
    """What held E back at the last rise."""
    held_back_by: str = ""
    """The client whose open start held E back at the last rise, as text for operators; empty: none."""
    held_bound: int = 0
    """Its bound, unchanged since `held_since_s`."""
    held_since_s: float = field(init=False)
    publish_due_s: float = field(init=False)
    open_due_s: float = field(init=False)
    sampled_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.held_since_s = self.publish_due_s = self.open_due_s = self.sampled_s = self.now_s


@dataclass(slots=True)
class CeilingMove:
    """The move of the durable ceiling; the ceiling itself is the clock's (law 8)."""

    is_moving: bool = False
    moved_for: tuple[int, int] = (0, 0)
    """What was handed out when it moved last: (newest start, end of the closed batches)."""
    waiting: deque[Asked] = field(default_factory=deque)
    """Requests for which no timestamp is left below the ceiling."""


@dataclass(slots=True)
class TableCalls:
    """Reads of the catalog and marks, in flight (K6)."""

    read_due_s: float
    waiting: list[tuple[Hashable, int, CommitRequest]] = field(default_factory=list)
    """Commits that name a table that is not decidable."""
    is_looking_up: bool = False
    is_reading: bool = False
    marking: int | None = None
    """The table whose mark is being put; its fences wait, because the mark must be there before its sender removes
    it."""
    fences_behind_mark: list[tuple[Hashable, int, int]] = field(default_factory=list)
    """(peer, tag, table id)"""


@dataclass(slots=True)
class TsoState:
    """Each field says which rule it obeys. Nothing else in `oracle` holds state, but for a few flags of the machine."""

    settings: TsoSettings
    epoch: int
    """In the leader state while this TSO leads; every start of it is above, every start of an earlier TSO at or
    below."""
    retention_s: float
    """How long history is kept (T17); 0: only while a reader needs it."""
    wall_clock: WallClock

    # ── what leaves ──────────────────────────────────────────────────────────────────────────────────────────────
    step: Step
    """The time, and the instructions of the present step."""
    store: StoreRequests
    """Store calls in flight, and the procedures that wait for them."""
    peer_requests: PeerRequests
    again: deque[Asked]
    """Requests that waited and are to be handled next, before any other event."""

    # ── timestamps ───────────────────────────────────────────────────────────────────────────────────────────────
    numbers: Numbers
    """Next timestamp, ceiling, LWM, newest start and newest fence, in memory that compiled code works on too."""
    clock: TimestampClock
    ceiling: CeilingMove
    windows: BeginWindows
    """All batches that are not released, with their windows of starts; a start comes from the oldest only (law 3)."""
    waiting_begins: WaitingBegins
    open_starts: OpenStarts
    """What clients may hold open; holds E back (T16)."""

    # ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────
    oracle: StatusOracle
    """LWM, conflict map, fences, refused starts, reported ids: what a commit is checked against."""
    tables: KnownTables
    """A commit is decided only if all its tables are decidable (K6)."""
    table_calls: TableCalls
    first_attempts: FirstAttempts
    """A retry is not handled while its first attempt waits (T7)."""
    pending: dict[int, PendingCommit]
    """The decided large commits whose record is not yet gone, by start; each holds W back (T12)."""
    finished: dict[int, tuple[frozenset[int], float]]
    """start → (branches, when the large commit ended), in the order of their ends; for retries."""
    lost_jobs: set[int]
    """Leased starts of which a report was answered with a conflict; each counts as one abort."""
    rare_starts: RareStarts = field(init=False)
    """Starts whose commits compiled code must leave to the machine: refused starts, and starts of large commits."""

    # ── what holds W back ────────────────────────────────────────────────────────────────────────────────────────
    leases: Leases
    """A lease holds W back from its grant until its row is durably deleted (law 9)."""
    watermarks: Watermarks

    @property
    def newest_start(self) -> int:
        return self.numbers.newest_start

    @newest_start.setter
    def newest_start(self, start_ts: int) -> None:
        self.numbers.newest_start = start_ts

    @property
    def fenced_ts(self) -> int:
        return self.numbers.fenced_ts

    @fenced_ts.setter
    def fenced_ts(self, fence_ts: int) -> None:
        self.numbers.fenced_ts = fence_ts

    def __post_init__(self) -> None:
        self.rare_starts = RareStarts(self._all_rare_starts)

    def _all_rare_starts(self) -> Iterable[int]:
        return chain(self.oracle.refused_starts, self.pending, self.finished)


def state_after(
    settings: TsoSettings,
    taken_over: TakenOver,
    *,
    now_s: float,
    known_tables: Iterable[int] = (),
    conflict_map: ConflictMap | None = None,
) -> TsoState:
    """Return the state of a TSO that has just taken over."""
    epoch = taken_over.epoch
    window = min(settings.window_starts, STARTS_AHEAD) * TIMESTAMP_STEP
    numbers = Numbers(next_ts=epoch + TIMESTAMP_STEP, ceiling=taken_over.ceiling, newest_start=epoch)
    clock = TimestampClock(
        numbers,
        max(settings.ceiling_step, 8 * window),
        max(settings.ceiling_renew_remaining, 4 * window),
    )
    step = Step(now_s)
    store = StoreRequests(step, epoch, retry_s=settings.store_retry_s)
    conflict_map = conflict_map or BucketMap(settings.conflict_map_entries)
    return TsoState(
        settings=settings,
        epoch=epoch,
        retention_s=taken_over.retention_s,
        wall_clock=WallClock(now_s, taken_over.wall_ns),
        step=step,
        store=store,
        peer_requests=PeerRequests(store.run, at_once_max=PEER_REQUESTS_MAX),
        again=deque(),
        numbers=numbers,
        clock=clock,
        ceiling=CeilingMove(),
        windows=BeginWindows(clock, window_starts=settings.window_starts),
        waiting_begins=WaitingBegins(),
        open_starts=OpenStarts(),
        oracle=StatusOracle(conflict_map, epoch=epoch, reported_ids_max=settings.reported_ids_max, numbers=numbers),
        tables=KnownTables(known_tables),
        table_calls=TableCalls(now_s),
        first_attempts=FirstAttempts(),
        pending={},
        finished={record.start_ts: (frozenset(record.branches), now_s) for record in taken_over.finished},
        lost_jobs=set(),
        leases=Leases(taken_over.leases, term_s=settings.lease_seconds, now_s=now_s),
        watermarks=Watermarks(
            published=taken_over.watermark,
            sent=taken_over.watermark,
            decided=epoch,
            horizon=taken_over.horizon,
            ended=epoch,
            durable_ended=epoch,
            drawn_start=epoch,
            now_s=now_s,
        ),
    )
