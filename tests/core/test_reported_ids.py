"""Ids that tasks report: what the TSO keeps of them, for how long, and what it refuses (T20)."""

from __future__ import annotations

import numpy as np
import pytest
from machine_script import Script
from numpy.typing import NDArray

from pyomid.errors import ConflictError
from pyomid.native import search
from pyomid.omid.oracle.status_oracle import PART_COST
from pyomid.omid.wire.messages import Done, EndLease, GrantLease, Refused, ReportIds
from pyomid.types import AbortReason, CommitReply, CommitRequest

pytestmark = pytest.mark.fast

TABLE = 7


def packed(*ids: int) -> bytes:
    return np.array(ids, dtype="<i8").tobytes()


class Job:
    """A leased start with one branch."""

    def __init__(self, tso: Script) -> None:
        self.tso = tso
        self.start_ts = tso.begin()
        tso.ask_settled(GrantLease(self.start_ts))
        self.branch = tso.begin()
        self.reported = 0

    def report(self, *ids: int, part: int = 0) -> object:
        answer = self.tso.ask_settled(ReportIds(self.start_ts, TABLE, self.branch, part, packed(*ids))).answer
        is_kept = isinstance(answer, Done) or (isinstance(answer, Refused) and answer.code == ConflictError.code)
        self.reported += len(ids) if is_kept else 0
        return answer

    def commit(self, reported_ids: int | None = None) -> CommitReply:
        count = self.reported if reported_ids is None else reported_ids
        request = CommitRequest(self.start_ts, (), (TABLE,), (self.branch,), reported_ids=count)
        answer = self.tso.told(CommitReply, request)
        return answer


def kept(tso: Script) -> int:
    return tso.machine.state.oracle.reported.count


def test_ids_of_a_job_are_kept_until_no_earlier_start_can_commit() -> None:
    tso = Script()
    early = tso.begin()
    job = Job(tso)
    assert job.report(-5, 3, 1 << 62) == Done()
    assert job.commit().committed
    assert kept(tso) == PART_COST + 3
    assert tso.commit(early, 3, table_ids=(TABLE,)) == CommitReply(
        early, 0, AbortReason.CONFLICT, tso.machine.state.oracle.reported.newest_ts
    )
    assert tso.machine.state.oracle.conflict_map.entries == 0, "they are not in the map"
    late = tso.begin()
    tso.pass_time(2 * tso.settings.max_transaction_age_s)
    assert kept(tso) == 0
    assert isinstance(tso.commit(late, 3, table_ids=(TABLE,)), CommitReply)


def test_ids_go_with_the_lease_and_the_commit_then_aborts() -> None:
    tso = Script()
    job = Job(tso)
    job.report(1)
    tso.ask_settled(EndLease(job.start_ts))
    tso.tick(0.1)
    assert kept(tso) == 0
    assert job.commit().reason is AbortReason.LEASE_LOST


@pytest.mark.parametrize("again", [False, True])
def test_under_the_next_tso_a_job_aborts_as_any_that_began_before(again: bool) -> None:
    before = Script()
    job = Job(before)
    job.report(1)
    job.tso = Script(before.stores)
    if again:
        job.report(2, part=1)
    assert job.commit().reason is AbortReason.LOW_WATERMARK


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_commit_counts_exactly_the_ids_of_its_branches(count: int) -> None:
    tso = Script()
    job, other = Job(tso), tso.begin()
    job.report(1, 2)
    job.report(1, 2)
    tso.ask_settled(ReportIds(job.start_ts, TABLE, other, 0, packed(9)))
    assert kept(tso) == 3 + 2 * PART_COST, "a part that came twice counts once"
    tso.ask_settled(ReportIds(job.start_ts, TABLE, job.branch, 0, packed(1, 2)))
    job.reported = 2
    if count:
        assert job.commit(count).reason is AbortReason.LEASE_LOST
    assert job.commit().committed
    assert kept(tso) == 2 + PART_COST, "those of the branch that does not count are gone"


def test_room_is_made_by_the_oldest_committed_job_and_lwm_rises_to_its_commit() -> None:
    tso = Script(reported_ids_max=2 * PART_COST + 20)
    early = tso.begin()
    first, second, third = (Job(tso) for _ in range(3))
    first.report(*range(10))
    committed = first.commit()
    second.report(*range(20, 30))
    assert tso.machine.state.oracle.low_watermark < early
    third.report(*range(40, 50))
    assert tso.machine.state.oracle.low_watermark == committed.commit_ts
    reply = tso.commit(early, 100, table_ids=(TABLE,))
    assert isinstance(reply, CommitReply)
    assert reply.reason is AbortReason.LOW_WATERMARK


def test_undecided_ids_make_no_room_and_a_refused_job_keeps_none() -> None:
    tso = Script(reported_ids_max=2 * PART_COST + 20)
    done, one, two = (Job(tso) for _ in range(3))
    done.report(1_000)
    done.commit()
    one.report(*range(10))
    refused = two.report(*range(200))
    assert isinstance(refused, Refused)
    assert "no room for the conflict ids" in refused.message
    assert kept(tso) == 2 * PART_COST + 11, "room that would not be enough is not made"
    assert isinstance(two.report(1, part=1), Refused), "its other ids are of no use"
    assert one.commit().committed


@pytest.mark.parametrize("is_needed", [False, True])
def test_a_refused_attempt_that_does_not_count_leaves_the_others_ids_until_room_is_needed(is_needed: bool) -> None:
    tso = Script(reported_ids_max=2 * PART_COST + 20)
    job, other = Job(tso), Job(tso)
    job.report(*range(20))
    assert isinstance(
        tso.ask_settled(ReportIds(job.start_ts, TABLE, tso.begin(), 0, packed(*range(21)))).answer, Refused
    )
    if is_needed:
        assert other.report(*range(100, 120)) == Done()
        assert kept(tso) == PART_COST + 20
    assert job.commit().committed is not is_needed


@pytest.mark.parametrize("is_common", [False, True])
def test_many_parts_are_compared_with_many_at_once(monkeypatch: pytest.MonkeyPatch, is_common: bool) -> None:
    tso, compared = Script(conflict_map_entries=1 << 20), []
    first, second = Job(tso), Job(tso)
    for part in range(40):
        second.report(2 * part + 1, part=part)
        first.report(2 * part + (is_common and part == 33), part=part)
    winner, original = first.commit(), search.first_common
    monkeypatch.setattr(search, "first_common", lambda *both: compared.append(both) or original(*both))
    assert second.commit().conflict_ts == (winner.commit_ts if is_common else 0)
    assert len(compared) <= 2, "checked before and after the table is marked"


def test_a_part_that_comes_twice_needs_room_once() -> None:
    tso = Script(reported_ids_max=PART_COST + 20)
    job = Job(tso)
    assert job.report(*range(20)) == job.report(*range(20)) == Done()
    assert job.commit(20).committed


@pytest.mark.parametrize("ids", [b"1234567", packed(2, 1), packed(1, -1)], ids=["half an id", "falling", "unsigned"])
def test_malformed_ids_are_refused(ids: bytes) -> None:
    tso = Script()
    job = Job(tso)
    refused = tso.told(Refused, ReportIds(job.start_ts, TABLE, job.branch, 0, ids))
    assert "malformed" in refused.message


def test_ids_without_a_lease_or_a_branch_are_refused() -> None:
    tso = Script()
    job, plain = Job(tso), tso.begin()
    for start_ts, branch, part in ((plain, job.branch, 0), (job.start_ts, 7, 0), (job.start_ts, job.branch, -1)):
        assert isinstance(tso.ask_settled(ReportIds(start_ts, TABLE, branch, part, packed(1))).answer, Refused)
    assert kept(tso) == 0


def test_a_commit_with_reported_ids_names_its_tables() -> None:
    tso = Script()
    job = Job(tso)
    job.report(1)
    request = CommitRequest(job.start_ts, branches=(job.branch,), reported_ids=1)
    refused = tso.told(Refused, request)
    assert "names no table" in refused.message


@pytest.mark.parametrize("seed", range(50))
def test_the_first_common_number_is_found(seed: int) -> None:
    choices = np.random.default_rng(seed)
    few, many = (np.sort(choices.integers(-(10**3), 10**3, size)) for size in choices.integers(0, [30, 600]))
    wanted = min(set(few.tolist()) & set(many.tolist()), default=None)
    assert search.first_common(few, many) == search.first_common(many, few) == wanted


def test_the_first_common_number_of_nothing() -> None:
    none: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    assert search.first_common(none, none) is None
