"""The events and instructions of the TSO's machine, and its report.

A `StoreCall` holds one of the operations below. The driver performs it and returns `StoreDone` with the result that
the operation names, or `StoreFailed`. Every operation is idempotent, so the driver may repeat it after a failure. *Then
the epoch* means: after the write is durable, the driver reads the epoch fresh (T5). A store may do both in one
transaction.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.coroutines import Effect
from pyomid.errors import OmidError
from pyomid.omid.wire.messages import Answer, Request
from pyomid.types import LeaderRecord, LeaderStateChanges, SealOutcome


@dataclass(frozen=True, slots=True)
class RequestCame:
    """A peer sent a request. The answer carries the same `tag`, which the machine does not interpret."""

    peer: Hashable
    tag: int
    request: Request


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The peer disconnected: its waiting begins are dropped; its commits stay decided."""

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


Event = RequestCame | PeerGone | StoreDone | StoreFailed | LeaseRenewed


@dataclass(frozen=True, slots=True)
class Flushed:
    """`refused`: starts whose entry an invalidation marker refused (empty if the store cannot detect that)."""

    refused: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class Flush(Effect[Flushed]):
    """Make the entries (start, commit) durable, then read the epoch."""

    entries: tuple[tuple[int, int], ...]
    block: NDArray[np.int64] | None = None
    """More entries, as rows (start, commit)."""

    @property
    def size(self) -> int:
        return len(self.entries) + (0 if self.block is None else len(self.block))


@dataclass(frozen=True, slots=True)
class PutDecision(Effect[Flushed]):
    """Put a large commit's entry, if there is no invalidation marker; then the epoch."""

    start_ts: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class PutBranches(Effect[int]):
    """The epoch. Put the branches' entries, each replacing an invalidation marker (T13); then the epoch."""

    branches: tuple[int, ...]
    commit_ts: int


@dataclass(frozen=True, slots=True)
class LookupEntries(Effect[list[int]]):
    """In the order of `starts`: commit timestamp, NOT_FOUND or SEALED."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SealEntries(Effect[list[SealOutcome]]):
    """In the order of `starts`."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteBelow(Effect[int]):
    """The number of entries and invalidation markers deleted."""

    horizon: int


@dataclass(frozen=True, slots=True)
class ReadEpoch(Effect[int]):
    """The epoch of the leader state, fresh."""


@dataclass(frozen=True, slots=True)
class ReadLeaderState(Effect[LeaderRecord]):
    """Fresh."""


@dataclass(frozen=True, slots=True)
class TakeOverEpoch(Effect[bool]):
    """Whether the compare-and-set of the leader state succeeded."""

    expected: int
    epoch: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class UpdateLeaderState(Effect[None]):
    """Durable. `Deposed` if the leader state holds another epoch."""

    epoch: int
    changes: LeaderStateChanges


@dataclass(frozen=True, slots=True)
class ReadCeiling(Effect[int]):
    """The ceiling, if it is kept outside the leader state."""


@dataclass(frozen=True, slots=True)
class MoveCeiling(Effect[bool]):
    """Whether the compare-and-set of the ceiling succeeded, if it is kept outside the leader state."""

    expected: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class ReadTables(Effect[frozenset[int]]):
    """The ids of all tables in the catalog, fresh."""


@dataclass(frozen=True, slots=True)
class MarkUnknownTable(Effect[None]):
    """Durable (K6)."""

    table_id: int


StoreOperation = (
    Flush
    | PutDecision
    | PutBranches
    | LookupEntries
    | SealEntries
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
    """Send the answer now: everything it promises is durable."""

    peer: Hashable
    tag: int
    answer: Answer


class EncodedReplies(Protocol):
    """Answers to a peer's commits of one batch, encoded by compiled code when it decides; sent when the batch is
    released."""

    @property
    def peer(self) -> Hashable: ...

    @property
    def data(self) -> bytes: ...

    @property
    def count(self) -> int: ...

    def without(self, refused: frozenset[int]) -> EncodedReplies:
        """Return the same answers, with "aborted" for starts whose entries invalidation markers refused."""
        ...


@dataclass(frozen=True, slots=True)
class SendEncoded:
    """Send the answers now: everything they promise is durable."""

    replies: EncodedReplies


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Perform the operation, not before `delay_s` from now. Calls may run and end in any order."""

    token: int
    operation: StoreOperation
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Die:
    """Exit at once without sending anything: another TSO leads, or may lead."""

    reason: str


Instruction = Reply | SendEncoded | StoreCall | Die


@dataclass(frozen=True, slots=True)
class MachineReport:
    """The machine's present state, for the service's reports."""

    epoch: int
    last_ts: int
    low_watermark: int
    watermark: int
    horizon: int
    leases: int
    pending: int
    """Large commits."""
    in_flight: int
    """Commits decided but not yet answered."""
    conflict_map_entries: int
    conflict_map_entries_max: int
    retention_s: float
    """How long history is kept; 0: only while a reader needs it."""
    counters: Mapping[str, int]
    """A missing name counts 0."""
    watermark_held: str = ""
    """What holds W back: open start, lease, large commit, retention; empty if W follows the newest start."""
    watermark_holder: str = ""
    """The owner of `watermark_held`, as text for operators; empty if unknown."""
