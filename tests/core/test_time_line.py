"""History that is kept (T17): W stays below it, LWM does not, and a new TSO goes on with it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from machine_script import Script

from pyomid.errors import SnapshotTooOld
from pyomid.oracle import time_line
from pyomid.protocol.time_points import newest_at, snapshot_after
from pyomid.types import CommitReply
from pyomid.wire.messages import GrantLease, LeaseReply

HOUR_S = 3600.0


def keeper(stores: object = None, **settings: object) -> Script:
    tso = Script(stores, **{"retention_s": HOUR_S, "max_transaction_age_s": 60.0, **settings})  # type: ignore[arg-type]
    tso.wall_ms = 1_000
    return tso


def go_on(tso: Script, seconds: float, cell: int = 1) -> int:
    """Commits, then so much time goes by; returns the commit."""
    committed = tso.commit(tso.begin(), cell)
    assert isinstance(committed, CommitReply)
    for _ in range(10):
        tso.wall_ms += int(seconds * 100)
        tso.now_s += seconds / 10
        tso.stall(0.0)
        tso.settle()
    return committed.commit_ts


def test_lwm_rises_past_a_lease_on_history() -> None:
    tso = keeper()
    first = go_on(tso, 500)
    asked = tso.ask_settled(GrantLease(first - first % 50 + 50, 10_000.0))
    assert isinstance(asked.answer, LeaseReply)
    second = go_on(tso, 500)
    assert tso.machine.report().low_watermark > second
    assert tso.machine.report().watermark < first


def test_a_lease_on_history_that_is_gone_is_refused() -> None:
    tso = keeper()
    first = go_on(tso, 2 * HOUR_S)
    go_on(tso, 10)
    assert isinstance(tso.ask_settled(GrantLease(first - first % 50)).refusal(), SnapshotTooOld)


def test_a_new_tso_keeps_the_history_it_finds() -> None:
    """Also one that was not told of it."""
    tso = keeper()
    first = go_on(tso, 1800)
    second = go_on(tso, 100)
    following = Script(tso.stores, retention_s=None, wall_ms=tso.wall_ms)
    assert following.machine.report().retention_s == HOUR_S
    assert following.machine.report().watermark < first
    following.pass_time(2000)
    assert first < following.machine.report().watermark < second


def test_a_new_tso_whose_clock_is_behind_keeps_more() -> None:
    tso = keeper()
    first = go_on(tso, 1800)
    following = Script(tso.stores, wall_ms=500)
    assert following.machine.report().watermark < first


def test_a_clock_set_forward_does_not_end_history() -> None:
    tso = keeper()
    first = go_on(tso, 100)
    tso.wall_ms += 10 * 24 * 3_600_000
    go_on(tso, 100)
    assert tso.machine.report().watermark < first


def test_retention_is_turned_off_by_zero_alone() -> None:
    tso = keeper()
    first = go_on(tso, 100)
    following = Script(tso.stores, retention_s=0.0, wall_ms=tso.wall_ms)
    assert following.machine.report().watermark > first
    assert Script(tso.stores, wall_ms=tso.wall_ms).machine.report().retention_s == 0


def test_starts_that_were_sealed_are_forgotten_though_history_is_kept() -> None:
    """What cannot commit any more needs no memory: a week of seals would be refused."""
    from pyomid.wire.messages import Seal

    tso = keeper(refused_starts_max=3)
    for _ in range(4):
        asked = tso.ask_settled(Seal((tso.begin(), tso.begin())))
        assert not hasattr(asked.answer, "as_error"), asked.answer
        go_on(tso, 200)


@pytest.mark.parametrize("restarts", [False, True], ids=["one TSO", "a TSO for each commit"])
def test_points_within_the_retention_are_exact(monkeypatch: pytest.MonkeyPatch, restarts: bool) -> None:
    """However long it is, and however many points a TSO of short life notes, the gaps stay within two intervals, and
    the whole retention can be read."""
    monkeypatch.setattr(time_line, "POINTS_IN_RETENTION", 20)
    monkeypatch.setattr(time_line, "POINTS_MAX", 40)
    days = 86_400.0
    tso = keeper(retention_s=200 * days)
    interval_s = 200 * days / 20
    step_s = interval_s / 7 if restarts else interval_s / 2
    first_ms = tso.wall_ms
    while tso.wall_ms < first_ms + 260 * days * 1000:
        tso.commit(tso.begin(), 1)
        tso.wall_ms += int(step_s * 1000)
        if restarts:
            tso = Script(tso.stores, max_transaction_age_s=60.0, wall_ms=tso.wall_ms)
        else:
            tso.now_s += step_s
        tso.stall(0.0)
        tso.settle()
    points = tso.stores.leader_state.time_points()
    assert len(points) <= 44
    noted = [point.wall_ms for point in points]
    assert max(after - before for before, after in pairwise(noted)) <= 2 * interval_s * 1000 + 1
    oldest = newest_at(points, tso.wall_ms - int(200 * days * 1000))
    assert oldest is not None
    assert snapshot_after(oldest.start_ts) > tso.machine.report().watermark
