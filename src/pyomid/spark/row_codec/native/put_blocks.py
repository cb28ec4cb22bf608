"""Fixed-width parts into row keys: each row's bytes go to that row's own place, which moves on behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel("void(uint8[::1], int64[::1], Array(uint8, 2, 'C', readonly=True))")
def put_blocks(out: NDArray[np.uint8], places: NDArray[np.int64], blocks: NDArray[np.uint8]) -> Any:
    """Row i of `blocks` is written at `out[places[i]:]`, and `places[i]` moves to its end."""
    rows, width = blocks.shape
    for row in range(rows):
        at = places[row]
        first = np.uint64(at)
        for byte in range(np.uint64(width)):
            out[first + byte] = blocks[row, byte]
        places[row] = at + width


def put_blocks_plainly(out: NDArray[np.uint8], places: NDArray[np.int64], blocks: NDArray[np.uint8]) -> None:
    for row, block in enumerate(blocks):
        out[places[row] : places[row] + len(block)] = block
        places[row] += len(block)
