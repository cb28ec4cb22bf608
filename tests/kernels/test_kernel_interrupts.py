"""No interrupt comes up inside of numba, which goes on with what is not there, or never loads again what broke off.

CPython raises what a signal's handler raises at the first instruction of a Python function.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from pyomid.kernels.loading import undisturbed
from pyomid.protocol.native.visibility import unexpired_cells, unresolved

pytest.importorskip("numba", reason="numba is not installed: kernels run as Python")

BORDERS, COMMITS = np.arange(4, dtype=np.int64), np.array([50, 100, 150])
CALLS: dict[str, Callable[[], Any]] = {
    "an array": lambda: unresolved(COMMITS, BORDERS[:3], 120, BORDERS[:0]),
    "a tuple of arrays": lambda: unexpired_cells(BORDERS, COMMITS, BORDERS[:3], BORDERS, 50),
}


def began_of_numbas(call: Callable[[], Any]) -> list[str]:
    """Python functions of numba's that began in this thread."""
    began: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and "numba" in frame.f_code.co_filename:
            began.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return began


@pytest.mark.fast
@pytest.mark.parametrize("what", CALLS)
def test_a_kernel_that_was_called_runs_no_python_of_numbas(what: str) -> None:
    """An array that is missing in a tuple ends the process that looks at it."""
    CALLS[what]()
    assert began_of_numbas(CALLS[what]) == []


@pytest.mark.fast
def test_a_signal_while_a_kernel_loads_is_handled_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real, went_on = unresolved._compile, list[bool]()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def load() -> Any:
        signal.raise_signal(signal.SIGUSR1)
        went_on.append(True)
        return real()

    monkeypatch.setattr(unresolved, "_compiled", None)
    monkeypatch.setattr(unresolved, "_compile", load)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            unresolved.compiled()
        assert signal.getsignal(signal.SIGUSR1) is interrupt
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert went_on
    assert unresolved.is_loaded


@pytest.fixture
def two_signals() -> Iterator[Callable[[Any], None]]:
    """Sets the handlers of SIGUSR1 and SIGUSR2."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    yield lambda handler: [signal.signal(number, handler) for number, _ in before] and None
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.fast
def test_no_signal_is_lost_behind_one_whose_handler_raises(two_signals: Callable[[Any], None]) -> None:
    """Else Ctrl-C while a kernel loads makes the process miss that it is to end."""
    handled = []

    def raises(number: int, frame: FrameType | None) -> None:
        handled.append(number)
        raise KeyboardInterrupt

    def load() -> None:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)

    two_signals(raises)
    with pytest.raises(KeyboardInterrupt):
        undisturbed(load)
    assert handled == [signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.fast
@pytest.mark.skipif(sys.platform != "linux", reason="reads the flags of a signal's action as glibc keeps them")
@pytest.mark.parametrize("breaks_calls_off", [True, False])
def test_a_load_leaves_signals_as_they_were(breaks_calls_off: bool, two_signals: Callable[[Any], None]) -> None:
    """asyncio sets `siginterrupt` for the signals that it handles."""

    def flags() -> int:
        kept = ctypes.create_string_buffer(512)
        ctypes.CDLL(None).sigaction(signal.SIGUSR1, None, kept)
        return int.from_bytes(kept.raw[136:140], sys.byteorder)

    two_signals(lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, not breaks_calls_off)
    other = flags()
    signal.siginterrupt(signal.SIGUSR1, breaks_calls_off)
    before = flags()
    assert before != other
    assert undisturbed(lambda: 7) == 7
    assert flags() == before


@pytest.mark.fast
def test_a_kernel_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unresolved, "_compiled", None)
    monkeypatch.setattr(unresolved, "_compile", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        unresolved.compiled()
