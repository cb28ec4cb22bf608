"""The events that the TSO's machine takes, the instructions that it returns, and its report.

A `StoreCall` holds one of the operations below. The driver performs it and returns `StoreDone` with the operation's
result, or `StoreFailed`. Every operation is idempotent, so the driver may repeat it after a failure. *Then read the
epoch* means that the driver reads the epoch anew after the write is durable (T5). A store may do both in one
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
    """A peer sent a request. The answer carries the same `tag`; the machine does not interpret it."""

    peer: Hashable
    tag: int
    request: Request


@dataclass(frozen=True, slots=True)
class PeerGone:
    """A peer disconnected. The machine drops its waiting begins; its decided commits stay decided."""

    peer: Hashable


@dataclass(frozen=True, slots=True)
class StoreDone:
    token: int
    result: object = None


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A store call failed. The operation may have taken effect in part."""

    token: int
    error: OmidError


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The leader's own lease holds until `until_s`, by the clock whose time `handle` is given. Begins depend on it."""

    until_s: float


Event = RequestCame | PeerGone | StoreDone | StoreFailed | LeaseRenewed


@dataclass(frozen=True, slots=True)
class Flushed:
    """The result of a flush. `refused` holds the starts whose entry an invalidation marker refused; it is empty if the
    store cannot detect that."""

    refused: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class Flush(Effect[Flushed]):
    """Make the entries (start, commit) durable, then read the epoch."""

    entries: tuple[tuple[int, int], ...]
    block: NDArray[np.int64] | None = None
    """More entries to flush, as rows (start, commit)."""

    @property
    def size(self) -> int:
        return len(self.entries) + (0 if self.block is None else len(self.block))


@dataclass(frozen=True, slots=True)
class PutDecision(Effect[Flushed]):
    """Put a large commit's entry unless the start has an invalidation marker, then read the epoch."""

    start_ts: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class PutBranches(Effect[int]):
    """Put the branches' entries, which replace invalidation markers (T13), then read the epoch. Result: the epoch."""

    branches: tuple[int, ...]
    commit_ts: int


@dataclass(frozen=True, slots=True)
class LookupEntries(Effect[list[int]]):
    """Look up the entries of `starts`. Result, in the same order: a commit timestamp, NOT_FOUND or SEALED each."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SealEntries(Effect[list[SealOutcome]]):
    """Seal `starts`. Result: one outcome for each, in the same order."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteBelow(Effect[int]):
    """Delete the entries and invalidation markers below `horizon`. Result: their number."""

    horizon: int


@dataclass(frozen=True, slots=True)
class ReadEpoch(Effect[int]):
    """Read the epoch of the leader state anew, never from a cache."""


@dataclass(frozen=True, slots=True)
class ReadLeaderState(Effect[LeaderRecord]):
    """Read the whole leader state anew, never from a cache."""


@dataclass(frozen=True, slots=True)
class TakeOverEpoch(Effect[bool]):
    """Put the epoch into the leader state by compare-and-set. Result: whether that succeeded."""

    expected: int
    epoch: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class UpdateLeaderState(Effect[None]):
    """Make the changes of the leader state durable. Fails with `Deposed` if the leader state holds another epoch."""

    epoch: int
    changes: LeaderStateChanges


@dataclass(frozen=True, slots=True)
class ReadCeiling(Effect[int]):
    """Read the ceiling where it is kept outside the leader state."""


@dataclass(frozen=True, slots=True)
class MoveCeiling(Effect[bool]):
    """Move the ceiling by compare-and-set, where it is kept outside the leader state. Result: whether that
    succeeded."""

    expected: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class ReadTables(Effect[frozenset[int]]):
    """Read the ids of all tables in the catalog anew, never from a cache."""


@dataclass(frozen=True, slots=True)
class MarkUnknownTable(Effect[None]):
    """Put a durable mark of a table that the catalog does not list (K6)."""

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
    """Send the answer now. Everything that it promises is durable."""

    peer: Hashable
    tag: int
    answer: Answer


class EncodedReplies(Protocol):
    """The answers to one peer's commits of one batch, encoded by compiled code when it decided them. They are sent when
    the batch is released."""

    @property
    def peer(self) -> Hashable: ...

    @property
    def data(self) -> bytes: ...

    @property
    def count(self) -> int: ...

    def without(self, refused: frozenset[int]) -> EncodedReplies:
        """Return the same answers, with "aborted" for the starts in `refused`, whose entries invalidation markers
        refused."""
        ...


@dataclass(frozen=True, slots=True)
class SendEncoded:
    """Send the answers now. Everything that they promise is durable."""

    replies: EncodedReplies


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Perform the operation, but not before `delay_s` have passed. Calls may run and end in any order."""

    token: int
    operation: StoreOperation
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Die:
    """Exit at once without sending anything, because another TSO leads or may lead."""

    reason: str


Instruction = Reply | SendEncoded | StoreCall | Die


@dataclass(frozen=True, slots=True)
class MachineReport:
    """The machine's present state, as the service reports it."""

    epoch: int
    last_ts: int
    low_watermark: int
    watermark: int
    horizon: int
    leases: int
    pending: int
    """The number of unfinished large commits."""
    in_flight: int
    """The number of commits that are decided but not yet answered."""
    conflict_map_entries: int
    conflict_map_entries_max: int
    retention_s: float
    """How long history is kept. 0 means only as long as a reader needs it."""
    counters: Mapping[str, int]
    """The counters by name. A counter that is missing is 0."""
    watermark_held: str = ""
    """What holds W back: "open start", "lease", "large commit" or "retention". Empty if W follows the newest start."""
    watermark_holder: str = ""
    """The owner of `watermark_held`, as text for operators; empty if unknown."""
