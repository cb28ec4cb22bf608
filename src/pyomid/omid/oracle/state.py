"""The whole state of a TSO, in one record. Its parts (`windows` … `outgoing`) know nothing of this record.

The functions of `begins`, `commits`, `large_commits`, `table_requests`, `lease_requests`, `outcomes`, `watermarks` and
`ceiling` take this record as their first argument; `machine` calls them, one event at a time.

    in memory only       windows, waiting begins, conflict map, fences, refused starts, open starts
    also durable         ceiling, leases, pending large commits, W, H (some change here before they are durable)
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
"""How many seals, retries, large commits and sanitizings of one peer run at once."""

Asked = tuple[Hashable, int, Request]
"""A request that waits: its peer, its tag, and the request itself."""


@dataclass(slots=True)
class Watermarks:
    """The watermarks H ≤ W ≤ D ≤ E ≤ LWM (`watermarks`). The status oracle keeps LWM itself."""

    published: int
    """The durable W."""
    sent: int
    """The highest W sent to the store. It may be durable already, although the store has not replied (T12)."""
    decided: int
    """D, which never goes back. A lease at or below D is a reader's and holds back W alone."""
    horizon: int
    """H. It is raised here before it is durable, so that no outcome below it is reported meanwhile (R4)."""
    ended: int
    """E."""
    durable_ended: int
    """The highest E such that every commit decided before E rose to it is durable (law 4)."""
    drawn_start: int
    """The last start that the TSO drew for itself while it was idle."""
    now_s: float
    """When the TSO took over; its timers begin then."""
    rises: deque[tuple[int, int]] = field(default_factory=deque)
    """Pairs (E, batch), ascending: W may follow this E once the batch is released."""
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    """Pairs (time, the newest start at that time), for some times of the last `max_transaction_age_s`."""
    aged_start: int = 0
    """The start that was the newest one `max_transaction_age_s` ago."""
    needs_start: bool = False
    """True if a start is to be drawn above the last commits, but no window has one."""
    open_held: Held | None = None
    """The connection that held E back at the last rise, if any."""
    held_back_by: str = ""
    """The client whose open start held E back at the last rise, as text for operators; empty if none did."""
    held_bound: int = 0
    """The bound of that client. It has not changed since `held_since_s`."""
    held_since_s: float = field(init=False)
    publish_due_s: float = field(init=False)
    open_due_s: float = field(init=False)
    sampled_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.held_since_s = self.publish_due_s = self.open_due_s = self.sampled_s = self.now_s


@dataclass(slots=True)
class CeilingMove:
    """The move of the durable ceiling. The ceiling itself belongs to the clock (law 8)."""

    is_moving: bool = False
    moved_for: tuple[int, int] = (0, 0)
    """What had been handed out when the ceiling moved last: (newest start, end of the closed batches)."""
    waiting: deque[Asked] = field(default_factory=deque)
    """Requests that wait because no timestamp is left below the ceiling."""


@dataclass(slots=True)
class TableCalls:
    """The catalog reads and marks in flight, and the requests that wait for them (K6)."""

    read_due_s: float
    waiting: list[tuple[Hashable, int, CommitRequest]] = field(default_factory=list)
    """Commits that wait because they name a table that is not decidable."""
    is_looking_up: bool = False
    is_reading: bool = False
    marking: int | None = None
    """The table whose mark is being put. Its fences wait, because the mark must be durable before the sender of a fence
    removes it."""
    fences_behind_mark: list[tuple[Hashable, int, int]] = field(default_factory=list)
    """The fences that wait for the mark: (peer, tag, table id)."""


@dataclass(slots=True)
class TsoState:
    """The state of one TSO. Each field says which rule it obeys. Apart from a few flags of the machine, nothing else in
    `oracle` holds state."""

    settings: TsoSettings
    epoch: int
    """The epoch, which the leader state holds while this TSO leads. Every start of this TSO is above it; every start of
    an earlier TSO is at or below it."""
    retention_s: float
    """How long history is kept (T17). 0 means only as long as a reader needs it."""
    wall_clock: WallClock

    # ── what leaves ──────────────────────────────────────────────────────────────────────────────────────────────
    step: Step
    """The time and the instructions of the current step."""
    store: StoreRequests
    """Store calls in flight, and the procedures that wait for them."""
    peer_requests: PeerRequests
    again: deque[Asked]
    """Requests whose wait has ended. The machine handles them before any other event."""

    # ── timestamps ───────────────────────────────────────────────────────────────────────────────────────────────
    numbers: Numbers
    """Next timestamp, ceiling, LWM, newest start and newest fence, in memory that compiled code works on too."""
    clock: TimestampClock
    ceiling: CeilingMove
    windows: BeginWindows
    """All unreleased batches with their windows of starts. A start comes from the window of the oldest batch only (law
    3)."""
    waiting_begins: WaitingBegins
    open_starts: OpenStarts
    """The starts that clients may hold open; they hold back E (T16)."""

    # ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────
    oracle: StatusOracle
    """What a commit is checked against: LWM, conflict map, fences, refused starts and reported ids."""
    tables: KnownTables
    """The tables that the TSO knows. A commit is decided only if all its tables are decidable (K6)."""
    table_calls: TableCalls
    first_attempts: FirstAttempts
    """Commits that wait for their decision. A retry is not handled while its first attempt waits (T7)."""
    pending: dict[int, PendingCommit]
    """The decided large commits whose record is not yet gone, by start. Each holds back W (T12)."""
    finished: dict[int, tuple[frozenset[int], float]]
    """start → (branches, end time) of finished large commits, in the order of their ends. Retries are compared with
    it."""
    lost_jobs: set[int]
    """Leased starts with a report that was answered with a conflict. Each start counts as one abort."""
    rare_starts: RareStarts = field(init=False)
    """Starts whose commits compiled code must leave to the machine: refused starts and the starts of large commits."""

    # ── what holds W back ────────────────────────────────────────────────────────────────────────────────────────
    leases: Leases
    """The leases. Each holds back W from its grant until its row is durably deleted (law 9)."""
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
