"""What strangers can make a TSO remember is bounded; what an ordinary life makes it remember is forgotten again."""

from __future__ import annotations

import pytest
from machine_script import Script

from pyomid.core import tso_machine
from pyomid.core.forgetting import NewestEntries
from pyomid.core.hashing import table_id
from pyomid.core.instructions import DeleteEntries, PeerGone, SealEntries, UpdateEpochRow
from pyomid.core.requests import Complete, Fence, FenceReply, GrantLease, LeaseReply, RenewLease, Seal, SealReply
from pyomid.core.tso_machine import COMPLETIONS_A_REQUEST, DELETES_A_CALL, PEER_WORK_MAX, SEALS_A_CALL
from pyomid.errors import Misuse, OutcomeUnknown, Unavailable
from pyomid.testing.entries import put_entry
from pyomid.types import AbortReason, CommitReply, CommitRequest, TableInfo

pytestmark = pytest.mark.fast


def test_random_table_ids_fill_neither_the_catalogue_nor_memory() -> None:
    tso = Script(unknown_tables_max=5)
    for number in range(30):
        start_ts = tso.begin()
        waiting = tso.ask_settled(CommitRequest(start_ts, (number,), (1000 + number,)))
        if number < 5:
            assert isinstance(waiting.answer, CommitReply)
            assert waiting.answer.committed
        else:
            refusal = waiting.refusal()
            assert isinstance(refusal, Misuse)
            assert "pyomid tables" in refusal.message
            assert refusal.values["start_ts"] == start_ts
    assert list(tso.stores.catalogue.unknown_tables()) == [1000, 1001, 1002, 1003, 1004]
    assert len(tso.machine.oracle.table_commits) == 5
    known = tso.ask_settled(CommitRequest(tso.begin(), (99,), (1003,))).answer
    assert isinstance(known, CommitReply)
    assert known.committed, "one that is marked already goes on"
    assert isinstance(tso.ask_settled(Fence(1002)).answer, FenceReply)


def test_any_number_of_tables_may_be_dropped() -> None:
    """Else a drop stops half-way, and neither it nor a new table of the name comes further while this TSO lives."""
    tso = Script(unknown_tables_max=5)
    for number in range(30):
        for _ in range(3):
            assert isinstance(tso.ask_settled(Fence(5000 + number)).answer, FenceReply)
    reply = tso.ask_settled(CommitRequest(tso.begin(), (1,), (77,))).answer
    assert isinstance(reply, CommitReply)
    assert reply.committed, "fences leave room for tables that nobody registered"


def test_fences_are_bounded_and_forgotten_behind_w(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tso_machine, "FENCED_TABLES_MAX", 5)
    tso = Script(max_transaction_age_s=10.0)
    early = tso.begin()
    for number in range(5):
        tso.ask_settled(Fence(5000 + number))
    refusal = tso.ask_settled(Fence(6000)).refusal()
    assert isinstance(refusal, Unavailable)
    assert "low watermark" in refusal.message
    assert isinstance(tso.ask_settled(Fence(5003)).answer, FenceReply), "one that is fenced already"
    assert sorted(tso.machine.oracle.fences) == [5000, 5001, 5002, 5003, 5004]
    for _ in range(60):
        tso.tick(0.4)
        tso.settle()
    assert not tso.machine.oracle.fences
    assert isinstance(tso.ask_settled(Fence(6000)).answer, FenceReply)
    late = tso.ask_settled(CommitRequest(early, (1,), (5003,))).answer
    assert isinstance(late, CommitReply)
    assert not late.committed, "who wrote before the fence aborts all the same"


def test_tables_that_are_registered_make_room_and_are_never_refused() -> None:
    tso = Script(unknown_tables_max=1)
    names = [f"t{number}" for number in range(4)]
    first = table_id(names[0].encode())
    assert isinstance(tso.ask_settled(CommitRequest(tso.begin(), (1,), (first,))).answer, CommitReply)
    for name in names:
        put_entry(tso.stores.catalogue, TableInfo(name, (b"f",)))
    for name in names:
        reply = tso.ask_settled(CommitRequest(tso.begin(), (2,), (table_id(name.encode()),))).answer
        assert isinstance(reply, CommitReply)
        assert reply.committed
    assert tso.machine.tables.unregistered == set()
    assert isinstance(tso.ask_settled(CommitRequest(tso.begin(), (3,), (77,))).answer, CommitReply)


def test_leases_are_bounded_and_those_granted_are_kept() -> None:
    tso = Script(leases_max=3)
    starts = [tso.begin() for _ in range(5)]
    granted = [tso.ask_settled(GrantLease(start, 0.0)) for start in starts]
    assert [isinstance(waiting.answer, LeaseReply) for waiting in granted] == [True] * 3 + [False] * 2
    assert isinstance(granted[4].refusal(), Unavailable)
    assert isinstance(tso.ask_settled(GrantLease(starts[0], 0.0)).answer, LeaseReply)
    assert isinstance(tso.ask_settled(RenewLease(starts[1])).answer, LeaseReply)


def test_a_refused_lease_names_who_holds_them() -> None:
    """Else nobody knows whom to ask."""
    tso = Script(leases_max=3)
    starts = [tso.begin() for _ in range(4)]
    for start, holder in zip(
        starts, ["process 7 on east", "process 7 on east", "process 9\n" + 200 * "x", "x"], strict=True
    ):
        last = tso.ask_settled(GrantLease(start, 0.0, holder))
    refused = str(last.refusal())
    assert "2 by process 7 on east, 1 by process 9x" in refused
    assert len(refused) < 300
    after = Script(tso.stores, leases_max=3)
    assert "3 by whoever" in str(after.ask_settled(GrantLease(after.begin(), 0.0, "x")).refusal())


def test_seals_are_bounded_until_w_passes_them_and_a_retry_is_told_that_nothing_is_known() -> None:
    tso = Script(refused_starts_max=3, max_transaction_age_s=10.0)
    starts = [tso.begin() for _ in range(4)]
    assert isinstance(tso.ask_settled(Seal(tuple(starts[:3]))).answer, SealReply)
    assert isinstance(tso.ask_settled(Seal((starts[3],))).refusal(), Unavailable)
    assert isinstance(tso.ask_settled(CommitRequest(starts[3], (1,), is_retry=True)).refusal(), OutcomeUnknown)
    for _ in range(40):
        tso.now_s += 1.0
        tso.tick()
        tso.settle()
    assert not tso.machine.refused_starts
    assert isinstance(tso.ask_settled(Seal((tso.begin(),))).answer, SealReply)


def test_completions_that_come_faster_than_entries_go_are_left_to_the_sanitiser() -> None:
    tso = Script(completions_max=10)
    starts = []
    for number in range(30):
        starts.append(tso.begin())
        tso.ask_settled(CommitRequest(starts[-1], (number,)))
    tso.ask(Complete((starts[0],)))  # its delete is under way while the others come
    for start_ts in starts[1:]:
        tso.ask(Complete((start_ts,)))
    assert len(tso.machine._completions.starts) == 10
    assert tso.machine.counters["completions_left"] == 19
    tso.finish(DeleteEntries)
    tso.settle()
    assert tso.stores.commit_table.count() == 19


def test_completions_of_what_was_never_handed_out_reach_no_store() -> None:
    """A store would call it misuse, which ends the process."""
    tso = Script()
    start_ts = tso.begin()
    tso.ask_settled(CommitRequest(start_ts, (1,)))
    for wrong in (7, 0, -50, start_ts + 1, start_ts + 50, -(1 << 63), (1 << 63) - 1):
        tso.ask(Complete((wrong,)))
        tso.settle()
        assert tso.stores.commit_table.count() == 1
    tso.ask(Complete((7, start_ts)))
    tso.finish(DeleteEntries)
    tso.settle()
    assert tso.stores.commit_table.count() == 0
    assert tso.machine.counters["refused"] == 8
    assert tso.machine.counters["completions"] == 1


# ── entries in memory: decision 0016 ─────────────────────────────────────────────────────────────────────────────────


def test_the_newest_entries_are_counted_in_samples() -> None:
    newest = NewestEntries(160)
    for number in range(1000):
        newest.release(7, number)
        kept = 7 * (number - newest.forgotten_start)
        assert kept <= 160 + 7 + 10
    assert newest.forgotten_start > 950


def _commit(tso: Script, number: int) -> int:
    """Of a cell that shares its bucket of the conflict map with few: nothing is evicted."""
    start_ts = tso.begin()
    cell = (number * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)) - (1 << 63)
    reply = tso.ask_settled(CommitRequest(start_ts, (cell,))).answer
    assert isinstance(reply, CommitReply)
    assert reply.committed
    return start_ts


def _tick(tso: Script) -> None:
    for _ in range(3):
        tso.now_s += 1.1
        tso.tick()
        tso.settle()
        tso.machine.validate()


def test_a_table_in_memory_forgets_what_is_old_by_count_below_w_and_h_first() -> None:
    tso = Script(entries_kept_max=32)
    old = tso.begin()
    starts = [_commit(tso, number) for number in range(100)]
    _tick(tso)
    assert 0 < tso.stores.commit_table.count() <= 48
    machine = tso.machine
    row = tso.stores.epoch_row.read()
    assert starts[50] < row.horizon <= row.watermark <= machine.low_watermark
    assert tso.stores.commit_table.lookup([starts[-1]])[0] > 0
    late = tso.ask_settled(CommitRequest(old, (1000,))).answer
    assert isinstance(late, CommitReply)
    assert late.reason is AbortReason.LOW_WATERMARK
    forgotten = tso.ask_settled(CommitRequest(starts[0], (0,), is_retry=True))
    assert isinstance(forgotten.refusal(), OutcomeUnknown), "its outcome is not guessed"
    found = tso.ask_settled(CommitRequest(starts[-1], (99,), is_retry=True)).answer
    assert isinstance(found, CommitReply)
    assert found.committed


def test_a_lease_keeps_the_entries_above_it() -> None:
    tso = Script(entries_kept_max=32)
    leased = tso.begin()
    tso.ask_settled(GrantLease(leased, 10_000.0))
    starts = [_commit(tso, number) for number in range(100)]
    _tick(tso)
    assert tso.stores.epoch_row.read().horizon < leased
    assert all(commit > 0 for commit in tso.stores.commit_table.lookup(starts))
    reply = tso.ask_settled(CommitRequest(leased, (5000,))).answer
    assert isinstance(reply, CommitReply)
    assert reply.committed


def test_nothing_is_forgotten_where_others_read_the_table() -> None:
    tso = Script()
    for number in range(100):
        _commit(tso, number)
    _tick(tso)
    assert tso.stores.commit_table.count() == 100
    assert not [call for call in tso.calls if isinstance(call.operation, UpdateEpochRow)]
    assert tso.machine.horizon == 0


# ── work of one peer ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_peers_seals_go_to_the_store_a_few_at_a_time() -> None:
    """A flush waits for the store's call before it: a hundred of them, or one of 90 000 starts, are seconds."""
    tso = Script(window_starts=2000)
    starts = tuple(tso.begin() for _ in range(3 * SEALS_A_CALL))
    long = tso.ask(Seal(starts))
    many = [tso.ask(Seal((starts[0],))) for _ in range(50)]
    other = tso.ask(Seal((starts[1],)), peer="other")
    calls = [call.operation for call in tso.pending(SealEntries)]
    assert len(calls) == PEER_WORK_MAX + 1
    assert all(isinstance(call, SealEntries) and len(call.starts) <= SEALS_A_CALL for call in calls)
    tso.settle()
    assert isinstance(long.answer, SealReply)
    assert len(long.answer.outcomes) == len(starts)
    assert all(isinstance(waiting.answer, SealReply) for waiting in (*many, other))


def test_what_a_peer_that_left_still_asks_of_the_store_is_dropped() -> None:
    tso = Script(window_starts=2000)
    starts = tuple(tso.begin() for _ in range(3 * SEALS_A_CALL))
    for _ in range(50):
        tso.ask(Seal(starts), peer="gone")
    kept = tso.ask(Seal(starts[:1]))
    tso.done(PeerGone("gone"))
    assert len(tso.machine._peer_work) == 0
    before = len(tso.pending(SealEntries))
    tso.finish(SealEntries)
    assert len(tso.pending(SealEntries)) == before - 1, "the rest of it is not sealed either"
    tso.settle()
    assert isinstance(kept.answer, SealReply)
    assert isinstance(tso.commit(starts[-1], 1), CommitReply), "refused: nobody may rely on its having committed"


def test_a_request_completes_a_bounded_number() -> None:
    tso = Script()
    start_ts = tso.begin()
    tso.ask_settled(CommitRequest(start_ts, (1,)))
    tso.ask_settled(Complete((start_ts,) * (COMPLETIONS_A_REQUEST + 5)))
    assert tso.machine.counters["completions"] == COMPLETIONS_A_REQUEST
    assert tso.machine.counters["completions_left"] == 5


def test_deletes_go_to_the_store_in_slices() -> None:
    tso = Script()
    start_ts = tso.begin()
    tso.ask(Complete((start_ts,) * 10_000))
    while tso.pending(DeleteEntries):
        [call] = tso.pending(DeleteEntries)
        assert isinstance(call.operation, DeleteEntries)
        assert len(call.operation.starts) <= DELETES_A_CALL
        tso.finish(DeleteEntries)
    assert tso.machine.counters["completions"] == 10_000


def test_a_plain_peer_commits_whatever_fits_its_frame() -> None:
    """Omid's client knows no table level: refused, it would run the same transaction again for ever."""
    tso = Script()
    cells = tuple(range(3 * tso.settings.conflict_map_entries))
    refused = tso.ask_settled(CommitRequest(tso.begin(), cells)).refusal()
    assert "commit it at table level" in refused.message
    reply = tso.ask_settled(CommitRequest(tso.begin(), cells, is_plain=True)).answer
    assert isinstance(reply, CommitReply)
    assert reply.committed
    again = tso.begin()
    assert again > reply.commit_ts
    tso.ask_settled(CommitRequest(again, (1,)))
