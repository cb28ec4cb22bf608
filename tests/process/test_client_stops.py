"""A client frozen by SIGSTOP at any step (C6): everybody else goes on, and it finishes rightly when it wakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bank_process import Order, audit, run_worker, transaction_points
from forked_processes import Processes

import pyomid
from pyomid.database.database import Database
from pyomid.errors import Unavailable
from pyomid.folder import environment

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


WRITES = """
import sys, pyomid
pyomid.connect(sys.argv[1]).create_table("theirs", ["f"])
"""


@contextmanager
def stopped_within_a_write(url: str, note: Path) -> Iterator[None]:
    where = {"PYOMID_CRASH_AT": "storage.commit.taken:3", "PYOMID_CRASH_HOW": "stop", "PYOMID_CRASH_NOTE": str(note)}
    with subprocess.Popen([sys.executable, "-c", WRITES, url], env=os.environ | where) as writer:
        try:
            wait_for_stop(writer.pid)
            yield
        finally:
            writer.kill()


@pytest.mark.parametrize(
    ("before", "call", "ended"),
    [
        ("pass", "pyomid.aio.connect(url)", "gave up\n"),
        (CONNECTS, "db.status()", ""),
        (CONNECTS, "db.create_table('other', ['f'])", "gave up\n"),
        (CONNECTS, "db.begin(lease=True)", "gave up\n"),
    ],
    ids=["connect", "status", "create_table", "lease"],
)
def test_a_program_ends_though_a_call_that_it_gave_up_still_waits(
    tmp_path: Path, before: str, call: str, ended: str
) -> None:
    """The thread of a call that opens or writes waits for half a minute for a process that stopped within a write;
    others do not wait."""
    url = f"omid://{tmp_path}/db"
    pyomid.connect(url).close()
    command = [sys.executable, "-c", GIVES_UP.format(before=before, call=call), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        with stopped_within_a_write(url, tmp_path / "note"):
            assert program.communicate("\n", timeout=20)[0] == ended
            assert program.returncode == 0


def test_an_opening_names_the_process_that_stopped_within_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"omid://{tmp_path}/db"
    pyomid.connect(url).close()
    monkeypatch.setattr(environment, "WRITER_WAIT_S", 0.3)
    with stopped_within_a_write(url, tmp_path / "note"), pytest.raises(Unavailable, match=r"process \d+"):
        pyomid.connect(url)
    with pyomid.connect(url) as db:
        db.create_table("ours", ["f"])
