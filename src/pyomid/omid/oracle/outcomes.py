"""The outcomes of starts, from the commit table: retries of commits, and seals.

    retry    ─► after its first attempt ─► refused from now on ─► after its batch ─► look up ─► seal ─► answered
    seal     ─► refused from now on ─► after its batch ─► seal in the table ─► answered

The outcome always comes from the commit table (T7); below H the table does not have it (R4).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

import numpy as np

from pyomid.errors import Misuse, OutcomeUnknown, Unavailable
from pyomid.omid.oracle.instructions import LookupEntries, SealEntries
from pyomid.omid.oracle.outgoing import AfterBatch
from pyomid.omid.oracle.status_oracle import Conflict
from pyomid.omid.wire.messages import Request, SealReply
from pyomid.protocol.timestamps import dated
from pyomid.types import NOT_FOUND, SEALED, AbortReason, CommitReply, CommitRequest, SealOutcome

if TYPE_CHECKING:
    from pyomid.omid.oracle.machine import TsoMachine

SEALS_A_CALL: Final = 128
"""Starts sealed per call; between two calls the TSO checks whether the peer is still connected."""


class FirstAttempts:
    """T7: commits that wait for their decision, wherever they wait, and the retries that wait behind them.

    A retry ends in a seal. If it overtook its first attempt, the transaction would abort, although nothing was lost.
    """

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso
        self._waiting: Counter[int] = Counter()
        self._behind: dict[int, list[tuple[Hashable, int, CommitRequest]]] = {}
        self._due: deque[int] = deque()
        """Starts whose first attempt waits no longer: `take_due` takes their retries."""

    def wait(self, request: Request) -> None:
        """The request begins to wait."""
        if isinstance(request, CommitRequest):
            self._waiting[request.start_ts] += 1

    def end_wait(self, request: Request) -> None:
        """The request is handled next, or dropped."""
        if isinstance(request, CommitRequest):
            start_ts = request.start_ts
            self._waiting[start_ts] -= 1
            if not self._waiting[start_ts]:
                del self._waiting[start_ts]
                if start_ts in self._behind:
                    self._due.append(start_ts)

    def hold_back(self, peer: Hashable, tag: int, retry: CommitRequest) -> bool:
        """Let a retry wait if its first attempt does."""
        if retry.start_ts not in self._waiting:
            return False
        self._behind.setdefault(retry.start_ts, []).append((peer, tag, retry))
        return True

    def take_due(self) -> None:
        while self._due:
            for each in self._behind.pop(self._due.popleft(), ()):
                self._tso.take_commit(*each)

    def forget(self, peer: Hashable) -> None:
        """The peer disconnected: drop its retries."""
        if self._behind:
            left = {start: [each for each in behind if each[0] != peer] for start, behind in self._behind.items()}
            self._behind = {start: behind for start, behind in left.items() if behind}


class Retries:
    """Retries of commits, and seals. A few requests of each peer run at once."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso

    # ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def retry(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        """T7: answer from the commit table, after the first attempt and the batches that may hold it."""
        start_ts = request.start_ts
        if self._tso.first_attempts.hold_back(peer, tag, request):
            return
        if self._tso.large.has_other_branches(request):
            self._tso.step.refuse(peer, tag, self._other_branches(start_ts))
            return
        if self._remembers_too_many(1):
            self._tso.step.refuse(peer, tag, self._unknown(start_ts, self._why_too_many()))
            return
        self._tso.commits.refuse_from_now_on((start_ts,))
        await AfterBatch(self._tso.commits.batch_that_may_hold((start_ts,)))
        try:
            found: list[int] = await LookupEntries((start_ts, *request.branches))
            outcome = await self._outcome(start_ts, found[0])
        except Unavailable as error:
            self._tso.step.refuse(peer, tag, self._unknown(start_ts, error.message))
            return
        if outcome is None:
            horizon = dated(self._tso.watermarks.horizon)
            why = f"it is below the sanitized horizon {horizon}, so its entry may have been deleted"
            self._tso.step.refuse(peer, tag, self._unknown(start_ts, why))
        elif outcome.placed:
            self._tso.commits.abort(peer, tag, request, Conflict(AbortReason.RETRY_UNKNOWN, 0))
        elif any(branch != outcome.commit_ts for branch in found[1:]):
            self._tso.step.refuse(peer, tag, self._other_branches(start_ts))
        else:
            self._tso.step.counters["retries_found"] += 1
            self._tso.step.reply(peer, tag, CommitReply(start_ts, outcome.commit_ts))

    async def _outcome(self, start_ts: int, found: int) -> SealOutcome | None:
        """Return the outcome of a start that can no longer be decided; None below H."""
        if self._is_sanitized(start_ts):
            return None
        if found == SEALED:
            return SealOutcome(True)
        if found != NOT_FOUND:
            return SealOutcome(False, found)
        outcomes: list[SealOutcome] = await SealEntries((start_ts,))
        return outcomes[0]

    def _is_sanitized(self, start_ts: int) -> bool:
        """R4: below H neither an entry nor its absence is evidence."""
        return start_ts < self._tso.watermarks.horizon

    def _other_branches(self, start_ts: int) -> Misuse:
        return Misuse(f"start_ts {start_ts} was committed with other branches than this retry names", start_ts=start_ts)

    def _unknown(self, start_ts: int, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(f"the outcome of start_ts {dated(start_ts)} is unknown: {why}", start_ts=start_ts)

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
        self._tso.peer_requests.ask(peer, self._seal(peer, tag, starts))

    async def _seal(self, peer: Hashable, tag: int, starts: tuple[int, ...]) -> None:
        """Seal after the batches that may hold these starts. A few requests of each peer run at once."""
        if self._remembers_too_many(len(starts)):
            self._tso.step.refuse(peer, tag, Unavailable(self._why_too_many()))
            return
        self._tso.commits.refuse_from_now_on(starts)
        await AfterBatch(self._tso.commits.batch_that_may_hold(starts))
        outcomes: list[SealOutcome] = []
        try:
            for at in range(0, len(starts), SEALS_A_CALL):
                if not self._tso.peer_requests.is_awaited(peer):
                    return
                some: list[SealOutcome] = await SealEntries(starts[at : at + SEALS_A_CALL])
                outcomes += some
        except Unavailable as error:
            self._tso.step.refuse(peer, tag, error)
            return
        self._tso.step.counters["seals"] += len(starts)
        self._tso.step.reply(peer, tag, SealReply(tuple(outcomes)))

    def _remembers_too_many(self, more: int) -> bool:
        return len(self._tso.oracle.refused_starts) + more > self._tso.settings.refused_starts_max

    def _why_too_many(self) -> str:
        count, decided = len(self._tso.oracle.refused_starts), dated(self._tso.watermarks.decided)
        return (
            f"{count} starts above the low watermark {decided} are sealed, the most that the TSO remembers: try again "
            "when the watermark has passed some of them"
        )
