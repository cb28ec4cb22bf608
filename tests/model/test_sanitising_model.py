"""protocol.md's marks hold in every interleaving, and each of their rules is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sanitising import RULES, Model, World
from search import Verdict, explore, follow

pytestmark = [pytest.mark.fast, pytest.mark.long]
"""A model imports nothing of the product: only a change of the model changes its verdict."""

WORLDS_MAX = 800_000

UNIVERSES = {
    "registered by an earlier version": Model(clearing=True),
    "registered and compacted": Model(registrations_max=1, compacts=True, transactions=1),
    "dropped": Model(drops=True, transactions=2),
    "dropped and made again": Model(drops=True, made_max=2),
    "dropped under a look at the catalog, made again": Model(drops=True, made_max=2, known=False),
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
    "dropped under a look at the catalog, made again": ("read_before_fence",),
}  # fmt: skip

WAYS = {
    "fence_forgets_mark": (
        "drop: begins | drop: fence | T0 begins | T0 writes | T0 makes the TSO read the catalog | T0 is "
        "unregistered | T0 marks | T0 commits | drop: data go | drop: fence | drop: nonce read | drop: fence | "
        "drop: looks | table made | T1 begins | T1 writes | T1 commits | drop: mark goes | drop: entry goes"
    ),
    "new_nonce": (
        "drop: begins | drop: fence | T0 begins | T0 writes | T0 makes the TSO read the catalog | T0 is "
        "unregistered | T0 marks | T0 commits | drop: data go | drop: fence | drop: nonce read | drop: fence | "
        "drop: looks | table made | T1 begins | T1 writes | T1 makes the TSO read the catalog | T1 is "
        "unregistered | T1 marks | T1 commits | drop: mark goes | drop: entry goes"
    ),
    "read_before_fence": (
        "T0 begins | T0 writes | T0 makes the TSO read the catalog | drop: begins | drop: fence | T0 aborts | "
        "T1 begins | drop: data go | table made | T1 writes | T1 commits | drop: fence | drop: nonce read | drop: "
        "fence | drop: looks | drop: entry goes"
    ),
    "mark_before_fence": (
        "table made | T0 begins | T0 writes | T0 makes the TSO read the catalog | T0 is unregistered | T0 marks "
        "| table dropped in HBase | forget: begins | drop: fence | drop: nonce read | drop: fence | T0 aborts | "
        "drop: looks | table made | T1 begins | T1 writes | T1 commits | drop: mark goes"
    ),
    "nonce_before_fence": (
        "table made | forget: begins | drop: fence | T0 begins | T0 writes | T0 makes the TSO read the catalog "
        "| T0 is unregistered | T0 marks | T0 commits | T1 begins | table dropped in HBase | drop: nonce read | "
        "drop: looks | table made | T1 writes | T1 commits | drop: mark goes"
    ),
    "fence_before_look": (
        "table made | forget: begins | drop: fence | T0 begins | T0 writes | T0 makes the TSO read the catalog "
        "| T0 is unregistered | T0 marks | T0 commits | T1 begins | table dropped in HBase | drop: nonce read | "
        "drop: looks | table made | T1 writes | T1 commits | drop: mark goes"
    ),
}
"""The shortest way to the accident where it takes two clients, as the wide search found it; a sanitising ends each."""

SANITISING = " | sanitiser: watermark | sanitiser: mark | sanitiser: table | sanitiser: H"

WIDE = (
    "dropped and made again", "dropped under a look at the catalog, made again",
    "dropped in HBase, forgotten, made again",
)  # fmt: skip
"""With two clients these have hundreds of thousands of worlds: visited whole in soak, with one client otherwise."""

STOPPED = ("fence_waits", "refused_marks_nothing", "fence_after_data")
"""Without these nothing is lost, but a mark is left that nobody takes away."""

BACKED_UP = {"mark_before_fence": ("fence_waits",)}
"""Rules that stand behind another one: only without both is there an accident."""


def visit(model: Model) -> Verdict[World]:
    return explore(model.first(), model.steps, model.violation_of, worlds_max=WORLDS_MAX)


def narrow(name: str) -> Model:
    return replace(UNIVERSES[name], transactions=1) if name in WIDE else UNIVERSES[name]


def mutant(model: Model, rule: str) -> Model:
    return replace(model, without=frozenset((rule, *BACKED_UP.get(rule, ()))))


@pytest.mark.parametrize("name", UNIVERSES)
def test_every_interleaving_keeps_acknowledged_commits(name: str) -> None:
    demand_no_violation(name, narrow(name))


@pytest.mark.soak
@pytest.mark.parametrize("name", WIDE)
def test_every_interleaving_of_two_clients_keeps_acknowledged_commits(name: str) -> None:
    demand_no_violation(name, UNIVERSES[name])


def demand_no_violation(name: str, model: Model) -> None:
    verdict = visit(model)
    print(f"{name}: {verdict}")
    assert verdict.violation is None, str(verdict)
    assert verdict.worlds > 500, "the universe is too small to say anything"


def test_every_rule_has_its_mutant() -> None:
    assert sorted(rule for rules in CAUGHT_IN.values() for rule in rules) == sorted(RULES)


MUTANTS = [(name, rule) for name, rules in CAUGHT_IN.items() for rule in rules]


@pytest.mark.parametrize(("name", "rule"), [each for each in MUTANTS if each[1] not in WAYS])
def test_without_this_rule_something_is_lost(name: str, rule: str) -> None:
    demand_an_accident(name, rule, visit(mutant(narrow(name), rule)))


@pytest.mark.soak
@pytest.mark.parametrize(("name", "rule"), [each for each in MUTANTS if each[1] in WAYS])
def test_without_this_rule_the_search_finds_what_is_lost(name: str, rule: str) -> None:
    verdict = visit(mutant(UNIVERSES[name], rule))
    demand_an_accident(name, rule, verdict)
    assert len(verdict.trace) == len(way_of(rule)), "there is another shortest way: put it into WAYS"


def demand_an_accident(name: str, rule: str, verdict: Verdict[World]) -> None:
    print(f"without {rule}, {name}: {verdict}")
    assert verdict.violation is not None, f"{name} does not show what {RULES[rule]!r} is for"
    assert ("stops the sanitiser" in verdict.violation) == (rule in STOPPED)


@pytest.mark.parametrize(("name", "rule"), [each for each in MUTANTS if each[1] in WAYS])
def test_without_this_rule_a_known_way_loses_something(name: str, rule: str) -> None:
    """With the rule the same way cannot be gone to its end, or all is well there."""
    way, without = way_of(rule), mutant(UNIVERSES[name], rule)
    worlds = follow(without.first(), without.steps, way)
    assert len(worlds) == len(way) + 1, f"no such step: {way[len(worlds) - 1]}"
    violation = without.violation_of(worlds[-1])
    assert violation is not None, f"{name} does not show what {RULES[rule]!r} is for"
    assert "nobody finds it" in violation
    whole = UNIVERSES[name]
    assert all(whole.violation_of(world) is None for world in follow(whole.first(), whole.steps, way))


def way_of(rule: str) -> list[str]:
    return (WAYS[rule] + SANITISING).split(" | ")
