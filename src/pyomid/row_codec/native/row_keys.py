"""Row keys of many rows at once (`row_codec.row_key`): their parts in and out, and their order."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.kernels.compiled import READ_BYTES, READ_INT64S, Bytes, Int32s, Int64s, kernel

# Fixed-width parts in: each row's bytes go to that row's own place, which moves on to their end


@kernel("void(uint8[::1], int64[::1], Array(uint8, 2, 'C', readonly=True))")
def put_blocks(out: Bytes, places: Int64s, blocks: Bytes) -> Any:
    """Row i of `blocks` is written at `out[places[i]:]`, and `places[i]` moves to its end."""
    rows, width = blocks.shape
    for row in range(rows):
        at = places[row]
        first = np.uint64(at)
        for byte in range(np.uint64(width)):
            out[first + byte] = blocks[row, byte]
        places[row] = at + width


# Fixed-width parts out


@kernel(f"int64({READ_BYTES}, int64[::1], int64[::1], uint8[:,::1])")
def take_blocks(buffer: Bytes, places: Int64s, ends: Int64s, out: Bytes) -> int:
    """Copies the bytes at each row's place into `out` and moves the places to their end.

    -1, or the first row that ends before its part does.
    """
    rows, width = out.shape
    for row in range(rows):
        at = places[row]
        if width > ends[row] - at:
            return row
        source = np.uint64(at)
        for byte in range(np.uint64(width)):
            out[row, byte] = buffer[source + byte]
        places[row] = at + width
    return -1


# Texts in: 00 becomes 00 FF, 00 01 ends


@kernel(f"void({READ_BYTES}, {READ_INT64S}, int64[::1])")
def escaped_lengths(data: Bytes, offsets: Int64s, lengths: Int64s) -> Any:
    """Adds to each row's length what its text takes in a key, ending included."""
    for row in range(len(lengths)):
        zeros = 0
        for at in range(offsets[row], offsets[row + 1]):
            if data[at] == 0:
                zeros += 1
        lengths[row] += offsets[row + 1] - offsets[row] + zeros + 2


@kernel(f"void(uint8[::1], int64[::1], {READ_BYTES}, {READ_INT64S}, uint8, boolean)")
def put_escaped(out: Bytes, places: Int64s, data: Bytes, offsets: Int64s, inversion: int, is_raw: bool) -> Any:
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


# Texts out


@kernel(f"int64({READ_BYTES}, int64[::1], int64[::1], uint8, uint8[::1], int32[::1])")
def unescape(buffer: Bytes, places: Int64s, ends: Int64s, inversion: int, out: Bytes, offsets: Int32s) -> int:
    """Texts one after the other into `out`, their borders into `offsets`; places move to the end of the endings.

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


# Are keys in order already? Most writes come sorted, and then nothing is sorted again

ASCENDING: Final = 0
WITH_EQUALS: Final = 1
UNSORTED: Final = 2


@kernel(f"int64({READ_BYTES}, {READ_INT64S}, int64[::1])")
def key_order(data: Bytes, offsets: Int64s, order: Int64s) -> int:
    """ASCENDING, WITH_EQUALS (ascending, some keys equal) or UNSORTED, of the keys taken in `order`."""
    equals = False
    for index in range(1, len(order)):
        one, other = offsets[order[index - 1]], offsets[order[index]]
        one_end, other_end = offsets[order[index - 1] + 1], offsets[order[index] + 1]
        while one < one_end and other < other_end and data[one] == data[other]:
            one += 1
            other += 1
        if one == one_end:
            if other == other_end:
                equals = True
        elif other == other_end or data[one] > data[other]:
            return UNSORTED
    return WITH_EQUALS if equals else ASCENDING


# Of rows with one key, which is the last?


@kernel(f"void({READ_BYTES}, {READ_INT64S}, int64[::1], boolean[::1])")
def last_of_equals(data: Bytes, offsets: Int64s, order: Int64s, last: NDArray[np.bool_]) -> None:
    """`last[i]`: no key after that of `order[i]` equals it; `order` is ascending by key."""
    for index in range(len(order)):
        last[index] = True
        if index + 1 == len(order):
            return
        one, other = offsets[order[index]], offsets[order[index + 1]]
        length = offsets[order[index] + 1] - one
        if length != offsets[order[index + 1] + 1] - other:
            continue
        same = True
        for byte in range(length):
            if data[one + byte] != data[other + byte]:
                same = False
                break
        last[index] = not same
