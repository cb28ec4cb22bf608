"""A grid of cells, rows by columns with gaps, into a batch's cell arrays without gaps."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE
from pyomid.compiled import kernel

ABSENT: Final = -2
"""Length of a grid place that holds no cell; below TOMBSTONE."""


@kernel("int64(int64[:,::1], int32[:,::1], int64, int64, int64[::1], int32[::1], int64[::1], int32[::1])")
def pack_cells(
    grid_off: NDArray[np.int64],
    grid_len: NDArray[np.int32],
    marker_off: int,
    marker_len: int,
    rec_cell: NDArray[np.int64],
    cell_col: NDArray[np.int32],
    cell_off: NDArray[np.int64],
    cell_len: NDArray[np.int32],
) -> int:
    """Fills the four arrays and says how many cells there are. Room: one more a row than the grid is wide.

    The grid is columns by rows. A row without any value gets the marker, column number `len(grid)`.
    """
    columns, rows = grid_off.shape
    written = np.uint64(0)  # unsigned: a signed index may count from the end, which numba would ask each time
    one = np.uint64(1)
    rec_cell[0] = 0
    for row in range(np.uint64(rows)):
        has_value = False
        for column in range(np.uint64(columns)):
            length = grid_len[column, row]
            if length == ABSENT:
                continue
            cell_col[written] = column
            cell_off[written] = grid_off[column, row]
            cell_len[written] = length
            written += one
            if length != TOMBSTONE:
                has_value = True
        if not has_value:
            cell_col[written] = columns
            cell_off[written] = marker_off
            cell_len[written] = marker_len
            written += one
        rec_cell[row + one] = written
    return int(np.int64(written))


def pack_cells_plainly(grid: list[list[tuple[int, int]]], marker: tuple[int, int]) -> list[list[tuple[int, int, int]]]:
    """The twin: rows of (offset, length) → rows of (column, offset, length)."""
    packed = []
    for row in grid:
        cells = [(column, off, length) for column, (off, length) in enumerate(row) if length != ABSENT]
        if all(length == TOMBSTONE for _, _, length in cells):
            cells.append((len(row), *marker))
        packed.append(cells)
    return packed
