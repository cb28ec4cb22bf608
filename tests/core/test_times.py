"""Timestamps are times (T3, T17, T18): the TSO's clock beside a wall clock that jumps, and what clients compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_script import Script, Waiting, committed

from conformance import put_entry
from pyomid.coroutines import Pause
from pyomid.database import open_database
from pyomid.errors import Misuse, SnapshotTooOld
from pyomid.omid.oracle.instructions import UpdateLeaderState
from pyomid.omid.tso import store_calls
from pyomid.omid.wire.messages import AskStatus, Begin, GrantLease, LeaseReply, ReportOpenStarts, Seal
from pyomid.protocol import effects, timestamps
from pyomid.protocol.commit import abort_error
from pyomid.protocol.timestamps import NS_PER_S, clock_trouble, dated, iso, ns_of, snapshot_at, time_of
from pyomid.protocol.wall_clock import WallClock, check_clock
from pyomid.types import (
    FIRST_TIME,
    TIMESTAMP_STEP,
    BeginReply,
    CommitReply,
    CommitRequest,
    LeaderRecord,
    TableInfo,
    WriteSetLevel,
)

NOW_NS = 1_800_000_000 * NS_PER_S
HOUR_S, YEAR_S = 3_600, 365 * 86_400
AHEAD_NS = 20_000
"""How far a commit may be ahead of the wall clock: the starts reserved for its batch, and the commits before it."""


def test_a_start_and_a_commit_are_dated_by_the_wall_clock() -> None:
    tso = Script(wall_ns=NOW_NS)
    for seconds in (0.5, 2.0, 30.0, 4_000.0):
        tso.pass_time(0.4, times=int(seconds / 0.4) + 1)
        waiting = tso.ask(Begin())
        tso.settle()
        start_ts = waiting.start_ts
        assert tso.wall_ns - 1_000_000 <= start_ts <= tso.wall_ns + AHEAD_NS
        tso.tick(0.3)
        assert abs(committed(tso.commit(start_ts, 1)) - tso.wall_ns) <= AHEAD_NS


def test_a_quiet_tso_writes_no_ceiling_and_the_next_request_waits_for_one() -> None:
    """A start that is handed out without would be as old as the ceiling, and so would the next commit."""
    tso = Script(wall_ns=NOW_NS)
    committed(tso.commit(tso.begin(), 1))
    tso.pass_time(1.0, times=20)
    ceiling = tso.stores.leader_state.read().ceiling
    tso.pass_time(1.0, times=100)
    assert tso.stores.leader_state.read().ceiling == ceiling < tso.wall_ns
    waiting = tso.ask(Begin())
    assert waiting.answer is None
    tso.settle()
    assert waiting.start_ts >= tso.wall_ns - 1_000_000


def test_begins_go_on_while_the_store_is_slow_to_move_the_ceiling() -> None:
    tso = Script(wall_ns=NOW_NS)
    starts = []
    for _ in range(40):
        starts.append(tso.begin())
        tso.tick(0.25)
        if len(tso.pending(UpdateLeaderState)) == 0:
            tso.settle()
    assert tso.pending(UpdateLeaderState)
    assert starts == sorted(set(starts))
    tso.settle()
    tso.tick(0.1)
    assert tso.begin() >= tso.wall_ns - 1_000_000


def test_a_store_that_is_slower_than_a_ceiling_lasts_holds_up_no_request_for_ever() -> None:
    """Each ceiling lies below the wall clock when it is durable."""
    tso = Script(wall_ns=NOW_NS)
    tso.pass_time(0.9, times=10)
    asked = [tso.ask(Begin()) for _ in range(3)]
    commit: object = None
    for _ in range(20):
        tso.tick(0.9)
        tso.tick(0.9)
        for call in list(tso.calls):  # and none of those that follow
            tso.done(tso.perform(type(call.operation)))
        if commit is None and asked[0].answer is not None:
            commit = tso.ask(CommitRequest(asked[0].start_ts, (1,)))
    assert [each.start_ts for each in asked] == sorted({each.start_ts for each in asked})
    assert commit is not None
    assert committed(commit.answer) > asked[-1].start_ts  # type: ignore[attr-defined]


@pytest.mark.parametrize("window_starts", [4, 4096, 6_000_000])
def test_a_large_commit_is_decided_however_slowly_the_ceiling_moves(window_starts: int) -> None:
    """And whatever the settings are, the ceiling is at most about a second ahead of the clock."""
    tso = Script(wall_ns=NOW_NS, window_starts=window_starts)
    tso.pass_time(0.4, times=5)
    start_ts, branch = (tso.ask_settled(Begin()).start_ts for _ in range(2))
    tso.pass_time(0.4, times=10)
    large = tso.ask(CommitRequest(start_ts, (), (5,), (branch,), WriteSetLevel.TABLE))
    for _ in range(20):
        tso.tick(1.8)
        for call in list(tso.calls):  # and none of those that follow
            tso.done(tso.perform(type(call.operation)))
        assert tso.stores.leader_state.read().ceiling <= tso.wall_ns + 1.1 * NS_PER_S
    committed(large.answer)


@pytest.mark.parametrize("seconds", [0.3, 1.3, 2.9])
def test_t18_while_the_ceiling_moves_slowly_a_commit_is_dated_no_earlier_than_the_move_began(seconds: float) -> None:
    """So what was acknowledged before a moment lies below it, and a commit's date is wrong by no more than the move
    takes."""
    tso = Script(wall_ns=NOW_NS)
    tso.pass_time(0.4, times=5)
    dated_early = False
    began: int | None = None
    waiting: list[tuple[Waiting, int]] = []
    for step in range(int(12 / 0.1)):
        tso.tick(0.1)
        for call in [each for each in tso.calls if not isinstance(each.operation, UpdateLeaderState)]:
            tso.done(tso.perform(type(call.operation)))
        moves = bool(tso.pending(UpdateLeaderState))
        began = (began or tso.wall_ns) if moves else None
        if began is not None and tso.wall_ns >= began + seconds * NS_PER_S:
            tso.settle()
        start = tso.ask(Begin())
        if start.answer is not None:
            waiting.append((tso.ask(CommitRequest(start.start_ts, (step,), (1,))), began or tso.wall_ns))
        for commit, least in waiting:
            if commit.answer is not None:
                assert committed(commit.answer) >= least - AHEAD_NS
                assert committed(commit.answer) <= tso.wall_ns + AHEAD_NS, "what is acknowledged lies in the past"
                dated_early |= committed(commit.answer) < tso.wall_ns - 0.3 * NS_PER_S
        waiting = [each for each in waiting if each[0].answer is None]
    assert dated_early == (seconds > 0.5), "begins and commits go on"


def test_t7_a_retry_waits_behind_its_first_try_that_waits_for_the_ceiling() -> None:
    """As after a pause of the TSO: both are there when it goes on, and the ceiling is behind the wall clock."""
    tso = Script(wall_ns=NOW_NS)
    tso.pass_time(0.4, times=3)
    start_ts = tso.begin()
    tso.pass_time(0.4, times=30)
    tso.tick(5.0)
    first = tso.ask(CommitRequest(start_ts, (1,)))
    retry = tso.ask(CommitRequest(start_ts, (1,), is_retry=True), peer="another connection")
    assert first.answer is None
    tso.settle()
    assert committed(first.answer) == committed(retry.answer)


def test_windows_are_made_of_time_that_has_passed() -> None:
    """Batches that open faster than their windows would last do not run ahead of the wall clock."""
    tso = Script(wall_ns=NOW_NS, window_starts=4096)
    for _ in range(2_000):
        tso.tick(20e-6)
        start_ts = tso.begin()
        assert committed(tso.commit(start_ts, 1)) <= tso.wall_ns + AHEAD_NS


def test_t3_a_clock_set_back_makes_timestamps_stand_still_as_times() -> None:
    tso = Script(wall_ns=NOW_NS)
    before = committed(tso.commit(tso.begin(), 1))
    tso.wall_ns -= HOUR_S * NS_PER_S
    tso.pass_time(0.5, times=10)
    stands = committed(tso.commit(tso.begin(), 1))
    assert before < stands < before + NS_PER_S
    found = tso.machine.clock_trouble()
    assert 3_590_000 < found["timestamps_ahead_ms"] < 3_600_000
    assert "0:59:5" in clock_trouble(found, stands)
    tso.pass_time(0.9, times=4_100)
    assert not tso.machine.clock_trouble()
    waiting = tso.ask(Begin())
    tso.settle()
    assert waiting.start_ts >= tso.wall_ns - 1_000_000


@pytest.mark.parametrize(("seconds", "is_followed"), [(HOUR_S, True), (23 * HOUR_S, True), (10 * YEAR_S, False)])
def test_t3_a_clock_set_forward_is_followed_up_to_a_day(seconds: int, is_followed: bool) -> None:
    tso = Script(wall_ns=NOW_NS)
    tso.wall_ns += seconds * NS_PER_S
    tso.pass_time(0.5, times=4)
    waiting = tso.ask(Begin())
    tso.settle()
    assert (waiting.start_ts >= tso.wall_ns - 1_000_000) is is_followed
    refused_ms = tso.machine.clock_trouble().get("clock_refused_ms", 0)
    assert (refused_ms == 0) is is_followed
    if not is_followed:
        assert "3650 days" in clock_trouble(tso.machine.clock_trouble(), 0)
        assert tso.machine.status().counters["clock_refused_ms"] == refused_ms
        assert waiting.start_ts < NOW_NS + 10 * NS_PER_S
        tso.wall_ns -= seconds * NS_PER_S  # corrected
        tso.pass_time(0.5)
        assert not tso.machine.clock_trouble()


def test_a_paused_machine_wakes_up_in_the_present() -> None:
    """Its monotonic clock counts suspension, so that is no jump."""
    tso = Script(wall_ns=NOW_NS)
    tso.stall(30.0 * 86_400)
    tso.settle()
    waiting = tso.ask(Begin())
    tso.settle()
    assert waiting.start_ts >= tso.wall_ns - 1_000_000


def test_t3_a_failover_to_a_machine_whose_clock_is_behind_repeats_no_timestamp() -> None:
    one = Script(wall_ns=NOW_NS)
    before = committed(one.commit(one.begin(), 1))
    two = Script(one.stores, wall_ns=NOW_NS - 10 * HOUR_S * NS_PER_S)
    start_ts = two.begin()
    assert start_ts > one.machine.state.clock.ceiling - TIMESTAMP_STEP > before
    assert start_ts < before + 4 * NS_PER_S, "and it runs ahead by no more than a ceiling"
    assert two.machine.clock_trouble()


def test_after_a_crash_timestamps_are_ahead_for_less_than_a_lease() -> None:
    one = Script(wall_ns=NOW_NS)
    one.begin()
    two = Script(one.stores, wall_ns=one.wall_ns)
    assert two.begin() <= one.wall_ns + 3 * NS_PER_S + AHEAD_NS
    assert not two.machine.clock_trouble(), "not worth a warning"


@pytest.mark.parametrize(("ahead_s", "waited_s"), [(-1.0, 0.0), (0.0, 0.0), (0.75, 0.75), (9.5, 9.5), (3_600.0, 0.0)])
def test_t18_a_new_tso_waits_for_its_clock_unless_that_is_wrong(
    ahead_s: float, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(
        time_ns=lambda: NOW_NS + int(sum(slept) * NS_PER_S), monotonic=lambda: sum(slept), sleep=slept.append
    )
    monkeypatch.setattr(store_calls, "time", clock)
    store_calls.wait_for_clock(NOW_NS + int(ahead_s * NS_PER_S))
    assert sum(slept) == pytest.approx(waited_s, abs=0.001)


def test_after_incremental_timestamps_the_clock_jumps_to_now() -> None:
    """Apache Omid's TSO counts up from 0; its timestamps go on from our ceiling after us."""
    one = Script(LeaderRecord_stores(ceiling=40_000, epoch=20_000), wall_ns=NOW_NS)
    assert one.begin() >= NOW_NS
    two = Script(one.stores, wall_ns=NOW_NS + 40 * HOUR_S * NS_PER_S)
    assert two.begin() >= two.wall_ns


def LeaderRecord_stores(**fields: int):  # type: ignore[no-untyped-def]
    from machine_script import memory_stores

    return memory_stores(LeaderRecord(**fields))


# ── T17, T18 ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_t17_w_stays_as_old_as_the_retention_and_lwm_does_not() -> None:
    tso = Script(wall_ns=NOW_NS, retention_s=60.0, max_transaction_age_s=5.0)
    assert tso.machine.state.retention_s == tso.stores.leader_state.read().retention_ms / 1000 == 60.0
    for _ in range(100):
        start_ts = tso.ask_settled(Begin()).start_ts
        committed(tso.commit(start_ts, 1))
        tso.pass_time(0.5, times=2)
    assert NOW_NS + 35 * NS_PER_S < tso.stores.leader_state.read().watermark <= tso.wall_ns - 60 * NS_PER_S
    assert tso.machine.state.oracle.low_watermark > tso.wall_ns - 10 * NS_PER_S
    again = Script(tso.stores, wall_ns=tso.wall_ns)
    assert again.stores.leader_state.read().watermark <= again.wall_ns - 60 * NS_PER_S
    assert again.machine.state.retention_s == 60.0, "remembered"


def test_a_clock_set_back_or_forward_ends_no_more_history_than_it_says() -> None:
    tso = Script(wall_ns=NOW_NS, retention_s=7_200.0)
    tso.pass_time(0.9, times=60)
    for jump_s in (-HOUR_S, 2 * HOUR_S, 10 * YEAR_S):
        tso.wall_ns += jump_s * NS_PER_S
        for _ in range(10):
            tso.ask_settled(Begin())
            tso.pass_time(0.9)
        assert tso.stores.leader_state.read().watermark <= NOW_NS + (2 * HOUR_S - 7_200 + 200) * NS_PER_S


def committing(tso: Script, seconds: float) -> int:
    """Commit, then let so much time go by. Return the commit."""
    commit_ts = committed(tso.commit(tso.ask_settled(Begin()).start_ts, 1))
    tso.pass_time(0.9, times=int(seconds / 0.9) + 1)
    return commit_ts


def test_t17_lwm_rises_past_a_lease_on_history() -> None:
    tso = Script(wall_ns=NOW_NS, retention_s=HOUR_S, max_transaction_age_s=60.0)
    first = committing(tso, 500)
    leased = tso.ask_settled(GrantLease(first - first % 50 + 50, 10_000.0))
    assert isinstance(leased.answer, LeaseReply)
    second = committing(tso, 500)
    assert tso.machine.report().low_watermark > second
    assert tso.machine.report().watermark < first


def test_t17_a_lease_on_history_that_is_gone_is_refused() -> None:
    tso = Script(wall_ns=NOW_NS, retention_s=HOUR_S, max_transaction_age_s=60.0)
    first = committing(tso, 2 * HOUR_S)
    committing(tso, 10)
    assert isinstance(tso.ask_settled(GrantLease(first - first % 50)).refusal(), SnapshotTooOld)


def test_t17_a_new_tso_keeps_the_history_it_finds() -> None:
    """Also one without the option, and one whose clock is behind."""
    tso = Script(wall_ns=NOW_NS, retention_s=HOUR_S, max_transaction_age_s=60.0)
    first = committing(tso, 1_800)
    second = committing(tso, 100)
    for behind_s in (1_000, 0):
        following = Script(tso.stores, retention_s=None, wall_ns=tso.wall_ns - behind_s * NS_PER_S)
        assert following.machine.report().retention_s == HOUR_S
        assert following.machine.report().watermark < first
    following.pass_time(1_710)
    assert first < following.machine.report().watermark < second


def test_t17_retention_is_turned_off_by_zero_alone() -> None:
    tso = Script(wall_ns=NOW_NS, retention_s=HOUR_S, max_transaction_age_s=60.0)
    first = committing(tso, 100)
    assert Script(tso.stores, retention_s=0.0, wall_ns=tso.wall_ns).machine.report().watermark > first
    assert Script(tso.stores, wall_ns=tso.wall_ns).machine.report().retention_s == 0


def test_starts_that_were_sealed_are_forgotten_though_history_is_kept() -> None:
    """What cannot commit any more needs no memory: a week of seals would be refused."""
    tso = Script(wall_ns=NOW_NS, retention_s=HOUR_S, max_transaction_age_s=60.0, refused_starts_max=3)
    for _ in range(4):
        starts = tuple(tso.ask_settled(Begin()).start_ts for _ in range(2))
        asked = tso.ask_settled(Seal(starts))
        assert not hasattr(asked.answer, "as_error"), asked.answer
        committing(tso, 200)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_t18_the_snapshot_of_a_time_has_all_that_was_acknowledged_by_then(data: st.DataObject) -> None:
    """Beside clocks that jump, batches in flight and takeovers: a reader on the TSO's machine asks for a time that its
    clock shows. And timestamps are unique and ascend (I7)."""
    tso = Script(wall_ns=NOW_NS, window_starts=data.draw(st.sampled_from([1, 4, 4096])))
    acknowledged: list[tuple[int, int]] = []
    drawn: list[int] = [0]
    for _ in range(data.draw(st.integers(5, 25))):
        match data.draw(st.sampled_from(["commit", "commit", "pass", "jump", "takeover", "read", "read"])):
            case "commit":
                start_ts = tso.ask_settled(Begin()).start_ts
                commit_ts = committed(tso.commit(start_ts, data.draw(st.integers(0, 3))))
                assert drawn[-1] < start_ts < commit_ts
                drawn += [start_ts, commit_ts]
                tso.wall_ns += AHEAD_NS  # until the reply has arrived
                if commit_ts < tso.wall_ns:  # otherwise the clock was set back, and shows some times twice
                    acknowledged.append((tso.wall_ns, commit_ts))
            case "pass":
                tso.pass_time(data.draw(st.sampled_from([1e-6, 1e-3, 0.1, 0.9])), data.draw(st.sampled_from([1, 9])))
            case "jump":
                tso.wall_ns += int(data.draw(st.sampled_from([-1e-3, 1e-3, 1, -60, HOUR_S, -HOUR_S])) * NS_PER_S)
                acknowledged.clear()
                tso.pass_time(0.001)
            case "takeover":
                tso = Script(tso.stores, wall_ns=tso.wall_ns + 1_000, window_starts=tso.settings.window_starts)
                if tso.machine.epoch < tso.wall_ns + 10 * NS_PER_S:  # `wait_for_clock`
                    tso.wall_ns = max(tso.wall_ns, tso.machine.epoch)
                    tso.tick(0.0)
            case "read" if acknowledged:
                at_ns, _ = data.draw(st.sampled_from(acknowledged))
                newest = tso.ask_settled(Begin()).start_ts
                for asked_ns in (at_ns, tso.wall_ns, tso.wall_ns + NS_PER_S):
                    with _clock_shows(tso.wall_ns):
                        try:
                            snapshot_ts = open_database.past_snapshot(time_of(asked_ns), newest)
                        except Misuse:  # not for now, and not without a reason
                            assert asked_ns == at_ns < tso.wall_ns - 3 * NS_PER_S
                            assert newest > tso.wall_ns + 3 * NS_PER_S
                            continue
                    for acknowledged_ns, commit_ts in acknowledged:
                        assert commit_ts < snapshot_ts or acknowledged_ns > asked_ns


@contextmanager
def _clock_shows(wall_ns: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_database.time, "time_ns", lambda: wall_ns)
        yield


def test_t18_a_reader_whose_clock_is_late_misses_nothing_of_now() -> None:
    """What it calls now is an hour ago for the TSO."""
    newest, now = NOW_NS + 12_300, time_of(NOW_NS - HOUR_S * NS_PER_S)
    with _clock_shows(NOW_NS - HOUR_S * NS_PER_S):
        assert open_database.past_snapshot(now, newest) == newest
        assert open_database.past_snapshot(now + timedelta(days=1), newest) == newest, "the future is now"
        with pytest.raises(Misuse, match=r"3600 s ahead of this machine's clock.*or give a version"):
            open_database.past_snapshot(now - timedelta(minutes=1), newest)
    with _clock_shows(NOW_NS - 2 * NS_PER_S):
        a_minute_ago = NOW_NS - 62 * NS_PER_S
        by_ours = open_database.past_snapshot(time_of(a_minute_ago), newest)
        assert by_ours == snapshot_at(a_minute_ago + 2 * NS_PER_S + 12_300 + open_database.LATE_UNSURE_NS)
    with _clock_shows(NOW_NS - 1_000_000):
        assert open_database.past_snapshot(time_of(NOW_NS - 2_000_000), NOW_NS) == NOW_NS, "all of what it calls now"
        by_ours = open_database.past_snapshot(time_of(a_minute_ago), NOW_NS)
        assert by_ours == snapshot_at(a_minute_ago + 2_000_000)


def test_t18_a_start_that_is_older_than_a_time_that_has_passed_does_not_answer_for_it() -> None:
    """As a begin during a flush: a commit between the two may still come, and a later reader of that time sees it."""
    at = time_of(NOW_NS)
    steps = open_database.begin_past(at)
    with _clock_shows(NOW_NS + 1_000_000):
        for start_ts in (NOW_NS - 5_000_000, NOW_NS - 100):
            assert isinstance(steps.send(None), effects.Begin)
            assert isinstance(steps.send(BeginReply(start_ts)), effects.Reach)
            assert isinstance(steps.send(False), Pause), "a TSO cannot draw one at will"
        assert isinstance(steps.send(None), effects.Begin)
        with pytest.raises(StopIteration) as ended:
            steps.send(BeginReply(NOW_NS + 5_000))
    assert ended.value.value.start_ts == NOW_NS + 5_000


def test_people_see_the_time_of_a_start_that_holds_w_back_and_of_one_that_lost() -> None:
    tso = Script(wall_ns=NOW_NS)
    tso.ask(ReportOpenStarts(b"a", 1, start_ts := tso.begin(), "process 7 on host"))
    other = tso.ask_settled(Begin()).start_ts
    committed(tso.commit(other, 1))
    tso.pass_time(0.4, times=20)
    told = tso.machine.status().held_back_by
    assert told.startswith(f"process 7 on host: start {start_ts} ({iso(start_ts)}) or a later one, for ")
    lost = tso.commit(start_ts, 1)
    assert isinstance(lost, CommitReply)
    assert str(abort_error(lost)).startswith(f"transaction {dated(start_ts)} aborted: ")


@pytest.mark.parametrize("at", [NOW_NS + HOUR_S * NS_PER_S, NOW_NS + 2_000_000])
def test_a_time_in_the_future_is_now_without_waiting(at: int) -> None:
    steps = open_database.begin_past(time_of(at))
    with _clock_shows(NOW_NS):
        steps.send(None)
        with pytest.raises(StopIteration):
            steps.send(BeginReply(NOW_NS - 5_000_000))


def test_a_time_before_all_timestamps_is_too_old_not_a_fault_of_the_start() -> None:
    with _clock_shows(NOW_NS):
        assert open_database.past_snapshot(datetime(1960, 1, 1, tzinfo=UTC), NOW_NS) == TIMESTAMP_STEP


def test_a_past_snapshot_can_be_leased_at_any_timestamp_that_has_passed() -> None:
    tso = Script(wall_ns=NOW_NS, retention_s=3_600.0)
    tso.ask_settled(Begin())
    tso.pass_time(0.9, times=10)
    newest = tso.ask_settled(Begin()).start_ts
    for at_ns in (NOW_NS + 3 * NS_PER_S, NOW_NS + 4 * NS_PER_S + 1_000):
        assert snapshot_at(at_ns) <= newest
        leased = tso.ask_settled(GrantLease(snapshot_at(at_ns), 10.0, shared=True))
        assert leased.answer is not None
        assert "Refused" not in repr(leased.answer)


# ── clocks that are not believed ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wall_ns", [1, 12 * NS_PER_S, FIRST_TIME - 1, (1 << 63) - 1, 7_300_000_000 * NS_PER_S])
def test_a_clock_that_shows_no_date_of_today_is_refused_at_the_first_start(wall_ns: int) -> None:
    with pytest.raises(Misuse, match=r"clock shows .*set the clock"):
        Script(wall_ns=wall_ns)


def test_a_clock_years_ahead_of_the_last_use_is_refused_until_somebody_confirms_it() -> None:
    one = Script(wall_ns=NOW_NS)
    later_ns = NOW_NS + 9 * YEAR_S * NS_PER_S
    with pytest.raises(Misuse, match=r"2036-.*3284 days after the database was last used \(2027-.*acceptClock=true"):
        Script(one.stores, wall_ns=later_ns)
    assert one.stores.leader_state.read().epoch == one.machine.epoch, "nothing has changed"
    assert Script(one.stores, wall_ns=later_ns, accept_clock=True).begin() >= later_ns
    Script(one.stores, wall_ns=later_ns + NS_PER_S)


@pytest.mark.parametrize("last_ts", [0, 1_000_000])
def test_a_clock_years_ahead_at_the_first_start_is_refused_until_somebody_confirms_it(last_ts: int) -> None:
    """Then it is compared with the age of the program. Values would not expire for years once it is corrected."""
    ahead_ns = NOW_NS + 10 * YEAR_S * NS_PER_S
    with pytest.raises(Misuse, match=r"clock shows 2037-.* days after this version .* made.*acceptClock=true"):
        check_clock(ahead_ns, last_ts, accept=False)
    with pytest.raises(Misuse, match="acceptClock=true"):
        Script(wall_ns=ahead_ns)
    assert Script(wall_ns=ahead_ns, accept_clock=True).begin() >= ahead_ns


def test_a_database_that_was_used_a_year_ago_is_opened_without_a_question() -> None:
    one = Script(wall_ns=NOW_NS)
    assert Script(one.stores, wall_ns=NOW_NS + 399 * 86_400 * NS_PER_S).begin() > one.machine.state.clock.ceiling


def test_the_wall_clock_is_compared_with_the_monotonic_one() -> None:
    clock = WallClock(0.0, NOW_NS)
    clock.read(100_000.0, NOW_NS + 200_000 * NS_PER_S)
    assert (clock.ns, clock.refused_ns) == (NOW_NS + 100_000 * NS_PER_S, 100_000 * NS_PER_S)
    clock.read(100_001.0, NOW_NS + 200_001 * NS_PER_S)
    assert clock.ns == NOW_NS + 100_001 * NS_PER_S, "as before, as long as it lasts"
    clock.read(100_002.0, NOW_NS)
    assert (clock.ns, clock.refused_ns) == (NOW_NS, 0)


def test_a_clock_that_was_set_back_by_days_is_followed_when_it_is_right_again() -> None:
    tso = Script(wall_ns=NOW_NS)
    committed(tso.commit(tso.begin(), 1))
    tso.wall_ns -= 3 * 86_400 * NS_PER_S
    tso.pass_time(0.5, times=4)
    assert "ahead of the clock" in clock_trouble(tso.machine.clock_trouble(), tso.begin())
    tso.wall_ns = NOW_NS + 60 * NS_PER_S
    tso.pass_time(0.5, times=4)
    assert tso.machine.clock_trouble() == {}
    assert abs(tso.begin() - tso.wall_ns) < NS_PER_S


def test_a_fresh_database_begins_with_any_plausible_clock() -> None:
    check_clock(NOW_NS, 0, accept=False)
    check_clock(NOW_NS, 1_000_000, accept=False)  # incremental timestamps
    check_clock(NOW_NS, NOW_NS + 100 * YEAR_S * NS_PER_S, accept=False)  # late: it stands still


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_timestamp_is_printed_with_its_time() -> None:
    assert dated(NOW_NS) == "1800000000000000000 (2027-01-15 08:00:00.000Z)"
    assert dated(150) == "150"
    assert iso(FIRST_TIME) == "2001-09-09 01:46:40.000Z"
    assert clock_trouble({}, 0) == ""


@given(st.datetimes(datetime(1970, 1, 1), datetime(2261, 1, 1), timezones=st.just(UTC)))
def test_times_and_timestamps_are_the_same(when: datetime) -> None:
    assert time_of(ns_of(when)) == when
    assert snapshot_at(ns_of(when)) == ns_of(when) + 1_000, "all of this microsecond"
    assert time_of(snapshot_at(ns_of(when)) - 1) == when


def test_the_timestamps_of_a_foreign_tso_count_as_times_if_they_are_of_now() -> None:
    assert timestamps.are_times(NOW_NS, NOW_NS + 59 * NS_PER_S)
    assert not timestamps.are_times(NOW_NS, NOW_NS + 61 * NS_PER_S), "they have stood still"
    assert not timestamps.are_times(1_000, NOW_NS)


def test_a_status_tells_of_the_clock() -> None:
    tso = Script(wall_ns=NOW_NS)
    put_entry(tso.stores.catalog, TableInfo("t", (b"f",)))
    tso.wall_ns -= HOUR_S * NS_PER_S
    tso.tick(0.1)
    assert "timestamps_ahead_ms" in tso.ask_settled(AskStatus()).answer.counters  # type: ignore[union-attr]
