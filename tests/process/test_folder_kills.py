"""Processes that commit to one folder, and perform each other's commits, while some are killed (folder.md, L2–L6)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyomid

pytestmark = pytest.mark.process

WORKER = """
import random, sys
import pyomid
from pyomid.errors import ConflictError

url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(name)
with pyomid.connect(url) as db:
    for number in range(count):
        while True:
            tx = db.begin()
            table = tx.table("t")
            a, b = rng.sample(range(20), 2)
            for row, change in ((a, -1), (b, 1)):
                key = b"account %d" % row
                value = int((table.get(key) or {}).get(b"f:v", b"0"))
                table.put(key, {b"f:v": b"%d" % (value + change)})
            table.put(b"done %s %d" % (name.encode(), number), {b"f:v": b"%d" % (a * 100 + b)})
            try:
                tx.commit()
                break
            except ConflictError:
                continue
        print(number, flush=True)
"""


def run_workers(url: str, victims: dict[str, str], count: int, others: int) -> dict[str, list[int]]:
    """Run workers to their ends; return what each was told is committed. `victims`: name → crash point."""
    running = {}
    for name in [*victims, *(f"other{number}" for number in range(others))]:
        env = {**os.environ, **({"PYOMID_CRASH_AT": victims[name]} if name in victims else {})}
        # A victim goes on until it meets its point: on a busy machine it may find the turn free for long.
        command = [sys.executable, "-c", WORKER, url, name, str(50 * count if name in victims else count)]
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    told = {name: list(map(int, worker.communicate(timeout=300)[0].split())) for name, worker in running.items()}
    for name, worker in running.items():
        assert worker.returncode == (-9 if name in victims else 0), name
    return told


def check_books(url: str, told: dict[str, list[int]]) -> None:
    """Everything acknowledged is there once, and every transfer is whole."""
    with pyomid.connect(url) as db, db.begin() as tx:
        rows = {key: int(row[b"f:v"]) for key, row in tx.table("t").scan()}
    done = {key: value for key, value in rows.items() if key.startswith(b"done")}
    for name, numbers in told.items():
        for number in numbers:
            assert b"done %s %d" % (name.encode(), number) in done
    balances = dict.fromkeys(range(20), 0)
    for value in done.values():
        balances[value // 100] -= 1
        balances[value % 100] += 1
    assert {row: rows.get(b"account %d" % row, 0) for row in balances} == balances


@pytest.mark.parametrize("point", ["storage.commit.posted:1", "storage.commit.taken:9", "storage.commit.durable:9"])
def test_a_killed_process_loses_and_doubles_no_commit(tmp_path: Path, point: str) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
    told = run_workers(url, {"victim0": point, "victim1": point}, count=60, others=3)
    assert all(len(numbers) == 60 for name, numbers in told.items() if name.startswith("other"))
    check_books(url, told)


def test_a_shared_file_that_is_deleted_meanwhile_loses_no_commit(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
        told = {}
        for turn in range(3):
            (tmp_path / "db" / "data" / "shared").unlink()
            told.update({f"{turn}{name}": numbers for name, numbers in run_named(url, turn).items()})
            with db.begin() as tx:
                tx.table("t").put(b"kept open", {b"f:w": b"1"})
    assert sum(map(len, told.values())) == 3 * 3 * 20


def run_named(url: str, turn: int) -> dict[str, list[int]]:
    return run_workers(url, {}, count=20, others=3)
