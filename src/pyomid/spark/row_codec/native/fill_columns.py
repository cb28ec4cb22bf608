"""Visible cells into Arrow's columns: one pass over a batch, in the order in which its cells lie.

Fixed-width values are written where Arrow wants them, last byte first (little-endian); for the other columns it is
noted which cell stands in which row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel

_READ_1: str = "1, 'C', readonly=True)"


@kernel(
    f"UniTuple(int64, 2)(Array(uint8, {_READ_1}, Array(int64, {_READ_1}, Array(int32, {_READ_1}, "
    f"Array(int32, {_READ_1}, Array(int64, {_READ_1}, Array(int64, {_READ_1}, Array(int64, {_READ_1}, "
    f"Array(int64, {_READ_1}, Array(int64, {_READ_1}, Array(int64, {_READ_1}, "
    "uint8[::1], int64[:,::1], uint8[:,::1], int64[::1])"
)
def fill_columns(
    buffer: NDArray[np.uint8],
    cell_off: NDArray[np.int64],
    cell_len: NDArray[np.int32],
    cell_col: NDArray[np.int32],
    visible: NDArray[np.int64],
    row_cell: NDArray[np.int64],
    rows: NDArray[np.int64],
    place_of: NDArray[np.int64],
    width_of: NDArray[np.int64],
    at_of: NDArray[np.int64],
    fixed: NDArray[np.uint8],
    chosen: NDArray[np.int64],
    valid: NDArray[np.uint8],
    present: NDArray[np.int64],
) -> Any:
    """Place p of a wanted column is `place_of[its number in the batch]`, -1 for a column that is not wanted.

    Where `width_of[p]` is 0, `chosen[at_of[p], i]` becomes the cell that row `rows[i]` shows; else its value is
    written at `fixed[at_of[p] + i * width]`. `valid[p]` is the validity bitmap, `present[p]` the number of its ones.
    `visible[row_cell[r] : row_cell[r + 1]]` are row r's visible cells. What is to be filled comes as zeros, `chosen`
    as -1. Returns (-1, -1), or i and p of the first value that is not as long as its column is wide.
    """
    for index in range(np.uint64(len(rows))):
        row = np.uint64(rows[index])
        bit = np.uint8(1 << np.int64(index & np.uint64(7)))
        for at in range(np.uint64(row_cell[row]), np.uint64(row_cell[row + np.uint64(1)])):
            cell = np.uint64(visible[at])
            wanted = place_of[np.uint64(cell_col[cell])]
            if wanted < 0:
                continue
            place = np.uint64(wanted)
            valid[place, index >> np.uint64(3)] |= bit
            present[place] += 1
            width = width_of[place]
            if width == 0:
                chosen[np.uint64(at_of[place]), index] = np.int64(cell)
                continue
            if cell_len[cell] != width:
                return np.int64(index), wanted
            source = np.uint64(cell_off[cell])
            target = np.uint64(at_of[place]) + index * np.uint64(width)
            if width == 4:  # constant bounds let the compiler turn the bytes round in one instruction
                for byte in range(np.uint64(4)):
                    fixed[target + byte] = buffer[source + np.uint64(3) - byte]
            elif width == 8:
                for byte in range(np.uint64(8)):
                    fixed[target + byte] = buffer[source + np.uint64(7) - byte]
            else:
                for byte in range(np.uint64(width)):
                    fixed[target + byte] = buffer[source + np.uint64(width) - np.uint64(1) - byte]
    return np.int64(-1), np.int64(-1)


def filled_plainly(
    rows: list[list[tuple[int, bytes]]], widths: list[int]
) -> list[list[bytes | None]] | tuple[int, int]:
    """The twin: each row's visible (place, value) → each place's values by row, turned round where the width is fixed;
    or row and place of the first value of a wrong length."""
    columns: list[list[bytes | None]] = [[None] * len(rows) for _ in widths]
    for index, row in enumerate(rows):
        for place, value in row:
            if widths[place] and len(value) != widths[place]:
                return index, place
            columns[place][index] = value[::-1] if widths[place] else value
    return columns
