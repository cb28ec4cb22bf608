"""`ports.Tso`'s calls as requests to a TSO, in another process or in this one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from pyomid.ports import Tso
from pyomid.types import BeginReply, CommitReply, CommitRequest, SealOutcome, Status
from pyomid.wire.messages import (
    AdvanceHorizon,
    AskStatus,
    Begin,
    Done,
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    HorizonReply,
    LeaseReply,
    RenewLease,
    Request,
    Seal,
    SealReply,
)

T = TypeVar("T")


class TsoCalls(Tso):
    """All of `ports.Tso` that is a request and its answer."""

    @abstractmethod
    def _ask_for(self, request: Request, kind: type[T]) -> T:
        """The answer, which must be of this kind. A refusal is raised as its error."""

    @property
    def holder(self) -> str:
        """The holder of leases that are granted here, as text for people."""
        return ""

    def begin(self, *, not_before: int = 0) -> BeginReply:
        return self._ask_for(Begin(not_before), BeginReply)

    def commit(self, request: CommitRequest) -> CommitReply:
        return self._ask_for(request, CommitReply)

    def fence(self, table_id: int) -> int:
        return self._ask_for(Fence(table_id), FenceReply).fence_ts

    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        return self._ask_for(GrantLease(start_ts, term_s or 0.0, self.holder), LeaseReply).term_s

    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        reply = self._ask_for(GrantLease(start_ts, term_s or 0.0, self.holder, shared=True), LeaseReply)
        return reply.start_ts, reply.term_s

    def renew_lease(self, start_ts: int) -> float:
        return self._ask_for(RenewLease(start_ts), LeaseReply).term_s

    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        self._ask_for(EndLease(start_ts, shared), Done)

    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        return list(self._ask_for(Seal(tuple(starts)), SealReply).outcomes) if starts else []

    def advance_horizon(self, horizon: int) -> int:
        return self._ask_for(AdvanceHorizon(horizon), HorizonReply).deleted

    def status(self) -> Status:
        return self._ask_for(AskStatus(), Status)
