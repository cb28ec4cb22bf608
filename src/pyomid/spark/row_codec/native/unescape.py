"""Texts out of row keys: the inverse of `escape`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel("int64(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1], uint8, uint8[::1], int32[::1])")
def unescape(
    buffer: NDArray[np.uint8],
    places: NDArray[np.int64],
    ends: NDArray[np.int64],
    inversion: int,
    out: NDArray[np.uint8],
    offsets: NDArray[np.int32],
) -> int:
    """Texts one behind the other into `out`, their borders into `offsets`; places move behind the endings.

    `out` has room for all bytes of all keys. -1, or the first row whose text has no ending.
    """
    one = np.uint64(1)
    written = np.uint64(0)
    offsets[0] = 0
    for row in range(len(places)):
        at = np.uint64(places[row])
        end = np.uint64(ends[row])
        ended = False
        while at < end:
            byte = buffer[at] ^ inversion
            if byte != 0:
                out[written] = byte
                written += one
                at += one
                continue
            if at + one >= end:
                break
            following = buffer[at + one] ^ inversion
            at += np.uint64(2)
            if following == 0xFF:
                out[written] = 0
                written += one
            else:
                ended = following == 0x01
                break
        if not ended:
            return row
        places[row] = at
        offsets[row + 1] = written
    return -1


def unescaped_plainly(key: bytes, *, inverted: bool) -> tuple[bytes, bytes] | None:
    """The twin: the first text of a key and what follows it; None without an ending."""
    plain = bytes(255 - byte for byte in key) if inverted else key
    at = 0
    while (zero := plain.find(b"\x00", at)) >= 0 and plain[zero + 1 : zero + 2] == b"\xff":
        at = zero + 2
    if zero < 0 or plain[zero + 1 : zero + 2] != b"\x01":
        return None
    return plain[:zero].replace(b"\x00\xff", b"\x00"), key[zero + 2 :]
