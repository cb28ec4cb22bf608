"""Decide and finish large commits. Their rows were written under branches: extra starts that the commit names (law 3).

    decided ─► a batch of its own ─► pending record ─► PutDecision ─► PutBranches ─► released ─► answered
                                                                           └► record and lease removed

Each step is durable before the next. A new TSO finishes the pending commits that it finds (`takeover`). A large commit
holds W back from its decision until its record is gone (T12). Before the commit, tasks report the conflict ids of each
branch (T20, `status_oracle.ReportedIds`). If a commit of the branch would already conflict, the TSO refuses the report.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import numpy as np

from pyomid.errors import ConflictError, Misuse, OmidError, SnapshotTooOld, Unavailable
from pyomid.omid.oracle import begins, ceiling, commits
from pyomid.omid.oracle.instructions import Flushed, PutBranches, PutDecision
from pyomid.omid.oracle.outgoing import AfterBatch, EpochWrite
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.oracle.status_oracle import Ids
from pyomid.omid.oracle.windows import Batch, BatchState
from pyomid.omid.wire.messages import Done, ReportIds
from pyomid.protocol.commit import abort_error
from pyomid.types import TIMESTAMP_STEP, CommitReply, CommitRequest, LeaderStateChanges, PendingCommit, WriteSetLevel

BRANCHES_A_CALL: Final = 2048
"""The maximum number of branch entries that one store call puts, because a flush waits for the call before it."""

ID_BYTES: Final = 8

REMEMBERED_MAX: Final = 10_000
"""The TSO remembers the branches of this many finished large commits, to compare them with a retry's branches. A retry
of an older commit is answered from the commit table."""


def knows(tso: TsoState, start_ts: int) -> bool:
    return start_ts in tso.pending or start_ts in tso.finished


def has_other_branches(tso: TsoState, request: CommitRequest) -> bool:
    """Return whether a retry names other branches than the commit did. Such a retry is refused."""
    pending = tso.pending.get(request.start_ts)
    if pending is not None:
        return frozenset(pending.branches) != frozenset(request.branches)
    finished = tso.finished.get(request.start_ts)
    return finished is not None and finished[0] != frozenset(request.branches)


# ── reported ids ─────────────────────────────────────────────────────────────────────────────────────────────


def report_ids(tso: TsoState, peer: Hashable, tag: int, request: ReportIds) -> None:
    """Keep the conflict ids that a task reports for a branch, if the transaction has a lease (T20)."""
    start_ts = request.start_ts
    ids = _ascending(request.ids)
    error: OmidError | None = None
    if ids is None or request.part < 0 or not begins.is_issued(tso, request.branch):
        error = Misuse(
            f"the ids reported for branch {request.branch} of start_ts {start_ts} are malformed: the branch must be a "
            "start timestamp that was handed out, the part must be 0 or more, and the ids must be ascending and have "
            "8 bytes each",
            start_ts=start_ts,
        )
    elif start_ts not in tso.leases:
        error = SnapshotTooOld(
            f"start_ts {start_ts} has no lease, so the TSO keeps no conflict ids for it", start_ts=start_ts
        )
    elif len(ids) and not tso.oracle.report(start_ts, request.branch, request.part, ids):
        tso.step.counters["reports_refused"] += 1
        error = Unavailable(
            f"the TSO has no room for the conflict ids of start_ts {start_ts}: it keeps at most "
            f"{tso.settings.reported_ids_max} ids (option reportedIdsMax) for all undecided transactions together; "
            "write fewer rows at once, or raise the option",
            start_ts=start_ts,
            reported_ids_max=tso.settings.reported_ids_max,
        )
    else:
        tso.step.counters["ids_reported"] += len(ids)
        error = _early_conflict(tso, request)
    if error is not None:
        tso.step.refuse(peer, tag, error)
    else:
        tso.step.reply(peer, tag, Done())


def _early_conflict(tso: TsoState, report: ReportIds) -> ConflictError | None:
    """Return why a commit of this branch alone would abort now, or None. If it would abort, so does every commit that
    names the branch: it is checked against at least the same history, with at least the same ids."""
    start_ts, branch = report.start_ts, report.branch
    level = WriteSetLevel.IDS if report.ids else WriteSetLevel.TABLE
    count = tso.oracle.reported.count_of(start_ts, branch) if report.ids else 0
    alone = CommitRequest(start_ts, (), (report.table_id,), (branch,), level, reported_ids=count)
    conflict = commits.find_conflict(tso, alone)
    if conflict is None:
        return None
    if start_ts not in tso.lost_jobs:
        tso.lost_jobs.add(start_ts)
        commits.count_abort(tso, alone, conflict)
    return abort_error(CommitReply(start_ts, 0, conflict.reason, conflict.conflict_ts))


def forget_unleased(tso: TsoState) -> None:
    """Forget the undecided ids, and the conflicts already counted, of starts whose lease is gone."""
    tso.lost_jobs = {start for start in tso.lost_jobs if start in tso.leases}
    reported = tso.oracle.reported
    for start_ts in [start for start in reported.undecided if start not in tso.leases]:
        reported.forget(start_ts)


# ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────


async def commit(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> None:
    conflict = commits.find_conflict(tso, request)
    if conflict is not None:
        commits.abort(tso, peer, tag, request, conflict)
    elif _ceiling_is_near(tso):
        ceiling.wait(tso, peer, tag, request)
    else:
        batch = _decide(tso, peer, tag, request)
        await _finish(tso, batch, tso.pending[request.start_ts])


def _ceiling_is_near(tso: TsoState) -> bool:
    """Return whether too few timestamps are left below the ceiling for the commit and the batch that opens after it.
    The required number is less than the number kept back while the ceiling moves (`TimestampClock.reachable`).
    Otherwise the commit might wait for ever."""
    windows = tso.windows
    return windows.clock.ceiling - windows.clock.next_ts < (windows.starts_ahead + 1) * TIMESTAMP_STEP


def _decide(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> Batch:
    """Decide the commit in a batch of its own. Windows above the batch and later replies wait until the branches are
    durable (law 3)."""
    windows = tso.windows
    if not windows.open_batch.is_empty:
        windows.close_open_batch()
    batch = windows.open_batch
    commit_ts = windows.clock.take()
    assert commit_ts is not None
    batch.large = True
    tso.pending[request.start_ts] = PendingCommit(request.start_ts, request.branches)
    tso.rare_starts.add((request.start_ts,))
    commits.add_entry(tso, batch, peer, tag, request, commit_ts)
    windows.close_open_batch()
    batch.state = BatchState.IN_FLIGHT
    return batch


async def _finish(tso: TsoState, batch: Batch, pending: PendingCommit) -> None:
    """Put the pending record, the decision and the branches, answer, then remove record and lease. Each step is durable
    before the next."""
    [(start_ts, commit_ts)] = batch.entries
    if pending.branches:
        await EpochWrite(LeaderStateChanges(pending_added=(pending,)))
    decided: Flushed = await PutDecision(start_ts, commit_ts)
    tso.store.check_epoch(decided.epoch)
    if pending.branches and not decided.refused:
        for at in range(0, len(pending.branches), BRANCHES_A_CALL):
            epoch: int = await PutBranches(pending.branches[at : at + BRANCHES_A_CALL], commit_ts)
            tso.store.check_epoch(epoch)
    _remember(tso, pending)
    commits.make_durable(tso, batch, decided.refused)
    await AfterBatch(batch.seq)
    await _remove(tso, pending)


async def _remove(tso: TsoState, pending: PendingCommit) -> None:
    start_ts = pending.start_ts
    ends = start_ts in tso.leases and tso.leases.end(start_ts, tso.step.now_s)
    removed = (start_ts,)
    await EpochWrite(
        LeaderStateChanges(
            pending_removed=removed if pending.branches else (),
            leases_removed=removed if ends else (),
        )
    )
    tso.leases.forget(start_ts)
    del tso.pending[start_ts]


def _remember(tso: TsoState, pending: PendingCommit) -> None:
    """Remember the commit's branches for retries. Forget commits too old for a retry, and the oldest beyond
    `REMEMBERED_MAX`."""
    finished, bound_s = tso.finished, tso.step.now_s - tso.settings.commit_retry_s
    while finished:
        oldest = next(iter(finished))
        if finished[oldest][1] >= bound_s and len(finished) < REMEMBERED_MAX:
            break
        del finished[oldest]
    finished[pending.start_ts] = (frozenset(pending.branches), tso.step.now_s)


def validate(tso: TsoState) -> None:
    for batch in tso.windows.batches:
        assert not batch.large or batch.entries[0][0] in tso.pending, (
            "a large commit stays pending until its batch is released"
        )


def _ascending(packed: bytes) -> Ids | None:
    """Return the ids of a report as an array, or None if they do not ascend or are not whole ids."""
    if len(packed) % ID_BYTES:
        return None
    ids = np.frombuffer(packed, dtype="<i8").astype(np.int64, copy=False)
    return ids if bool((ids[:-1] <= ids[1:]).all()) else None
