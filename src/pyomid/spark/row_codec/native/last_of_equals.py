"""Of rows with one key, which is the last?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel("void(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64[::1], boolean[::1])")
def last_of_equals(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], order: NDArray[np.int64], last: NDArray[np.bool_]
) -> None:
    """`last[i]`: no key equal to that of `order[i]` stands behind it; `order` is ascending by key."""
    for index in range(len(order)):
        last[index] = True
        if index + 1 == len(order):
            return
        one, other = offsets[order[index]], offsets[order[index + 1]]
        length = offsets[order[index] + 1] - one
        if length != offsets[order[index + 1] + 1] - other:
            continue
        same = True
        for byte in range(length):
            if data[one + byte] != data[other + byte]:
                same = False
                break
        last[index] = not same


def last_of_equals_plainly(keys: list[bytes]) -> list[bool]:
    return [index + 1 == len(keys) or keys[index + 1] != key for index, key in enumerate(keys)]
