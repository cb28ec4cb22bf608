"""Retries while the database is briefly unavailable, after its TSO or a server was killed.

Only for work under an idempotency key: only that is safe to retry.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pyomid

T = TypeVar("T")

AWAY_SECONDS_MAX = 120
"""Longest time for which the database may be unavailable."""

PAUSE_SECONDS = 0.05


def again(attempt: Callable[[], T], interrupted: Callable[[pyomid.OmidError], None]) -> T:
    """Return the result of the first successful `attempt`; `interrupted` is called with the error of each failed
    one."""
    deadline_s = time.monotonic() + AWAY_SECONDS_MAX
    while True:
        try:
            return attempt()
        except (pyomid.Unavailable, pyomid.OutcomeUnknown) as error:
            interrupted(error)
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_SECONDS)
