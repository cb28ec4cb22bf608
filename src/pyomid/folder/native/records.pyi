from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GOOD: Final = 0
BAD_CHECKSUM: Final = 1
BAD_GRAMMAR: Final = 2
UNKNOWN_COLUMN: Final = 3
BAD_KEY: Final = 4

ROW_TOO_LONG: Final = 1
ROW_EMPTY: Final = 2
ROW_OUT_OF_ORDER: Final = 3
VALUE_TOO_LONG: Final = 4
VALUE_EMPTY: Final = 5
VALUE_OF_FAMILY: Final = 6
UNCHANGED: Final = 0
CHANGED: Final = 1
EMPTIED: Final = 2
CORRUPT: Final = 3

def checksum(data: NDArray[np.uint8], before: int) -> int: ...
def decode_records(
    data: NDArray[np.uint8], lens: NDArray[np.int64], column_of: NDArray[np.int32]
) -> tuple[Any, ...]: ...
def check_batch(
    arrays: tuple[NDArray[Any], ...], is_family: NDArray[np.bool_], value_bytes_max: int
) -> tuple[int, int, int]: ...
def encode_rows(
    arrays: tuple[NDArray[Any], ...],
    first: int,
    stop: int,
    prefix: NDArray[np.uint8],
    number_of: NDArray[np.int64],
    version: int,
    sample_mask: int,
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]: ...
def pairs(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> list[tuple[bytes, bytes]]: ...
def record_keys(
    arrays: tuple[NDArray[Any], ...], records: NDArray[np.int64], row_of: NDArray[np.int64], prefix: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]: ...
def change_records(
    data: NDArray[np.uint8],
    lens: NDArray[np.int64],
    commits: NDArray[np.int64],
    drops: NDArray[np.int64],
    drop_first: NDArray[np.int64],
    heals: NDArray[np.int64],
    heal_first: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]: ...
