"""A TSO whose first lease ends while it still takes over; run as a process of its own by test_taking_over.py.

Its store answers the take-over only when that lease is over, and its leadership renews for as long as it is kept.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.tso.startup import ServiceOptions, serve
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.ports import boot_clock

FIRST_LEASE_S = 0.5


class ShortLease:
    """`Leadership` with one short term, and long ones from the first renewal on."""

    def __init__(self) -> None:
        self.until_s = 0.0

    def acquire(self, stop: threading.Event) -> float | None:
        self.until_s = boot_clock() + FIRST_LEASE_S
        return self.until_s

    def keep(self, renewed: Callable[[float], object], lost: Callable[[str], object]) -> None:
        threading.Thread(target=renewed, args=(boot_clock() + 3600.0,)).start()

    def announce(self, epoch: int) -> None:
        print("announced", flush=True)

    def release(self) -> None:
        print("released", flush=True)


class SlowEpochRow(MemoryLeaderState):
    """Takes over when the first lease has ended."""

    def __init__(self, lease: ShortLease) -> None:
        super().__init__()
        self._lease = lease

    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        print("takes over", flush=True)
        while boot_clock() <= self._lease.until_s:
            time.sleep(0.05)
        if "stopped" in sys.argv:
            sys.stdin.readline()
        return super().take_over(expected=expected, epoch=epoch, ceiling=ceiling)


async def main() -> None:
    lease = ShortLease()
    stores = TsoStores(MemoryCommitTable(), SlowEpochRow(lease), MemoryCatalog())
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    await serve(
        stores,
        ServiceOptions(settings=TsoSettings(conflict_map_entries=1000)),
        [(listener, None)],
        ready=lambda: print(f"serving on 127.0.0.1:{listener.getsockname()[1]}", flush=True),
        stop_signals=(signal.SIGTERM,),
        leadership=lease,
    )


if __name__ == "__main__":
    asyncio.run(main())
