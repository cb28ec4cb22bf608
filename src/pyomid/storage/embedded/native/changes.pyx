"""Compaction's changes of many records: the keys of a batch's records, and their new values after heals and drops.

`EmbeddedStore._change_record`, for one record, is the reference implementation.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pyomid.native.batch cimport Batch, batch_of
from pyomid.native.numbers cimport little_endian, put_little_endian
from pyomid.storage.embedded.native.records cimport (
    ABSENT, CELL_FIELDS, HEADER_BYTES, VARINT_BYTES_MAX, Cell, cells_head, cells_max, crc32, key_bytes_max, next_cell,
    put_cells, put_key,
)

import numpy as np

cpdef enum:
    UNCHANGED = 0
    CHANGED = 1
    EMPTIED = 2
    CORRUPT = 3


def record_keys(tuple arrays, const int64_t[::1] records, const int64_t[::1] row_of, const uint8_t[::1] prefix):
    """Return the keys of `records`, whose rows are `row_of`, concatenated, and their borders. `prefix`: of the table's
    keys."""
    cdef Batch batch = batch_of(arrays)
    cdef int64_t count = records.shape[0], size = 0, at = 0, index, row
    for index in range(count):
        size += key_bytes_max(batch.row_len[row_of[index]])
    keys, bounds_ = np.empty(size, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)
    cdef uint8_t[::1] out = keys
    cdef int64_t[::1] bounds = bounds_
    with nogil:
        for index in range(count):
            row = row_of[index]
            at = put_key(
                &prefix[0], prefix.shape[0], batch.buffer + batch.row_off[row], batch.row_len[row],
                batch.rec_version[records[index]], &out[0], at,
            )
            bounds[index + 1] = at
    return keys[:at], bounds_


cdef struct Change:
    int64_t commit_ts
    const int64_t *drops
    int64_t drops_count
    const int64_t *heals
    int64_t heals_count


cdef struct Cells:
    Cell *left  # the cells that are not dropped
    int64_t room
    int64_t count  # of `left`
    bint is_whole  # no cell is dropped
    bint is_healed


cdef bint _contains(const int64_t *numbers, int64_t count, int64_t number) noexcept nogil:
    cdef int64_t index
    for index in range(count):
        if numbers[index] == number:
            return True
    return False


cdef bint _read_cells(const uint8_t *data, int64_t place, int64_t stop, Change *change, Cells *cells) noexcept nogil:
    """Read the cells of a record that ends at `stop`. False if they do not fill it."""
    cdef const uint8_t *codes
    cdef int64_t count, index, number, length
    cells.count, cells.is_whole, cells.is_healed = 0, True, False
    count = cells_head(data, &place, stop, &codes)
    for index in range(count):
        number = next_cell(data, codes, index, &place, stop, &length)
        if number < 0 or cells.count == cells.room:
            return False
        if length == ABSENT:
            continue
        if _contains(change.drops, change.drops_count, number):
            cells.is_whole = False
        else:
            cells.left[cells.count] = Cell(number, place, length)
            cells.count += 1
            cells.is_healed = cells.is_healed or _contains(change.heals, change.heals_count, number)
            if cells.is_healed and change.drops_count == 0:  # only the commit timestamp changes
                return True
        place += max(length, 0)
    return count >= 0 and place == stop


cdef int _change_record(
    const uint8_t *data, int64_t key, int64_t value, int64_t stop, Change *change, Cells *cells, uint8_t *out,
    int64_t *to,
) noexcept nogil:
    """Return UNCHANGED, CHANGED, EMPTIED or CORRUPT. If CHANGED, write the new value at `to[0]` and advance `to[0]`."""
    cdef bint is_healed
    cdef int64_t begin = to[0], commit_ts
    cdef uint32_t key_crc = crc32(data + key, value - key, 0)
    if stop - value < HEADER_BYTES:
        return CORRUPT
    if crc32(data + value + 4, stop - value - 4, key_crc) != <uint32_t> little_endian(data + value, 4):
        return CORRUPT
    if not _read_cells(data, value + HEADER_BYTES, stop, change, cells):
        return CORRUPT
    if cells.count == 0:
        return EMPTIED
    commit_ts = little_endian(data + value + 4, 8)
    is_healed = change.commit_ts != 0 and cells.is_healed and commit_ts != change.commit_ts
    if cells.is_whole and not is_healed:
        return UNCHANGED
    put_little_endian(out + begin + 4, change.commit_ts if is_healed else commit_ts, 8)
    if cells.is_whole:
        memcpy(out + begin + HEADER_BYTES, data + value + HEADER_BYTES, stop - value - HEADER_BYTES)
        to[0] = begin + stop - value
    else:
        to[0] = put_cells(data, cells.left, cells.count, out, begin + HEADER_BYTES)
    put_little_endian(out + begin, crc32(out + begin + 4, to[0] - begin - 4, key_crc), 4)
    return CHANGED


def change_records(
    const uint8_t[::1] data, const int64_t[::1] lens, const int64_t[::1] commits, const int64_t[::1] drops,
    const int64_t[::1] drop_first, const int64_t[::1] heals, const int64_t[::1] heal_first,
):
    """Return the new values of records, concatenated, their borders, and for each record whether it CHANGED.

    `data` holds key, value, key, value … of lengths `lens`. Record i loses the columns (by number)
    `drops[drop_first[i] : drop_first[i + 1]]`; it gets the commit timestamp `commits[i]` if that is not 0 and one of
    the columns `heals[heal_first[i] : heal_first[i + 1]]` is left in it.
    """
    cdef int64_t records = lens.shape[0] // 2, at = 0, to = 0, record, value
    cdef Change change
    cdef Cells cells
    changed = np.empty(data.shape[0] + records * VARINT_BYTES_MAX, dtype=np.uint8)
    bounds_, states_ = np.zeros(records + 1, dtype=np.int64), np.zeros(records, dtype=np.int64)
    cdef uint8_t[::1] out = changed
    cdef int64_t[::1] bounds = bounds_, states = states_
    cells.room = cells_max(&data[0], lens)
    left = np.empty((cells.room, CELL_FIELDS), dtype=np.int64)
    cdef int64_t[:, ::1] left_view = left
    cells.left = <Cell *> &left_view[0, 0]
    with nogil:
        for record in range(records):
            change.commit_ts = commits[record]
            change.drops, change.drops_count = &drops[drop_first[record]], drop_first[record + 1] - drop_first[record]
            change.heals, change.heals_count = &heals[heal_first[record]], heal_first[record + 1] - heal_first[record]
            value = at + lens[2 * record]
            at = value + lens[2 * record + 1]
            states[record] = _change_record(
                &data[0], value - lens[2 * record], value, at, &change, &cells, &out[0], &to
            )
            bounds[record + 1] = to
    return changed[:to], bounds_, states_
