"""What goes into the TSO's machine and what comes out: events in, instructions out, nothing else.

A `StoreCall` carries one of the operations below; its driver performs it and gives back `StoreDone` with the result
named at the operation, or `StoreFailed`. Every operation may be performed again after a failure: each names a state
to reach, not a step to take. *Then the epoch* means: read fresh, after the write is durable (T5); a driver whose
store does both in one transaction may.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import OmidError
from pyomid.types import LeaderStateChanges
from pyomid.wire.messages import Answer, Request


@dataclass(frozen=True, slots=True)
class RequestCame:
    """`tag` comes back with the answer; the machine does not look at it."""

    peer: Hashable
    tag: int
    request: Request


@dataclass(frozen=True, slots=True)
class PeerGone:
    """Nobody waits for this peer's begins any more; what it asked to be decided stays decided."""

    peer: Hashable


@dataclass(frozen=True, slots=True)
class StoreDone:
    token: int
    result: object = None


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The operation may have taken effect in part."""

    token: int
    error: OmidError


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The leader's own lease holds until `until_s` of the clock that `handle` is given (begins are fenced by it)."""

    until_s: float


Event = RequestCame | PeerGone | StoreDone | StoreFailed | LeaseRenewed


@dataclass(frozen=True, slots=True)
class Flush:
    """→ Flushed. Entries (start, commit) durable, then the epoch."""

    entries: tuple[tuple[int, int], ...]
    block: NDArray[np.int64] | None = None
    """More entries, as rows (start, commit)."""

    @property
    def size(self) -> int:
        return len(self.entries) + (0 if self.block is None else len(self.block))


@dataclass(frozen=True, slots=True)
class Flushed:
    """`refused`: starts whose entry a mark kept out (empty where the store cannot tell)."""

    refused: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class PutDecision:
    """→ Flushed. A large commit's entry, iff no mark is there; then the epoch."""

    start_ts: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class PutBranches:
    """→ int, the epoch. The branches' entries, each replacing a mark (T13); then the epoch."""

    branches: tuple[int, ...]
    commit_ts: int


@dataclass(frozen=True, slots=True)
class LookupEntries:
    """→ list[int] in order: commit timestamp, NOT_FOUND or SEALED."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SealEntries:
    """→ list[SealOutcome] in order."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteEntries:
    """→ None. Completion."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteBelow:
    """→ int, how many entries and marks went."""

    horizon: int


@dataclass(frozen=True, slots=True)
class ReadEpoch:
    """→ int, the epoch in the row, fresh."""


@dataclass(frozen=True, slots=True)
class ReadLeaderState:
    """→ LeaderRecord, fresh."""


@dataclass(frozen=True, slots=True)
class TakeOverEpoch:
    """→ bool: the leader state's compare-and-set."""

    expected: int
    epoch: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class UpdateLeaderState:
    """→ None, durable; `Deposed` where the row holds another epoch."""

    epoch: int
    changes: LeaderStateChanges


@dataclass(frozen=True, slots=True)
class ReadCeiling:
    """→ int, where the ceiling is kept outside the leader state."""


@dataclass(frozen=True, slots=True)
class MoveCeiling:
    """→ bool: the ceiling's compare-and-set, where it is kept outside the leader state."""

    expected: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class ReadTables:
    """→ frozenset[int], the ids of all tables in the catalog, fresh."""


@dataclass(frozen=True, slots=True)
class MarkUnknownTable:
    """→ None, durable (K6)."""

    table_id: int


StoreOperation = (
    Flush
    | PutDecision
    | PutBranches
    | LookupEntries
    | SealEntries
    | DeleteEntries
    | DeleteBelow
    | ReadEpoch
    | ReadLeaderState
    | TakeOverEpoch
    | UpdateLeaderState
    | ReadCeiling
    | MoveCeiling
    | ReadTables
    | MarkUnknownTable
)


@dataclass(frozen=True, slots=True)
class Reply:
    """Send it now: everything it promises is durable."""

    peer: Hashable
    tag: int
    answer: Answer


class EncodedReplies(Protocol):
    """Answers of one peer to commits of one batch, as bytes: written when a kernel decided them, sent on release."""

    @property
    def peer(self) -> Hashable: ...

    @property
    def data(self) -> bytes: ...

    @property
    def count(self) -> int: ...

    def without(self, refused: frozenset[int]) -> EncodedReplies:
        """The same where marks refused the entries of these starts: their answers say aborted."""
        ...


@dataclass(frozen=True, slots=True)
class SendEncoded:
    """Send it now: everything it promises is durable."""

    replies: EncodedReplies


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Perform it, not before `delay_s` from now; calls may run and end in any order."""

    token: int
    operation: StoreOperation
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Die:
    """End the process at once, without sending anything: somebody else may lead, or nobody can know."""

    reason: str


Instruction = Reply | SendEncoded | StoreCall | Die
