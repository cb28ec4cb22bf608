"""A TSO for benchmarks: pyomid's own service over memory, each flush delayed by so many milliseconds.

python benchmarks/tso/server.py SOCKET FLUSH_DELAY_MS [KERNEL on|off]
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import numpy as np
import uvloop
from numpy.typing import NDArray

from pyomid.core.tso_settings import TsoSettings
from pyomid.ports import FlushEnded
from pyomid.storage.memory import MemoryCatalogue, MemoryCommitTable, MemoryEpochRow
from pyomid.tso.startup import ServiceOptions, serve
from pyomid.tso.store_calls import TsoStores


class SlowCommitTable(MemoryCommitTable):
    """As far away as its delay says. Its flushes go as those to HBase do: begun by the loop, which is told the end;
    several run beside each other."""

    is_immediate = False
    flushes_on_loop = True

    def __init__(self, delay_s: float, epoch_row: MemoryEpochRow) -> None:
        super().__init__()
        self._delay_s = delay_s
        self._epoch_row = epoch_row

    def flush_on_loop(self, entries: NDArray[np.int64], ended: FlushEnded) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, self._end, entries, ended)

    def leave_loop(self) -> None:
        pass

    def _end(self, entries: NDArray[np.int64], ended: FlushEnded) -> None:
        ended((self.put_block(entries), self._epoch_row.read().epoch))


def main() -> None:
    path, delay_ms, kernel = sys.argv[1], float(sys.argv[2]), (sys.argv[3:] or ["on"])[0]
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(1024)
    epoch_row = MemoryEpochRow()
    stores = TsoStores(SlowCommitTable(delay_ms / 1000, epoch_row), epoch_row, MemoryCatalogue())
    settings = TsoSettings(conflict_map_entries=1 << 20, window_starts=1 << 16, flights_max=4)
    options = ServiceOptions(settings=settings, kernel=kernel == "on")
    uvloop.run(
        serve(stores, options, [(sock, None)], ready=lambda: print("ready", flush=True), stop_signals=[signal.SIGTERM])
    )


if __name__ == "__main__":
    main()
