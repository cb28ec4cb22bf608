"""A client's requests to a TSO, and the answers: the types that wire, machine and session share.

The messages that other layers of the client use too are in `pyomid.types`: CommitRequest, CommitReply, BeginReply,
Status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyomid.errors import OmidError, by_code
from pyomid.types import BeginReply, CommitReply, CommitRequest, SealOutcome, Status

TABLE_IDS_MAX: Final = 1024
"""The most tables that one commit may name. The number is bounded because the TSO looks up and remembers each."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Asks for a start timestamp above `not_before`; 0 accepts any. Answer: BeginReply."""

    not_before: int = 0


@dataclass(frozen=True, slots=True)
class Fence:
    """Asks for a fence of the table. Answer: FenceReply."""

    table_id: int


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Asks for a durable lease on a start. Answer: LeaseReply. `term_s` 0 asks for the TSO's own term. `holder` is the
    client, as text for people.

    `shared` asks for a lease on the start, or on an older start, that others may share. The lease lasts a term from
    now. Another request extends it; no request ends it.
    """

    start_ts: int
    term_s: float = 0.0
    holder: str = ""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renews a lease. Answer: LeaseReply, or Refused with SnapshotTooOld if the lease is gone."""

    start_ts: int


@dataclass(frozen=True, slots=True)
class EndLease:
    """Ends a lease. Answer: Done, once it is durable that the lease no longer holds W back. If others share the lease,
    it stays, and the answer comes at once. With `shared` the lease ends for them too (for operators)."""

    start_ts: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Seal:
    """Asks the TSO to seal `starts`. Answer: SealReply, after the batches that may hold one of them."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReportIds:
    """Reports ids, ascending and 8 bytes each: part `part` of what the transaction writes to a table under `branch`.
    Without ids, the transaction claims the whole table. Answer: Done, or Refused with `ConflictError` if a commit of
    the branch would already abort; the ids are kept all the same."""

    start_ts: int
    table_id: int
    branch: int
    part: int
    ids: bytes


@dataclass(frozen=True, slots=True)
class ReportOpenStarts:
    """Reports a client's open starts; it has no answer. All starts of the client, open or in flight, are at or above
    `oldest`; 0 means that it has none.

    `client` is its random name, and `connection` the number of this connection, counted by the client. `holder` is the
    client as text for people; if empty, the TSO keeps the former text.
    """

    client: bytes
    connection: int
    oldest: int
    holder: str = ""


@dataclass(frozen=True, slots=True)
class AdvanceHorizon:
    """Raises H to `horizon`. Answer: HorizonReply."""

    horizon: int


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Asks for the TSO's status. Answer: Status."""


Request = (
    Begin
    | CommitRequest
    | Fence
    | GrantLease
    | RenewLease
    | EndLease
    | Seal
    | ReportIds
    | ReportOpenStarts
    | AdvanceHorizon
    | AskStatus
)


def is_answered(request: Request) -> bool:
    """Return whether the TSO answers the request."""
    return not isinstance(request, ReportOpenStarts)


@dataclass(frozen=True, slots=True)
class FenceReply:
    """A fence was drawn: transactions that wrote the table and started before `fence_ts` abort."""

    table_id: int
    fence_ts: int


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """A lease on `start_ts` is durable. A shared lease may be on an older start than the requested one."""

    start_ts: int
    term_s: float


@dataclass(frozen=True, slots=True)
class SealReply:
    """The outcomes of the sealed starts, in the order of the request."""

    outcomes: tuple[SealOutcome, ...]


@dataclass(frozen=True, slots=True)
class HorizonReply:
    deleted: int


@dataclass(frozen=True, slots=True)
class Done:
    """The TSO has done what the request asked for, durably."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The TSO refused the request with an error of `pyomid.errors`, named by its stable code. The client raises
    `as_error`."""

    code: str
    message: str
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: OmidError) -> Refused:
        return cls(error.code, error.message, dict(error.values))

    def as_error(self) -> OmidError:
        return by_code(self.code)(self.message, **self.values)


Answer = BeginReply | CommitReply | FenceReply | LeaseReply | SealReply | HorizonReply | Done | Status | Refused
