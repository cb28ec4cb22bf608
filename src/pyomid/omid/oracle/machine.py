"""The whole TSO as a pure state machine: it takes events and returns instructions (protocol.md; hazards.md T1 … T20).

    handle([request of a peer, store call ended, …], now) → [reply, store call, …, or die]

The machine returns a reply only when everything that the reply promises is durable. So a driver may perform the
instructions in any order, and run any number of store calls at once. Each call of `handle` passes the time, so
`handle([], now)` is a timer tick. After a stall the machine holds all replies until it has read the leader state (T4).

    begin ───────────► `begins`          answered from the window of the oldest batch (`windows`)
    commit ──────────► `commits`         `status_oracle` ─► open batch ─► Flush, then epoch ─► released ─► answered
      unknown table    `table_requests`  catalog read, a durable mark, then decided; fences too
      of branches      `large_commits`   a batch of its own, and a record for the next TSO; ids reported before
      retry, seal      `outcomes`        refused from now on ─► after its batch ─► look up, seal ─► answered
    lease ───────────► `lease_requests`  holds W back ─► row durable ─► answered
    open starts ─────► `open_starts`     the oldest start that a client may still use holds W back
    horizon ─────────► `watermarks`      LWM, W and H

All of these modules are functions over one record (`state.TsoState`). Each imports only modules named after it here:

    machine ─► outcomes, table_requests, lease_requests ─► large_commits ─► commits ─► ceiling ─► watermarks ─► begins
    begins ─► state ─► windows, waiting, status_oracle, tables, leases, open_starts, outgoing

A step (`outgoing.Step`) is one call of `handle`. A request that takes several store calls is a *procedure*
(`outgoing`). When a request's wait ends, the handler appends the request to `TsoState.again`. The machine empties
`again` before the next event, so no handler calls the machine.

A chunk oracle (`chunk_oracle`) may decide common begins and commits for the machine while `may_decide_fast` is true.
Before each chunk the driver passes the time, by `notice_wall_clock` or `handle([], now)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial
from typing import Final

from pyomid.omid.oracle import (
    begins,
    ceiling,
    commits,
    large_commits,
    lease_requests,
    outcomes,
    table_requests,
    watermarks,
)
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
from pyomid.omid.oracle.outgoing import Death
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.state import TsoState, state_after
from pyomid.omid.oracle.status_oracle import ConflictMap
from pyomid.omid.oracle.takeover import TakenOver
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
from pyomid.types import TABLE_CONFLICTS, CommitRequest, Status

TIMERS_S: Final = 0.002
"""How often leases, ages and intervals are checked; checking them with every request would cost too much."""

TABLES_SHOWN_MAX: Final = 20
"""A status lists the conflicts of at most this many tables."""


class TsoMachine:
    """One TSO, from the end of its takeover to its end. Not thread-safe.

    A driver uses the methods and properties below; the state is private to `oracle`
    (`tests/core/test_machine_view.py`).
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
        self.state = state_after(
            settings, taken_over, now_s=now_s, known_tables=known_tables, conflict_map=conflict_map
        )
        self.settings: Final = settings
        self.epoch: Final = taken_over.epoch
        self.step: Final = self.state.step
        self.database_id = b""
        """The id that handshakes carry, unless it is empty."""
        self.serve_until_s = float("inf")
        """When the TSO's own lease ends. A driver may set it before each step."""
        self.dead = False
        self._timers_due_s = now_s
        self._stalled_in_doubt = False
        """True if another stall was noticed after the read of the leader state began."""

    # ── a step ───────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, events: Iterable[Event], now_s: float, wall_ns: int = 0) -> list[Instruction]:
        """Handle the events and return the instructions of this step. `now_s` is monotonic time that counts suspension.
        `wall_ns` is wall-clock time in nanoseconds since 1970, or 0 if unknown.

        After a `Die` or an exception every further call returns nothing, because the state is unknown.
        """
        if self.dead:
            return []
        self.step.number += 1
        try:
            self._notice_time(now_s, wall_ns)
            for event in events:
                self._dispatch(event)
                if self.state.again:
                    self._take_again()
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
        tso = self.state
        match event:
            case RequestCame(peer, tag, request):
                take_request(tso, peer, tag, request)
            case StoreDone(token, result):
                tso.store.done(token, result)
            case StoreFailed(token, error):
                tso.store.failed(token, error)
            case PeerGone(peer):
                tso.waiting_begins.forget(peer)
                tso.peer_requests.forget(peer)
                ceiling.forget(tso, peer)
                tso.first_attempts.forget(peer)
                tso.open_starts.gone(peer)
            case LeaseRenewed(until_s):
                self.serve_until_s = until_s

    def _take_again(self) -> None:
        """Handle the requests whose wait has ended. That may end the waits of further requests, which are handled
        too."""
        while self.state.again:
            take_request(self.state, *self.state.again.popleft())

    def _start_what_is_due(self) -> None:
        """Start the work that the events made possible. Nothing in this method waits for more events."""
        tso = self.state
        tso.peer_requests.start_due()
        while tso.again or tso.first_attempts.are_due:
            self._take_again()
            tso.again.extend(tso.first_attempts.take_due())
        ceiling.renew(tso)
        begins.answer_waiting(tso)
        commits.start_flushes(tso)
        tso.store.start_epoch_write()

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
            lease_requests.expire(self.state)
            large_commits.forget_unleased(self.state)
            watermarks.run_timers(self.state)
            table_requests.read_if_due(self.state)

    def _notice_stall(self) -> None:
        """T4: hold all replies until the leader state has been read, because a TSO that stalled may have been
        replaced."""
        self.step.counters["stalls"] += 1
        self._stalled_in_doubt = self.step.in_doubt
        if not self.step.in_doubt:
            self.step.in_doubt = True
            self.state.store.call(ReadEpoch(), self._end_doubt)

    def _end_doubt(self, epoch: int) -> None:
        """T4: end the doubt after a read of the epoch. If the TSO stalled again during the read, read once more."""
        self.state.store.check_epoch(epoch)
        if self._stalled_in_doubt:
            self._stalled_in_doubt = False
            self.state.store.call(ReadEpoch(), self._end_doubt)
        else:
            self.step.end_doubt()

    def _check_own_lease(self) -> None:
        """End the machine if the leader's own lease is over. Begins do not use the store, so only this lease fences
        them."""
        if self.step.now_s >= self.serve_until_s:
            raise Death(f"the leader's lease ended {self.step.now_s - self.serve_until_s:.3f} s ago")

    def notice_wall_clock(self, now_s: float, wall_ns: int) -> None:
        """Raise the logical clock to the wall clock. A driver may call this between steps, before a chunk."""
        tso = self.state
        tso.wall_clock.read(now_s, wall_ns, tso.clock.next_ts)
        tso.step.wall_ns = tso.wall_clock.ns
        tso.windows.follow(tso.step.wall_ns, is_moving=tso.ceiling.is_moving)

    # ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def may_decide_fast(self) -> bool:
        """Whether a chunk oracle may decide now: the TSO is not in doubt, and no request waits for the ceiling."""
        return not (self.dead or self.step.in_doubt or self.state.ceiling.waiting)

    # ── for the driver ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_quiet(self) -> bool:
        """Whether the process may exit: no decided commit waits for its answer, and no store call is in flight."""
        return self.state.store.is_idle and self.state.windows.is_idle

    def count(self, name: str) -> None:
        """Add one to a counter of the driver, kept among the machine's counters."""
        self.step.counters[name] += 1

    def note_longest(self, name: str, value: int) -> None:
        """Raise a maximum of the driver, kept among the machine's counters, to `value`."""
        self.step.counters[name] = max(self.step.counters[name], value)

    @property
    def longest_retry_s(self) -> float:
        """The longest time, in seconds, for which any client announced to retry a commit. Thread-safe."""
        return self.step.counters.get("commit_retry_ms_max", 0) / 1000

    def report(self) -> MachineReport:
        return report(self.state)

    def status(self) -> Status:
        return status(self.state)

    def clock_trouble(self) -> dict[str, int]:
        return clock_trouble(self.state)

    def validate(self) -> None:
        """Check the invariants that hold after every step."""
        tso = self.state
        tso.step.validate()
        tso.windows.validate()
        watermarks.validate(tso)
        large_commits.validate(tso)
        assert not tso.again, "every request whose wait has ended was handled"
        assert tso.newest_start <= tso.clock.last_issued, "starts lie below the clock"
        assert tso.windows.flushes_in_flight <= tso.settings.flushes_in_flight_max
        assert tso.oracle.low_watermark >= tso.epoch
        assert tso.tables.decidable == tso.tables.registered | tso.tables.marked


def take_request(tso: TsoState, peer: Hashable, tag: int, request: Request) -> None:
    match request:
        case Begin(not_before):
            begins.ask(tso, peer, tag, not_before)
        case CommitRequest():
            take_commit(tso, peer, tag, request)
        case Fence(table_id):
            table_requests.fence(tso, peer, tag, table_id)
        case GrantLease():
            lease_requests.grant(tso, peer, tag, request)
        case RenewLease(start_ts):
            lease_requests.renew(tso, peer, tag, start_ts)
        case EndLease(start_ts, shared):
            lease_requests.end(tso, peer, tag, start_ts, shared)
        case Seal(starts):
            outcomes.seal(tso, peer, tag, starts)
        case ReportIds():
            large_commits.report_ids(tso, peer, tag, request)
        case ReportOpenStarts():
            tso.open_starts.report(peer, request, tso.newest_start)
        case AdvanceHorizon(horizon):
            tso.peer_requests.ask(peer, watermarks.advance_horizon(tso, peer, tag, horizon))
        case AskStatus():
            tso.step.reply(peer, tag, status(tso))


def take_commit(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> None:
    error = commits.malformed(tso, request)
    if error is not None:
        tso.step.refuse(peer, tag, error)
    elif request.is_retry or large_commits.knows(tso, request.start_ts):
        tso.peer_requests.ask(peer, outcomes.retry(tso, peer, tag, request))
    elif not tso.tables.decidable.issuperset(request.table_ids):
        table_requests.decide_later(tso, peer, tag, request)
    elif request.is_large:
        tso.first_attempts.wait(request)
        dropped = partial(tso.first_attempts.end_wait, request)
        tso.peer_requests.ask(peer, _large_commit(tso, peer, tag, request), dropped)
    elif (answer := commits.decide(tso, peer, tag, request)) is not None:
        tso.step.reply(peer, tag, answer)


async def _large_commit(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> None:
    """Decide a large commit, now that it is the peer's turn. Each large commit is a batch of its own, and every begin
    waits for the oldest batch, so only a few of each peer run at once. The request may have waited, so its conditions
    are checked again."""
    tso.first_attempts.end_wait(request)
    if large_commits.knows(tso, request.start_ts):
        await outcomes.retry(tso, peer, tag, request)
    elif not tso.tables.decidable.issuperset(request.table_ids):
        table_requests.decide_later(tso, peer, tag, request)
    else:
        await large_commits.commit(tso, peer, tag, request)


def report(tso: TsoState) -> MachineReport:
    conflict_map = tso.oracle.conflict_map
    held, holder = watermarks.holder(tso)
    return MachineReport(
        epoch=tso.epoch,
        last_ts=max(tso.newest_start, tso.windows.closed_ts),
        low_watermark=tso.oracle.low_watermark,
        watermark=tso.watermarks.published,
        horizon=tso.watermarks.horizon,
        leases=len(tso.leases),
        pending=len(tso.pending),
        in_flight=sum(batch.size for batch in tso.windows.batches),
        conflict_map_entries=conflict_map.entries,
        conflict_map_entries_max=conflict_map.entries_max,
        retention_s=tso.retention_s,
        counters=tso.step.counters,
        watermark_held=held,
        watermark_holder=holder,
    )


def status(tso: TsoState) -> Status:
    """Return the status that operators see."""
    found = report(tso)
    count = found.counters
    return Status(
        epoch=found.epoch,
        last_ts=found.last_ts,
        low_watermark=found.low_watermark,
        watermark=found.watermark,
        horizon=found.horizon,
        leases=tso.leases.starts,
        pending=tuple(sorted(tso.pending)),
        in_flight=found.in_flight,
        counters=dict(count)
        | ({"retention_ms": round(found.retention_s * 1000)} if found.retention_s else {})
        | clock_trouble(tso)
        | _conflicts_by_table(tso),
        held_back_by=tso.watermarks.held_back_by,
    )


def clock_trouble(tso: TsoState) -> dict[str, int]:
    """Return counters for `timestamps.clock_trouble`; empty if nothing is wrong with the wall clock. Thread-safe."""
    ahead_ns = tso.clock.next_ts - tso.step.wall_ns if tso.step.wall_ns else 0
    found = {
        AHEAD_MS: ahead_ns // NS_PER_MS if ahead_ns > 2 * tso.clock.step else 0,
        REFUSED_MS: tso.wall_clock.refused_ns // NS_PER_MS,
    }
    return {name: value for name, value in found.items() if value}


def _conflicts_by_table(tso: TsoState) -> dict[str, int]:
    """Return the conflict counts of the tables with the most conflicts."""
    found = sorted(tso.oracle.table_conflicts.items(), key=lambda each: -each[1])
    return {f"{TABLE_CONFLICTS}{table_id}": count for table_id, count in found[:TABLES_SHOWN_MAX]}
