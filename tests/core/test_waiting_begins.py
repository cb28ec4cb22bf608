"""Begins that wait: peers take turns, and what one costs does not grow with how many wait."""

from __future__ import annotations

import pytest
from machine_script import Script

from pyomid.omid.oracle.begins import BEGINS_A_STEP
from pyomid.omid.oracle.instructions import Flush, PeerGone
from pyomid.omid.oracle.waiting import WaitingBegin, WaitingBegins
from pyomid.omid.wire.messages import Begin
from pyomid.types import CommitRequest

pytestmark = pytest.mark.fast


def _with_a_full_window(**settings: int) -> Script:
    """A commit is on its way to the disk, and every start below it was handed out."""
    tso = Script(**settings)
    start_ts = tso.begin()
    tso.ask(CommitRequest(start_ts, (1,)))
    while tso.ask(Begin(), peer="first").answer is not None:
        pass
    return tso


def test_peers_take_turns_among_begins_that_wait() -> None:
    """Else whoever sent ten thousand first is served before everybody else."""
    tso = _with_a_full_window(flushes_in_flight_max=1)
    crowd = [tso.ask(Begin(), peer="many") for _ in range(50)]
    lone = tso.ask(Begin(), peer="one")
    tso.ask(CommitRequest(tso.machine.state.newest_start, (2,)))
    tso.finish(Flush)
    assert lone.answer is not None
    assert sum(begin.answer is not None for begin in crowd) == 2, "the next window has four starts"


def test_a_step_looks_at_no_begin_that_cannot_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each request costs as much as there are begins waiting."""
    tso = _with_a_full_window()
    for _ in range(3000):
        tso.ask(Begin(), peer="many")
    looked = []
    first = WaitingBegins.first
    monkeypatch.setattr(WaitingBegins, "first", lambda waiting: looked.append(1) or first(waiting))
    for number in range(100):
        tso.ask(CommitRequest(tso.machine.state.newest_start, (number,)))
    assert len(looked) <= 200


def test_one_step_answers_a_bounded_number_of_begins() -> None:
    """Else whoever comes with something else meanwhile waits for all of them."""
    tso = _with_a_full_window(window_starts=4 * BEGINS_A_STEP)
    crowd = [tso.ask(Begin(), peer="many") for _ in range(3 * BEGINS_A_STEP)]
    tso.finish(Flush)
    answered = sum(begin.answer is not None for begin in crowd)
    assert 0 < answered <= BEGINS_A_STEP
    assert tso.machine.step.has_more_begins
    assert tso.machine.state.waiting_begins.are_ready, "nobody overtakes them"
    while tso.machine.step.has_more_begins:
        tso.tick()
    assert all(begin.answer is not None for begin in crowd)


def test_begins_of_a_peer_that_left_are_forgotten() -> None:
    tso = _with_a_full_window()
    newest = tso.machine.state.clock.last_issued
    for number in range(100):
        tso.ask(Begin(newest if number % 2 else 0), peer="gone")
    kept = tso.ask(Begin(), peer="here")
    waiting = tso.machine.state.waiting_begins
    tso.done(PeerGone("gone"))
    tso.done(PeerGone("first"))
    assert len(waiting) == 1
    assert not waiting._unreached
    tso.settle()
    assert kept.answer is not None
    assert len(waiting) == 0
    assert not tso.machine.state.waiting_begins.are_ready


def test_begins_with_a_floor_hold_up_nobody() -> None:
    waiting = WaitingBegins()
    for tag, floor in enumerate((500, 100, 300)):
        waiting.add(WaitingBegin("floored", tag, floor), is_ready=False)
    waiting.add(WaitingBegin("plain", 9, 0), is_ready=True)
    assert waiting.first() == WaitingBegin("plain", 9, 0)
    waiting.pop_first()
    assert waiting.first() is None
    assert not waiting.are_ready
    waiting.line_up(lambda floor: floor < 400)
    ready = []
    while (begin := waiting.first()) is not None:
        ready.append(begin.tag)
        waiting.pop_first()
    assert ready == [1, 2]
    assert len(waiting) == 1
    waiting.forget("floored")
    assert len(waiting) == 0


def test_an_empty_batch_widens_for_the_highest_floor() -> None:
    """Else a begin above the last start of the window waits until others have used it up."""
    tso = Script()
    assert tso.begin(not_before=tso.machine.state.clock.last_issued) > 0
