"""Clients append to lists and write registers, the TSO is killed under them, and Elle judges what they saw.

Elle is not ours: ELLE_CLI names its command (github.com/ligurio/elle-cli). Without it our own judge reads the same
histories, which no part of Elle's has seen then, and the test says so.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elle_histories import MODELS, as_history, judged_by_elle, merged, write_edn, write_json
from elle_workload import prepare

from pyomid.testing.checker import check

WORKLOAD = Path(__file__).with_name("elle_workload.py")
TRANSACTIONS = int(os.environ.get("ELLE_TRANSACTIONS", "20000"))
"""Of one soak's history."""
POINT_FRONTS = ("blocking", "asyncio")


def recorded(url: str, model: str, front: str, folder: Path, transactions: int, *, seed: int, kills: bool) -> list[Any]:
    """The history of two processes of eight clients each."""
    files, half = [folder / f"{front}-{number}" for number in (0, 1)], str(transactions // 2)
    running = [
        subprocess.Popen(
            [
                *(sys.executable, WORKLOAD, url, model, front, file, "--seed", str(seed + number)),
                *("--first-process", str(1000 * number), "--transactions", half),
            ]
        )
        for number, file in enumerate(files)
    ]
    killed: set[int] = set()
    try:
        for each in running:
            while True:
                try:
                    assert each.wait(timeout=5 if kills else None) == 0
                    break
                except subprocess.TimeoutExpired:
                    kill_tso(url, killed)
    finally:
        for each in running:
            each.kill()
            each.wait()
    return merged(files)


def kill_tso(url: str, killed: set[int]) -> None:
    """Its clients start another one."""
    try:
        pid = json.loads((Path(url.removeprefix("omid://")) / "tso.lock").read_text())["pid"]
    except (OSError, ValueError, KeyError):
        return
    if pid and pid not in killed:
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)


def demand(model: str, operations: list[Any], path: Path) -> None:
    counts = {kind: sum(each[1] == kind for each in operations) for kind in ("invoke", "ok", "fail", "info")}
    assert counts["ok"] > counts["invoke"] // 10, counts
    write_edn(operations, path)
    verdict = judged_by_elle(model, path)
    if verdict is not None:
        print(f"elle of {path.name}: {verdict}, {counts}")
        assert verdict == "true", verdict
        return
    print(f"no ELLE_CLI: our own judge alone read {path.name}, {counts}")
    own = check(as_history(operations))
    assert own.ok, str(own)


@pytest.mark.process
@pytest.mark.parametrize("front", POINT_FRONTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_short_history_is_strictly_snapshot_isolated(model: str, front: str, tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    prepare(url)
    operations = recorded(url, model, front, tmp_path, 300, seed=1, kills=False)
    demand(model, operations, tmp_path / f"{model}-{front}.edn")
    own = check(as_history(operations))
    assert own.ok, str(own)


@pytest.mark.soak
@pytest.mark.parametrize("front", POINT_FRONTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_history_with_killed_tsos_is_strictly_snapshot_isolated(model: str, front: str, tmp_path: Path) -> None:
    url, seed = f"omid://{tmp_path}/db", random.randrange(1 << 30)
    print("seed", seed)
    prepare(url)
    operations = recorded(url, model, front, tmp_path, TRANSACTIONS, seed=seed, kills=True)
    demand(model, operations, tmp_path / f"{model}-{front}.edn")


LOST_UPDATE = [
    [1, "invoke", 0, [["r", 7, None], ["append", 7, 1]]],
    [2, "invoke", 1, [["r", 7, None], ["append", 7, 2]]],
    [3, "ok", 0, [["r", 7, []], ["append", 7, 1]]],
    [4, "ok", 1, [["r", 7, []], ["append", 7, 2]]],
    [5, "invoke", 0, [["r", 7, None]]],
    [6, "ok", 0, [["r", 7, [2]]]],
]
"""Both saw an empty list and appended: the first one's element is gone."""

STALE_READ = [
    [1, "invoke", 0, [["append", 7, 1]]],
    [2, "ok", 0, [["append", 7, 1]]],
    [3, "invoke", 1, [["r", 7, None]]],
    [4, "ok", 1, [["r", 7, []]]],
    [5, "invoke", 1, [["r", 7, None]]],
    [6, "ok", 1, [["r", 7, [1]]]],
]
"""Begun after the append was acknowledged, and it is not seen."""


@pytest.mark.fast
@pytest.mark.parametrize("operations", [LOST_UPDATE, STALE_READ], ids=["lost update", "stale read"])
def test_a_history_that_is_wrong_is_refused(operations: list[Any], tmp_path: Path) -> None:
    """By each judge that is there: else all others would say nothing."""
    write_edn(operations, tmp_path / "wrong.edn")
    verdict = judged_by_elle("list-append", tmp_path / "wrong.edn")
    assert verdict is None or verdict.startswith("false")
    assert not check(as_history(operations)).ok


@pytest.mark.fast
def test_a_history_is_written_as_elle_reads_it(tmp_path: Path) -> None:
    write_edn(LOST_UPDATE[:3], tmp_path / "h.edn")
    assert (tmp_path / "h.edn").read_text().splitlines() == [
        "{:index 0, :time 1, :type :invoke, :process 0, :f :txn, :value [[:r 7 nil] [:append 7 1]]}",
        "{:index 1, :time 2, :type :invoke, :process 1, :f :txn, :value [[:r 7 nil] [:append 7 2]]}",
        "{:index 2, :time 3, :type :ok, :process 0, :f :txn, :value [[:r 7 []] [:append 7 1]]}",
    ]
    write_json(LOST_UPDATE[2:3], tmp_path / "h.json")
    (only,) = json.loads((tmp_path / "h.json").read_text())
    assert only == {
        "index": 0, "time": 3, "type": "ok", "process": 0, "value": [["r", 7, []], ["append", 7, 1]], "f": "txn",
    }  # fmt: skip
