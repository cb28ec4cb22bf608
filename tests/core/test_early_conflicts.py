"""Conflicts that the TSO answers to a report of ids, before the commit (protocol.md, Large transactions, rule 6).

A conflict that is answered must be one that the commit would meet; one that is missed costs only time.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from machine_script import Script

from pyomid.omid.wire.messages import Done, Fence, GrantLease, Refused, ReportIds
from pyomid.types import CommitReply, CommitRequest, WriteSetLevel

pytestmark = pytest.mark.fast

TABLE, OTHER = 7, 8
CONFLICT, TOO_OLD = "OMID-CONFLICT", "OMID-SNAPSHOT-TOO-OLD"


class Job:
    """A leased start whose tasks report ids by branch, or claim their tables."""

    def __init__(self, tso: Script) -> None:
        self.tso = tso
        self.start_ts = tso.begin()
        tso.ask_settled(GrantLease(self.start_ts))
        self.branches: dict[int, tuple[int, int]] = {}
        """branch → its table, and how many ids it reported."""

    def branch(self, table: int = TABLE) -> int:
        branch = self.tso.begin()
        self.branches[branch] = (table, 0)
        return branch

    def report(self, branch: int, *ids: int, part: int = 0) -> Done | Refused:
        table, _ = self.branches[branch]
        packed = np.array(sorted(ids), dtype="<i8").tobytes()
        answer = self.tso.told(Done | Refused, ReportIds(self.start_ts, table, branch, part, packed))
        self.branches[branch] = (table, len(ids))
        return answer

    def commit(self, *branches: int, claims: bool = False) -> CommitReply:
        tables = sorted({self.branches[branch][0] for branch in branches})
        count = 0 if claims else sum(self.branches[branch][1] for branch in branches)
        level = WriteSetLevel.TABLE if claims else WriteSetLevel.IDS
        request = CommitRequest(self.start_ts, (), tuple(tables), branches, level, reported_ids=count)
        answer = self.tso.told(CommitReply, request)
        return answer


def committed(tso: Script, *ids: int, table: int = TABLE) -> int:
    reply = tso.commit(tso.begin(), *ids, table_ids=(table,))
    assert isinstance(reply, CommitReply)
    assert reply.committed
    return reply.commit_ts


def aborts(tso: Script) -> Counter[str]:
    found = {name: count for name, count in tso.machine.step.counters.items() if name.startswith("aborts_") and count}
    return Counter(found)


def lost(answer: Done | Refused, commit_ts: int | None = None) -> bool:
    if isinstance(answer, Done):
        return False
    assert answer.code == CONFLICT, answer
    assert commit_ts is None or answer.values["commit_ts"] == commit_ts
    return True


def test_a_report_hears_of_a_commit_since_the_start_and_its_ids_are_kept() -> None:
    tso = Script()
    committed(tso, 1)
    job = Job(tso)
    branch = job.branch()
    assert not lost(job.report(branch, 1, 2)), "committed before it began"
    winner = committed(tso, 2)
    assert lost(job.report(branch, 1, 2), winner)
    assert tso.machine.state.oracle.reported.count_of(job.start_ts, branch) == 2
    assert aborts(tso) == {"aborts_conflict": 1}
    assert lost(job.report(branch, 1, 2), winner)
    assert aborts(tso) == {"aborts_conflict": 1}, "a transaction counts once, however many of its tasks hear of it"
    assert job.commit(branch).conflict_ts == winner


def test_a_report_hears_of_a_job_that_committed_and_of_its_own_branchs_earlier_parts() -> None:
    tso = Script()
    first, second = Job(tso), Job(tso)
    one, two = first.branch(), second.branch()
    assert not lost(second.report(two, 5, part=0))
    assert not lost(first.report(one, 4, 5))
    winner = first.commit(one)
    assert winner.committed
    assert lost(second.report(two, 6, part=1), winner.commit_ts)


def test_a_report_hears_of_fences_and_claims_of_its_table_only() -> None:
    tso = Script()
    job = Job(tso)
    mine, others = job.branch(), job.branch(OTHER)
    tso.ask_settled(Fence(TABLE))
    assert lost(job.report(mine, 1))
    assert not lost(job.report(others, 2))
    claim = tso.commit(tso.begin(), table_ids=(OTHER,), level=WriteSetLevel.TABLE)
    assert isinstance(claim, CommitReply)
    assert lost(job.report(others, 2), claim.commit_ts)


def test_a_claim_is_asked_without_ids() -> None:
    tso = Script()
    job = Job(tso)
    mine, others = job.branch(), job.branch(OTHER)
    winner = committed(tso, 1)
    assert lost(job.report(mine), winner)
    assert not lost(job.report(others))
    assert tso.machine.state.oracle.reported.count == 0
    assert job.commit(mine, others, claims=True).conflict_ts == winner
    other = Job(tso)
    assert other.commit(other.branch(OTHER), claims=True).committed


def test_attempts_and_branches_of_one_job_do_not_conflict() -> None:
    tso = Script()
    job = Job(tso)
    first, again, next_write = (job.branch() for _ in range(3))
    assert not lost(job.report(first, 1, 2))
    assert not lost(job.report(again, 1, 2))
    assert not lost(job.report(again, 1, 2)), "sent twice"
    assert not lost(job.report(next_write, 2))
    assert job.commit(again, next_write).committed


def test_a_conflict_of_an_attempt_that_does_not_count_is_not_the_jobs() -> None:
    """Its source gave other rows than the attempt after it."""
    tso = Script()
    job = Job(tso)
    orphan, counts = job.branch(), job.branch()
    committed(tso, 1)
    assert lost(job.report(orphan, 1))
    assert not lost(job.report(counts, 2))
    assert job.commit(counts).committed


def test_a_job_below_lwm_is_answered_by_its_table() -> None:
    tso = Script(conflict_map_entries=1)
    job = Job(tso)
    mine, others = job.branch(), job.branch(OTHER)
    for number in range(60):
        committed(tso, 1_000 + number)
    assert tso.machine.state.oracle.low_watermark > job.start_ts
    assert lost(job.report(mine, 1))
    assert not lost(job.report(others, 2))
    assert job.commit(others).committed


def test_a_start_without_a_lease_is_too_old() -> None:
    tso = Script()
    job = Job(tso)
    branch = job.branch()
    plain = Job.__new__(Job)
    plain.tso, plain.start_ts, plain.branches = tso, tso.begin(), job.branches
    refused = plain.report(branch, 1)
    assert isinstance(refused, Refused)
    assert refused.code == TOO_OLD


def _play(choices: Random) -> Counter[str]:
    """Jobs beside small commits, fences and claims. What a report answers must hold at the commit."""
    tso = Script(conflict_map_entries=choices.choice((1, 1_000)), reported_ids_max=choices.choice((300, 10_000)))
    seen: Counter[str] = Counter()
    jobs: list[tuple[Job, bool]] = []
    heard: dict[int, bool] = {}
    starts: list[int] = []

    def ids(table: int) -> list[int]:
        return [100 * table + number for number in choices.sample(range(12), choices.randint(1, 3))]

    for _ in range(80):
        table = choices.choice((TABLE, OTHER))
        match choices.randrange(8):
            case 0 if len(jobs) < 3:
                jobs.append((Job(tso), choices.random() < 0.2))
            case 1 | 2 | 3 if jobs:
                job, claims = choices.choice(jobs)
                branch = job.branch(table)
                answer = job.report(branch, *(() if claims else ids(table)))
                if isinstance(answer, Refused) and answer.code != CONFLICT:
                    jobs.remove((job, claims))
                else:
                    heard[branch] = lost(answer)
            case 4 if jobs:
                job, claims = jobs.pop(choices.randrange(len(jobs)))
                known = [branch for branch in job.branches if branch in heard]
                counting = choices.sample(known, choices.randint(0, len(known)))
                reply = job.commit(*counting, claims=claims) if counting else None
                if reply is not None:
                    any_lost = any(heard[branch] for branch in counting)
                    assert not (reply.committed and any_lost), "a report was answered with a conflict"
                    seen["committed" if reply.committed else "early" if any_lost else "late"] += 1
            case 5:
                starts.append(tso.begin())
            case 6 if starts:
                tso.commit(starts.pop(choices.randrange(len(starts))), *ids(table), table_ids=(table,))
            case 7 if choices.random() < 0.3:
                tso.ask_settled(Fence(table))
    return seen


def test_what_a_report_answers_holds_at_the_commit() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        try:
            seen += _play(Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
    assert min(seen["committed"], seen["early"], seen["late"]) > 30, seen


@pytest.mark.parametrize("seed", range(20))
def test_a_report_right_before_the_commit_of_its_branch_answers_as_the_commit(seed: int) -> None:
    choices = Random(seed)
    for _ in range(10):
        tso = Script(conflict_map_entries=choices.choice((1, 1_000)))
        job = Job(tso)
        branch, ids = job.branch(), choices.sample(range(40), 3)
        job.report(branch, *ids)
        for _ in range(choices.randrange(30)):
            committed(tso, *choices.sample(range(40), 1), table=choices.choice((TABLE, OTHER)))
        answer = job.report(branch, *ids)
        reply = job.commit(branch)
        assert lost(answer, reply.conflict_ts or None) is not reply.committed
