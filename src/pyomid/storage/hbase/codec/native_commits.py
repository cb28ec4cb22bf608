"""Calls about commit entries in compiled passes: which regions they go to, their puts and gets, what gets brought.

A row is a bucket and a start, so a region's border is a pair of numbers. Rows of one region stand together, in the
order they came in:
    puts   0A len { 0A len region  action … }, as `native_encode` has it, with a block of `F:C` = varint(commit - start)
    gets   0A len { 0A len region  1A len { 08 index  1A len { 0A 09 row  tail } } … }
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.kernels.compiled import Bytes, Int64s, kernel
from pyomid.storage.hbase.codec.native_decode import _number
from pyomid.storage.hbase.codec.native_encode import (
    COMMIT_ROW_BYTES,
    RequestArrays,
    _action_bytes,
    _copy,
    _put_action,
    _put_commit,
    _put_number,
    _put_varint,
    _read_varint,
    _varint_bytes,
)
from pyomid.types import NOT_FOUND, SEALED

SEVERAL = -1
"""The regions are on several servers."""
UNKNOWN = -2
"""The region of the first entry is not known; of the n-th entry `UNKNOWN - n`."""

GET_BYTES_MAX = 40
"""Of the action of a get, beside its tail."""

_UNANSWERED = -2
_FIELD_MAX = (1 << 29) - 1
"""The largest number that Protocol Buffers lets a field have."""


class RangeArrays(NamedTuple):
    """The commit table's ranges of rows, ascending. Range i begins at border i; the first begins before all rows."""

    border_bucket: Int64s
    border_start: Int64s
    servers: Int64s
    """-1 where none is known."""
    specifiers: Bytes
    """The field that names range i's region is `specifiers[specifier_at[i] : specifier_at[i + 1]]`."""
    specifier_at: Int64s


@kernel("int64(int64[::1], Fields(RangeArrays), int64[::1], int64[::1])", _nrt=False)
def place(starts: Int64s, range_arrays: Any, where: Int64s, counts: Int64s) -> int:
    """The number of the server that has the rows of all `starts`, or SEVERAL, or UNKNOWN and below.

    `where`: the range of each start; `counts`, all 0, get how many of them a range has.
    """
    ranges = RangeArrays(*range_arrays)
    border_bucket, border_start, servers = ranges.border_bucket, ranges.border_start, ranges.servers
    found = np.int64(UNKNOWN)
    for index in range(len(starts)):
        start = starts[index]
        bucket = start & 15
        low, high = 0, len(servers) - 1
        while low < high:
            middle = (low + high + 1) >> 1
            border = border_bucket[middle]
            if border < bucket or (border == bucket and border_start[middle] <= start):
                low = middle
            else:
                high = middle - 1
        if servers[low] < 0:
            return UNKNOWN - index
        where[index] = low
        counts[low] += 1
        if found == UNKNOWN:
            found = servers[low]
        elif found != servers[low]:
            found = np.int64(SEVERAL)
    return int(found)


@kernel("void(int64[::1], int64[::1], int64[::1])")
def _by_range(where: Int64s, counts: Int64s, order: Int64s) -> None:
    """The entries' numbers, range by range."""
    ends = np.cumsum(counts)
    for index in range(len(where) - 1, -1, -1):
        ends[where[index]] -= 1
        order[ends[where[index]]] = index


@kernel("int64(uint8[::1], int64, int64, RangeArrays, int64)", _nrt=False)
def _put_region(out: Bytes, at: int, actions_bytes: int, ranges: RangeArrays, number: int) -> int:
    """What the action on a range's region begins with; so many bytes of actions follow it."""
    begin = int(ranges.specifier_at[number])
    size = int(ranges.specifier_at[number + 1]) - begin
    out[at] = 0x0A
    at = _put_varint(out, at + 1, size + actions_bytes)
    return _copy(out, at, ranges.specifiers, begin, size)


@kernel("int64(int64, int64)")
def _get_bytes(number: int, tail_bytes: int) -> int:
    """Of an action that gets a row, without its tag and length."""
    get = 2 + COMMIT_ROW_BYTES + tail_bytes
    return 1 + _varint_bytes(number) + 1 + _varint_bytes(get) + get


@kernel("void(int64[:, ::1], int64[::1], int64[::1], Fields(RangeArrays), int64, Fields(RequestArrays))")
def encode_commit_puts(
    entries: NDArray[np.int64], where: Int64s, counts: Int64s, range_arrays: Any, durability: int, request: Any
) -> None:
    """Entries (start, commit), placed (`where`, `counts`), as whole region actions and their block."""
    ranges = RangeArrays(*range_arrays)
    parameter, block, used = RequestArrays(*request)
    order = np.empty(len(where), dtype=np.int64)
    _by_range(where, counts, order)
    row = np.empty(COMMIT_ROW_BYTES, dtype=np.uint8)
    at = cell_at = position = 0
    for place_ in range(len(counts)):
        count = counts[place_]
        if count == 0:
            continue
        size = 0
        for number in range(count):
            size += _action_bytes(number, COMMIT_ROW_BYTES, 1, durability)
        at = _put_region(parameter, at, size, ranges, place_)
        for number in range(count):
            start = int(entries[order[position], 0])
            row[0] = start & 15
            _put_number(row, 1, start, 8)
            at = _put_action(parameter, at, number, row, 1, 2, durability)
            cell_at = _put_commit(block, cell_at, row, start, int(entries[order[position], 1]))
            position += 1
    used[0].actions, used[0].block, used[0].rows = at, cell_at, position


@kernel("int64(int64[::1], int64[::1], int64[::1], Fields(RangeArrays), uint8[::1], uint8[::1])")
def encode_commit_gets(
    starts: Int64s, where: Int64s, counts: Int64s, range_arrays: Any, tail: Bytes, parameter: Bytes
) -> int:
    """Gets of the rows of `starts`, placed (`where`, `counts`), as region actions; a get's index is its start's.
    Returns how many bytes of `parameter` they take.

    `tail`: what follows the row in the message of a get.
    """
    ranges = RangeArrays(*range_arrays)
    order = np.empty(len(where), dtype=np.int64)
    _by_range(where, counts, order)
    at = position = 0
    for place_ in range(len(counts)):
        count = counts[place_]
        if count == 0:
            continue
        size = 0
        for number in range(count):
            action = _get_bytes(int(order[position + number]), len(tail))
            size += 1 + _varint_bytes(action) + action
        at = _put_region(parameter, at, size, ranges, place_)
        for _ in range(count):
            index = int(order[position])
            parameter[at] = 0x1A
            at = _put_varint(parameter, at + 1, _get_bytes(int(index), len(tail)))
            parameter[at] = 0x08
            at = _put_varint(parameter, at + 1, index)
            parameter[at] = 0x1A
            at = _put_varint(parameter, at + 1, 2 + COMMIT_ROW_BYTES + len(tail))
            parameter[at] = 0x0A
            parameter[at + 1] = COMMIT_ROW_BYTES
            parameter[at + 2] = starts[index] & 15
            at = _put_number(parameter, at + 3, int(starts[index]), 8)
            at = _copy(parameter, at, tail, 0, len(tail))
            position += 1
    return at


@kernel("int64(uint8[::1], int64)", _nrt=False)
def _cell_end(block: Bytes, at: int) -> int:
    """Of the KeyValue at `at`; -1 where its lengths do not fit."""
    if len(block) - at < 16:
        return -1
    total, key, value = _number(block, at, 4), _number(block, at + 4, 4), _number(block, at + 8, 4)
    row = _number(block, at + 12, 2)
    if total > len(block) - at - 4 or 8 + key + value > total or key < 12 + row:
        return -1
    if int(block[at + 14 + row]) + 12 + row > key:
        return -1
    return at + 4 + total


@kernel("int64(uint8[::1], int64, int64, int64[::1])", _nrt=False)
def _read_cell(block: Bytes, at: int, start: int, value: Int64s) -> int:
    """1: the invalidation marker of `start`'s row; 0: its entry, whose difference is in `value[0]`; -1: neither."""
    row_bytes = _number(block, at + 12, 2)
    family_bytes = np.int64(block[at + 14 + row_bytes])
    if row_bytes != COMMIT_ROW_BYTES or block[at + 14] != start & 15 or _number(block, at + 15, 8) != start:
        return -1
    qualifier_bytes = _number(block, at + 4, 4) - 12 - row_bytes - family_bytes
    qualifier_at = at + 15 + row_bytes + family_bytes
    if qualifier_bytes == 2 and block[qualifier_at] == 73 and block[qualifier_at + 1] == 84:  # IT
        return 1
    value_at = qualifier_at + qualifier_bytes + 9
    if qualifier_bytes != 1 or block[qualifier_at] != 67:  # C
        return -1
    end = _read_varint(block, int(value_at), value)
    return 0 if end == value_at + _number(block, at + 8, 4) else -1


@kernel("int64(uint8[::1], int64, int64, int64[::1], int64[::1])", _nrt=False)
def _read_entry(block: Bytes, at: int, count: int, entry: Int64s, value: Int64s) -> int:
    """Where the `count` cells of a row end; -1 where they are not a commit entry's.

    `entry`: a start, and room for its commit timestamp, SEALED or NOT_FOUND.
    """
    entry[1] = NOT_FOUND
    for _ in range(count):
        end = _cell_end(block, at)
        kind = -1 if end < 0 else _read_cell(block, at, int(entry[0]), value)
        if kind < 0:
            return -1
        if kind == 1:
            entry[1] = SEALED
        elif entry[1] != SEALED:
            entry[1] = entry[0] + value[0]
        at = end
    return at


@kernel("int64(uint8[::1], int64, int64, int64[::1])", _nrt=False)
def _read_field(message: Bytes, at: int, end: int, value: Int64s) -> int:
    """Position after the tag of the field at `at` and its number or length; -1 where it is of no such kind.

    `value[0]` gets the number or length, `value[1]` the field's number, `value[2]` 1 where it has a length and lies
    before `end` as a whole.
    """
    at = _read_varint(message, at, value)
    if at < 0:
        return -1
    value[1], value[2] = value[0] >> 3, value[0] & 7
    at = _read_varint(message, at, value)
    if at < 0 or at > end or (value[2] != 0 and value[2] != 2) or not 1 <= value[1] <= _FIELD_MAX:
        return -1
    value[2] >>= 1
    if value[2] == 1 and value[0] > end - at:
        return -1
    return at


@kernel("int64(uint8[::1], int64, int64, int64[::1], int64[::1])", _nrt=False)
def _read_result(message: Bytes, at: int, end: int, result: Int64s, value: Int64s) -> int:
    """`result`: index and number of cells of a ResultOrException; `end`, or -1 where it is no plain result.

    ResultOrException { 1 index, 2 result { 1 cell, 2 associated_cell_count }, 3 exception }
    """
    result[:] = 0
    while at < end:
        at = _read_field(message, at, end, value)
        if at < 0 or (value[2] == 1 and value[1] == 3):
            return -1
        if value[2] == 0:
            if value[1] == 1:
                result[0] = value[0]
            continue
        inner_end = at + int(value[0])
        is_result = value[1] == 2
        while is_result and at < inner_end:
            at = _read_field(message, at, inner_end, value)
            if at < 0 or (value[2] == 1 and value[1] == 1):
                return -1
            if value[2] == 1:
                at += int(value[0])
            elif value[1] == 2:
                result[1] = value[0]
        at = inner_end
    return at


@kernel("boolean(uint8[::1], uint8[::1], int64[::1], int64[::1], int64[::1])")
def read_commit_gets(message: Bytes, block: Bytes, starts: Int64s, found: Int64s, last: Int64s) -> bool:
    """The answer to `encode_commit_gets` and one more get, index `len(starts)`: `found`, each start's commit
    timestamp, SEALED or NOT_FOUND; `last`, where the cells of that last get begin and end in the block.

    False where anything failed, is missing, or is not understood.
    MultiResponse { 1: RegionActionResult { 1: ResultOrException, 2 exception } }
    """
    value, result, entry = np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    found[:] = _UNANSWERED
    last[0] = -1
    at = cell_at = 0
    left = len(starts) + 1
    while at < len(message):
        at = _read_field(message, at, len(message), value)
        if at < 0:
            return False
        if value[2] == 0:
            continue
        end = at + int(value[0])
        if value[1] != 1:
            at = end
            continue
        while at < end:
            at = _read_field(message, at, end, value)
            if at < 0 or (value[2] == 1 and value[1] == 2):
                return False
            if value[2] == 0:
                continue
            if value[1] != 1:
                at += int(value[0])
                continue
            at = _read_result(message, at, at + int(value[0]), result, value)
            index = result[0]
            if at < 0 or index > len(starts) or result[1] > len(block):
                return False
            if index < len(starts):
                if found[index] != _UNANSWERED:
                    return False
                entry[0] = starts[index]
                cell_at = _read_entry(block, cell_at, int(result[1]), entry, value)
                found[index] = entry[1]
            else:
                if last[0] >= 0:
                    return False
                last[0] = cell_at
                for _ in range(result[1]):
                    cell_at = _cell_end(block, cell_at)
                    if cell_at < 0:
                        return False
                last[1] = cell_at
            if cell_at < 0:
                return False
            left -= 1
    return bool(left == 0 and cell_at == len(block))
