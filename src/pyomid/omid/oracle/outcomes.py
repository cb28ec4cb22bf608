"""Answer retries of commits, and seals: find the outcome of a start in the commit table.

    retry    ─► after its first attempt ─► refused from now on ─► after its batch ─► look up ─► seal ─► answered
    seal     ─► refused from now on ─► after its batch ─► seal in the table ─► answered

The outcome always comes from the commit table (T7). For a start below H the commit table no longer has it (R4).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import numpy as np

from pyomid.errors import Misuse, OutcomeUnknown, Unavailable
from pyomid.omid.oracle import begins, commits, large_commits
from pyomid.omid.oracle.instructions import LookupEntries, SealEntries
from pyomid.omid.oracle.outgoing import AfterBatch
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.oracle.status_oracle import Conflict
from pyomid.omid.wire.messages import SealReply
from pyomid.protocol.timestamps import dated
from pyomid.types import NOT_FOUND, SEALED, AbortReason, CommitReply, CommitRequest, SealOutcome

SEALS_A_CALL: Final = 128
"""How many starts one call seals. Between two calls the TSO checks whether the peer is still connected."""


# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────


async def retry(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> None:
    """T7: answer a retry from the commit table, after the first attempt and after the batches that may hold its
    entry."""
    start_ts = request.start_ts
    if tso.first_attempts.hold_back(peer, tag, request):
        return
    if large_commits.has_other_branches(tso, request):
        tso.step.refuse(peer, tag, _other_branches(start_ts))
        return
    if _remembers_too_many(tso, 1):
        tso.step.refuse(peer, tag, _unknown(start_ts, _why_too_many(tso)))
        return
    commits.refuse_from_now_on(tso, (start_ts,))
    await AfterBatch(commits.batch_that_may_hold(tso, (start_ts,)))
    try:
        found: list[int] = await LookupEntries((start_ts, *request.branches))
        outcome = await _outcome(tso, start_ts, found[0])
    except Unavailable as error:
        tso.step.refuse(peer, tag, _unknown(start_ts, error.message))
        return
    if outcome is None:
        horizon = dated(tso.watermarks.horizon)
        why = f"it is below the sanitized horizon {horizon}, so its entry may have been deleted"
        tso.step.refuse(peer, tag, _unknown(start_ts, why))
    elif outcome.placed:
        commits.abort(tso, peer, tag, request, Conflict(AbortReason.RETRY_UNKNOWN, 0))
    elif any(branch != outcome.commit_ts for branch in found[1:]):
        tso.step.refuse(peer, tag, _other_branches(start_ts))
    else:
        tso.step.counters["retries_found"] += 1
        tso.step.reply(peer, tag, CommitReply(start_ts, outcome.commit_ts))


async def _outcome(tso: TsoState, start_ts: int, found: int) -> SealOutcome | None:
    """Return the outcome of a start that can no longer be decided, or None if the start is below H."""
    if _is_sanitized(tso, start_ts):
        return None
    if found == SEALED:
        return SealOutcome(True)
    if found != NOT_FOUND:
        return SealOutcome(False, found)
    outcomes: list[SealOutcome] = await SealEntries((start_ts,))
    return outcomes[0]


def _is_sanitized(tso: TsoState, start_ts: int) -> bool:
    """R4: whether the start is below H, where neither an entry nor its absence is evidence."""
    return start_ts < tso.watermarks.horizon


def _other_branches(start_ts: int) -> Misuse:
    return Misuse(f"start_ts {start_ts} was committed with other branches than this retry names", start_ts=start_ts)


def _unknown(start_ts: int, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the outcome of start_ts {dated(start_ts)} is unknown: {why}", start_ts=start_ts)


# ── seals ────────────────────────────────────────────────────────────────────────────────────────────────────


def seal(tso: TsoState, peer: Hashable, tag: int, starts: tuple[int, ...]) -> None:
    if _remembers_too_many(tso, len(starts)):  # before the starts are checked one by one
        tso.step.refuse(peer, tag, Unavailable(_why_too_many(tso)))
        return
    asked = np.array(starts, dtype=np.int64)
    wrong = asked[~begins.are_issued(tso, asked)]
    if len(wrong):
        tso.step.refuse(peer, tag, begins.not_a_start(tso, int(wrong[0])))
        return
    tso.peer_requests.ask(peer, _seal(tso, peer, tag, starts))


async def _seal(tso: TsoState, peer: Hashable, tag: int, starts: tuple[int, ...]) -> None:
    """Seal the starts after the batches that may hold their entries. A few such requests of each peer run at once."""
    if _remembers_too_many(tso, len(starts)):
        tso.step.refuse(peer, tag, Unavailable(_why_too_many(tso)))
        return
    commits.refuse_from_now_on(tso, starts)
    await AfterBatch(commits.batch_that_may_hold(tso, starts))
    outcomes: list[SealOutcome] = []
    try:
        for at in range(0, len(starts), SEALS_A_CALL):
            if not tso.peer_requests.is_awaited(peer):
                return
            some: list[SealOutcome] = await SealEntries(starts[at : at + SEALS_A_CALL])
            outcomes += some
    except Unavailable as error:
        tso.step.refuse(peer, tag, error)
        return
    tso.step.counters["seals"] += len(starts)
    tso.step.reply(peer, tag, SealReply(tuple(outcomes)))


def _remembers_too_many(tso: TsoState, more: int) -> bool:
    return len(tso.oracle.refused_starts) + more > tso.settings.refused_starts_max


def _why_too_many(tso: TsoState) -> str:
    count, decided = len(tso.oracle.refused_starts), dated(tso.watermarks.decided)
    return (
        f"{count} starts above the low watermark {decided} are sealed, which is the maximum that the TSO remembers; "
        "try again after the watermark has passed some of them"
    )
