"""The commit table in memory, against a plain dictionary; and that it gives memory back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyomid.omid import memory_commit_table
from pyomid.omid.memory_commit_table import MemoryCommitTable
from pyomid.types import NOT_FOUND, SEALED

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("seed", range(6))
def test_blocks_and_single_entries_are_one_table(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_commit_table, "SEGMENT_ROWS", 16)
    monkeypatch.setattr(memory_commit_table, "SPARSE_ROWS", 4)
    rng = random.Random(seed)
    table = MemoryCommitTable()
    commits: dict[int, int] = {}
    marks: set[int] = set()
    horizon = 0
    for _ in range(300):
        newest = horizon + 5000
        some = [rng.randrange(horizon, newest, 50) for _ in range(rng.randrange(0, 12))]
        match rng.randrange(6):
            case 0 | 1:
                entries = {start: start + 10**9 for start in some if start not in commits}
                block = np.array(sorted(entries.items()), dtype=np.int64).reshape(-1, 2)
                refused = table.put_block(block) if rng.random() < 0.7 else table.put(list(entries.items()))
                assert sorted(refused) == sorted(start for start in entries if start in marks)
                commits.update((start, commit) for start, commit in entries.items() if start not in marks)
            case 2:
                table.delete(some)
                for start in some:
                    commits.pop(start, None)
            case 3:
                for start in some:
                    outcome = table.seal(start)
                    assert outcome.placed == (start in marks or start not in commits)
                    assert outcome.placed or outcome.commit_ts == commits[start]
                    if outcome.placed:
                        marks.add(start)
            case 4 if rng.random() < 0.3:
                horizon += rng.randrange(0, 1000, 50)
                gone = {start for start in {*commits, *marks} if start < horizon}
                assert table.delete_below(horizon) == len(gone)
                commits = {start: commit for start, commit in commits.items() if start >= horizon}
                marks = {start for start in marks if start >= horizon}
        wanted = {**commits, **dict.fromkeys(marks, SEALED)}
        assert table.lookup(some) == [wanted.get(start, NOT_FOUND) for start in some]
        assert dict(table.entries()) == wanted
        assert table.count() == len(wanted)


def test_a_flush_that_was_repeated_leaves_one_entry_that_goes_at_once() -> None:
    table = MemoryCommitTable()
    block = np.array([(50, 100), (150, 200)], dtype=np.int64)
    table.put_block(block)
    table.put_block(block)
    assert dict(table.entries()) == {50: 100, 150: 200}
    table.delete([50])
    assert table.lookup([50, 150]) == [NOT_FOUND, 200]
    assert table.delete_below(1000) == 1


def test_memory_goes_back_when_entries_are_deleted_or_fall_below_the_horizon() -> None:
    rows = memory_commit_table.SEGMENT_ROWS
    for by_completion in (True, False):
        table = MemoryCommitTable()
        starts = np.arange(50, 50 * (10 * rows + 1), 50, dtype=np.int64)
        for part in np.array_split(starts, 97):
            table.put_block(np.column_stack((part, part + 50_000_000)))
        assert len(table._segments) == 10
        assert table.lookup([50, int(starts[-1]), 51]) == [50_000_050, int(starts[-1]) + 50_000_000, NOT_FOUND]
        if by_completion:
            for part in np.array_split(starts, 31):
                table.delete(part.tolist())
        else:
            assert table.delete_below(int(starts[-1]) + 1) == len(starts)
        assert table.count() == 0
        assert len(table._segments) <= 1, "only the segment that is being filled may stay"


def test_an_entry_that_stays_does_not_keep_its_segment() -> None:
    table = MemoryCommitTable()
    rows = memory_commit_table.SEGMENT_ROWS
    starts = np.arange(50, 50 * (20 * rows + 1), 50, dtype=np.int64)
    stay = starts[:: rows // 4]
    for part in np.array_split(starts, 40):
        table.put_block(np.column_stack((part, part + 50_000_000)))
        table.delete(np.setdiff1d(part, stay).tolist())
    assert dict(table.entries()) == {start: start + 50_000_000 for start in stay.tolist()}
    assert len(table._segments) == 1
