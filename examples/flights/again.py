"""The database is away for a moment when its TSO or a server of it is killed.

Only for work under a durable id: for it alone trying again is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pyomid

T = TypeVar("T")

AWAY_SECONDS_MAX = 120
"""A database that is away for longer is gone."""

PAUSE_SECONDS = 0.05


def again(attempt: Callable[[], T], interrupted: Callable[[pyomid.OmidError], None]) -> T:
    """What `attempt` returns at last; each failure for want of an answer is told to `interrupted`."""
    deadline_s = time.monotonic() + AWAY_SECONDS_MAX
    while True:
        try:
            return attempt()
        except (pyomid.Unavailable, pyomid.OutcomeUnknown) as error:
            interrupted(error)
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_SECONDS)
