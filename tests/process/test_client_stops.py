"""A client frozen by SIGSTOP at any step (C6): everybody else goes on, and it finishes rightly when it wakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bank_process import Order, audit, run_worker, transaction_points
from forked_processes import Processes

import pyomid
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


GIVES_UP = """
import asyncio, sys, pyomid.aio
async def main():
    url = sys.argv[1]
    {before}
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        async with asyncio.timeout(0.2):
            await {call}
    except TimeoutError:
        print("gave up", flush=True)
asyncio.run(main())
"""
CONNECTS = "db = await pyomid.aio.connect(url)"


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("pass", "pyomid.aio.connect(url)"),
        (CONNECTS, "db.create_table('other', ['f'])"),
        (CONNECTS, "db.status()"),
        (CONNECTS, "db.begin(lease=True)"),
    ],
    ids=["connect", "create_table", "status", "lease"],
)
def test_a_program_ends_though_a_call_that_it_gave_up_still_waits(tmp_path: Path, before: str, call: str) -> None:
    """The thread of the call would wait for an hour for the TSO, which is stopped."""
    url = f"omid://{tmp_path}/db?tsoIdleExitSeconds=1&commitRetrySeconds=3600"
    with pyomid.connect(url):
        pid = json.loads((tmp_path / "db" / "tso.lock").read_text())["pid"]
        code = GIVES_UP.format(before=before, call=call)
        program = subprocess.Popen(
            [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "ready\n"
            os.kill(pid, signal.SIGSTOP)
            assert program.communicate("\n", timeout=60)[0] == "gave up\n"
            assert program.returncode == 0
        finally:
            os.kill(pid, signal.SIGCONT)
            program.kill()
