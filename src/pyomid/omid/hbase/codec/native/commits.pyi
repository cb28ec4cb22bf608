from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SEVERAL: Final = -1
UNKNOWN: Final = -2
GET_BYTES_MAX: Final = 40

Arrays = tuple[Any, ...]
Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]

def place(starts: Int64s, range_arrays: Arrays, where: Int64s, counts: Int64s) -> int: ...
def encode_commit_puts(
    entries: Int64s, where: Int64s, counts: Int64s, range_arrays: Arrays, durability: int, request_arrays: Arrays
) -> None: ...
def encode_commit_gets(
    starts: Int64s, where: Int64s, counts: Int64s, range_arrays: Arrays, tail: Bytes, parameter: Bytes
) -> int: ...
def read_commit_gets(message: Bytes, block: Bytes, starts: Int64s, found: Int64s, last: Int64s) -> bool: ...
