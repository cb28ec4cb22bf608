from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DROPPED: Final = -1
ORPHANED: Final = -2
SHADOW_BYTES: Final = 13

Arrays = tuple[NDArray[Any], ...]

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
