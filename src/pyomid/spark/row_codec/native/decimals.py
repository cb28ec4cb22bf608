"""Decimal values: scale in four bytes, then the unscaled number as short as it goes (Java's `toByteArray`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel


@kernel("int64(Array(uint8, 2, 'C', readonly=True), int32, uint8[::1], int64[::1], int32[::1])")
def put_decimals(
    unscaled: NDArray[np.uint8],
    scale: int,
    out: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int32],
) -> int:
    """Writes every number (16 bytes, little-endian) one behind the other; returns the bytes written.

    `out` has room for 20 bytes a row.
    """
    written = 0
    for row in range(len(lengths)):
        sign = 0xFF if unscaled[row, 15] & 0x80 else 0x00
        top = 15
        while top > 0 and unscaled[row, top] == sign and (unscaled[row, top - 1] ^ sign) & 0x80 == 0:
            top -= 1
        offsets[row] = written
        for byte in range(4):
            out[written + byte] = (scale >> (8 * (3 - byte))) & 0xFF
        written += 4
        for byte in range(top, -1, -1):
            out[written] = unscaled[row, byte]
            written += 1
        lengths[row] = top + 5
    return written


@kernel(
    "int64(Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "Array(int32, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int32, uint8[:,::1])"
)
def gather_decimals(
    buffer: NDArray[np.uint8],
    cell_off: NDArray[np.int64],
    cell_len: NDArray[np.int32],
    chosen: NDArray[np.int64],
    scale: int,
    out: NDArray[np.uint8],
) -> int:
    """Unscaled numbers, 16 bytes, little-endian; -1, or the first row with another scale or length."""
    for row in range(len(chosen)):
        cell = chosen[row]
        if cell < 0:
            for byte in range(16):
                out[row, byte] = 0
            continue
        at = cell_off[cell]
        length = cell_len[cell] - 4
        if length < 1 or length > 16:
            return row
        for byte in range(4):
            if buffer[at + byte] != (scale >> (8 * (3 - byte))) & 0xFF:
                return row
        sign = 0xFF if buffer[at + 4] & 0x80 else 0x00
        for byte in range(16):
            out[row, byte] = buffer[at + 3 + length - byte] if byte < length else sign
    return -1


def put_decimal_plainly(unscaled: int, scale: int) -> bytes:
    """The twin of the first."""
    size = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() + 8) // 8
    return scale.to_bytes(4, "big", signed=True) + unscaled.to_bytes(size, "big", signed=True)


def gather_decimal_plainly(stored: bytes | None, scale: int) -> bytes | None:
    """The twin of the second: 16 bytes, or None where they do not fit."""
    if stored is None:
        return bytes(16)
    if not 5 <= len(stored) <= 20 or stored[:4] != scale.to_bytes(4, "big", signed=True):
        return None
    return int.from_bytes(stored[4:], "big", signed=True).to_bytes(16, "little", signed=True)
