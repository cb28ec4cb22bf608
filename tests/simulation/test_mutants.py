"""The mutation gate: every rule of hazards.md, taken out of the core, turns a named run red."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyomid.errors import Misuse
from pyomid.testing.simulation.build import Build, Patch, source_of
from pyomid.testing.simulation.directed import SCHEDULES
from pyomid.testing.simulation.mutants import ELSEWHERE, MUTANTS, Mutant, hunt
from pyomid.testing.simulation.runs import run_seed

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
HAZARDS = (ROOT / "docs" / "hazards.md").read_text(encoding="utf-8")
RULES = re.findall(r"^\| ([A-Z]\d+) \|", HAZARDS, re.MULTILINE)
"""Every rule of docs/hazards.md."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_without_the_rule_a_run_goes_red(mutant: Mutant) -> None:
    found = hunt(mutant)
    assert found.where, f"nobody notices that {mutant.without}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_that_embodies_the_rule_is_there_once(mutant: Mutant) -> None:
    mutant.patch.apply(source_of(mutant.patch.module))


def test_the_seeds_that_catch_mutants_are_green_without_them() -> None:
    """The directed schedules are held green by test_directed.py, more seeds by test_simulation.py."""
    build = Build()
    for mutant in MUTANTS:
        if not mutant.directed:
            seed = int(hunt(mutant).where.removeprefix("seed "))
            report = run_seed(seed, build)
            assert report.ok, str(report)


def test_every_mutant_names_a_schedule_that_exists() -> None:
    assert {mutant.directed for mutant in MUTANTS if mutant.directed} <= set(SCHEDULES)


def test_every_rule_has_a_mutant_or_a_named_test() -> None:
    assert len(RULES) > 35
    inside = {re.match(r"[A-Z]\d+", mutant.name).group() for mutant in MUTANTS}  # type: ignore[union-attr]
    missing = [rule for rule in RULES if rule not in inside and rule not in ELSEWHERE]
    assert not missing, f"rules without a test that goes red: {missing}"


@pytest.mark.parametrize("rule", ELSEWHERE)
def test_the_named_test_exists(rule: str) -> None:
    for place in ELSEWHERE[rule]:
        path, _, name = place.partition("::")
        text = (ROOT / path).read_text()
        assert re.search(rf"def {name}\b", text), f"{rule}: {path} has no {name}"


def test_a_patch_whose_text_is_gone_is_refused() -> None:
    with pytest.raises(Misuse, match="0 times"):
        Build([Patch("reading", "this text is nowhere", "")])


def test_a_patch_reaches_every_importer_inside_its_build_only() -> None:
    patched = Build([Patch("reading", "    if snapshot.start_ts <= watermark:\n", "    if False:\n")])
    plain = Build()
    assert patched.compaction.resolve_steps is patched.reading.resolve_steps
    assert patched.compaction.resolve_steps is not plain.compaction.resolve_steps
    assert plain.effects is patched.effects
