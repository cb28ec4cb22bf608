"""Find or make final the outcome of a start: retries of a commit whose answer was lost, and seals.

    retry ─► refused from now on ─► after its batch ─► look up ─► seal ─► answered
    seal  ─► refused from now on ─► after its batch ─► seal in the table ─► answered

The outcome always comes from the commit table (T7); below H the table does not have it (R4).
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pyomid.errors import Misuse, OutcomeUnknown, Unavailable
from pyomid.oracle.instructions import LookupEntries, SealEntries, StoreOperation
from pyomid.oracle.outgoing import AfterBatch, Procedure
from pyomid.oracle.status_oracle import Conflict
from pyomid.types import NOT_FOUND, SEALED, AbortReason, CommitReply, CommitRequest, SealOutcome
from pyomid.wire.messages import SealReply

if TYPE_CHECKING:
    from pyomid.oracle.machine import TsoMachine

SEALS_A_CALL: Final = 128
"""Starts sealed per call: a flush waits for the call before it, some milliseconds of an LMDB transaction."""


class Retries:
    """Retries of commits, and seals. A few requests of each peer run at once."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso

    # ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────

    def retry_steps(self, peer: Hashable, tag: int, request: CommitRequest) -> Procedure:
        """T7: answer from the commit table, after the batches that may hold the first attempt."""
        start_ts = request.start_ts
        if self._tso.large.has_other_branches(request):
            self._tso.step.refuse(peer, tag, self._other_branches(start_ts))
            return
        if self._remembers_too_many(1):
            self._tso.step.refuse(peer, tag, self._unknown(start_ts, self._why_too_many()))
            return
        self._tso.commits.refuse_from_now_on((start_ts,))
        yield AfterBatch(self._tso.commits.batch_that_may_hold((start_ts,)))
        try:
            found: list[int] = yield LookupEntries((start_ts, *request.branches))
            outcome = yield from self._outcome_steps(start_ts, found[0])
        except Unavailable as error:
            self._tso.step.refuse(peer, tag, self._unknown(start_ts, error.message))
            return
        if outcome is None:
            why = (
                f"it is below the sanitized horizon {self._tso.watermarks.horizon}, so its entry may have been deleted"
            )
            self._tso.step.refuse(peer, tag, self._unknown(start_ts, why))
        elif outcome.placed:
            self._tso.commits.abort(peer, tag, request, Conflict(AbortReason.RETRY_UNKNOWN, 0))
        elif any(branch != outcome.commit_ts for branch in found[1:]):
            self._tso.step.refuse(peer, tag, self._other_branches(start_ts))
        else:
            self._tso.step.counters["retries_found"] += 1
            self._tso.step.reply(peer, tag, CommitReply(start_ts, outcome.commit_ts))

    def _outcome_steps(self, start_ts: int, found: int) -> Generator[StoreOperation, Any, SealOutcome | None]:
        """Return the outcome of a start that can no longer be decided; None below H."""
        if self._is_sanitized(start_ts):
            return None
        if found == SEALED:
            return SealOutcome(True)
        if found != NOT_FOUND:
            return SealOutcome(False, found)
        outcomes: list[SealOutcome] = yield SealEntries((start_ts,))
        return outcomes[0]

    def _is_sanitized(self, start_ts: int) -> bool:
        """R4: below H neither an entry nor its absence is evidence."""
        return start_ts < self._tso.watermarks.horizon

    def _other_branches(self, start_ts: int) -> Misuse:
        return Misuse(f"start_ts {start_ts} was committed with other branches than this retry names", start_ts=start_ts)

    def _unknown(self, start_ts: int, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(f"the outcome of start_ts {start_ts} is unknown: {why}", start_ts=start_ts)

    # ── seals ────────────────────────────────────────────────────────────────────────────────────────────────────

    def seal(self, peer: Hashable, tag: int, starts: tuple[int, ...]) -> None:
        if self._remembers_too_many(len(starts)):  # before the starts are checked one by one
            self._tso.step.refuse(peer, tag, Unavailable(self._why_too_many()))
            return
        asked = np.array(starts, dtype=np.int64)
        wrong = asked[~self._tso.begins.are_issued(asked)]
        if len(wrong):
            self._tso.step.refuse(peer, tag, self._tso.begins.not_a_start(int(wrong[0])))
            return
        self._tso.peer_requests.ask(peer, self._seal_steps(peer, tag, starts))

    def _seal_steps(self, peer: Hashable, tag: int, starts: tuple[int, ...]) -> Procedure:
        """Seal after the batches that may hold these starts. A few requests of each peer run at once."""
        if self._remembers_too_many(len(starts)):
            self._tso.step.refuse(peer, tag, Unavailable(self._why_too_many()))
            return
        self._tso.commits.refuse_from_now_on(starts)
        yield AfterBatch(self._tso.commits.batch_that_may_hold(starts))
        outcomes: list[SealOutcome] = []
        try:
            for at in range(0, len(starts), SEALS_A_CALL):
                if not self._tso.peer_requests.is_awaited(peer):
                    return
                some: list[SealOutcome] = yield SealEntries(starts[at : at + SEALS_A_CALL])
                outcomes += some
        except Unavailable as error:
            self._tso.step.refuse(peer, tag, error)
            return
        self._tso.step.counters["seals"] += len(starts)
        self._tso.step.reply(peer, tag, SealReply(tuple(outcomes)))

    def _remembers_too_many(self, more: int) -> bool:
        return len(self._tso.oracle.refused_starts) + more > self._tso.settings.refused_starts_max

    def _why_too_many(self) -> str:
        return (
            f"{len(self._tso.oracle.refused_starts)} starts above the low watermark {self._tso.watermarks.decided} are "
            "sealed, the most that the TSO remembers: try again when the watermark has passed some of them"
        )
