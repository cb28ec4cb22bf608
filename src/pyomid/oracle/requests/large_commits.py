"""Large commits: transactions whose rows were written under branches, extra starts that the commit names (law 3).

    decided ─► a batch of its own ─► pending record ─► PutDecision ─► PutBranches ─► released ─► answered
                                                                           └► record and lease removed

Each of these is durable before the next. A new TSO finishes the pending commits that it finds (`oracle.takeover`). A
large commit holds W back from its decision until its record is gone (T12).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from pyomid.oracle.instructions import Flushed, PutBranches, PutDecision
from pyomid.oracle.outgoing import AfterBatch, EpochWrite, Procedure
from pyomid.oracle.takeover import TakenOver
from pyomid.oracle.windows import Batch, BatchState
from pyomid.types import TIMESTAMP_STEP, CommitRequest, LeaderStateChanges, PendingCommit

if TYPE_CHECKING:
    from pyomid.oracle.machine import TsoMachine

BRANCHES_A_CALL: Final = 2048
"""Branch entries put per call: a flush waits for the call before it."""

REMEMBERED_MAX: Final = 10_000
"""Finished large commits whose branches are remembered, to compare a retry's branches with. For older ones a retry is
answered from the commit table."""


class LargeCommits:
    """`pending`: the decided large commits whose record is not yet gone, by start."""

    def __init__(self, tso: TsoMachine, taken_over: TakenOver) -> None:
        self._tso = tso
        self.pending = tso.pending
        self.finished: dict[int, tuple[frozenset[int], float]] = {
            record.start_ts: (frozenset(record.branches), tso.step.now_s) for record in taken_over.finished
        }
        """start → (branches, when the commit ended), in the order of their ends."""

    def knows(self, start_ts: int) -> bool:
        return start_ts in self.pending or start_ts in self.finished

    def has_other_branches(self, request: CommitRequest) -> bool:
        """Whether a retry names other branches than the commit did: then it is refused."""
        pending = self.pending.get(request.start_ts)
        if pending is not None:
            return frozenset(pending.branches) != frozenset(request.branches)
        finished = self.finished.get(request.start_ts)
        return finished is not None and finished[0] != frozenset(request.branches)

    def commit_steps(self, peer: Hashable, tag: int, request: CommitRequest) -> Procedure:
        conflict = self._tso.commits.conflict(request)
        if conflict is not None:
            self._tso.commits.abort(peer, tag, request, conflict)
        elif self._ceiling_is_near():
            self._tso.ceiling.wait(peer, tag, request)
        else:
            batch = self._decide(peer, tag, request)
            yield from self._finish_steps(batch, self.pending[request.start_ts])

    def _ceiling_is_near(self) -> bool:
        clock = self._tso.windows.clock
        return clock.ceiling - clock.next_ts < (self._tso.settings.window_starts + 1) * TIMESTAMP_STEP

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
        self.pending[request.start_ts] = PendingCommit(request.start_ts, request.branches)
        self._tso.rare_starts.add((request.start_ts,))
        self._tso.commits.add_entry(batch, peer, tag, request, commit_ts)
        windows.close_open_batch()
        batch.state = BatchState.IN_FLIGHT
        return batch

    def _finish_steps(self, batch: Batch, pending: PendingCommit) -> Procedure:
        """Pending record, decision, branches, answer, record and lease gone: each durable before the next."""
        [(start_ts, commit_ts)] = batch.entries
        if pending.branches:
            yield EpochWrite(LeaderStateChanges(pending_added=(pending,)))
        decided: Flushed = yield PutDecision(start_ts, commit_ts)
        self._tso.store.check_epoch(decided.epoch)
        if pending.branches and not decided.refused:
            for at in range(0, len(pending.branches), BRANCHES_A_CALL):
                epoch: int = yield PutBranches(pending.branches[at : at + BRANCHES_A_CALL], commit_ts)
                self._tso.store.check_epoch(epoch)
        self._remember(pending)
        self._tso.commits.make_durable(batch, decided.refused)
        yield AfterBatch(batch.seq)
        yield from self._remove_steps(pending)

    def _remove_steps(self, pending: PendingCommit) -> Procedure:
        start_ts = pending.start_ts
        ends = start_ts in self._tso.leases and self._tso.leases.end(start_ts, self._tso.step.now_s)
        removed = (start_ts,)
        yield EpochWrite(
            LeaderStateChanges(
                pending_removed=removed if pending.branches else (),
                leases_removed=removed if ends else (),
            )
        )
        self._tso.leases.forget(start_ts)
        del self.pending[start_ts]

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
            assert not batch.large or batch.entries[0][0] in self.pending, (
                "a large commit stays pending until its batch is released"
            )
