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

import pyomid
from portions import first
from pyomid.client.database import Database

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

WORKERS = 2


def tso_pid(url: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((Path(urlsplit(url).path) / "tso.lock").read_text())["pid"])
    return None


def workers_of(idents: set[bytes]) -> set[bytes]:
    return {ident.partition(b"-")[0] for ident in idents}


@pytest.mark.parametrize("kills", first(1, (5, 16)))
def test_a_tso_killed_with_commits_in_flight_loses_nothing_and_misleads_nobody(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path, kills: int
) -> None:
    """Starts that end soon are paced (T14): from the seventh on, one in 5 s."""
    seed = int(os.environ.get("PYOMID_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"PYOMID_SEED={seed}")
    chance = random.Random(seed)
    acknowledged = str(tmp_path / "acknowledged")
    workers = [
        processes.start(run_worker, Order(bank_url, side, acknowledged, transactions=100_000))
        for side in range(WORKERS)
    ]
    killed: set[int] = set()
    while len(killed) < kills:
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
    assert audit(bank, acknowledged, by_rows=True).transfers >= kills


TTL_S = 6.0


def expiring(url: str, key: bytes) -> float:
    """A value in a table with a time to live, and when it is due. The TSO has noted no time since it was put."""
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"], ttl_seconds=TTL_S)
        with db.begin() as tx:
            tx.table("t").put(key, {b"f:x": b"1"})
        return time.time() + TTL_S + LATE_S


LATE_S = 2.0
"""What was committed before a kill is dated up to a second late; points of a table are a second apart."""


def wait_until(due_s: float) -> None:
    while time.time() < due_s:
        time.sleep(0.05)


def is_seen(db: Database, key: bytes) -> bool:
    with db.snapshot() as tx:
        return bool(tx.table("t").get(key))


@pytest.mark.long
def test_e6_a_value_of_a_killed_tso_and_one_of_a_backup_are_gone_when_they_are_due(tmp_path: Path) -> None:
    url, copy = f"omid://{tmp_path}/db", f"omid://{tmp_path}/copy"
    due_s = expiring(url, b"k")
    with pyomid.connect(url) as db:
        db.backup(tmp_path / "backup")
        pid = tso_pid(url)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        db._core.abandon()
    wait_until(due_s)
    pyomid.restore(tmp_path / "backup", copy)
    for place in (url, copy):
        with pyomid.connect(place) as db:
            assert not is_seen(db, b"k"), f"{place}: it lives for a whole further time"


@pytest.mark.long
def test_e6_a_value_whose_tso_was_stopped_is_gone_when_it_is_due(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as db:
        due_s = expiring(url, b"k")
        pid = tso_pid(url)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(due_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert not is_seen(db, b"k")
