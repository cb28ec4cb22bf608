"""Phase 1: whole frames of a chunk into flat arrays. Plain begins, commits and completions; all else is *rare*.

Rare is not wrong: the plain decoder of `wire.codec` looks at a rare frame and answers or refuses it. So this
parser may take only what it understands wholly: one timestamp, commit or complete request in any field order, ids
packed or not, any varint that fits 64 bits, unknown fields skipped. Anything else is rare: retries, branches, levels,
two requests in one frame, a known field of another wire type, groups, truncation.

Every read is bounded by the frame's end, and a frame yields at most one id per byte.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pyomid.kernels.compiled import kernel
from pyomid.oracle.native.intrinsics import load_word, trailing_zeros
from pyomid.oracle.native.records import Op, Parsed

BEGIN: Final = 1
COMMIT: Final = 2
COMPLETE: Final = 3
"""Its starts are where a commit has its cells."""
RARE: Final = 0

HEADER_BYTES: Final = 4

VARINT_BYTES_MAX: Final = 10
_TOPS: Final = np.uint64(0x8080_8080_8080_8080)

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@kernel("UniTuple(int64, 2)(uint8[::1], int64, int64)", nogil=False, _nrt=False)
def read_varint_at_end(data: Any, at: Any, end: Any) -> Any:
    """`read_varint`, byte by byte: where fewer bytes are left than the longest takes."""
    value = np.uint64(0)
    for count in range(VARINT_BYTES_MAX):
        if at >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[np.uint64(at)])
        at += 1
        if count == VARINT_BYTES_MAX - 1 and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(0x7F)) << np.uint64(7 * count)
        if byte < np.uint64(0x80):
            return np.int64(value), at
    return np.int64(0), np.int64(-1)


@kernel("uint64(uint64)", nogil=False, _nrt=False, forceinline=True)
def joined_sevens(word: Any) -> Any:
    """The low 7 bits of each of the 8 bytes, the first as the lowest: 56 bits."""
    word = word & np.uint64(0x007F_007F_007F_007F) | (word & np.uint64(0x7F00_7F00_7F00_7F00)) >> np.uint64(1)
    word = word & np.uint64(0x0000_3FFF_0000_3FFF) | (word & np.uint64(0x3FFF_0000_3FFF_0000)) >> np.uint64(2)
    return word & np.uint64(0x0FFF_FFFF) | (word & np.uint64(0x0FFF_FFFF_0000_0000)) >> np.uint64(4)


@kernel("UniTuple(int64, 2)(uint8[::1], int64, int64)", nogil=False, _nrt=False, forceinline=True)
def read_varint(data: Any, at: Any, end: Any) -> Any:
    """(value as 64 bits, where it ends); -1 where it is cut off or does not fit 64 bits."""
    if end - at < VARINT_BYTES_MAX:
        return read_varint_at_end(data, at, end)
    word = load_word(data, at)
    stops = ~word & _TOPS
    if stops:
        value = joined_sevens(word & (stops ^ (stops - np.uint64(1))))
        return np.int64(value), at + (trailing_zeros(stops) >> 3) + 1
    value = joined_sevens(word)
    byte = np.uint64(data[np.uint64(at + 8)])
    value |= (byte & np.uint64(0x7F)) << np.uint64(56)
    if byte < np.uint64(0x80):
        return np.int64(value), at + 9
    byte = np.uint64(data[np.uint64(at + 9)])
    if byte > np.uint64(1):
        return np.int64(0), np.int64(-1)
    return np.int64(value | byte << np.uint64(63)), at + 10


@kernel("int64(uint8[::1], int64, int64, int64)", nogil=False, _nrt=False)
def skip_field(data: Any, at: Any, end: Any, wire_type: Any) -> Any:
    """Where an unknown field ends; -1 where it is cut off or a group."""
    if wire_type == _VARINT:
        return read_varint(data, at, end)[1]
    if wire_type == _BYTES:
        length, at = read_varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return -1
        return at + length
    size = 8 if wire_type == _FIXED_64 else 4
    if (wire_type != _FIXED_64 and wire_type != _FIXED_32) or size > end - at:
        return -1
    return at + size


@kernel("UniTuple(int64, 2)(uint8[::1], int64, int64)", nogil=False, _nrt=False, forceinline=True)
def read_key(data: Any, at: Any, end: Any) -> Any:
    """(field number and wire type, where the key ends); -1 for field 0 and what does not fit 32 bits."""
    key, at = read_varint(data, at, end)
    if at < 0 or key < 8 or key > 0xFFFF_FFFF:
        return 0, -1
    return key, at


@kernel("int64(uint8[::1], int64, int64, Op)", nogil=False, _nrt=False, forceinline=True)
def parse_begin(data: Any, at: Any, end: Any, op: Op) -> Any:
    """A TimestampRequest: its `not_before`, if any."""
    op.ts = 0
    while at < end:
        key, at = read_key(data, at, end)
        if at < 0:
            return RARE
        if key >> 3 == 64:
            if key & 7 != _VARINT:
                return RARE
            op.ts, at = read_varint(data, at, end)
        else:
            at = skip_field(data, at, end, key & 7)
        if at < 0:
            return RARE
    return BEGIN


@kernel(
    "UniTuple(int64, 2)(uint8[::1], int64, int64, int64, int64[::1], int64)", nogil=False, _nrt=False, forceinline=True
)
def parse_ids(data: Any, at: Any, end: Any, wire_type: Any, ids: Any, count: Any) -> Any:
    """Ids, one or packed, appended to `ids` from `count`: (new count, where the field ends); -1 as ever."""
    if wire_type == _VARINT:
        ids[count], at = read_varint(data, at, end)
        return count + 1, at
    length, at = read_varint(data, at, end)
    if wire_type != _BYTES or at < 0 or length < 0 or length > end - at:
        return count, -1
    stop = at + length
    while at < stop:
        ids[np.uint64(count)], at = read_varint(data, at, stop)
        if at < 0:
            return count, -1
        count += 1
    return count, at


@kernel("int64(uint8[::1], int64, int64, Op, int64[::1], int64[::1])", nogil=False, _nrt=False, forceinline=True)
def parse_commit(data: Any, at: Any, end: Any, op: Op, cells: Any, tables: Any) -> Any:
    """A CommitRequest with nothing rare in it."""
    op.ts = 0
    cell_count, table_count = op.cell_begin, op.table_begin
    retried = np.int64(0)
    while at < end:
        key, at = read_key(data, at, end)
        if at < 0:
            return RARE
        field, wire_type = key >> 3, key & 7
        if field == 3:
            cell_count, at = parse_ids(data, at, end, wire_type, cells, cell_count)
        elif field == 4:
            table_count, at = parse_ids(data, at, end, wire_type, tables, table_count)
        elif field == 1 or field == 2:
            if wire_type != _VARINT:
                return RARE
            value, at = read_varint(data, at, end)
            if field == 1:
                op.ts = value
            else:
                retried = value
        elif field == 64 or field == 65:
            return RARE
        else:
            at = skip_field(data, at, end, wire_type)
        if at < 0:
            return RARE
    op.cell_end, op.table_end = cell_count, table_count
    return RARE if retried else COMMIT


@kernel("int64(uint8[::1], int64, int64, Op, int64[::1])", nogil=False, _nrt=False, forceinline=True)
def parse_complete(data: Any, at: Any, end: Any, op: Op, starts: Any) -> Any:
    """A CompleteRequest: its starts."""
    count = op.cell_begin
    while at < end:
        key, at = read_key(data, at, end)
        if at < 0:
            return RARE
        if key >> 3 == 1:
            count, at = parse_ids(data, at, end, key & 7, starts, count)
        else:
            at = skip_field(data, at, end, key & 7)
        if at < 0:
            return RARE
    op.cell_end = count
    return COMPLETE


@kernel("int64(uint8[::1], int64, int64, Op, int64[::1], int64[::1])", nogil=False, _nrt=False, forceinline=True)
def parse_frame(data: Any, at: Any, end: Any, op: Op, cells: Any, tables: Any) -> Any:
    """One Request, into `op`: its kind, or RARE. `op.cell_begin`, `op.table_begin` say where ids may go."""
    op.tag = 0
    op.cell_end, op.table_end = op.cell_begin, op.table_begin
    kind: Any = np.int64(RARE)
    while at < end:
        key, at = read_key(data, at, end)
        if at < 0:
            return RARE
        field, wire_type = key >> 3, key & 7
        if field == 1 or field == 2 or field == 68:
            length, at = read_varint(data, at, end)
            if wire_type != _BYTES or at < 0 or length < 0 or length > end - at or kind != RARE:
                return RARE
            if field == 1:
                kind = parse_begin(data, at, at + length, op)
            elif field == 68:
                kind = parse_complete(data, at, at + length, op, cells)
            else:
                kind = parse_commit(data, at, at + length, op, cells, tables)
            if kind == RARE:
                return RARE
            at += length
        elif field == 64:
            if wire_type != _VARINT:
                return RARE
            op.tag, at = read_varint(data, at, end)
        elif field == 3 or field == 4 or (field >= 65 and field <= 70):
            return RARE
        else:
            at = skip_field(data, at, end, wire_type)
        if at < 0:
            return RARE
    op.kind = kind
    return kind


@kernel("int64(uint8[::1], int64)", nogil=False, _nrt=False, forceinline=True)
def frame_length(data: Any, at: Any) -> Any:
    """What the header at `at` announces."""
    return (
        np.int64(data[at]) << 24 | np.int64(data[at + 1]) << 16 | np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
    )


@kernel("boolean(uint8[::1], int64, int64)", nogil=False, _nrt=False, forceinline=True)
def holds_frame(data: Any, at: Any, end: Any) -> Any:
    """Whether a whole frame begins at `at`."""
    return end - at >= HEADER_BYTES and frame_length(data, at) <= end - at - HEADER_BYTES


@kernel("UniTuple(int64, 2)(uint8[::1], int64, int64, int64, Parsed)", nogil=False, _nrt=False)
def parse_chunk(data: Any, at: Any, end: Any, ops_max: Any, parsed: Parsed) -> Any:
    """(how many ops, where the first frame begins that is not among them: rare, unfinished or one too many)."""
    count = np.int64(0)
    cell_count = np.int64(0)
    table_count = np.int64(0)
    while count < ops_max and end - at >= HEADER_BYTES:
        stop = at + HEADER_BYTES + frame_length(data, at)
        if stop > end:
            break
        op = parsed.ops[count]
        op.cell_begin, op.table_begin, op.frame_at = cell_count, table_count, at
        if parse_frame(data, at + HEADER_BYTES, stop, op, parsed.cell_ids, parsed.table_ids) == RARE:
            break
        cell_count, table_count = op.cell_end, op.table_end
        at = stop
        count += 1
    return count, at


@kernel("UniTuple(int64, 2)(uint8[::1], int64, int64, int64, Fields(Parsed))", nogil=False, _nrt=False)
def parse_frames(data: Any, at: Any, end: Any, ops_max: Any, parsed: Any) -> Any:
    """`parse_chunk`, called from Python."""
    return parse_chunk(data, at, end, ops_max, Parsed(*parsed))
