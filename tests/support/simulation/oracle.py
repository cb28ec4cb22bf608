"""TSO processes of the simulation: take-over and machine from the build, their store calls cut into parts.

A TSO's memory dies with it; its store calls in flight may still land (T5). Leadership is a lock on the disk with a
lease: whoever holds it may serve until its lease ends, judged by the clock before the renewal was sent (T4).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import Any, Final

from pyomid.errors import OmidError, Unavailable
from pyomid.omid.memory import MemoryLeaderState
from pyomid.omid.oracle import instructions as ins
from pyomid.omid.wire import messages as req
from pyomid.protocol.hashing import table_id
from pyomid.types import BeginReply, CommitRequest, LeaderStateChanges
from simulation.build import Build
from simulation.storage import Storage, lost
from simulation.truth import Truth
from simulation.universe import Call, Process, Sleep, Universe

LEASE_S: Final = 10.0
WALL_S: Final = 1_800_000_000.0
TEN_YEARS_S: Final = 3652.5 * 86_400


@dataclass(slots=True)
class LeaderLock:
    """Durable: who leads, and until when its lease runs (by the clock of whoever wrote it)."""

    holder: object = None
    until_s: float = 0.0


class Host:
    """One TSO process: takes over, serves, dies."""

    def __init__(
        self,
        universe: Universe,
        build: Build,
        storage: Storage,
        truth: Truth,
        lock: LeaderLock,
        settings: dict[str, Any],
        name: str,
        wall_skew_s: float | None = 0.0,
        clock_is_set: bool = False,
    ) -> None:
        self.universe, self.build, self.storage, self.truth, self.lock = universe, build, storage, truth, lock
        self.settings = build.settings.TsoSettings(**settings)
        self.process: Process = universe.process(name)
        self.process.on_death = self._died
        self.wall_skew_s = wall_skew_s
        self.accepts_clock = False
        """Whether its operator gave it `acceptClock=true`."""
        self.machine: Any = None
        self._kernel: Any = None
        """Takes what it can before the machine; None in builds without."""
        self._waiting: dict[tuple[Hashable, int], Call] = {}
        self._asked: dict[tuple[Hashable, int], tuple[float, req.Request]] = {}
        """Lease requests and when they came: a client counts the term from its sending, which is earlier still."""
        self._lease_until_s = 0.0
        universe.spawn(self.process, f"{name}.leads", self._lead())
        if clock_is_set:
            universe.spawn(self.process, f"{name}.clock", self._set_clock())

    @property
    def serving(self) -> bool:
        return self.process.alive and self.machine is not None

    # ------------------------------------------------------------ leadership

    @coroutine
    def _lead(self) -> Any:
        """Lock, take over, then renew for ever."""
        while True:
            asked_s = self.universe.now_s
            if (yield _Step("takes the lock", self._take_lock)):
                break
            yield Sleep(3.0)
        self._lease_until_s = asked_s + LEASE_S
        try:
            taken_over = yield from self.build.takeover.take_leadership(
                ceiling_step=self.settings.ceiling_step,
                ceiling_elsewhere=self.settings.ceiling_elsewhere,
                retention_s=self.settings.retention_s,
                wall_ns=self._wall_ns,
                accept_clock=self.accepts_clock,
            )
        except OmidError as error:
            self.universe.note(f"{self.process.name} cannot take over: {error}")
            self.universe.kill(self.process)
            return
        self.machine = self.build.machine.TsoMachine(
            self.settings,
            taken_over,
            now_s=self.universe.now_s,
            known_tables=[table_id(info.name.encode()) for info in self.storage.disk.catalog.tables()],
        )
        self._kernel = self.build.fast_path(self.machine)
        self.universe.note(f"{self.process.name} leads with epoch {taken_over.epoch}")
        self.feed(ins.LeaseRenewed(self._lease_until_s))
        while True:
            yield Sleep(0.7)
            self.feed()
            if self._lease_until_s - self.universe.now_s < LEASE_S * 0.6:
                asked_s = self.universe.now_s
                if (yield _Step("renews its lease", self._renew_lock)):
                    self._lease_until_s = asked_s + LEASE_S
                    self.feed(ins.LeaseRenewed(self._lease_until_s))

    def _take_lock(self) -> bool:
        if self.lock.holder is not None and self.lock.until_s > self.universe.now_s:
            return False
        self.lock.holder, self.lock.until_s = self, self.universe.now_s + LEASE_S
        return True

    def _renew_lock(self) -> bool:
        if self.lock.holder is not self:
            return False
        self.lock.until_s = self.universe.now_s + LEASE_S
        return True

    def _died(self) -> None:
        """A connection that breaks is noticed; the lock of a dead process falls with its session, in time."""
        for call in self._waiting.values():
            call.reject(lost())
        self._waiting.clear()
        if self.lock.holder is self:
            self.lock.until_s = min(self.lock.until_s, self.universe.now_s + 1.0)

    # ------------------------------------------------------------ requests and instructions

    def receive(self, peer: Hashable, tag: int, request: req.Request, call: Call | None) -> None:
        """A request arrives; `call` is answered when its reply leaves."""
        if not self.serving or self.process.stopped:
            if call is not None:
                call.reject(lost())
            return
        if call is not None:
            self._waiting[peer, tag] = call
        if isinstance(request, req.EndLease | CommitRequest):
            self.truth.lease_ended(request.start_ts)
        if isinstance(request, req.GrantLease | req.RenewLease):
            self._asked[peer, tag] = self.universe.now_s, request
        if not self._by_kernel(peer, tag, request):
            self.feed(ins.RequestCame(peer, tag, request))

    def _by_kernel(self, peer: Hashable, tag: int, request: req.Request) -> bool:
        """As a service does it: the machine is told the time, the kernel decides, the machine settles."""
        if self._kernel is None:
            return False
        self.feed()
        answers = self._kernel.take(peer, tag, request) if self.serving else []
        if answers is None:
            return False
        for answer in answers:
            self._reply(*answer)
        self.feed()
        return True

    @property
    def _wall_ns(self) -> int:
        """This machine's wall clock; 0 in universes without one, whose timestamps are no times."""
        if self.wall_skew_s is None:
            return 0
        return int((WALL_S + self.universe.now_s + self.wall_skew_s) * 1e9)

    def _set_clock(self) -> Any:
        """Somebody sets this machine's wall clock back and forward, by little, an hour and ten years."""
        choices = self.universe.choices
        while True:
            yield Sleep(choices.pick((1.0, 5.0, 20.0)))
            skew_s = (self.wall_skew_s or 0.0) + choices.pick(
                (0.0, 0.2, -0.2, 3_600.0, -3_600.0, TEN_YEARS_S, -TEN_YEARS_S)
            )
            self.wall_skew_s = max(skew_s, -TEN_YEARS_S)

    def feed(self, *events: ins.Event) -> None:
        if not self.serving:
            return
        for instruction in self.machine.handle(events, self.universe.now_s, self._wall_ns):
            match instruction:
                case ins.Reply(peer, tag, answer):
                    self._reply(peer, tag, answer)
                case ins.SendEncoded(replies):
                    for encoded in self._kernel.released(replies):
                        self._reply(*encoded)
                case ins.StoreCall(token, operation, delay_s):
                    self.store_call(token, operation, delay_s)
                case ins.Die(reason):
                    self.universe.note(f"{self.process.name} dies: {reason}")
                    self.universe.kill(self.process)
                    return
        self.machine.validate()

    def _reply(self, peer: Hashable, tag: int, answer: req.Answer) -> None:
        if isinstance(answer, BeginReply):
            self.truth.start_issued(answer.start_ts, f"{self.process.name} for {peer} {tag}")
        if isinstance(answer, req.LeaseReply):
            self._promise(answer, *self._asked[peer, tag])
        call = self._waiting.pop((peer, tag), None)
        if call is not None:
            call.resolve(answer)

    def _promise(self, answer: req.LeaseReply, asked_s: float, request: req.Request) -> None:
        """Both starts, where the lease that serves is another's: what is above the leased one counts as kept, too."""
        shared = isinstance(request, req.GrantLease) and request.shared
        for start in {answer.start_ts, request.start_ts}:  # type: ignore[union-attr]
            self.truth.lease_promised(start, asked_s + answer.term_s, shared=shared)

    # ------------------------------------------------------------ store calls

    def store_call(self, token: int, operation: Any, delay_s: float) -> None:
        parts, combine = self.parts_of(operation)
        self.universe.call(
            self.process,
            f"{type(operation).__name__}{_shown(operation)}",
            operation,
            parts,
            done=lambda result: self.feed(ins.StoreDone(token, result)),
            failed=lambda error: self.feed(ins.StoreFailed(token, _as_omid(error))),
            combine=combine,
            ordered=True,
            stepwise=isinstance(operation, ins.UpdateLeaderState),
            fallible=None if isinstance(operation, ins.ReadEpoch) or bool(getattr(operation, "cells", ())) else lost,
            not_before_s=self.universe.now_s + delay_s,
        )

    def take_over_call(self, operation: Any, done: Any, failed: Any) -> Call:
        parts, combine = self.parts_of(operation)
        label = f"{type(operation).__name__}{_shown(operation)}"
        return self.universe.call(
            self.process,
            label,
            operation,
            parts,
            done=done,
            failed=failed,
            combine=combine,
            ordered=True,
            stepwise=isinstance(operation, ins.UpdateLeaderState),
        )

    def parts_of(self, operation: Any) -> tuple[Sequence[Callable[[], Any]], Callable[[list[Any]], Any]]:
        """Each entry, branch and seal lands on its own, in random order; the epoch is read after them."""
        table, row = self.storage.disk.commits, self.storage.disk.leader_state
        shuffled = self.universe.choices.sample
        match operation:
            case ins.Flush():
                entries = _entries(operation)
                puts = [partial(self._put, start, commit) for start, commit in shuffled(entries, len(entries))]
                return [*puts, lambda: row.read().epoch], _flushed
            case ins.PutDecision(start_ts, commit_ts):
                return [partial(self._decide, start_ts, commit_ts), lambda: row.read().epoch], _flushed
            case ins.PutBranches(branches, commit_ts):
                chosen = shuffled(branches, len(branches))
                branch_puts = [partial(self._put_branch, branch, commit_ts) for branch in chosen]
                return [*branch_puts, lambda: row.read().epoch], _last
            case ins.LookupEntries(starts):
                return [partial(table.lookup, [start]) for start in starts], _flat
            case ins.SealEntries(starts):
                return [partial(table.seal, start) for start in starts], list
            case ins.DeleteBelow(horizon):
                return [partial(self.storage.delete_below, horizon)], _last
            case ins.ReadEpoch():
                return [lambda: row.read().epoch], _last
            case ins.ReadLeaderState():
                return [row.read], _last
            case ins.TakeOverEpoch(expected, epoch, ceiling):
                return [partial(row.take_over, expected=expected, epoch=epoch, ceiling=ceiling)], _last
            case ins.UpdateLeaderState(epoch, changes):
                swap = _Swap(row, epoch, changes)
                return [swap.read, swap.write], _nothing
            case ins.ReadTables():
                return [self._table_ids], _last
            case ins.MarkUnknownTable(unknown):
                return [partial(self.storage.disk.catalog.mark_unknown_table, unknown)], _nothing
        raise TypeError(f"the virtual TSO does not know {operation!r}")

    def _table_ids(self) -> frozenset[int]:
        return frozenset(table_id(info.name.encode()) for info in self.storage.disk.catalog.tables())

    def _put(self, start: int, commit_ts: int) -> list[int]:
        refused = self.storage.disk.commits.put([(start, commit_ts)])
        if self.storage.disk.commits.lookup([start]) == [commit_ts]:
            self.truth.entry_landed(start, commit_ts)
        return refused

    def _decide(self, start: int, commit_ts: int) -> list[int]:
        if not self.storage.disk.commits.put_unless_sealed(start, commit_ts):
            return [start]
        self.truth.entry_landed(start, commit_ts)
        return []

    def _put_branch(self, branch: int, commit_ts: int) -> None:
        self.storage.disk.commits.put_branches([branch], commit_ts)
        self.truth.entry_landed(branch, commit_ts)


class _Swap:
    """A change of the leader state over a network: read, then compare-and-set of the whole row, so that one whose
    answer was lost cannot take effect after a later one (decision 0004)."""

    def __init__(self, row: MemoryLeaderState, epoch: int, changes: LeaderStateChanges) -> None:
        self._row, self._epoch, self._changes = row, epoch, changes
        self._old = row.read()

    def read(self) -> None:
        self._old = self._row.read()

    def write(self) -> None:
        if self._row.read() is self._old or self._row.read().epoch != self._epoch:
            self._row.update(self._epoch, self._changes)
        else:
            raise Unavailable("the leader state changed meanwhile")


@dataclass(frozen=True, slots=True)
class _Step:
    """A small durable step of the leader itself."""

    label: str
    action: Callable[[], Any]


@dataclass(slots=True)
class Hosts:
    """All TSO processes, and how clients find the one that serves."""

    hosts: list[Host] = field(default_factory=list)

    @property
    def living(self) -> list[Host]:
        return [host for host in self.hosts if host.process.alive]

    def find(self) -> Host | None:
        """The newest that serves, as clients would find its address."""
        serving = [host for host in self.hosts if host.serving]
        return serving[-1] if serving else None


def perform_leader_step(host: Host, task: Any, effect: Any) -> Call:
    """What a leader's own task yields: a `_Step`, or an operation of the take-over."""
    if isinstance(effect, _Step):
        return host.universe.call(
            host.process, effect.label, effect, [effect.action], done=task.answer, failed=task.fail
        )
    return host.take_over_call(effect, task.answer, task.fail)


def _entries(flush: ins.Flush) -> list[tuple[int, int]]:
    """Those of the machine, and those a kernel decided."""
    decided = [] if flush.block is None else [(start, commit) for start, commit in flush.block.tolist()]
    return [*flush.entries, *decided]


def _shown(operation: Any) -> str:
    match operation:
        case ins.Flush():
            return f" {_entries(operation)}"
        case ins.UpdateLeaderState(_, changes):
            told = {name: value for name in changes.__slots__ if (value := getattr(changes, name)) not in (None, ())}
            return f" {told}"
        case ins.LookupEntries(starts) | ins.SealEntries(starts):
            return f" {list(starts)}"
        case ins.PutDecision(start_ts, commit_ts):
            return f" {start_ts} at {commit_ts}"
        case ins.PutBranches(branches, commit_ts):
            return f" {list(branches)} at {commit_ts}"
    return ""


def _as_omid(error: BaseException) -> OmidError:
    return error if isinstance(error, OmidError) else Unavailable(str(error))


def _flushed(results: list[Any]) -> ins.Flushed:
    *refused, epoch = results
    return ins.Flushed(frozenset(start for starts in refused for start in starts), epoch)


def _flat(results: list[Any]) -> list[Any]:
    return [state for states in results for state in states]


def _last(results: list[Any]) -> Any:
    return results[-1]


def _nothing(results: list[Any]) -> None:
    return None
