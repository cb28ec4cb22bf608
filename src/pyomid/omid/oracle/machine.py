"""The whole TSO as a pure machine: events in, instructions out (protocol.md; hazards.md T1 … T20).

    handle([request of a peer, store call ended, …], now) → [reply, store call, …, or die]

The machine returns a reply only when everything it promises is durable. So a driver may perform instructions in any
order, and any number of store calls at once. Each call passes the time; `handle([])` is a tick. After a stall the
machine holds all replies until it has read the leader state (T4).

    begin ───────────► `begins`         answered from the window of the oldest batch
    commit ──────────► `commits`        `status_oracle` ─► open batch ─► Flush, then epoch ─► released ─► answered
      unknown table    `tables`         catalog read, a durable mark, then decided; fences too
      of branches      `commits`        a batch of its own, and a record for the next TSO; ids reported before
      retry, seal      `outcomes`       refused from now on ─► after its batch ─► look up, seal ─► answered
    lease ───────────► `leases`         holds W back ─► row durable ─► answered
    open starts ─────► `watermarks`     the oldest start that a client may still use holds W back
    horizon ─────────► `watermarks`     LWM, W and H

A step (`outgoing.Step`) is one call of `handle`. A request that takes several store calls is a *procedure*
(`outgoing`).

A chunk oracle (`chunk_oracle`) may decide common begins and commits for the machine, while `may_decide_fast`
is true. The driver calls `handle([], now)` before each chunk, to pass the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from pyomid.config import DURATION_S_MAX
from pyomid.errors import Misuse
from pyomid.omid.oracle.begins import STARTS_AHEAD, Begins, BeginWindows, Ceiling, TimestampClock
from pyomid.omid.oracle.commits import Commits, LargeCommits
from pyomid.omid.oracle.instructions import (
    Event,
    Instruction,
    LeaseRenewed,
    MachineReport,
    PeerGone,
    ReadEpoch,
    RequestCame,
    StoreDone,
    StoreFailed,
)
from pyomid.omid.oracle.leases import LeaseRequests, Leases
from pyomid.omid.oracle.outcomes import FirstAttempts, Retries
from pyomid.omid.oracle.outgoing import Death, PeerRequests, Step, StoreRequests
from pyomid.omid.oracle.status_oracle import BucketMap, ConflictMap, RareStarts, StatusOracle
from pyomid.omid.oracle.tables import KnownTables, TableRequests
from pyomid.omid.oracle.takeover import TakenOver
from pyomid.omid.oracle.watermarks import OpenStarts, Watermarks
from pyomid.omid.wire.messages import (
    AdvanceHorizon,
    AskStatus,
    Begin,
    EndLease,
    Fence,
    GrantLease,
    RenewLease,
    ReportIds,
    ReportOpenStarts,
    Request,
    Seal,
)
from pyomid.protocol.timestamps import AHEAD_MS, NS_PER_MS, REFUSED_MS
from pyomid.protocol.wall_clock import WallClock
from pyomid.types import TABLE_CONFLICTS, TIMESTAMP_STEP, CommitRequest, PendingCommit, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TsoSettings:
    """The settings of a TSO, in seconds unless a name says otherwise."""

    conflict_map_entries: int = 1 << 20
    window_starts: int = 4096
    """Starts below each batch, if so much time has passed: more than clients take during one flush."""
    batch_entries_max: int = 16_384
    flushes_in_flight_max: int = 2
    """Flushes in flight at once."""
    max_transaction_age_s: float = 600.0
    open_starts_interval_s: float = 2.0
    """How often E and LWM rise to just below the oldest open start."""
    retention_s: float | None = None
    """How long history is kept. None: as long as the leader state says, which has the last value given."""
    lease_seconds: float = 300.0
    """Term of a lease whose request names none."""
    watermark_interval_s: float = 1.0
    """W is published at most this often."""
    tables_interval_s: float = 5.0
    """How often the list of registered tables is read again."""
    commit_retry_s: float = 600.0
    """How long the branches of an answered large commit are remembered for its retries."""
    store_retry_s: float = 30.0
    """How long a failing store call is retried; then its request is refused, or the process ends if more depends on
    it."""
    stall_s_max: float = 1.0
    """A longer gap between two events is a stall: the TSO reads the leader state before it replies (T4)."""
    ceiling_step: int = 1_000_000_000
    """Timestamps made usable by one durable write. A new TSO waits until its wall clock has passed them: at most so
    many nanoseconds, less than a lease."""
    ceiling_renew_remaining: int = 500_000_000
    accept_clock: bool = False
    """A person has confirmed that the wall clock is right (`wall_clock.check_clock`)."""
    ceiling_elsewhere: bool = False
    write_set_fraction_max: float = 0.25
    """The largest write set, as a fraction of the conflict map: a larger one would evict the entries of all others."""
    reported_ids_max: int = 16_000_000
    """Reported ids that are kept beside the conflict map, 8 bytes each."""
    unknown_tables_max: int = 1000
    """Tables missing from the catalog that the TSO remembers. Each is durably marked when a commit names it (K6)."""
    leases_max: int = 10_000
    """Live leases. All of them are in the leader state, which is written as a whole."""
    refused_starts_max: int = 100_000
    """Starts above D that were sealed or named by a retry. They are forgotten when D passes them."""

    def __post_init__(self) -> None:
        for name in (
            "conflict_map_entries",
            "window_starts",
            "batch_entries_max",
            "flushes_in_flight_max",
            "ceiling_step",
        ):
            self._check(name, 1)
        for name in ("max_transaction_age_s", "lease_seconds", "stall_s_max"):
            self._check(name, 0.001)
        for name in (
            "unknown_tables_max",
            "leases_max",
            "refused_starts_max",
            "reported_ids_max",
        ):
            self._check(name, 0)
        for name in (
            "commit_retry_s",
            "store_retry_s",
            "watermark_interval_s",
            "tables_interval_s",
            "open_starts_interval_s",
        ):
            self._check(name, 0)

        if self.retention_s is not None:
            self._check("retention_s", 0)
            if self.retention_s > DURATION_S_MAX:
                raise Misuse(f"the TSO's retention_s is {self.retention_s}: at most a hundred years")

    def _check(self, name: str, lowest: float) -> None:
        value = getattr(self, name)
        if not lowest <= value < float("inf"):
            raise Misuse(f"the TSO's {name} is {value}: it must be {lowest} or more", name=name, value=value)

    @property
    def write_set_ids_max(self) -> int:
        return max(1, int(self.conflict_map_entries * self.write_set_fraction_max))


TIMERS_S: Final = 0.002
"""Leases, ages and intervals are checked this often, not with every request."""

TABLES_SHOWN_MAX: Final = 20
"""A status lists the conflicts of at most this many tables."""
PEER_REQUESTS_MAX: Final = 4
"""Seals, retries, large commits and sanitizings of one peer that run at once."""


class TsoMachine:
    """One TSO, from the end of its takeover to its end. Not thread-safe.

    It holds the whole state of the TSO: each part has a reference to it, and uses the other parts through it. A driver
    uses the methods and properties below; the parts are private to `oracle` (`tests/core/test_machine_view.py`).
    """

    def __init__(
        self,
        settings: TsoSettings,
        taken_over: TakenOver,
        *,
        now_s: float,
        known_tables: Iterable[int] = (),
        conflict_map: ConflictMap | None = None,
    ) -> None:
        self.settings = settings
        self.epoch = epoch = taken_over.epoch
        self.database_id = b""
        """Sent in handshakes, unless empty."""
        self.serve_until_s = float("inf")
        """The end of the TSO's own lease. A driver may set it before each step."""
        self.dead = False
        self._timers_due_s = now_s
        self._stalled_in_doubt = False
        """Another stall was noticed after the read of the leader state began."""
        self.step = Step(now_s)
        self.store = StoreRequests(self.step, epoch, retry_s=settings.store_retry_s)
        self.peer_requests = PeerRequests(self.store.run, at_once_max=PEER_REQUESTS_MAX)
        window = min(settings.window_starts, STARTS_AHEAD) * TIMESTAMP_STEP
        self.clock = TimestampClock(
            epoch + TIMESTAMP_STEP,
            taken_over.ceiling,
            max(settings.ceiling_step, 8 * window),
            max(settings.ceiling_renew_remaining, 4 * window),
        )
        conflict_map = conflict_map or BucketMap(settings.conflict_map_entries)
        self.oracle = StatusOracle(conflict_map, epoch=epoch, reported_ids_max=settings.reported_ids_max)
        self.windows = BeginWindows(self.clock, window_starts=settings.window_starts)
        self.rare_starts = RareStarts(self._all_rare_starts)
        """Starts whose commits compiled code must leave to `handle`: refused starts, and starts of large commits."""
        self.pending: dict[int, PendingCommit] = {}
        """The decided large commits whose record is not yet gone, by start."""
        self.leases = Leases(taken_over.leases, term_s=settings.lease_seconds, now_s=now_s)
        self.tables = KnownTables(known_tables)
        self.open_starts = OpenStarts()
        self.begins = Begins(self)
        self.ceiling = Ceiling(self)
        self.retention_s: Final = taken_over.retention_s
        """How long history is kept (T17); 0: only while a reader needs it."""
        self.wall_clock = WallClock(now_s, taken_over.wall_ns)
        self.watermarks = Watermarks(self, taken_over)
        self.commits = Commits(self)
        self.large = LargeCommits(self, taken_over)
        self.first_attempts = FirstAttempts(self)
        self.retries = Retries(self)
        self.table_requests = TableRequests(self)
        self.lease_requests = LeaseRequests(self)

    def _all_rare_starts(self) -> Iterable[int]:
        return chain(self.oracle.refused_starts, self.pending, self.large.finished)

    # ── a step ───────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, events: Iterable[Event], now_s: float, wall_ns: int = 0) -> list[Instruction]:
        """Return the instructions of one step. `now_s` is monotonic and counts suspension. `wall_ns`: nanoseconds
        since 1970; 0: not known.

        After a `Die` or an exception every further call returns nothing, because the state is unknown.
        """
        if self.dead:
            return []
        try:
            self._notice_time(now_s, wall_ns)
            for event in events:
                self._dispatch(event)
            self._start_what_is_due()
        except Death as death:
            self._die(death)
        except BaseException:
            self.dead = True
            raise
        return self.step.take_instructions()

    def _die(self, death: Death) -> None:
        self.dead = True
        self.step.die(str(death))

    def _dispatch(self, event: Event) -> None:
        match event:
            case RequestCame(peer, tag, request):
                self.take_request(peer, tag, request)
            case StoreDone(token, result):
                self.store.done(token, result)
            case StoreFailed(token, error):
                self.store.failed(token, error)
            case PeerGone(peer):
                self.begins.waiting.forget(peer)
                self.peer_requests.forget(peer)
                self.ceiling.forget(peer)
                self.first_attempts.forget(peer)
                self.open_starts.gone(peer)
            case LeaseRenewed(until_s):
                self.serve_until_s = until_s

    def take_request(self, peer: Hashable, tag: int, request: Request) -> None:
        match request:
            case Begin(not_before):
                self.begins.ask(peer, tag, not_before)
            case CommitRequest():
                self.take_commit(peer, tag, request)
            case Fence(table_id):
                self.table_requests.fence(peer, tag, table_id)
            case GrantLease():
                self.lease_requests.grant(peer, tag, request)
            case RenewLease(start_ts):
                self.lease_requests.renew(peer, tag, start_ts)
            case EndLease(start_ts, shared):
                self.lease_requests.end(peer, tag, start_ts, shared)
            case Seal(starts):
                self.retries.seal(peer, tag, starts)
            case ReportIds():
                self.large.report_ids(peer, tag, request)
            case ReportOpenStarts():
                self.open_starts.report(peer, request, self.begins.newest_start)
            case AdvanceHorizon(horizon):
                self.peer_requests.ask(peer, self.watermarks.advance_horizon(peer, tag, horizon))
            case AskStatus():
                self.step.reply(peer, tag, self.status())

    def take_commit(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        error = self.commits.malformed(request)
        if error is not None:
            self.step.refuse(peer, tag, error)
        elif request.is_retry or self.large.knows(request.start_ts):
            self.peer_requests.ask(peer, self.retries.retry(peer, tag, request))
        elif not self.tables.decidable.issuperset(request.table_ids):
            self.table_requests.decide_later(peer, tag, request)
        elif request.is_large:
            self.first_attempts.wait(request)
            dropped = partial(self.first_attempts.end_wait, request)
            self.peer_requests.ask(peer, self._large_commit(peer, tag, request), dropped)
        elif (answer := self.commits.decide(peer, tag, request)) is not None:
            self.step.reply(peer, tag, answer)

    async def _large_commit(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        """Decide a large commit. Only a few of each peer run at once: each is a batch of its own, and every begin waits
        for the oldest batch. So the conditions are checked again here: the request may have waited."""
        self.first_attempts.end_wait(request)
        if self.large.knows(request.start_ts):
            await self.retries.retry(peer, tag, request)
        elif not self.tables.decidable.issuperset(request.table_ids):
            self.table_requests.decide_later(peer, tag, request)
        else:
            await self.large.commit(peer, tag, request)

    def _start_what_is_due(self) -> None:
        """Start the work that the events made possible. Nothing here waits for more events."""
        self.peer_requests.start_due()
        self.first_attempts.take_due()
        self.ceiling.renew()
        self.begins.answer_waiting()
        self.commits.start_flushes()
        self.store.start_epoch_write()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _notice_time(self, now_s: float, wall_ns: int) -> None:
        step = self.step
        if now_s - step.now_s > self.settings.stall_s_max:
            self._notice_stall()
        if now_s > step.now_s:
            step.now_s = now_s
        self._check_own_lease()
        self.notice_wall_clock(now_s, wall_ns)
        if step.now_s >= self._timers_due_s:
            self._timers_due_s = step.now_s + TIMERS_S
            self.lease_requests.expire()
            self.large.forget_unleased()
            self.watermarks.run_timers()
            self.table_requests.read_if_due()

    def _notice_stall(self) -> None:
        """T4: a TSO that stalled may have been replaced. Replies are held until the leader state has been read."""
        self.step.counters["stalls"] += 1
        self._stalled_in_doubt = self.step.in_doubt
        if not self.step.in_doubt:
            self.step.in_doubt = True
            self.store.call(ReadEpoch(), self._end_doubt)

    def _end_doubt(self, epoch: int) -> None:
        """T4: a leader state that may have been read before the newest stall does not end the doubt."""
        self.store.check_epoch(epoch)
        if self._stalled_in_doubt:
            self._stalled_in_doubt = False
            self.store.call(ReadEpoch(), self._end_doubt)
        else:
            self.step.end_doubt()

    def _check_own_lease(self) -> None:
        """Begins do not use the store: only the leader's own lease fences them."""
        if self.step.now_s >= self.serve_until_s:
            raise Death(f"the leader's lease ended {self.step.now_s - self.serve_until_s:.3f} s ago")

    def notice_wall_clock(self, now_s: float, wall_ns: int) -> None:
        """Raise the clock to the wall clock. A driver may call it between steps, before a chunk."""
        self.wall_clock.read(now_s, wall_ns, self.clock.next_ts)
        self.step.wall_ns = self.wall_clock.ns
        self.windows.follow(self.step.wall_ns, is_moving=self.ceiling.is_moving)

    # ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def may_decide_fast(self) -> bool:
        """Whether a chunk oracle may decide now: not in doubt, and no request waits for the ceiling."""
        return not (self.dead or self.step.in_doubt or self.ceiling.waiting)

    def absorb(self, *, newest_start: int, low_watermark: int) -> None:
        """Take over what compiled code decided. Its timestamps and windows are set already, and its entries are in the
        open batch's block. Call `handle` soon after, to flush the batch."""
        self.begins.newest_start = newest_start
        self.oracle.raise_low_watermark(low_watermark)

    # ── for the driver ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_quiet(self) -> bool:
        """Whether the process may exit: no decided commit waits for its answer, and no store call is in flight."""
        return self.store.is_idle and self.windows.is_idle

    def count(self, name: str) -> None:
        """Add one to a counter of the driver's own, kept among the machine's."""
        self.step.counters[name] += 1

    def note_longest(self, name: str, value: int) -> None:
        """Raise a maximum of the driver's own, kept among the machine's counters."""
        self.step.counters[name] = max(self.step.counters[name], value)

    @property
    def longest_retry_s(self) -> float:
        """The longest time for which a client announced to retry a commit. Thread-safe."""
        return self.step.counters.get("commit_retry_ms_max", 0) / 1000

    def report(self) -> MachineReport:
        conflict_map = self.oracle.conflict_map
        held, holder = self.watermarks.holder()
        return MachineReport(
            epoch=self.epoch,
            last_ts=max(self.begins.newest_start, self.windows.closed_ts),
            low_watermark=self.oracle.low_watermark,
            watermark=self.watermarks.published,
            horizon=self.watermarks.horizon,
            leases=len(self.leases),
            pending=len(self.pending),
            in_flight=sum(batch.size for batch in self.windows.batches),
            conflict_map_entries=conflict_map.entries,
            conflict_map_entries_max=conflict_map.entries_max,
            retention_s=self.retention_s,
            counters=self.step.counters,
            watermark_held=held,
            watermark_holder=holder,
        )

    def status(self) -> Status:
        """The status for operators."""
        report = self.report()
        count = report.counters
        return Status(
            epoch=report.epoch,
            last_ts=report.last_ts,
            low_watermark=report.low_watermark,
            watermark=report.watermark,
            horizon=report.horizon,
            leases=self.leases.starts,
            pending=tuple(sorted(self.pending)),
            in_flight=report.in_flight,
            counters=dict(count)
            | ({"retention_ms": round(report.retention_s * 1000)} if report.retention_s else {})
            | self.clock_trouble()
            | self._conflicts_by_table(),
            held_back_by=self.watermarks.held_back_by,
        )

    def clock_trouble(self) -> dict[str, int]:
        """Counters for `timestamps.clock_trouble`; empty: the wall clock is as it should be. Thread-safe."""
        ahead_ns = self.clock.next_ts - self.step.wall_ns if self.step.wall_ns else 0
        found = {
            AHEAD_MS: ahead_ns // NS_PER_MS if ahead_ns > 2 * self.clock.step else 0,
            REFUSED_MS: self.wall_clock.refused_ns // NS_PER_MS,
        }
        return {name: value for name, value in found.items() if value}

    def _conflicts_by_table(self) -> dict[str, int]:
        """The counts of the tables with most conflicts."""
        found = sorted(self.oracle.table_conflicts.items(), key=lambda each: -each[1])
        return {f"{TABLE_CONFLICTS}{table_id}": count for table_id, count in found[:TABLES_SHOWN_MAX]}

    def validate(self) -> None:
        """Check the invariants that hold after every step."""
        self.step.validate()
        self.windows.validate()
        self.watermarks.validate()
        self.large.validate()
        assert self.begins.newest_start <= self.clock.last_issued, "starts lie below the clock"
        assert self.windows.flushes_in_flight <= self.settings.flushes_in_flight_max
        assert self.oracle.low_watermark >= self.epoch
        assert self.tables.decidable == self.tables.registered | self.tables.marked
