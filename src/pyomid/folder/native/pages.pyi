from typing import Final

import numpy as np
from numpy.typing import NDArray

WHOLE: Final = 0
MORE: Final = 1
OUTSIDE: Final = 2
STRANGE: Final = 3
NO_ROOM: Final = 4

def walk(
    pages: NDArray[np.uint8],
    page_bytes: int,
    root: int,
    start: NDArray[np.uint8],
    stop: NDArray[np.uint8],
    limits: tuple[int, int, int, int, int, NDArray[np.uint8], int],
    out: NDArray[np.uint8],
    lens: NDArray[np.int64],
) -> tuple[int, int, int, int, int]: ...
