"""The mutation gate: take one rule out of the core, and a run that was green turns red.

Each row: the rule of hazards.md, the function or method that embodies it, what stands there without it, and what must
go red: the random universes from `first_seed` on (the first of `seeds` that does ends the row), or a directed
schedule of `directed` by its name. Mutants of rules outside the core (clients, Spark, stores) are in
`tests/simulation/shipped_mutants.py`; `ELSEWHERE` lists the rules that no hook can take out.

    python -m simulation.mutants            every row, and where its first red run is
    python -m simulation.mutants R4 T1      some
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import coroutine
from typing import Any, Final

import numpy as np

from pyomid.cells import TOMBSTONE
from pyomid.omid.oracle import instructions
from pyomid.omid.wire import messages
from pyomid.protocol import effects
from pyomid.types import SealOutcome
from simulation.build import Build
from simulation.directed import run_directed
from simulation.hooks import Hook, Replacement, answers, nothing, relayed, with_step, without_step
from simulation.runs import run_seed

SEEDS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out. `name` is the rule's number, with a letter where it has several halves."""

    name: str
    without: str
    hook: Hook
    directed: str = ""
    """The schedule that goes red; empty: random universes."""
    seeds: int = SEEDS_MAX


def _m(name: str, without: str, place: str, instead: Replacement, directed: str = "") -> Mutant:
    return Mutant(name, without, Hook(place, instead), directed)


# ---------------------------------------------------------------- what stands where a rule stood


@coroutine
def _horizon_read_first(original: Any, starts: Any) -> Any:
    watermark, horizon = yield effects.ReadWatermarks()
    states, _, _ = yield from original(starts)
    return states, watermark, horizon


@coroutine
def _unsettled_is_absent(original: Any, table: Any, rows: Any, columns: Any, snapshot: Any, cache: Any) -> Any:
    settled, _, _ = yield effects.ReadSettled(table.name, rows, columns, snapshot.bounds)
    return [row or {} for row in settled]


@coroutine
def _any_former_table(original: Any, table: Any, snapshot: Any, generation: int) -> Any:
    yield from original(table, replace(snapshot, start_ts=1 << 62), generation)


def _no_horizon(original: Any, starts: Any, states: Any, horizon: int, *more: Any) -> Any:
    return original(starts, states, 0, *more)


def _w_of_afterwards(original: Any, starts: Any, states: Any, horizon: int, watermark_before: int) -> Any:
    return original(starts, states, horizon, 1 << 62)


def _old_rows_stay(original: Any, fetched: Any, rows: Any) -> None:
    original(fetched, [now or before for now, before in zip(rows, fetched.rows or rows, strict=True)])


def _misses_are_cached(original: Any, starts: Any, states: Any, horizon: int, cache: Any, resolution: Any) -> Any:
    statuses = original(starts, states, horizon, cache, resolution)
    for start, state in zip(starts, states, strict=True):
        if start >= horizon and state <= 0:
            cache.put(start, 1 << 62)
    return statuses


def _no_epoch(original: Any, start: int, status: str, seal_rule: Any, watermark: int) -> Any:
    return original(start, status, replace(seal_rule, epoch=0), watermark)


def _the_compactor_seals_nothing(original: Any, start: int, status: str, seal_rule: Any, watermark: int) -> Any:
    return original(start, status, replace(seal_rule, seal_all=False), -1)


@coroutine
def _entry_first(original: Any, start_ts: int, commit_ts: int, written: Any) -> Any:
    yield effects.DeleteCommitEntries((start_ts,))
    yield from original(start_ts, commit_ts, written)


@coroutine
def _rolled_back(original: Any, request: Any, written: Any) -> Any:
    return original.__globals__["Outcome"](0)
    yield


def _no_refusals(original: Any, tso: Any, answer: Any, refused: Any) -> Any:
    return original(tso, answer, frozenset())


def _from_the_open_batch(original: Any, windows: Any, floor: int) -> Any:
    batches, windows.batches = windows.batches, deque([windows.open_batch])
    try:
        return original(windows, floor)
    finally:
        windows.batches = batches


def _end_counts_at_once(original: Any, tso: Any) -> None:
    windows = tso.windows
    released, windows.released_seq = windows.released_seq, 1 << 62
    try:
        original(tso)
    finally:
        windows.released_seq = released


def _ceiling_forgotten(original: Any, wall_ns: int, accept_clock: bool, ceiling: int, state: Any) -> Any:
    return original(wall_ns, accept_clock, ceiling, replace(state, ceiling=0))


def _above_the_ceiling(original: Any, clock: Any, count: int) -> Any:
    ceiling, clock.ceiling = clock.ceiling, 1 << 62
    try:
        return original(clock, count)
    finally:
        clock.ceiling = ceiling


def _answered_at_once(original: Any, tso: Any, reply: Any) -> None:
    tso.step.send(reply)


def _signed(original: Any, table: Any, cell_id: int) -> int:
    return int(abs(cell_id) * table.buckets >> 63)


def _without_large_commits(original: Any, tso: Any) -> Any:
    pending, tso.pending = tso.pending, {}
    try:
        return original(tso)
    finally:
        tso.pending = pending


def _drawn_counts_as_above(original: Any, tso: Any) -> None:
    before = tso.newest_start
    original(tso)
    if tso.newest_start != before:
        tso.watermarks.drawn_start = tso.newest_start
    if tso.watermarks.drawn_start == tso.newest_start:
        tso.windows.closed_ts = 0


def _by_start(original: Any, arrays: Any, *more: Any) -> Any:
    *before, rec_commit, rec_cell, cell_col, cell_off, cell_len = arrays
    return original((*before, np.minimum(rec_commit, more[-1]), rec_cell, cell_col, cell_off, cell_len), *more)


def _tombstones_first(original: Any, *arguments: Any) -> Any:
    """What they hide goes with a later compaction."""
    dropped, (rec_commit, _, is_tombstone) = original(*arguments), _cells(arguments)
    return dropped & (is_tombstone | (rec_commit == 0))


def _all_tombstones(original: Any, *arguments: Any) -> Any:
    dropped, (rec_commit, rec_version, is_tombstone) = original(*arguments), _cells(arguments)
    watermark = arguments[-1]
    return dropped | (is_tombstone & (rec_commit > 0) & (rec_commit <= watermark) & (rec_version <= watermark))


def _cells(arguments: Sequence[Any]) -> tuple[Any, Any, Any]:
    """(commit, version, whether a tombstone) of each cell."""
    _, _, _, _, rec_version, rec_commit, rec_cell, _, _, cell_len = arguments[0]
    counts = np.diff(rec_cell)
    return np.repeat(rec_commit, counts), np.repeat(rec_version, counts), cell_len == TOMBSTONE


def _records_w_of_now(step: Any) -> Any:
    watermark, _ = yield effects.ReadWatermarks()
    yield replace(step, record=replace(step.record, watermark=watermark))


def _holes_are_clean(original: Any, records: Any) -> Any:
    return [(key, watermark or 1 << 62) for key, watermark in original(records)]


def _any_generation(original: Any, record: Any, table: Any, before_s: float) -> Any:
    return original(replace(record, generation=table.generation), table, before_s)


@coroutine
def _tables_first(original: Any) -> Any:
    tables = yield effects.ReadTables()
    marks = yield effects.ReadUnknownTables()
    return marks, tables


def _promised_first(original: Any, tso: Any, peer: Any, tag: int, request: Any, term_s: float) -> Any:
    def promised(step: Any) -> Any:
        tso.step.reply(peer, tag, messages.LeaseReply(request.start_ts, term_s))
        return (yield step)

    return relayed(original(tso, peer, tag, request, term_s), "EpochWrite", promised)


def _kept_for_the_first(original: Any, leases: Any, start_ts: int, term_s: float, now_s: float, *more: Any) -> Any:
    found = leases.find_shared(start_ts, term_s, now_s)
    until_s = found.shared_until_s if found is not None else now_s + term_s
    lease = original(leases, start_ts, term_s, now_s, *more)
    lease.shared_until_s = until_s
    return lease


def _above_the_start(original: Any, leases: Any, start_ts: int, *more: Any) -> Any:
    return original(leases, start_ts, *more) or original(leases, 1 << 62, *more)


def _sharers_end_too(original: Any, leases: Any, start_ts: int, now_s: float, **_: Any) -> Any:
    return original(leases, start_ts, now_s, sharers=True)


def _shared_before_its_row(original: Any, tso: Any, peer: Any, tag: int, request: Any, term_s: float) -> Any:
    serves = tso.leases.find_shared(request.start_ts, term_s, tso.step.now_s) is not None
    steps = without_step("EpochWrite") if serves else with_step("", nothing)
    return steps(original, tso, peer, tag, request, term_s)


def _without_leases(original: Any, epoch: int, leases: Any, *more: Any) -> Any:
    return original(epoch, frozenset(), *more)


def _without_history(original: Any, epoch: int, leases: Any, watermark: int, kept: Any = None) -> Any:
    return original(epoch, leases, watermark)


def _no_pending_record(step: Any) -> Any:
    if not step.changes.pending_added:
        return (yield step)
    return None


def _branches_first(original: Any, tso: Any, batch: Any, pending: Any) -> Any:
    def decided(step: Any) -> Any:
        yield instructions.PutBranches(pending.branches, step.commit_ts)
        return (yield step)

    return relayed(original(tso, batch, pending), "PutDecision", decided)


def _by_ids_all_the_same(original: Any, oracle: Any, request: Any, *, decided: int) -> Any:
    low_watermark, oracle.low_watermark = oracle.low_watermark, 0
    try:
        return original(oracle, request, decided=decided)
    finally:
        oracle.low_watermark = low_watermark


def _room_by_forgetting(original: Any, oracle: Any, count: int) -> bool:
    oracle.reported.forget_committed(1 << 62)
    return bool(oracle.reported.has_room(count))


def _as_many_as_there_are(original: Any, oracle: Any, request: Any, *, decided: int) -> Any:
    known = sum(map(len, oracle.reported.parts_of(request)))
    return original(oracle, replace(request, reported_ids=known), decided=decided)


MUTANTS: Final = (
    _m(
        "R1",
        "a missed start is judged on the fetch before the look-up",
        "protocol.reading:_refetch_missed",
        nothing,
        "a_scan_racing_completion_sees_both_cells",
    ),
    _m(
        "R2",
        "a start that was sealed may still be decided",
        "omid.oracle.commits:refuse_from_now_on",
        answers(None),
        "a_start_that_was_sealed_is_never_decided",
    ),
    _m(
        "R2b",
        "a commit refused by a mark is answered as committed",
        "omid.oracle.commits:_final",
        _no_refusals,
        "a_mark_placed_by_another_hand_wins",
    ),
    _m(
        "R3",
        "no look at the cell after its seal was placed",
        "protocol.reading:_refetch_sealed",
        nothing,
        "an_old_reader_that_seals_after_completion",
    ),
    _m(
        "R4",
        "a hit below H is believed",
        "protocol.reading:_note_states",
        _no_horizon,
        "a_cell_that_lands_late_below_h_is_not_visible",
    ),
    _m(
        "R4c",
        "a client that looks its outcome up believes a hit below H",
        "protocol.commit:_vouched_commit",
        _no_horizon,
        "a_lost_answer_below_h_is_unknown",
    ),
    _m(
        "R4d",
        "H is read before the entries are looked up",
        "protocol.reading:look_up",
        _horizon_read_first,
        "an_entry_that_lands_below_h_during_a_read_is_not_believed",
    ),
    _m(
        "R4e",
        "a client that looks its outcome up reads H before the entries",
        "protocol.commit:look_up",
        _horizon_read_first,
        "a_lost_answer_below_h_that_passes_meanwhile_is_unknown",
    ),
    _m(
        "R4b",
        "entries are deleted before H is durable",
        "omid.oracle.watermarks:_sanitize",
        without_step("EpochWrite"),
        "h_is_durable_before_the_first_entry_goes",
    ),
    _m(
        "R4f",
        "a sanitiser asks for nothing where H stands already",
        "protocol.sanitize:_has_work_at",
        lambda original, lowest, horizon: lowest > horizon,
        "what_a_dead_tso_left_below_h_goes_the_next_time",
    ),
    _m(
        "R5",
        "a row that vanished is judged by its old fetch",
        "protocol.reading:_FetchedRows.take",
        _old_rows_stay,
        "a_deleted_row_stays_deleted_when_both_vanish",
    ),
    _m(
        "R6",
        "a miss is remembered",
        "protocol.reading:_note_states",
        _misses_are_cached,
        "a_miss_is_not_remembered",
    ),
    _m(
        "R7",
        "no reader looks at W",
        "protocol.reading:check_watermark",
        answers(None),
        "a_reader_below_w_is_told",
    ),
    _m(
        "R7b",
        "no reader looks at the W of the state that it read",
        "protocol.reading:check_watermark",
        answers(None),
        "a_reader_below_w_of_the_same_state_is_told",
    ),
    _m(
        "R10",
        "no reader looks at the table behind its last fetch",
        "protocol.reading:check_life",
        nothing,
        "a_scan_of_a_table_that_is_made_anew_is_refused",
    ),
    _m(
        "R10b",
        "no reader looks at the table's entry of the state that it read",
        "protocol.reading:check_life",
        nothing,
        "a_get_from_a_table_that_is_made_anew_is_refused",
    ),
    _m(
        "R10c",
        "a table that is younger than the snapshot is empty, whatever had its name",
        "protocol.reading:check_life",
        _any_former_table,
        "a_snapshot_does_not_take_a_later_table_for_its_own",
    ),
    _m(
        "R1b",
        "a settled read takes a version without a shadow cell for one that is not committed",
        "protocol.reading:read_settled",
        _unsettled_is_absent,
        "a_settled_read_during_a_commit_sees_all_of_it_or_nothing",
    ),
    _m(
        "R8",
        "what is sealed may be deleted, whenever W passed it",
        "protocol.reading:_final_starts",
        _w_of_afterwards,
        "a_branch_that_another_hand_sealed_is_kept",
    ),
    _m(
        "T1",
        "a begin is answered from the open batch, over one in flight",
        "omid.oracle.windows:BeginWindows.take_start",
        _from_the_open_batch,
        "a_begin_during_a_held_flush_sees_no_half_commit",
    ),
    _m(
        "T2",
        "W is sent before every commit that started at or below it is durable",
        "omid.oracle.watermarks:_note_durable_ended",
        _end_counts_at_once,
        "w_waits_for_the_commit_in_flight",
    ),
    _m(
        "T3",
        "a new TSO does not start above the old ceiling",
        "omid.oracle.takeover:_epoch_above",
        _ceiling_forgotten,
        "a_new_tso_starts_above_the_old_ceiling",
    ),
    _m(
        "T3b",
        "timestamps above the durable ceiling are handed out",
        "omid.oracle.windows:TimestampClock.reserve",
        _above_the_ceiling,
        "no_timestamp_leaves_above_the_ceiling",
    ),
    _m(
        "T4",
        "a leader whose lease ended goes on",
        "omid.oracle.machine:TsoMachine._check_own_lease",
        answers(None),
        "a_leader_without_its_lease_answers_no_begin",
    ),
    _m(
        "T5",
        "the epoch is not looked at after a flush",
        "omid.oracle.outgoing:StoreRequests.check_epoch",
        answers(None),
        "a_flush_that_outlives_its_leader_is_not_acknowledged",
    ),
    _m(
        "T6",
        "versions of a dead TSO are not sealed",
        "protocol.reading:_needs_seal",
        _no_epoch,
        "a_version_of_a_dead_tso_is_sealed",
    ),
    _m(
        "T7",
        "a retry that finds nothing is answered without a seal",
        "omid.oracle.outcomes:_outcome",
        without_step("SealEntries", [SealOutcome(True)]),
        "a_retry_that_finds_nothing_is_sealed",
    ),
    _m(
        "T7b",
        "a retry below H is answered",
        "omid.oracle.outcomes:_is_sanitized",
        answers(False),
        "a_retry_that_arrives_below_h_is_not_answered",
    ),
    _m(
        "T8",
        "a begin is served below a fence that was answered",
        "omid.oracle.commits:answer_after_batch",
        _answered_at_once,
        "a_begin_after_a_fence_lies_above_it",
    ),
    _m(
        "T10",
        "buckets by signed arithmetic",
        "omid.oracle.status_oracle:BucketMap.bucket_of",
        _signed,
        "the_most_negative_id_is_an_id",
    ),
    _m(
        "T12",
        "W does not wait for an unfinished large commit",
        "omid.oracle.watermarks:_candidate",
        _without_large_commits,
        "w_waits_for_an_unfinished_job",
    ),
    _m(
        "T12b",
        "a lease is granted by the W that is durable, not by the W that was sent",
        "omid.oracle.watermarks:may_have_passed",
        lambda original, tso, start_ts: start_ts <= tso.watermarks.published,
        "a_lease_is_granted_only_above_the_w_that_was_sent",
    ),
    _m(
        "T15",
        "LWM does not rise by age",
        "omid.oracle.watermarks:_raise_by_age",
        answers(None),
    ),
    _m(
        "T15b",
        "a start drawn while a commit was in flight counts as drawn above it",
        "omid.oracle.watermarks:draw_if_quiet",
        _drawn_counts_as_above,
        "a_commit_in_flight_when_a_quiet_tso_draws_a_start_falls_below_w",
    ),
    _m(
        "T17",
        "W does not wait for history that is kept",
        "omid.oracle.watermarks:_kept_start",
        answers(1 << 62),
        "history_that_is_kept_can_be_read",
    ),
    _m(
        "T17b",
        "a new TSO forgets the history that is kept",
        "omid.oracle.takeover:watermark_at_start",
        _without_history,
        "history_is_kept_through_a_fail_over",
    ),
    _m(
        "C3",
        "a commit without an answer is rolled back",
        "protocol.commit:_look_up",
        _rolled_back,
        "rolled_back_is_not_said_without_a_seal",
    ),
    _m(
        "C3b",
        '"rolled back" is said without sealing',
        "protocol.commit:_seal",
        without_step("SealStarts", ()),
        "rolled_back_is_not_said_without_a_seal",
    ),
    _m(
        "C3c",
        '"rolled back" is said without evidence',
        "protocol.commit:_proves_rollback",
        answers(True),
        "an_outcome_without_evidence_is_unknown",
    ),
    _m(
        "C10",
        "a looked-up commit is told before the TSO begins transactions above it",
        "protocol.commit:find_outcome",
        without_step("Begin", None),
        "a_looked_up_commit_is_seen_by_later_begins",
    ),
    _m(
        "C4",
        "the commit-table entry goes before the shadow cells are there",
        "protocol.commit:complete",
        _entry_first,
    ),
    _m(
        "K1",
        "compaction keeps the greatest start, not the greatest commit ≤ W",
        "protocol.compaction:dropped_cells",
        _by_start,
        "a_reader_between_two_commits_keeps_its_version",
    ),
    _m(
        "K2",
        "the compactor drops what it did not seal",
        "protocol.reading:_needs_seal",
        _the_compactor_seals_nothing,
        "a_flush_that_lands_after_compaction_is_refused",
    ),
    _m(
        "K2b",
        "the compactor does not look at the cell after its seal",
        "protocol.reading:_refetch_sealed",
        nothing,
        "compaction_racing_a_late_commit_loses_nothing",
    ),
    _m(
        "K3",
        "a tombstone goes before what it hides",
        "protocol.compaction:dropped_cells",
        _tombstones_first,
        "a_tombstone_goes_only_after_what_it_hides",
    ),
    _m(
        "K3b",
        "a tombstone goes though an older version stays",
        "protocol.compaction:dropped_cells",
        _all_tombstones,
        "a_tombstone_stays_while_it_hides_a_later_commit",
    ),
    _m(
        "K4",
        "the record names a W that the scan did not go by",
        "protocol.compaction:compact_region",
        with_step("RecordWatermark", _records_w_of_now),
        "the_record_names_the_w_that_was_gone_by",
    ),
    _m(
        "K5",
        "a key without a record counts as clean",
        "protocol.sanitize:_by_key",
        _holes_are_clean,
        "a_region_without_a_record_holds_back_the_horizon",
    ),
    _m(
        "K5b",
        "records of an older generation count",
        "protocol.sanitize:_counts",
        _any_generation,
        "a_restored_table_starts_from_nothing",
    ),
    _m(
        "K6",
        "a commit to an unknown table leaves no mark",
        "omid.oracle.table_requests:_mark",
        without_step("MarkUnknownTable"),
        "a_table_nobody_registered_stops_the_sanitiser",
    ),
    _m(
        "K6b",
        "the sanitiser goes on while a mark stands",
        "protocol.sanitize:_demand_registered",
        answers(None),
        "a_table_nobody_registered_stops_the_sanitiser",
    ),
    _m(
        "K6c",
        "tables are listed before marks",
        "protocol.sanitize:_marks_and_tables",
        _tables_first,
        "a_table_registered_between_two_looks_is_not_forgotten",
    ),
    _m(
        "K6d",
        "a fence makes the TSO forget no table",
        "omid.oracle.tables:KnownTables.forget",
        answers(None),
        "a_table_that_others_made_again_is_marked_anew",
    ),
    _m(
        "K7",
        "a lease is promised before its row is durable",
        "omid.oracle.lease_requests:_grant",
        _promised_first,
        "a_promised_lease_survives_its_tso",
    ),
    _m(
        "K7b",
        "a new TSO forgets the leases it finds",
        "omid.oracle.takeover:watermark_at_start",
        _without_leases,
        "a_lease_holds_w_through_a_fail_over",
    ),
    _m(
        "K7f",
        "a shared lease ends with the term of whoever opened it",
        "omid.oracle.leases:Leases.share",
        _kept_for_the_first,
        "a_shared_lease_is_kept_for_its_last_sharer",
    ),
    _m(
        "K7g",
        "a lease above a start serves it",
        "omid.oracle.leases:Leases.find_shared",
        _above_the_start,
        "a_start_shares_no_lease_above_it",
    ),
    _m(
        "K7h",
        "an owner ends the lease of those who share it",
        "omid.oracle.leases:Leases.end",
        _sharers_end_too,
        "an_owners_end_leaves_the_lease_to_its_sharers",
    ),
    _m(
        "K7i",
        "a lease is shared before its row is durable",
        "omid.oracle.lease_requests:_share",
        _shared_before_its_row,
        "a_shared_lease_is_promised_once_its_row_is_durable",
    ),
    _m(
        "T20",
        "no commit compares its ids with reported ones",
        "omid.oracle.status_oracle:ReportedIds.first_conflict",
        answers(0),
        "a_commit_meets_the_ids_of_a_job_that_committed",
    ),
    _m(
        "T20b",
        "jobs do not compare their ids with those of other jobs",
        "omid.oracle.status_oracle:StatusOracle._reported_conflict",
        answers(None),
        "two_jobs_meet",
    ),
    _m(
        "T20c",
        "jobs do not compare their ids with the map",
        "omid.oracle.status_oracle:StatusOracle._conflict_in_map",
        answers(0),
        "a_job_meets_commits_to_its_cells",
    ),
    _m(
        "T20d",
        "jobs with many ids do not compare them with the map",
        "omid.oracle.status_oracle:BucketMap.ids_after",
        lambda original, conflict_map, start_ts: conflict_map.ids[:0],
        "a_job_with_many_ids_meets_commits_to_its_cells",
    ),
    _m(
        "T20e",
        "a job commits by those of its ids that are known",
        "omid.oracle.status_oracle:StatusOracle.check",
        _as_many_as_there_are,
        "a_job_whose_ids_the_tso_lacks_does_not_commit",
    ),
    _m(
        "T20f",
        "reported ids go without a trace",
        "omid.oracle.status_oracle:StatusOracle.make_room",
        _room_by_forgetting,
        "ids_that_go_raise_lwm",
    ),
    _m(
        "T20g",
        "a job below LWM is decided by its ids",
        "omid.oracle.status_oracle:StatusOracle.check",
        _by_ids_all_the_same,
        "a_job_below_lwm_is_decided_by_its_tables",
    ),
    _m(
        "S1",
        "no pending record before the decision",
        "omid.oracle.large_commits:_finish",
        with_step("EpochWrite", _no_pending_record),
        "a_job_is_whole_whenever_its_tso_dies",
    ),
    _m(
        "S1c",
        "a new TSO does not finish what it finds pending",
        "omid.oracle.takeover:finish_pending",
        nothing,
        "a_job_is_whole_whenever_its_tso_dies",
    ),
    _m(
        "S1b",
        "branches before the decision",
        "omid.oracle.large_commits:_finish",
        _branches_first,
        "a_job_is_whole_whenever_its_tso_dies",
    ),
)


ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "C5": (
        "tests/process/test_client_races.py::test_forked_children_under_load_connect_anew_and_neither_side_gets_the_others_answers",
    ),
    "C6": (
        "tests/process/test_client_stops.py::test_while_a_client_is_frozen_at_any_step_others_commit_and_it_finishes_when_it_wakes",
    ),
    "B6": (
        "tests/core/test_restore_cut.py::test_a_cut_backup_is_what_a_reader_at_its_moment_sees",
        "tests/hbase/test_backup_restore.py::test_changes_between_two_snapshots_are_not_in_the_backup",
        "tests/hbase/test_backup_restore.py::test_a_backup_whose_lease_was_lost_fails",
    ),
    "S2": (
        "tests/spark/test_spark_dataframes.py::test_many_tables_commit_together_and_a_failed_block_leaves_nothing",
        "tests/spark/test_spark_faults.py::test_a_plain_write_that_dies_around_its_commit_is_counted_once_under_its_id",
        "tests/spark/test_spark_faults.py::test_an_exception_between_the_answer_and_the_end_of_the_block_loses_and_repeats_nothing",
    ),
}
"""Rules without a mutant, here or in `shipped_mutants`: the tests that fail without them, as file::name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a mutant was caught; `where` empty: nowhere."""

    mutant: Mutant
    where: str
    failure: str
    tries: int
    seconds: float


def hunt(mutant: Mutant, *, first_seed: int = 1) -> Finding:
    """The first run that goes red without the rule."""
    build, began = Build([mutant.hook]), time.monotonic()
    if mutant.directed:
        failure = run_directed(mutant.directed, build)
        where = mutant.directed if failure else ""
        return Finding(mutant, where, failure or "", 1, time.monotonic() - began)
    for seed in range(first_seed, first_seed + mutant.seeds):
        report = run_seed(seed, build)
        if not report.ok:
            tries = seed - first_seed + 1
            return Finding(mutant, f"seed {seed}", report.failure or "", tries, time.monotonic() - began)
    return Finding(mutant, "", "", mutant.seeds, time.monotonic() - began)


def chosen(names: Sequence[str]) -> list[Mutant]:
    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


def main(names: Sequence[str]) -> int:
    survivors = 0
    for mutant in chosen(names):
        found = hunt(mutant)
        survivors += not found.where
        verdict = found.where or "SURVIVES"
        print(f"{mutant.name:5} {verdict:50} {found.seconds:6.1f} s  {found.failure[:90]!r}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
