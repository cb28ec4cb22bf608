"""protocol.md's begin windows hold in every interleaving, and each of their rules is needed.

Run with `-s` to see how many worlds were visited and, for each mutant, the shortest way to its accident.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from search import Verdict, explore
from windows import RULES, Model, World

pytestmark = [pytest.mark.fast, pytest.mark.long]
"""A model imports nothing of the product: only a change of the model changes its verdict."""

UNIVERSES = {
    "two flushes in any order": Model(starts_max=5, commits_max=4),
    "LWM by eviction, not_before": Model(eviction=True, hints=True, starts_max=4, commits_max=3),
    "LWM by eviction, open starts, W": Model(eviction=True, opens=True, watermark=True, starts_max=3, commits_max=3),
    "LWM by age, W": Model(age=True, watermark=True, starts_max=4, commits_max=3),
    "a fence": Model(fences_max=1, hints=True, starts_max=4, commits_max=3),
    "fences that share a batch": Model(fences_max=2, starts_max=4, commits_max=2),
    "a large commit, its lease, W": Model(job=True, age=True, watermark=True, clients=1, starts_max=4, commits_max=1),
    "crash and fail-over": Model(failover=True, watermark=True, starts_max=4, commits_max=3, ceiling_step=8),
    "fail-over under a large commit": Model(
        failover=True, job=True, clients=1, starts_max=4, commits_max=1, ceiling_step=12
    ),
    "fail-over, lease and W": Model(
        failover=True, job=True, age=True, watermark=True, clients=0, starts_max=3, commits_max=1, ceiling_step=12
    ),
    "fail-over, then sanitising": Model(
        failover=True, job=True, sanitising=True, clients=1, starts_max=4, commits_max=1, ceiling_step=12
    ),
}  # fmt: skip

WIDER = {
    "LWM by eviction, open starts, W, not_before": Model(
        eviction=True, opens=True, watermark=True, hints=True, starts_max=4, commits_max=3
    ),
    "two flushes in any order": Model(starts_max=7, commits_max=5),
    "LWM by eviction and age, W, a fence, not_before": Model(
        eviction=True, age=True, watermark=True, hints=True, fences_max=1, starts_max=4, commits_max=3
    ),
    "a large commit against other commits": Model(
        job=True, age=True, watermark=True, clients=1, starts_max=4, commits_max=2
    ),
    "crash and fail-over with a fence": Model(
        failover=True, watermark=True, fences_max=1, starts_max=4, commits_max=3, ceiling_step=8
    ),
    "the same with LWM by age": Model(
        failover=True, watermark=True, age=True, fences_max=1, starts_max=3, commits_max=2, ceiling_step=8
    ),
    "fail-over under a large commit, W and a client": Model(
        failover=True, job=True, age=True, watermark=True, clients=1, starts_max=3, commits_max=1, ceiling_step=12
    ),
}  # fmt: skip

BACKED_UP = {
    "law_9": ("discard_leases",),
    "discard_leases": ("law_9",),
    "watermark_kept": ("law_9", "discard_leases"),
}
"""Rules that stand behind another one: only without both is there an accident."""


CAUGHT_IN = {
    "two flushes in any order": ("oldest_window", "no_step_over", "waiting_flushes", "law_2"),
    "LWM by eviction, not_before": ("above_low_watermark", "not_before", "eviction_raises"),
    "LWM by eviction, open starts, W": ("law_4", "eviction_spares_open"),
    "LWM by age, W": ("empty_renews", "age_by_starts"),
    "a fence": ("fence_in_batch", "fence_closes", "in_order", "window_first"),
    "a large commit, its lease, W": (
        "age_below_lease", "lease_holds", "lease_by_sent", "large_by_sent", "large_pins", "large_holds_window",
    ),
    "crash and fail-over": (
        "ceiling_first", "epoch_before_reply", "lease_ends_begins", "start_was_issued", "low_watermark_at_start",
    ),
    "fail-over under a large commit": (
        "large_record", "large_conditional", "fence_then_read", "finish_pending", "row_by_epoch",
    ),
    "fail-over, lease and W": ("law_9", "discard_leases", "watermark_kept"),
    "fail-over, then sanitising": ("large_reads_epoch",),
}  # fmt: skip


def visit(model: Model, *, worlds_max: int) -> Verdict[World]:
    return explore(model.first(), model.steps, model.violation_of, worlds_max=worlds_max)


@pytest.mark.parametrize("name", UNIVERSES)
def test_every_interleaving_keeps_every_law(name: str) -> None:
    verdict = visit(UNIVERSES[name], worlds_max=200_000)
    print(f"{name}: {verdict}")
    assert verdict.violation is None, str(verdict)
    assert verdict.worlds > 1_000, "the universe is too small to say anything"


def test_every_rule_has_its_mutant() -> None:
    assert sorted(rule for rules in CAUGHT_IN.values() for rule in rules) == sorted(RULES)


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, rules in CAUGHT_IN.items() for rule in rules])
def test_without_this_rule_something_breaks(name: str, rule: str) -> None:
    without = frozenset((rule, *BACKED_UP.get(rule, ())))
    verdict = visit(replace(UNIVERSES[name], without=without), worlds_max=200_000)
    print(f"without {sorted(without)}, {name}: {verdict}")
    assert verdict.violation is not None, f"{name} does not show what {RULES[rule]!r} is for"


@pytest.mark.parametrize("rule", sorted({"law_9", "discard_leases"}))
def test_rules_that_stand_behind_another_one_are_no_accident_alone(rule: str) -> None:
    """Else `BACKED_UP` would hide that one of them is wrong."""
    for name, model in UNIVERSES.items():
        if model.failover:
            verdict = visit(replace(model, without=frozenset((rule,))), worlds_max=200_000)
            assert verdict.violation is None, f"{name}: {verdict}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WIDER)
def test_wider_bounds(name: str) -> None:
    verdict = visit(WIDER[name], worlds_max=12_000_000)
    print(f"{name}: {verdict}")
    assert verdict.violation is None, str(verdict)
