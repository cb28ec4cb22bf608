"""The machine by hand-built scripts: each of the TSO's hazards (hazards.md, T1 … T15) as a small story."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from machine_script import Script, Waiting, committed, memory_stores, reason

from conformance import put_entry
from pyomid.errors import Misuse, SnapshotTooOld, StoreFull, Unavailable
from pyomid.omid.oracle import lease_requests
from pyomid.omid.oracle.instructions import (
    DeleteBelow,
    Flush,
    LookupEntries,
    MarkUnknownTable,
    PeerGone,
    PutBranches,
    PutDecision,
    ReadEpoch,
    ReadTables,
    SealEntries,
    UpdateLeaderState,
)
from pyomid.omid.oracle.state import PEER_REQUESTS_MAX
from pyomid.omid.wire.messages import (
    AdvanceHorizon,
    AskStatus,
    Begin,
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    HorizonReply,
    LeaseReply,
    Refused,
    RenewLease,
    ReportOpenStarts,
    Seal,
    SealReply,
)
from pyomid.protocol.hashing import table_id
from pyomid.types import (
    NOT_FOUND,
    SEALED,
    AbortReason,
    CommitReply,
    CommitRequest,
    LeaderRecord,
    LeaderStateChanges,
    PendingCommit,
    SealOutcome,
    Status,
    TableInfo,
    WriteSetLevel,
)

pytestmark = pytest.mark.fast

A, B, C = 1 << 60, 2 << 60, 3 << 60


def lookup(tso: Script, *starts: int) -> list[int]:
    return tso.stores.commit_table.lookup(starts)


# ── the decision ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_that_overlap_and_write_one_cell_the_first_committer_wins() -> None:
    tso = Script()
    first, second, apart = tso.begin(), tso.begin(), tso.begin()
    commit_ts = committed(tso.commit(first, A, B))
    loser = tso.commit(second, B)
    assert reason(loser) is AbortReason.CONFLICT
    assert loser.conflict_ts == commit_ts  # type: ignore[union-attr]
    committed(tso.commit(apart, C))


def test_who_begins_after_an_acknowledged_commit_sees_it() -> None:
    tso = Script()
    for _ in range(20):
        commit_ts = committed(tso.commit(tso.begin(), A))
        assert tso.begin() > commit_ts


def test_conflict_free_writes_are_not_checked_but_recorded_and_count_for_their_table() -> None:
    tso = Script()
    table = _register(tso, "t")
    job, other = tso.begin(), tso.begin()
    commit_ts = committed(tso.commit(other, table_ids=(table,)))
    assert lookup(tso, other) == [commit_ts]
    assert reason(tso.commit(job, table_ids=(table,), level=WriteSetLevel.TABLE)) is AbortReason.TABLE


# ── T1: begin windows ────────────────────────────────────────────────────────────────────────────────────────────


def test_t1_a_window_that_runs_out_behind_a_flight_makes_begins_wait_for_the_release() -> None:
    tso = Script()
    held = tso.ask(CommitRequest(tso.begin(), (A,)))
    waiting = [tso.ask(Begin()) for _ in range(10)]
    answered = [w.start_ts for w in waiting if w.answer is not None]
    assert 0 < len(answered) < 10
    tso.settle()
    commit_ts = committed(held.answer)
    assert all(w.start_ts > commit_ts for w in waiting if w.start_ts not in answered)


def test_t1_only_begins_for_a_long_time_never_wait() -> None:
    tso = Script()
    starts = [tso.begin() for _ in range(200)]
    assert starts == sorted(set(starts))
    assert not tso.pending(Flush)


def test_t1_batches_are_released_in_order_however_their_flushes_end() -> None:
    tso = Script()
    first = tso.ask(CommitRequest(tso.begin(), (A,)))
    second = tso.ask(CommitRequest(tso.begin(), (B,)))
    tso.finish(Flush, 1)
    assert first.answer is None
    assert second.answer is None
    between = tso.begin()
    tso.finish(Flush)
    assert between < committed(first.answer) < committed(second.answer)


def test_t1_a_third_batch_gathers_while_two_fly() -> None:
    tso = Script()
    waiting = [tso.ask(CommitRequest(tso.begin(), (A + i,))) for i in range(4)]
    assert len(tso.pending(Flush)) == 2
    tso.finish(Flush)
    [_, third] = tso.pending(Flush)
    assert len(third.operation.entries) == 2  # type: ignore[union-attr]
    tso.settle()
    assert [committed(w.answer) for w in waiting] == sorted(committed(w.answer) for w in waiting)


def test_not_before_waits_for_the_window_above_the_commit_that_won() -> None:
    tso = Script()
    winner, loser = tso.begin(), tso.begin()
    held = tso.ask(CommitRequest(winner, (A,)))
    aborted = tso.ask(CommitRequest(loser, (A,))).answer
    assert isinstance(aborted, CommitReply)
    again, other = tso.ask(Begin(aborted.conflict_ts)), tso.ask(Begin())
    assert again.answer is None
    assert other.answer is not None, "a begin with a floor does not hold up those behind it"
    tso.settle()
    assert again.start_ts > committed(held.answer) == aborted.conflict_ts


def test_a_not_before_above_everything_issued_is_refused() -> None:
    tso = Script()
    assert isinstance(tso.ask(Begin(1 << 60)).refusal(), Misuse)


def test_no_transaction_is_born_at_or_below_the_low_watermark() -> None:
    """A map of one bucket: the eviction raises LWM into the batch in flight, and begins wait for its release."""
    tso = Script(conflict_map_entries=1, write_set_fraction_max=100.0)
    committed(tso.commit(tso.begin(), *range(28)))
    held = tso.ask(CommitRequest(tso.begin(), tuple(range(100, 128))))
    tso.finish(Flush)
    held = tso.ask(CommitRequest(tso.begin(), tuple(range(200, 228))))
    begin = tso.ask(Begin())
    tso.settle()
    assert begin.start_ts > tso.machine.state.oracle.low_watermark
    committed(held.answer)


# ── T2: W after the commits before it ────────────────────────────────────────────────────────────────────────────


def test_t2_w_is_sent_only_after_every_commit_that_started_below_it_is_durable() -> None:
    """LWM lies above the mover by its own eviction; then E passes it, for nothing is open."""
    tso = Script(
        conflict_map_entries=1, write_set_fraction_max=100.0, watermark_interval_s=0.1, open_starts_interval_s=0.1
    )
    mover = tso.begin()
    committed(tso.commit(tso.begin(), *range(28)))
    first = tso.ask(CommitRequest(mover, tuple(range(100, 128))))
    assert tso.machine.state.oracle.low_watermark > mover
    tso.ask(ReportOpenStarts(b"client", 1, 0))
    tso.tick(0.2)
    assert tso.machine.state.watermarks.sent < mover, "the mover's own entry is not durable yet"
    assert first.answer is None
    tso.finish(Flush)
    tso.tick(0.2)
    assert tso.machine.state.watermarks.sent >= mover
    tso.settle()
    assert tso.stores.leader_state.read().watermark == tso.machine.state.watermarks.sent


# ── T3, law 8: timestamps ────────────────────────────────────────────────────────────────────────────────────────


def test_t3_commits_stall_at_the_ceiling_and_go_on_when_it_has_moved() -> None:
    tso = Script(ceiling_step=3000, ceiling_renew_remaining=100)
    starts = [tso.begin()]
    while not tso.pending(UpdateLeaderState):
        starts.append(tso.begin())
    held = [tso.ask(CommitRequest(start_ts, conflict_free(i))) for i, start_ts in enumerate(starts)]
    while not tso.machine.state.ceiling.waiting:
        held.append(tso.ask(CommitRequest(starts[0], conflict_free(len(held)))))
    waits = held[-1]
    while tso.pending(Flush):
        tso.finish(Flush)
    assert waits.answer is None
    tso.settle()
    for each in held:
        committed(each.answer)
    assert committed(waits.answer) < tso.stores.leader_state.read().ceiling


def conflict_free(number: int) -> tuple[int, ...]:
    """A cell of nobody else, as evenly spread as hashes are."""
    return ((number * 0x9E3779B97F4A7C15 & ((1 << 64) - 1)) - (1 << 63),)


@pytest.mark.parametrize("at_table_level", [False, True])
def test_t3_a_large_commit_too_waits_for_the_ceiling_and_never_for_ever(at_table_level: bool) -> None:
    tso = Script(ceiling_step=900, ceiling_renew_remaining=100)
    table = _register(tso, "t")
    for i in range(30):
        start_ts, branch = tso.begin(), tso.begin()
        level = WriteSetLevel.TABLE if at_table_level else WriteSetLevel.IDS
        committed(
            tso.commit(
                start_ts, *(() if at_table_level else (A + i,)), table_ids=(table,), branches=(branch,), level=level
            )
        )
        tso.settle()


# ── T4, T5: leadership ───────────────────────────────────────────────────────────────────────────────────────────


def test_t4_after_a_stall_nothing_is_replied_before_the_leader_state_was_read() -> None:
    tso = Script()
    tso.stall(5.0)
    begin = tso.ask(Begin())
    assert begin.answer is None
    tso.finish(ReadEpoch)
    assert begin.answer is not None


def test_t4_whoever_was_replaced_while_it_slept_dies_and_replies_nothing() -> None:
    tso = Script()
    other = Script(tso.stores)
    tso.stall(5.0)
    begin = tso.ask(Begin())
    tso.finish(ReadEpoch)
    assert tso.died
    assert begin.answer is None
    assert other.begin() > tso.machine.state.clock.last_issued


def test_t4_a_read_from_before_a_stall_ends_no_doubt() -> None:
    """It slept twice, the second time for an hour behind its read: another TSO leads by now."""
    tso = Script()
    tso.stall(5.0)
    begin = tso.ask(Begin())
    ours = tso.perform(ReadEpoch)
    other = Script(tso.stores)
    tso.now_s += 3600.0
    tso.done(ours)
    assert begin.answer is None
    tso.finish(ReadEpoch)
    assert tso.died
    assert begin.answer is None
    assert other.begin() > tso.machine.state.clock.last_issued


def test_t4_a_doubt_with_several_stalls_ends() -> None:
    tso = Script()
    for _ in range(3):
        tso.stall(5.0)
    begin = tso.ask(Begin())
    tso.finish(ReadEpoch)
    assert begin.answer is None
    tso.finish(ReadEpoch)
    assert begin.answer is not None
    assert not tso.pending(ReadEpoch)
    assert tso.machine.step.counters["stalls"] == 3


def test_t5_a_takeover_reads_leases_and_pending_records_only_after_its_fence() -> None:
    """The old TSO writes a pending record between the new one's first look and its fence: it must be finished."""
    from pyomid.omid.oracle.instructions import ReadLeaderState, TakeOverEpoch
    from pyomid.omid.oracle.takeover import take_leadership
    from pyomid.omid.tso.store_calls import perform

    stores = memory_stores(LeaderRecord(epoch=50, ceiling=1000))
    steps = take_leadership(ceiling_step=1000)
    assert isinstance(steps.send(None), ReadLeaderState)
    seen = stores.leader_state.read()
    stores.leader_state.update(
        50, LeaderStateChanges(pending_added=(PendingCommit(100, (150, 200)),), leases_added=(300,))
    )
    operation = steps.send(seen)
    assert isinstance(operation, TakeOverEpoch)
    result: object = perform(stores, operation)
    taken_over = None
    try:
        while True:
            result = perform(stores, steps.send(result))
    except StopIteration as end:
        taken_over = end.value
    assert stores.leader_state.read().pending == ()
    assert stores.commit_table.lookup([100, 150, 200]) == [SEALED, SEALED, SEALED]
    assert taken_over.leases == {300}
    assert taken_over.watermark == 299


# ── T7: retries ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_t7_a_retry_is_answered_after_the_batch_that_holds_the_first_try() -> None:
    tso = Script()
    start_ts = tso.begin()
    first = tso.ask(CommitRequest(start_ts, (A,)))
    retry = tso.ask(CommitRequest(start_ts, (A,), is_retry=True), peer="another connection")
    assert not tso.pending(LookupEntries)
    assert retry.answer is None
    tso.settle()
    assert committed(retry.answer) == committed(first.answer)


def test_t7_a_retry_of_an_empty_write_set_is_matched_by_its_start() -> None:
    tso = Script()
    start_ts = tso.begin()
    commit_ts = committed(tso.commit(start_ts))
    assert committed(tso.commit(start_ts, is_retry=True)) == commit_ts


def test_t7_a_retry_whose_first_try_never_came_is_sealed_and_the_late_first_try_is_refused() -> None:
    tso = Script()
    start_ts = tso.begin()
    assert reason(tso.commit(start_ts, A, is_retry=True)) is AbortReason.RETRY_UNKNOWN
    assert lookup(tso, start_ts) == [SEALED]
    assert reason(tso.commit(start_ts, A)) is AbortReason.SEALED


def test_t7_a_first_try_that_arrives_during_the_retry_cannot_commit_behind_its_back() -> None:
    tso = Script()
    start_ts = tso.begin()
    retry = tso.ask(CommitRequest(start_ts, (A,), is_retry=True))
    late = tso.ask(CommitRequest(start_ts, (A,)))
    tso.settle()
    assert reason(retry.answer) is AbortReason.RETRY_UNKNOWN
    assert reason(late.answer) is AbortReason.SEALED


WAITS = ("catalog", "mark", "turn", "ceiling", "ceiling, then turn", "catalog, then turn")


def _waiting_first_tries(tso: Script, waits_for: str) -> list[tuple[CommitRequest, Waiting]]:
    """First attempts of one peer; each waits, before it is decided, for what is named."""
    is_large, large = waits_for != "catalog" and waits_for != "mark" and waits_for != "ceiling", []
    count = PEER_REQUESTS_MAX + 2 if is_large else 2
    tables = [table_id(b"%d" % number) for number in range(count)]
    if "catalog" not in waits_for and waits_for != "mark":
        for table in tables:
            committed(tso.commit(_ended_begin(tso), A, table_ids=(table,)))
    starts = [_ended_begin(tso) for _ in range(2 * count)]
    for number, table in enumerate(tables):
        if is_large:
            large.append(CommitRequest(starts[number], (), (table,), (starts[count + number],), WriteSetLevel.TABLE))
        else:
            large.append(CommitRequest(starts[number], (B + number,), (table,)))
    if "ceiling" in waits_for:
        tso.pass_time(0.4, times=30)
        tso.tick(5.0)
    asked = [(request, tso.ask(request)) for request in large]
    if waits_for == "mark":
        tso.finish(ReadTables)
        assert tso.pending(MarkUnknownTable)
    assert any(first.answer is None for _, first in asked)
    return asked


def _asked_twice(waits_for: str) -> tuple[Script, list[tuple[CommitRequest, Waiting]], list[Waiting]]:
    """First attempts that wait, and their retries over another connection."""
    tso = Script(wall_ns=1_800_000_000 * 10**9)
    tso.pass_time(0.4, times=5)
    asked = _waiting_first_tries(tso, waits_for)
    return tso, asked, [tso.ask(replace(request, is_retry=True), peer="another connection") for request, _ in asked]


def _settle_all(tso: Script) -> None:
    for _ in range(20):
        tso.settle()
        tso.tick(0.01)


def _ended_begin(tso: Script) -> int:
    begun = tso.ask_settled(Begin())
    tso.tick(0.001)
    return begun.start_ts


@pytest.mark.parametrize("waits_for", WAITS)
def test_t7_a_retry_waits_behind_its_first_try_wherever_that_waits(waits_for: str) -> None:
    tso, asked, retries = _asked_twice(waits_for)
    _settle_all(tso)
    told = [committed(first.answer) for _, first in asked]
    assert [committed(retry.answer) for retry in retries] == told


@pytest.mark.parametrize("waits_for", WAITS)
def test_t7_a_retry_whose_first_try_went_with_its_peer_waits_for_nobody(waits_for: str) -> None:
    tso, asked, retries = _asked_twice(waits_for)
    gone = [tso.ask(replace(request, is_retry=True), peer="a third one") for request, _ in asked]
    tso.done(PeerGone("peer"))
    tso.done(PeerGone("a third one"))
    _settle_all(tso)
    for (request, first), retry in zip(asked, retries, strict=True):
        assert isinstance(retry.answer, CommitReply), request
        assert retry.answer.committed or retry.answer.reason is AbortReason.RETRY_UNKNOWN
        entry = lookup(tso, request.start_ts)[0]
        assert entry == (retry.answer.commit_ts or SEALED)
        assert first.answer is None or committed(first.answer) == retry.answer.commit_ts
    assert len(gone) == len(asked)
    waiting = tso.machine.state.first_attempts
    assert not waiting._waiting
    assert not waiting._behind


def test_t7_a_retry_that_waits_for_its_turn_still_waits_behind_a_first_try_that_comes_then() -> None:
    """Over two connections, of which the first one was slow."""
    tso = Script()
    tables = [table_id(b"%d" % number) for number in range(PEER_REQUESTS_MAX + 1)]
    starts = [tso.begin() for _ in tables]
    for start_ts in starts[1:]:
        tso.ask(Seal((start_ts,)), peer="another connection")
    retry = tso.ask(CommitRequest(starts[0], (A,), (tables[0],), is_retry=True), peer="another connection")
    first = tso.ask(CommitRequest(starts[0], (A,), (tables[0],)))
    while tso.pending(SealEntries):
        tso.finish(SealEntries)
    tso.settle()
    assert committed(first.answer) == committed(retry.answer)


@pytest.mark.parametrize("horizon", [-1, -50, -(1 << 63), (1 << 63) - 1])
def test_a_horizon_that_cannot_be_reaches_no_store(horizon: int) -> None:
    tso = Script()
    asked = tso.ask(AdvanceHorizon(horizon))
    assert isinstance(asked.answer, Refused)
    assert asked.answer.code == "OMID-MISUSE"
    assert str(horizon) in asked.answer.message


# ── T8: fences ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_t8_a_fence_closes_its_batch_and_is_answered_when_it_is_released() -> None:
    tso = Script()
    table = _register(tso, "t")
    before = tso.begin()
    open_seq = tso.machine.state.windows.open_batch.seq
    fence = tso.ask(Fence(table))
    assert tso.machine.state.windows.open_batch.seq == open_seq + 1
    assert fence.answer is None
    tso.settle()
    assert isinstance(fence.answer, FenceReply)
    assert tso.begin() > fence.answer.fence_ts
    assert reason(tso.commit(before, A, table_ids=(table,))) is AbortReason.FENCE
    committed(tso.commit(tso.begin(), A, table_ids=(table,)))


def test_t8_fences_that_wait_share_a_batch() -> None:
    """Else two seconds of them make everybody wait for a minute, though their sender has left."""
    tso = Script()
    table = _register(tso, "t")
    for number in range(2):
        tso.ask(CommitRequest(tso.begin(), (A + number,), (table,)))
    waiting = []
    for number in range(100):
        waiting.append(tso.ask(Fence(table), peer=f"peer {number % 3}"))
        if number % 10 == 0:
            tso.ask(CommitRequest(tso.machine.state.newest_start, (1000 + number,)))
    assert len(tso.machine.state.windows.batches) <= 3
    assert not any(fence.answer for fence in waiting)
    flushes = tso.machine.step.counters["flushes"]
    tso.settle()
    assert tso.machine.step.counters["flushes"] <= flushes + 2
    highest = max(fence.answer.fence_ts for fence in waiting if isinstance(fence.answer, FenceReply))
    assert all(isinstance(fence.answer, FenceReply) for fence in waiting)
    assert tso.begin() > highest


def test_t8_a_batch_closes_behind_its_fences_before_it_serves() -> None:
    """A start from its window would lie below them, and abort for ever."""
    tso = Script()
    table = _register(tso, "t")
    tso.ask(CommitRequest(tso.begin(), (A,)))
    fence, begin = tso.ask(Fence(table)), None
    while fence.answer is None:
        begin = tso.ask(Begin())
        tso.finish(Flush)
    assert isinstance(fence.answer, FenceReply)
    tso.settle()
    assert begin is not None
    assert tso.begin() > fence.answer.fence_ts


def test_t8_commits_decided_before_a_fence_are_durable_when_it_is_answered() -> None:
    tso = Script()
    table = _register(tso, "t")
    for i in range(3):  # two fly, the third waits
        tso.ask(CommitRequest(tso.begin(), (A + i,), (table,)))
    fence = tso.ask(Fence(table))
    for _ in range(2):
        assert fence.answer is None
        tso.finish(Flush)
    tso.settle()
    assert isinstance(fence.answer, FenceReply)
    assert all(commit < fence.answer.fence_ts for _, commit in tso.stores.commit_table.entries())


# ── T10, T11 ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("request_of", "names"),
    [
        (lambda s: CommitRequest(s + 7, (A,)), "multiples of 50"),
        (lambda s: CommitRequest(s + 50_000_000, (A,)), "never handed out"),
        (lambda s: CommitRequest(-50, (A,)), "never handed out"),
        (lambda s: CommitRequest(s, tuple(range(1000))), "level 'row'"),
        (lambda s: CommitRequest(s, (A,), tuple(range(2000))), "several transactions"),
        (lambda s: CommitRequest(s, branches=(s,)), "branch"),
        (lambda s: CommitRequest(s, branches=(s + 50_000_000,)), "branch"),
        (lambda s: CommitRequest(s, level=WriteSetLevel.TABLE), "no table"),
        (lambda s: Seal((s + 1,)), "multiples of 50"),
        (lambda s: GrantLease(s + 50_000_000), "never handed out"),
        (lambda s: GrantLease(s, math.nan), "term of nan"),
        (lambda s: GrantLease(s, math.inf, shared=True), "term of inf"),
        (lambda s: GrantLease(s, -1.0), "term of -1"),
        (lambda s: AdvanceHorizon(s + 50), "above the published"),
    ],
)
def test_t11_bad_input_is_refused_by_name_and_nobody_else_notices(request_of: object, names: str) -> None:
    tso = Script()
    start_ts, other = tso.begin(), tso.begin()
    held = tso.ask(CommitRequest(other, (B,)))
    refused = tso.ask(request_of(start_ts))  # type: ignore[operator]
    tso.settle()
    assert isinstance(refused.refusal(), Misuse)
    assert names in str(refused.refusal())
    committed(held.answer)
    committed(tso.commit(start_ts, A))


def no_memory(*_: object) -> None:
    raise MemoryError


def test_t11_a_commit_that_is_not_remembered_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later commit of the same cells would not conflict with it: lost update."""
    tso = Script()
    start_ts = tso.begin()
    monkeypatch.setattr(tso.machine.state.oracle, "record", no_memory)
    with pytest.raises(MemoryError):
        tso.ask(CommitRequest(start_ts, (A,)))
    assert not any(batch.entries for batch in tso.machine.state.windows.batches)
    monkeypatch.undo()
    tso.pass_time(1.0)
    assert lookup(tso, start_ts) == [NOT_FOUND]


def test_t11_a_machine_is_dead_behind_an_unforeseen_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's events are lost: here the end of a write, for which all later writes would wait."""
    tso = Script()
    tso.ask(GrantLease(tso.begin()))
    written = tso.perform(UpdateLeaderState)
    monkeypatch.setattr(lease_requests, "expire", no_memory)
    tso.now_s += 0.3
    with pytest.raises(MemoryError):
        tso.done(written)
    monkeypatch.undo()
    assert tso.machine.dead
    assert tso.machine.handle([], tso.now_s) == []
    assert tso.ask(GrantLease(50)).answer is None


def test_t11_a_peer_that_is_gone_takes_only_its_own_waiting_begins_with_it() -> None:
    tso = Script()
    tso.ask(CommitRequest(tso.begin(), (A,)))
    waiting = [tso.ask(Begin(), peer=f"peer {i % 2}") for i in range(10)]
    tso.done(PeerGone("peer 1"))
    tso.settle()
    late = waiting[6:]
    assert [w.answer is None for w in late] == [i % 2 == 1 for i in range(len(late))]


# ── T12, T13: large commits ──────────────────────────────────────────────────────────────────────────────────────


def _large(tso: Script, branches: int = 2) -> tuple[int, tuple[int, ...], int]:
    table = _register(tso, "t")
    start_ts = tso.begin()
    return start_ts, tuple(tso.begin() for _ in range(branches)), table


def test_a_large_commit_is_durable_in_the_order_record_decision_branches_answer() -> None:
    tso = Script()
    start_ts, branches, table = _large(tso)
    large = tso.ask(CommitRequest(start_ts, (A,), (table,), branches))
    assert not tso.pending(PutDecision)
    tso.finish(UpdateLeaderState)
    assert tso.stores.leader_state.read().pending == (PendingCommit(start_ts, branches),)
    assert not tso.pending(PutBranches)
    tso.finish(PutDecision)
    assert large.answer is None
    tso.finish(PutBranches)
    commit_ts = committed(large.answer)
    assert lookup(tso, start_ts, *branches) == [commit_ts] * 3
    assert tso.machine.state.pending, "W is still held back"
    tso.finish(UpdateLeaderState)
    assert tso.stores.leader_state.read().pending == ()
    assert not tso.machine.state.pending


def test_no_start_above_a_large_commit_leaves_before_its_branches_are_durable() -> None:
    tso = Script()
    start_ts, branches, table = _large(tso)
    large = tso.ask(CommitRequest(start_ts, (A,), (table,), branches))
    later = tso.ask(CommitRequest(branches[1], (B,)))
    begins = [tso.ask(Begin()) for _ in range(12)]
    tso.finish(UpdateLeaderState)
    tso.finish(PutDecision)
    tso.finish(Flush)
    early = [w.start_ts for w in begins if w.answer is not None]
    assert later.answer is None
    tso.settle()
    assert early
    assert all(s < committed(large.answer) for s in early)
    committed(later.answer)


def test_t12_a_table_level_commit_goes_by_the_highest_w_ever_sent_not_by_lwm() -> None:
    tso = Script(max_transaction_age_s=16.0, lease_seconds=10_000.0)
    table = _register(tso, "t")
    job = tso.begin()
    tso.ask_settled(GrantLease(job))
    tso.machine.state.oracle.raise_low_watermark(job + 50)
    committed(tso.commit(job, table_ids=(table,), level=WriteSetLevel.TABLE))
    late = tso.begin()
    _age_past(tso, late)
    assert tso.machine.state.watermarks.sent >= late
    assert reason(tso.commit(late, table_ids=(table,), level=WriteSetLevel.TABLE)) is AbortReason.LEASE_LOST


def test_a_table_level_commit_fences_its_tables_and_dies_with_the_tso() -> None:
    tso = Script()
    table = _register(tso, "t")
    job, other, old_job = tso.begin(), tso.begin(), tso.begin()
    committed(tso.commit(job, table_ids=(table,), level=WriteSetLevel.TABLE))
    assert reason(tso.commit(other, A, table_ids=(table,))) is AbortReason.FENCE
    after = Script(tso.stores)
    assert reason(after.commit(old_job, table_ids=(table,), level=WriteSetLevel.TABLE)) is AbortReason.TABLE


def test_a_large_commit_whose_start_was_sealed_in_time_is_aborted_and_leaves_nothing() -> None:
    tso = Script()
    start_ts, branches, table = _large(tso)
    large = tso.ask(CommitRequest(start_ts, (A,), (table,), branches))
    tso.finish(UpdateLeaderState)
    tso.stores.commit_table.seal(start_ts)  # a Java fence() or a low-latency reader, past the TSO
    tso.settle()
    assert reason(large.answer) is AbortReason.SEALED
    assert lookup(tso, *branches) == [NOT_FOUND, NOT_FOUND]
    assert tso.stores.leader_state.read().pending == ()


def test_t13_entries_of_branches_replace_a_seal() -> None:
    tso = Script()
    start_ts, branches, table = _large(tso)
    tso.stores.commit_table.seal(branches[0])
    commit_ts = committed(tso.commit(start_ts, A, table_ids=(table,), branches=branches))
    assert lookup(tso, start_ts, *branches) == [commit_ts] * 3


def test_a_retried_large_commit_with_other_branches_is_refused_never_matched() -> None:
    tso = Script()
    start_ts, branches, table = _large(tso, 3)
    first = tso.ask(CommitRequest(start_ts, (A,), (table,), branches))
    other = tso.ask(CommitRequest(start_ts, (A,), (table,), branches[:2], is_retry=True))
    assert isinstance(other.refusal(), Misuse)
    tso.settle()
    committed(first.answer)
    later = tso.ask_settled(CommitRequest(start_ts, (A,), (table,), branches[:2], is_retry=True))
    assert isinstance(later.refusal(), Misuse)
    same = tso.ask_settled(CommitRequest(start_ts, (A,), (table,), branches, is_retry=True))
    assert committed(same.answer) == committed(first.answer)


# ── seals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_seal_is_answered_after_the_batch_that_may_hold_its_start() -> None:
    tso = Script()
    inside, outside = tso.begin(), tso.begin()
    held = tso.ask(CommitRequest(inside, (A,)))
    seal = tso.ask(Seal((inside, outside)))
    assert not tso.pending(SealEntries)
    tso.settle()
    assert isinstance(seal.answer, SealReply)
    assert seal.answer.outcomes == (SealOutcome(False, committed(held.answer)), SealOutcome(True))
    assert reason(tso.commit(outside, B)) is AbortReason.SEALED


def test_a_start_is_refused_from_the_moment_its_seal_is_asked_for() -> None:
    tso = Script()
    start_ts = tso.begin()
    seal = tso.ask(Seal((start_ts,)))
    commit = tso.ask(CommitRequest(start_ts, (A,)))
    tso.settle()
    assert reason(commit.answer) is AbortReason.SEALED
    assert isinstance(seal.answer, SealReply)
    assert seal.answer.outcomes == (SealOutcome(True),)


def test_a_commit_that_a_mark_refuses_is_aborted_and_the_rest_of_its_batch_stands() -> None:
    tso = Script(flushes_in_flight_max=1)
    held = tso.ask(CommitRequest(tso.begin(), (C,)))
    sealed, fine = tso.begin(), tso.begin()
    refused, stands = tso.ask(CommitRequest(sealed, (A,))), tso.ask(CommitRequest(fine, (B,)))
    tso.stores.commit_table.seal(sealed)
    tso.settle()
    committed(held.answer)
    assert reason(refused.answer) is AbortReason.SEALED
    committed(stands.answer)


def test_a_flush_goes_beside_another_one_only_if_it_is_about_as_large_and_at_once_where_there_is_none() -> None:
    tso = Script(flushes_in_flight_max=2)
    starts = [tso.begin() for _ in range(12)]

    def sizes() -> list[int]:
        return [len(call.operation.entries) for call in tso.pending(Flush) if isinstance(call.operation, Flush)]

    asked = [tso.ask(CommitRequest(start_ts, (cell,))) for cell, start_ts in enumerate(starts[:7])]
    assert sizes() == [1, 1], "both flights are under way, five commits gather"
    tso.finish(Flush)
    assert sizes() == [1, 5]
    tso.finish(Flush)
    assert sizes() == [5]
    asked += [tso.ask(CommitRequest(start_ts, (start_ts,))) for start_ts in starts[7:9]]
    assert sizes() == [5], "two are few beside five"
    asked.append(tso.ask(CommitRequest(starts[9], (starts[9],))))
    assert sizes() == [5, 3]
    tso.finish(Flush)
    asked.append(tso.ask(CommitRequest(starts[10], (starts[10],))))
    assert sizes() == [3], "one is few beside three"
    tso.finish(Flush)
    assert sizes() == [1], "and waits for nobody else"
    tso.finish(Flush)
    for each in asked:
        committed(each.answer)


# ── leases, W, H ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_is_answered_when_its_row_is_durable_and_holds_w_back_from_its_first_moment() -> None:
    tso = Script(max_transaction_age_s=16.0, lease_seconds=1000.0)
    start_ts = tso.begin()
    lease = tso.ask(GrantLease(start_ts))
    tso.tick(100.0)
    assert lease.answer is None
    assert tso.machine.state.watermarks.sent < start_ts
    tso.settle()
    assert lease.answer == LeaseReply(start_ts, 1000.0)
    assert start_ts in tso.stores.leader_state.read().leases


def test_law_9_an_expired_lease_holds_w_back_until_its_row_is_gone() -> None:
    tso = Script(max_transaction_age_s=16.0, lease_seconds=20.0)
    start_ts = tso.begin()
    tso.ask_settled(GrantLease(start_ts))
    tso.pass_time(19.0)
    for _ in range(3):
        tso.tick(10.0)
        assert tso.machine.state.watermarks.sent < start_ts
    assert isinstance(tso.ask(RenewLease(start_ts)).refusal(), SnapshotTooOld)
    tso.settle()
    assert start_ts not in tso.stores.leader_state.read().leases
    tso.pass_time(2.0)
    assert tso.stores.leader_state.read().watermark >= start_ts


def test_a_renewed_lease_lives_on_and_an_ended_one_is_gone_durably() -> None:
    tso = Script(lease_seconds=20.0)
    start_ts = tso.begin()
    tso.ask_settled(GrantLease(start_ts))
    for _ in range(5):
        tso.pass_time(15.0)
        assert isinstance(tso.ask(RenewLease(start_ts)).answer, LeaseReply)
    tso.ask_settled(EndLease(start_ts))
    assert tso.stores.leader_state.read().leases == frozenset()
    assert isinstance(tso.ask(RenewLease(start_ts)).refusal(), SnapshotTooOld)


def test_a_new_tso_grants_each_surviving_lease_a_full_term_and_discards_those_at_or_below_w() -> None:
    stores = memory_stores(LeaderRecord(epoch=50, ceiling=2000, watermark=300, leases=frozenset((200, 300, 500, 900))))
    tso = Script(stores, lease_seconds=20.0)
    assert stores.leader_state.read().leases == {500, 900}
    assert stores.leader_state.read().watermark == 499
    assert tso.machine.state.watermarks.published == 499
    tso.pass_time(19.0)
    assert tso.machine.state.leases.starts == (500, 900)
    tso.pass_time(2.0)
    assert tso.machine.state.leases.starts == ()


def test_t15_the_last_commit_of_a_quiet_store_falls_below_w_by_age() -> None:
    tso = Script(max_transaction_age_s=16.0)
    commit_ts = committed(tso.commit(tso.begin(), A))
    tso.pass_time(1.0, times=60)
    assert tso.stores.leader_state.read().watermark >= commit_ts
    issued = tso.machine.state.clock.last_issued
    tso.pass_time(1.0, times=60)
    assert tso.machine.state.clock.last_issued == issued, "a store that nobody uses draws nothing more"


def test_t15_a_lease_keeps_its_start_committable_at_cell_level_against_age() -> None:
    tso = Script(max_transaction_age_s=16.0, lease_seconds=10_000.0)
    older, job = tso.begin(), tso.begin()
    tso.ask_settled(GrantLease(job))
    for _ in range(60):
        committed(tso.commit(tso.begin(), A))
        tso.pass_time(1.0)
    assert reason(tso.commit(older, B)) is AbortReason.LOW_WATERMARK
    committed(tso.commit(job, C))


def test_law_7_h_is_durable_before_entries_below_it_go_and_never_passes_w() -> None:
    tso = Script(max_transaction_age_s=16.0)
    start_ts = tso.begin()
    committed(tso.commit(start_ts, A))
    _age_past(tso, start_ts)
    horizon = tso.ask(AdvanceHorizon(tso.machine.state.watermarks.published))
    assert not tso.pending(DeleteBelow)
    tso.finish(UpdateLeaderState)
    assert tso.stores.leader_state.read().horizon == tso.machine.state.watermarks.published
    assert lookup(tso, start_ts) != [NOT_FOUND]
    tso.finish(DeleteBelow)
    assert horizon.answer == HorizonReply(1)
    assert lookup(tso, start_ts) == [NOT_FOUND]


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flush_that_fails_is_repeated_until_it_works() -> None:
    tso = Script()
    commit = tso.ask(CommitRequest(tso.begin(), (A,)))
    for _ in range(3):
        tso.fail(Flush, StoreFull("no room"))
        [again] = tso.pending(Flush)
        assert again.delay_s > 0
    tso.settle()
    committed(commit.answer)


def test_a_store_that_fails_for_too_long_ends_the_process_without_an_answer() -> None:
    tso = Script(store_retry_s=10.0)
    commit = tso.ask(CommitRequest(tso.begin(), (A,)))
    tso.fail(Flush, StoreFull("no room"))
    tso.tick(11.0)
    tso.fail(Flush, StoreFull("no room"))
    assert "no room" in tso.died
    assert commit.answer is None


def test_a_look_up_that_fails_for_too_long_refuses_its_request_and_nothing_else() -> None:
    tso = Script(store_retry_s=10.0)
    start_ts = tso.begin()
    seal = tso.ask(Seal((start_ts,)))
    tso.fail(SealEntries, Unavailable("away"))
    tso.tick(11.0)
    tso.fail(SealEntries, Unavailable("away"))
    assert isinstance(seal.refusal(), Unavailable)
    committed(tso.commit(tso.begin(), A))


def test_status_says_what_a_person_would_ask() -> None:
    tso = Script()
    start_ts = tso.begin()
    tso.ask_settled(GrantLease(start_ts))
    tso.ask(CommitRequest(tso.begin(), (A,)))
    status = tso.ask(AskStatus()).answer
    assert isinstance(status, Status)
    assert status.leases == (start_ts,)
    assert status.in_flight == 1
    assert status.epoch == tso.machine.epoch


def _register(tso: Script, name: str) -> int:
    put_entry(tso.stores.catalog, TableInfo(name, (b"f",)))
    tso.pass_time(tso.settings.tables_interval_s + 1)
    return table_id(name.encode())


def _age_past(tso: Script, start_ts: int) -> None:
    """Until W, durably, has passed `start_ts` by age."""
    while tso.stores.leader_state.read().watermark < start_ts + 50:
        tso.pass_time(1.0)


def test_a_large_commit_whose_store_fails_for_too_long_ends_the_process_without_an_answer() -> None:
    tso = Script(store_retry_s=10.0)
    start_ts, branches, table = _large(tso)
    large = tso.ask(CommitRequest(start_ts, (A,), (table,), branches))
    tso.finish(UpdateLeaderState)
    tso.fail(PutDecision, Unavailable("away"))
    tso.tick(11.0)
    tso.fail(PutDecision, Unavailable("away"))
    assert "away" in tso.died
    assert large.answer is None


def test_k7_a_second_grant_never_shortens_a_lease() -> None:
    """The first holder waits a third of the term it was told: a shorter one would end under it."""
    tso = Script(max_transaction_age_s=16.0)
    start_ts = tso.begin()
    assert tso.ask_settled(GrantLease(start_ts, 300.0)).answer == LeaseReply(start_ts, 300.0)
    assert tso.ask_settled(GrantLease(start_ts, 1.0)).answer == LeaseReply(start_ts, 300.0)
    tso.tick(99.0)
    assert start_ts in tso.machine.state.leases
    assert tso.ask_settled(RenewLease(start_ts)).answer == LeaseReply(start_ts, 300.0)
    tso.tick(299.0)
    assert start_ts in tso.machine.state.leases
    tso.pass_time(2.0)
    assert start_ts not in tso.machine.state.leases
