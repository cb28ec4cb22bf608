"""protocol.md's laws of the catalog hold in every interleaving, and each of them is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from catalog import CREATING, PRESENT, RULES, Entry, Maker, Model, Physical, World, violation_of
from search import Verdict, explore

pytestmark = [pytest.mark.fast, pytest.mark.long]
"""A model imports nothing of the product: only a change of the model changes its verdict."""

UNIVERSES = {
    "dropped and made, a client, a death": Model(drops_max=1, begins_max=2),
    "dropped twice, a client": Model(drops_max=2, crashes_max=0, begins_max=1),
    "dropped twice, a death": Model(drops_max=2, crashes_max=1, client=False),
    "a fail-over": Model(drops_max=1, crashes_max=0, begins_max=2, failover=True),
    "two who add columns": Model(drops_max=1, client=False, altering=True),
    "a reader, a death": Model(drops_max=1, crashes_max=1, client=False, reads_max=1),
    "a reader, dropped twice": Model(drops_max=2, crashes_max=0, client=False, reads_max=1),
    "a reader and a client": Model(drops_max=1, crashes_max=0, begins_max=1, reads_max=1),
    "a reader, a creator that stalled": Model(drops_max=1, crashes_max=0, client=False, reads_max=1),
    "a reader, a creator that stalled before its entry": Model(drops_max=2, crashes_max=1, client=False, reads_max=1),
}

CAUGHT_IN = {
    "compare_and_set": "dropped twice, a death",
    "creating_is_a_state": "dropped twice, a death",
    "dropping_is_a_state": "dropped and made, a client, a death",
    "drop_fences": "dropped and made, a client, a death",
    "drop_looks_again": "dropped twice, a client",
    "drop_takes_what_it_named": "dropped twice, a client",
    "create_unnames": "dropped twice, a death",
    "kept_rules_go_by_fences": "dropped and made, a client, a death",
    "kept_rules_go_by_epochs": "a fail-over",
    "alter_compares": "two who add columns",
    "reads_look_again": "a reader, a death",
    "reads_look_at_the_state": "a reader, a creator that stalled",
    "drop_notes_its_fence": "a reader, a death",
    "reads_look_for_a_former_life": "a reader, a death",
    "generation_is_drawn_while_creating": "a reader, a creator that stalled before its entry",
}


ROW_1, ROW_2 = frozenset({(0, 1)}), frozenset({(0, 2)})
"""Committed before all of this, in life 1 and in life 2."""
FIRST = {
    "a reader, a creator that stalled before its entry": World(
        # it found no entry, and drew a timestamp, before the table was made
        physical=Physical(1, ROW_1),
        makers=(Maker("put", None, generation=1), Maker()),
        committed=ROW_1,
        clock=2,
    ),
    "a reader, a death": World(physical=Physical(1, ROW_1), committed=ROW_1),
    "a reader, dropped twice": World(physical=Physical(1, ROW_1), committed=ROW_1),
    "a reader and a client": World(physical=Physical(1, ROW_1), committed=ROW_1),
    "a reader, a creator that stalled": World(
        Entry(PRESENT, 2, 2),
        Physical(2, ROW_2),
        (Maker("make", Entry(CREATING, 1, 1)), Maker()),
        committed=ROW_2,
        nonces=2,
        lives=2,
        numbers=2,
    ),
}


def visited(name: str, **rules: bool) -> Verdict[World]:
    model = replace(UNIVERSES[name], **rules)  # type: ignore[arg-type]
    verdict = explore(FIRST.get(name, World()), model.steps, violation_of, worlds_max=400_000)
    print(verdict)
    return verdict


@pytest.mark.parametrize("name", UNIVERSES)
def test_the_laws_of_the_catalog_hold_in_every_world(name: str) -> None:
    assert visited(name).violation is None


@pytest.mark.parametrize("rule", RULES)
def test_without_a_law_of_the_catalog_there_is_an_accident(rule: str) -> None:
    assert visited(CAUGHT_IN[rule], **{rule: False}).violation is not None
