"""What changed between two places of the order of commits, against a model that replays the commits one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_cleaning import plan_cleaning_plain

from portions import examples
from pyomid.cells import batch_of
from pyomid.coroutines import drive
from pyomid.errors import SnapshotTooOld
from pyomid.omid.memory import MemoryStore
from pyomid.protocol import changes, effects
from pyomid.protocol.changes import Change
from pyomid.protocol.reading import CommitCache, Snapshot
from pyomid.types import (
    SEALED,
    Bookmark,
    Column,
    ConflictLevel,
    KeyRange,
    LifeOf,
    RowWrite,
    SealOutcome,
    ShadowWrite,
    TableInfo,
    start_of,
)

pytestmark = pytest.mark.fast

T, ROWS, NAMES = "t", (b"a", b"b"), (Column(b"f", b"x"), Column(b"f", b"y"), Column(b"g", b"x"))
LIFE = LifeOf(T, 1)
FAMILY = Column(b"f", b"")
"""Its tombstone hides all of f."""
State = dict[bytes, dict[Column, bytes]]


@dataclass
class Open:
    start: int
    branch: int
    writes: dict[tuple[bytes, Column], bytes | None] = field(default_factory=dict)


@dataclass
class World:
    """A TSO, a store and what was committed, in order: (commit, its writes)."""

    store: MemoryStore = field(default_factory=MemoryStore)
    clock: int = 0
    watermark: int = 0
    open: list[Open] = field(default_factory=list)
    entries: dict[int, int] = field(default_factory=dict)
    committed: list[tuple[int, dict[tuple[bytes, Column], bytes | None]]] = field(default_factory=list)
    bookmarks: list[Bookmark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store.create_table(TableInfo(T, (b"f", b"g"), ConflictLevel.ROW))

    def draw(self) -> int:
        self.clock += 50
        return self.clock

    def begin(self) -> None:
        self.open.append(Open(self.draw(), self.draw()))

    def write(self, number: int, row: bytes, column: Column, value: bytes | None) -> None:
        if self.open:
            each = self.open[number % len(self.open)]
            each.writes[row, column] = value
            self.store.write_cells(
                T, each.start if row == ROWS[0] else each.branch, [RowWrite(row, ((column, value),))]
            )

    def commit(self, number: int, *, is_complete: bool) -> None:
        """Of two that overlap and wrote a row one commits; what began at or below LWM does not."""
        if not self.open:
            return
        each = self.open.pop(number % len(self.open))
        rows = {row for row, _ in each.writes}
        lost = any(c > each.start and rows & {row for row, _ in writes} for c, writes in self.committed)
        if each.start <= self.watermark or lost:
            return
        commit = self.draw()
        self.entries |= {each.start: commit, each.branch: commit}
        self.committed.append((commit, each.writes))
        if is_complete:
            cells = [cell for row in ROWS for cell in self.store.read_rows(T, [row])[0]]
            mine = [cell for cell in cells if cell.version in (each.start, each.branch)]
            self.store.write_shadow_cells(T, [ShadowWrite(cell.name, commit) for cell in mine])

    def raise_watermark(self, steps_back: int) -> None:
        self.watermark = max(self.watermark, self.clock - 50 * steps_back)

    def bookmark(self) -> None:
        self.bookmarks.append(Bookmark(self.draw(), self.watermark))

    def clean(self) -> None:
        """Compaction up to W, the commit table's entries below it included."""
        batch = batch_of([cells for cells in self.store.read_rows(T, sorted(ROWS)) if cells])
        if not batch.rows:
            return
        for record in range(batch.records):
            start = start_of(int(batch.rec_version[record]))
            if not batch.rec_commit[record]:
                batch.rec_commit[record] = self.entries.get(start, 0)
        unresolved = {start_of(int(v)) for v, c in zip(batch.rec_version, batch.rec_commit, strict=True) if not c}
        orphans = np.array(sorted(s for s in unresolved if s <= self.watermark), np.int64)
        resolved = np.arange(batch.records, dtype=np.int64)[batch.rec_commit > 0]
        self.store.clean_batch(T, batch, *plan_cleaning_plain(batch, self.watermark, orphans, resolved))

    # What steps ask for

    def seal(self, effect: effects.SealStarts) -> list[SealOutcome]:
        found = [self.entries.setdefault(start, SEALED) for start in effect.starts]
        return [SealOutcome(state == SEALED, max(state, 0)) for state in found]

    def run(self, steps: Any) -> Any:
        return drive(
            steps,
            {
                effects.ReadRange: lambda e: next(self.store.scan(e.table, e.key_range, bounds=e.bounds), batch_of([])),
                effects.ReadRows: lambda e: self.store.read_rows(e.table, e.rows, e.columns, bounds=e.bounds),
                effects.LookupThenWatermarks: lambda e: ([self.entries.get(s, 0) for s in e.starts], self.watermark, 0),
                effects.ReadWatermarks: lambda e: (self.watermark, 0),
                effects.ReadValidity: lambda e: (self.watermark, LIFE.generation),
                effects.ReadNotedDrop: lambda e: 0,
                effects.SealStarts: self.seal,
                effects.Heal: lambda e: self.store.write_shadow_cells(e.table, e.shadows),
                effects.DeleteOrphans: lambda e: self.store.delete_versions(e.table, e.cells),
            },
        )

    def changes(self, since: Bookmark, until: int) -> list[Change]:
        snapshot, cache = Snapshot(until, epoch=0), CommitCache()
        found: list[Change] = []
        bounds = changes.change_bounds(since, snapshot)
        for rows in [*self.store.changed_rows(T, KeyRange(), bounds, batch_rows_max=1), []]:
            found += self.run(changes.read_changes(LIFE, rows, since, snapshot, cache))
        return found

    def changes_by_batches(self, since: Bookmark, until: int) -> list[Change]:
        """Inserts as a batch tells them, all other changes row by row."""
        snapshot, cache = Snapshot(until, epoch=0), CommitCache()
        found: list[Change] = []
        for batch in self.store.scan(T, KeyRange(), bounds=changes.read_bounds(since, snapshot)):
            inserts, others = self.run(changes.read_inserts(T, batch, since, snapshot, cache))
            rows = inserts.seen.rows_present().tolist()
            for row, commit_ts in zip(rows, inserts.commits.tolist(), strict=True):
                cells = inserts.seen.cells[inserts.seen.row_cell[row] : inserts.seen.row_cell[row + 1]].tolist()
                seen = {inserts.batch.columns[inserts.batch.cell_col[c]]: inserts.batch.value(c) or b"" for c in cells}
                found.append(Change(inserts.batch.row_key(row), commit_ts, {}, seen))
            found += self.run(changes.read_changes(LIFE, others, since, snapshot, cache))
        return sorted(found, key=lambda change: (change.row, change.commit_ts))


def replayed(world: World, above: int, below: int) -> list[Change]:
    """The commits one after the other, over a plain dict."""
    state: State = {}
    found = []
    for commit, writes in world.committed:
        for row in sorted({row for row, _ in writes}):
            before = state.get(row, {})
            mine = {column: value for (key, column), value in writes.items() if key == row}
            after = {c: v for c, v in before.items() if not (FAMILY in mine and c.family == b"f")}
            own = {c: v for c, v in mine.items() if not (FAMILY in mine and c.family == b"f")}
            state[row] = {c: v for c, v in {**after, **own}.items() if v is not None}
            if above < commit < below and state[row] != before:
                found.append(Change(row, commit, before, state[row]))
    return sorted(found, key=lambda change: (change.row, change.commit_ts))


W = TypeVar("W", bound=World)

_values = st.sampled_from([b"1", b"2", b"3"])
_step = st.one_of(
    st.just(("begin",)),
    st.tuples(st.just("write"), st.integers(0, 3), st.sampled_from(ROWS), st.sampled_from(NAMES), _values),
    st.tuples(st.just("write"), st.integers(0, 3), st.sampled_from(ROWS), st.sampled_from((*NAMES, FAMILY)), st.none()),
    st.tuples(st.just("commit"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("raise"), st.integers(0, 6)),
    st.just(("bookmark",)),
    st.just(("clean",)),
)


def played(world: W, script: list[tuple[Any, ...]]) -> W:
    """The world behind the steps of the script, with a bookmark before and after them."""
    world.bookmark()
    for name, *given_ in script:
        match name:
            case "commit" | "move":
                getattr(world, name)(given_[0], is_complete=given_[1])
            case "raise":
                world.raise_watermark(given_[0])
            case _:
                getattr(world, name)(*given_)
    world.bookmark()
    return world


def places(world: World) -> Iterator[tuple[Bookmark, int]]:
    """Each bookmark with each later one, with what is known of W and without."""
    for number, since in enumerate(world.bookmarks):
        for until in world.bookmarks[number + 1 :]:
            yield since, until.start_ts
            yield Bookmark(since.start_ts), until.start_ts


@given(st.lists(_step, max_size=40))
@settings(derandomize=True, max_examples=examples(150), deadline=None)
def test_changes_are_those_of_the_commits_replayed(script: list[tuple[Any, ...]]) -> None:
    world = played(World(), script)
    for since, until in places(world):
        if world.watermark > since.start_ts:
            with pytest.raises(SnapshotTooOld, match="are no longer kept"):
                world.changes(since, until)
        else:
            found = replayed(world, since.start_ts, until)
            assert world.changes(since, until) == found
            assert world.changes_by_batches(since, until) == found


@given(st.lists(_step, max_size=40))
@settings(max_examples=examples(60), deadline=None)
def test_changes_between_three_places_add_up(script: list[tuple[Any, ...]]) -> None:
    world = played(World(), script)
    kept = [each for each in world.bookmarks if each.start_ts >= world.watermark]
    if kept:
        parts = [change for one, two in pairwise(kept) for change in world.changes(one, two.start_ts)]
        whole = world.changes(kept[0], kept[-1].start_ts)
        assert sorted(parts, key=lambda change: (change.row, change.commit_ts)) == whole


def begun_before_the_bookmark(*, is_complete: bool = True) -> World:
    """T begins, the bookmark is drawn, T commits: its versions lie below the bookmark."""
    world = World()
    world.begin()
    world.write(0, b"a", NAMES[0], b"1")
    world.bookmark()
    world.commit(0, is_complete=is_complete)
    world.bookmark()
    return world


def test_f2_a_commit_above_a_bookmark_may_have_begun_below_it() -> None:
    world = begun_before_the_bookmark()
    (change,) = world.changes(world.bookmarks[0], world.bookmarks[1].start_ts)
    assert change.after == {NAMES[0]: b"1"}
    assert not change.before


def test_f1_a_commit_counts_on_one_side_of_each_place() -> None:
    world = begun_before_the_bookmark(is_complete=False)
    first, second = world.bookmarks
    commit = world.committed[0][0]
    assert world.changes(Bookmark(commit), second.start_ts) == []
    assert world.changes(first, commit) == []
    assert len(world.changes(first, commit + 1)) == 1


def test_f3_changes_that_may_be_gone_are_refused_by_name() -> None:
    world = begun_before_the_bookmark()
    world.watermark = world.bookmarks[0].start_ts
    assert len(world.changes(world.bookmarks[0], world.bookmarks[1].start_ts)) == 1
    world.watermark += 50
    with pytest.raises(SnapshotTooOld, match="are no longer kept"):
        world.changes(world.bookmarks[0], world.bookmarks[1].start_ts)


def test_a_write_that_another_hides_changes_nothing() -> None:
    """Conflict-free writes: the greater start hides the other, whichever committed later."""
    world = World()
    world.bookmark()
    world.begin()
    world.begin()
    world.write(0, b"a", NAMES[0], b"old")
    world.write(1, b"a", NAMES[0], b"new")
    late = world.open.pop(0)
    world.commit(0, is_complete=False)
    world.entries |= {late.start: world.draw()}
    world.bookmark()
    (change,) = world.changes(world.bookmarks[0], world.bookmarks[1].start_ts)
    assert change.after == {NAMES[0]: b"new"}


def test_a_row_of_many_commits_costs_no_more_for_each() -> None:
    world = World()
    world.bookmark()
    for number in range(300):
        world.begin()
        world.write(0, b"a", NAMES[number % 3], b"%d" % number)
        world.commit(0, is_complete=number % 2 == 0)
    world.bookmark()
    looked_at = 0
    visible_point = changes.visibility.visible_point

    def counted(cells: Any, *others: Any) -> Any:
        nonlocal looked_at
        looked_at += len(cells)
        return visible_point(cells, *others)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(changes.visibility, "visible_point", counted)
        found = world.changes(world.bookmarks[0], world.bookmarks[1].start_ts)
    assert len(found) == 300
    assert looked_at <= 301 * 4
