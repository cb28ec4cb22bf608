"""Fixed-width parts out of row keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel("int64(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1], uint8[:,::1])")
def take_blocks(
    buffer: NDArray[np.uint8], places: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]
) -> int:
    """Copies the bytes at each row's place into `out` and moves the places behind them.

    -1, or the first row that ends before its part does.
    """
    rows, width = out.shape
    for row in range(rows):
        at = places[row]
        if width > ends[row] - at:
            return row
        source = np.uint64(at)
        for byte in range(np.uint64(width)):
            out[row, byte] = buffer[source + byte]
        places[row] = at + width
    return -1


def take_blocks_plainly(
    buffer: NDArray[np.uint8], places: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]
) -> int:
    width = out.shape[1]
    for row in range(len(out)):
        if places[row] + width > ends[row]:
            return row
        out[row] = buffer[places[row] : places[row] + width]
        places[row] += width
    return -1
