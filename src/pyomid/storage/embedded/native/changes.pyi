from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

UNCHANGED: Final = 0
CHANGED: Final = 1
EMPTIED: Final = 2
CORRUPT: Final = 3

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
