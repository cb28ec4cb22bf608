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


def seen_in_bulk(cells: list[Cell], reader: int) -> dict[Column, bytes | None]:
    batch = batch_of([cells])
    found = visibility.visible_cells(batch, reader).cells.tolist()
    return {batch.columns[int(batch.cell_col[one])]: batch.value(one) for one in found}


HISTORY = [cell(A, 50, b"old", 100), cell(A, 150, b"at", 300), cell(A, 200, b"after", 350)]
TOMBSTONE = [cell(A, 50, b"a", 60), cell(B, 50, b"b", 60), cell(A, 100, None, 110)]
FAMILY_TOMBSTONE = [
    cell(A, 50, b"a", 60),
    cell(B, 100, b"same version", 110),
    cell(FAMILY, 100, None, 110),
    cell(OTHER, 50, b"other", 60),
]
LATER_VALUE = [cell(A, 50, b"a", 60), cell(FAMILY, 100, None, 110), cell(FAMILY, 150, b"flag", 160)]
"""Where it lifted the tombstone, what was deleted would return until a compaction takes it away for good."""

ROWS: dict[str, tuple[list[Cell], int, dict[Column, bytes]]] = {
    "committed at the start": (HISTORY, 300, {A: b"old"}),
    "committed before it": (HISTORY, 301, {A: b"at"}),
    "the greatest version, not the latest commit": (
        [cell(A, 50, b"v50", 200), cell(A, 100, b"v100", 150)], 300, {A: b"v100"},
    ),
    "a tombstone hides older versions and nothing else": (TOMBSTONE, 300, {B: b"b"}),
    "a tombstone of later": (TOMBSTONE, 110, {A: b"a", B: b"b"}),
    "a family tombstone hides all up to its version": (FAMILY_TOMBSTONE, 300, {OTHER: b"other"}),
    "and nothing above it": (
        [*FAMILY_TOMBSTONE, cell(B, 150, b"later", 160)], 300, {OTHER: b"other", B: b"later"},
    ),
    "a family tombstone of later": (FAMILY_TOMBSTONE, 100, {A: b"a", OTHER: b"other"}),
    "a value under the empty qualifier, as plain HBase programs write it, hides nothing": (
        [cell(A, 50, b"a", 60), cell(FAMILY, 100, b"flag", 110)], 300, {A: b"a", FAMILY: b"flag"},
    ),
    "a later value does not lift a family tombstone": (LATER_VALUE, 300, {FAMILY: b"flag"}),
    "before it": (LATER_VALUE, 160, {}),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "reader", "seen"), ROWS.values(), ids=list(ROWS))
def test_of_a_row_a_reader_sees_this(cells: list[Cell], reader: int, seen: dict[Column, bytes]) -> None:
    assert visible_point(cells, reader) == seen_in_bulk(cells, reader) == seen


def test_unresolved_version_counts_as_not_committed_until_the_commit_table_explains_it() -> None:
    cells = [cell(A, 50, b"old", 60), cell(A, 100, b"new")]
    assert visibility.unresolved_point(cells, 300) == [100]
    for commits, seen in ({}, b"old"), ({100: 0}, b"old"), ({100: -1}, b"old"), ({100: 150}, b"new"):
        assert visible_point(cells, 300, commits=commits) == {A: seen}
    assert visibility.unresolved_point([cell(A, 300, b"x"), cell(A, 307, b"y")], 300) == [], "above the reader"


def test_own_writes_overlay_with_their_greatest_version() -> None:
    cells = [cell(A, 50, b"old", 60), cell(A, 300, b"first"), cell(A, 301, b"second"), cell(A, 250, b"theirs")]
    assert visible_point(cells, 300, {300}) == {A: b"second"}
    assert visibility.unresolved_point(cells, 300, {300}) == [250]
    branches = [cell(A, 301, b"own"), cell(A, 350, b"branch")]
    assert visible_point(branches, 300, {300, 350}) == {A: b"branch"}, "one above the snapshot too"


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
