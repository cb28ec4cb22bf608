from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ACTION_BYTES_MAX: Final = 48
CELL_BYTES_MAX: Final = 32
COMMIT_ROW_BYTES: Final = 9
COMMIT_CELL_BYTES_MAX: Final = 64
DROPPED: Final = -1
ORPHANED: Final = -2
SHADOW_BYTES: Final = 13

Arrays = tuple[Any, ...]

def encode_puts(
    batch_arrays: Arrays,
    column_names: Arrays,
    first: int,
    end: int,
    version: int,
    durability: int,
    request_arrays: Arrays,
) -> None: ...
def encode_commits(
    entries: NDArray[np.int64],
    order: NDArray[np.int64],
    first: int,
    end: int,
    durability: int,
    request_arrays: Arrays,
) -> None: ...
def all_succeeded(response: NDArray[np.uint8]) -> bool: ...
def encode_changes(
    change_arrays: Arrays,
    first: int,
    end: int,
    atomic: bool,
    region: NDArray[np.uint8],
    durability: int,
    encoded: NDArray[np.int64],
    request_arrays: Arrays,
) -> None: ...
def mark_present(
    change_arrays: Arrays, batch_arrays: Arrays, column: NDArray[np.int64], present: NDArray[np.bool_]
) -> None: ...
