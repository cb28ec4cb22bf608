"""folder.md's laws of turn and areas hold in every interleaving, and each of them is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from posted_requests import RULES, Model, World
from search import Verdict, explore

pytestmark = [pytest.mark.fast, pytest.mark.long]

UNIVERSES = {
    "two owners": Model(((0, 0), (0, 1)), withdraws=True),
    "two owners and a successor": Model(((0, 0), (0, 1), (0, 0)), kills_max=2),
    "a lost turn": Model(((0, 0), (0, 1)), lost_max=1, withdraws=True),
    "a torn file": Model(((0, 0), (0, 1)), lost_max=1, tears_max=1),
    "the file vanishes": Model(((0, 0), (1, 0), (0, 1)), kills_max=1),
}

CAUGHT_IN = {
    "outcome_written": "two owners",
    "outcome_looked_up": "a lost turn",
    "owner_looks_too": "two owners",
    "outcome_of_file": "the file vanishes",
    "unique_number": "two owners and a successor",
    "number_in_content": "two owners and a successor",
    "owner_lives": "two owners",
    "withdraw_posted": "two owners",
    "done_is_a_hint": "a torn file",
}


def visited(model: Model) -> Verdict[World]:
    verdict = explore(model.first(), model.steps, model.violation_of, worlds_max=600_000, has_ended=model.has_ended)
    print(verdict)
    return verdict


@pytest.mark.parametrize("name", UNIVERSES)
def test_the_laws_of_posted_requests_hold_in_every_world(name: str) -> None:
    assert visited(UNIVERSES[name]).violation is None


@pytest.mark.parametrize("rule", RULES)
def test_without_a_law_of_posted_requests_there_is_an_accident(rule: str) -> None:
    without: dict[str, Any] = {rule: False}
    assert visited(replace(UNIVERSES[CAUGHT_IN[rule]], **without)).violation is not None
