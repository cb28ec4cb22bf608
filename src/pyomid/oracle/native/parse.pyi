from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

RARE: Final = 0
BEGIN: Final = 1
COMMIT: Final = 2
COMPLETE: Final = 3

Int64s = NDArray[np.int64]

def parse_frame(
    data: NDArray[np.uint8], at: int, end: int, ops: NDArray[Any], cells: Int64s, tables: Int64s
) -> int: ...
def parse_frames(
    data: NDArray[np.uint8], at: int, end: int, ops_max: int, parsed: tuple[NDArray[Any], Int64s, Int64s]
) -> tuple[int, int]: ...
