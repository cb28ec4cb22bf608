"""A client frozen by SIGSTOP at any step (C6): everybody else goes on, and it finishes rightly when it wakes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from bank_process import Order, audit, run_worker, transaction_points
from forked_processes import Processes

from pyomid.client.database import Database

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

STOPPABLE = transaction_points()


def wait_for_stop(pid: int) -> None:
    """Until the kernel says that every thread of the process is stopped."""
    while True:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return
        os.sched_yield()


@pytest.mark.parametrize("point", STOPPABLE)
def test_while_a_client_is_frozen_at_any_step_others_commit_and_it_finishes_when_it_wakes(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path, point: str
) -> None:
    acknowledged, note = str(tmp_path / "acknowledged"), tmp_path / "note"
    frozen = processes.start(
        run_worker,
        Order(bank_url, 1, acknowledged, transactions=8, crash_at=point, crash_how="stop", crash_note=str(note)),
    )
    while not note.exists():
        assert frozen.is_alive(), "the point was not reached"
        os.sched_yield()
    assert frozen.pid is not None
    wait_for_stop(frozen.pid)
    others = str(tmp_path / "others")
    assert processes.run(run_worker, Order(bank_url, 2, others, transactions=8)) == 0
    assert audit(bank, others).transfers >= 6
    os.kill(frozen.pid, signal.SIGCONT)
    assert processes.finish(frozen) == 0
    audit(bank, others)
    found = audit(bank, acknowledged)
    assert found.transfers == 12
