"""The port for leadership among several TSOs. A leader in doubt exits at once."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

DOUBT_EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h. The process exits with this code if it cannot know whether it still leads."""


def die_now(reason: str) -> NoReturn:
    """End the process at once. Only the log is flushed; nothing is sent or closed."""
    try:
        logging.shutdown()
    finally:
        os._exit(DOUBT_EXIT_CODE)


class Leadership(Protocol):
    """The lease of one candidate for the leadership (protocol.md, Leadership). The leader state is what fences old
    leaders."""

    def acquire(self, stop: threading.Event) -> float | None:
        """Wait until this process leads. Return until when it leads without a renewal (a time of `boot_clock`), or None
        if `stop` was set.

        The lease term counts from before the write that took the lease.
        """

    def keep(self, renewed: Callable[[float], object], lost: Callable[[str], object]) -> None:
        """Start a thread that renews the lease. The thread calls `renewed(until_s)` after each renewal, and `lost(why)`
        once if the lease is lost."""

    def announce(self, epoch: int) -> None:
        """Publish this TSO's address; after the return, clients find it. Raises `Deposed` if a later TSO was faster."""

    def release(self) -> None:
        """Give the lease back after serving has ended, so that a standby may take over at once."""
