"""Check and decide commits, make them durable with their batch, and answer them when it is released.

    request ─► malformed? ─► conflict? ─► commit timestamp, open batch
               open batch ─► Flush, then epoch ─► released in order ─► answers

A start that was sealed or named by a retry is refused from then on (R2). If an invalidation marker refuses a commit's
entry, the answer is "aborted"; the other commits of the batch are not affected.

Large commits are transactions whose rows were written under branches, extra starts that the commit names (law 3):

    decided ─► a batch of its own ─► pending record ─► PutDecision ─► PutBranches ─► released ─► answered
                                                                           └► record and lease removed

Each of these is durable before the next. A new TSO finishes the pending commits that it finds (`takeover`). A
large commit holds W back from its decision until its record is gone (T12). Tasks report the conflict ids of each branch
before the commit (T20, `status_oracle.ReportedIds`); a report is refused with the conflict that a commit would meet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pyomid.errors import ConflictError, Misuse, OmidError, SnapshotTooOld, Unavailable
from pyomid.omid.oracle.begins import Batch, BatchState
from pyomid.omid.oracle.instructions import EncodedReplies, Flush, Flushed, PutBranches, PutDecision, Reply, SendEncoded
from pyomid.omid.oracle.outgoing import AfterBatch, EpochWrite
from pyomid.omid.oracle.status_oracle import Conflict, Ids
from pyomid.omid.oracle.takeover import TakenOver
from pyomid.omid.wire.messages import TABLE_IDS_MAX, Done, ReportIds
from pyomid.protocol.commit import abort_error
from pyomid.types import (
    TIMESTAMP_STEP,
    AbortReason,
    CommitReply,
    CommitRequest,
    LeaderStateChanges,
    PendingCommit,
    WriteSetLevel,
)

if TYPE_CHECKING:
    from pyomid.omid.oracle.machine import TsoMachine

BRANCHES_A_CALL: Final = 2048
"""Branch entries put per call: a flush waits for the call before it."""

ID_BYTES: Final = 8

REMEMBERED_MAX: Final = 10_000
"""Finished large commits whose branches are remembered, to compare a retry's branches with. For older ones a retry is
answered from the commit table."""

FLIGHTS_RATIO_MAX: Final = 2
"""A flush begins during another only if the other is at most this many times as large."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The reply to a decided commit, sent when its batch is released."""

    peer: Hashable
    tag: int
    start_ts: int
    commit_ts: int


def flushed_reply(reply: CommitReply, refused: frozenset[int]) -> CommitReply:
    """Return the final reply to a commit after its flush (`Flushed`): `reply` itself, or "aborted"."""
    return CommitReply(reply.start_ts, 0, AbortReason.SEALED) if reply.start_ts in refused else reply


class Commits:
    """Ordinary commits, and the batches of all commits."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────

    def malformed(self, request: CommitRequest) -> Misuse | None:
        """Return the error of a request that no correct client sends. A retry of a transaction that an earlier TSO
        began is not malformed."""
        start_ts = request.start_ts
        if not self._tso.begins.is_issued(start_ts):
            return self._tso.begins.not_a_start(start_ts)
        # Omid's TSO accepts what fits a frame of 10 MiB; its client would rerun a refused transaction forever.
        if len(request.cell_ids) > self._tso.settings.write_set_ids_max and not request.from_java_peer:
            return Misuse(
                f"a write set of {len(request.cell_ids)} ids is over the limit of "
                f"{self._tso.settings.write_set_ids_max}, a quarter of conflictMapEntries: commit smaller "
                "transactions, or give the tables the conflict level 'row', which needs one id per row",
                start_ts=start_ts,
            )
        if len(request.table_ids) > TABLE_IDS_MAX:
            return Misuse(
                f"start_ts {start_ts} names {len(request.table_ids)} tables, more than {TABLE_IDS_MAX}: split the "
                "writes into several transactions",
                start_ts=start_ts,
            )
        if (request.level is WriteSetLevel.TABLE or request.reported_ids) and not request.table_ids:
            return Misuse(
                f"the commit of start_ts {start_ts}, at table level or with reported ids, names no table",
                start_ts=start_ts,
            )
        return self._malformed_branches(request) if request.branches else None

    def _malformed_branches(self, request: CommitRequest) -> Misuse | None:
        start_ts, branches = request.start_ts, np.array(request.branches, dtype=np.int64)
        wrong = branches[(branches <= start_ts) | ~self._tso.begins.are_issued(branches)]
        if len(wrong):
            return Misuse(
                f"branch {wrong[0]} of start_ts {start_ts} is not a start handed out after it", start_ts=start_ts
            )
        if len(np.unique(branches)) != len(branches):
            return Misuse(f"a branch of start_ts {start_ts} is named twice", start_ts=start_ts)
        return None

    def conflict(self, request: CommitRequest) -> Conflict | None:
        return self._tso.oracle.check(request, decided=self._tso.watermarks.decided)

    # ── decision ─────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, peer: Hashable, tag: int, request: CommitRequest) -> CommitReply | None:
        """Return "aborted", or None if the answer is sent with its batch. Every ordinary commit is decided here."""
        conflict = self.conflict(request)
        if conflict is not None:
            return self.aborted(request, conflict)
        commit_ts = self._tso.windows.clock.take()
        if commit_ts is None:
            self._tso.ceiling.wait(peer, tag, request)
            return None
        batch = self._tso.windows.open_batch
        self.add_entry(batch, peer, tag, request, commit_ts)
        if batch.size >= self._tso.settings.batch_entries_max:
            self._tso.windows.close_open_batch()
        return None

    def add_entry(self, batch: Batch, peer: Hashable, tag: int, request: CommitRequest, commit_ts: int) -> None:
        """Record a decision and add its entry and answer to the batch. In this order: a commit that is not recorded
        conflicts with nothing, so its entry must not be flushed."""
        self._tso.oracle.record(request, commit_ts)
        batch.entries.append((request.start_ts, commit_ts))
        batch.answers.append(CommitAnswer(peer, tag, request.start_ts, commit_ts))

    def abort(self, peer: Hashable, tag: int, request: CommitRequest, conflict: Conflict) -> None:
        self._tso.step.reply(peer, tag, self.aborted(request, conflict))

    def aborted(self, request: CommitRequest, conflict: Conflict) -> CommitReply:
        self.count_abort(request, conflict)
        return CommitReply(request.start_ts, 0, conflict.reason, conflict.conflict_ts)

    def count_abort(self, request: CommitRequest, conflict: Conflict) -> None:
        self._tso.step.counters[f"aborts_{conflict.reason.value}"] += 1
        if conflict.reason is AbortReason.CONFLICT:
            self._tso.oracle.count_conflict(request.table_ids)

    def refuse_from_now_on(self, starts: Iterable[int]) -> None:
        """Refuse these starts. Starts at or below D need not be remembered: they cannot commit."""
        refused = self._tso.oracle.refused_starts
        new = {start for start in starts if start > self._tso.watermarks.decided} - refused
        refused |= new
        self._tso.rare_starts.add(new)

    # ── flushes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start_flushes(self) -> None:
        """Flush the open batch as soon as a flush may begin; later commits gather in the next batch. During another
        flush it begins only if it is about as large: otherwise many small flushes would follow."""
        windows = self._tso.windows
        while windows.flushes_in_flight < self._tso.settings.flushes_in_flight_max:
            batch = windows.next_to_flush()
            if batch is None:
                if windows.open_batch.is_empty or self._is_small_beside_others():
                    return
                batch = windows.close_open_batch()
            self._flush(batch)

    def _is_small_beside_others(self) -> bool:
        """Whether the open batch is too small to flush now: it begins when the flush in flight ends, which is soon."""
        newest = self._tso.windows.newest_flight
        return newest is not None and self._tso.windows.open_batch.size * FLIGHTS_RATIO_MAX < newest.size

    def _flush(self, batch: Batch) -> None:
        batch.state = BatchState.IN_FLIGHT
        self._tso.step.counters["flushes"] += 1
        flush = Flush(tuple(batch.entries), None if batch.block is None else batch.block.entries)
        self._tso.store.call(flush, lambda result: self._end_flush(batch, result))

    def _end_flush(self, batch: Batch, result: Flushed) -> None:
        """T5: the epoch was read after the entries were durable. If another TSO leads, answer no commit of the
        batch."""
        self._tso.store.check_epoch(result.epoch)
        self.make_durable(batch, result.refused)

    # ── release ──────────────────────────────────────────────────────────────────────────────────────────────────

    def make_durable(self, batch: Batch, refused: frozenset[int]) -> None:
        batch.state = BatchState.DURABLE
        batch.answers = [self._final(answer, refused) for answer in batch.answers]
        if refused:
            self._count_refused([start for start, _ in batch.all_entries()], refused)
        self._release_batches()

    def _count_refused(self, decided: list[int], refused: frozenset[int]) -> None:
        """Count as aborted, and refuse from now on, the commits that the flush did not make durable."""
        among = sum(start in refused for start in decided)
        self.refuse_from_now_on(refused)
        self._tso.step.counters["aborts_sealed"] += among
        self._tso.step.counters["commits"] -= among

    def _final(self, answer: CommitAnswer | Reply | EncodedReplies, refused: frozenset[int]) -> Reply | SendEncoded:
        counters = self._tso.step.counters
        if isinstance(answer, Reply):
            return answer
        if not isinstance(answer, CommitAnswer):
            counters["commits"] += answer.count
            return SendEncoded(answer.without(refused) if refused else answer)
        counters["commits"] += 1
        reply = CommitReply(answer.start_ts, answer.commit_ts)
        return Reply(answer.peer, answer.tag, flushed_reply(reply, refused))

    def _release_batches(self) -> None:
        """Release batches in order, although their flushes end in any order."""
        while (batch := self._tso.windows.release()) is not None:
            for answer in batch.answers:
                self._tso.step.send(answer)
            self._tso.watermarks.note_release()
            self._tso.store.released(batch.seq)
        self._tso.windows.close_after_fences()

    def answer_after_batch(self, reply: Reply) -> None:
        """T8: send a fence's reply when the open batch is released: from then on starts come from a window above the
        fence."""
        self._tso.windows.open_batch.fenced = True
        self._tso.windows.open_batch.answers.append(reply)
        self._tso.windows.close_after_fences()

    def batch_that_may_hold(self, starts: Iterable[int]) -> int:
        """Return the newest unreleased batch that has an entry or a branch of one of `starts`; 0 if none has."""
        wanted = frozenset(starts)
        found = 0
        for batch in self._tso.windows.batches:
            if batch.holds_any(wanted):
                found = batch.seq
            if batch.large and not wanted.isdisjoint(self._tso.pending[batch.entries[0][0]].branches):
                found = batch.seq
        return found


class LargeCommits:
    """Commits of branches. `TsoMachine.pending` holds those whose record is not yet gone."""

    def __init__(self, tso: TsoMachine, taken_over: TakenOver) -> None:
        self._tso = tso
        self.finished: dict[int, tuple[frozenset[int], float]] = {
            record.start_ts: (frozenset(record.branches), tso.step.now_s) for record in taken_over.finished
        }
        """start → (branches, when the commit ended), in the order of their ends."""
        self._lost: set[int] = set()
        """Leased starts of which a report was answered with a conflict; each counts as one abort."""

    def knows(self, start_ts: int) -> bool:
        return start_ts in self._tso.pending or start_ts in self.finished

    def has_other_branches(self, request: CommitRequest) -> bool:
        """Whether a retry names other branches than the commit did: then it is refused."""
        pending = self._tso.pending.get(request.start_ts)
        if pending is not None:
            return frozenset(pending.branches) != frozenset(request.branches)
        finished = self.finished.get(request.start_ts)
        return finished is not None and finished[0] != frozenset(request.branches)

    # ── reported ids ─────────────────────────────────────────────────────────────────────────────────────────────

    def report_ids(self, peer: Hashable, tag: int, request: ReportIds) -> None:
        """Keep the conflict ids that a task reports for a branch, while the transaction has a lease (T20)."""
        start_ts = request.start_ts
        ids = _ascending(request.ids)
        error: OmidError | None = None
        if ids is None or request.part < 0 or not self._tso.begins.is_issued(request.branch):
            error = Misuse(
                f"the ids reported for branch {request.branch} of start_ts {start_ts} are malformed: the branch "
                "must be a start that was handed out, the part 0 or more, and the ids ascending, 8 bytes each",
                start_ts=start_ts,
            )
        elif start_ts not in self._tso.leases:
            error = SnapshotTooOld(
                f"start_ts {start_ts} has no lease, so the TSO keeps no ids for it", start_ts=start_ts
            )
        elif len(ids) and not self._tso.oracle.report(start_ts, request.branch, request.part, ids):
            self._tso.step.counters["reports_refused"] += 1
            error = Unavailable(
                f"the TSO has no room for the conflict ids of start_ts {start_ts}: it keeps at most "
                f"{self._tso.settings.reported_ids_max} (option reportedIdsMax) for all undecided transactions "
                "together: write fewer rows at once, or raise the option",
                start_ts=start_ts,
                reported_ids_max=self._tso.settings.reported_ids_max,
            )
        else:
            self._tso.step.counters["ids_reported"] += len(ids)
            error = self._early_conflict(request)
        if error is not None:
            self._tso.step.refuse(peer, tag, error)
        else:
            self._tso.step.reply(peer, tag, Done())

    def _early_conflict(self, report: ReportIds) -> ConflictError | None:
        """Return why a commit of this branch alone would abort now. Then every commit that names the branch aborts: it
        is checked against the same history or more, with the same ids or more."""
        start_ts, branch = report.start_ts, report.branch
        level = WriteSetLevel.IDS if report.ids else WriteSetLevel.TABLE
        count = self._tso.oracle.reported.count_of(start_ts, branch) if report.ids else 0
        alone = CommitRequest(start_ts, (), (report.table_id,), (branch,), level, reported_ids=count)
        conflict = self._tso.commits.conflict(alone)
        if conflict is None:
            return None
        if start_ts not in self._lost:
            self._lost.add(start_ts)
            self._tso.commits.count_abort(alone, conflict)
        return abort_error(CommitReply(start_ts, 0, conflict.reason, conflict.conflict_ts))

    def forget_unleased(self) -> None:
        """Forget the undecided ids and the early conflicts of starts whose lease is gone."""
        self._lost = {start for start in self._lost if start in self._tso.leases}
        reported = self._tso.oracle.reported
        for start_ts in [start for start in reported.undecided if start not in self._tso.leases]:
            reported.forget(start_ts)

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, peer: Hashable, tag: int, request: CommitRequest) -> None:
        conflict = self._tso.commits.conflict(request)
        if conflict is not None:
            self._tso.commits.abort(peer, tag, request, conflict)
        elif self._ceiling_is_near():
            self._tso.ceiling.wait(peer, tag, request)
        else:
            batch = self._decide(peer, tag, request)
            await self._finish(batch, self._tso.pending[request.start_ts])

    def _ceiling_is_near(self) -> bool:
        """Whether the commit's batch and its timestamp would not both lie below the ceiling. Less is asked for than is
        kept back while the ceiling moves (`TimestampClock.reachable`): otherwise the commit might wait for ever."""
        windows = self._tso.windows
        return windows.clock.ceiling - windows.clock.next_ts < (windows.starts_ahead + 1) * TIMESTAMP_STEP

    def _decide(self, peer: Hashable, tag: int, request: CommitRequest) -> Batch:
        """Decide in a batch of its own: windows above it and later replies wait until its branches are durable
        (law 3)."""
        windows = self._tso.windows
        if not windows.open_batch.is_empty:
            windows.close_open_batch()
        batch = windows.open_batch
        commit_ts = windows.clock.take()
        assert commit_ts is not None
        batch.large = True
        self._tso.pending[request.start_ts] = PendingCommit(request.start_ts, request.branches)
        self._tso.rare_starts.add((request.start_ts,))
        self._tso.commits.add_entry(batch, peer, tag, request, commit_ts)
        windows.close_open_batch()
        batch.state = BatchState.IN_FLIGHT
        return batch

    async def _finish(self, batch: Batch, pending: PendingCommit) -> None:
        """Pending record, decision, branches, answer, record and lease gone: each durable before the next."""
        [(start_ts, commit_ts)] = batch.entries
        if pending.branches:
            await EpochWrite(LeaderStateChanges(pending_added=(pending,)))
        decided: Flushed = await PutDecision(start_ts, commit_ts)
        self._tso.store.check_epoch(decided.epoch)
        if pending.branches and not decided.refused:
            for at in range(0, len(pending.branches), BRANCHES_A_CALL):
                epoch: int = await PutBranches(pending.branches[at : at + BRANCHES_A_CALL], commit_ts)
                self._tso.store.check_epoch(epoch)
        self._remember(pending)
        self._tso.commits.make_durable(batch, decided.refused)
        await AfterBatch(batch.seq)
        await self._remove(pending)

    async def _remove(self, pending: PendingCommit) -> None:
        start_ts = pending.start_ts
        ends = start_ts in self._tso.leases and self._tso.leases.end(start_ts, self._tso.step.now_s)
        removed = (start_ts,)
        await EpochWrite(
            LeaderStateChanges(
                pending_removed=removed if pending.branches else (),
                leases_removed=removed if ends else (),
            )
        )
        self._tso.leases.forget(start_ts)
        del self._tso.pending[start_ts]

    def _remember(self, pending: PendingCommit) -> None:
        """Remember the branches for retries; forget commits that are too old for a retry, or beyond
        `REMEMBERED_MAX`."""
        finished, bound_s = self.finished, self._tso.step.now_s - self._tso.settings.commit_retry_s
        while finished:
            oldest = next(iter(finished))
            if finished[oldest][1] >= bound_s and len(finished) < REMEMBERED_MAX:
                break
            del finished[oldest]
        finished[pending.start_ts] = (frozenset(pending.branches), self._tso.step.now_s)

    def validate(self) -> None:
        for batch in self._tso.windows.batches:
            assert not batch.large or batch.entries[0][0] in self._tso.pending, (
                "a large commit stays pending until its batch is released"
            )


def _ascending(packed: bytes) -> Ids | None:
    """Return the ids of a report; None if they do not ascend."""
    if len(packed) % ID_BYTES:
        return None
    ids = np.frombuffer(packed, dtype="<i8").astype(np.int64, copy=False)
    return ids if bool((ids[:-1] <= ids[1:]).all()) else None
