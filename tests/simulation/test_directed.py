"""The interleavings of hazards.md, step by step, on the core as it is: each one ends well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyomid.errors import Misuse
from pyomid.ports import FlushEnd
from pyomid.storage.memory import MemoryCommitTable, MemoryLeaderState
from pyomid.types import CellsOfCommit
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


# T19: what a store must not do that writes the cells of commits.


def test_t19_cells_are_written_only_while_their_tso_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryLeaderState, "check_epoch", lambda row, epoch: None)
    failure = run_directed("cells_of_a_deposed_tso_never_land")
    assert failure is not None
    assert "I1" in failure or "read" in failure, failure


def test_t19_cells_of_a_sealed_start_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    put = MemoryCommitTable.put_with_cells

    def cells_first(
        table: MemoryCommitTable, entries: Any, cells: Sequence[CellsOfCommit], epoch: int, **_: Any
    ) -> FlushEnd:
        assert table._store is not None
        for each in cells:
            table._store.write_packed(*each[:2], each.cells)
        return put(table, entries, cells, epoch)

    monkeypatch.setattr(MemoryCommitTable, "put_with_cells", cells_first)
    failure = run_directed("cells_of_a_sealed_start_never_land")
    assert failure is not None


@pytest.mark.parametrize("first", ["cells", "entries"])
def test_t19_cells_and_entry_are_one_step(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts_of = oracle.Host.parts_of

    def in_two_steps(host: oracle.Host, operation: Any) -> Any:
        parts, combine = parts_of(host, operation)
        if not getattr(operation, "cells", ()):
            return parts, combine
        disk = host.storage.disk

        def write_cells() -> None:
            for each in operation.cells:
                disk.store.write_packed(*each[:2], each.cells)

        def put_entries() -> None:
            for start, commit_ts, _ in operation.cells:
                host._put(start, commit_ts)

        return [write_cells if first == "cells" else put_entries, *parts], combine

    monkeypatch.setattr(oracle.Host, "parts_of", in_two_steps)
    failure = run_directed("a_tso_that_dies_within_a_step_leaves_all_of_it_or_nothing")
    assert failure is not None
