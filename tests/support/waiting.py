"""Waits for what another thread or process is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 60.0


def until(holds: Callable[[], object], what: str, *, wait_s: float = WAIT_S) -> None:
    """`what`: the failure, where it does not come to hold."""
    give_up_s = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.002)
