"""A session with the TSO of a store whose commit table clients can write: HBase.

Completion writes the commit table directly, without the TSO. Invalidation markers go through the TSO if it supports
pyomid's extensions. With a Java TSO the client places the marker itself, as Java clients do: for a start of an earlier
epoch (`protocol.reading`; a Java TSO announces its epoch in a znode), and for its own start (`protocol.commit`). A
commit entry that lands after the marker has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyomid.client.session.blocking import TsoSession
from pyomid.ports import CommitTable, Tso
from pyomid.types import BeginReply, CommitReply, CommitRequest, Moment, SealOutcome, Status


class SharedTableTso(Tso):
    """`ports.Tso` over a session and the commit table; closes the session, not the table."""

    def __init__(self, session: TsoSession, commit_table: CommitTable) -> None:
        self.session = session
        self._commit_table = commit_table

    @property
    def extended(self) -> bool:
        return self.session.extended

    @property
    def write_set_ids_max(self) -> int:
        return self.session.write_set_ids_max

    @property
    def one_step_bytes_max(self) -> int:
        return self.session.one_step_bytes_max

    def begin(self, *, not_before: int = 0) -> BeginReply:
        return self.session.begin(not_before=not_before)

    def report_open_starts(self) -> object:
        return self.session.report_open_starts()

    def commit(self, request: CommitRequest) -> CommitReply:
        return self.session.commit(request)

    def fence(self, table_id: int) -> int:
        return self.session.fence(table_id)

    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        return self.session.grant_lease(start_ts, term_s)

    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        return self.session.share_lease(start_ts, term_s)

    def renew_lease(self, start_ts: int) -> float:
        return self.session.renew_lease(start_ts)

    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        self.session.end_lease(start_ts, shared=shared)

    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        if not starts:
            return []
        if self.extended:
            return self.session.seal(starts)
        return self._commit_table.seal_many(starts)

    def complete(self, starts: Sequence[int]) -> None:
        self._commit_table.delete(starts)

    def advance_horizon(self, horizon: int) -> int:
        return self.session.advance_horizon(horizon)

    def moment_at(self, at_ms: int, now_ms: int) -> Moment:
        return self.session.moment_at(at_ms, now_ms)

    def status(self) -> Status:
        return self.session.status()

    def close(self) -> None:
        self.session.close()
