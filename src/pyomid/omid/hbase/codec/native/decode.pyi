from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NAMES_FULL: Final[int]
ROW_AT: Final = 0
ROW_BYTES: Final = 1
KEY_VALUE_FIELDS: Final[int]
NAME_FIELDS: Final[int]

Arrays = tuple[NDArray[Any], ...]
Bytes = NDArray[np.uint8]

def last_cell(block: Bytes) -> int: ...
def fill_slots(arrays: Arrays) -> None: ...
def index_cells(block: Bytes, cells: NDArray[np.int64], name_arrays: Arrays) -> int: ...
def match_cells(
    block: Bytes,
    cell_parts: NDArray[np.int64],
    count: int,
    ends_inside_row: bool,
    legacy_tombstone: Bytes,
    name_arrays: Arrays,
    batch_arrays: Arrays,
) -> tuple[int, int, int, int]: ...
