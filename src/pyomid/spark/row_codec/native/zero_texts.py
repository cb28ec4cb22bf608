"""Texts made of zero bytes only: the few that are stored one zero byte longer (`pyomid.spark.row_codec.values`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


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
