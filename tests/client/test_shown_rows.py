"""The compiled rows of a scan, compared with the reference implementation below."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

from pyomid.cells import CellBatch, batch_of
from pyomid.database.native.shown_rows import ShownRows
from pyomid.database.writes.shown_rows import visible_rows
from pyomid.protocol.visibility import VisibleCells, visible_cells
from pyomid.types import Cell, Column

pytestmark = pytest.mark.fast

COLUMNS = [Column(b"f", b"a"), Column(b"f", b"b"), Column(b"g", b"a"), Column(b"g", b"\xff")]


def plain_rows(batch: CellBatch, visible: VisibleCells) -> list[tuple[bytes, dict[Column, bytes]]]:
    rows = []
    for row in range(batch.rows):
        cells = visible.cells[visible.row_cell[row] : visible.row_cell[row + 1]].tolist()
        if cells:
            found = {batch.columns[int(batch.cell_col[cell])]: batch.value(cell) or b"" for cell in cells}
            rows.append((batch.row_key(row), found))
    return rows


def random_batch(rng: random.Random) -> CellBatch:
    rows = []
    for number in range(rng.randint(1, 30)):
        key = b"%03d" % number + b"\0" * rng.randrange(3)
        rows.append(
            [
                Cell(
                    key, *column, version, rng.choice((None, b"v" * rng.randint(1, 20))), version + rng.choice((1, 500))
                )
                for version in rng.sample(range(50, 500, 50), rng.randint(1, 3))
                for column in rng.sample(COLUMNS, rng.randint(1, 4))
            ]
        )
    return batch_of(rows)


@pytest.mark.parametrize("seed", range(50))
def test_rows_are_those_of_the_reference_implementation(seed: int) -> None:
    batch = random_batch(random.Random(seed))
    visible = visible_cells(batch, 400)
    rows = visible_rows(batch, visible, batch.columns)
    assert list(rows) == list(rows) == plain_rows(batch, visible)


def test_rows_outlive_the_batch_that_they_come_from() -> None:
    batch = random_batch(random.Random(1))
    visible = visible_cells(batch, 400)
    expected = plain_rows(batch, visible)
    rows = visible_rows(batch, visible, batch.columns)
    del batch, visible
    gc.collect()
    assert list(rows) == expected


def test_cleared_rows_end_every_iteration() -> None:
    batch = random_batch(random.Random(2))
    rows = visible_rows(batch, visible_cells(batch, 1000), batch.columns)
    begun = iter(rows)
    assert next(begun)
    rows.clear()
    assert list(begun) == list(rows) == []


def test_borders_that_do_not_fit_are_refused() -> None:
    batch = random_batch(random.Random(3))
    visible = visible_cells(batch, 1000)
    for cells, row_cell in (
        (visible.cells, visible.row_cell[:-1]),
        (visible.cells[:-1], visible.row_cell),
        (np.empty(0, np.int64), visible.row_cell),
    ):
        with pytest.raises(ValueError, match="borders"):
            ShownRows(batch.arrays(), cells, row_cell, batch.columns)
    with pytest.raises(IndexError, match="of 0"):
        list(ShownRows(batch.arrays(), visible.cells, visible.row_cell, []))


def test_rows_that_end_amid_a_collection_of_garbage_are_not_read_any_more() -> None:
    """A finalizer may end the transaction while a row is made; CPython before 3.12 calls it amid compiled code."""
    cells = [[Cell(b"%04d" % number, b"f", b"a", 50, b"v" * 100, 100)] for number in range(3000)]
    made = []

    def end(phase: str, _: object) -> None:
        if len(made) > 500:
            rows.clear()

    gc.callbacks.append(end)
    try:
        batch = batch_of(cells)
        visible = visible_cells(batch, 400)
        rows = visible_rows(batch, visible, batch.columns)
        expected = plain_rows(batch, visible)
        del batch, visible, cells
        thresholds = gc.get_threshold()
        gc.set_threshold(1)
        for row in rows:
            made.append(row)
            if len(made) == 2000:
                gc.collect()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(end)
    assert 500 < len(made) <= 2000
    assert made == expected[: len(made)]
