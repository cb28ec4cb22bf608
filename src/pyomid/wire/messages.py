"""What a client may ask a TSO, and what it may be answered: the words that wire, machine and session share.

`pyomid.types` holds those that are the client's business too: CommitRequest, CommitReply, BeginReply, Status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyomid.errors import OmidError, by_code
from pyomid.types import BeginReply, CommitReply, CommitRequest, SealOutcome, Status

TABLE_IDS_MAX: Final = 1024
"""Tables that one commit may name: each is looked up, and remembered."""


@dataclass(frozen=True, slots=True)
class Begin:
    """→ BeginReply with a start above `not_before` (0: any)."""

    not_before: int = 0


@dataclass(frozen=True, slots=True)
class Fence:
    """→ FenceReply."""

    table_id: int


@dataclass(frozen=True, slots=True)
class GrantLease:
    """→ LeaseReply, durable. `term_s` 0: the TSO's own term. `holder`: who asks, in words for people.

    `shared`: a lease on the start or an older one, which others may hold too; it is kept for a term from now, by
    asking again, and nobody ends it.
    """

    start_ts: int
    term_s: float = 0.0
    holder: str = ""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RenewLease:
    """→ LeaseReply, or Refused with SnapshotTooOld where the lease is gone."""

    start_ts: int


@dataclass(frozen=True, slots=True)
class EndLease:
    """→ Done once the lease no longer holds W back in any later TSO either; at once where others share the lease, who
    keep it. `shared`: it ends for them too, by the word of an operator.
    """

    start_ts: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Seal:
    """→ SealReply, after the batches that may hold one of `starts`."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """No answer: the commit-table entries go some time later."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdvanceHorizon:
    """→ HorizonReply."""

    horizon: int


@dataclass(frozen=True, slots=True)
class AskStatus:
    """→ Status."""


Request = (
    Begin | CommitRequest | Fence | GrantLease | RenewLease | EndLease | Seal | Complete | AdvanceHorizon | AskStatus
)


@dataclass(frozen=True, slots=True)
class FenceReply:
    """Writers of the table that started before `fence_ts` abort."""

    table_id: int
    fence_ts: int


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """`start_ts`: what is leased; where the lease is shared, at or below the start that was asked for."""

    start_ts: int
    term_s: float


@dataclass(frozen=True, slots=True)
class SealReply:
    """One outcome a start, in the order asked."""

    outcomes: tuple[SealOutcome, ...]


@dataclass(frozen=True, slots=True)
class HorizonReply:
    deleted: int


@dataclass(frozen=True, slots=True)
class Done:
    """Durable, nothing else to say."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An error of the tree of `errors`, by its stable code; `as_error` is what the client raises."""

    code: str
    message: str
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: OmidError) -> Refused:
        return cls(error.code, error.message, dict(error.values))

    def as_error(self) -> OmidError:
        return by_code(self.code)(self.message, **self.values)


Answer = BeginReply | CommitReply | FenceReply | LeaseReply | SealReply | HorizonReply | Done | Status | Refused
