from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

ABSENT: Final = -2

def pack_cells(
    grid_off: Int64s,
    grid_len: Int32s,
    sentinel_off: int,
    sentinel_len: int,
    rec_cell: Int64s,
    cell_col: Int32s,
    cell_off: Int64s,
    cell_len: Int32s,
) -> int: ...
def zero_texts(data: Bytes, offsets: Int64s, zero: NDArray[np.bool_]) -> int: ...
def fill_columns(
    arrays: tuple[NDArray[Any], ...],
    visible: Int64s,
    row_cell: Int64s,
    rows: Int64s,
    places: tuple[Int64s, Int64s, Int64s],
    filled: tuple[Bytes, Int64s, Bytes, Int64s],
) -> tuple[int, int]: ...
def text_offsets(
    buffer: Bytes, cell_off: Int64s, cell_len: Int32s, chosen: Int64s, offsets: Int64s, is_text: bool
) -> int: ...
def copy_texts(buffer: Bytes, cell_off: Int64s, chosen: Int64s, offsets: Int64s, out: Bytes) -> None: ...
def put_decimals(unscaled: Bytes, scale: int, out: Bytes, offsets: Int64s, lengths: Int32s) -> int: ...
def gather_decimals(
    buffer: Bytes, cell_off: Int64s, cell_len: Int32s, chosen: Int64s, scale: int, out: Bytes
) -> int: ...
