"""Stored fixed-width values of one column, as a matrix of bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel(
    "int64(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "Array(int32, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), uint8[:,::1])"
)
def gather_blocks(
    buffer: NDArray[np.uint8],
    cell_off: NDArray[np.int64],
    cell_len: NDArray[np.int32],
    chosen: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> int:
    """The bytes of `chosen[row]` into `out[row]`, last byte first (little-endian); -1 there is null: zeros.

    -1, or the first row whose value has another length than `out` is wide.
    """
    rows, width = out.shape
    for row in range(rows):
        cell = chosen[row]
        if cell < 0:
            for byte in range(width):
                out[row, byte] = 0
            continue
        if cell_len[cell] != width:
            return row
        at = cell_off[cell] + width - 1
        if width == 8:  # a constant bound lets the compiler unroll: most columns are longs and doubles
            for byte in range(8):
                out[row, byte] = buffer[at - byte]
        else:
            for byte in range(width):
                out[row, byte] = buffer[at - byte]
    return -1


def gather_blocks_plainly(values: list[bytes | None], width: int) -> list[bytes] | int:
    """The twin: little-endian values, or the first bad row."""
    for row, value in enumerate(values):
        if value is not None and len(value) != width:
            return row
    return [bytes(width) if value is None else value[::-1] for value in values]
