"""Wall time ↔ timestamps: the pure functions, and the points that a TSO notes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_script import Script

from pyomid.errors import Unavailable
from pyomid.oracle import time_line
from pyomid.oracle.instructions import Flush, NoteTime
from pyomid.protocol.time_points import first_at, newest_at, snapshot_after, wall_ms_of
from pyomid.types import CommitReply, CommitRequest, Moment, TimePoint
from pyomid.wire.messages import FindMoment, GrantLease, LeaseReply


@st.composite
def lines(draw: st.DrawFn) -> list[TimePoint]:
    """Any clock, also one that was set back."""
    starts = sorted(draw(st.sets(st.integers(1, 30), max_size=8)))
    return [TimePoint(50 * start, draw(st.integers(0, 40))) for start in starts]


@given(lines(), st.integers(1, 1600), st.integers(0, 45))
def test_the_last_point_of_a_time_has_the_commits_of_that_time(
    points: list[TimePoint], commit_ts: int, at: int
) -> None:
    point, told = newest_at(points, at), wall_ms_of(points, commit_ts)
    sees = point is not None and commit_ts < point.start_ts
    assert sees == (told is not None and told <= at)


@given(lines(), st.integers(1, 1600), st.integers(0, 45))
def test_the_moment_of_a_time_is_not_before_it_and_has_the_commits_of_its_own_time(
    points: list[TimePoint], commit_ts: int, at: int
) -> None:
    point, told = first_at(points, at), wall_ms_of(points, commit_ts)
    if point is None:
        assert all(min(each.wall_ms for each in points[place:]) < at for place in range(len(points)))
    else:
        assert point.wall_ms >= at
        assert (commit_ts < point.start_ts) == (told is not None and told <= point.wall_ms)


def test_a_snapshot_after_a_commit_holds_it() -> None:
    assert snapshot_after(150) == snapshot_after(199) == 200


def test_a_point_lies_above_what_was_acknowledged() -> None:
    tso = Script()
    tso.wall_ms = 10_000
    tso.commit(tso.begin(), 1)
    tso.pass_time(1)
    assert [point.wall_ms for point in tso.stores.leader_state.time_points()] == [10_000]
    committed = tso.commit(tso.begin(), 1)
    tso.wall_ms = 25_000
    tso.pass_time(15)
    points = tso.stores.leader_state.time_points()
    assert points[-1].wall_ms == 10_000 + time_line.SEEN_AFTER_MS_MAX, "by then it had been acknowledged"
    assert points[-1].start_ts > committed.commit_ts  # type: ignore[union-attr]
    assert wall_ms_of(points, committed.commit_ts) == points[-1].wall_ms  # type: ignore[union-attr]


def test_a_quiet_tso_notes_nothing() -> None:
    tso = Script()
    tso.wall_ms = 10_000
    tso.commit(tso.begin(), 1)
    tso.pass_time(30, times=5)
    assert len(tso.stores.leader_state.time_points()) <= 2


def test_points_below_w_go_but_the_newest_and_those_of_the_last_hour() -> None:
    tso = Script(max_transaction_age_s=40)
    for second in range(0, 8_000, 200):
        tso.wall_ms = 1_000 * (second + 1)
        tso.commit(tso.begin(), second)
        tso.pass_time(200)
    watermark = tso.stores.leader_state.read().watermark
    points = tso.stores.leader_state.time_points()
    assert watermark
    old = [each for each in points if each.start_ts <= watermark and each.wall_ms < tso.wall_ms - time_line.KEPT_MS]
    assert len(points) > 10
    assert len(old) <= 1
    following = Script(tso.stores)
    assert following.machine.report().epoch > points[-1].start_ts


def test_a_store_that_fails_costs_a_point_and_not_the_tso() -> None:
    tso = Script(store_retry_s=0.0)
    tso.wall_ms = 10_000
    tso.commit(tso.begin(), 1)
    tso.tick(1)
    tso.fail(NoteTime, Unavailable("the disk is full"))
    assert not tso.died
    tso.commit(tso.begin(), 1)
    tso.pass_time(15)
    assert tso.stores.leader_state.time_points()


def test_a_tso_that_ends_notes_what_was_committed_last() -> None:
    tso = Script()
    tso.wall_ms = 10_000
    tso.commit(tso.begin(), 1)
    tso.pass_time(1)
    committed = tso.commit(tso.begin(), 1)
    tso.wall_ms = 12_000
    tso.machine.note_time_now()
    tso.pass_time(0.0)
    noted_ms = wall_ms_of(tso.stores.leader_state.time_points(), committed.commit_ts)  # type: ignore[union-attr]
    assert noted_ms == 10_000 + time_line.SEEN_AFTER_MS_MAX


def test_e6_what_a_killed_tso_committed_last_is_as_old_as_the_last_change_of_its_store() -> None:
    tso = Script(wall_ms=1_000)
    [last] = commits(tso, 10_000)
    following = Script(tso.stores, wall_ms=900_000, changed_ms=10_200)
    following.wall_ms = 900_000
    following.pass_time(1)
    told_ms = wall_ms_of(following.stores.leader_state.time_points(), last)
    assert told_ms == 10_200 + time_line.SEEN_AFTER_MS_MAX


@pytest.mark.parametrize("changed_ms", [0, 9_000, 1_000_000])
def test_e6_a_last_change_that_cannot_be_dates_nothing(changed_ms: int) -> None:
    """A copy whose files were given another time: before a point that was noted, or in the future."""
    tso = Script(wall_ms=1_000)
    commits(tso, 9_500)
    tso.pass_time(30)
    [last] = commits(tso, 41_000)
    following = Script(tso.stores, wall_ms=900_000, changed_ms=changed_ms)
    following.wall_ms = 900_000
    following.pass_time(1)
    told_ms = wall_ms_of(following.stores.leader_state.time_points(), last)
    assert told_ms == 900_000


def test_e6_what_was_committed_before_a_tso_was_stopped_is_as_old_as_it_is() -> None:
    tso = Script(wall_ms=1_000)
    _, last = commits(tso, 10_000, 12_000)
    tso.wall_ms = 900_000
    tso.stall(888.0)
    tso.settle()
    moment_at(tso, 900_000)
    told_ms = wall_ms_of(tso.stores.leader_state.time_points(), last)
    assert told_ms is not None
    assert 12_000 <= told_ms <= 12_000 + time_line.SEEN_AFTER_MS_MAX


# ── the snapshot of a time ───────────────────────────────────────────────────────────────────────────────────────


def moment_at(tso: Script, at_ms: int, now_ms: int = 0) -> Moment:
    answer = tso.told(Moment, FindMoment(at_ms, now_ms or tso.wall_ms))
    return answer


def commits(tso: Script, *walls_ms: int) -> list[int]:
    """One at each of these times; the TSO looks at its clock right before the next."""
    made = []
    for wall_ms in walls_ms:
        tso.now_s += max(0, wall_ms - 1 - tso.wall_ms) / 1000
        tso.wall_ms = wall_ms - 1
        tso.stall(0.003)
        tso.settle()
        tso.wall_ms = wall_ms
        reply = tso.commit(tso.begin(), len(made))
        assert isinstance(reply, CommitReply)
        made.append(reply.commit_ts)
    return made


def test_no_commit_is_missing_that_was_acknowledged_by_the_time_that_is_asked_for() -> None:
    tso = Script(retention_s=7 * 86_400.0)
    first, second, third = commits(tso, 10_000, 10_500, 11_000)
    assert first < moment_at(tso, 10_000).snapshot_ts <= second
    assert moment_at(tso, 10_400) == Moment(moment_at(tso, 10_000).snapshot_ts, 10_400)
    assert second < moment_at(tso, 10_600).snapshot_ts <= third
    assert moment_at(tso, 11_000).snapshot_ts > third
    ahead = moment_at(tso, 99_000)
    assert ahead.snapshot_ts > third
    assert ahead.wall_ms == 11_000, "it tells which moment it is"


def test_a_client_whose_clock_is_late_lacks_nothing_that_was_acknowledged_before_it_asks() -> None:
    tso = Script()
    _, last = commits(tso, 20_000, 30_000)
    assert moment_at(tso, 15_000, now_ms=15_000).snapshot_ts > last
    assert moment_at(tso, 25_000, now_ms=29_500).snapshot_ts <= last


def test_a_moment_that_was_told_is_known_to_the_next_tso() -> None:
    tso = Script(retention_s=7 * 86_400.0)
    first, second = commits(tso, 10_000, 20_000)
    told = moment_at(tso, 15_000), moment_at(tso, 20_000)
    following = Script(tso.stores, wall_ms=50_000)
    assert following.machine.report().retention_s
    following.wall_ms = 50_000
    later = moment_at(following, 15_000), moment_at(following, 20_000)
    assert first < later[0].snapshot_ts
    assert later[1] == told[1]
    assert second < later[1].snapshot_ts


def test_a_time_before_all_that_is_known_has_no_snapshot() -> None:
    tso = Script()
    commits(tso, 10_000)
    assert moment_at(tso, 9_000).snapshot_ts == 0


def test_many_that_ask_at_once_cost_one_note() -> None:
    tso = Script(retention_s=7 * 86_400.0)
    commits(tso, 10_000, 10_500)
    asked = [tso.ask(FindMoment(10_500, 10_500)) for _ in range(100)]
    assert len(tso.pending(NoteTime)) == 1
    tso.settle()
    assert len({each.answer for each in asked}) == 1
    before = len(tso.stores.leader_state.time_points())
    for _ in range(100):
        tso.wall_ms += 5
        moment_at(tso, tso.wall_ms)
    assert len(tso.stores.leader_state.time_points()) == before, "nothing was committed since"


def test_who_asks_while_a_note_is_on_its_way_sees_what_was_acknowledged_before() -> None:
    tso = Script(retention_s=7 * 86_400.0)
    commits(tso, 10_000, 10_500)
    one = tso.ask(FindMoment(10_500, 10_500))
    assert one.answer is None, "the moment is durable before it is told"
    waiting = tso.ask(CommitRequest(tso.begin(), (7,)))
    tso.finish(Flush)
    assert isinstance(waiting.answer, CommitReply)
    other = tso.ask(FindMoment(10_600, 10_600))
    tso.settle()
    assert isinstance(other.answer, Moment)
    assert other.answer.snapshot_ts > waiting.answer.commit_ts


def test_a_quiet_time_keeps_the_snapshot_that_it_had() -> None:
    """Also once another TSO leads, which remembers no more than the points."""
    tso = Script(retention_s=7 * 86_400.0)
    first, second = commits(tso, 10_000, 500_000)
    tso.pass_time(120)
    following = Script(tso.stores, wall_ms=800_000)
    following.wall_ms = 800_000
    assert first < moment_at(following, 400_000).snapshot_ts <= second


def test_a_moment_that_the_store_does_not_keep_is_not_told() -> None:
    tso = Script(store_retry_s=0.0, retention_s=7 * 86_400.0)
    commits(tso, 10_000, 10_500)
    asked = tso.ask(FindMoment(10_500, 10_500))
    tso.fail(NoteTime, Unavailable("the disk is full"))
    assert isinstance(asked.refusal(), Unavailable)
    assert moment_at(tso, 10_500).snapshot_ts


def test_points_are_bounded_where_w_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_line, "POINTS_MAX", 16)
    tso = Script(max_transaction_age_s=40)
    assert isinstance(tso.ask_settled(GrantLease(tso.begin(), 1e5)).answer, LeaseReply)
    for second in range(0, 1200, 20):
        tso.wall_ms = 1_000 * (second + 1)
        tso.commit(tso.begin(), second)
        tso.pass_time(20)
    points = tso.stores.leader_state.time_points()
    assert 8 <= len(points) <= 18
    assert points[0].wall_ms < 60_000, "the oldest stays"
    assert points[-1].wall_ms > 1_100_000
