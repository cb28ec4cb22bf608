"""folder.md's laws of branches hold in every interleaving, and each of them is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from folder_branches import CLAIMER, JOB, KEEPER, PAIR, RULES, SMALL, TAKER, Model, World
from search import Verdict, explore

pytestmark = [pytest.mark.fast, pytest.mark.long]

UNIVERSES = {
    "a job and two small ones": Model((JOB, SMALL, SMALL), dies=True),
    "three jobs": Model((JOB, JOB, JOB)),
    "two jobs and a small one": Model((JOB, JOB, SMALL), dies=True),
    "two branches": Model((PAIR, SMALL, JOB)),
    "a claimer": Model((JOB, CLAIMER, SMALL)),
    "two claimers": Model((PAIR, CLAIMER, CLAIMER)),
    "a taker": Model((TAKER, JOB, SMALL)),
    "a keeper": Model((KEEPER, JOB, SMALL)),
    "two savepoints": Model((KEEPER, TAKER, JOB)),
    "two keepers": Model((KEEPER, KEEPER, CLAIMER)),
}

CAUGHT_IN = {
    "writer_looks": "a job and two small ones",
    "small_dooms": "a job and two small ones",
    "pair_noted": "three jobs",
    "pair_of_both": "three jobs",
    "commit_dooms_pairs": "three jobs",
    "looks_as_it_writes": "a job and two small ones",
    "branch_resolved": "a job and two small ones",
    "newest_of_branches": "three jobs",
    "others_of_table": "three jobs",
    "claims_noted": "a claimer",
    "writer_sees_claims": "a claimer",
    "claimer_dooms": "a claimer",
    "all_at_once": "two branches",
    "keeper_dooms": "a keeper",
    "claims_replace_pairs": "a taker",
    "claims_replace_doom": "a taker",
}


def visited(model: Model) -> Verdict[World]:
    verdict = explore(model.first(), model.steps, model.violation_of, worlds_max=600_000)
    print(verdict)
    return verdict


@pytest.mark.parametrize("name", UNIVERSES)
def test_the_laws_of_branches_hold_in_every_world(name: str) -> None:
    assert visited(UNIVERSES[name]).violation is None


@pytest.mark.parametrize("rule", RULES)
def test_without_a_law_of_branches_there_is_an_accident(rule: str) -> None:
    without: dict[str, Any] = {rule: False}
    assert visited(replace(UNIVERSES[CAUGHT_IN[rule]], **without)).violation is not None
