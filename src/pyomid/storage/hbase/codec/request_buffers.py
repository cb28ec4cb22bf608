"""The buffers that compiled encoders fill."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class RequestBuffers:
    """The buffers of a Multi call: its actions, and the cell block with their cells."""

    def __init__(self, actions_bytes_max: int, block_bytes_max: int) -> None:
        self._actions = np.empty(actions_bytes_max, dtype=np.uint8)
        self._block = np.empty(block_bytes_max, dtype=np.uint8)
        self._used = np.zeros(3, dtype=np.int64)
        """Bytes of actions, bytes of the block, rows."""

    @property
    def rows(self) -> int:
        return int(self._used[2])

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays that an encoder takes."""
        return self._actions, self._block, self._used

    def actions(self) -> bytes:
        return self._actions[: self._used[0]].tobytes()

    def block(self) -> memoryview:
        return self._block[: self._used[1]].data
