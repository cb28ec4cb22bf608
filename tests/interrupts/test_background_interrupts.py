"""Interrupts in who does the background's work, where the system gives no thread for it: nobody waits for it after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from interrupts import Interrupter, every_place
from pyomid.database import background
from pyomid.database.background import Background
from pyomid.types import CellVersion

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]


def one_cell(start: int) -> dict[str, list[CellVersion]]:
    return {"t": [CellVersion(b"r", b"f", b"q", start)]}


@pytest.fixture
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def without(thread: threading.Thread) -> None:
        if thread.name == "pyomid-background":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", without)


def test_after_an_interrupted_drain_another_one_ends(
    no_background: None, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    monkeypatch.setattr(background, "_LOOK_S", 0.01)

    def scene(interrupter: Interrupter) -> None:
        work = Background(lambda effect: None, linger_s=0.01, cells_max=10)
        work.complete(50, 60, one_cell(50))
        _, raised = interrupter.outcome(lambda: work.drain(30))
        assert raised is None or isinstance(raised, type(error()))
        drained: list[bool] = []
        other = threading.Thread(target=lambda: drained.append(work.drain(1)), daemon=True)
        other.start()
        other.join(30)
        assert drained == [True]
        assert work._cells == 0

    assert every_place((background,), error, scene) > 20


def test_a_drain_survives_the_thread_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dying when the drain begins: still alive, and it takes no work any more."""
    monkeypatch.setattr(background, "_LOOK_S", 0.01)
    dying, may_die = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: (dying.set(), may_die.wait(60)))

    class Waits(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is first:
                raise MemoryError
            return super().wait(timeout)

    done: list[Any] = []
    work = Background(done.append, linger_s=3600.0, cells_max=10)
    first: threading.Thread | None = None
    work._changed = Waits(work._lock)
    with work._lock:
        work._add(background._Job(partial(background.complete, 50, 60, one_cell(50)), 1))
        first = work._thread
    assert dying.wait(60)
    drained: list[bool] = []
    draining = threading.Thread(target=lambda: drained.append(work.drain()), daemon=True)
    draining.start()
    draining.join(0.05)
    may_die.set()
    draining.join(10)
    assert drained == [True]
    assert len(done) == 2
