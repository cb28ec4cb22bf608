"""The mutation gate of the shipped code: each rule taken out of it turns a named run red."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import front_end_world
import pytest
from front_end_schedules import SCHEDULES, play_schedule
from populations import Populate
from shipped_mutants import SHIPPED_MUTANTS, ShippedMutant
from test_front_ends import play

import pyomid.wiring
import watched_descriptors
from simulation.build import Build
from simulation.hooks import installed

pytestmark = [pytest.mark.fast, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 121)
BROKEN = ("TypeError", "AttributeError", "NameError", "ImportError")
"""What a replacement raises that does not fit any more: no rule was shown."""

_ALONE = ["-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:timeout", "-W", "ignore"]
"""A run inside another one: what that one does for time and order, this one leaves alone."""


class Reports:
    """What the tests of a run inside this one ended with."""

    def __init__(self) -> None:
        self.ran = 0
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed:
            assert report.when == "call" or self.failures, f"{report.nodeid} was not reached: {report.longreprtext}"
            self.failures.append(report.longreprtext)


def failure_of(red_in: str | Populate) -> str:
    """Of what must go red; empty: it stayed green."""
    if not isinstance(red_in, str):
        return _failure_of_universes(red_in)
    if red_in in SCHEDULES:
        try:
            play_schedule(red_in)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""
    reports = Reports()
    with patch.dict(pyomid.wiring._memory_databases, clear=True):  # else a test finds what its last run left
        pytest.main([*_ALONE, "--rootdir", str(ROOT), str(ROOT / red_in)], plugins=[reports])
    watched_descriptors.faults(None)  # of the run without a rule, not of the one around it
    assert reports.ran, f"{red_in} is no test"
    return _last_error(reports.failures[0]) if reports.failures else ""


def _failure_of_universes(populate: Populate) -> str:
    for seed in SEEDS:
        try:
            play(seed, populate)
        except AssertionError as error:
            return f"seed {seed}: {error.__cause__}"
    return ""


def is_nested(mutant: ShippedMutant) -> bool:
    """Whether a test goes red without the rule, in a pytest of its own, not a schedule or a universe."""
    return isinstance(mutant.red_in, str) and mutant.red_in not in SCHEDULES


def _last_error(text: str) -> str:
    """`AssertionError: …`, the line that pytest marks with an E first."""
    return next((line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E ")), text)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.long] if is_nested(mutant) else [])
        for mutant in SHIPPED_MUTANTS
    ],
)
def test_without_the_rule_a_run_goes_red(mutant: ShippedMutant) -> None:
    build = Build([hook for hook in mutant.hooks if hook.module.startswith(("protocol.", "omid.oracle."))])
    with installed(mutant.hooks), patch.object(front_end_world, "BUILD", build):  # whose TSO is of a build
        failure = failure_of(mutant.red_in)
    print(failure[:300])
    assert failure, f"nobody notices that {mutant.without}"
    assert not failure.startswith(BROKEN), f"the mutant itself is broken: {failure}"


def test_every_hook_names_what_exists() -> None:
    """In a second: what a rename has to change beside the names."""
    with installed([hook for mutant in SHIPPED_MUTANTS for hook in mutant.hooks]):
        pass


def test_no_two_mutants_have_one_name() -> None:
    names = [mutant.name for mutant in SHIPPED_MUTANTS]
    assert len(set(names)) == len(names)
