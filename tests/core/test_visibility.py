"""Visibility: the laws of one row, and the compiled form held against the plain one on random histories."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portions import examples
from pyomid.cells import batch_of
from pyomid.protocol import visibility
from pyomid.protocol.visibility import visible_point
from pyomid.types import Cell, Column, ReadBounds, start_of

pytestmark = pytest.mark.fast

A, B, OTHER = Column(b"f", b"a"), Column(b"f", b"b"), Column(b"g", b"a")
FAMILY = Column(b"f", b"")
COLUMNS = [A, B, OTHER, FAMILY, Column(b"g", b"")]


def cell(column: Column, version: int, value: bytes | None, commit_ts: int = 0, row: bytes = b"row") -> Cell:
    return Cell(row, column.family, column.qualifier, version, value, commit_ts)


def test_reader_sees_only_what_was_committed_before_its_start() -> None:
    cells = [cell(A, 50, b"old", 100), cell(A, 150, b"at", 300), cell(A, 200, b"after", 350)]
    assert visible_point(cells, 300) == {A: b"old"}
    assert visible_point(cells, 301) == {A: b"at"}


def test_greatest_visible_version_wins_not_the_latest_commit() -> None:
    assert visible_point([cell(A, 50, b"v50", 200), cell(A, 100, b"v100", 150)], 300) == {A: b"v100"}


def test_unresolved_version_counts_as_not_committed_until_the_commit_table_explains_it() -> None:
    cells = [cell(A, 50, b"old", 60), cell(A, 100, b"new")]
    assert visibility.unresolved_point(cells, 300) == [100]
    assert visible_point(cells, 300) == {A: b"old"}
    assert visible_point(cells, 300, commits={100: 0}) == {A: b"old"}
    assert visible_point(cells, 300, commits={100: -1}) == {A: b"old"}
    assert visible_point(cells, 300, commits={100: 150}) == {A: b"new"}


def test_versions_above_the_reader_need_no_look_up() -> None:
    assert visibility.unresolved_point([cell(A, 300, b"x"), cell(A, 307, b"y")], 300) == []


def test_own_writes_overlay_with_their_greatest_version() -> None:
    cells = [cell(A, 50, b"old", 60), cell(A, 300, b"first"), cell(A, 301, b"second"), cell(A, 250, b"theirs")]
    assert visible_point(cells, 300, {300}) == {A: b"second"}
    assert visibility.unresolved_point(cells, 300, {300}) == [250]


def test_own_branch_above_the_snapshot_is_seen() -> None:
    assert visible_point([cell(A, 301, b"own"), cell(A, 350, b"branch")], 300, {300, 350}) == {A: b"branch"}


def test_tombstone_hides_older_versions_and_nothing_else() -> None:
    cells = [cell(A, 50, b"a", 60), cell(B, 50, b"b", 60), cell(A, 100, None, 110)]
    assert visible_point(cells, 300) == {B: b"b"}
    assert visible_point(cells, 110) == {A: b"a", B: b"b"}


def test_family_tombstone_hides_its_whole_family_up_to_its_own_version() -> None:
    cells = [
        cell(A, 50, b"a", 60),
        cell(B, 100, b"same version", 110),
        cell(FAMILY, 100, None, 110),
        cell(OTHER, 50, b"other", 60),
    ]
    assert visible_point(cells, 300) == {OTHER: b"other"}
    assert visible_point([*cells, cell(B, 150, b"later", 160)], 300) == {OTHER: b"other", B: b"later"}
    assert visible_point(cells, 100) == {A: b"a", OTHER: b"other"}


def test_a_value_under_the_empty_qualifier_hides_nothing() -> None:
    """As plain HBase programs write it: taken for a tombstone it would hide its whole family."""
    cells = [cell(A, 50, b"a", 60), cell(FAMILY, 100, b"flag", 110)]
    assert visible_point(cells, 300) == {A: b"a", FAMILY: b"flag"}
    assert seen_in_bulk(cells, 300) == {A: b"a", FAMILY: b"flag"}


def test_a_later_value_does_not_lift_a_family_tombstone() -> None:
    """Otherwise what was deleted returns, until a compaction takes it away for good."""
    cells = [cell(A, 50, b"a", 60), cell(FAMILY, 100, None, 110), cell(FAMILY, 150, b"flag", 160)]
    assert visible_point(cells, 300) == {FAMILY: b"flag"}
    assert seen_in_bulk(cells, 300) == {FAMILY: b"flag"}
    assert visible_point(cells, 160) == seen_in_bulk(cells, 160) == {}


def seen_in_bulk(cells: list[Cell], reader: int) -> dict[Column, bytes | None]:
    batch = batch_of([cells])
    found = visibility.visible_cells(batch, reader).cells.tolist()
    return {batch.columns[int(batch.cell_col[one])]: batch.value(one) for one in found}


@st.composite
def histories(draw: st.DrawFn) -> list[list[Cell]]:
    """A few rows of few columns with many versions: own, committed, later, unresolved; in any order."""
    rows = []
    for number in range(draw(st.integers(0, 4))):
        names = draw(
            st.lists(
                st.tuples(st.sampled_from(COLUMNS), st.integers(1, 6), st.integers(0, 2)),
                unique=True,
                max_size=12,
            )
        )
        commits = draw(st.fixed_dictionaries({n: st.sampled_from([0, 60, 150, 260, 350]) for n in range(1, 7)}))
        cells = []
        for column, start, checkpoint in names:
            alive = draw(st.integers(0, 3)) > (0 if column.qualifier else 2)
            version = start * 50 + checkpoint
            value = b"%d-%s" % (version, column.qualifier) if alive else None
            cells.append(cell(column, version, value, commits[start], row=b"row%d" % number))
        if cells:
            rows.append(draw(st.permutations(cells)))
    return rows


own_starts = st.frozensets(st.sampled_from([100, 200, 300]), max_size=2)
readers = st.sampled_from([50, 100, 150, 200, 250, 300, 400])
commit_tables = st.dictionaries(st.sampled_from([50, 100, 150, 200, 250, 300]), st.sampled_from([-1, 0, 120, 290]))


@settings(max_examples=examples(400), deadline=None)
@given(rows=histories(), reader=readers, own=own_starts, commits=commit_tables)
def test_compiled_visibility_is_the_plain_one(
    rows: list[list[Cell]], reader: int, own: frozenset[int], commits: dict[int, int]
) -> None:
    import numpy as np

    batch = batch_of(rows)
    starts = visibility.unresolved_starts(batch, reader, own)
    plain = {start for cells in rows for start in visibility.unresolved_point(cells, reader, own)}
    assert starts.tolist() == sorted(plain)
    known = {start: commits.get(start, 0) for start in plain}
    unresolved = visibility.unresolved_records(batch, reader, own).tolist()
    answers = np.array([commits.get(int(start), 0) for start in starts], dtype=np.int64)
    resolved = visibility.apply_commits(batch, starts, answers).tolist()
    assert resolved == sorted(resolved)
    expected = [r for r in unresolved if commits.get(start_of(int(batch.rec_version[r])), 0) > 0]
    assert [record for record in resolved if record in unresolved] == expected
    assert set(visibility.unresolved_records(batch, reader, own)) == set(unresolved) - set(resolved)

    seen = visibility.visible_cells(batch, reader, own)
    for index, cells in enumerate(rows):
        chosen = seen.cells[seen.row_cell[index] : seen.row_cell[index + 1]].tolist()
        columns = [int(batch.cell_col[one]) for one in chosen]
        assert columns == sorted(set(columns))
        found = {batch.columns[column]: batch.value(one) for column, one in zip(columns, chosen, strict=True)}
        assert found == visible_point(cells, reader, own, known)
    present = [index for index, cells in enumerate(rows) if visible_point(cells, reader, own, known)]
    assert seen.rows_present().tolist() == present


@settings(max_examples=examples(400), deadline=None)
@given(rows=histories(), reader=readers, own=own_starts)
def test_needed_versions_say_what_the_whole_row_says(rows: list[list[Cell]], reader: int, own: frozenset[int]) -> None:
    bounds = ReadBounds(below=max(reader, *(start + 50 for start in own), 0), committed_below=reader)
    for row in rows:
        cells = [each._replace(commit_ts=each.commit_ts * (each.commit_ts > each.version)) for each in row]
        needed = bounds.needed(cells)
        assert visible_point(needed, reader, own) == visible_point(cells, reader, own)
