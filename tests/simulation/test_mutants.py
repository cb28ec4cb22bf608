"""The mutation gate: every rule of hazards.md and folder.md, taken out, turns a named run red."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from string import ascii_lowercase

import pytest
from shipped_mutants import SHIPPED_MUTANTS

from pyomid.errors import Misuse
from simulation.build import Build
from simulation.directed import SCHEDULES
from simulation.hooks import Hook, answers
from simulation.mutants import ELSEWHERE, MUTANTS, Mutant, hunt
from simulation.runs import run_seed

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
HAZARDS = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("hazards.md", "folder.md"))
RULES = re.findall(r"^- \*\*([A-HJ-Z]\d+)\*\*", HAZARDS, re.MULTILINE)
"""Every rule, but not the invariants, which follow from all of them."""
BROKEN = ("TypeError", "AttributeError", "NameError", "ImportError")
"""What a replacement raises that does not fit any more: no rule was shown."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_without_the_rule_a_run_goes_red(mutant: Mutant) -> None:
    found = hunt(mutant)
    assert found.where, f"nobody notices that {mutant.without}"
    assert not found.failure.startswith(BROKEN), f"the mutant itself is broken: {found.failure}"


def test_every_hook_names_what_exists() -> None:
    """In a second: what a rename has to change beside the names."""
    Build([mutant.hook for mutant in MUTANTS])


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
    removed = {mutant.name.rstrip(ascii_lowercase) for mutant in (*MUTANTS, *SHIPPED_MUTANTS)}
    assert sorted(RULES) == sorted(removed | set(ELSEWHERE))
    assert not removed & set(ELSEWHERE), "a rule with a mutant needs no other entry"


def test_every_named_test_exists() -> None:
    named = [mutant.red_in for mutant in SHIPPED_MUTANTS if isinstance(mutant.red_in, str) and "::" in mutant.red_in]
    inherited = (ROOT / "tests/support/conformance.py").read_text()
    for place in chain(named, *ELSEWHERE.values()):
        path, *_, name = place.partition("[")[0].split("::")
        assert re.search(rf"def {name}\b", (ROOT / path).read_text() + inherited), f"there is no {place}"


@pytest.mark.parametrize(
    "place",
    [
        "protocol.reading:no_such_function",
        "protocol.reading:Snapshot.no_such_method",
        "protocol.reading:NoSuchClass.method",
        "protocol.reading:_OPEN",
        "protocol.reading:Snapshot",
        "protocol.no_such_module:f",
        "protocol.effects:ReadRows",
        "database.table_admin:drop_table",
    ],
)
def test_a_hook_whose_place_is_gone_is_refused(place: str) -> None:
    """Else a mutant that changes nothing, or breaks its build, would pass for one that was caught."""
    with pytest.raises(Misuse, match=r"names nothing|has no module"):
        Build([Hook(place, answers(None))])


def test_a_hook_reaches_every_importer_inside_its_build_only() -> None:
    hooked = Build([Hook("protocol.reading:resolve", answers(None))])
    plain = Build()
    assert hooked.compaction.resolve is hooked.reading.resolve
    assert hooked.compaction.resolve() is None
    assert hooked.compaction.resolve is not plain.compaction.resolve
    assert plain.effects is hooked.effects
