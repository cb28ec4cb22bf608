"""The oracle against a naive one: a dict that never forgets, and a bounded map that says what it forgot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portions import examples
from pyomid.omid.oracle.status_oracle import BucketMap, StatusOracle
from pyomid.types import CommitRequest, WriteSetLevel

pytestmark = pytest.mark.fast

EXTREMES = (-(1 << 63), (1 << 63) - 1, 0, -1, 1)
cells = st.one_of(st.sampled_from(EXTREMES), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 6))
write_sets = st.lists(cells, max_size=6).map(tuple)
tables = st.lists(st.integers(0, 2), max_size=2, unique=True).map(tuple)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin")),
        st.tuples(st.just("commit"), st.integers(0, 30), write_sets, tables),
        st.tuples(st.just("table"), st.integers(0, 30), tables),
        st.tuples(st.just("fence"), st.integers(0, 2)),
    ),
    max_size=40,
)


class Naive:
    """What snapshot isolation says, with everything remembered for ever."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.fences: dict[int, int] = {}
        self.tables: dict[int, int] = {}

    def may_commit(self, request: CommitRequest) -> bool:
        start_ts = request.start_ts
        if any(self.fences.get(t, 0) > start_ts for t in request.table_ids):
            return False
        if request.level is WriteSetLevel.TABLE:
            return all(self.tables.get(t, 0) <= start_ts for t in request.table_ids)
        return all(self.last.get(c, 0) <= start_ts for c in request.cell_ids)

    def record(self, request: CommitRequest, commit_ts: int) -> None:
        for t in request.table_ids:
            self.tables[t] = commit_ts
            if request.level is WriteSetLevel.TABLE:
                self.fences[t] = commit_ts
        if request.level is WriteSetLevel.IDS:
            self.last.update(dict.fromkeys(request.cell_ids, commit_ts))


def play(script: list[tuple], entries_max: int, bucket_slots: int) -> tuple[StatusOracle, int, int]:  # type: ignore[type-arg]
    """Both oracles over one history; how many commits the real one refused though the naive one would not."""
    oracle = StatusOracle(BucketMap(entries_max, bucket_slots), epoch=0)
    naive = Naive()
    clock, starts, false_aborts, commits = 50, [50], 0, 0
    for step in script:
        clock += 50
        match step:
            case ("begin",):
                starts.append(clock)
                continue
            case ("fence", table):
                oracle.fence(table, clock)
                naive.fences[table] = clock
                continue
            case ("commit", which, cell_ids, table_ids):
                request = CommitRequest(starts[which % len(starts)], cell_ids, table_ids)
            case ("table", which, table_ids):
                request = CommitRequest(starts[which % len(starts)], (), table_ids, level=WriteSetLevel.TABLE)
        conflict = oracle.check(request, decided=0)
        if naive.may_commit(request):
            false_aborts += conflict is not None
            assert conflict is None or request.start_ts <= oracle.low_watermark, "only what was forgotten may hide"
        else:
            assert conflict is not None, "a conflict was missed"
            assert conflict.conflict_ts >= request.start_ts
        if conflict is None:
            before = oracle.low_watermark
            oracle.record(request, clock)
            naive.record(request, clock)
            commits += 1
            assert oracle.low_watermark >= before
        for cell, commit_ts in naive.last.items():
            kept = oracle.conflict_map.last_commit(cell)
            assert kept == commit_ts or (kept == 0 and commit_ts <= oracle.low_watermark)
    return oracle, false_aborts, commits


@settings(deadline=None, max_examples=examples(150))
@given(steps)
def test_with_room_for_all_the_oracle_decides_as_one_that_never_forgets(script: list[tuple]) -> None:  # type: ignore[type-arg]
    oracle, false_aborts, _ = play(script, 1 << 16, 1 << 10)
    assert false_aborts == 0
    assert oracle.low_watermark == 0


@settings(deadline=None, max_examples=examples(150))
@given(steps)
def test_a_tiny_map_aborts_too_often_but_never_misses_a_conflict(script: list[tuple]) -> None:  # type: ignore[type-arg]
    play(script, 4, 2)


def test_a_tiny_map_does_forget() -> None:
    script: list[tuple] = [("commit", 0, (cell << 40,), ()) for cell in range(40)]  # type: ignore[type-arg]
    oracle, false_aborts, commits = play(script, 4, 2)
    assert oracle.low_watermark > 0
    assert false_aborts > 0
    assert 0 < commits < 40


def test_the_oldest_of_a_full_bucket_is_evicted_and_named() -> None:
    only = BucketMap(3, 3)
    assert [only.record(cell, ts) for cell, ts in ((7, 300), (8, 100), (9, 200))] == [0, 0, 0]
    assert only.record(10, 400) == 100
    assert [only.last_commit(cell) for cell in (7, 8, 9, 10)] == [300, 0, 200, 400]
    assert only.record(7, 500) == 0
    assert only.entries == 3
