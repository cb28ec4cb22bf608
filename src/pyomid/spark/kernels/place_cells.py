"""Which cell fills which place of a table of rows and columns, once visibility is decided."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel(
    "void(Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "Array(int32, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "Array(int32, 1, 'C', readonly=True), int64[:,::1])"
)
def place_cells(
    visible: NDArray[np.int64],
    row_cell: NDArray[np.int64],
    cell_col: NDArray[np.int32],
    rows: NDArray[np.int64],
    column_place: NDArray[np.int32],
    chosen: NDArray[np.int64],
) -> Any:
    """Fills `chosen[place, i]` with the index of the cell that row `rows[i]` shows there; -1 where it shows none.

    `visible[row_cell[r] : row_cell[r + 1]]` are row r's visible cells; `column_place[c]` is column c's place, or -1.
    """
    places, count = chosen.shape
    for index in range(count):
        for place in range(places):
            chosen[place, index] = -1
        for at in range(row_cell[rows[index]], row_cell[rows[index] + 1]):
            cell = visible[at]
            place = column_place[cell_col[cell]]
            if place >= 0:
                chosen[place, index] = cell


def place_cells_plainly(
    rows: list[list[int]], cell_col: list[int], column_place: list[int], places: int
) -> list[list[int]]:
    """The twin: each row's visible cells → its cell at each place."""
    by_place = [{column_place[cell_col[cell]]: cell for cell in cells} for cells in rows]
    return [[row.get(place, -1) for place in range(places)] for row in by_place]
