"""Are row keys in order already? Most writes come sorted, and then nothing is sorted again."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel

ASCENDING: Final = 0
WITH_EQUALS: Final = 1
UNSORTED: Final = 2


@kernel("int64(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64[::1])")
def key_order(data: NDArray[np.uint8], offsets: NDArray[np.int64], order: NDArray[np.int64]) -> int:
    """ASCENDING, WITH_EQUALS (ascending, some keys equal) or UNSORTED, of the keys taken in `order`."""
    equals = False
    for index in range(1, len(order)):
        one, other = offsets[order[index - 1]], offsets[order[index]]
        one_end, other_end = offsets[order[index - 1] + 1], offsets[order[index] + 1]
        while one < one_end and other < other_end and data[one] == data[other]:
            one += 1
            other += 1
        if one == one_end:
            if other == other_end:
                equals = True
        elif other == other_end or data[one] > data[other]:
            return UNSORTED
    return WITH_EQUALS if equals else ASCENDING


def key_order_plainly(keys: list[bytes]) -> int:
    if sorted(keys) != keys:
        return UNSORTED
    return ASCENDING if len(set(keys)) == len(keys) else WITH_EQUALS
