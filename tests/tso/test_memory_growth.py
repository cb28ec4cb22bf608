"""A TSO's memory does not grow with the transactions it has seen: the real process under the compiled generator."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from service_process import Service, served

ROOT = Path(__file__).parents[2]
WARM_UP = 2_000_000
"""Transactions until everything of fixed size is filled: the conflict map above all."""

GROWTH_BYTES_MAX = 8
"""Per transaction: half of what a forgotten commit-table entry, the smallest thing that could leak, would cost."""


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("the load generator needs gcc")
    program = tmp_path_factory.mktemp("load") / "load"
    source = ROOT / "benchmarks" / "tso" / "load.c"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source), "-lm"], check=True)
    return program


def transactions(running: Service) -> float:
    return sum(
        value
        for name, value in running.metrics().items()
        if name.startswith(("pyomid_tso_commits_total", "pyomid_tso_aborts_total"))
    )


def run_until(running: Service, generator: Path, total: float, *options: str) -> None:
    """The generator checks each reply; a wrong one ends it with an error."""
    turn = 0
    while transactions(running) < total:
        turn += 1
        command = [str(generator), "--connect", running.address, "--connections", "32", "--outstanding", "128"]
        command += ["--seconds", "0.5", "--warmup", "0.1", "--seed", str(turn), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["violations"] == 0
        sanitize(running)


def sanitize(running: Service) -> None:
    """Delete the entries, as clients do once they completed: here when W has passed them."""
    session = running.session(request_s=60.0)
    newest = session.status().last_ts
    while (watermark := session.status().watermark) < newest:
        time.sleep(0.1)
    session.advance_horizon(watermark)
    session.close()


def check_growth(tmp_path: Path, generator: Path, count: int, *options: str) -> None:
    options = (*options, "--extended")
    store = "omid-memory:tso?maxTransactionAgeSeconds=1"
    with served(tmp_path, "--metrics", "127.0.0.1:0", store=store, conflict_map_entries=500_000) as running:
        run_until(running, generator, WARM_UP, *options)
        before, seen_before = running.resident_bytes, transactions(running)
        for share in (0.1, 0.5, 1.0):
            run_until(running, generator, seen_before + share * count, *options)
            seen = transactions(running) - seen_before
            grown = running.resident_bytes - before
            print(f"{seen:.0f} transactions, {before >> 20} MiB resident before, {grown / 2**20:.1f} MiB more after")
        assert grown <= GROWTH_BYTES_MAX * min(seen, 10_000_000)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_transactions(tmp_path: Path, generator: Path) -> None:
    check_growth(tmp_path, generator, 2_000_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_memory_does_not_grow_over_a_hundred_million_transactions(tmp_path: Path, generator: Path) -> None:
    check_growth(tmp_path, generator, 100_000_000, "--connections", "64", "--outstanding", "256")
