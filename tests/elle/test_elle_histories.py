"""Clients append to lists and write registers beside a process that is killed amid its commits again and again, and
Elle judges what they saw. That process performs commits of the others too.

Elle is not ours: ELLE_CLI names its command (github.com/ligurio/elle-cli). Without it our own judge reads the same
histories, which no part of Elle's has seen then, and the test says so.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from elle_histories import MODELS, as_history, as_lists, judged_by_elle, merged, write_edn, write_json
from elle_workload import WORKERS_MAX, prepare

from pyomid.testing.checker import check

WORKLOAD = Path(__file__).with_name("elle_workload.py")
TRANSACTIONS = int(os.environ.get("ELLE_TRANSACTIONS", "20000"))
"""Of one soak's history."""
SPARK_TRANSACTIONS = int(os.environ.get("ELLE_SPARK_TRANSACTIONS", "300"))
GROWN_MIN, GROWN_MIN_BESIDE_SPARK = 400_000, 4_000
"""Bytes that each process records between two kills: about a thousand transactions, and ten of Spark's."""
POINT_FRONTS = ("blocking", "asyncio")


def recorded(url: str, model: str, front: str, folder: Path, transactions: int, *, seed: int, kills: bool) -> list[Any]:
    """The history of two processes of eight clients each."""
    options = ("--transactions", str(transactions // 2))
    return played(url, model, [(front, options), (front, options)], folder, seed=seed, kills=kills)


def recorded_beside_spark(
    url: str, model: str, folder: Path, transactions: int, *, seed: int, kills: bool
) -> list[Any]:
    """The history of so many transactions of Spark's, and of those of a blocking and an asyncio process beside it. They
    write seldom, or no transaction that takes a second would ever win."""
    keys = ("--keys", "200", "--seconds-a-key", "0.5", *(["--blind"] if model == "list-append" else []))
    until_spark_ends = (*keys, "--write-chance", "0.02", "--workers", "1", "--until", str(folder / "ended"))
    spark = (*keys, "--workers", "3", "--transactions", str(transactions))
    orders = [("spark", spark), ("blocking", until_spark_ends), ("asyncio", until_spark_ends)]
    return played(url, model, orders, folder, seed=seed, kills=kills)


def played(
    url: str, model: str, orders: list[tuple[str, tuple[str, ...]]], folder: Path, *, seed: int, kills: bool
) -> list[Any]:
    """Of processes of (front end, options); once the first has ended, the file `ended` is there."""
    files = [folder / f"{number}-{front}" for number, (front, _) in enumerate(orders)]
    running = [
        subprocess.Popen(
            [
                *(sys.executable, WORKLOAD, url, model, front, file, "--seed", str(seed + number)),
                *("--first-process", str(WORKERS_MAX * number), *options),
            ]
        )
        for number, ((front, options), file) in enumerate(zip(orders, files, strict=True))
    ]
    killed = 0
    beside = bystander(url) if kills else None
    sizes_before = [0] * len(files)
    has_spark = any(front == "spark" for front, _ in orders)
    grown_min = GROWN_MIN_BESIDE_SPARK if has_spark else GROWN_MIN
    try:
        for each in running:
            while True:
                try:
                    assert each.wait(timeout=5 if kills else None) == 0
                    (folder / "ended").touch()
                    break
                except subprocess.TimeoutExpired:
                    # Only once everybody came on since the last one: on a busy machine nobody else ever would.
                    sizes = [file.stat().st_size if file.exists() else 0 for file in files]
                    if min(now - before for now, before in zip(sizes, sizes_before, strict=True)) >= grown_min:
                        sizes_before = sizes
                        if beside is not None:
                            beside.kill()
                            beside.wait()
                            killed, beside = killed + 1, bystander(url)
    finally:
        for each in running if beside is None else [*running, beside]:
            each.kill()
            each.wait()
    print(f"{killed} processes killed")
    return merged(files)


BYSTANDER = """
import sys, pyomid
with pyomid.connect(sys.argv[1]) as db:
    db.create_table("bystander", ["f"], if_not_exists=True)
    while True:
        with db.begin() as tx:
            tx.table("bystander").put(b"k", {b"f:n": b"1"})
"""


def bystander(url: str) -> subprocess.Popen[bytes]:
    """A process that commits for ever, and so performs others' commits."""
    return subprocess.Popen([sys.executable, "-c", BYSTANDER, url])


def demand(model: str, operations: list[Any], path: Path) -> None:
    """Of our own judge, and of Elle where it is here."""
    counts = {kind: sum(each[1] == kind for each in operations) for kind in ("invoke", "ok", "fail", "info")}
    assert counts["ok"] > counts["invoke"] // 10, counts
    own = check(as_history(operations))
    assert own.ok, str(own)
    asked = time.monotonic()
    write_edn(operations, path)
    verdict = judged_by_elle(model, path)
    if verdict is None:
        pytest.skip(
            f"Elle judged nothing, as ELLE_CLI names no elle-cli; our own judge read {path.name}: {own}, {counts}"
        )
    print(f"elle of {path.name}: {verdict}, {counts}, in {time.monotonic() - asked:.0f} s")
    assert verdict == "true", verdict


def demand_both_ways(folder: Path) -> None:
    """Some commit requests held all cells, and some came after a flush."""
    commits = sum((Counter(json.loads(file.read_text())) for file in folder.glob("*.commits")), Counter())
    print(dict(commits))
    assert min(commits["packed"], commits["flushed"]) > commits.total() // 10, commits


def demand_of_registers_as_lists(operations: list[Any], path: Path) -> None:
    write_edn(as_lists(operations), path)
    verdict = judged_by_elle("list-append", path)
    assert verdict in (None, "true"), verdict


@pytest.mark.process
@pytest.mark.parametrize("front", POINT_FRONTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_short_history_is_strictly_snapshot_isolated(model: str, front: str, tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    prepare(url)
    operations = recorded(url, model, front, tmp_path, 300, seed=1, kills=False)
    demand_both_ways(tmp_path)
    own = check(as_history(operations))
    assert own.ok, str(own)
    write_edn(operations, tmp_path / "history.edn")
    assert judged_by_elle(model, tmp_path / "history.edn") in (None, "true")
    if model == "rw-register":
        demand_of_registers_as_lists(operations, tmp_path / "lists.edn")


@pytest.mark.soak
@pytest.mark.parametrize("front", POINT_FRONTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_history_with_killed_tsos_is_strictly_snapshot_isolated(model: str, front: str, tmp_path: Path) -> None:
    url, seed = f"omid://{tmp_path}/db", random.randrange(1 << 30)
    print("seed", seed)
    prepare(url)
    operations = recorded(url, model, front, tmp_path, TRANSACTIONS, seed=seed, kills=True)
    demand_both_ways(tmp_path)
    if model == "rw-register":
        demand_of_registers_as_lists(operations, tmp_path / "lists.edn")
    demand(model, operations, tmp_path / f"{model}-{front}.edn")


@pytest.mark.soak
@pytest.mark.parametrize("model", MODELS)
def test_a_history_beside_spark_is_strictly_snapshot_isolated(model: str, tmp_path: Path) -> None:
    url, seed = f"omid://{tmp_path}/db", random.randrange(1 << 30)
    print("seed", seed)
    prepare(url)
    operations = recorded_beside_spark(url, model, tmp_path, SPARK_TRANSACTIONS, seed=seed, kills=True)
    demand(model, operations, tmp_path / f"{model}-spark.edn")


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


STALE_REGISTER = [
    [1, "invoke", 0, [["r", 7, None], ["w", 7, 1]]],
    [2, "ok", 0, [["r", 7, None], ["w", 7, 1]]],
    [3, "invoke", 0, [["r", 7, None], ["w", 7, 2]]],
    [4, "ok", 0, [["r", 7, 1], ["w", 7, 2]]],
    [5, "invoke", 1, [["r", 7, None]]],
    [6, "ok", 1, [["r", 7, 1]]],
]
"""The register's former value, begun after the write of 2 was acknowledged."""


@pytest.mark.fast
def test_a_stale_read_of_a_register_is_refused(tmp_path: Path) -> None:
    write_edn(as_lists(STALE_REGISTER), tmp_path / "wrong.edn")
    verdict = judged_by_elle("list-append", tmp_path / "wrong.edn")
    assert verdict is None or verdict.startswith("false")
    assert not check(as_history(STALE_REGISTER)).ok


@pytest.mark.fast
def test_a_register_is_the_list_of_what_it_held() -> None:
    told = [ops for _, kind, _, ops in as_lists(STALE_REGISTER) if kind == "ok"]
    assert told == [
        [["r", 7, []], ["append", 7, 1]],
        [["r", 7, [1]], ["append", 7, 2]],
        [["r", 7, [1]]],
    ]


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
