"""Memory for large replies, used again as soon as nobody looks at it.

A page that the system hands to a process for the first time costs more than receiving and decoding what is put there,
so a scan that takes fresh memory for each reply spends most of its own time on that. Who still reads a reply holds a
view of its buffer, and a `bytearray` with views refuses to change its length: that is how a free one is known. So
nobody has to give anything back, and a batch that its owner keeps stays what it is.
"""

from __future__ import annotations

import threading
from typing import Final

POOL_BYTES_MAX: Final = 16 << 20
"""Kept by one client for good: the answers on their way to a few scans at once."""

_STEP_BYTES: Final = 256 << 10
"""Sizes are rounded up to this: replies to one scan differ by little."""


class Buffers:
    """Shared by the connections of a client, from any thread."""

    def __init__(self, bytes_max: int = POOL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """`size` bytes of no particular content; nobody else gets them while a view of them lives."""
        with self._lock:
            for kept in self._kept:
                if size <= len(kept) <= 2 * size + _STEP_BYTES and _is_free(kept):
                    return memoryview(kept)[:size]
            fresh = bytearray(-(-size // _STEP_BYTES) * _STEP_BYTES)
            self._keep(fresh)
            return memoryview(fresh)[:size]

    def _keep(self, fresh: bytearray) -> None:
        """In the place of free ones, where room is wanted; else it is its user's alone."""
        excess = len(fresh) + sum(map(len, self._kept)) - self._bytes_max
        if len(fresh) > self._bytes_max:
            return
        left = []
        for kept in self._kept:
            if excess > 0 and _is_free(kept):
                excess -= len(kept)
            else:
                left.append(kept)
        self._kept = [*left, fresh] if excess <= 0 else left


def _is_free(kept: bytearray) -> bool:
    try:
        kept.append(kept.pop())
    except BufferError:
        return False
    return True
