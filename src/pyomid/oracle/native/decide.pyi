from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

def find_table(tables: NDArray[Any], table_id: int) -> int: ...

class Decider:
    def __init__(
        self,
        chunk: NDArray[Any],
        state: NDArray[Any],
        parsed: tuple[NDArray[Any], Int64s, Int64s],
        carried: Int64s,
        completed: Int64s,
        now: Bytes,
        later: Bytes,
    ) -> None: ...
    def work_on(
        self, words: NDArray[np.uint64], tables: NDArray[Any], rare_starts: Int64s, entries: Int64s
    ) -> None: ...
    def decide(self, data: Bytes) -> int: ...
