"""The interleavings of hazards.md, step by step, on the core as it is: each one ends well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyomid.errors import Misuse
from pyomid.omid.memory import MemoryLeaderState
from simulation import oracle
from simulation.directed import SCHEDULES, run_directed

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    failure = run_directed(name)
    assert failure is None, f"{name} ({SCHEDULES[name].__doc__}): {failure}"


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(Misuse, match="no schedule"):
        run_directed("nothing of the kind")


def test_a_leader_state_that_is_changed_in_place_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 0004: without the compare-and-set of the whole row a late write brings an old W back."""

    def in_place(swap: oracle._Swap) -> None:
        swap._row.update(swap._epoch, swap._changes)

    monkeypatch.setattr(oracle._Swap, "write", in_place)
    failure = run_directed("a_late_change_of_the_leader_state_changes_nothing")
    assert failure is not None
    assert "watermark went back" in failure


def test_a_take_over_that_ignores_the_ceiling_hands_out_a_timestamp_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 0003: comparing the epoch alone is not enough."""

    def by_epoch_alone(row: MemoryLeaderState, *, expected: int, epoch: int, ceiling: int) -> bool:
        if row.read().epoch != expected:
            return False
        row._state = replace(row._state, epoch=epoch, ceiling=ceiling)
        return True

    monkeypatch.setattr(MemoryLeaderState, "take_over", by_epoch_alone)
    failure = run_directed("a_ceiling_moved_during_take_over_is_not_handed_out_again")
    assert failure is not None
    assert "is both" in failure or "went back" in failure, failure
