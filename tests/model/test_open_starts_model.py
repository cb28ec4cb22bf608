"""protocol.md's laws of open starts hold in every interleaving, and each of them is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from open_starts import RULES, Model, World
from search import Verdict, explore

pytestmark = [pytest.mark.fast, pytest.mark.long]
"""A model imports nothing of the product: only a change of the model changes its verdict."""

UNIVERSES = {
    "one client": Model(tells_max=3, ages_max=1),
    "reconnects": Model(starts_max=3, tells_max=1, reconnects=True),
    "a silent peer": Model(starts_max=2, tells_max=1, ages_max=1, silent=True),
    "a forked child": Model(starts_max=1, tells_max=1, reconnects=True, forked=True),
    "leases": Model(starts_max=2, tells_max=2, ages_max=1, leases=True),
    "a fail-over": Model(starts_max=3, tells_max=1, failover=True, leases=True),
}

CAUGHT_IN = {
    "handed_out_is_open": "one client",
    "begun_is_open": "one client",
    "told_in_order": "one client",
    "told_of_all_connections": "reconnects",
    "floor_a_connection": "reconnects",
    "ended_connection_holds": "reconnects",
    "back_is_not_told": "reconnects",
    "younger_connection_told": "reconnects",
    "told_lasts_for_all": "reconnects",
    "silence_holds": "a silent peer",
    "age_passes_all": "a silent peer",
    "lease_before_end": "leases",
    "fork_has_own_name": "a forked child",
}


def visited(model: Model) -> Verdict[World]:
    verdict = explore(World(), model.steps, model.violation_of, worlds_max=400_000)
    print(verdict)
    return verdict


@pytest.mark.parametrize("name", UNIVERSES)
def test_the_laws_of_open_starts_hold_in_every_world(name: str) -> None:
    assert visited(UNIVERSES[name]).violation is None


@pytest.mark.parametrize("rule", RULES)
def test_without_a_law_of_open_starts_there_is_an_accident(rule: str) -> None:
    assert visited(replace(UNIVERSES[CAUGHT_IN[rule]], **{rule: False})).violation is not None
