"""Leadership: a leader in doubt exits at once."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

DOUBT_EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the process exited because it could not know whether it still leads."""


def die_now(reason: str) -> NoReturn:
    """End the process without sending, flushing or closing anything but its log."""
    try:
        logging.shutdown()
    finally:
        os._exit(DOUBT_EXIT_CODE)


class Leadership(Protocol):
    """One candidate's lease on the leadership (protocol.md, Leadership). The actual fence is the leader state."""

    def acquire(self, stop: threading.Event) -> float | None:
        """Wait until this process leads; return the time (of `boot_clock`) until which it leads without a renewal.
        None if `stop` was set.

        The time counts from before the write that took the lease.
        """

    def keep(self, renewed: Callable[[float], object], lost: Callable[[str], object]) -> None:
        """Start a thread that renews the lease: `renewed(until_s)` after each renewal, `lost(why)` once."""

    def announce(self, epoch: int) -> None:
        """Publish this TSO's address; on return clients find it. `Deposed` if a later TSO was faster."""

    def release(self) -> None:
        """Give the lease back after serving has ended: a standby may take over at once."""
