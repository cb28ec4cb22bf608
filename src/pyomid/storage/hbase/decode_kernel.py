"""Cell blocks into the arrays of a `CellBatch`, in two compiled passes; `batches` says what they mean.

`index_cells` finds the parts of each KeyValue and checks every length against the block, which comes from outside.
`match_cells` walks rows and families, lays each shadow cell's timestamp beside its cell, numbers the columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]

KV_ROW_AT = 0
KV_ROW_LEN = 1
KV_FAMILY_LEN = 2
KV_QUALIFIER_LEN = 3
KV_TIMESTAMP = 4
KV_VALUE_LEN = 5
KV_KIND = 6
KV_FIELDS = 7

_KIND_PUT = 4


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


@kernel("int64(uint8[::1], int64[:, ::1])")
def index_cells(block: Bytes, cells: NDArray[np.int64]) -> int:
    """Fills a row of `cells` for each KeyValue; returns how many, or -1 - position of the first that is broken."""
    position, end, count = 0, len(block), 0
    while position < end:
        if end - position < 14 or count == len(cells):
            return -1 - position
        total = _number(block, position, 4)
        key_bytes = _number(block, position + 4, 4)
        value_bytes = _number(block, position + 8, 4)
        row_bytes = _number(block, position + 12, 2)
        if 8 + key_bytes + value_bytes > total or position + 4 + total > end or key_bytes < 12 + row_bytes:
            return -1 - position
        row_at = position + 14
        family_bytes = np.int64(block[row_at + row_bytes])
        qualifier_bytes = key_bytes - 12 - row_bytes - family_bytes
        if qualifier_bytes < 0:
            return -1 - position
        tail = position + 12 + key_bytes - 9
        cells[count, 0] = row_at
        cells[count, 1] = row_bytes
        cells[count, 2] = family_bytes
        cells[count, 3] = qualifier_bytes
        cells[count, 4] = _number(block, tail, 8)
        cells[count, 5] = value_bytes
        cells[count, 6] = np.int64(block[tail + 8])
        count += 1
        position += 4 + total
    return count


@kernel("int64(uint8[::1], int64, int64, uint8[::1], int64, int64)")
def _compare(one: Bytes, one_at: int, one_len: int, two: Bytes, two_at: int, two_len: int) -> int:
    shorter = one_len if one_len < two_len else two_len
    for index in range(shorter):
        a, b = one[one_at + index], two[two_at + index]
        if a != b:
            return 1 if a > b else -1
    return one_len - two_len


@kernel("boolean(uint8[::1], int64, int64, uint8[::1], int64, int64)")
def _equal(one: Bytes, one_at: int, one_len: int, two: Bytes, two_at: int, two_len: int) -> bool:
    if one_len != two_len:
        return False
    # From the end: keys and qualifiers of one table differ there first.
    for index in range(one_len - 1, -1, -1):  # noqa: SIM110 (numba has no `all`)
        if one[one_at + index] != two[two_at + index]:
            return False
    return True


@kernel("boolean(uint8[::1], int64, int64)")
def _is_shadow(block: Bytes, at: int, size: int) -> bool:
    return size >= 2 and block[at + size - 2] == 0xC2 and block[at + size - 1] == 0x80


@kernel("int64(uint8[::1], int64, int64)")
def _prefix_bytes(block: Bytes, at: int, size: int) -> int:
    """3 where a shadow cell's qualifier has Omid's prefix before its suffix; old ones have none."""
    if size >= 5 and block[at] == 0 and block[at + 1] == 0xC2 and block[at + 2] == 0x80:
        return 3
    return 0


@kernel("int64(uint8[::1], int64[:, ::1], int64, int64)")
def _compare_shadows(block: Bytes, cells: NDArray[np.int64], one: int, two: int) -> int:
    """By the qualifier they stand beside, then the newer first."""
    at1 = cells[one, 0] + cells[one, 1] + 1 + cells[one, 2]
    at2 = cells[two, 0] + cells[two, 1] + 1 + cells[two, 2]
    skip1 = _prefix_bytes(block, at1, cells[one, 3])
    skip2 = _prefix_bytes(block, at2, cells[two, 3])
    order = _compare(block, at1 + skip1, cells[one, 3] - skip1 - 2, block, at2 + skip2, cells[two, 3] - skip2 - 2)
    if order != 0:
        return order
    if cells[one, 4] == cells[two, 4]:
        return 0
    return -1 if cells[one, 4] > cells[two, 4] else 1


@kernel("void(uint8[::1], int64[:, ::1], int64[::1], int64)")
def _sort_shadows(block: Bytes, cells: NDArray[np.int64], shadows: Int64s, count: int) -> None:
    """Insertion: nearly always in order already (only a qualifier that is another's prefix breaks it)."""
    for index in range(1, count):
        moving = shadows[index]
        place = index
        while place > 0 and _compare_shadows(block, cells, shadows[place - 1], moving) > 0:
            shadows[place] = shadows[place - 1]
            place -= 1
        shadows[place] = moving


@kernel("int64(uint8[::1], int64, int64, int64, uint8[::1], int64[::1], int32[::1], int64[::1], int64)")
def _column(
    block: Bytes,
    at: int,
    family_bytes: int,
    size: int,
    col_bytes: Bytes,
    col_begin: Int64s,
    col_slots: Int32s,
    col_count: Int64s,
    guess: int,
) -> int:
    """The number of the column whose family and qualifier lie at `at`; -1 where the table of columns is full.

    A column's name in `col_bytes` is one byte with the family's length, then family and qualifier.
    """
    count = col_count[0]
    if guess < count:
        begin = col_begin[guess]
        if col_bytes[begin] == family_bytes and _equal(
            col_bytes, begin + 1, col_begin[guess + 1] - begin - 1, block, at, size
        ):
            return guess
    key = np.uint64(14695981039346656037) ^ np.uint64(family_bytes)
    for index in range(at, at + size):
        key = (key ^ np.uint64(block[index])) * np.uint64(1099511628211)
    mask = np.uint64(len(col_slots) - 1)
    slot = np.int64((key ^ (key >> np.uint64(32))) & mask)
    while col_slots[slot] >= 0:
        found = np.int64(col_slots[slot])
        begin = col_begin[found]
        if col_bytes[begin] == family_bytes and _equal(
            col_bytes, begin + 1, col_begin[found + 1] - begin - 1, block, at, size
        ):
            return int(found)
        slot = (slot + 1) & np.int64(mask)
    begin = col_begin[count]
    if count + 2 > len(col_begin) or begin + 1 + size > len(col_bytes) or 2 * (count + 1) > len(col_slots):
        return -1
    col_bytes[begin] = family_bytes
    for index in range(size):
        col_bytes[begin + 1 + index] = block[at + index]
    col_begin[count + 1] = begin + 1 + size
    col_slots[slot] = count
    col_count[0] = count + 1
    return int(count)


@kernel("boolean(uint8[::1], int64, int64, uint8[::1])")
def _is_tombstone(block: Bytes, at: int, size: int, legacy: Bytes) -> bool:
    if size == 0:
        return True
    return size == len(legacy) and _equal(block, at, size, legacy, 0, size)


@kernel(
    "int64(uint8[::1], int64[:, ::1], int64, int64, uint8[::1],"
    " uint8[::1], int64[::1], int32[::1], int64[::1],"
    " int64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int32[::1], int64[::1], int32[::1], int64[::1], int64[::1])"
)
def match_cells(
    block: Bytes,
    cells: NDArray[np.int64],
    count: int,
    ends_inside_row: int,
    legacy_tombstone: Bytes,
    col_bytes: Bytes,
    col_begin: Int64s,
    col_slots: Int32s,
    col_count: Int64s,
    row_off: Int64s,
    row_len: Int32s,
    row_rec: Int64s,
    rec_version: Int64s,
    rec_commit: Int64s,
    rec_cell: Int64s,
    cell_col: Int32s,
    cell_off: Int64s,
    cell_len: Int32s,
    shadows: Int64s,
    result: Int64s,
) -> int:
    """0 and `result` = (rows, records, cells, index of the KeyValue behind the last whole row); 1: columns are full.

    A shadow cell without its cell is left out. Neighbours of equal version and commit timestamp share a record.
    """
    rows = records = out = 0
    row_rec[0] = 0
    rec_cell[0] = 0
    guess = 0
    first = 0
    while first < count:
        row_at, row_bytes = cells[first, 0], cells[first, 1]
        last = first + 1
        while last < count and _equal(block, row_at, row_bytes, block, cells[last, 0], cells[last, 1]):
            last += 1
        if last == count and ends_inside_row:
            break
        row_records, row_begin = records, out
        family_first = first
        while family_first < last:
            family_at = cells[family_first, 0] + cells[family_first, 1] + 1
            family_bytes = cells[family_first, 2]
            family_last = family_first
            found = 0
            while family_last < last and _equal(
                block,
                family_at,
                family_bytes,
                block,
                cells[family_last, 0] + cells[family_last, 1] + 1,
                cells[family_last, 2],
            ):
                at = cells[family_last, 0] + cells[family_last, 1] + 1 + family_bytes
                if _is_shadow(block, at, cells[family_last, 3]):
                    shadows[found] = family_last
                    found += 1
                family_last += 1
            _sort_shadows(block, cells, shadows, found)
            beside = 0
            for index in range(family_first, family_last):
                at = cells[index, 0] + cells[index, 1] + 1 + family_bytes
                size = cells[index, 3]
                if cells[index, 6] != _KIND_PUT or _is_shadow(block, at, size):
                    continue
                version = cells[index, 4]
                commit = 0
                while beside < found:
                    shadow = shadows[beside]
                    shadow_at = cells[shadow, 0] + cells[shadow, 1] + 1 + family_bytes
                    skip = _prefix_bytes(block, shadow_at, cells[shadow, 3])
                    order = _compare(block, shadow_at + skip, cells[shadow, 3] - skip - 2, block, at, size)
                    if order == 0 and cells[shadow, 4] == version:
                        if cells[shadow, 5] == 8:
                            commit = _number(block, shadow_at + cells[shadow, 3] + 9, 8)
                        break
                    if order > 0 or (order == 0 and cells[shadow, 4] < version):
                        break
                    beside += 1
                column = _column(
                    block,
                    at - family_bytes,
                    family_bytes,
                    family_bytes + size,
                    col_bytes,
                    col_begin,
                    col_slots,
                    col_count,
                    guess,
                )
                if column < 0:
                    return 1
                guess = column + 1
                if records == row_records or rec_version[records - 1] != version or rec_commit[records - 1] != commit:
                    rec_version[records] = version
                    rec_commit[records] = commit
                    records += 1
                value_at = at + size + 9
                cell_col[out] = column
                cell_off[out] = value_at
                tombstone = _is_tombstone(block, value_at, cells[index, 5], legacy_tombstone)
                cell_len[out] = -1 if tombstone else cells[index, 5]
                out += 1
                rec_cell[records] = out
            family_first = family_last
        if out > row_begin:
            row_off[rows] = row_at
            row_len[rows] = row_bytes
            rows += 1
            row_rec[rows] = records
        guess = 0 if rows == 0 else int(cell_col[rec_cell[row_rec[rows - 1]]])
        first = last
    result[0] = rows
    result[1] = records
    result[2] = out
    result[3] = first
    return 0
