"""Random universes of the real core: safety under faults, liveness without, by seed.

A failing seed prints its interleaving; `python -m simulation --from SEED --seeds 1` plays it again.
"""

from __future__ import annotations

import os

import pytest

from portions import first
from simulation.__main__ import main
from simulation.build import Build
from simulation.runs import run_seed

SOAK_SEEDS = int(os.environ.get("PYOMID_SOAK_SEEDS", "5000"))


@pytest.fixture(scope="module")
def build() -> Build:
    return Build()


@pytest.mark.fast
@pytest.mark.parametrize("begin", first(3, range(1, 100, 10)))
def test_ten_universes_are_safe_and_live(build: Build, begin: int) -> None:
    for seed in range(begin, begin + 10):
        report = run_seed(seed, build)
        assert report.ok, str(report)


@pytest.mark.fast
def test_a_seed_is_one_universe(build: Build) -> None:
    assert run_seed(7, build) == run_seed(7, build)


@pytest.mark.fast
def test_the_universes_are_not_empty(build: Build) -> None:
    reports = [run_seed(seed, build) for seed in range(1, 6)]
    assert sum(report.committed for report in reports) >= 20
    assert any(report.aborted for report in reports)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_universes() -> None:
    assert main(["--seeds", str(SOAK_SEEDS), "--from", "1000"]) == 0
