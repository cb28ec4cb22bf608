"""Stored strings and binaries of one column, one behind the other as Arrow wants them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


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
