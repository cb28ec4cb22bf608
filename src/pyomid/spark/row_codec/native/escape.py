"""Texts into row keys: 00 becomes 00 FF, 00 01 ends (`pyomid.spark.row_codec.row_key`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel("void(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64[::1])")
def escaped_lengths(data: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> Any:
    """Adds to each row's length what its text takes in a key, ending included."""
    for row in range(len(lengths)):
        zeros = 0
        for at in range(offsets[row], offsets[row + 1]):
            if data[at] == 0:
                zeros += 1
        lengths[row] += offsets[row + 1] - offsets[row] + zeros + 2


@kernel(
    "void(uint8[::1], int64[::1], Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "uint8, boolean)"
)
def put_escaped(
    out: NDArray[np.uint8],
    places: NDArray[np.int64],
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    inversion: int,
    is_raw: bool,
) -> Any:
    """Writes each text at its row's place, every byte XOR `inversion`; `is_raw`: as it is, without an ending."""
    for row in range(len(places)):
        at, one = np.uint64(places[row]), np.uint64(1)
        for source in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            byte = data[source]
            out[at] = byte ^ inversion
            at += one
            if byte == 0 and not is_raw:
                out[at] = 0xFF ^ inversion
                at += one
        if not is_raw:
            out[at] = inversion
            out[at + one] = 0x01 ^ inversion
            at += np.uint64(2)
        places[row] = at


def escaped_plainly(text: bytes, *, inverted: bool) -> bytes:
    """The twin of both: one text as it stands in a key."""
    escaped = text.replace(b"\x00", b"\x00\xff") + b"\x00\x01"
    return bytes(255 - byte for byte in escaped) if inverted else escaped
