"""Cell blocks into the arrays of a `CellBatch`, in two compiled passes; `batches` says what they mean.

`index_cells` finds the parts of each KeyValue, checks every length against the block, which comes from outside, and
numbers the names (family and qualifier). It expects each name to be the one that followed the last one before, or
the last one itself, so that most names cost one comparison. `match_cells` then works on numbers alone: rows, records,
and beside each cell its shadow cell's timestamp.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

KV_ROW_AT = 0
KV_ROW_LEN = 1
KV_NAME = 2
KV_TIMESTAMP = 3
KV_VALUE_AT = 4
KV_VALUE_LEN = 5
KV_KIND = 6
KV_SAME_ROW = 7
KV_FIELDS = 8

NAME_COLUMN = 0
"""The column's number; -1 while no cell of it was seen."""
NAME_BASE = 1
"""Of a shadow cell's name: the name it stands beside; else -1, and `_UNSEEN` while only that was seen of it."""
NAME_SHADOW = 2
"""The name of its shadow cells with Omid's prefix, -1 where none was seen."""
NAME_OLD_SHADOW = 3
"""The same without the prefix."""
NAME_NEXT = 4
"""The name that came after it the last time."""
NAME_FIELDS = 5

NAMES_FULL: Final = -(1 << 62)
"""`index_cells` needs a larger table of names."""

NAME_PAD = 8
"""Bytes before the first name: names are compared by the 8 bytes that end with theirs."""

_UNSEEN = -2
_KIND_PUT = 4
_KEY_BYTES_MIN = 12
_KEY_VALUE_BYTES_MIN = 24


@kernel("uint64(uint8[::1], int64)")
def _word(block: Bytes, at: int) -> int:
    """8 bytes, big-endian. Written out, so that it becomes one load."""
    one, i = np.uint64(1), np.uint64(at)
    word = np.uint64(block[i]) << np.uint64(56)
    i += one
    word |= np.uint64(block[i]) << np.uint64(48)
    i += one
    word |= np.uint64(block[i]) << np.uint64(40)
    i += one
    word |= np.uint64(block[i]) << np.uint64(32)
    i += one
    word |= np.uint64(block[i]) << np.uint64(24)
    i += one
    word |= np.uint64(block[i]) << np.uint64(16)
    i += one
    word |= np.uint64(block[i]) << np.uint64(8)
    i += one
    return int(word | np.uint64(block[i]))


@kernel("int64(uint8[::1], int64, int64)")
def _number(block: Bytes, position: int, size: int) -> int:
    value = np.int64(0)
    for index in range(position, position + size):
        value = (value << 8) | np.int64(block[index])
    return int(value)


@kernel("int64(uint8[::1])")
def last_cell(block: Bytes) -> int:
    """Where the last KeyValue begins; -1 where the block is empty or ends inside one."""
    position, last, end = 0, -1, len(block)
    while position + 16 <= end:
        last = position
        position += 4 + _number(block, position, 4)
    return last if position == end else -1


@kernel("boolean(uint8[::1], int64, uint8[::1], int64, int64)")
def _same(one: Bytes, one_at: int, two: Bytes, two_at: int, size: int) -> bool:
    """Whether `size` bytes are equal. Before both of them 8 more bytes must be there."""
    while size > 8:
        if _word(one, one_at) != _word(two, two_at):
            return False
        one_at += 8
        two_at += 8
        size -= 8
    if size == 0:
        return True
    different = _word(one, one_at + size - 8) ^ _word(two, two_at + size - 8)
    return bool((different << np.uint64(64 - 8 * size)) == np.uint64(0))


@kernel("int64(uint8[::1], int64[::1], int32[::1], int32[:, ::1], int64[::1], int64)")
def _entered(
    name_bytes: Bytes, name_begin: Int64s, name_slots: Int32s, names: Int32s, counts: Int64s, size: int
) -> int:
    """The number of the name whose bytes lie behind the last one's; a new one where it was not known."""
    count = counts[0]
    begin = name_begin[count]
    key = np.uint64(14695981039346656037)
    for index in range(begin, begin + size):
        key = (key ^ np.uint64(name_bytes[index])) * np.uint64(1099511628211)
    mask = np.int64(len(name_slots) - 1)
    slot = np.int64((key ^ (key >> np.uint64(32))) & np.uint64(mask))
    while name_slots[slot] >= 0:
        found = np.int64(name_slots[slot])
        if name_begin[found + 1] - name_begin[found] == size and _same(
            name_bytes, name_begin[found], name_bytes, begin, size
        ):
            return int(found)
        slot = (slot + 1) & mask
    for field in range(4):
        names[count, field] = -1
    names[count, 4] = 0
    name_slots[slot] = count
    name_begin[count + 1] = begin + size
    counts[0] = count + 1
    return int(count)


@kernel("void(uint8[::1], int64[::1], int32[::1], int64)")
def fill_slots(name_bytes: Bytes, name_begin: Int64s, name_slots: Int32s, count: int) -> None:
    """`name_slots`, all -1, get the names that are there."""
    mask = np.int64(len(name_slots) - 1)
    for name in range(count):
        key = np.uint64(14695981039346656037)
        for index in range(name_begin[name], name_begin[name + 1]):
            key = (key ^ np.uint64(name_bytes[index])) * np.uint64(1099511628211)
        slot = np.int64((key ^ (key >> np.uint64(32))) & np.uint64(mask))
        while name_slots[slot] >= 0:
            slot = (slot + 1) & mask
        name_slots[slot] = name


@kernel("int64(uint8[::1], int64, int64, uint8[::1], int64[::1], int32[::1], int32[:, ::1], int64[::1])")
def _name(
    block: Bytes,
    at: int,
    size: int,
    name_bytes: Bytes,
    name_begin: Int64s,
    name_slots: Int32s,
    names: Int32s,
    counts: Int64s,
) -> int:
    """The number of a name that was not expected; -1 where there is no room for it and the one it stands beside.

    A name is the family's length, family and qualifier, as they follow each other in a KeyValue.
    """
    before = counts[0]
    if before + 3 > len(names) or name_begin[before] + 2 * size > len(name_bytes) or 2 * (before + 2) > len(name_slots):
        return -1
    begin = name_begin[before]
    for index in range(size):
        name_bytes[begin + index] = block[at + index]
    name = _entered(name_bytes, name_begin, name_slots, names, counts, size)
    if counts[0] == before and names[name, 1] != _UNSEEN:
        return int(name)
    names[name, 1] = -1
    family_bytes = int(block[at]) + 1
    qualifier_at, qualifier_bytes = at + family_bytes, size - family_bytes
    end = at + size
    if qualifier_bytes < 2 or block[end - 2] != 0xC2 or block[end - 1] != 0x80:
        return int(name)
    skip = 0
    if (
        qualifier_bytes >= 5
        and block[qualifier_at] == 0
        and block[qualifier_at + 1] == 0xC2
        and block[qualifier_at + 2] == 0x80
    ):
        skip = 3
    begin = name_begin[counts[0]]
    for index in range(family_bytes):
        name_bytes[begin + index] = block[at + index]
    base_bytes = qualifier_bytes - skip - 2
    for index in range(base_bytes):
        name_bytes[begin + family_bytes + index] = block[qualifier_at + skip + index]
    known = counts[0]
    base = _entered(name_bytes, name_begin, name_slots, names, counts, family_bytes + base_bytes)
    if counts[0] > known:  # it may be a shadow cell's name too, of a table that others wrote
        names[base, 1] = _UNSEEN
    names[name, 1] = base
    names[base, 2 if skip else 3] = name
    return int(name)


@kernel(
    "int64(uint8[::1], int64[:, ::1], uint8[::1], int64[::1], int32[::1], int32[:, ::1], int64[::1])",
)
def index_cells(
    block: Bytes,
    cells: NDArray[np.int64],
    name_bytes: Bytes,
    name_begin: Int64s,
    name_slots: Int32s,
    names: Int32s,
    counts: Int64s,
) -> int:
    """Fills a row of `cells` for each KeyValue; returns how many, -1 - position of the first that is broken, or
    NAMES_FULL. `counts[0]` names are known."""
    position, end, count = 0, len(block), 0
    name, before_at, before_bytes = 0, 0, -1
    while position < end:
        if end - position < 24 or count == len(cells):
            return -1 - position
        head, rest = _word(block, position), _word(block, position + 8)
        total = int(np.int64(head >> np.uint64(32)))
        key_bytes = int(np.int64(head & np.uint64(0xFFFFFFFF)))
        value_bytes = int(np.int64(rest >> np.uint64(32)))
        row_bytes = int(np.int64((rest >> np.uint64(16)) & np.uint64(0xFFFF)))
        if 8 + key_bytes + value_bytes > total or position + 4 + total > end or key_bytes < 12 + row_bytes:
            return -1 - position
        row_at = position + 14
        name_at, name_size = row_at + row_bytes, key_bytes - 11 - row_bytes
        if np.int64(block[name_at]) + 1 > name_size:
            return -1 - position
        expected = int(names[name, 4])
        if expected < counts[0] and (
            name_begin[expected + 1] - name_begin[expected] == name_size
            and _same(block, name_at, name_bytes, int(name_begin[expected]), name_size)
        ):
            name = expected
        elif not (
            name < counts[0]
            and name_begin[name + 1] - name_begin[name] == name_size
            and _same(block, name_at, name_bytes, int(name_begin[name]), name_size)
        ):
            found = _name(block, name_at, name_size, name_bytes, name_begin, name_slots, names, counts)
            if found < 0:
                return NAMES_FULL
            names[name, 4] = found
            name = found
        tail = name_at + name_size
        cells[count, 0] = row_at
        cells[count, 1] = row_bytes
        cells[count, 2] = name
        cells[count, 3] = np.int64(_word(block, tail))
        cells[count, 4] = tail + 9
        cells[count, 5] = value_bytes
        cells[count, 6] = np.int64(block[tail + 8])
        cells[count, 7] = row_bytes == before_bytes and _same(block, row_at, block, before_at, row_bytes)
        before_at, before_bytes = row_at, row_bytes
        count += 1
        position += 4 + total
    return count


@kernel("boolean(uint8[::1], int64, int64, uint8[::1])")
def _is_tombstone(block: Bytes, at: int, size: int, legacy: Bytes) -> bool:
    if size == 0:
        return True
    if size != len(legacy):
        return False
    for index in range(size):  # noqa: SIM110 (numba has no `all`)
        if block[at + index] != legacy[index]:
            return False
    return True


@kernel(
    "void(uint8[::1], int64[:, ::1], int64, int64, uint8[::1],"
    " int32[:, ::1], int64[:, ::1], int32[::1], int64[::1],"
    " int64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int32[::1], int64[::1], int32[::1], int64[::1])"
)
def match_cells(
    block: Bytes,
    cells: NDArray[np.int64],
    count: int,
    ends_inside_row: int,
    legacy_tombstone: Bytes,
    names: Int32s,
    runs: Int64s,
    column_names: Int32s,
    counts: Int64s,
    row_off: Int64s,
    row_len: Int32s,
    row_rec: Int64s,
    rec_version: Int64s,
    rec_commit: Int64s,
    rec_cell: Int64s,
    cell_col: Int32s,
    cell_off: Int64s,
    cell_len: Int32s,
    result: Int64s,
) -> None:
    """`result` = (rows, records, cells, index of the KeyValue behind the last whole row).

    A shadow cell without its cell is left out. Neighbours of equal version and commit timestamp share a record.
    `counts[1]` columns are known; `runs` has for each name the row (by its first KeyValue) in which shadow cells of
    that name stood last, and which: newest first, so that a pointer over them moves forward as cells grow older.
    """
    rows = records = out = 0
    row_rec[0] = 0
    rec_cell[0] = 0
    for name in range(counts[0]):
        runs[name, 0] = -1
    first = 0
    while first < count:
        last = first + 1
        while last < count and cells[last, 7] != 0:
            last += 1
        if last == count and ends_inside_row:
            break
        row_records, row_begin = records, out
        for index in range(first, last):
            name = cells[index, 2]
            if names[name, 1] >= 0:
                if runs[name, 0] != first:
                    runs[name, 0] = first
                    runs[name, 1] = index
                runs[name, 2] = index + 1
        for index in range(first, last):
            name = cells[index, 2]
            if names[name, 1] >= 0 or cells[index, 6] != _KIND_PUT:
                continue
            version = cells[index, 3]
            commit = np.int64(0)
            for form in range(2, 4):
                shadow = np.int64(names[name, form])
                if shadow >= 0 and runs[shadow, 0] == first:
                    beside, end = runs[shadow, 1], runs[shadow, 2]
                    while beside < end and cells[beside, 3] > version:
                        beside += 1
                    runs[shadow, 1] = beside
                    is_beside = beside < end and cells[beside, 3] == version and cells[beside, 2] == shadow
                    if is_beside and cells[beside, 5] == 8:
                        commit = np.int64(_word(block, cells[beside, 4]))
                        break
            column = names[name, 0]
            if column < 0:
                column = np.int32(counts[1])
                names[name, 0] = column
                column_names[column] = name
                counts[1] += 1
            if records == row_records or rec_version[records - 1] != version or rec_commit[records - 1] != commit:
                rec_version[records] = version
                rec_commit[records] = commit
                records += 1
            cell_col[out] = column
            cell_off[out] = cells[index, 4]
            tombstone = _is_tombstone(block, cells[index, 4], cells[index, 5], legacy_tombstone)
            cell_len[out] = -1 if tombstone else cells[index, 5]
            out += 1
            rec_cell[records] = out
        if out > row_begin:
            row_off[rows] = cells[first, 0]
            row_len[rows] = cells[first, 1]
            rows += 1
            row_rec[rows] = records
        first = last
    result[0] = rows
    result[1] = records
    result[2] = out
    result[3] = first
