"""Histories of real processes: appends, registers, a bank, scans and deletes, judged for strict snapshot isolation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from history_worker import TOTAL, amount_of, set_up

import pyomid
from pyomid.server.leadership import holder
from pyomid.testing.checker import check_sums, demand
from pyomid.testing.history import History, Recorder, Scan, Write, merged

pytestmark = pytest.mark.process

WORKER = Path(__file__).with_name("history_worker.py")


def start_worker(url: str, folder: Path, name: str, seed: int, transactions: int) -> subprocess.Popen[bytes]:
    arguments = [url, str(folder / f"{name}.jsonl"), name, str(seed), str(transactions)]
    return subprocess.Popen([sys.executable, str(WORKER), *arguments])


def judged(folder: Path) -> History:
    history = merged(sorted(folder.glob("*.jsonl")))
    demand(history)
    wrong = check_sums(_bank_scans(history), TOTAL, amount_of)
    assert not wrong, "\n".join(map(str, wrong))
    return history


def _bank_scans(history: History) -> History:
    """The same transactions with their scans of the bank only."""

    def kept(op: object) -> bool:
        return isinstance(op, Write) or (isinstance(op, Scan) and op.table == "bank")

    return History([replace(txn, operations=[op for op in txn.operations if kept(op)]) for txn in history.transactions])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"omid://{tmp_path}/db?tsoIdleExitSeconds=1"


@pytest.mark.long
def test_four_processes_are_strictly_snapshot_isolated(url: str, tmp_path: Path) -> None:
    with pyomid.connect(url) as database:
        set_up(database, Recorder(tmp_path / "setup.jsonl"))
        workers = [start_worker(url, tmp_path, f"P{number}", number, 150) for number in range(4)]
        assert [worker.wait(120) for worker in workers] == [0] * 4
    history = judged(tmp_path)
    outcomes = [txn.outcome for txn in history.transactions]
    assert outcomes.count("committed") > 100
    assert outcomes.count("aborted") > 0, "no conflicts: the workload is too gentle to say anything"


def test_killed_clients_and_a_killed_tso_leave_a_strict_history(url: str, tmp_path: Path) -> None:
    """Two of four clients and the TSO are killed on the way; unknown commits are whole and for ever, or not at all."""
    with pyomid.connect(url) as database:
        set_up(database, Recorder(tmp_path / "setup.jsonl"))
        workers = [start_worker(url, tmp_path, f"P{number}", number, 200) for number in range(4)]
        wait_for_lines(tmp_path / "P0.jsonl", 40)
        workers[0].send_signal(signal.SIGKILL)
        wait_for_lines(tmp_path / "P2.jsonl", 80)
        os.kill(int(holder(tmp_path / "db")["pid"]), signal.SIGKILL)
        wait_for_lines(tmp_path / "P1.jsonl", 160)
        workers[1].send_signal(signal.SIGKILL)
        assert [worker.wait(120) for worker in workers[2:]] == [0, 0]
        workers[0].wait(10)
        workers[1].wait(10)
        after = start_worker(url, tmp_path, "P9", 9, 50)
        assert after.wait(60) == 0
    history = judged(tmp_path)
    assert sum(txn.outcome == "committed" for txn in history.transactions) > 100


def wait_for_lines(path: Path, count: int, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < deadline, f"{path.name} never reached {count} lines"
        time.sleep(0.01)
