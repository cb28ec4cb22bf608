"""Check and decide commits, make them durable with their batch, and answer them when it is released.

    request ─► malformed? ─► conflict? ─► commit timestamp, open batch
               open batch ─► Flush, then epoch ─► released in order ─► answers

Once a start was sealed or named by a retry, its commits are refused (R2). If an invalidation marker refuses a commit's
entry, the answer is "aborted"; the other commits of the batch are not affected.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from pyomid.errors import Misuse
from pyomid.omid.oracle import begins, ceiling, watermarks
from pyomid.omid.oracle.instructions import EncodedReplies, Flush, Flushed, Reply, SendEncoded
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.oracle.status_oracle import Conflict
from pyomid.omid.oracle.windows import Batch, BatchState
from pyomid.omid.wire.messages import TABLE_IDS_MAX
from pyomid.types import AbortReason, CommitReply, CommitRequest, WriteSetLevel

FLIGHTS_RATIO_MAX: Final = 2
"""While one flush is in flight, another begins only if the first is at most this many times as large."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The data of a decided commit's reply, which is sent when its batch is released."""

    peer: Hashable
    tag: int
    start_ts: int
    commit_ts: int


def flushed_reply(reply: CommitReply, refused: frozenset[int]) -> CommitReply:
    """Return the final reply to a commit after its flush (`Flushed`): `reply` itself, or "aborted"."""
    return CommitReply(reply.start_ts, 0, AbortReason.SEALED) if reply.start_ts in refused else reply


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────


def malformed(tso: TsoState, request: CommitRequest) -> Misuse | None:
    """Return an error if no correct client would send this request; otherwise None. A retry of a transaction that an
    earlier TSO began is not malformed."""
    start_ts = request.start_ts
    if not begins.is_issued(tso, start_ts):
        return begins.not_a_start(tso, start_ts)
    # Omid's TSO accepts every commit that fits a frame of 10 MiB, and its client would rerun a refused transaction
    # forever.
    if len(request.cell_ids) > tso.settings.write_set_ids_max and not request.from_java_peer:
        return Misuse(
            f"a write set of {len(request.cell_ids)} ids is over the limit of "
            f"{tso.settings.write_set_ids_max}, a quarter of conflictMapEntries: commit smaller "
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
            f"the commit of start_ts {start_ts} names no table, but a commit at table level or with reported ids must "
            "name at least one table",
            start_ts=start_ts,
        )
    return _malformed_branches(tso, request) if request.branches else None


def _malformed_branches(tso: TsoState, request: CommitRequest) -> Misuse | None:
    start_ts, branches = request.start_ts, np.array(request.branches, dtype=np.int64)
    wrong = branches[(branches <= start_ts) | ~begins.are_issued(tso, branches)]
    if len(wrong):
        return Misuse(
            f"branch {wrong[0]} is not a start timestamp that was handed out after start_ts {start_ts}",
            start_ts=start_ts,
        )
    if len(np.unique(branches)) != len(branches):
        return Misuse(f"a branch of start_ts {start_ts} is named twice", start_ts=start_ts)
    return None


def find_conflict(tso: TsoState, request: CommitRequest) -> Conflict | None:
    return tso.oracle.check(request, decided=tso.watermarks.decided)


# ── decision ─────────────────────────────────────────────────────────────────────────────────────────────────


def decide(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> CommitReply | None:
    """Decide an ordinary commit. Returns the reply "aborted", or None if the reply is sent later, with its batch."""
    conflict = find_conflict(tso, request)
    if conflict is not None:
        return aborted(tso, request, conflict)
    commit_ts = tso.windows.clock.take()
    if commit_ts is None:
        ceiling.wait(tso, peer, tag, request)
        return None
    batch = tso.windows.open_batch
    add_entry(tso, batch, peer, tag, request, commit_ts)
    if batch.size >= tso.settings.batch_entries_max:
        tso.windows.close_open_batch()
    return None


def add_entry(tso: TsoState, batch: Batch, peer: Hashable, tag: int, request: CommitRequest, commit_ts: int) -> None:
    """Record a decision, then add its entry and answer to the batch. The order matters: a commit that is not recorded
    conflicts with nothing, so its entry must not be flushed."""
    tso.oracle.record(request, commit_ts)
    batch.entries.append((request.start_ts, commit_ts))
    batch.answers.append(CommitAnswer(peer, tag, request.start_ts, commit_ts))


def abort(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest, conflict: Conflict) -> None:
    tso.step.reply(peer, tag, aborted(tso, request, conflict))


def aborted(tso: TsoState, request: CommitRequest, conflict: Conflict) -> CommitReply:
    count_abort(tso, request, conflict)
    return CommitReply(request.start_ts, 0, conflict.reason, conflict.conflict_ts)


def count_abort(tso: TsoState, request: CommitRequest, conflict: Conflict) -> None:
    """Count an abort. A conflict is counted for decidable tables only, because a peer may name any other table."""
    tso.step.counters[f"aborts_{conflict.reason.value}"] += 1
    if conflict.reason is AbortReason.CONFLICT:
        tso.oracle.count_conflict(table_id for table_id in request.table_ids if table_id in tso.tables.decidable)


def refuse_from_now_on(tso: TsoState, starts: Iterable[int]) -> None:
    """Refuse all later commits of these starts. Starts at or below D need not be remembered, because they cannot
    commit."""
    refused = tso.oracle.refused_starts
    new = {start for start in starts if start > tso.watermarks.decided} - refused
    refused |= new
    tso.rare_starts.add(new)


# ── flushes ──────────────────────────────────────────────────────────────────────────────────────────────────


def start_flushes(tso: TsoState) -> None:
    """Flush the open batch as soon as a flush may begin; later commits gather in the next batch. While another flush is
    in flight, the open batch is flushed only if it is about as large. Otherwise many small flushes would follow."""
    windows = tso.windows
    while windows.flushes_in_flight < tso.settings.flushes_in_flight_max:
        batch = windows.next_to_flush()
        if batch is None:
            if windows.open_batch.is_empty or _is_small_beside_others(tso):
                return
            batch = windows.close_open_batch()
        _flush(tso, batch)


def _is_small_beside_others(tso: TsoState) -> bool:
    """Return whether the open batch is too small to flush now. Its flush begins when the flush in flight ends, which is
    soon."""
    newest = tso.windows.newest_flight
    return newest is not None and tso.windows.open_batch.size * FLIGHTS_RATIO_MAX < newest.size


def _flush(tso: TsoState, batch: Batch) -> None:
    batch.state = BatchState.IN_FLIGHT
    tso.step.counters["flushes"] += 1
    tso.store.call(Flush(tuple(batch.entries), batch.block), lambda result: _end_flush(tso, batch, result))


def _end_flush(tso: TsoState, batch: Batch, result: Flushed) -> None:
    """T5: check the epoch that was read after the entries were durable. If another TSO leads, no commit of the batch is
    answered."""
    tso.store.check_epoch(result.epoch)
    make_durable(tso, batch, result.refused)


# ── release ──────────────────────────────────────────────────────────────────────────────────────────────────


def make_durable(tso: TsoState, batch: Batch, refused: frozenset[int]) -> None:
    batch.state = BatchState.DURABLE
    batch.answers = [_final(tso, answer, refused) for answer in batch.answers]
    if refused:
        _count_refused(tso, [start for start, _ in batch.all_entries()], refused)
    _release_batches(tso)


def _count_refused(tso: TsoState, decided: list[int], refused: frozenset[int]) -> None:
    """Count the commits that the flush did not make durable as aborted, and refuse their starts from now on."""
    among = sum(start in refused for start in decided)
    refuse_from_now_on(tso, refused)
    tso.step.counters["aborts_sealed"] += among
    tso.step.counters["commits"] -= among


def _final(
    tso: TsoState, answer: CommitAnswer | Reply | EncodedReplies, refused: frozenset[int]
) -> Reply | SendEncoded:
    counters = tso.step.counters
    if isinstance(answer, Reply):
        return answer
    if not isinstance(answer, CommitAnswer):
        counters["commits"] += answer.count
        return SendEncoded(answer.without(refused) if refused else answer)
    counters["commits"] += 1
    reply = CommitReply(answer.start_ts, answer.commit_ts)
    return Reply(answer.peer, answer.tag, flushed_reply(reply, refused))


def _release_batches(tso: TsoState) -> None:
    """Release batches in order, although their flushes end in any order."""
    while (batch := tso.windows.release()) is not None:
        for answer in batch.answers:
            tso.step.send(answer)
        watermarks.note_release(tso)
        tso.store.released(batch.seq)
    tso.windows.close_after_fences()


def answer_after_batch(tso: TsoState, reply: Reply) -> None:
    """T8: send a fence's reply when the open batch is released. From then on start timestamps come from a window above
    the fence."""
    tso.windows.open_batch.fenced = True
    tso.windows.open_batch.answers.append(reply)
    tso.windows.close_after_fences()


def batch_that_may_hold(tso: TsoState, starts: Iterable[int]) -> int:
    """Return the number of the newest unreleased batch that has an entry or a branch of one of `starts`, or 0."""
    wanted = frozenset(starts)
    found = 0
    for batch in tso.windows.batches:
        if batch.holds_any(wanted):
            found = batch.seq
        if batch.large and not wanted.isdisjoint(tso.pending[batch.entries[0][0]].branches):
            found = batch.seq
    return found
