"""A hook in the product reaches whoever imported the name, and leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

import pyomid.database.open_database
import pyomid.protocol.commit
from pyomid.errors import Misuse
from pyomid.omid.oracle.tables import KnownTables
from simulation.hooks import Hook, answers, installed, relayed, without_step

pytestmark = pytest.mark.fast

HOOK = Hook("protocol.commit:may_use_rules", answers("replaced"))


def test_every_importer_meets_what_stands_in_its_place() -> None:
    before = pyomid.protocol.commit.may_use_rules
    with installed([HOOK]):
        assert pyomid.protocol.commit.may_use_rules(1, None) == "replaced"  # type: ignore[arg-type, comparison-overlap]
        assert pyomid.database.open_database.may_use_rules is pyomid.protocol.commit.may_use_rules
        inside = pyomid.protocol.commit.may_use_rules
    assert pyomid.protocol.commit.may_use_rules is pyomid.database.open_database.may_use_rules is before
    assert not [name for name, module in list(sys.modules.items()) if any(x is inside for x in vars(module).values())]


def test_two_hooks_of_one_place_go_in_turn() -> None:
    before = KnownTables.forget
    with installed([Hook("omid.oracle.tables:KnownTables.forget", answers(number)) for number in (1, 2)]):
        assert KnownTables.forget(KnownTables(), 7) == 2  # type: ignore[func-returns-value]
    assert KnownTables.forget is before


def test_a_hook_that_fails_leaves_those_before_it_out_too() -> None:
    before = pyomid.protocol.commit.may_use_rules
    with (
        pytest.raises(Misuse, match="names nothing"),
        installed([HOOK, Hook("database.table_admin:gone", answers(None))]),
    ):
        pytest.fail("it was installed")
    assert pyomid.protocol.commit.may_use_rules is before


def test_a_property_and_a_static_method_stay_what_they_are() -> None:
    with installed([Hook("omid.oracle.windows:BeginWindows.head", answers("head"))]):
        from pyomid.omid.oracle.windows import BeginWindows

        assert isinstance(vars(BeginWindows)["head"], property)
    with installed([Hook("omid.oracle.windows:BeginWindows._first_above", answers(3))]):
        from pyomid.omid.oracle.windows import BeginWindows

        assert BeginWindows._first_above(None, 7) == 3


def test_errors_reach_the_generator_through_a_relay() -> None:
    def steps() -> Generator[Any, Any, str]:
        try:
            yield 1
        except ValueError:
            return f"caught, {(yield 2.0)}"
        return "not caught"

    def instead(step: Any) -> Generator[Any, Any, Any]:
        return "left out"
        yield

    run = relayed(steps(), "float", instead)
    assert next(run) == 1
    with pytest.raises(StopIteration) as end:
        run.throw(ValueError())
    assert end.value.value == "caught, left out"
    with pytest.raises(StopIteration) as end:
        next(without_step("int", 5)(lambda: (x for x in [1])))
    assert end.value.value is None
