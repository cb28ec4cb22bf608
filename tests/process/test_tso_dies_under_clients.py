"""kill −9 of the folder's TSO while clients work: they find the next one, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bank_process import Order, acknowledged_ids, audit, run_worker
from forked_processes import Processes

from pyomid.client.database import Database

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

KILLS = 16
"""Starts that end soon are paced (T14): from the seventh on, one in 5 s."""
WORKERS = 2


def tso_pid(url: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((Path(urlsplit(url).path) / "tso.lock").read_text())["pid"])
    return None


def workers_of(idents: set[bytes]) -> set[bytes]:
    return {ident.partition(b"-")[0] for ident in idents}


def test_a_tso_killed_with_commits_in_flight_loses_nothing_and_misleads_nobody(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PYOMID_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"PYOMID_SEED={seed}")
    chance = random.Random(seed)
    acknowledged = str(tmp_path / "acknowledged")
    workers = [
        processes.start(run_worker, Order(bank_url, side, acknowledged, transactions=100_000))
        for side in range(WORKERS)
    ]
    killed: set[int] = set()
    while len(killed) < KILLS:
        pid, done = tso_pid(bank_url), acknowledged_ids(acknowledged)
        if pid is not None and pid not in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        while len(workers_of(acknowledged_ids(acknowledged) - done)) < WORKERS:  # else one of them may starve
            assert all(worker.is_alive() for worker in workers), "a worker was misled"
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.02))
    for worker in workers:
        worker.kill()
        processes.finish(worker)
    assert audit(bank, acknowledged, by_rows=True).transfers >= KILLS
