"""What the blocking, the asyncio and the Spark transaction share: owner, lease, workspace, and the states:

    ACTIVE ──commit──▶ COMMITTING ──committed──▶ COMMITTED
      │ │                  ├───────refused──────▶ ROLLED_BACK
      │ └─doom─▶ DOOMED    ├───────failed───────▶ DOOMED         nothing was sent, or nothing took effect
      │             │      └───────lost─────────▶ UNKNOWN        the commit may have happened
      └──roll_back──┴──────────────────────────▶ ROLLED_BACK

An event that the present state does not know raises and changes nothing. DOOMED is "rollback-only": reads still work,
writes and commit are refused.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from pyomid.client.session.leases import Lease
from pyomid.errors import ConflictError, Misuse, OmidError, OutcomeUnknown, SnapshotTooOld, TransactionEnded
from pyomid.protocol.commit import WriteSet, commit_steps
from pyomid.protocol.effects import Steps
from pyomid.types import AbortReason, CommitReply, CommitRequest

logger = logging.getLogger(__name__)


class State(StrEnum):
    ACTIVE = "active"
    DOOMED = "rollback-only"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "of unknown outcome"


class Event(StrEnum):
    DOOM = "mark rollback-only"
    COMMIT = "commit"
    COMMITTED = "be acknowledged"
    REFUSED = "be refused"
    FAILED = "fail before the commit"
    LOST = "lose its answer"
    ROLL_BACK = "roll back"
    WRITE = "write"
    READ = "read"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.ACTIVE, Event.READ): State.ACTIVE,
    (State.ACTIVE, Event.WRITE): State.ACTIVE,
    (State.ACTIVE, Event.DOOM): State.DOOMED,
    (State.ACTIVE, Event.COMMIT): State.COMMITTING,
    (State.ACTIVE, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.DOOMED, Event.READ): State.DOOMED,
    (State.DOOMED, Event.DOOM): State.DOOMED,
    (State.DOOMED, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.COMMITTING, Event.COMMITTED): State.COMMITTED,
    (State.COMMITTING, Event.REFUSED): State.ROLLED_BACK,
    (State.COMMITTING, Event.FAILED): State.DOOMED,
    (State.COMMITTING, Event.LOST): State.UNKNOWN,
}

ENDED: Final = frozenset({State.COMMITTED, State.ROLLED_BACK, State.UNKNOWN})

NEED_LEASE: Final = frozenset({Event.READ, Event.WRITE, Event.COMMIT})


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a commit that was asked for, and of which cells that is to be told or undone."""

    reply: CommitReply
    written: WriteSet


def next_state(state: State, event: Event, *, start_ts: int, reason: str = "") -> State:
    """The state after `event`; `TransactionEnded` where the table has no line, saying why if a reason is known."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        because = f" ({reason})" if reason else ""
        raise TransactionEnded(
            f"transaction {start_ts} is {state.value}{because}: it cannot {event.value}",
            start_ts=start_ts,
            state=state.value,
        )
    return after


class Writes(Protocol):
    """What the end of a transaction asks of what it wrote: itself (`client.transaction_steps`), or by Spark's tasks."""

    @property
    def start_ts(self) -> int: ...

    @property
    def is_torn(self) -> bool:
        """Some of what was sent to the store may be there and some not."""

    @property
    def wrote(self) -> bool:
        """There is something to decide."""

    def flush_steps(self) -> Steps[None]:
        """All that was written is durable on return (law 1)."""

    def commit_request(self) -> CommitRequest: ...

    def write_set(self) -> WriteSet:
        """Cells that are evidence of the commit, should its answer be lost."""


T = TypeVar("T")
W = TypeVar("W", bound=Writes)


class TransactionBase(Generic[W]):
    """One transaction's, from begin to end. Belongs to the thread and process that made it."""

    def __init__(
        self,
        workspace: W,
        *,
        lease: Lease | None = None,
        end_lease: Callable[[Lease], None] | None = None,
    ) -> None:
        self.workspace: Final = workspace
        """The reads and writes themselves; for pyomid's own use."""
        self._lease = lease
        self._end_lease = end_lease
        self._state = State.ACTIVE
        self._doom = ""
        self._commit_ts: int | None = None
        self._thread = threading.get_ident()
        self._pid = os.getpid()

    @property
    def start_ts(self) -> int:
        """The snapshot: the transaction sees everything that was committed before this timestamp."""
        return self.workspace.start_ts

    @property
    def commit_ts(self) -> int | None:
        """When it committed; None until then, and for a transaction that wrote nothing."""
        return self._commit_ts

    @property
    def state(self) -> State:
        return self._state

    def mark_rollback_only(self, reason: str = "marked so by the program") -> None:
        """Refuses the commit from now on; the transaction can still read."""
        self.doom(Event.DOOM, reason)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.start_ts} {self._state.value}>"

    # The end, as every front end drives it

    def commit_steps(self) -> Steps[None]:
        return self.alone(self._commit_steps())

    def rollback_steps(self) -> Steps[None]:
        self.check_owner()
        if self._state is State.ROLLED_BACK:
            return
        self.step(Event.ROLL_BACK)
        yield from self._rolled_back_steps()

    def block_steps(self, inside: Steps[T]) -> Steps[T]:
        """What `inside` returns, committed; rolled back where it raises."""
        self.step(Event.READ)
        try:
            result = yield from inside
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self.exit_steps(type(error))
            raise
        yield from self.exit_steps(None)
        return result

    def exit_steps(self, error: type[BaseException] | None) -> Steps[None]:
        """The end of a block that ended with `error`."""
        if self._state in ENDED:
            return
        if error is not None:
            if self.can_roll_back:
                yield from self.rollback_steps()
            return
        try:
            yield from self.commit_steps()
        except GeneratorExit:  # nobody performs anything for it any more
            raise
        except BaseException:
            if self._state is State.DOOMED:
                yield from self.rollback_steps()
            raise

    # For pyomid's own use

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def step(self, event: Event) -> None:
        """Refuses what thread, process, lease or state do not allow; otherwise the state after `event`."""
        self.check_owner()
        if self._state is State.ACTIVE and self._lease is None and (event is Event.WRITE or event is Event.READ):
            return  # Thousands of puts come this way; the table below says the same.
        if self._lease is not None and self._lease.lost is not None and event in NEED_LEASE:
            self._doom = self._doom or str(self._lease.lost)
            self._state = State.DOOMED if self._state is State.ACTIVE else self._state
            raise self._lease.lost
        self._state = next_state(self._state, event, start_ts=self.start_ts, reason=self._doom)
        if self._state in ENDED and self._lease is not None:
            lease, self._lease = self._lease, None
            self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        """The end of the transaction is told already: no error of this may pass for one of its commit."""
        if self._end_lease is None:
            return
        try:
            self._end_lease(lease)
        except Exception as error:
            logger.warning("lease on %d not ended, its term will: %s", lease.start_ts, error)

    def doom(self, event: Event, reason: str) -> None:
        """`step` to rollback-only; the first reason is the one that is told."""
        self.step(event)
        self._doom = self._doom or reason

    def alone(self, steps: Steps[T]) -> Steps[T]:
        """The same steps, where no other call may come beside them."""
        return steps

    def _committed_steps(self, decided: Decided) -> Steps[None]:
        """Behind the answer: no error of it is the commit's."""
        yield from ()

    def _rolled_back_steps(self) -> Steps[None]:
        """What was written goes; what stays is for compaction."""
        yield from ()

    def _commit_steps(self) -> Steps[None]:
        decided = yield from self._decided_steps()
        if decided is None:
            return
        if not decided.reply.committed:
            yield from self._rolled_back_steps()
            raise refusal(decided.reply)
        yield from self._committed_steps(decided)

    def _decided_steps(self) -> Steps[Decided | None]:
        """None for a transaction that wrote nothing. Whatever is thrown into it at whatever yield, the state that it
        leaves is true: before the request rollback-only, from then on until the answer unknown.
        """
        if self.workspace.is_torn and self._state is State.ACTIVE:
            self.doom(Event.DOOM, "a flush of its writes did not end")
        asked = False
        try:
            self.step(Event.COMMIT)
            yield from self.workspace.flush_steps()
            if not self.workspace.wrote:
                self.step(Event.COMMITTED)
                return None
            request, written = self.workspace.commit_request(), self.workspace.write_set()
            asked = True
            reply = yield from commit_steps(request, written)
            self._decide(reply)
            return Decided(reply, written)
        except BaseException as error:
            if self._state is State.COMMITTING:
                self._fail(error, asked=asked)
            raise

    def _decide(self, reply: CommitReply) -> None:
        if reply.committed:
            self._commit_ts = reply.commit_ts
            self.step(Event.COMMITTED)
        else:
            self.step(Event.REFUSED)

    def _fail(self, error: BaseException, *, asked: bool) -> None:
        if not asked:
            self.doom(Event.FAILED, f"its writes did not all reach the store: {error}")
        elif isinstance(error, OmidError) and not isinstance(error, OutcomeUnknown):
            self.doom(Event.FAILED, f"its commit request took no effect: {error}")
        else:
            self.step(Event.LOST)

    def check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise Misuse(
                f"transaction {self.start_ts} was begun by process {self._pid} and is used in its forked child "
                f"{os.getpid()}: connect and begin again in the child",
                start_ts=self.start_ts,
            )
        if threading.get_ident() != self._thread:
            raise Misuse(
                f"transaction {self.start_ts} belongs to the thread that began it and is used in thread "
                f"{threading.current_thread().name!r}: begin one in each thread",
                start_ts=self.start_ts,
            )

    @property
    def can_roll_back(self) -> bool:
        """By its owner, and not ended or ending: what a block's exit asks before it rolls back."""
        is_owner = os.getpid() == self._pid and threading.get_ident() == self._thread
        return is_owner and self._state in (State.ACTIVE, State.DOOMED)


def refusal(reply: CommitReply) -> ConflictError:
    """The error for an aborted commit, with the commit that caused it where it is known."""
    kind = SnapshotTooOld if reply.reason in _TOO_OLD else ConflictError
    because = _REASONS.get(reply.reason, "another transaction won") if reply.reason else "another transaction won"
    values = {"commit_ts": reply.conflict_ts} if reply.conflict_ts else {}
    by = f" (commit {reply.conflict_ts})" if reply.conflict_ts else ""
    return kind(f"transaction {reply.start_ts} aborted: {because}{by}", start_ts=reply.start_ts, **values)


_TOO_OLD: Final = frozenset({AbortReason.LEASE_LOST})
_REASONS: Final = {
    AbortReason.CONFLICT: "another transaction committed a cell that it wrote",
    AbortReason.LOW_WATERMARK: "it is older than what the TSO remembers of other commits",
    AbortReason.FENCE: "a table that it wrote was fenced",
    AbortReason.TABLE: "another transaction committed to a table that it claimed as a whole",
    AbortReason.SEALED: "it was sealed as dead by a reader",
    AbortReason.LEASE_LOST: "its lease expired",
    AbortReason.RETRY_UNKNOWN: "its first commit request was never decided",
}
