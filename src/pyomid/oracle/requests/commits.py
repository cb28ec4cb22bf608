"""A commit: checked, decided, made durable with its batch, answered when the batch is released.

    request ─► malformed? ─► conflict? ─► commit timestamp, open batch
               open batch ─► Flush, then epoch ─► released in order ─► answers

A start that was sealed, or that a retry named, is refused from then on (R2). A commit whose entry an invalidation
marker refused is answered "aborted"; the rest of its batch stands.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyomid.arrays import NDArray, np
from pyomid.errors import Misuse
from pyomid.oracle.instructions import EncodedReplies, Flush, Flushed, Reply, SendEncoded
from pyomid.oracle.outgoing import Step, StoreRequests
from pyomid.oracle.requests.begins import Begins, Ceiling
from pyomid.oracle.settings import TsoSettings
from pyomid.oracle.status_oracle import Conflict, RareStarts, StatusOracle
from pyomid.oracle.watermarks import Watermarks
from pyomid.oracle.windows import Batch, BatchState, BeginWindows
from pyomid.types import AbortReason, CommitReply, CommitRequest, PendingCommit, WriteSetLevel
from pyomid.wire.messages import TABLE_IDS_MAX

FLIGHTS_RATIO_MAX: Final = 2
"""A flush begins during another one only if that is at most this many times as large."""

NO_ENTRIES: Final[NDArray[np.int64]] = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """A decided commit's reply, sent when its batch is released."""

    peer: Hashable
    tag: int
    start_ts: int
    commit_ts: int


class Commits:
    """Ordinary commits, and the batches of all commits. `pending`: large commits by start."""

    def __init__(
        self,
        step: Step,
        store: StoreRequests,
        settings: TsoSettings,
        *,
        windows: BeginWindows,
        oracle: StatusOracle,
        begins: Begins,
        ceiling: Ceiling,
        watermarks: Watermarks,
        pending: Mapping[int, PendingCommit],
        rare_starts: RareStarts,
    ) -> None:
        self._step = step
        self._store = store
        self._settings = settings
        self._windows = windows
        self._oracle = oracle
        self._begins = begins
        self._ceiling = ceiling
        self._watermarks = watermarks
        self._pending = pending
        self._rare_starts = rare_starts

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────

    def malformed(self, request: CommitRequest) -> Misuse | None:
        """What no correct client sends. A retry of a transaction that an earlier TSO began is not malformed."""
        start_ts = request.start_ts
        if not self._begins.is_issued(start_ts):
            return self._begins.not_a_start(start_ts)
        # Omid's own TSO takes what fits a frame of 10 MiB; its client would run a refused transaction again for ever.
        if len(request.cell_ids) > self._settings.write_set_ids_max and not request.is_plain:
            return Misuse(
                f"a write set of {len(request.cell_ids)} ids is over the limit of "
                f"{self._settings.write_set_ids_max}: commit it at table level",
                start_ts=start_ts,
            )
        if len(request.table_ids) > TABLE_IDS_MAX:
            return Misuse(
                f"start_ts {start_ts} names {len(request.table_ids)} tables, more than {TABLE_IDS_MAX}: write them in "
                "several transactions",
                start_ts=start_ts,
            )
        if request.level is WriteSetLevel.TABLE and not request.table_ids:
            return Misuse(f"a table-level commit of start_ts {start_ts} names no table", start_ts=start_ts)
        return self._malformed_branches(request) if request.branches else None

    def _malformed_branches(self, request: CommitRequest) -> Misuse | None:
        start_ts, branches = request.start_ts, np.array(request.branches, dtype=np.int64)
        wrong = branches[(branches <= start_ts) | ~self._begins.are_issued(branches)]
        if len(wrong):
            return Misuse(
                f"branch {wrong[0]} of start_ts {start_ts} is no start handed out after it", start_ts=start_ts
            )
        if len(np.unique(branches)) != len(branches):
            return Misuse(f"a branch of start_ts {start_ts} is named twice", start_ts=start_ts)
        return None

    def conflict(self, request: CommitRequest) -> Conflict | None:
        return self._oracle.check(request, decided=self._watermarks.decided)

    # ── decision ─────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, peer: Hashable, tag: int, request: CommitRequest) -> CommitReply | None:
        """The one place where an ordinary transaction's fate is chosen: "aborted", or None where the answer comes with
        its batch."""
        conflict = self.conflict(request)
        if conflict is not None:
            return self.aborted(request, conflict)
        commit_ts = self._windows.clock.take()
        if commit_ts is None:
            self._ceiling.wait(peer, tag, request)
            return None
        batch = self._windows.open_batch
        self.add_entry(batch, peer, tag, request, commit_ts)
        if batch.size >= self._settings.batch_entries_max:
            self._windows.close_open_batch()
        return None

    def add_entry(self, batch: Batch, peer: Hashable, tag: int, request: CommitRequest, commit_ts: int) -> None:
        """Remembers a decision, and has it made durable and answered with its batch. In this order: what is not
        remembered conflicts with nothing, so its entry must not leave."""
        low_before = self._oracle.low_watermark
        self._oracle.record(request, commit_ts)
        batch.entries.append((request.start_ts, commit_ts))
        batch.answers.append(CommitAnswer(peer, tag, request.start_ts, commit_ts))
        if self._oracle.low_watermark > low_before:
            self._watermarks.note_low_rose()

    def abort(self, peer: Hashable, tag: int, request: CommitRequest, conflict: Conflict) -> None:
        self._step.reply(peer, tag, self.aborted(request, conflict))

    def aborted(self, request: CommitRequest, conflict: Conflict) -> CommitReply:
        self._step.counters[f"aborts_{conflict.reason.value}"] += 1
        if conflict.reason is AbortReason.CONFLICT:
            self._oracle.count_conflict(request.table_ids)
        return CommitReply(request.start_ts, 0, conflict.reason, conflict.conflict_ts)

    def refuse_from_now_on(self, starts: Iterable[int]) -> None:
        """Those at or below D need no memory: they cannot commit."""
        refused = self._oracle.refused_starts
        new = {start for start in starts if start > self._watermarks.decided} - refused
        refused |= new
        self._rare_starts.add(new)

    # ── flushes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start_flushes(self) -> None:
        """The open batch is flushed as soon as a flush may begin; commits that come meanwhile gather in the next batch.
        During another flush it begins only if it is about as large: otherwise many small flushes would follow each
        other."""
        windows = self._windows
        while windows.flushes_in_flight < self._settings.flushes_in_flight_max:
            batch = windows.next_to_flush()
            if batch is None:
                if windows.open_batch.is_empty or self._is_small_beside_others():
                    return
                batch = windows.close_open_batch()
            self.begin_flush(batch)
            self._flush(batch)

    def begin_flush(self, batch: Batch) -> None:
        batch.state = BatchState.IN_FLIGHT
        self._step.counters["flushes"] += 1

    def give_up_flush(self, batch: Batch) -> None:
        """It failed, and no store call repeats it: the next `start_flushes` begins it anew."""
        batch.state = BatchState.CLOSED
        self._step.counters["flushes"] -= 1

    def start_plain_flush(self) -> NDArray[np.int64] | None:
        """As `TsoMachine.start_plain_flush`, where nothing but a flush is due."""
        windows = self._windows
        batch = windows.open_batch
        if len(windows.batches) > 1:
            is_none_due = batch.is_empty and windows.next_to_flush() is None
            return (
                NO_ENTRIES if is_none_due or windows.flushes_in_flight >= self._settings.flushes_in_flight_max else None
            )
        if batch.block is None or not batch.block.count or batch.entries or batch.fenced:
            return NO_ENTRIES if batch.is_empty else None
        self.begin_flush(windows.close_open_batch())
        return batch.block.entries

    def _is_small_beside_others(self) -> bool:
        """It begins when the flush that is under way ends, which is soon."""
        newest = self._windows.newest_flight
        return newest is not None and self._windows.open_batch.size * FLIGHTS_RATIO_MAX < newest.size

    def _flush(self, batch: Batch) -> None:
        block = None if batch.block is None else batch.block.entries
        self._store.call(Flush(tuple(batch.entries), block), lambda result: self.end_flush(batch, result))

    def end_flush(self, batch: Batch, result: Flushed) -> None:
        """T5: the epoch was read after the entries were durable. If another TSO leads, no commit of it is answered."""
        self._store.check_epoch(result.epoch)
        self.make_durable(batch, result.refused)

    # ── release ──────────────────────────────────────────────────────────────────────────────────────────────────

    def make_durable(self, batch: Batch, refused: frozenset[int]) -> None:
        batch.state = BatchState.DURABLE
        batch.answers = [self._final(answer, refused) for answer in batch.answers]
        if refused and batch.block is not None:
            among = sum(start in refused for start in batch.block.entries[:, 0].tolist())
            self.refuse_from_now_on(refused)
            self._step.counters["aborts_sealed"] += among
            self._step.counters["commits"] -= among
        self._release_batches()

    def _final(self, answer: CommitAnswer | Reply | EncodedReplies, refused: frozenset[int]) -> Reply | SendEncoded:
        counters = self._step.counters
        if isinstance(answer, Reply):
            return answer
        if not isinstance(answer, CommitAnswer):
            counters["commits"] += answer.count
            return SendEncoded(answer.without(refused) if refused else answer)
        if answer.start_ts in refused:
            counters["aborts_sealed"] += 1
            self.refuse_from_now_on((answer.start_ts,))
            return Reply(answer.peer, answer.tag, CommitReply(answer.start_ts, 0, AbortReason.SEALED))
        counters["commits"] += 1
        return Reply(answer.peer, answer.tag, CommitReply(answer.start_ts, answer.commit_ts))

    def _release_batches(self) -> None:
        """In order, whatever the order in which their flushes end."""
        while (batch := self._windows.release()) is not None:
            for answer in batch.answers:
                self._step.send(answer)
            self._watermarks.note_release(batch.size)
            self._store.released(batch.seq)
        self._windows.close_behind_fences()

    def answer_behind_batch(self, reply: Reply) -> None:
        """T8: when the open batch is released, and the window that serves from then on lies above it."""
        self._windows.open_batch.fenced = True
        self._windows.open_batch.answers.append(reply)
        self._windows.close_behind_fences()

    def batch_that_may_hold(self, starts: Iterable[int]) -> int:
        """The newest batch not yet released with an entry, or a branch, of one of `starts`; 0 if none has."""
        wanted = frozenset(starts)
        found = 0
        for batch in self._windows.batches:
            if batch.holds_any(wanted):
                found = batch.seq
            if batch.large and not wanted.isdisjoint(self._pending[batch.entries[0][0]].branches):
                found = batch.seq
        return found
