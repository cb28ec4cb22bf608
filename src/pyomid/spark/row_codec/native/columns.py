"""Values of many rows at once: a frame's columns into cells, and cells into Arrow's columns.

Each function's reference implementation in plain Python stands behind it (`…_plainly`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE
from pyomid.compiled import kernel

# A grid of cells, rows by columns with gaps, into a batch's cell arrays without gaps

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


# Texts made of zero bytes only: the few that are stored one zero byte longer (`row_codec.values`)


@kernel("int64(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), boolean[::1])")
def zero_texts(data: NDArray[np.uint8], offsets: NDArray[np.int64], zero: NDArray[np.bool_]) -> int:
    """Marks the texts without any other byte, empty ones too; the length of the longest of them, or -1."""
    longest = -1
    for row in range(len(zero)):
        only_zeros = True
        for at in range(offsets[row], offsets[row + 1]):
            if data[at] != 0:
                only_zeros = False
                break
        zero[row] = only_zeros
        if only_zeros and offsets[row + 1] - offsets[row] > longest:
            longest = offsets[row + 1] - offsets[row]
    return longest


def zero_texts_plainly(texts: list[bytes]) -> tuple[list[bool], int]:
    zero = [not text.strip(b"\x00") for text in texts]
    return zero, max((len(text) for text, is_zero in zip(texts, zero, strict=True) if is_zero), default=-1)


# Visible cells into Arrow's columns: one pass over a batch, in the order in which its cells lie. Fixed-width values are
# written where Arrow wants them, last byte first (little-endian); for the other columns it is noted which cell stands
# in which row

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


# Stored strings and binaries of one column, one behind the other as Arrow wants them


@kernel(
    "int64(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "Array(int32, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64[::1], boolean)"
)
def text_offsets(
    buffer: NDArray[np.uint8],
    cell_off: NDArray[np.int64],
    cell_len: NDArray[np.int32],
    chosen: NDArray[np.int64],
    offsets: NDArray[np.int64],
    is_text: bool,
) -> int:
    """Where each text begins and ends in the column's data; returns their sum. Null (-1) has length 0.

    `is_text`: a value made of zero bytes only is one byte shorter than stored.
    """
    total = 0
    offsets[0] = 0
    for row in range(len(chosen)):
        cell = chosen[row]
        if cell >= 0:
            length = cell_len[cell]
            total += length
            if is_text and length > 0 and buffer[cell_off[cell]] == 0:
                only_zeros = True
                for at in range(cell_off[cell], cell_off[cell] + length):
                    if buffer[at] != 0:
                        only_zeros = False
                        break
                if only_zeros:
                    total -= 1
        offsets[row + 1] = total
    return total


@kernel(
    "void(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), uint8[::1])"
)
def copy_texts(
    buffer: NDArray[np.uint8],
    cell_off: NDArray[np.int64],
    chosen: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> Any:
    """Copies each text to its place."""
    for row in range(len(chosen)):
        cell = chosen[row]
        if cell >= 0:
            source = np.uint64(cell_off[cell])
            begin = np.uint64(offsets[row])
            for byte in range(np.uint64(offsets[row + 1]) - begin):
                out[begin + byte] = buffer[source + byte]


def gather_texts_plainly(values: list[bytes | None], *, is_text: bool) -> list[bytes]:
    """The twin of both."""
    texts = [value or b"" for value in values]
    return [text[:-1] if is_text and not text.strip(b"\x00") else text for text in texts]
