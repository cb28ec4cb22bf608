"""The whole TSO as a pure machine: events in, instructions out (protocol.md; hazards.md T1 … T15).

    handle([request of a peer, store call ended, …], now) → [reply, store call, …, or die]

A reply is only put out when everything it promises is durable, so a driver performs instructions in any order and
as many store calls at once as it likes. Time comes in with each call; `handle([])` is a tick.

    begin ───────────────────────────────────────────────► answered from the window of the oldest batch
    commit ─► tables known? ─► oracle ─► open batch ─► Flush, then epoch ─► released in order ─► answered
    large  ─► oracle ─► a batch of its own ─► pending record ─► PutDecision ─► PutBranches ─► released ─► answered
                                                                                 └► record and lease removed
    retry  ─► refused from now on ─► after its batch ─► look up ─► seal ─► answered
    seal   ─► refused from now on ─► after its batch ─► seal in the table ─► answered
    lease  ─► holds W back ─► row durable ─► answered

What takes several store calls is a *procedure* (`store_work`).

Plain begins, commits and completions may be taken in chunks, by an oracle beside the machine (`oracle.chunk_oracle`):
before each chunk `handle([], now)` for time, and only while `may_decide_fast` says so (not in doubt, nothing stalled).
What it decides goes by `decide_plain`, or by the same rules compiled.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Misuse, OmidError, OutcomeUnknown, SnapshotTooOld, Unavailable
from pyomid.oracle.completions import Completions, Starts
from pyomid.oracle.conflict_map import BucketMap, ConflictMap
from pyomid.oracle.instructions import (
    DeleteBelow,
    DeleteEntries,
    Die,
    EncodedReplies,
    Event,
    Flush,
    Flushed,
    Instruction,
    LeaseRenewed,
    LookupEntries,
    MarkUnknownTable,
    MoveCeiling,
    PeerGone,
    PutBranches,
    PutDecision,
    ReadEpoch,
    ReadTables,
    Reply,
    RequestCame,
    SealEntries,
    SendEncoded,
    StoreCall,
    StoreDone,
    StoreFailed,
    StoreOperation,
)
from pyomid.oracle.known_tables import KnownTables
from pyomid.oracle.leases import Leases, LeaseState
from pyomid.oracle.peer_requests import PeerWork
from pyomid.oracle.rare_starts import RareStarts
from pyomid.oracle.settings import TsoSettings
from pyomid.oracle.status_oracle import Conflict, StatusOracle
from pyomid.oracle.store_requests import AfterBatch, Death, EpochWrite, Procedure, StoreWork
from pyomid.oracle.takeover import TakenOver
from pyomid.oracle.timestamps import TimestampClock
from pyomid.oracle.waiting_begins import WaitingBegin, WaitingBegins
from pyomid.oracle.windows import Batch, BatchState, BeginWindows
from pyomid.protocol.retention import NewestEntries
from pyomid.types import (
    NOT_FOUND,
    SEALED,
    TIMESTAMP_MAX,
    TIMESTAMP_STEP,
    AbortReason,
    BeginReply,
    CommitReply,
    CommitRequest,
    LeaderStateChanges,
    PendingCommit,
    SealOutcome,
    Status,
    WriteSetLevel,
)
from pyomid.wire.messages import (
    TABLE_IDS_MAX,
    AdvanceHorizon,
    Answer,
    AskStatus,
    Begin,
    Complete,
    Done,
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    HorizonReply,
    LeaseReply,
    Refused,
    RenewLease,
    Request,
    Seal,
    SealReply,
)


class Rare(Enum):
    RARE = auto()


RARE: Final = Rare.RARE
"""A request that is not decided at once: for `handle`."""

TIMERS_S: Final = 0.002
"""Leases, ages and intervals are looked at this often, not with every request."""

AGE_SAMPLES: Final = 16
"""Samples of the newest start per `max_transaction_age_s`: LWM by age lags at most a sixteenth of it."""

FLIGHTS_RATIO_MAX: Final = 2
"""A flush goes beside another one that is at most so many times as large."""


PEER_WORK_MAX: Final = 4
"""Seals, retries and sanitisings of one peer under way at once."""

SEALS_A_CALL: Final = 128
DELETES_A_CALL: Final = 2048
"""A flush waits for the store's call before it: some milliseconds of an LMDB transaction."""

BRANCHES_A_CALL: Final = 2048
"""Entries of a large commit's branches: a flush waits for the store's call before it."""

LARGE_REMEMBERED_MAX: Final = 10_000
"""Large commits whose branches are kept for a retry to be matched with; without them it goes by the commit table."""

COMPLETIONS_A_REQUEST: Final = 65_536
"""Those beyond are left to the sanitiser."""

FENCED_TABLES_MAX: Final = 65_536
"""Tables fenced above W: the fence of each is remembered until W has passed it. A drop needs three."""

BEGINS_A_STEP: Final = 256
"""Waiting begins answered by one step: a few milliseconds' work."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """A decided commit's reply, sent when its batch is released: "aborted" if a mark refused its entry."""

    peer: Hashable
    tag: int
    start_ts: int
    commit_ts: int


@dataclass(slots=True)
class _Ages:
    """The newest start as it was some time ago: what LWM by age goes by."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    aged_start: int = 0


class TsoMachine:
    """One TSO's life, from the end of its take-over to its death. Not thread-safe."""

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
        self.epoch = taken_over.epoch
        window = settings.window_starts * TIMESTAMP_STEP
        self.clock = TimestampClock(
            self.epoch + TIMESTAMP_STEP,
            taken_over.ceiling,
            max(settings.ceiling_step, 4 * window),
            max(settings.ceiling_renew_remaining, 2 * window),
        )
        self.oracle = StatusOracle(conflict_map or BucketMap(settings.conflict_map_entries), epoch=self.epoch)
        self.windows = BeginWindows(self.clock, window_starts=settings.window_starts)
        self.leases = Leases(taken_over.leases, term_s=settings.lease_term_s, now_s=now_s)
        self.large: dict[int, PendingCommit] = {}
        """Decided large commits whose pending record is not yet gone: W stays below them (T12)."""
        self.large_recently: dict[int, tuple[frozenset[int], float]] = {
            record.start_ts: (frozenset(record.branches), now_s) for record in taken_over.finished
        }
        self.newest_start = self.epoch
        """The newest start handed out; starts leave in order."""
        self.watermark = self.watermark_sent = taken_over.watermark
        self.horizon = taken_over.horizon
        self.fenced_ts = 0
        """The newest fence that was asked for: told with each start from then on (`protocol.rule_age`)."""
        self.refused_starts: set[int] = set()
        """Sealed, or asked for by a retry: never to be decided."""
        self.rare_starts = RareStarts(self._all_rare_starts)
        """Whose commits a kernel must leave to `handle`: sealed ones, and those of large commits."""
        self.tables = KnownTables(known_tables)
        self._fenced: set[int] = set()
        """Tables that a peer fenced, W has not passed it yet."""
        self.database_id = b""
        """Told in handshakes; empty: not told."""
        self.counters: Counter[str] = Counter()
        self.serve_until_s = float("inf")
        self.dead = False
        self._settled_low_watermark = self.epoch
        self._movers: deque[tuple[int, int]] = deque()
        self._ages = _Ages()
        self._aged_at_s = now_s
        self._issued_when_aged = self.clock.next_ts
        self._timers_due_s = self._watermark_due_s = self._tables_due_s = now_s
        self._waiting = WaitingBegins()
        self.has_more_begins = False
        """The last step ended before all were answered that could be: another one goes on, soon."""
        self._stalled: deque[tuple[Hashable, int, Request]] = deque()
        self._introducing = False
        self._newcomers: list[tuple[Hashable, int, CommitRequest]] = []
        """Commits that name a table which is not settled."""
        self._marking: int | None = None
        self._fences_behind_mark: list[tuple[Hashable, int, Fence]] = []
        self._work = StoreWork(
            self.epoch, retry_s=settings.store_retry_s, counters=self.counters, put_out=self._put_out
        )
        self._peer_work = PeerWork(self._work.run, at_once_max=PEER_WORK_MAX)
        self._newest_entries = NewestEntries(settings.entries_kept_max)
        self._forgetting = False
        self._completions = Completions(settings.completions_max)
        self._moving_ceiling = False
        self._reading_tables = False
        self._in_doubt = False
        self._held: list[Reply | SendEncoded] = []
        self._out: list[Instruction] = []
        self.now_s = now_s
        self.wall_ms = 0

    # ── events in, instructions out ──────────────────────────────────────────────────────────────────────────────

    def handle(self, events: Iterable[Event], now_s: float, wall_ms: int = 0) -> list[Instruction]:
        """One step. `now_s` is monotonic and counts suspension; `wall_ms` is used in WORLD_TIME mode only.

        After a `Die` every further call returns nothing.
        """
        if self.dead:
            return []
        try:
            self._notice_time(now_s, wall_ms)
            for event in events:
                self._dispatch(event)
            self._settle()
        except Death as death:
            self._end_life(death)
        out, self._out = self._out, []
        return out

    def _end_life(self, death: Death) -> None:
        self.dead = True
        self._out = [Die(str(death))]

    def start_plain_flush(self, now_s: float) -> NDArray[np.int64] | None:
        """The one `Flush` that `handle([])` would put out now, as rows (start, commit), and no store call for it.

        For a driver that performs it at once, or whose disk does so in the background: it reads the epoch behind it,
        and calls `end_plain_flush`, or `give_up_plain_flush` if it failed. No other flush is under way meanwhile that
        was begun before it. None wherever more is due than this flush.
        """
        batch = self.windows.open_batch
        if (
            batch.block is None
            or not batch.block.count
            or batch.entries
            or batch.fenced
            or len(self.windows.batches) > 1
            or self.is_step_due(now_s)
        ):
            return None
        self.now_s = max(self.now_s, now_s)
        self.windows.close_open_batch().state = BatchState.IN_FLIGHT
        self.counters["flushes"] += 1
        return batch.block.entries

    def end_plain_flush(self, flushed: Flushed) -> list[Instruction]:
        """As `StoreDone` with the flush's result."""
        if self.dead:
            return []
        try:
            self._on_flushed(self.windows.head, flushed)
        except Death as death:
            self._end_life(death)
        out, self._out = self._out, []
        return out

    def give_up_plain_flush(self) -> None:
        """It failed: the next `handle` puts it out as a store call, with all that is done about one that fails."""
        self.windows.head.state = BatchState.CLOSED
        self.counters["flushes"] -= 1

    def is_step_due(self, now_s: float) -> bool:
        """Whether `handle([])` would do more now than flush what is in the open batch."""
        return bool(
            self.settings.world_time
            or now_s >= self._timers_due_s
            or now_s >= self.serve_until_s
            or not self.may_decide_fast
            or len(self._waiting)
            or self._work.awaits_release
            or self._completions.count
            or self.clock.wanted_ceiling() > self.clock.ceiling
        )

    @property
    def may_decide_fast(self) -> bool:
        """Whether a kernel may decide commits on its own now; begins too unless `begins_wait`."""
        return not (self.dead or self._in_doubt or self._stalled)

    @property
    def in_doubt(self) -> bool:
        """After a stall, until the leader state was read: no answer leaves, whoever gave it."""
        return self._in_doubt

    @property
    def begins_wait(self) -> bool:
        """Somebody waits for any start already: no other begin passes by."""
        return self._waiting.are_ready

    def _all_rare_starts(self) -> Iterable[int]:
        return chain(self.refused_starts, self.large, self.large_recently)

    def decide_plain(self, peer: Hashable, tag: int, request: Request) -> BeginReply | CommitReply | Rare | None:
        """A request of a chunk, in one go: its answer, or None where that comes with its batch, or never. Nothing
        changes where it is RARE: it has to wait, is refused with an error, or needs the store."""
        match request:
            case Begin(not_before):
                if self.begins_wait or not 0 <= not_before <= self.last_issued:
                    return RARE
                return self._take_begin(not_before) or RARE
            case CommitRequest():
                return RARE if self._is_rare_commit(request) else self._decide_at_once(peer, tag, request)
            case Complete(starts):
                taken = np.array(starts, dtype=np.int64)
                if len(taken) > COMPLETIONS_A_REQUEST or not self._are_issued_starts(taken).all():
                    return RARE
                self._on_complete(starts)
                return None
        return RARE

    def _is_rare_commit(self, request: CommitRequest) -> bool:
        return (
            request.is_retry
            or request.is_large
            or request.level is not WriteSetLevel.IDS
            or len(request.cell_ids) > self.settings.write_set_ids_max
            or self._malformed(request) is not None
            or self._was_large(request.start_ts)
            or request.start_ts in self.refused_starts
            or not self.tables.settled.issuperset(request.table_ids)
            or self.clock.next_ts + TIMESTAMP_STEP > self.clock.ceiling
        )

    def _decide_at_once(self, peer: Hashable, tag: int, request: CommitRequest) -> CommitReply | None:
        conflict = self._conflict(request)
        if conflict is not None:
            return self._aborted(request.start_ts, conflict)
        self._decide_ordinary(peer, tag, request)
        return None

    def absorb(
        self, *, newest_start: int, low_watermark: int, replies: EncodedReplies | None, completed: Starts | None = None
    ) -> None:
        """What a kernel decided: its timestamps and windows are set already, its entries in the open batch's block.

        `replies` are the answers of what it committed. Call `handle` soon after: the batch wants to be flushed.
        `completed`: starts that were handed out, as in a `Complete`.
        """
        self.newest_start = newest_start
        if completed is not None:
            self.counters["completions_left"] += self._completions.remember(completed)
        if replies is not None:
            self.windows.open_batch.answers.append(replies)
        if low_watermark > self.low_watermark:
            self.oracle.raise_low_watermark(low_watermark)
            self._lift_low_watermark()

    @property
    def is_quiet(self) -> bool:
        """Nothing decided waits for an answer and no store call is under way: the process may end."""
        return self._work.is_idle and self.windows.is_idle

    @property
    def low_watermark(self) -> int:
        return self.oracle.low_watermark

    @property
    def last_issued(self) -> int:
        """Every timestamp that anybody may have seen is at or below this."""
        return self.clock.next_ts - TIMESTAMP_STEP

    def status(self) -> Status:
        """What a person would ask."""
        return Status(
            epoch=self.epoch,
            last_ts=self.last_issued,
            low_watermark=self.low_watermark,
            watermark=self.watermark,
            horizon=self.horizon,
            leases=self.leases.starts,
            pending=tuple(sorted(self.large)),
            in_flight=sum(batch.size for batch in self.windows.batches),
            counters=dict(self.counters),
        )

    def _dispatch(self, event: Event) -> None:
        match event:
            case RequestCame(peer, tag, request):
                self._on_request(peer, tag, request)
            case StoreDone(token, result):
                self._work.done(token, result)
            case StoreFailed(token, error):
                self._work.failed(token, error, self.now_s)
            case PeerGone(peer):
                self._waiting.forget(peer)
                self._peer_work.forget(peer)
                if self._stalled:
                    self._stalled = deque(entry for entry in self._stalled if entry[0] != peer)
            case LeaseRenewed(until_s):
                self.serve_until_s = until_s

    def _on_request(self, peer: Hashable, tag: int, request: Request) -> None:
        match request:
            case Begin(not_before):
                self._on_begin(peer, tag, not_before)
            case CommitRequest():
                self._on_commit(peer, tag, request)
            case Fence(table_id):
                self._on_fence(peer, tag, table_id)
            case GrantLease():
                self._on_grant(peer, tag, request)
            case RenewLease(start_ts):
                self._on_renew(peer, tag, start_ts)
            case EndLease(start_ts, shared):
                self._on_end(peer, tag, start_ts, shared)
            case Seal(starts):
                self._on_seal(peer, tag, starts)
            case Complete(starts):
                self._on_complete(starts)
            case AdvanceHorizon(horizon):
                self._peer_work.ask(peer, self._advance_horizon_steps(peer, tag, horizon))
            case AskStatus():
                self._reply(peer, tag, self.status())

    def _settle(self) -> None:
        """After the events: what they made possible. Nothing here waits for more of them to come."""
        self._peer_work.start_due()
        self._renew_ceiling()
        self._answer_waiting_begins()
        self._start_flushes()
        self._start_completion()
        self._work.start_epoch_write()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _notice_time(self, now_s: float, wall_ms: int) -> None:
        self._notice_stall(now_s)
        self.now_s = max(self.now_s, now_s)
        self.wall_ms = wall_ms
        self._judge_own_lease()
        if self.settings.world_time:
            self.windows.renew_below(self.clock.lift(wall_ms))
        if self.now_s >= self._timers_due_s:
            self._timers_due_s = self.now_s + TIMERS_S
            self._run_timers()

    def _run_timers(self) -> None:
        """What is due by the clock alone."""
        self._expire_leases()
        self._age()
        self._publish_watermark()
        self._forget_entries()
        self._refresh_tables()

    def _notice_stall(self, now_s: float) -> None:
        """T4: whoever slept may have been replaced meanwhile. Replies are held until the leader state says no."""
        if now_s - self.now_s > self.settings.stall_s_max and not self._in_doubt:
            self._in_doubt = True
            self.counters["stalls"] += 1
            self._work.call(ReadEpoch(), self._end_doubt)

    def _end_doubt(self, epoch: int) -> None:
        self._check_epoch(epoch)
        self._in_doubt = False
        self._out.extend(self._held)
        self._held = []

    def _judge_own_lease(self) -> None:
        """Begins touch no store: only the leader's own lease fences them."""
        if self.now_s >= self.serve_until_s:
            raise Death(f"the leader's lease ended {self.now_s - self.serve_until_s:.3f} s ago")

    def _expire_leases(self) -> None:
        for start_ts in self.leases.expire(self.now_s):
            self.counters["leases_expired"] += 1
            self._work.run(self._remove_lease_steps(start_ts))

    def _age(self) -> None:
        """T15: LWM rises to the newest start handed out more than `max_transaction_age_s` ago, below every lease."""
        age_s = self.settings.max_transaction_age_s
        if self.now_s - self._aged_at_s >= age_s / AGE_SAMPLES:
            self._aged_at_s = self.now_s
            self._sample_age()
        ages = self._ages
        while ages.samples and ages.samples[0][0] <= self.now_s - age_s:
            ages.aged_start = ages.samples.popleft()[1]
        bound = ages.aged_start if self.leases.lowest is None else min(ages.aged_start, self.leases.lowest - 1)
        if bound > self.low_watermark:
            self.oracle.raise_low_watermark(bound)
            self._lift_low_watermark()

    def _sample_age(self) -> None:
        """A quiet TSO draws a start itself, or the last commits would never fall below LWM."""
        if self.clock.next_ts != self._issued_when_aged:
            drawn = self.windows.take_start(self.low_watermark)
            if drawn is None:
                return
            self.newest_start = drawn
            if self.windows.is_idle:
                self._issued_when_aged = self.clock.next_ts  # else what is in flight may lie above what was drawn
            self._ages.samples.append((self.now_s, drawn))
        elif self.newest_start > self._newest_sample():
            self._ages.samples.append((self.now_s, self.newest_start))

    def _newest_sample(self) -> int:
        return self._ages.samples[-1][1] if self._ages.samples else self._ages.aged_start

    def _refresh_tables(self) -> None:
        if self.now_s >= self._tables_due_s and not self._reading_tables:
            self._reading_tables = True
            self._work.run(self._read_tables_steps())

    def _read_tables_steps(self) -> Procedure:
        with suppress(Unavailable):  # the old list refuses nothing: an id not on it is looked up before its commit
            yield from self._look_up_tables_steps()
        self._reading_tables = False
        self._tables_due_s = self.now_s + self.settings.tables_interval_s

    # ── begin ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_begin(self, peer: Hashable, tag: int, not_before: int) -> None:
        if not_before > self.last_issued:
            self._refuse(peer, tag, Misuse(
                f"not_before {not_before} is above every timestamp issued ({self.last_issued})",
                not_before=not_before,
                last_issued=self.last_issued,
            ))  # fmt: skip
        elif self._waiting.are_ready or not self._answer_begin(peer, tag, not_before):
            self._waiting.add(WaitingBegin(peer, tag, not_before), is_ready=self.windows.reaches(not_before))
            self.counters["begin_waits"] += 1

    def _answer_begin(self, peer: Hashable, tag: int, not_before: int) -> bool:
        """Only above LWM, so that no transaction is born doomed, and above what the client asks to see."""
        answer = self._take_begin(not_before)
        if answer is not None:
            self._reply(peer, tag, answer)
        return answer is not None

    def _take_begin(self, not_before: int) -> BeginReply | None:
        start_ts = self.windows.take_start(max(not_before, self.low_watermark))
        if start_ts is None:
            return None
        self.newest_start = start_ts
        self.counters["begins"] += 1
        return BeginReply(start_ts, self.epoch, self.fenced_ts)

    def _answer_waiting_begins(self) -> None:
        """Peers take turns; one with a floor does not hold up the others. Not all at once, if they are many: who comes
        with something else meanwhile would wait for all of them."""
        waiting = self._waiting
        self.has_more_begins = False
        if not len(waiting):
            return
        waiting.line_up(self.windows.reaches)
        for _ in range(BEGINS_A_STEP):
            begin = waiting.first()
            if begin is None or not self._answer_begin(begin.peer, begin.tag, begin.not_before):
                return
            waiting.pop_first()
        self.has_more_begins = waiting.are_ready

    # ── commit ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_commit(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        error = self._malformed(request)
        if error is not None:
            self._refuse(peer, tag, error)
        elif request.is_retry or self._was_large(request.start_ts):
            self._peer_work.ask(peer, self._retry_steps(peer, tag, request))
        elif not self.tables.settled.issuperset(request.table_ids):
            self._introduce(peer, tag, request)
        elif request.is_large:
            self._peer_work.ask(peer, self._large_turn_steps(peer, tag, request))
        else:
            self._decide(peer, tag, request)

    def _was_large(self, start_ts: int) -> bool:
        return start_ts in self.large or start_ts in self.large_recently

    def _malformed(self, request: CommitRequest) -> Misuse | None:
        """What no correct client sends; a retry of an earlier TSO's transaction is not such."""
        start_ts = request.start_ts
        if not self._is_issued_start(start_ts):
            return self._not_a_start(start_ts)
        # Omid's own TSO takes what fits a frame of 10 MiB; its client would run a refused transaction again for ever.
        if len(request.cell_ids) > self.settings.write_set_ids_max and not request.is_plain:
            return Misuse(
                f"a write set of {len(request.cell_ids)} ids is over the limit of "
                f"{self.settings.write_set_ids_max}: commit it at table level",
                start_ts=start_ts,
            )
        if len(request.table_ids) > TABLE_IDS_MAX:
            return Misuse(
                f"start_ts {start_ts} names {len(request.table_ids)} tables, more than {TABLE_IDS_MAX}: write them in "
                "several transactions",
                start_ts=start_ts,
            )
        if request.level is WriteSetLevel.TABLE and not request.table_ids:
            return Misuse(f"a table-level commit of start_ts {start_ts} names no table", start_ts=start_ts)
        return self._malformed_branches(request) if request.branches else None

    def _malformed_branches(self, request: CommitRequest) -> Misuse | None:
        start_ts, branches = request.start_ts, np.array(request.branches, dtype=np.int64)
        wrong = branches[(branches <= start_ts) | ~self._are_issued_starts(branches)]
        if len(wrong):
            return Misuse(
                f"branch {wrong[0]} of start_ts {start_ts} is no start handed out after it", start_ts=start_ts
            )
        if len(np.unique(branches)) != len(branches):
            return Misuse(f"a branch of start_ts {start_ts} is named twice", start_ts=start_ts)
        return None

    def _is_issued_start(self, start_ts: int) -> bool:
        return 0 < start_ts <= self.newest_start and start_ts % TIMESTAMP_STEP == 0

    def _are_issued_starts(self, starts: Starts) -> NDArray[np.bool_]:
        """`_is_issued_start` of each."""
        found: NDArray[np.bool_] = (starts > 0) & (starts <= self.newest_start) & (starts % TIMESTAMP_STEP == 0)
        return found

    def _not_a_start(self, start_ts: int) -> Misuse:
        return Misuse(
            f"start_ts {start_ts} was never handed out: starts are multiples of {TIMESTAMP_STEP}, "
            f"the newest is {self.newest_start}",
            start_ts=start_ts,
        )

    def _introduce(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        """K6: a table id that is not in the catalog has a durable mark before a commit to it is decided.

        One that a fence refuses anyway leaves none: it would come after the drop has taken the table's mark away.
        """
        conflict = self._conflict(request)
        if conflict is not None:
            self._abort(peer, tag, request.start_ts, conflict)
            return
        self._newcomers.append((peer, tag, request))
        if not self._introducing:
            self._introducing = True
            self._work.run(self._introduce_steps())

    def _introduce_steps(self) -> Procedure:
        """One look at the catalog, and one mark a table, for all commits that wait."""
        while self._newcomers:
            waiting, self._newcomers = self._newcomers, []
            try:
                yield from self._look_up_tables_steps()
                waiting = [each for each in waiting if self._may_name(*each)]
                for _, _, request in waiting:
                    for table_id in request.table_ids:
                        if self._needs_mark(table_id, request):
                            yield from self._mark_steps(table_id)
            except Unavailable as error:
                for peer, tag, _ in waiting:
                    self._refuse(peer, tag, error)
                continue
            for peer, tag, request in waiting:
                self._on_commit(peer, tag, request)
        self._introducing = False

    def _needs_mark(self, table_id: int, request: CommitRequest) -> bool:
        """None for a commit that a fence refuses, also where the fence came while the catalog was looked at."""
        return table_id not in self.tables.settled and self._conflict(request) is None

    def _look_up_tables_steps(self) -> Procedure:
        call = self.tables.begin_call()
        try:
            registered: frozenset[int] = yield ReadTables()
        except Unavailable:
            self.tables.end_call(call)
            raise
        self.tables.end_call(call, registered=registered)

    def _mark_steps(self, table_id: int) -> Procedure:
        """A fence of the table waits for it: whoever sent the fence takes the mark away, and none comes later."""
        call = self.tables.begin_call()
        self._marking = table_id
        marked = None
        try:
            yield MarkUnknownTable(table_id)
            marked = table_id
            self.counters["unknown_tables"] += 1
        finally:
            self.tables.end_call(call, marked=marked)
            self._marking = None
            fences, self._fences_behind_mark = self._fences_behind_mark, []
            for peer, tag, fence in fences:
                self._on_fence(peer, tag, fence.table_id)

    def _may_name(self, peer: Hashable, tag: int, request: CommitRequest) -> bool:
        """Random ids must not fill the catalog, nor our memory."""
        if self.tables.name(request.table_ids, self.settings.unknown_tables_max):
            return True
        self._refuse(peer, tag, self._too_many_unregistered(request.start_ts))
        return False

    def _too_many_unregistered(self, start_ts: int) -> Misuse:
        return Misuse(
            f"start_ts {start_ts} names tables that are not registered, and {len(self.tables.unregistered)} such are "
            "known already: register them with `pyomid tables URL register NAME FAMILY`",
            start_ts=start_ts,
        )

    def _decide(self, peer: Hashable, tag: int, request: CommitRequest) -> Procedure | None:
        """The one place where a transaction's fate is chosen. Of a large one: what has to be done now."""
        conflict = self._conflict(request)
        if conflict is not None:
            self._abort(peer, tag, request.start_ts, conflict)
        elif request.is_large:
            return self._decide_large(peer, tag, request)
        else:
            self._decide_ordinary(peer, tag, request)
        return None

    def _conflict(self, request: CommitRequest) -> Conflict | None:
        if request.start_ts in self.refused_starts:
            return Conflict(AbortReason.SEALED, 0)
        return self.oracle.check(request, watermark_sent=self.watermark_sent)

    def _abort(self, peer: Hashable, tag: int, start_ts: int, conflict: Conflict) -> None:
        self._reply(peer, tag, self._aborted(start_ts, conflict))

    def _aborted(self, start_ts: int, conflict: Conflict) -> CommitReply:
        self.counters[f"aborts_{conflict.reason.value}"] += 1
        return CommitReply(start_ts, 0, conflict.reason, conflict.conflict_ts)

    def _decide_ordinary(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        commit_ts = self.clock.take()
        if commit_ts is None:
            self._stalled.append((peer, tag, request))
            return
        batch = self.windows.open_batch
        batch.entries.append((request.start_ts, commit_ts))
        batch.answers.append(CommitAnswer(peer, tag, request.start_ts, commit_ts))
        self._record(request, commit_ts)
        if batch.size >= self.settings.batch_entries_max:
            self.windows.close_open_batch()

    def _record(self, request: CommitRequest, commit_ts: int) -> None:
        before = self.low_watermark
        self.oracle.record(request, commit_ts)
        if self.low_watermark > before:
            self._lift_low_watermark()

    def _on_fence(self, peer: Hashable, tag: int, table_id: int) -> None:
        """T8: an entry of its batch, and the oldest batch closes behind it: the next window lies above the fence.

        One that waits behind others is shared by all fences that come meanwhile: its window serves nobody yet. What was
        believed of the table is forgotten (K6): it may be dropped, and its mark taken away.
        """
        if table_id == self._marking:
            self._fences_behind_mark.append((peer, tag, Fence(table_id)))
            return
        if table_id not in self._fenced and len(self._fenced) >= FENCED_TABLES_MAX:
            self._refuse(peer, tag, Unavailable(
                f"{len(self._fenced)} tables were fenced above the published low watermark {self.watermark_sent}: no "
                "more are until it has passed some"
            ))  # fmt: skip
            return
        fence_ts = self.clock.take()
        if fence_ts is None:
            self._stalled.append((peer, tag, Fence(table_id)))
            return
        self.oracle.fence(table_id, fence_ts)
        self._fenced.add(table_id)
        self.fenced_ts = fence_ts
        self.tables.forget(table_id)
        self.counters["fences"] += 1
        self._answer_behind_batch(Reply(peer, tag, FenceReply(table_id, fence_ts)))

    def _answer_behind_batch(self, reply: Reply) -> None:
        """T8: when the open batch is released, and the window that serves from then on lies above it."""
        self.windows.open_batch.fenced = True
        self.windows.open_batch.answers.append(reply)
        self.windows.close_behind_fences()

    # ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_flushes(self) -> None:
        """The open batch goes as soon as a flight is free: what gathers meanwhile is the next batch. Beside another
        flight it goes only where it is about as large, or a crowd's commits would go a few at a time."""
        while self.windows.flights < self.settings.flights_max:
            batch = self.windows.next_to_flush()
            if batch is None:
                if self.windows.open_batch.is_empty or self._is_small_beside_others():
                    return
                batch = self.windows.close_open_batch()
            batch.state = BatchState.IN_FLIGHT
            self.counters["flushes"] += 1
            self._flush(batch)

    def _is_small_beside_others(self) -> bool:
        """The flight that it would go beside ends soon, and it goes then."""
        newest = self.windows.newest_flight
        return newest is not None and self.windows.open_batch.size * FLIGHTS_RATIO_MAX < newest.size

    def _flush(self, batch: Batch) -> None:
        block = None if batch.block is None else batch.block.entries
        self._work.call(Flush(tuple(batch.entries), block), lambda result: self._on_flushed(batch, result))

    def _on_flushed(self, batch: Batch, result: Flushed) -> None:
        """T5: the epoch was read after the entries were durable. Replaced → nothing of this batch is ever said."""
        self._check_epoch(result.epoch)
        self._make_durable(batch, result.refused)

    def _make_durable(self, batch: Batch, refused: frozenset[int]) -> None:
        batch.state = BatchState.DURABLE
        batch.answers = [self._final(answer, refused) for answer in batch.answers]
        if refused and batch.block is not None:
            among = sum(start in refused for start in batch.block.entries[:, 0].tolist())
            self._refuse_from_now_on(refused)
            self.counters["aborts_sealed"] += among
            self.counters["commits"] -= among
        self._release_batches()

    def _release_batches(self) -> None:
        """In order, however the flushes end."""
        while (batch := self.windows.release()) is not None:
            if self.settings.entries_kept_max:
                self._newest_entries.release(batch.size, self.newest_start)
            for answer in batch.answers:
                if isinstance(answer, SendEncoded):
                    (self._held if self._in_doubt else self._out).append(answer)
                else:
                    self._reply(answer.peer, answer.tag, answer.answer)
            self._settle_low_watermark()
            self._work.released(batch.seq)
        self.windows.close_behind_fences()

    def _final(self, answer: CommitAnswer | Reply | EncodedReplies, refused: frozenset[int]) -> Reply | SendEncoded:
        """A commit refused by a seal is aborted; the rest of its batch stands."""
        if isinstance(answer, Reply):
            return answer
        if not isinstance(answer, CommitAnswer):
            self.counters["commits"] += answer.count
            return SendEncoded(answer.without(refused) if refused else answer)
        if answer.start_ts in refused:
            self.counters["aborts_sealed"] += 1
            self._refuse_from_now_on((answer.start_ts,))
            return Reply(answer.peer, answer.tag, CommitReply(answer.start_ts, 0, AbortReason.SEALED))
        self.counters["commits"] += 1
        return Reply(answer.peer, answer.tag, CommitReply(answer.start_ts, answer.commit_ts))

    def _batch_that_may_hold(self, starts: Iterable[int]) -> int:
        """The newest batch not yet released with an entry, or a branch, of one of `starts`; 0 where none has."""
        wanted = frozenset(starts)
        found = 0
        for batch in self.windows.batches:
            if batch.holds_any(wanted):
                found = batch.seq
            if batch.large and not wanted.isdisjoint(self.large[batch.entries[0][0]].branches):
                found = batch.seq
        return found

    # ── large commits ────────────────────────────────────────────────────────────────────────────────────────────

    def _large_turn_steps(self, peer: Hashable, tag: int, request: CommitRequest) -> Procedure:
        """A few of each peer at once: every begin waits for the oldest batch, and each of these is one. What was true
        when it came need not be any more."""
        if self._was_large(request.start_ts):
            yield from self._retry_steps(peer, tag, request)
        elif not self.tables.settled.issuperset(request.table_ids):
            self._introduce(peer, tag, request)
        elif (steps := self._decide(peer, tag, request)) is not None:
            yield from steps

    def _decide_large(self, peer: Hashable, tag: int, request: CommitRequest) -> Procedure | None:
        """A batch of its own: windows above it and later replies wait until its branches are durable (law 3)."""
        if self.clock.ceiling - self.clock.next_ts < (self.settings.window_starts + 1) * TIMESTAMP_STEP:
            self._stalled.append((peer, tag, request))
            return None
        if not self.windows.open_batch.is_empty:
            self.windows.close_open_batch()
        batch = self.windows.open_batch
        commit_ts = self.clock.take()
        assert commit_ts is not None
        batch.large = True
        batch.entries.append((request.start_ts, commit_ts))
        batch.answers.append(CommitAnswer(peer, tag, request.start_ts, commit_ts))
        self.large[request.start_ts] = PendingCommit(request.start_ts, request.branches)
        self.rare_starts.add((request.start_ts,))
        self._record(request, commit_ts)
        self.windows.close_open_batch()
        batch.state = BatchState.IN_FLIGHT
        return self._large_commit_steps(batch, self.large[request.start_ts], commit_ts)

    def _large_commit_steps(self, batch: Batch, pending: PendingCommit, commit_ts: int) -> Procedure:
        """Pending record, decision, branches, answer, record and lease gone: each durable before the next."""
        start_ts = pending.start_ts
        if pending.branches:
            yield EpochWrite(LeaderStateChanges(pending_added=(pending,)))
        decided: Flushed = yield PutDecision(start_ts, commit_ts)
        self._check_epoch(decided.epoch)
        if pending.branches and not decided.refused:
            for at in range(0, len(pending.branches), BRANCHES_A_CALL):
                epoch: int = yield PutBranches(pending.branches[at : at + BRANCHES_A_CALL], commit_ts)
                self._check_epoch(epoch)
        self._remember_large(pending)
        self._make_durable(batch, decided.refused)
        yield AfterBatch(batch.seq)
        yield from self._remove_large_steps(pending)

    def _remove_large_steps(self, pending: PendingCommit) -> Procedure:
        start_ts = pending.start_ts
        ends = start_ts in self.leases and self.leases.end(start_ts, self.now_s)
        removed = (start_ts,)
        yield EpochWrite(
            LeaderStateChanges(
                pending_removed=removed if pending.branches else (),
                leases_removed=removed if ends else (),
            )
        )
        self.leases.forget(start_ts)
        del self.large[start_ts]

    def _remember_large(self, pending: PendingCommit) -> None:
        """For retries, in the order of their end; what is older than any retry is forgotten, and what is too many."""
        recently, bound_s = self.large_recently, self.now_s - self.settings.commit_retry_s
        while recently:
            oldest = next(iter(recently))
            if recently[oldest][1] >= bound_s and len(recently) < LARGE_REMEMBERED_MAX:
                break
            del recently[oldest]
        recently[pending.start_ts] = (frozenset(pending.branches), self.now_s)

    # ── retries and seals ────────────────────────────────────────────────────────────────────────────────────────

    def _retry_steps(self, peer: Hashable, tag: int, request: CommitRequest) -> Procedure:
        """T7: after the batches that may hold the first try, from the commit table, never guessed."""
        start_ts = request.start_ts
        if self._names_other_branches(request):
            self._refuse(peer, tag, self._other_branches(start_ts))
            return
        if self._remembers_too_many(1):
            self._refuse(peer, tag, self._unknown(start_ts, self._why_too_many()))
            return
        self._refuse_from_now_on((start_ts,))
        yield AfterBatch(self._batch_that_may_hold((start_ts,)))
        try:
            found: list[int] = yield LookupEntries((start_ts, *request.branches))
            outcome = yield from self._outcome_steps(start_ts, found[0])
        except Unavailable as error:
            self._refuse(peer, tag, self._unknown(start_ts, error.message))
            return
        if outcome is None:
            self._refuse(peer, tag, self._unknown(start_ts, f"it is below the sanitised horizon {self.horizon}"))
        elif outcome.placed:
            self._abort(peer, tag, start_ts, Conflict(AbortReason.RETRY_UNKNOWN, 0))
        elif any(branch != outcome.commit_ts for branch in found[1:]):
            self._refuse(peer, tag, self._other_branches(start_ts))
        else:
            self.counters["retries_found"] += 1
            self._reply(peer, tag, CommitReply(start_ts, outcome.commit_ts))

    def _outcome_steps(self, start_ts: int, found: int) -> Generator[StoreOperation, Any, SealOutcome | None]:
        """What became of a start that can no longer be decided; None below H, where the table says nothing."""
        if self._is_sanitised(start_ts):
            return None
        if found == SEALED:
            return SealOutcome(True)
        if found != NOT_FOUND:
            return SealOutcome(False, found)
        outcomes: list[SealOutcome] = yield SealEntries((start_ts,))
        return outcomes[0]

    def _is_sanitised(self, start_ts: int) -> bool:
        """R4: neither an entry nor its absence says anything."""
        return start_ts < self.horizon

    def _names_other_branches(self, request: CommitRequest) -> bool:
        """A retry with another list of branches is refused, never matched."""
        pending = self.large.get(request.start_ts)
        if pending is not None:
            return frozenset(pending.branches) != frozenset(request.branches)
        remembered = self.large_recently.get(request.start_ts)
        return remembered is not None and remembered[0] != frozenset(request.branches)

    def _other_branches(self, start_ts: int) -> Misuse:
        return Misuse(f"start_ts {start_ts} was committed with other branches than this retry names", start_ts=start_ts)

    def _unknown(self, start_ts: int, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(f"the outcome of start_ts {start_ts} cannot be told: {why}", start_ts=start_ts)

    def _on_seal(self, peer: Hashable, tag: int, starts: tuple[int, ...]) -> None:
        if self._remembers_too_many(len(starts)):  # before each of them is looked at
            self._refuse(peer, tag, Unavailable(self._why_too_many()))
            return
        asked = np.array(starts, dtype=np.int64)
        wrong = asked[~self._are_issued_starts(asked)]
        if len(wrong):
            self._refuse(peer, tag, self._not_a_start(int(wrong[0])))
            return
        self._peer_work.ask(peer, self._seal_steps(peer, tag, starts))

    def _seal_steps(self, peer: Hashable, tag: int, starts: tuple[int, ...]) -> Procedure:
        """Answered after the batches that may hold these starts; refused from now on. A few at a time: a flush waits
        for the store's call before it."""
        if self._remembers_too_many(len(starts)):
            self._refuse(peer, tag, Unavailable(self._why_too_many()))
            return
        self._refuse_from_now_on(starts)
        yield AfterBatch(self._batch_that_may_hold(starts))
        outcomes: list[SealOutcome] = []
        try:
            for at in range(0, len(starts), SEALS_A_CALL):
                if not self._peer_work.is_awaited(peer):
                    return
                some: list[SealOutcome] = yield SealEntries(starts[at : at + SEALS_A_CALL])
                outcomes += some
        except Unavailable as error:
            self._refuse(peer, tag, error)
            return
        self.counters["seals"] += len(starts)
        self._reply(peer, tag, SealReply(tuple(outcomes)))

    def _remembers_too_many(self, more: int) -> bool:
        return len(self.refused_starts) + more > self.settings.refused_starts_max

    def _why_too_many(self) -> str:
        return (
            f"{len(self.refused_starts)} starts above the published low watermark {self.watermark_sent} were sealed: "
            "no more are until it has passed some"
        )

    def _refuse_from_now_on(self, starts: Iterable[int]) -> None:
        """Those at or below W need no memory: neither LWM nor W lets them commit."""
        new = {start for start in starts if start > self.watermark_sent} - self.refused_starts
        self.refused_starts |= new
        self.rare_starts.add(new)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_grant(self, peer: Hashable, tag: int, request: GrantLease) -> None:
        start_ts = request.start_ts
        term_s = min(request.term_s or self.settings.lease_term_s, self.settings.lease_term_s_max)
        if not self._is_issued_start(start_ts):
            self._refuse(peer, tag, self._not_a_start(start_ts))
        elif self._may_be_passed(start_ts):
            self._refuse(peer, tag, self._too_old(start_ts))
        elif not self._adds_none(request, term_s) and (why := self._why_no_lease(request.holder)):
            self._refuse(peer, tag, Unavailable(why, leases_max=self.settings.leases_max))
        else:
            self._work.run((self._share_steps if request.shared else self._grant_steps)(peer, tag, request, term_s))

    def _may_be_passed(self, start_ts: int) -> bool:
        """T12: W that was sent may be durable, whether or not its answer came."""
        return start_ts <= self.watermark_sent

    def _why_no_lease(self, holder: str) -> str:
        """Nobody has more than are left for others: whoever asks for the first time always finds one, while those who
        ask are few."""
        left, held = self.settings.leases_max - len(self.leases), self.leases.held_by(holder)
        if left <= 0:
            return f"there are {len(self.leases)} leases already, no more are granted: {self.leases.most_held_by()}"
        if held >= left:
            return (
                f"{held} leases are held by {holder or 'whoever does not say'} already, and the {left} that are left "
                "are for others: end some, or have the TSO started with more --leases"
            )
        return ""

    def _adds_none(self, request: GrantLease, term_s: float) -> bool:
        if request.shared:
            return self.leases.find_shared(request.start_ts, term_s, self.now_s) is not None
        return request.start_ts in self.leases

    def _grant_steps(self, peer: Hashable, tag: int, request: GrantLease, term_s: float) -> Procedure:
        """It holds W back from this moment; it is promised once its row is durable."""
        lease = self.leases.grant(request.start_ts, term_s, self.now_s, request.holder)
        yield EpochWrite(LeaderStateChanges(leases_added=(request.start_ts,)))
        if lease.state is LeaseState.GRANTING:
            lease.state = LeaseState.LIVE
        self.counters["leases_granted"] += 1
        self._reply(peer, tag, LeaseReply(request.start_ts, lease.term_s))

    def _share_steps(self, peer: Hashable, tag: int, request: GrantLease, term_s: float) -> Procedure:
        """As a grant; where a lease whose row is durable serves, nothing is written."""
        lease = self.leases.share(request.start_ts, term_s, self.now_s, request.holder)
        if lease.state is not LeaseState.LIVE:
            yield EpochWrite(LeaderStateChanges(leases_added=(lease.start_ts,)))
            if lease.state is LeaseState.GRANTING:
                lease.state = LeaseState.LIVE
                self.counters["leases_granted"] += 1
        self.counters["leases_shared"] += 1
        self._reply(peer, tag, LeaseReply(lease.start_ts, term_s))

    def _on_renew(self, peer: Hashable, tag: int, start_ts: int) -> None:
        lease = self.leases.renew(start_ts, self.now_s)
        if lease is None:
            self._refuse(peer, tag, self._too_old(start_ts))
        else:
            self._reply(peer, tag, LeaseReply(start_ts, lease.term_s))

    def _on_end(self, peer: Hashable, tag: int, start_ts: int, shared: bool) -> None:
        if start_ts not in self.leases or start_ts in self.large:
            self._reply(peer, tag, Done())  # a large commit removes its lease together with its record
        elif self.leases.end(start_ts, self.now_s, sharers=shared):
            self._work.run(self._end_lease_steps(peer, tag, start_ts))
        else:
            self._reply(peer, tag, Done())

    def _end_lease_steps(self, peer: Hashable, tag: int, start_ts: int) -> Procedure:
        yield from self._remove_lease_steps(start_ts)
        self._reply(peer, tag, Done())

    def _remove_lease_steps(self, start_ts: int) -> Procedure:
        """Law 9: until the row is gone durably the lease still holds W back."""
        yield EpochWrite(LeaderStateChanges(leases_removed=(start_ts,)))
        self.leases.forget(start_ts)

    def _too_old(self, start_ts: int) -> SnapshotTooOld:
        return SnapshotTooOld(
            f"start_ts {start_ts} has no lease, and the published low watermark is {self.watermark_sent}",
            start_ts=start_ts,
            watermark=self.watermark_sent,
        )

    # ── low watermark, W and H ───────────────────────────────────────────────────────────────────────────────────

    def _lift_low_watermark(self) -> None:
        """Law 4: LWM may be published once every commit decided so far, the one that moved it included, is durable."""
        batch = self.windows.open_batch
        due = batch.seq - 1 if batch.is_empty else batch.seq
        if self._movers and self._movers[-1][1] == due:
            self._movers.pop()
        self._movers.append((self.low_watermark, due))
        self._settle_low_watermark()

    def _settle_low_watermark(self) -> None:
        while self._movers and self._movers[0][1] <= self.windows.released_seq:
            self._settled_low_watermark = self._movers.popleft()[0]

    def _watermark_candidate(self) -> int:
        """min(LWM, every lease − 1, every undecided or unfinished large commit − 1)."""
        held = [start - 1 for start in self.large]
        if self.leases.lowest is not None:
            held.append(self.leases.lowest - 1)
        return min([self._settled_low_watermark, *held])

    def _publish_watermark(self) -> None:
        if self.now_s < self._watermark_due_s:
            return
        self._watermark_due_s = self.now_s + self.settings.watermark_interval_s
        candidate = self._watermark_candidate()
        if candidate > self.watermark_sent:
            self.watermark_sent = candidate
            self._work.run(self._publish_steps(candidate))

    def _publish_steps(self, watermark: int) -> Procedure:
        self.refused_starts = {start for start in self.refused_starts if start > watermark}
        self._fenced = self.oracle.forget_tables(self._fenced, watermark)
        self.rare_starts.forget_some()
        yield EpochWrite(LeaderStateChanges(watermark=watermark))
        self.watermark = max(self.watermark, watermark)

    def _forget_entries(self) -> None:
        """Where nobody else reads the commit table: what is old by count goes, as a sanitiser would make it go.

        No region of any table has cells that need it (law 7 asks for nothing), but a transaction that has not ended
        may still come with its commit, or again with it: LWM passes it first, H never passes W.
        """
        start_ts = self._newest_entries.forgotten_start
        if not start_ts:
            return
        if self.leases.lowest is not None:
            start_ts = min(start_ts, self.leases.lowest - 1)
        if start_ts > self.low_watermark:
            self.oracle.raise_low_watermark(start_ts)
            self._lift_low_watermark()
        horizon = min(start_ts, self.watermark)
        if horizon > self.horizon and not self._forgetting:
            self._forgetting = True
            self._work.run(self._forget_steps(horizon))

    def _forget_steps(self, horizon: int) -> Procedure:
        with suppress(Unavailable):
            yield from self._sanitise_steps(horizon)
        self._forgetting = False

    def _advance_horizon_steps(self, peer: Hashable, tag: int, horizon: int) -> Procedure:
        if horizon < 0 or horizon > self.watermark:
            why = "is below 0" if horizon < 0 else f"is above the published low watermark {self.watermark}"
            self._refuse(peer, tag, Misuse(f"horizon {horizon} {why}", horizon=horizon))
            return
        try:
            deleted = yield from self._sanitise_steps(horizon)
        except Unavailable as error:
            self._refuse(peer, tag, error)
            return
        self._reply(peer, tag, HorizonReply(deleted))

    def _sanitise_steps(self, horizon: int) -> Generator[StoreOperation | AfterBatch | EpochWrite, Any, int]:
        """Law 7: H durable, then entries below it go. From the first moment no outcome below it is told (R4)."""
        self.horizon = max(self.horizon, horizon)
        # Also where H stands there already: an earlier request's write may still be on its way.
        yield EpochWrite(LeaderStateChanges(horizon=self.horizon))
        deleted: int = yield DeleteBelow(horizon)
        self.counters["entries_sanitised"] += deleted
        return deleted

    # ── completion ───────────────────────────────────────────────────────────────────────────────────────────────

    def _on_complete(self, starts: Sequence[int]) -> None:
        """These transactions need their entries no more. Those beyond what is remembered are left to sanitising; what
        is no start is nobody's entry, and no store may be asked for it."""
        taken = np.array(starts[:COMPLETIONS_A_REQUEST], dtype=np.int64)
        issued = taken[self._are_issued_starts(taken)]
        self.counters["refused"] += len(issued) < len(taken)
        self.counters["completions_left"] += self._completions.remember(issued) + len(starts) - len(taken)

    @property
    def may_complete(self) -> bool:
        """Whether `take_completions` has any."""
        return bool(self._completions.count) and not (self._completions.is_deleting or self.large or self.dead)

    def take_completions(self) -> Starts:
        """The entries that `handle([])` would delete now, for a driver that deletes at once; only if `may_complete`."""
        return self._completions.take()

    def completed(self, count: int, left: Starts) -> list[Instruction]:
        """So many of them are gone; those that are `left` need a store call."""
        self.counters["completions"] += count
        if len(left):
            self._delete_completed(left)
        out, self._out = self._out, []
        return out

    def _start_completion(self) -> None:
        """Those of a large commit only after its pending record is gone."""
        if self._completions.count and not self._completions.is_deleting:
            starts = self._completions.take(self._unfinished_starts())
            if len(starts):
                self._delete_completed(starts)

    def _delete_completed(self, starts: Starts) -> None:
        self._completions.is_deleting = True
        self._work.run(self._completion_steps(tuple(starts.tolist())))

    def _completion_steps(self, starts: tuple[int, ...]) -> Procedure:
        try:
            for at in range(0, len(starts), DELETES_A_CALL):
                yield DeleteEntries(starts[at : at + DELETES_A_CALL])
            self.counters["completions"] += len(starts)
        except Unavailable:
            self.counters["completions_left"] += len(starts)  # sanitising takes what stays
        self._completions.is_deleting = False

    def _unfinished_starts(self) -> set[int]:
        kept = set(self.large)
        for pending in self.large.values():
            kept.update(pending.branches)
        return kept

    # ── timestamps ───────────────────────────────────────────────────────────────────────────────────────────────

    def _renew_ceiling(self) -> None:
        """Law 8: the ceiling is moved ahead, durably, before anything below it is needed."""
        wall_ms = self.wall_ms if self.settings.world_time else 0
        wanted = self.clock.wanted_ceiling(wall_ms)
        if wanted > self.clock.ceiling and not self._moving_ceiling:
            if wanted > TIMESTAMP_MAX:
                raise Death(f"timestamps are used up: {wanted} does not fit 63 bits")
            self._moving_ceiling = True
            self._work.run(self._move_ceiling_steps(wanted))

    def _move_ceiling_steps(self, ceiling: int) -> Procedure:
        yield EpochWrite(LeaderStateChanges(ceiling=ceiling))
        if self.settings.ceiling_elsewhere:  # noted first: who takes over knows it for ours (`oracle.takeover`)
            moved: bool = yield MoveCeiling(self.clock.ceiling, ceiling)
            if not moved:
                raise Death("another TSO moved the timestamp ceiling")
        self.clock.ceiling = ceiling
        self._moving_ceiling = False
        stalled, self._stalled = self._stalled, deque()
        for peer, tag, request in stalled:
            self._on_request(peer, tag, request)

    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────

    def _put_out(self, call: StoreCall) -> None:
        self._out.append(call)

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise Death(f"the leader state holds {epoch}, not {self.epoch}: another TSO leads")

    def _reply(self, peer: Hashable, tag: int, answer: Answer) -> None:
        (self._held if self._in_doubt else self._out).append(Reply(peer, tag, answer))

    def _refuse(self, peer: Hashable, tag: int, error: OmidError) -> None:
        self.counters["refused"] += 1
        self._reply(peer, tag, Refused.of(error))

    # ── invariants ───────────────────────────────────────────────────────────────────────────────────────────────

    def validate(self) -> None:
        """What holds after every step."""
        self.windows.validate()
        assert self.watermark <= self.watermark_sent <= self.low_watermark, "W is published, and never above LWM"
        assert self.horizon <= self.watermark, "H never passes W"
        assert self.epoch <= self._settled_low_watermark <= self.low_watermark
        assert self.newest_start <= self.last_issued, "starts lie below the clock"
        for start_ts in (*self.leases.starts, *self.large):
            assert start_ts > self.watermark_sent, f"W {self.watermark_sent} passed {start_ts}, which holds it"
        assert self.windows.flights <= self.settings.flights_max
        unreleased = [batch for batch in self.windows.batches if batch.large]
        for batch in unreleased:
            assert batch.entries[0][0] in self.large, "a large commit is pinned while its batch is not released"
        assert self.oracle.low_watermark >= self.epoch
        assert self.tables.settled == self.tables.registered | self.tables.marked
        assert not (self._held and not self._in_doubt)
