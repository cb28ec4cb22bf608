"""The mutation gate: take one rule out of the core, and a run that was green turns red.

Each row: the rule of hazards.md, the one piece of text that embodies it, what stands there without it, and what must
go red: the random universes from `first_seed` on (the first of `seeds` that does ends the row), or a directed
schedule of `directed` by its name. A rule that lives outside the core (sockets, processes, Spark, a store) names the
test that catches it instead; `ELSEWHERE` lists those.

    python -m pyomid.testing.simulation.mutants            every row, and where its first red run is
    python -m pyomid.testing.simulation.mutants R4 T1      some
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyomid.testing.simulation.build import Build, Patch
from pyomid.testing.simulation.directed import run_directed
from pyomid.testing.simulation.runs import run_seed

SEEDS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out. `name` is the rule's number, with a letter where it has several halves."""

    name: str
    without: str
    patch: Patch
    directed: str = ""
    """The schedule that goes red; empty: random universes."""
    seeds: int = SEEDS_MAX


def _m(name: str, without: str, module: str, text: str, replacement: str, directed: str = "") -> Mutant:
    return Mutant(name, without, Patch(module, text, replacement), directed)


MUTANTS: Final = (
    _m(
        "R1",
        "a missed start is judged on the fetch before the look-up",
        "reading",
        "                fetched.take((yield fetched.again()))\n                continue\n",
        "                continue\n",
        "a_scan_racing_completion_sees_both_cells",
    ),
    _m(
        "R2",
        "a start that was sealed may still be decided",
        "tso_machine",
        "        self._refuse_from_now_on(starts)\n",
        "",
        "a_start_that_was_sealed_is_never_decided",
    ),
    _m(
        "R2b",
        "a commit refused by a mark is answered as committed",
        "tso_machine",
        "        if answer.start_ts in refused:\n",
        "        if False:\n",
        "a_mark_placed_by_another_hand_wins",
    ),
    _m(
        "R3",
        "no look at the cell after its seal was placed",
        "reading",
        "                del verdicts[start]\n        fetched.take((yield fetched.again()))\n",
        "                del verdicts[start]\n",
        "an_old_reader_that_seals_after_completion",
    ),
    _m(
        "R4",
        "a hit below H is believed",
        "reading",
        "        if start < horizon:\n",
        "        if False:\n",
        "a_cell_that_lands_late_below_h_is_not_visible",
    ),
    _m(
        "R4c",
        "a client that looks its outcome up believes a hit below H",
        "outcome",
        "            if state > 0 and start >= horizon:\n",
        "            if state > 0:\n",
        "a_lost_answer_below_h_is_unknown",
    ),
    _m(
        "R4d",
        "H is read before the entries are looked up",
        "reading",
        "            states, watermark, horizon = yield LookupThenWatermarks(asked)\n",
        "            watermark, horizon = yield ReadWatermarks()\n"
        "            states, _, _ = yield LookupThenWatermarks(asked)\n",
        "an_entry_that_lands_below_h_during_a_read_is_not_believed",
    ),
    _m(
        "R4e",
        "a client that looks its outcome up reads H before the entries",
        "outcome",
        "        states, _, horizon = yield LookupThenWatermarks(starts)\n",
        "        _, horizon = yield ReadWatermarks()\n        states, _, _ = yield LookupThenWatermarks(starts)\n",
        "a_lost_answer_below_h_that_passes_meanwhile_is_unknown",
    ),
    _m(
        "R4b",
        "entries are deleted before H is durable",
        "tso_machine",
        "        yield EpochWrite(EpochChanges(horizon=self.horizon))\n",
        "",
        "h_is_durable_before_the_first_entry_goes",
    ),
    _m(
        "R4f",
        "a sanitiser asks for nothing where H stands already",
        "sanitising",
        "    if lowest and lowest >= horizon:\n",
        "    if lowest > horizon:\n",
        "what_a_dead_tso_left_below_h_goes_the_next_time",
    ),
    _m(
        "R5",
        "a row that vanished is judged by its old fetch",
        "reading",
        "        assert isinstance(result, list)\n        self.rows = result\n",
        "        self.rows = [now or before for now, before in zip(result, self.rows or result)]\n",
        "a_deleted_row_stays_deleted_when_both_vanish",
    ),
    _m(
        "R6",
        "a miss is remembered",
        "reading",
        "            verdicts[start] = _SETTLED if state == SEALED else _OPEN\n",
        "            verdicts[start] = _SETTLED if state == SEALED else _OPEN\n            cache.put(start, 1 << 62)\n",
        "a_miss_is_not_remembered",
    ),
    _m(
        "R7",
        "no reader looks at W",
        "reading",
        "    if snapshot.start_ts <= watermark:\n",
        "    if False:\n",
        "a_reader_below_w_is_told",
    ),
    _m(
        "T1",
        "a begin is answered from the open batch, over one in flight",
        "windows",
        "        head = self.head\n        if self._first_above",
        "        head = self.open_batch\n        if self._first_above",
        "a_begin_during_a_held_flush_sees_no_half_commit",
    ),
    _m(
        "T2",
        "W is sent before the commit that moved LWM is durable",
        "tso_machine",
        "        while self._movers and self._movers[0][1] <= self.windows.released_seq:\n",
        "        while self._movers:\n",
        "w_waits_for_the_commit_in_flight",
    ),
    _m(
        "T3",
        "a new TSO does not start above the old ceiling",
        "take_over",
        "_aligned(ceiling), _aligned(state.ceiling), state",
        "_aligned(ceiling), _aligned(0), state",
        "a_new_tso_starts_above_the_old_ceiling",
    ),
    _m(
        "T3b",
        "timestamps above the durable ceiling are handed out",
        "timestamps",
        "        if end > self.ceiling:\n",
        "        if False:\n",
        "no_timestamp_leaves_above_the_ceiling",
    ),
    _m(
        "T4",
        "a leader whose lease ended goes on",
        "tso_machine",
        "        if self.now_s >= self.serve_until_s:\n",
        "        if False:\n",
        "a_leader_without_its_lease_answers_no_begin",
    ),
    _m(
        "T5",
        "the epoch is not looked at after a flush",
        "tso_machine",
        '        if epoch != self.epoch:\n            raise Death(f"the epoch row holds',
        '        if False:\n            raise Death(f"the epoch row holds',
        "a_flush_that_outlives_its_leader_is_not_acknowledged",
    ),
    _m(
        "T6",
        "versions of a dead TSO are not sealed",
        "reading",
        "start <= judgement.epoch",
        "False",
        "a_version_of_a_dead_tso_is_sealed",
    ),
    _m(
        "T7",
        "a retry that finds nothing is answered without a seal",
        "tso_machine",
        "        outcomes: list[SealOutcome] = yield SealEntries((start_ts,))\n        return outcomes[0]\n",
        "        return SealOutcome(True)\n        yield\n",
        "a_retry_that_finds_nothing_is_sealed",
    ),
    _m(
        "T7b",
        "a retry below H is answered",
        "tso_machine",
        "        if start_ts < self.horizon:\n            return None\n",
        "",
        "a_retry_that_arrives_below_h_is_not_answered",
    ),
    _m(
        "T8",
        "a begin is served below a fence that was answered",
        "tso_machine",
        "        self.windows.open_batch.answers.append(Reply(peer, tag, FenceReply(table_id, fence_ts)))\n"
        "        self.windows.close_behind_fences()\n",
        "        self._reply(peer, tag, FenceReply(table_id, fence_ts))\n"
        "        self.windows.open_batch.fenced = False\n",
        "a_begin_after_a_fence_lies_above_it",
    ),
    _m(
        "T10",
        "buckets by signed arithmetic",
        "conflict_map",
        "        return (cell_id & _WORD) * self.buckets >> 64\n",
        "        return abs(cell_id) * self.buckets >> 63\n",
        "the_most_negative_id_is_an_id",
    ),
    _m(
        "T12",
        "W does not wait for an unfinished large commit",
        "tso_machine",
        "        held = [start - 1 for start in self.large]\n",
        "        held: list[int] = []\n",
        "w_waits_for_an_unfinished_job",
    ),
    _m(
        "T12b",
        "a lease is granted by the W that is durable, not by the W that was sent",
        "tso_machine",
        "        elif start_ts <= self.watermark_sent:\n            self._refuse(peer, tag, self._too_old(start_ts))\n",
        "        elif start_ts <= self.watermark:\n            self._refuse(peer, tag, self._too_old(start_ts))\n",
        "a_lease_is_granted_only_above_the_w_that_was_sent",
    ),
    _m(
        "T15",
        "LWM does not rise by age",
        "tso_machine",
        "        if bound > self.low_watermark:\n",
        "        if False:\n",
    ),
    _m(
        "T15b",
        "a start drawn while a commit was in flight counts as drawn above it",
        "tso_machine",
        "            if self.windows.is_idle:\n                self._issued",
        "            if True:\n                self._issued",
        "a_commit_in_flight_when_a_quiet_tso_draws_a_start_falls_below_w",
    ),
    _m(
        "C3",
        "a commit without an answer is rolled back",
        "committing",
        "        outcome = yield from _look_up_steps(request, written)\n"
        "        return CommitReply(request.start_ts, commit_ts=outcome.commit_ts)\n",
        "        return CommitReply(request.start_ts)\n",
        "rolled_back_is_not_said_without_a_seal",
    ),
    _m(
        "C3b",
        '"rolled back" is said without sealing',
        "outcome",
        "        outcomes = yield SealStarts(wanted)\n        if not all(outcome.placed for outcome in outcomes):\n"
        "            return None\n",
        "",
        "rolled_back_is_not_said_without_a_seal",
    ),
    _m(
        "C3c",
        '"rolled back" is said without evidence',
        "outcome",
        "        if any(_is_evidence(start_of(cell.version), start_ts, sealed) for cell in cells):\n",
        "        if True:\n",
        "an_outcome_without_evidence_is_unknown",
    ),
    _m(
        "C4",
        "the commit-table entry goes before the shadow cells are there",
        "committing",
        '    the cells of branches are known to their tasks alone, compaction completes those.\n    """\n',
        '    the cells of branches are known to their tasks alone, compaction completes those.\n    """\n'
        "    yield DeleteCommitEntries((start_ts,))\n",
    ),
    _m(
        "K1",
        "compaction keeps the greatest start, not the greatest commit ≤ W",
        "cleaning_kernel",
        "            judged = 0 < commit_ts <= watermark and start <= watermark\n",
        "            judged = 0 < commit_ts and start <= watermark\n",
        "a_reader_between_two_commits_keeps_its_version",
    ),
    _m(
        "K2",
        "the compactor drops what it did not seal",
        "reading",
        "    return judgement.seal_all or start <= judgement.epoch or start <= watermark\n",
        "    return start <= judgement.epoch\n",
        "a_flush_that_lands_after_compaction_is_refused",
    ),
    _m(
        "K2b",
        "the compactor does not look at the cell after its seal",
        "reading",
        "                del verdicts[start]\n        fetched.take((yield fetched.again()))\n",
        "                del verdicts[start]\n",
        "compaction_racing_a_late_commit_loses_nothing",
    ),
    _m(
        "K3",
        "a tombstone goes before what it hides",
        "cleaning_kernel",
        "                    dropped[cell] = version < greatest[col] or version <= hidden_to\n",
        "                    dropped[cell] = version <= hidden_to\n",
        "a_tombstone_goes_only_after_what_it_hides",
    ),
    _m(
        "K3b",
        "a tombstone goes though an older version stays",
        "cleaning_kernel",
        "                    dropped[cell] = not oldest_kept[col] < version\n",
        "                    dropped[cell] = True\n",
        "a_tombstone_stays_while_it_hides_a_later_commit",
    ),
    _m(
        "K4",
        "the record names a W that the scan did not go by",
        "compaction",
        "    yield RecordWatermark(RegionWatermark(table, generation, region, bound, now_s))\n",
        "    bound, _ = yield ReadWatermarks()\n"
        "    yield RecordWatermark(RegionWatermark(table, generation, region, bound, now_s))\n",
        "the_record_names_the_w_that_was_gone_by",
    ),
    _m(
        "K5",
        "a key without a record counts as clean",
        "region_watermarks",
        "-reached[0][0] if reached else 0))",
        "-reached[0][0] if reached else 1 << 62))",
        "a_region_without_a_record_holds_back_the_horizon",
    ),
    _m(
        "K5b",
        "records of an older generation count",
        "sanitising",
        "    return record.generation == table.generation and ",
        "    return ",
        "a_restored_table_starts_from_nothing",
    ),
    _m(
        "K6",
        "a commit to an unknown table leaves no mark",
        "tso_machine",
        "            yield MarkUnknownTable(table_id)\n",
        "            yield ReadTables()\n",
        "a_table_nobody_registered_stops_the_sanitiser",
    ),
    _m(
        "K6b",
        "the sanitiser goes on while a mark stands",
        "sanitising",
        "    if unknown:\n",
        "    if False:\n",
        "a_table_nobody_registered_stops_the_sanitiser",
    ),
    _m(
        "K7",
        "a lease is promised before its row is durable",
        "tso_machine",
        "        yield EpochWrite(EpochChanges(leases_added=(start_ts,)))\n        if lease.state",
        "        self._reply(peer, tag, LeaseReply(start_ts, lease.term_s))\n"
        "        yield EpochWrite(EpochChanges(leases_added=(start_ts,)))\n        if lease.state",
        "a_promised_lease_survives_its_tso",
    ),
    _m(
        "K7b",
        "a new TSO forgets the leases it finds",
        "take_over",
        "    return max(watermark, min([epoch, *(lease - 1 for lease in leases)]))\n",
        "    return max(watermark, epoch)\n",
        "a_lease_holds_w_through_a_fail_over",
    ),
    _m(
        "S1",
        "no pending record before the decision",
        "tso_machine",
        "        if pending.branches:\n            yield EpochWrite(EpochChanges(pending_added=(pending,)))\n",
        "",
        "a_job_is_whole_whenever_its_tso_dies",
    ),
    _m(
        "S1c",
        "a new TSO does not finish what it finds pending",
        "take_over",
        "    for record in state.pending:\n        yield from finish_pending_steps(record, epoch)\n",
        "",
        "a_job_is_whole_whenever_its_tso_dies",
    ),
    _m(
        "S1b",
        "branches before the decision",
        "tso_machine",
        "        decided: Flushed = yield PutDecision(start_ts, commit_ts)\n",
        "        yield PutBranches(pending.branches, commit_ts)\n"
        "        decided: Flushed = yield PutDecision(start_ts, commit_ts)\n",
        "a_job_is_whole_whenever_its_tso_dies",
    ),
)


ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "T9": (
        "tests/client/test_client_cached_rules.py::test_a_client_goes_by_no_rules_of_a_table_that_is_gone",
        "tests/spark/test_spark_dataframes.py::test_two_conflict_levels_never_meet_on_one_table",
    ),
    "T11": (
        "tests/tso/test_service.py::test_t11_a_peer_that_breaks_the_rules_is_told_logged_and_closed_and_nobody_else_notices",
        "tests/core/test_tso_machine.py::test_t11_bad_input_is_refused_by_name_and_nobody_else_notices",
    ),
    "T13": ("tests/core/test_tso_machine.py::test_t13_entries_of_branches_replace_a_seal",),
    "T14": (
        "tests/tso/test_ondemand.py::test_t14_a_start_storm_ends_with_one_tso",
        "tests/tso/test_ondemand.py::test_t14_no_idle_exit_with_a_connection_open_or_a_lease_live",
    ),
    "C1": ("tests/client/test_client_failures.py::test_one_failed_put_of_five_makes_the_transaction_rollback_only",),
    "C2": (
        "tests/core/test_visibility.py::test_own_writes_overlay_with_their_greatest_version",
        "tests/golden/test_golden.py::test_script",
    ),
    "C5": (
        "tests/process/test_client_races.py::"
        "test_forked_children_under_load_connect_anew_and_neither_side_gets_the_others_answers",
    ),
    "C6": (
        "tests/process/test_client_stops.py::"
        "test_while_a_client_is_frozen_at_any_step_others_commit_and_it_finishes_when_it_wakes",
    ),
    "C7": ("tests/client/test_client_failures.py::test_of_all_runs_under_one_id_one_commits",),
    "C9": (
        "tests/interrupts/test_writer_interrupts.py::"
        "test_an_interrupted_writer_neither_loses_nor_repeats_a_write_of_others",
        "tests/interrupts/test_session_interrupts.py::test_an_interrupted_reader_leaves_its_neighbours_answers_to_them",
        "tests/interrupts/test_driver_interrupts.py::test_the_outcome_told_is_true_wherever_it_is_thrown",
    ),
    "K8": (
        "tests/client/test_client_catalogue.py::test_a_new_table_never_shows_rows_older_than_itself",
        "tests/client/test_client_catalogue.py::test_a_dropper_that_slept_drops_no_later_table",
        "tests/client/test_client_catalogue.py::test_a_drop_that_took_effect_drops_no_later_table",
        "tests/client/test_client_catalogue.py::test_a_slow_writer_of_an_entry_keeps_what_others_added",
    ),
    "C8": (
        "tests/tso/test_folder_is_replaced.py::test_nothing_is_written_or_read_in_a_removed_folder",
        "tests/tso/test_folder_is_replaced.py::test_who_connects_again_shares_what_others_see",
    ),
    "S2": (
        "tests/spark/test_spark_dataframes.py::test_many_tables_commit_together_and_a_failed_block_leaves_nothing",
        "tests/spark/test_spark_faults.py::test_a_plain_write_that_dies_around_its_commit_is_counted_once_under_its_id",
        "tests/spark/test_spark_faults.py::"
        "test_an_exception_between_the_answer_and_the_end_of_the_block_loses_and_repeats_nothing",
    ),
    "S3": (
        "tests/spark/test_spark_dataframes.py::test_a_transaction_id_commits_once_and_says_so",
        "tests/spark/test_spark_faults.py::test_a_driver_killed_at_each_step_and_run_again_under_its_id_is_counted_once",
    ),
    "S4": (
        "tests/spark/test_sink_claims.py::test_a_second_function_is_refused_while_and_after_the_first",
        "tests/spark/test_spark_streaming.py::test_two_named_sinks_of_one_query_both_count_once",
        "tests/spark/test_spark_streaming.py::test_each_batch_is_one_transaction_and_a_replayed_one_counts_once",
        "tests/spark/test_spark_streaming.py::test_two_drivers_that_are_handed_the_same_batch_count_it_once",
        "tests/spark/test_spark_streaming.py::"
        "test_a_driver_killed_around_a_batchs_commit_and_started_again_counts_it_once",
    ),
    "S6": (
        "tests/spark/test_writer.py::test_a_write_whose_cells_were_cleaned_away_is_not_acknowledged",
        "tests/spark/test_writer.py::test_of_two_writes_under_one_id_one_set_of_rows_is_seen",
    ),
    "S7": ("tests/spark/test_writer.py::test_a_failed_tries_own_table_hides_no_rows",),
    "S8": ("tests/spark/test_writer.py::test_a_failure_behind_the_answer_does_not_say_not_committed",),
    "S5": (
        "tests/spark/test_spark_dataframes.py::test_a_snapshot_is_one_for_all_reads_and_partitions",
        "tests/spark/test_spark_dataframes.py::test_one_frame_used_twice_keeps_both_its_filters",
    ),
}
"""Rules that live outside the core: the tests that go red without them, as file::name."""


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
    build, began = Build([mutant.patch]), time.monotonic()
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
