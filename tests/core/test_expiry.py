"""Values expire for a snapshot, and for all its readers alike: against a model, beside compaction and the feed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_cleaning import plan_cleaning_plain
from test_change_feed import FAMILY, NAMES, ROWS, State, T, World, _step, places, played

from portions import examples
from pyomid.cells import batch_of
from pyomid.errors import SnapshotTooOld
from pyomid.protocol import changes
from pyomid.protocol.changes import Change
from pyomid.protocol.compaction import plan_cleaning
from pyomid.protocol.expiry import changes_of, droppable_to, expired_to, expiring, settled, with_ttl, without_passed
from pyomid.protocol.reading import CommitCache, Snapshot, read_rows
from pyomid.protocol.timestamps import NS_PER_S
from pyomid.protocol.visibility import visible_cells, visible_point
from pyomid.types import FIRST_TIME, Cell, Column, ConflictLevel, TableInfo, TtlChange, start_of

pytestmark = pytest.mark.fast

BASE = 2 * FIRST_TIME
STEP_S = 50 / NS_PER_S
INFO = TableInfo(T, (b"f", b"g"), ConflictLevel.ROW, ttl_seconds=12 * STEP_S)


@dataclass
class Expiring(World):
    """A world whose table has a time to live. `rules`: (since, steps), 0: for ever."""

    clock: int = BASE
    watermark: int = BASE
    info: TableInfo = INFO
    rules: list[tuple[int, int]] = field(default_factory=lambda: [(0, 12)])

    def alter(self, steps: int) -> None:
        fence = self.draw()
        self.info = settled(with_ttl(without_passed(self.info, self.watermark), steps * STEP_S, fence), fence)
        self.rules.append((fence, steps))

    def clean(self) -> None:
        batch = batch_of([cells for cells in self.store.read_rows(T, sorted(ROWS)) if cells])
        if not batch.rows:
            return
        for record in range(batch.records):
            if not batch.rec_commit[record]:
                batch.rec_commit[record] = self.entries.get(start_of(int(batch.rec_version[record])), 0)
        unresolved = {start_of(int(v)) for v, c in zip(batch.rec_version, batch.rec_commit, strict=True) if not c}
        orphans = np.array(sorted(s for s in unresolved if s <= self.watermark), np.int64)
        resolved = np.arange(batch.records, dtype=np.int64)[batch.rec_commit > 0]
        expired = droppable_to(self.info, self.watermark)
        plain = plan_cleaning_plain(batch, self.watermark, orphans, resolved, expired)
        compiled = plan_cleaning(batch, self.watermark, orphans, resolved, expired)
        assert [each.tolist() for each in plain] == [each.tolist() for each in compiled]
        self.store.clean_batch(T, batch, *plain)

    def seen(self, at: int) -> State:
        """By the row-at-a-time path, after it is compared with the compiled one."""
        cache = CommitCache()
        snapshot = expiring(Snapshot(at, epoch=0), self.info)
        rows = self.run(read_rows(INFO, list(ROWS), None, snapshot, cache))
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

    def has_expired(self, commit: int, at: int) -> bool:
        """Whether there was a moment up to `at` at which the commit was as old as the time to live of that moment."""
        ends = [*(since for since, _ in self.rules[1:]), at]
        return any(
            steps and since <= at and commit <= min(end, at) - 50 * steps
            for (since, steps), end in zip(self.rules, ends, strict=True)
        )

    def expected(self, at: int) -> State:
        """What the commits below `at` left, without what has expired."""
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
            if not self.has_expired(commit, at):
                rows[row][column] = value
        return rows


_alters = st.tuples(st.just("alter"), st.sampled_from((0, 3, 8, 40)))


@given(st.lists(st.one_of(_step, _alters), max_size=40))
@settings(derandomize=True, max_examples=examples(60), deadline=None)
def test_e1_e2_all_readers_of_a_snapshot_see_the_same(script: list[tuple[Any, ...]]) -> None:
    world = played(Expiring(), script)
    for at in range(BASE + 50, world.clock + 100, 50):
        if at <= world.watermark:
            with pytest.raises(SnapshotTooOld):
                world.seen(at)
        else:
            assert world.seen(at) == world.expected(at)
    world.clean()
    for at in range(world.watermark + 1, world.clock + 100, 50):
        assert world.seen(at) == world.expected(at)


def test_e2_compaction_drops_what_has_expired_at_w_and_nothing_else() -> None:
    written = [("begin",), ("write", 0, ROWS[0], NAMES[0], b"1"), ("commit", 0, True)]
    world = played(Expiring(), [*written, *[("bookmark",)] * 20])
    commit, _ = world.committed[0]
    for watermark, left in ((commit + 11 * 50, 1), (commit + 12 * 50, 0)):
        world.watermark = watermark
        world.clean()
        assert len(world.store.read_rows(T, [ROWS[0]])[0]) == left


@given(st.lists(st.one_of(_step, _alters), max_size=40))
@settings(derandomize=True, max_examples=examples(60), deadline=None)
def test_e3_a_commit_finds_rows_without_what_expired(script: list[tuple[Any, ...]]) -> None:
    world = played(Expiring(), script)
    for since, until in places(world):
        if world.watermark > since.start_ts or since.start_ts < BASE:
            continue
        snapshot, cache = Snapshot(until, epoch=0), CommitCache()
        found = world.run(changes.read_changes(INFO, list(ROWS), since, snapshot, cache, world.info))
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


# ── a changed time to live ───────────────────────────────────────────────────────────────────────────────────────

HOUR = 3_600 * NS_PER_S


def test_a_value_expires_exactly_after_its_time_to_live() -> None:
    info = TableInfo("t", (b"f",), ttl_seconds=3_600.0)
    assert expired_to(info, BASE) == BASE - HOUR
    assert droppable_to(info, BASE) == BASE - HOUR
    assert expired_to(TableInfo("t", (b"f",)), BASE) == 0


def test_a_shorter_time_to_live_acts_at_once_and_a_longer_one_brings_nothing_back() -> None:
    info = TableInfo("t", (b"f",), ttl_seconds=3_600.0)
    shorter = with_ttl(info, 60.0, BASE)
    assert shorter.ttl_changes == (TtlChange(0, 3_600.0, 0, 0), TtlChange(BASE, 60.0, BASE - HOUR))
    assert expired_to(shorter, BASE - 1) == BASE - 1 - HOUR, "a snapshot of before goes by what counted then"
    assert expired_to(shorter, BASE) == BASE - 60 * NS_PER_S
    longer = with_ttl(info, 7_200.0, BASE)
    assert [expired_to(longer, at) for at in (BASE, BASE + HOUR, BASE + HOUR + 5)] == [
        BASE - HOUR,
        BASE - HOUR,
        BASE - HOUR + 5,
    ]
    ended = with_ttl(longer, 0.0, BASE + HOUR + 5)
    assert expired_to(ended, BASE + 1_000 * HOUR) == BASE - HOUR + 5, "what has expired stays so"
    again = with_ttl(ended, 60.0, BASE + 2 * HOUR)
    assert expired_to(again, BASE + 2 * HOUR) == BASE + 2 * HOUR - 60 * NS_PER_S


def test_e2_compaction_goes_by_a_new_time_to_live_once_no_reader_goes_by_the_former() -> None:
    """However long its client took to put the entry."""
    info = TableInfo("t", (b"f",), ttl_seconds=3_600.0)
    unsettled, known = with_ttl(info, 60.0, BASE), BASE + 24 * HOUR
    for w in (BASE - 5, BASE, known + HOUR):
        assert droppable_to(replace(unsettled, is_changing=False), w) == min(w, BASE) - HOUR
        assert droppable_to(unsettled, w) == 0
    shorter = settled(unsettled, known)
    for w in (BASE - HOUR, BASE - 5, BASE, known - 1):
        assert droppable_to(shorter, w) == min(w, BASE) - HOUR
    assert droppable_to(shorter, known) == known - 60 * NS_PER_S
    assert settled(shorter, known + 50) == shorter, "a later fence takes nothing back"


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 30), st.sampled_from((0, 1, 5, 20)), st.integers(1, 60)),
        max_size=6,
    ),
    st.booleans(),
)
@settings(max_examples=examples(100), deadline=None)
def test_e2_what_has_expired_ascends_and_compaction_is_never_ahead_of_a_reader(
    alters: list[tuple[int, int, int, int]], was_created_so: bool
) -> None:
    """A reader may open the table long after it began, and know any entry since then; compaction goes by a W that it
    read before the entry."""
    info = TableInfo("t", (b"f",), ttl_seconds=5.0 if was_created_so else None)
    at, entries = BASE, [(info, 0, 0, 0)]
    for after, stall, ttl_s, behind in alters:
        fence = at + after * NS_PER_S
        watermark = max(entries[-1][3], fence - behind * NS_PER_S)
        at = fence + stall * NS_PER_S
        info = settled(with_ttl(without_passed(info, watermark), float(ttl_s), fence), at)
        entries.append((info, fence, at, watermark))
    moments = [BASE + step * NS_PER_S // 2 for step in range(-20, 200)]
    for info, _, _, watermark in entries:
        bounds = [expired_to(info, moment) for moment in moments if moment > watermark]
        assert bounds == sorted(bounds)
    for number, (info, _, _, _) in enumerate(entries):
        following = entries[number + 1 :]
        for watermark in moments:
            if following and watermark >= following[0][1]:
                break
            dropped = droppable_to(info, watermark)
            for reader in (watermark + 1, watermark + 3 * NS_PER_S, watermark + 40 * NS_PER_S):
                for known, (read, _, _, kept_above) in enumerate(entries):
                    may_know = all(reader < settled_ts for _, _, settled_ts, _ in entries[known + 1 :][:1])
                    if may_know and reader > kept_above:
                        assert dropped <= expired_to(read, reader)


def test_the_entry_keeps_the_changes_that_a_kept_snapshot_goes_by() -> None:
    made = info = TableInfo("t", (b"f",), ttl_seconds=60.0)
    told: dict[int, int] = {}
    for hour in range(100):
        fence = BASE + hour * HOUR
        told[fence - 1] = expired_to(info, fence - 1)
        info = settled(with_ttl(without_passed(info, BASE), 60.0 + hour % 3, fence), fence)
        assert {at: expired_to(info, at) for at in told if at > BASE} == {a: to for a, to in told.items() if a > BASE}
    assert len(changes_of(info)) == 100
    for watermark, left in ((BASE + 40 * HOUR - 1, 62), (BASE + 40 * HOUR, 61), (BASE + 1_000 * HOUR, 2)):
        later = with_ttl(without_passed(info, watermark), 5.0, BASE + 1_000 * HOUR)
        assert len(changes_of(later)) == left
        assert {a: expired_to(later, a) for a in told if a > watermark} == {a: told[a] for a in told if a > watermark}
    assert with_ttl(without_passed(made, BASE), 70.0, BASE + HOUR).ttl_changes[0] == TtlChange(0, 60.0, 0, 0)


@pytest.mark.parametrize("commit", [50, 1_700_000_000_000, FIRST_TIME - 50])
def test_a_commit_from_before_timestamps_were_times_never_expires(commit: int) -> None:
    cell = _cell(40, commit)
    assert visible_point([cell], BASE, expired_to=BASE - HOUR) == {NAMES[0]: b"40"}
    batch, none = batch_of([[cell]]), np.empty(0, np.int64)
    assert len(visible_cells(batch, BASE, (), BASE - HOUR).cells) == 1
    for plan in (plan_cleaning, plan_cleaning_plain):
        assert not len(plan(batch, BASE, none, none, BASE - HOUR)[1])


# ── one value ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_expired_value_hides_what_it_hid() -> None:
    """A conflict-free write of an earlier start that committed later."""
    cells = [
        cell
        for version, commit in ((BASE + 100, BASE + 400), (BASE + 200, BASE + 300))
        for cell in [_cell(version, commit)]
    ]
    assert visible_point(cells, BASE + 500) == {NAMES[0]: b"%d" % (BASE + 200)}
    assert visible_point(cells, BASE + 500, expired_to=BASE + 350) == {}
    batch = batch_of([cells])
    for watermark, left in ((BASE + 350, 2), (BASE + 450, 0)):
        _, drops = plan_cleaning(batch, watermark, np.empty(0, np.int64), np.empty(0, np.int64), BASE + 350)
        assert batch.cells - len(drops) == left


def test_an_expired_value_under_an_empty_qualifier_hides_no_family() -> None:
    flag, other = _cell(BASE + 100, BASE + 200, Column(b"f", b"")), _cell(BASE + 100, BASE + 400)
    value = b"%d" % (BASE + 100)
    for expired, seen in ((0, {FAMILY: value, NAMES[0]: value}), (BASE + 300, {NAMES[0]: value})):
        assert visible_point([flag, other], BASE + 500, expired_to=expired) == seen


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
    stored = [(BASE + 50 * start, *rest) for start, *rest in stored]
    took = {start: took for start, _, _, took in stored}
    cells = [
        Cell(b"a", b"f", name, start, b"1" if is_value else None, took[start] and start + took[start])
        for start, name, is_value, _ in sorted(stored, key=lambda each: (each[1], -each[0]))
    ]
    batch, none = batch_of([cells] if cells else []), np.empty(0, np.int64)
    plans = (
        plan(batch, BASE + 50 * watermark, none, none, BASE + 50 * floor)[1].tolist()
        for plan in (plan_cleaning, plan_cleaning_plain)
    )
    assert next(plans) == next(plans)


def _cell(version: int, commit: int, column: Column = NAMES[0]) -> Cell:
    return Cell(b"a", *column, version, b"%d" % version, commit)
