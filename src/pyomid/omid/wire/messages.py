"""A client's requests to a TSO, and their answers: the types that wire, machine and session share.

`pyomid.types` has the messages that the client's other layers use too: CommitRequest, CommitReply, BeginReply, Status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyomid.errors import OmidError, by_code
from pyomid.types import BeginReply, CommitReply, CommitRequest, SealOutcome, Status

TABLE_IDS_MAX: Final = 1024
"""Tables that one commit may name; bounded, because the TSO looks up and remembers each."""


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
    """→ LeaseReply, durable. `term_s` 0: the TSO's own term. `holder`: the client, as text for people.

    `shared`: a lease on the start or an older one, which others may share. It lasts a term from now; a further request
    extends it, and no request ends it.
    """

    start_ts: int
    term_s: float = 0.0
    holder: str = ""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RenewLease:
    """→ LeaseReply, or Refused with SnapshotTooOld if the lease is gone."""

    start_ts: int


@dataclass(frozen=True, slots=True)
class EndLease:
    """→ Done once the lease no longer holds W back, durably; at once if others share the lease, which stays then.
    `shared`: end it for them too (for operators).
    """

    start_ts: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Seal:
    """→ SealReply, after the batches that may hold one of `starts`."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReportIds:
    """→ Done. The ids, ascending and 8 bytes each, are part `part` of what the transaction writes to a table under
    `branch`. Without ids: it claims the table as a whole. Refused with `ConflictError` if its commit would abort by
    now; the ids are kept all the same."""

    start_ts: int
    table_id: int
    branch: int
    part: int
    ids: bytes


@dataclass(frozen=True, slots=True)
class ReportOpenStarts:
    """No answer. All starts of the client, open or in flight, are at or above `oldest` (0: it has none).

    `client`: its random name; `connection`: the number of this connection, counted by the client. `holder`: the client,
    as text for people; empty: unchanged.
    """

    client: bytes
    connection: int
    oldest: int
    holder: str = ""


@dataclass(frozen=True, slots=True)
class AdvanceHorizon:
    """→ HorizonReply."""

    horizon: int


@dataclass(frozen=True, slots=True)
class AskStatus:
    """→ Status."""


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
    """Whether the TSO answers the request."""
    return not isinstance(request, ReportOpenStarts)


@dataclass(frozen=True, slots=True)
class FenceReply:
    """Transactions that wrote the table and started before `fence_ts` abort."""

    table_id: int
    fence_ts: int


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """`start_ts`: the leased start. A shared lease may be on an older start than the requested one."""

    start_ts: int
    term_s: float


@dataclass(frozen=True, slots=True)
class SealReply:
    """One outcome per start, in the order of the request."""

    outcomes: tuple[SealOutcome, ...]


@dataclass(frozen=True, slots=True)
class HorizonReply:
    deleted: int


@dataclass(frozen=True, slots=True)
class Done:
    """The request was done, durably."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An error of `pyomid.errors`, by its stable code. The client raises `as_error`."""

    code: str
    message: str
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: OmidError) -> Refused:
        return cls(error.code, error.message, dict(error.values))

    def as_error(self) -> OmidError:
        return by_code(self.code)(self.message, **self.values)


Answer = BeginReply | CommitReply | FenceReply | LeaseReply | SealReply | HorizonReply | Done | Status | Refused
