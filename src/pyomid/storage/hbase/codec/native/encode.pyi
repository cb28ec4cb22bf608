from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ACTION_BYTES_MAX: Final = 48
CELL_BYTES_MAX: Final = 32
COMMIT_ROW_BYTES: Final = 9
COMMIT_CELL_BYTES_MAX: Final = 64

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
