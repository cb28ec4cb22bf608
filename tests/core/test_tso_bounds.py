"""What strangers can make a TSO remember is bounded; what an ordinary life makes it remember is forgotten again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine_script import Script, committed, reason

from conformance import put_entry
from pyomid.errors import ConflictError, Misuse, OutcomeUnknown, Unavailable
from pyomid.omid.oracle import large_commits, table_requests
from pyomid.omid.oracle.instructions import PeerGone, PutBranches, PutDecision, SealEntries
from pyomid.omid.oracle.large_commits import BRANCHES_A_CALL
from pyomid.omid.oracle.leases import Lease, Leases, LeaseState
from pyomid.omid.oracle.outcomes import SEALS_A_CALL
from pyomid.omid.oracle.state import PEER_REQUESTS_MAX
from pyomid.omid.oracle.status_oracle import RareStarts
from pyomid.omid.tso.peer import CommitParts
from pyomid.omid.wire.codec import CommitPart
from pyomid.omid.wire.frames import FrameTooLong
from pyomid.omid.wire.messages import (
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    LeaseReply,
    RenewLease,
    ReportIds,
    Seal,
    SealReply,
)
from pyomid.protocol.hashing import table_id
from pyomid.types import AbortReason, CommitReply, CommitRequest, TableInfo, WriteSetLevel

pytestmark = pytest.mark.fast


def test_random_table_ids_fill_neither_the_catalog_nor_memory() -> None:
    tso = Script(unknown_tables_max=5)
    for number in range(30):
        start_ts = tso.begin()
        waiting = tso.ask_settled(CommitRequest(start_ts, (number,), (1000 + number,)))
        if number < 5:
            committed(waiting.answer)
        else:
            refusal = waiting.refusal()
            assert isinstance(refusal, Misuse)
            assert "pyomid tables" in refusal.message
            assert refusal.values["start_ts"] == start_ts
    assert list(tso.stores.catalog.unknown_tables()) == [1000, 1001, 1002, 1003, 1004]
    assert len(tso.machine.state.oracle.table_commits) == 5
    committed(tso.commit(tso.begin(), 99, table_ids=(1003,)))  # one that is marked already goes on
    assert isinstance(tso.ask_settled(Fence(1002)).answer, FenceReply)


def test_conflicts_are_counted_for_decidable_tables_alone() -> None:
    """An abort needs no catalog, so random table ids would fill memory."""
    tso = Script(unknown_tables_max=1)
    early, leased = tso.begin(), tso.begin()
    assert isinstance(tso.ask_settled(GrantLease(leased)).answer, LeaseReply)
    committed(tso.commit(tso.begin(), 1, table_ids=(77,)))
    for number in range(30):
        request = CommitRequest(early, (1,), (77, 1000 + number))
        assert reason(tso.ask_settled(request).answer) is AbortReason.CONFLICT
    ids = np.array([1], dtype="<i8").tobytes()
    assert isinstance(tso.ask_settled(ReportIds(leased, 2000, tso.begin(), 0, ids)).refusal(), ConflictError)
    assert dict(tso.machine.state.oracle.table_conflicts) == {77: 30}


def test_any_number_of_tables_may_be_dropped() -> None:
    """Else a drop stops half-way, and neither it nor a new table of the name comes further while this TSO lives."""
    tso = Script(unknown_tables_max=5)
    for number in range(30):
        for _ in range(3):
            assert isinstance(tso.ask_settled(Fence(5000 + number)).answer, FenceReply)
    committed(tso.commit(tso.begin(), 1, table_ids=(77,)))  # fences leave room for tables that nobody registered


def test_fences_are_bounded_and_forgotten_behind_w(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_requests, "FENCED_TABLES_MAX", 5)
    tso = Script(max_transaction_age_s=10.0)
    early = tso.begin()
    for number in range(5):
        tso.ask_settled(Fence(5000 + number))
    refusal = tso.ask_settled(Fence(6000)).refusal()
    assert isinstance(refusal, Unavailable)
    assert "low watermark" in refusal.message
    assert isinstance(tso.ask_settled(Fence(5003)).answer, FenceReply), "one that is fenced already"
    assert sorted(tso.machine.state.oracle.fences) == [5000, 5001, 5002, 5003, 5004]
    tso.pass_time(0.4, times=60)
    assert not tso.machine.state.oracle.fences
    assert isinstance(tso.ask_settled(Fence(6000)).answer, FenceReply)
    assert reason(tso.commit(early, 1, table_ids=(5003,))), "who wrote before the fence aborts all the same"


def test_tables_that_are_registered_make_room_and_are_never_refused() -> None:
    tso = Script(unknown_tables_max=1)
    names = [f"t{number}" for number in range(4)]
    first = table_id(names[0].encode())
    assert isinstance(tso.ask_settled(CommitRequest(tso.begin(), (1,), (first,))).answer, CommitReply)
    for name in names:
        put_entry(tso.stores.catalog, TableInfo(name, (b"f",)))
    for name in names:
        committed(tso.commit(tso.begin(), 2, table_ids=(table_id(name.encode()),)))
    assert tso.machine.state.tables.unregistered == set()
    assert isinstance(tso.ask_settled(CommitRequest(tso.begin(), (3,), (77,))).answer, CommitReply)


def test_leases_are_bounded_and_those_granted_are_kept() -> None:
    tso = Script(leases_max=3)
    starts = [tso.begin() for _ in range(5)]
    granted = [tso.ask_settled(GrantLease(start, 0.0, f"holder {start}")) for start in starts]
    assert [isinstance(waiting.answer, LeaseReply) for waiting in granted] == [True] * 3 + [False] * 2
    assert isinstance(granted[4].refusal(), Unavailable)
    assert isinstance(tso.ask_settled(GrantLease(starts[0], 0.0)).answer, LeaseReply)
    assert isinstance(tso.ask_settled(RenewLease(starts[1])).answer, LeaseReply)


def test_one_holder_of_leases_leaves_some_for_others() -> None:
    """Else one process that never ends any keeps every other from beginning a job."""
    tso = Script(leases_max=100)
    greedy = [tso.ask_settled(GrantLease(tso.begin(), 0.0, "process 7 on east")) for _ in range(100)]
    granted = [waiting for waiting in greedy if isinstance(waiting.answer, LeaseReply)]
    assert len(granted) == 50
    refusal = greedy[-1].refusal()
    assert isinstance(refusal, Unavailable)
    assert "process 7 on east has 50 leases already" in refusal.message
    for other in ("process 8 on east", "", "x"):
        assert isinstance(tso.ask_settled(GrantLease(tso.begin(), 0.0, other)).answer, LeaseReply)
    tso.ask_settled(EndLease(granted[0].answer.start_ts))  # type: ignore[union-attr]
    tso.ask_settled(EndLease(granted[1].answer.start_ts))  # type: ignore[union-attr]
    tso.ask_settled(EndLease(granted[2].answer.start_ts))  # type: ignore[union-attr]
    assert isinstance(tso.ask_settled(GrantLease(tso.begin(), 0.0, "process 7 on east")).answer, LeaseReply)


def test_a_refused_lease_names_who_holds_them() -> None:
    """Else nobody knows whom to ask."""
    tso = Script(leases_max=4)
    holders = ["process 7 on east", "process 7 on east", "process 9\n" + 200 * "x", "y", "z"]
    for holder in holders:
        last = tso.ask_settled(GrantLease(tso.begin(), 0.0, holder))
    refused = str(last.refusal())
    assert "2 by process 7 on east, 1 by process 9x" in refused
    assert len(refused) < 300
    after = Script(tso.stores, leases_max=4)
    assert "4 by unnamed clients" in str(after.ask_settled(GrantLease(after.begin(), 0.0, "x")).refusal())


def test_what_leases_cost_at_each_step_does_not_grow_with_them() -> None:
    """Ten thousand of them, looked through every two milliseconds, are half of the TSO's time."""
    leases = Leases((), term_s=10.0, now_s=0.0)
    many = leases._leases = Looked()
    for start in range(50, 50 * 5000, 50):
        leases.grant(start, 10.0, 0.0, f"process {start % 7}").state = LeaseState.LIVE
    for step in range(1000):
        leases.expire(step / 1000)
        assert leases.lowest == 50
        leases.most_held_by()
    assert many.looks <= 1000 / 40
    assert len(leases.expire(20.0)) == 4999
    for start in range(50, 500, 50):
        assert leases.lowest == start
        leases.forget(start)
    assert leases.held_by("process 1") == sum(start % 7 == 1 for start in many)


class Looked(dict[int, Lease]):
    """How often all of it was looked through."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_seals_are_bounded_until_w_passes_them_and_a_retry_is_told_that_nothing_is_known() -> None:
    tso = Script(refused_starts_max=3, max_transaction_age_s=10.0)
    starts = [tso.begin() for _ in range(4)]
    assert isinstance(tso.ask_settled(Seal(tuple(starts[:3]))).answer, SealReply)
    assert isinstance(tso.ask_settled(Seal((starts[3],))).refusal(), Unavailable)
    assert isinstance(tso.ask_settled(CommitRequest(starts[3], (1,), is_retry=True)).refusal(), OutcomeUnknown)
    tso.pass_time(1.0, times=40)
    assert not tso.machine.state.oracle.refused_starts
    assert isinstance(tso.ask_settled(Seal((tso.begin(),))).answer, SealReply)


def test_parts_of_commits_are_bounded_if_they_have_no_ids() -> None:
    parts = CommitParts(100_000)
    with pytest.raises(FrameTooLong, match="incomplete commits"):
        _add_empty_parts(parts, 1000)


def _add_empty_parts(parts: CommitParts, count: int) -> None:
    for start_ts in range(count):
        parts.add(CommitPart(start_ts))


def test_a_completed_commit_frees_what_its_parts_held() -> None:
    parts = CommitParts(100_000)
    parts.add(CommitPart(50, (1, 2)))
    parts.add(CommitPart(50, (), (100,)))
    assert parts.completed(CommitRequest(50, (3,))) == CommitRequest(50, (1, 2, 3), branches=(100,))
    assert parts.bytes_held == 0


# ── work of one peer ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_peers_seals_go_to_the_store_a_few_at_a_time() -> None:
    """A flush waits for the store's call before it: a hundred of them, or one of 90 000 starts, are seconds."""
    tso = Script(window_starts=2000)
    starts = tuple(tso.begin() for _ in range(3 * SEALS_A_CALL))
    long = tso.ask(Seal(starts))
    many = [tso.ask(Seal((starts[0],))) for _ in range(50)]
    other = tso.ask(Seal((starts[1],)), peer="other")
    calls = [call.operation for call in tso.pending(SealEntries)]
    assert len(calls) == PEER_REQUESTS_MAX + 1
    assert all(isinstance(call, SealEntries) and len(call.starts) <= SEALS_A_CALL for call in calls)
    tso.settle()
    assert isinstance(long.answer, SealReply)
    assert len(long.answer.outcomes) == len(starts)
    assert all(isinstance(waiting.answer, SealReply) for waiting in (*many, other))


def test_one_peers_commits_go_a_few_at_a_time() -> None:
    """Each is the oldest batch once, and every begin waits for that."""
    tso = Script(window_starts=2000)
    many = [tso.ask(_at_table_level(tso.begin(), number), peer="many") for number in range(1, 51)]
    tso.settle()  # their tables have marks from now on
    assert all(waiting.answer is not None for waiting in many)
    many = [tso.ask(_at_table_level(tso.begin(), number), peer="many") for number in range(1, 51)]
    other = tso.ask(_at_table_level(tso.begin(), 51), peer="other")
    assert len(tso.pending(PutDecision)) == PEER_REQUESTS_MAX
    assert other.answer is None
    last = tso.ask(CommitRequest(tso.begin(), (1,)), peer="other")
    while last.answer is None:
        tso.done(tso.perform(type(tso.calls[0].operation)))
    assert sum(waiting.answer is None for waiting in many) > 40, "it waited for all that another peer had sent"
    tso.settle()
    for waiting in many:
        committed(waiting.answer)


def test_a_large_commit_asked_twice_while_it_waits_its_turn_counts_once() -> None:
    tso = Script(window_starts=2000)
    waiting = [tso.ask(_at_table_level(tso.begin(), number)) for number in range(1, 11)]
    request = _at_table_level(tso.begin(), 11)
    twice = [tso.ask(request), tso.ask(request)]
    tso.settle()
    told = [committed(each.answer) for each in (*waiting, *twice)]
    assert told[-1] == told[-2]


def _at_table_level(start_ts: int, table: int) -> CommitRequest:
    return CommitRequest(start_ts, table_ids=(table,), level=WriteSetLevel.TABLE)


def test_entries_of_branches_go_to_the_store_in_slices() -> None:
    """A flush waits for the store's call before it."""
    tso = Script(window_starts=20_000)
    start_ts = tso.begin()
    branches = tuple(tso.begin() for _ in range(2 * BRANCHES_A_CALL + 1))
    large = tso.ask(CommitRequest(start_ts, (1,), branches=branches))
    slices = []
    while large.answer is None:
        call = tso.calls[0].operation
        slices += [len(call.branches)] if isinstance(call, PutBranches) else []
        tso.done(tso.perform(type(call)))
    assert slices == [BRANCHES_A_CALL, BRANCHES_A_CALL, 1]
    assert isinstance(large.answer, CommitReply)
    assert set(tso.stores.commit_table.lookup([start_ts, *branches])) == {large.answer.commit_ts}


def test_commits_are_remembered_for_retries_by_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without its branches is matched with what the commit table says."""
    monkeypatch.setattr(large_commits, "REMEMBERED_MAX", 5)
    tso = Script()
    replies = []
    for number in range(20):
        start_ts, branch, stranger = tso.begin(), tso.begin(), tso.begin()
        request = CommitRequest(start_ts, (number,), branches=(branch,))
        replies.append((request, stranger, tso.ask_settled(request).answer))
        assert len(tso.machine.state.finished) <= 5
    for request, stranger, reply in replies:
        assert tso.ask_settled(replace(request, is_retry=True)).answer == reply
        refused = tso.ask_settled(replace(request, branches=(stranger,), is_retry=True)).refusal()
        assert isinstance(refused, Misuse)


def test_one_more_rare_start_does_not_cost_what_all_cost() -> None:
    """A hundred thousand of them, sorted anew for each that is sealed, are ten milliseconds a seal."""
    read: list[int] = []
    starts = set(range(50, 500_000, 50))

    def read_all() -> list[int]:
        read.append(len(starts))
        return list(starts)

    rare = RareStarts(read_all)
    rng = random.Random(4)
    for _ in range(500):
        new = {rng.randrange(1 << 40) * 50 for _ in range(3)} - starts
        starts |= new
        rare.add(new)
        if rng.random() < 0.5:
            assert rare.as_array().tolist() == sorted(starts)
    assert len(read) == 1
    starts = set(rng.sample(sorted(starts), 1000))
    rare.forget_some()
    assert rare.as_array().tolist() == sorted(starts)
    assert rare.as_array() is rare.as_array()


def test_what_a_peer_that_left_still_asks_of_the_store_is_dropped() -> None:
    tso = Script(window_starts=2000)
    starts = tuple(tso.begin() for _ in range(3 * SEALS_A_CALL))
    for _ in range(50):
        tso.ask(Seal(starts), peer="gone")
    kept = tso.ask(Seal(starts[:1]))
    tso.done(PeerGone("gone"))
    assert len(tso.machine.state.peer_requests) == 0
    before = len(tso.pending(SealEntries))
    tso.finish(SealEntries)
    assert len(tso.pending(SealEntries)) == before - 1, "the rest of it is not sealed either"
    tso.settle()
    assert isinstance(kept.answer, SealReply)
    assert isinstance(tso.commit(starts[-1], 1), CommitReply), "refused: nobody may rely on its having committed"


def test_a_plain_peer_commits_whatever_fits_its_frame() -> None:
    """Omid's client knows no table level: refused, it would run the same transaction again for ever."""
    tso = Script()
    cells = tuple(range(3 * tso.settings.conflict_map_entries))
    refused = tso.ask_settled(CommitRequest(tso.begin(), cells)).refusal()
    assert "commit smaller transactions" in refused.message
    commit_ts = committed(tso.commit(tso.begin(), *cells, from_java_peer=True))
    again = tso.begin()
    assert again > commit_ts
    tso.ask_settled(CommitRequest(again, (1,)))
