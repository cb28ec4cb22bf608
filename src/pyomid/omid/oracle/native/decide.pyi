from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle.records import Numbers, Record
from pyomid.omid.oracle.windows import Batch

RARE: Final = 0
BEGIN: Final = 1
COMMIT: Final = 2

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

def parse_frame(
    data: NDArray[np.uint8], at: int, end: int, ops: NDArray[Any], cells: Int64s, tables: Int64s
) -> int: ...
def parse_frames(
    data: NDArray[np.uint8], at: int, end: int, ops_max: int, parsed: tuple[NDArray[Any], Int64s, Int64s]
) -> tuple[int, int]: ...
def find_table(tables: NDArray[Any], table_id: int) -> int: ...

class Decider:
    def __init__(
        self,
        chunk: Record,
        numbers: Numbers,
        parsed: tuple[NDArray[Any], Int64s, Int64s],
        now: Bytes,
        later: Bytes,
    ) -> None: ...
    def work_on(
        self, head: Batch, open_batch: Batch, words: NDArray[np.uint64], tables: NDArray[Any], rare_starts: Int64s
    ) -> None: ...
    def decide(
        self, data: Bytes, begin: int, end: int, extended: bool, ops_max: int
    ) -> tuple[int, int, bytes, bytes, int, int, int]: ...

def last_commit(words: NDArray[np.uint64], cell_id: int) -> int: ...
def record_commit(words: NDArray[np.uint64], cell_id: int, commit_ts: int) -> int: ...
def first_conflict(words: NDArray[np.uint64], cell_ids: NDArray[np.int64], start_ts: int) -> int: ...
def record_all(words: NDArray[np.uint64], cell_ids: NDArray[np.int64], commit_ts: int) -> int: ...
