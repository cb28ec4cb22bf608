"""folder.md's laws of snapshots and W hold in every interleaving, and each of them is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from folder_slots import RULES, WITHOUT_A_PLACE, Model, World
from search import Verdict, explore

pytestmark = [pytest.mark.fast, pytest.mark.long]

UNIVERSES = {
    "two threads": Model((0, 0)),
    "three threads": Model((0, 0, 0), commits_max=2, rounds_max=1),
    "two processes": Model((0, 1), commits_max=2, kills=True),
    "no place": Model((WITHOUT_A_PLACE,)),
    "age": Model((0,), ages=True),
}

CAUGHT_IN = {
    "noted_before_clock": "two processes",
    "clock_before_slots": "two processes",
    "slot_is_oldest": "three threads",
    "noted_is_low": "two threads",
    "checked_in_read": "no place",
    "raised_before_removal": "no place",
    "dead_do_not_hold": "two processes",
    "old_do_not_hold": "age",
}


def visited(model: Model) -> Verdict[World]:
    verdict = explore(model.first(), model.steps, model.violation_of, worlds_max=600_000)
    print(verdict)
    return verdict


@pytest.mark.parametrize("name", UNIVERSES)
def test_the_laws_of_snapshots_hold_in_every_world(name: str) -> None:
    assert visited(UNIVERSES[name]).violation is None


@pytest.mark.parametrize("rule", RULES)
def test_without_a_law_of_snapshots_there_is_an_accident(rule: str) -> None:
    without: dict[str, Any] = {rule: False}
    assert visited(replace(UNIVERSES[CAUGHT_IN[rule]], **without)).violation is not None
