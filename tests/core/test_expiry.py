"""Values expire for a snapshot, and for all its readers alike: against a model, beside compaction and the feed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_cleaning import plan_cleaning_plain
from test_change_feed import FAMILY, NAMES, ROWS, State, T, World, _step, places, played

from portions import examples
from pyomid.cells import batch_of
from pyomid.errors import SnapshotTooOld
from pyomid.protocol import changes, expiry
from pyomid.protocol.changes import Change
from pyomid.protocol.compaction import plan_cleaning
from pyomid.protocol.expiry import (
    EXPIRY_INFO,
    EXPIRY_TABLE,
    FLOOR_COLUMN,
    POINTS_MAX,
    Expiry,
    expiry_row,
    floor_at,
    floors_steps,
    seen_steps,
)
from pyomid.protocol.reading import CommitCache, Snapshot, read_rows_steps
from pyomid.protocol.visibility import visible_cells, visible_point
from pyomid.types import Bookmark, Cell, Column, ConflictLevel, RowWrite, ShadowWrite, TableInfo, TimePoint, start_of

pytestmark = pytest.mark.fast

INFO = TableInfo(T, (b"f", b"g"), ConflictLevel.ROW, ttl_seconds=60.0)


@dataclass
class Expiring(World):
    """A world whose table has a floor. `moves`: (commit, floor)."""

    moves: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store.create_table(EXPIRY_INFO)

    def move(self, steps_back: int, *, is_complete: bool) -> None:
        start, before = self.draw(), self.moves[-1][1] if self.moves else 0
        floor = max(before, start - 50 * steps_back)
        row = expiry_row(T, INFO.generation)
        self.store.write_cells(EXPIRY_TABLE, start, [RowWrite(row, ((FLOOR_COLUMN, floor.to_bytes(8, "big")),))])
        commit = self.draw()
        self.entries[start] = commit
        self.moves.append((commit, floor))
        if is_complete:
            names = [cell.name for cell in self.store.read_rows(EXPIRY_TABLE, [row])[0] if cell.version == start]
            self.store.write_shadow_cells(EXPIRY_TABLE, [ShadowWrite(name, commit) for name in names])

    def clean(self) -> None:
        for table, rows in ((T, sorted(ROWS)), (EXPIRY_TABLE, [expiry_row(T, INFO.generation)])):
            batch = batch_of([cells for cells in self.store.read_rows(table, rows) if cells])
            if not batch.rows:
                continue
            for record in range(batch.records):
                if not batch.rec_commit[record]:
                    batch.rec_commit[record] = self.entries.get(start_of(int(batch.rec_version[record])), 0)
            unresolved = {start_of(int(v)) for v, c in zip(batch.rec_version, batch.rec_commit, strict=True) if not c}
            orphans = np.array(sorted(s for s in unresolved if s <= self.watermark), np.int64)
            resolved = np.arange(batch.records, dtype=np.int64)[batch.rec_commit > 0]
            floor = self.run(expiry.covered_floor_steps(T, INFO.generation, self.watermark, CommitCache()))
            floor = floor if table == T else 0
            plain = plan_cleaning_plain(batch, self.watermark, orphans, resolved, floor)
            compiled = plan_cleaning(batch, self.watermark, orphans, resolved, floor)
            assert [each.tolist() for each in plain] == [each.tolist() for each in compiled]
            self.store.clean_batch(table, batch, *plain)

    def seen(self, at: int) -> State:
        """By the row-at-a-time path, after it is compared with the compiled one."""
        cache = CommitCache()
        snapshot = self.run(seen_steps(INFO, Snapshot(at, epoch=0), cache))
        rows = self.run(read_rows_steps(INFO, list(ROWS), None, snapshot, cache))
        stored = self.store.read_rows(T, list(ROWS))
        batch = batch_of([cells for cells in stored if cells])
        for record in range(batch.records):
            batch.rec_commit[record] = batch.rec_commit[record] or max(
                self.entries.get(start_of(int(batch.rec_version[record])), 0), 0
            )
        found = visible_cells(batch, at, (), snapshot.expired_to)
        compiled = {batch.row_key(row): {} for row in range(batch.rows)}
        for row in range(batch.rows):
            for cell in found.cells[found.row_cell[row] : found.row_cell[row + 1]].tolist():
                compiled[batch.row_key(row)][batch.columns[int(batch.cell_col[cell])]] = batch.value(cell)
        seen = dict(zip(ROWS, rows, strict=True))
        assert {key: row for key, row in compiled.items() if row} == {key: row for key, row in seen.items() if row}
        return seen

    def expected(self, at: int) -> State:
        """What the commits below `at` left, without what the last floor below `at` covers."""
        floor = max((floor for commit, floor in self.moves if commit < at), default=0)
        state: dict[tuple[bytes, Column], tuple[int, bytes]] = {}
        for commit, writes in self.committed:
            if commit >= at:
                continue
            for row in {row for row, column in writes if column == FAMILY}:
                for column in [column for key, column in state if key == row and column.family == b"f"]:
                    del state[row, column]
            for (row, column), value in writes.items():
                hidden = (row, FAMILY) in writes and column.family == b"f"
                state.pop((row, column), None)
                if value is not None and not hidden:
                    state[row, column] = commit, value
        rows: State = {row: {} for row in ROWS}
        for (row, column), (commit, value) in state.items():
            if commit > floor:
                rows[row][column] = value
        return rows


_moves = st.tuples(st.just("move"), st.integers(0, 8), st.booleans())


@given(st.lists(st.one_of(_step, _moves), max_size=40))
@settings(derandomize=True, max_examples=examples(60), deadline=None)
def test_e1_e2_all_readers_of_a_snapshot_see_the_same(script: list[tuple[Any, ...]]) -> None:
    world = played(Expiring(), script)
    for at in range(50, world.clock + 100, 50):
        if at <= world.watermark:
            with pytest.raises(SnapshotTooOld):
                world.seen(at)
        else:
            assert world.seen(at) == world.expected(at)
    world.clean()
    for at in range(world.watermark + 1, world.clock + 100, 50):
        assert world.seen(at) == world.expected(at)


def test_e2_compaction_goes_by_a_floor_that_w_has_passed() -> None:
    written = [("begin",), ("write", 0, ROWS[0], NAMES[0], b"1"), ("commit", 0, True), ("raise", 0)]
    world = played(Expiring(), [*written, ("move", 0, True), ("clean",)])
    commit, _ = world.committed[0]
    moved, floor = world.moves[0]
    assert commit <= world.watermark < moved
    assert commit <= floor
    assert world.seen(moved) == world.expected(moved) != world.expected(moved + 1) == world.seen(moved + 1)
    world.raise_watermark(0)
    world.clean()
    assert world.store.read_rows(T, [ROWS[0]]) == [[]]


@given(st.lists(st.one_of(_step, _moves), max_size=40))
@settings(derandomize=True, max_examples=examples(60), deadline=None)
def test_e3_a_commit_finds_rows_without_what_expired(script: list[tuple[Any, ...]]) -> None:
    world = played(Expiring(), script)
    for since, until in places(world):
        if world.watermark > since.start_ts:
            continue
        snapshot, cache = Snapshot(until, epoch=0), CommitCache()
        floors = world.run(floors_steps(INFO, since, snapshot, cache))
        for at in range(since.start_ts, until + 1):
            assert floor_at(floors, at) == max((f for commit, f in world.moves if commit < at), default=0)
        found = world.run(changes.changes_steps(INFO, list(ROWS), since, snapshot, cache, floors))
        told = {(change.row, change.commit_ts): change for change in found}
        for commit, writes in world.committed:
            if not since.start_ts < commit < until:
                continue
            before, after = world.expected(commit), world.expected(commit + 1)
            for row in {row for row, _ in writes}:
                wrote = {c: v for (r, c), v in writes.items() if r == row and v is not None}
                is_renewed = any(c in after[row] for c in wrote)  # a value beside a tombstone of its family is hidden
                change = told.pop((row, commit), None)
                assert (change is not None) == (is_renewed or before[row] != after[row])
                assert change is None or change == Change(row, commit, before[row], after[row])
        assert not told


_ticks = st.lists(st.tuples(st.integers(-5_000, 20_000), st.sampled_from((None, None, True, False))), max_size=60)


@given(_ticks, st.integers(1_000, 50_000))
@settings(max_examples=examples(60), deadline=None)
def test_e2_a_floor_never_goes_down_whatever_the_clock(ticks: list[tuple[int, bool | None]], ttl_ms: int) -> None:
    state, wall_ms = Expiry(), 1_000_000
    for number, (passed_ms, notes) in enumerate(ticks, start=1):
        wall_ms += passed_ms
        after = state.moved(1_000 * number, wall_ms, ttl_ms, notes=notes)
        assert after.expired_to >= state.expired_to
        assert all(point.start_ts > after.expired_to for point in after.points)
        state = Expiry.of(after.cells(Expiry()))
        assert state == after


@given(st.lists(st.integers(0, 3_000), max_size=120), st.integers(1_000, 60_000))
@settings(max_examples=examples(60), deadline=None)
def test_no_value_expires_early_nor_much_too_late(pauses_ms: list[int], ttl_ms: int) -> None:
    state, wall_ms, walls = Expiry(), 1_000_000, {}
    late_ms = max(1_000, ttl_ms // 100) + 2 * 3_000
    for number, pause_ms in enumerate(pauses_ms, start=1):
        wall_ms += pause_ms
        walls[1_000 * number - 1] = wall_ms  # a commit right below the start of the move
        state = state.moved(1_000 * number, wall_ms, ttl_ms)
        for commit, committed_ms in walls.items():
            if commit <= state.expired_to:
                assert wall_ms - committed_ms >= ttl_ms
            else:
                assert wall_ms - committed_ms <= ttl_ms + late_ms


_dated = st.lists(
    st.tuples(st.integers(1, 9_000), st.sampled_from(("commit", "point", "late point", "move", "move"))), max_size=120
)


@given(_dated, st.integers(1_000, 60_000))
@example([(1, "commit"), (1, "point"), (9_000, "move")], 1_000)
@example([(9_000, "commit"), (1, "late point"), (1, "move")], 1_000)
@settings(max_examples=examples(100), deadline=None)
def test_e6_points_of_the_tso_have_nothing_expire_early_and_date_what_no_mover_did(
    script: list[tuple[int, str]], ttl_ms: int
) -> None:
    """A move is rare here; a point may be of a clock that was set back."""
    state, wall_ms, start_ts = Expiry(), 1_000_000, 0
    walls: dict[int, int] = {}
    dated: dict[int, int] = {}
    noted = [TimePoint(50, wall_ms)]
    for passed_ms, what in script:
        wall_ms += passed_ms
        start_ts += 100
        if what == "commit":
            walls[start_ts] = wall_ms
        elif what == "point":
            noted.append(TimePoint(start_ts, wall_ms))
            dated |= {commit: wall_ms for commit in walls if commit not in dated}
        elif what == "late point":
            noted.append(TimePoint(start_ts, max(point.wall_ms for point in noted) - passed_ms))
        else:
            state = state.moved(start_ts, wall_ms, ttl_ms, notes=True, noted=noted)
            dated |= {commit: wall_ms for commit in walls if commit not in dated}
            for commit, committed_ms in walls.items():
                if commit <= state.expired_to:
                    assert wall_ms - committed_ms >= ttl_ms
                else:
                    assert wall_ms - dated[commit] <= ttl_ms + max(1_000, ttl_ms // 100)
            assert [point.wall_ms for point in state.points] == sorted(point.wall_ms for point in state.points)


_clocks = st.lists(st.tuples(st.integers(0, 4_000), st.one_of(st.none(), st.integers(1, 9_000))), max_size=120)


@given(_clocks, st.integers(1_000, 8_000))
@settings(max_examples=examples(60), deadline=None)
def test_e4_late_clocks_expire_nothing_early(ticks: list[tuple[int, int | None]], ttl_ms: int) -> None:
    wall_ms = 1_000_000
    state, walls = Expiry().moved(50, wall_ms, ttl_ms), {}
    for number, (passed_ms, late_ms) in enumerate(ticks, start=1):
        wall_ms += passed_ms
        walls[1_000 * number - 1] = wall_ms
        state = state.moved(1_000 * number, wall_ms if late_ms is None else state.latest_ms - late_ms, ttl_ms)
        assert [point.wall_ms for point in state.points] == sorted(point.wall_ms for point in state.points)
        assert all(wall_ms - at_ms >= ttl_ms for commit, at_ms in walls.items() if commit <= state.expired_to)
    after = state.moved(10**9, wall_ms + 10**6, ttl_ms).moved(2 * 10**9, wall_ms + 10**7, ttl_ms)
    assert after.expired_to >= 10**9, "a clock that is right has all of it expire"


def test_points_are_bounded_and_all_they_told_expires() -> None:
    state = Expiry()
    for number in range(1, 3 * POINTS_MAX):
        state = state.moved(50 * number, number, 10**9, notes=True)
        assert len(state.points) <= POINTS_MAX
    last = state.points[-1]
    assert last == (50 * (3 * POINTS_MAX - 1), 3 * POINTS_MAX - 1)
    gone_ms = last.wall_ms + 10**9
    assert state.moved(10**9, gone_ms, 10**9, notes=False) == Expiry(last.start_ts, latest_ms=gone_ms)


def test_a_time_to_live_that_ended_moves_nothing() -> None:
    state = Expiry().moved(50, 1_000, 5_000).moved(100, 7_000, 5_000)
    assert state.expired_to == 50
    assert state.moved(150, 10**9, 0) == Expiry(50)


def test_an_expired_value_hides_what_it_hid() -> None:
    """A conflict-free write of an earlier start that committed later."""
    cells = [cell for version, commit in ((100, 400), (200, 300)) for cell in [_cell(version, commit)]]
    assert visible_point(cells, 500) == {NAMES[0]: b"200"}
    assert visible_point(cells, 500, expired_to=350) == {}
    batch = batch_of([cells])
    for watermark, left in ((350, 2), (450, 0)):
        _, drops = plan_cleaning(batch, watermark, np.empty(0, np.int64), np.empty(0, np.int64), 350)
        assert batch.cells - len(drops) == left


def test_an_expired_value_under_an_empty_qualifier_hides_no_family() -> None:
    flag, other = _cell(100, 200, Column(b"f", b"")), _cell(100, 400)
    for expired_to, seen in ((0, {FAMILY: b"100", NAMES[0]: b"100"}), (300, {NAMES[0]: b"100"})):
        assert visible_point([flag, other], 500, expired_to=expired_to) == seen


_stored = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from((b"", b"x")), st.booleans(), st.sampled_from((0, 50, 500))),
    max_size=8,
    unique_by=lambda each: each[:2],
)


@given(_stored, st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=examples(200), deadline=None)
def test_e2_both_plans_agree_under_an_empty_qualifier(
    stored: list[tuple[int, bytes, bool, int]], watermark: int, floor: int
) -> None:
    took = {start: took for start, _, _, took in stored}
    cells = [
        Cell(b"a", b"f", name, 50 * start, b"1" if is_value else None, took[start] and 50 * start + took[start])
        for start, name, is_value, _ in sorted(stored, key=lambda each: (each[1], -each[0]))
    ]
    batch, none = batch_of([cells] if cells else []), np.empty(0, np.int64)
    plans = (
        plan(batch, 50 * watermark, none, none, 50 * floor)[1].tolist() for plan in (plan_cleaning, plan_cleaning_plain)
    )
    assert next(plans) == next(plans)


def _cell(version: int, commit: int, column: Column = NAMES[0]) -> Cell:
    return Cell(b"a", *column, version, b"%d" % version, commit)


def test_a_bookmark_without_a_floor_has_none() -> None:
    world = Expiring()
    assert world.run(floors_steps(INFO, Bookmark(50), Snapshot(500, epoch=0), CommitCache())) == []
