"""A TSO for benchmarks: pyomid's own service over memory, each flush delayed by so many milliseconds.

python benchmarks/tso/server.py SOCKET FLUSH_DELAY_MS [KERNEL on|off]
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Sequence

import numpy as np
import uvloop
from numpy.typing import NDArray

from pyomid.core.tso_settings import TsoSettings
from pyomid.storage.memory import MemoryCatalogue, MemoryCommitTable, MemoryEpochRow
from pyomid.tso.startup import ServiceOptions, serve
from pyomid.tso.store_calls import TsoStores


class SlowCommitTable(MemoryCommitTable):
    """As far away as its delay says; flushes run beside each other."""

    is_immediate = False

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        time.sleep(self._delay_s)
        return super().put(entries)

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        time.sleep(self._delay_s)
        return super().put_block(entries)


def main() -> None:
    path, delay_ms, kernel = sys.argv[1], float(sys.argv[2]), (sys.argv[3:] or ["on"])[0]
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(1024)
    stores = TsoStores(SlowCommitTable(delay_ms / 1000), MemoryEpochRow(), MemoryCatalogue())
    settings = TsoSettings(conflict_map_entries=1 << 20, window_starts=1 << 16, flights_max=4)
    options = ServiceOptions(settings=settings, kernel=kernel == "on")
    uvloop.run(
        serve(stores, options, [(sock, None)], ready=lambda: print("ready", flush=True), stop_signals=[signal.SIGTERM])
    )


if __name__ == "__main__":
    main()
