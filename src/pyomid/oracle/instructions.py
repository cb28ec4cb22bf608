"""Events that go into the TSO's machine, instructions that come out of it, and what it reports of itself.

A `StoreCall` holds one of the operations below. The driver performs it and gives back `StoreDone` with the result that
the operation names, or `StoreFailed`. Every operation may be performed again after a failure: each names a state to
reach, not a step to take. *Then the epoch* means that the epoch is read fresh after the write is durable (T5); a driver
whose store can do both in one transaction may do so.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pyomid.arrays import NDArray, np
from pyomid.errors import OmidError
from pyomid.types import LeaderStateChanges, TimePoint
from pyomid.wire.messages import Answer, Request


@dataclass(frozen=True, slots=True)
class RequestCame:
    """A peer sent a request. `tag` comes back with the answer; the machine does not look at it."""

    peer: Hashable
    tag: int
    request: Request


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The peer left: its begins are dropped; commits that it requested stay decided."""

    peer: Hashable


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process of a peer that left has ended: nothing works with what it received."""

    peer: Hashable


@dataclass(frozen=True, slots=True)
class StoreDone:
    token: int
    result: object = None


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The call failed. The operation may have taken effect in part."""

    token: int
    error: OmidError


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The leader's own lease holds until `until_s` of the clock that `handle` is given. Begins depend on it."""

    until_s: float


Event = RequestCame | PeerGone | ProcessEnded | StoreDone | StoreFailed | LeaseRenewed


@dataclass(frozen=True, slots=True)
class Flush:
    """→ Flushed. The entries (start, commit) are durable, then the epoch."""

    entries: tuple[tuple[int, int], ...]
    block: NDArray[np.int64] | None = None
    """More entries, as rows (start, commit)."""

    @property
    def size(self) -> int:
        return len(self.entries) + (0 if self.block is None else len(self.block))


@dataclass(frozen=True, slots=True)
class Flushed:
    """`refused`: starts whose entry an invalidation marker refused (empty where the store cannot tell)."""

    refused: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class PutDecision:
    """→ Flushed. A large commit's entry, if there is no invalidation marker; then the epoch."""

    start_ts: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class PutBranches:
    """→ int, the epoch. The branches' entries, each replacing an invalidation marker (T13); then the epoch."""

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
    """→ None. Entries of completed transactions."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteBelow:
    """→ int, how many entries and invalidation markers were deleted."""

    horizon: int


@dataclass(frozen=True, slots=True)
class ReadEpoch:
    """→ int, the epoch of the leader state, fresh."""


@dataclass(frozen=True, slots=True)
class ReadLeaderState:
    """→ LeaderRecord, fresh."""


@dataclass(frozen=True, slots=True)
class TakeOverEpoch:
    """→ bool: whether the compare-and-set of the leader state took place."""

    expected: int
    epoch: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class UpdateLeaderState:
    """→ None, durable. `Deposed` if the leader state holds another epoch."""

    epoch: int
    changes: LeaderStateChanges


@dataclass(frozen=True, slots=True)
class ReadCeiling:
    """→ int, the ceiling, if it is kept outside the leader state."""


@dataclass(frozen=True, slots=True)
class MoveCeiling:
    """→ bool: whether the compare-and-set of the ceiling took place, if it is kept outside the leader state."""

    expected: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class ReadTables:
    """→ frozenset[int], the ids of all tables in the catalog, fresh."""


@dataclass(frozen=True, slots=True)
class MarkUnknownTable:
    """→ None, durable (K6)."""

    table_id: int


@dataclass(frozen=True, slots=True)
class ReadTimePoints:
    """→ list[TimePoint], fresh, ascending by start."""


@dataclass(frozen=True, slots=True)
class NoteTime:
    """→ None, durable; the points of the starts `gone` are deleted."""

    point: TimePoint
    gone: tuple[int, ...] = ()


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
    | ReadTimePoints
    | NoteTime
)


@dataclass(frozen=True, slots=True)
class Reply:
    """Send the answer now: everything that it promises is durable."""

    peer: Hashable
    tag: int
    answer: Answer


class EncodedReplies(Protocol):
    """Answers to a peer's commits of one batch, as bytes: written when a kernel decided them, sent when the batch is
    released."""

    @property
    def peer(self) -> Hashable: ...

    @property
    def data(self) -> bytes: ...

    @property
    def count(self) -> int: ...

    def without(self, refused: frozenset[int]) -> EncodedReplies:
        """The same answers, with "aborted" for these starts, whose entries invalidation markers refused."""
        ...


@dataclass(frozen=True, slots=True)
class SendEncoded:
    """Send the answers now: everything that they promise is durable."""

    replies: EncodedReplies


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Perform the operation, not before `delay_s` from now. Calls may run and end in any order."""

    token: int
    operation: StoreOperation
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Die:
    """End the process at once, without sending anything: another TSO leads, or may lead."""

    reason: str


Instruction = Reply | SendEncoded | StoreCall | Die


FORMER_COUNTERS: Final = {"memory_hogs": "hoarders", "entries_sanitized": "entries_sanitised"}
"""Former names of counters: until the next release they are reported too."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What a service reports of its machine, as of this moment."""

    epoch: int
    last_ts: int
    low_watermark: int
    watermark: int
    horizon: int
    leases: int
    pending: int
    """Large commits."""
    in_flight: int
    """Commits that are not yet answered."""
    conflict_map_entries: int
    conflict_map_entries_max: int
    retention_s: float
    """For how long history is kept; 0: no longer than a reader needs it."""
    counters: Mapping[str, int]
    """0 where there is none."""
    watermark_held: str = ""
    """By what W is held back: open start, lease, large commit, retention; empty where it follows the newest start."""
    watermark_holder: str = ""
    """Whose that is, as text for operators; empty if unknown."""
