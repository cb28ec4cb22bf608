"""protocol.md's marks hold in every interleaving, and each of their rules is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sanitising import RULES, Model, World
from search import Verdict, explore

pytestmark = pytest.mark.fast

WORLDS_MAX = 800_000

UNIVERSES = {
    "registered by an earlier version": Model(clearing=True),
    "registered and compacted": Model(registrations_max=1, compacts=True, transactions=1),
    "dropped": Model(drops=True, transactions=2),
    "dropped and made again": Model(drops=True, made_max=2),
    "dropped under a look at the catalogue, made again": Model(drops=True, made_max=2, known=False),
    "dropped in HBase, forgotten, made again": Model(forgets=True, made_max=2, registrations_max=0),
    "dropped during a fail-over": Model(drops=True, made_max=2, failover=True, transactions=1),
}

CAUGHT_IN = {
    "registered by an earlier version": ("w_first", "marks_first", "refuses", "mark_first"),
    "dropped": ("fence_waits", "refused_marks_nothing", "dropping_holds", "fence_after_data"),
    "dropped and made again": (
        "fence_forgets_registered", "fence_forgets_mark", "by_nonce",
        "new_nonce", "looks", "dropping_unregistered",
    ),
    "dropped in HBase, forgotten, made again": ("mark_before_fence", "nonce_before_fence", "fence_before_look"),
    "dropped under a look at the catalogue, made again": ("read_before_fence",),
}  # fmt: skip

STOPPED = ("fence_waits", "refused_marks_nothing", "fence_after_data")
"""Without these nothing is lost, but a mark is left that nobody takes away."""

BACKED_UP = {"mark_before_fence": ("fence_waits",)}
"""Rules that stand behind another one: only without both is there an accident."""


def visit(model: Model) -> Verdict[World]:
    return explore(model.first(), model.steps, model.violation_of, worlds_max=WORLDS_MAX)


@pytest.mark.parametrize("name", UNIVERSES)
def test_every_interleaving_keeps_acknowledged_commits(name: str) -> None:
    verdict = visit(UNIVERSES[name])
    print(f"{name}: {verdict}")
    assert verdict.violation is None, str(verdict)
    assert verdict.worlds > 500, "the universe is too small to say anything"


def test_every_rule_has_its_mutant() -> None:
    assert sorted(rule for rules in CAUGHT_IN.values() for rule in rules) == sorted(RULES)


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, rules in CAUGHT_IN.items() for rule in rules])
def test_without_this_rule_something_is_lost(name: str, rule: str) -> None:
    without = frozenset((rule, *BACKED_UP.get(rule, ())))
    verdict = visit(replace(UNIVERSES[name], without=without))
    print(f"without {sorted(without)}, {name}: {verdict}")
    assert verdict.violation is not None, f"{name} does not show what {RULES[rule]!r} is for"
    assert ("stops the sanitiser" in verdict.violation) == (rule in STOPPED)
