"""The machine's output: answers to peers, and calls to its store.

    Step           the time of the current step, and its instructions; answers are held while the TSO is in doubt
    StoreRequests  store calls in flight, retried while they fail, and the procedures that wait for them
    PeerRequests   a queue of procedures per peer, of which a few run at once

A request that takes several store calls is a *procedure*: a routine that awaits store operations, `EpochWrite` or
`AfterBatch`. An `EpochWrite` changes the leader state; changes that wait are merged, and one write runs at a time. The
procedure receives the result, or the store's error after the last retry.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from pyomid.coroutines import Effect, Routine
from pyomid.errors import Corruption, Deposed, OmidError, Unavailable
from pyomid.omid.oracle.instructions import (
    Die,
    Instruction,
    Reply,
    SendEncoded,
    StoreCall,
    StoreOperation,
    UpdateLeaderState,
)
from pyomid.omid.wire.messages import Answer, Refused
from pyomid.types import LeaderStateChanges, PendingCommit

RETRY_DELAY_S: Final = 0.01
"""The delay before the first retry of a failed store call. It doubles up to `RETRY_DELAY_S_MAX`."""

RETRY_DELAY_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class AfterBatch(Effect[None]):
    """Makes a procedure wait until batch `seq` is released. If the batch was released before, there is no wait."""

    seq: int


@dataclass(frozen=True, slots=True)
class EpochWrite(Effect[None]):
    """Makes a procedure wait until these changes of the leader state are durable."""

    changes: LeaderStateChanges


Procedure = Routine[None]
"""A routine whose effects are `AfterBatch`, `EpochWrite` and store operations."""


class Death(Exception):
    """Ends the machine, which then returns `Die` and no other instruction."""


class Step:
    """The machine's present step, shared by all parts of the machine. A driver may read only `now_s`, `in_doubt` and
    `has_more_begins`."""

    __slots__ = ("_held", "_out", "counters", "has_more_begins", "in_doubt", "now_s", "number", "wall_ns")

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        """Monotonic time, which counts suspension."""
        self.in_doubt = False
        """T4: true from a stall until the leader state has been read. Meanwhile all answers are held."""
        self.has_more_begins = False
        """True if the step left begins that can be answered. Then call the next step soon."""
        self.wall_ns = 0
        """Wall-clock time in nanoseconds since 1970, without an absurd jump (`wall_clock`); 0 if unknown."""
        self.number = 1
        """The number of steps so far. Compiled code compares it to notice a new step."""
        self.counters: Counter[str] = Counter()
        self._held: list[Reply | SendEncoded] = []
        self._out: list[Instruction] = []

    def reply(self, peer: Hashable, tag: int, answer: Answer) -> None:
        (self._held if self.in_doubt else self._out).append(Reply(peer, tag, answer))

    def refuse(self, peer: Hashable, tag: int, error: OmidError) -> None:
        self.counters["refused"] += 1
        self.reply(peer, tag, Refused.of(error))

    def send(self, answer: Reply | SendEncoded) -> None:
        (self._held if self.in_doubt else self._out).append(answer)

    def call_store(self, call: StoreCall) -> None:
        self._out.append(call)

    def end_doubt(self) -> None:
        self.in_doubt = False
        self._out.extend(self._held)
        self._held = []

    def die(self, reason: str) -> None:
        """Replace all instructions by `Die`."""
        self._out = [Die(reason)]

    def take_instructions(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    def validate(self) -> None:
        assert self.in_doubt or not self._held, "answers are held only in doubt"


@dataclass(slots=True)
class _Call:
    """A store call in flight."""

    operation: StoreOperation
    resume: Callable[[Any], None]
    fail: Callable[[OmidError], None]
    failures: int = 0
    first_failed_s: float = 0.0


class StoreRequests:
    """The store calls of one TSO. A failing call is retried for `retry_s`."""

    def __init__(self, step: Step, epoch: int, *, retry_s: float) -> None:
        self._step = step
        self._epoch = epoch
        self._retry_s = retry_s
        self._calls: dict[int, _Call] = {}
        self._next_token = 1
        self._epoch_queue: list[tuple[LeaderStateChanges, Callable[[Any], None]]] = []
        self._epoch_writing = False
        self._released_seq = 0
        self._after_release: dict[int, list[Procedure]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no call is in flight."""
        return not self._calls

    def run(self, procedure: Procedure, result: Any = None, error: OmidError | None = None) -> None:
        """Run a procedure until it waits again."""
        try:
            step = procedure.send(result) if error is None else procedure.throw(error)
        except StopIteration:
            return
        except OmidError as failed:
            self._give_up(failed)
        match step:
            case AfterBatch(seq) if seq <= self._released_seq:
                self.run(procedure)
            case AfterBatch(seq):
                self._after_release.setdefault(seq, []).append(procedure)
            case EpochWrite(changes):
                self._epoch_queue.append((changes, lambda done: self.run(procedure, done)))
                self.start_epoch_write()
            case operation:
                self.call(
                    operation,  # type: ignore[arg-type]
                    lambda done: self.run(procedure, done),
                    lambda failed: self.run(procedure, None, failed),
                )

    def call(
        self,
        operation: StoreOperation,
        resume: Callable[[Any], None],
        fail: Callable[[OmidError], None] | None = None,
    ) -> None:
        """Begin a store call. `resume` receives its result, `fail` its error; without `fail` an error ends the
        machine."""
        token = self._next_token
        self._next_token += 1
        self._calls[token] = _Call(operation, resume, fail or self._give_up)
        self._step.call_store(StoreCall(token, operation))

    def start_epoch_write(self) -> None:
        """Begin the next write of the leader state. Only one runs at a time, because the laws of durability depend on
        the order of these writes."""
        if self._epoch_writing or not self._epoch_queue:
            return
        self._epoch_writing = True
        queue, self._epoch_queue = self._epoch_queue, []

        def written(_: Any) -> None:
            self._epoch_writing = False
            for _changes, resume in queue:
                resume(None)
            self.start_epoch_write()

        self.call(UpdateLeaderState(self._epoch, merged(changes for changes, _ in queue)), written)

    def check_epoch(self, epoch: int) -> None:
        """T5: end the machine unless `epoch`, read after a write or a stall, is its own."""
        if epoch != self._epoch:
            raise Death(f"the leader state holds {epoch}, not {self._epoch}: another TSO leads")

    def done(self, token: int, result: Any) -> None:
        """Resume the procedure of a call that succeeded. An unknown token is ignored."""
        call = self._calls.pop(token, None)
        if call is not None:
            call.resume(result)

    def failed(self, token: int, error: OmidError) -> None:
        """Retry a failed call, for up to `retry_s`. After that its `fail` is called, which refuses the request, or ends
        the machine if the caller gave none."""
        call = self._calls.get(token)
        if call is None:
            return
        if isinstance(error, Deposed | Corruption) or not isinstance(error, Unavailable):
            raise Death(f"{type(call.operation).__name__}: {error.message}")
        self._step.counters["store_failures"] += 1
        now_s = self._step.now_s
        call.failures += 1
        if call.failures == 1:
            call.first_failed_s = now_s
        if now_s - call.first_failed_s >= self._retry_s:
            del self._calls[token]
            call.fail(error)
            return
        delay_s = min(RETRY_DELAY_S * 2 ** (call.failures - 1), RETRY_DELAY_S_MAX)
        self._step.call_store(StoreCall(token, call.operation, delay_s))

    def released(self, seq: int) -> None:
        """Resume the procedures that wait for batch `seq`, which was released. Batches are released in order."""
        self._released_seq = seq
        for procedure in self._after_release.pop(seq, ()):
            self.run(procedure)

    def _give_up(self, error: OmidError) -> NoReturn:
        raise Death(f"the store has failed for {self._retry_s} s: {error.message}") from error


class PeerRequests:
    """A queue for requests that take store calls of their own: seals, retries, large commits, sanitizing. A few of each
    peer run at once.

    A peer's further requests wait here in their order, so one peer never delays everybody's flushes. When a peer
    disconnects, its waiting requests are dropped. `run` runs a procedure until it waits again (`StoreRequests.run`).
    """

    def __init__(self, run: Callable[[Procedure], None], *, at_once_max: int) -> None:
        self._run = run
        self._at_once_max = at_once_max
        self._running: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[tuple[Procedure, Callable[[], None]]]] = {}
        self._due: deque[Hashable] = deque()
        """Peers whose request has ended: `start_due` begins their next one."""
        self._gone: set[Hashable] = set()
        """Peers that disconnected while one of their requests was running."""

    def __len__(self) -> int:
        """Return the number of requests that have not begun."""
        return sum(len(line) for line in self._waiting.values())

    def ask(self, peer: Hashable, procedure: Procedure, dropped: Callable[[], None] = lambda: None) -> None:
        """Run the procedure when it is the peer's turn. If the peer disconnects before that, `dropped` is called
        instead."""
        if self._running.get(peer, 0) >= self._at_once_max:
            self._waiting.setdefault(peer, deque()).append((procedure, dropped))
        else:
            self._start(peer, procedure)

    def start_due(self) -> None:
        """Begin the next requests of peers whose request has ended. The ended request itself must not call this, or
        calls would nest without bound."""
        while self._due:
            peer = self._due.popleft()
            line = self._waiting.get(peer)
            if not line:
                continue
            procedure, _ = line.popleft()
            if not line:
                del self._waiting[peer]
            self._start(peer, procedure)

    def forget(self, peer: Hashable) -> None:
        """Drop the requests, not yet begun, of a peer that disconnected."""
        for procedure, dropped in self._waiting.pop(peer, ()):
            procedure.close()
            dropped()
        if peer in self._running:
            self._gone.add(peer)

    def is_awaited(self, peer: Hashable) -> bool:
        """Return whether the peer is still connected. A long request checks this between two store calls."""
        return peer not in self._gone

    def _start(self, peer: Hashable, procedure: Procedure) -> None:
        self._running[peer] = self._running.get(peer, 0) + 1
        self._run(self._counted(peer, procedure))

    async def _counted(self, peer: Hashable, procedure: Procedure) -> None:
        await procedure
        self._running[peer] -= 1
        if not self._running[peer]:
            del self._running[peer]
            self._gone.discard(peer)
        self._due.append(peer)


def merged(changes: Iterable[LeaderStateChanges]) -> LeaderStateChanges:
    """Return one change of the leader state with the effect of all `changes` in their order. Of two changes to the same
    lease or pending record, the later wins. Ceiling, W and H only rise."""
    ceiling: int | None = None
    watermark: int | None = None
    horizon: int | None = None
    retention_ms: int | None = None
    leases: dict[int, bool] = {}
    pending: dict[int, PendingCommit | None] = {}
    for change in changes:
        ceiling = _higher(ceiling, change.ceiling)
        watermark = _higher(watermark, change.watermark)
        horizon = _higher(horizon, change.horizon)
        retention_ms = retention_ms if change.retention_ms is None else change.retention_ms
        leases.update(dict.fromkeys(change.leases_removed, False))
        leases.update(dict.fromkeys(change.leases_added, True))
        pending.update(dict.fromkeys(change.pending_removed))
        pending.update({record.start_ts: record for record in change.pending_added})
    return LeaderStateChanges(
        ceiling=ceiling,
        watermark=watermark,
        horizon=horizon,
        leases_added=tuple(start for start, there in leases.items() if there),
        leases_removed=tuple(start for start, there in leases.items() if not there),
        pending_added=tuple(record for record in pending.values() if record is not None),
        pending_removed=tuple(start for start, record in pending.items() if record is None),
        retention_ms=retention_ms,
    )


def _higher(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
