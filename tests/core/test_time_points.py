"""Wall time ↔ timestamps: the pure functions, and the points that a TSO notes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_script import Script

from pyomid.errors import Unavailable
from pyomid.oracle import time_line
from pyomid.oracle.instructions import NoteTime
from pyomid.protocol.time_points import newest_at, snapshot_after, wall_ms_of
from pyomid.types import TimePoint
from pyomid.wire.messages import GrantLease, LeaseReply


@st.composite
def lines(draw: st.DrawFn) -> list[TimePoint]:
    """Any clock, also one that was set back."""
    starts = sorted(draw(st.sets(st.integers(1, 30), max_size=8)))
    return [TimePoint(50 * start, draw(st.integers(0, 40))) for start in starts]


@given(lines(), st.integers(1, 1600), st.integers(0, 45))
def test_the_snapshot_of_a_time_has_the_commits_of_that_time(points: list[TimePoint], commit_ts: int, at: int) -> None:
    point, told = newest_at(points, at), wall_ms_of(points, commit_ts)
    sees = point is not None and commit_ts < point.start_ts
    assert sees == (told is not None and told <= at)


def test_a_snapshot_after_a_commit_holds_it() -> None:
    assert snapshot_after(150) == snapshot_after(199) == 200


def test_a_point_lies_above_what_was_acknowledged() -> None:
    tso = Script()
    tso.wall_ms = 10_000
    tso.commit(tso.begin(), 1)
    tso.tick(1)
    tso.settle()
    assert [point.wall_ms for point in tso.stores.leader_state.time_points()] == [10_000]
    committed = tso.commit(tso.begin(), 1)
    tso.wall_ms = 25_000
    tso.tick(15)
    tso.settle()
    points = tso.stores.leader_state.time_points()
    assert points[-1].wall_ms == 25_000
    assert points[-1].start_ts > committed.commit_ts  # type: ignore[union-attr]
    assert wall_ms_of(points, committed.commit_ts) == 25_000  # type: ignore[union-attr]


def test_a_quiet_tso_notes_nothing() -> None:
    tso = Script()
    tso.wall_ms = 10_000
    tso.commit(tso.begin(), 1)
    for _ in range(5):
        tso.tick(30)
        tso.settle()
    assert len(tso.stores.leader_state.time_points()) <= 2


def test_points_below_w_go_but_the_newest() -> None:
    tso = Script(max_transaction_age_s=40)
    for second in range(0, 400, 20):
        tso.wall_ms = 1_000 * (second + 1)
        tso.commit(tso.begin(), second)
        tso.tick(20)
        tso.settle()
    watermark = tso.stores.leader_state.read().watermark
    points = tso.stores.leader_state.time_points()
    assert watermark
    assert len([point for point in points if point.start_ts <= watermark]) <= 2
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
    tso.tick(15)
    tso.settle()
    assert tso.stores.leader_state.time_points()


def test_a_tso_that_ends_notes_what_was_committed_last() -> None:
    tso = Script()
    tso.wall_ms = 10_000
    tso.commit(tso.begin(), 1)
    tso.tick(1)
    tso.settle()
    committed = tso.commit(tso.begin(), 1)
    tso.wall_ms = 12_000
    tso.machine.note_time_now()
    tso.tick()
    tso.settle()
    assert wall_ms_of(tso.stores.leader_state.time_points(), committed.commit_ts) == 12_000  # type: ignore[union-attr]


def test_points_are_bounded_where_w_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_line, "POINTS_MAX", 16)
    tso = Script(max_transaction_age_s=40)
    assert isinstance(tso.ask_settled(GrantLease(tso.begin(), 1e5)).answer, LeaseReply)
    for second in range(0, 1200, 20):
        tso.wall_ms = 1_000 * (second + 1)
        tso.commit(tso.begin(), second)
        tso.tick(20)
        tso.settle()
    points = tso.stores.leader_state.time_points()
    assert 8 <= len(points) <= 18
    assert points[0].wall_ms < 60_000, "the oldest stays"
    assert points[-1].wall_ms > 1_100_000
