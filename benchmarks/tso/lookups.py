"""Another process beside a busy TSO: looks up 10 000 commit-table entries a second, and times fdatasync on its disk.

python benchmarks/tso/lookups.py FOLDER      until SIGTERM; then one JSON object
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedLeaderState

LOOKUPS_PER_S = 10_000
STARTS = 100


def main() -> None:
    folder = Path(sys.argv[1])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    table, row = EmbeddedCommitTable(folder, writable=False), EmbeddedLeaderState(folder, writable=False)
    epoch, rng = row.read().epoch, random.Random(1)
    probe = os.open(folder / "sync-probe", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(probe, 0, 1 << 20)
    syncs: list[float] = []
    lookups, newest, began = 0, epoch + 50 * 1_000_000, time.monotonic()
    next_sync = began
    while not stopping:
        starts = [50 * rng.randrange(epoch // 50 + 1, newest // 50) for _ in range(STARTS)]
        table.lookup(starts)
        lookups += STARTS
        if time.monotonic() >= next_sync:
            next_sync += 0.05
            before = time.monotonic()
            os.pwrite(probe, bytes(4096), len(syncs) % 256 * 4096)
            os.fdatasync(probe)
            syncs.append(time.monotonic() - before)
        time.sleep(max(0.0, began + lookups / LOOKUPS_PER_S - time.monotonic()))
    syncs.sort()
    print(json.dumps({
        "lookups_per_s": lookups / (time.monotonic() - began),
        "sync_p50_ms": 1000 * syncs[len(syncs) // 2],
        "sync_p99_ms": 1000 * syncs[len(syncs) * 99 // 100],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
