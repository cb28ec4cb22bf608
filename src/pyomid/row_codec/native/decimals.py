"""Decimal values: scale in four bytes, then the unscaled number as short as it goes (Java's `toByteArray`)."""

from __future__ import annotations

from pyomid.kernels.compiled import READ_BYTES, READ_INT32S, READ_INT64S, Bytes, Int32s, Int64s, kernel


@kernel("int64(Array(uint8, 2, 'C', readonly=True), int32, uint8[::1], int64[::1], int32[::1])")
def put_decimals(unscaled: Bytes, scale: int, out: Bytes, offsets: Int64s, lengths: Int32s) -> int:
    """Writes every number (16 bytes, little-endian) one after the other; returns the bytes written.

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


@kernel(f"int64({READ_BYTES}, {READ_INT64S}, {READ_INT32S}, {READ_INT64S}, int32, uint8[:,::1])")
def gather_decimals(buffer: Bytes, cell_off: Int64s, cell_len: Int32s, chosen: Int64s, scale: int, out: Bytes) -> int:
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
