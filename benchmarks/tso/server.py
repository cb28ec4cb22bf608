"""A TSO for benchmarks: pyomid's own service over memory, each flush delayed by so many milliseconds.

python benchmarks/tso/server.py SOCKET FLUSH_DELAY_MS|none [KERNEL on|off] [REGISTERED TABLE …]

none: the commit table is memory's own, and its flush over at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import numpy as np
import uvloop
from numpy.typing import NDArray

from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.ports import FlushEnded, FlushLoop
from pyomid.omid.tso.startup import ServiceOptions, serve
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.types import TableEntry, TableInfo, TableState


class SlowCommitTable(MemoryCommitTable):
    """As far away as its delay says. Its flushes go as those to HBase do: begun by the loop, which is told the end;
    several run beside each other."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, super().submit, entries, ended, loop)


def main() -> None:
    path, delay_ms, kernel = sys.argv[1], sys.argv[2], (sys.argv[3:] or ["on"])[0]
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(1024)
    leader_state = MemoryLeaderState()
    commits = MemoryCommitTable() if delay_ms == "none" else SlowCommitTable(float(delay_ms) / 1000)
    stores = TsoStores(commits, leader_state, MemoryCatalog())
    for name in sys.argv[4:]:
        stores.catalog.change_entry(None, TableEntry(TableInfo(name, (b"f",)), TableState.PRESENT, name))
    settings = TsoSettings(conflict_map_entries=1 << 20, window_starts=1 << 16, flushes_in_flight_max=4)
    options = ServiceOptions(settings=settings, compiled=kernel == "on")
    uvloop.run(
        serve(stores, options, [(sock, None)], ready=lambda: print("ready", flush=True), stop_signals=[signal.SIGTERM])
    )


if __name__ == "__main__":
    main()
