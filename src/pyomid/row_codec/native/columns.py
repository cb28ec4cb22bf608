"""Values of many rows at once: a frame's columns into cells, and cells into Arrow's columns."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE, BatchArrays
from pyomid.kernels.compiled import READ_BYTES, READ_INT32S, READ_INT64S, Bytes, Int32s, Int64s, kernel

# A grid of cells, rows by columns with gaps, into a batch's cell arrays without gaps

ABSENT: Final = -2
"""Length of a grid place that holds no cell; below TOMBSTONE."""


@kernel("int64(int64[:,::1], int32[:,::1], int64, int64, int64[::1], int32[::1], int64[::1], int32[::1])")
def pack_cells(
    grid_off: Int64s,
    grid_len: Int32s,
    sentinel_off: int,
    sentinel_len: int,
    rec_cell: Int64s,
    cell_col: Int32s,
    cell_off: Int64s,
    cell_len: Int32s,
) -> int:
    """Fills the four arrays and says how many cells there are. Room: one more a row than the grid is wide.

    The grid is columns by rows. A row without any value gets the sentinel, column number `len(grid)`.
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
            cell_off[written] = sentinel_off
            cell_len[written] = sentinel_len
            written += one
        rec_cell[row + one] = written
    return int(np.int64(written))


# Texts made of zero bytes only: the few that are stored one zero byte longer (`row_codec.values`)


@kernel(f"int64({READ_BYTES}, {READ_INT64S}, boolean[::1])")
def zero_texts(data: Bytes, offsets: Int64s, zero: NDArray[np.bool_]) -> int:
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


# Visible cells into Arrow's columns: one pass over a batch, in the order in which its cells lie. Fixed-width values are
# written where Arrow wants them, last byte first (little-endian); for the other columns it is noted which cell stands
# in which row


class Places(NamedTuple):
    """Where the values of wanted columns go; each wanted column has a place."""

    place_of: Int64s
    """By the batch's number of the column; -1: it is not wanted."""
    width_of: Int64s
    """By place: bytes of every value; 0 where they vary."""
    at_of: Int64s
    """By place: where its values begin in `fixed`, or its row of `chosen`."""


class Filled(NamedTuple):
    """Values by place and by row i of the result. They come as zeros, `chosen` as -1."""

    fixed: Bytes
    """Those of one width: that of row i begins at `at_of[p] + i * width_of[p]`."""
    chosen: Annotated[Any, "int64[:,::1]"]
    """Of those that vary the cell: `chosen[at_of[p], i]`."""
    valid: Annotated[Any, "uint8[:,::1]"]
    """Each place's validity bitmap, and how many of its bits are set."""
    present: Int64s


@kernel(
    f"UniTuple(int64, 2)(Fields(BatchArrays), {READ_INT64S}, {READ_INT64S}, {READ_INT64S}, Fields(Places),"
    " Fields(Filled))"
)
def fill_columns(arrays: Any, visible: Int64s, row_cell: Int64s, rows: Int64s, places: Any, filled: Any) -> Any:
    """The values of `rows` into columns; `visible[row_cell[r] : row_cell[r + 1]]` are row r's visible cells.

    Returns (-1, -1), or i and p of the first value that is not as long as its column is wide: that of `rows[i]`, at
    place p.
    """
    batch = BatchArrays(*arrays)
    buffer, cell_off, cell_len, cell_col = batch.buffer, batch.cell_off, batch.cell_len, batch.cell_col
    place_of, width_of, at_of = places
    fixed, chosen, valid, present = filled
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


# Stored strings and binaries of one column, one after the other as Arrow wants them


@kernel(f"int64({READ_BYTES}, {READ_INT64S}, {READ_INT32S}, {READ_INT64S}, int64[::1], boolean)")
def text_offsets(
    buffer: Bytes, cell_off: Int64s, cell_len: Int32s, chosen: Int64s, offsets: Int64s, is_text: bool
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


@kernel(f"void({READ_BYTES}, {READ_INT64S}, {READ_INT64S}, {READ_INT64S}, uint8[::1])")
def copy_texts(buffer: Bytes, cell_off: Int64s, chosen: Int64s, offsets: Int64s, out: Bytes) -> Any:
    """Copies each text to its place."""
    for row in range(len(chosen)):
        cell = chosen[row]
        if cell >= 0:
            source = np.uint64(cell_off[cell])
            begin = np.uint64(offsets[row])
            for byte in range(np.uint64(offsets[row + 1]) - begin):
                out[begin + byte] = buffer[source + byte]
