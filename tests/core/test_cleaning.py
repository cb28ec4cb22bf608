"""Compaction's rules on one batch: the plain definition against its laws, the kernel against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_cleaning import plan_cleaning_plain

from portions import examples
from pyomid.cells import CellBatch, batch_of
from pyomid.protocol.compaction import plan_cleaning
from pyomid.protocol.visibility import visible_point
from pyomid.types import Cell, start_of

pytestmark = pytest.mark.fast

ROW, F = b"r", b"f"
NONE = np.empty(0, np.int64)


def cell(qualifier: bytes, version: int, commit_ts: int, value: bytes | None = b"v", family: bytes = F) -> Cell:
    return Cell(ROW, family, qualifier, version, value, commit_ts)


def clean(cells: list[Cell], watermark: int) -> list[Cell]:
    """What is left of one row; every unresolved version ≤ W counts as a settled orphan."""
    batch = batch_of([cells])
    orphans = orphans_of(cells, watermark)
    _, drops = plan_cleaning_plain(batch, watermark, orphans, NONE)
    gone = {batch.cell_version(int(i)) for i in drops}
    return [c for c in cells if (c.row, c.family, c.qualifier, c.version) not in gone]


def orphans_of(cells: list[Cell], watermark: int) -> np.ndarray:
    return np.array(
        sorted({start_of(c.version) for c in cells if not c.commit_ts and start_of(c.version) <= watermark}), np.int64
    )


STAY, GO = True, False
ROWS: dict[str, list[tuple[Cell, bool]]] = {
    "superseded above W": [(cell(b"q", 100, 200), STAY), (cell(b"q", 300, 1000), STAY)],
    "superseded below W": [(cell(b"q", 100, 200), GO), (cell(b"q", 300, 400), STAY)],
    "of conflict-free ones the greatest version": [(cell(b"q", 100, 400), GO), (cell(b"q", 200, 300), STAY)],
    "among those committed below": [(cell(b"q", 100, 600), STAY), (cell(b"q", 200, 300), STAY)],
    "columns are judged apart": [(cell(b"a", 100, 200), STAY), (cell(b"b", 300, 400), STAY)],
    "a tombstone goes with what it hides": [(cell(b"q", 100, 200), GO), (cell(b"q", 300, 400, None), GO)],
    "and stays with it": [(cell(b"q", 100, 900), STAY), (cell(b"q", 300, 400, None), STAY)],
    "a family tombstone takes its family's columns with it": [
        (cell(b"a", 100, 200), GO),
        (cell(b"b", 100, 200), GO),
        (cell(b"", 300, 400, None), GO),
        (cell(b"q", 100, 200, family=b"g"), STAY),
    ],
    "a family tombstone stays while it hides anything": [
        (cell(b"a", 100, 200), GO),
        (cell(b"b", 150, 900), STAY),
        (cell(b"", 300, 400, None), STAY),
    ],
    "a value under the empty qualifier takes nothing with it": [
        (cell(b"a", 100, 200), STAY),
        (cell(b"", 300, 400), STAY),
    ],
    "nor keeps what a family tombstone hid": [
        (cell(b"a", 100, 200), GO),
        (cell(b"", 200, 300, None), GO),
        (cell(b"", 300, 400), STAY),
    ],
    "orphans go, and what is above W is left alone": [(cell(b"q", 300, 0), GO), (cell(b"q", 550, 0), STAY)],
}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_of_a_row_these_cells_stay_at_w_500(row: list[tuple[Cell, bool]]) -> None:
    assert clean([cell for cell, _ in row], 500) == [cell for cell, stays in row if stays]


def test_an_unresolved_version_that_was_not_settled_is_not_dropped() -> None:
    batch = batch_of([[cell(b"q", 300, 0)]])
    assert len(plan_cleaning_plain(batch, 500, NONE, NONE)[1]) == 0
    assert len(plan_cleaning(batch, 500, NONE, NONE)[1]) == 0


def test_a_resolved_record_heals_only_while_a_cell_of_it_stays() -> None:
    superseded, kept = cell(b"q", 100, 200), cell(b"q", 300, 400)
    heals, drops = plan_cleaning(batch_of([[superseded, kept]]), 500, NONE, np.array([0, 1]))
    assert heals.tolist() == [1]
    assert drops.tolist() == [0]


@st.composite
def histories(draw: st.DrawFn) -> tuple[CellBatch, list[list[Cell]], int]:
    rows = []
    for number in range(draw(st.integers(1, 3))):
        cells = []
        for name in draw(
            st.sets(st.sampled_from([(F, b"a"), (F, b"b"), (b"g", b"a"), (F, b""), (b"g", b"")]), min_size=1)
        ):
            for start in draw(st.sets(st.integers(1, 8), min_size=1, max_size=5)):
                version = start * 50 + draw(st.integers(0, 2))
                commit = draw(st.sampled_from([0, start * 50 + 50, start * 50 + 150, 600]))
                tombstone = draw(st.booleans()) if name[1] else draw(st.integers(0, 3)) > 0
                cells.append(Cell(b"%d" % number, *name, version, None if tombstone else b"%d" % version, commit))
        rows.append(cells)
    return batch_of(rows), rows, draw(st.integers(0, 500))


@settings(max_examples=examples(400), deadline=None)
@given(histories())
def test_kernel_and_definition_agree(history: tuple[CellBatch, list[list[Cell]], int]) -> None:
    batch, rows, watermark = history
    orphans = orphans_of([c for cells in rows for c in cells], watermark)
    resolved = np.flatnonzero(batch.rec_commit > 0).astype(np.int64)
    for got, want in zip(
        plan_cleaning(batch, watermark, orphans, resolved),
        plan_cleaning_plain(batch, watermark, orphans, resolved),
        strict=True,
    ):
        assert got.tolist() == want.tolist()


@settings(max_examples=examples(400), deadline=None)
@given(histories(), st.integers(0, 700))
def test_no_snapshot_above_the_watermark_sees_a_difference(
    history: tuple[CellBatch, list[list[Cell]], int], above: int
) -> None:
    _, rows, watermark = history
    reader = watermark + 1 + above
    for cells in rows:
        assert visible_point(clean_row(cells, watermark), reader) == visible_point(cells, reader)


@settings(max_examples=examples(200), deadline=None)
@given(histories())
def test_cleaning_twice_changes_nothing_more(history: tuple[CellBatch, list[list[Cell]], int]) -> None:
    _, rows, watermark = history
    for cells in rows:
        once = clean_row(cells, watermark)
        assert clean_row(once, watermark) == once


def clean_row(cells: list[Cell], watermark: int) -> list[Cell]:
    return clean(cells, watermark) if cells else []
