"""The visible cells of single rows, for point reads: records are decoded only as far as the reader needs them.

`settled_rows` handles the common case, in which every record that the reader needs has its commit timestamp. For a row
with a needed record without one, a family tombstone, a column that was not loaded, or a damaged record it returns None:
the caller then reads the row's versions and decides in Python.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memset

from pyomid.native.batch cimport has_expired
from pyomid.native.numbers cimport big_endian, little_endian
from pyomid.folder.native.records cimport (
    ABSENT, ESCAPED_ROW_BYTES_MAX, HEADER_BYTES, TABLE_BYTES, VERSION_BYTES, cells_head, crc32, next_cell, put_key,
)

cpdef enum:
    UNWANTED = 0
    WANTED = 1
    TOMBSTONE_OF_WANTED = 2

cdef enum:
    COLUMNS_FEW = 1024  # So many have room on the stack.
    KEY_ROOM = 2 * ESCAPED_ROW_BYTES_MAX + TABLE_BYTES + 1 + VERSION_BYTES


cdef class Selection:
    """The columns that a read needs: for each column of the table WANTED, UNWANTED or TOMBSTONE_OF_WANTED, and its name
    in the result."""

    cdef readonly bytes kinds
    cdef tuple names
    cdef int64_t wanted

    def __init__(self, bytes kinds, tuple names):
        if len(kinds) != len(names):
            raise ValueError(f"{len(kinds)} kinds of {len(names)} columns")
        self.kinds, self.names, self.wanted = kinds, names, kinds.count(WANTED)


cdef bint needs_none(
    const uint8_t *data, int64_t stop, const uint8_t *kinds, const int64_t *ended_in, int64_t known
) noexcept nogil:
    """Whether the reader needs no cell of a record: it does not want the columns, or has their values already. Does not
    verify the checksum, because such a record is skipped. False if the record is malformed."""
    cdef const uint8_t *codes
    cdef int64_t place = HEADER_BYTES, count = cells_head(data, &place, stop, &codes), index, number, length
    for index in range(count):
        number = next_cell(data, codes, index, &place, stop, &length)
        if number < 1 or number > known:
            return False
        if length != ABSENT and kinds[number - 1] != UNWANTED and not ended_in[number - 1]:
            return False
        place += max(length, 0)
    return count >= 0 and place == stop


def settled_rows(cursor, bytes prefix, rows, Selection selection, bounds, int64_t expired_to):
    """Return each row as a reader at the snapshot `bounds.committed_below` sees it; None for a row that is not the
    common case. Versions at or above the snapshot may be the reader's own. `prefix`: of the table's keys."""
    cdef int64_t below = bounds.below, start_ts = bounds.committed_below
    cdef int64_t few[COLUMNS_FEW]
    cdef int64_t *ended_in = few
    cdef bytearray many
    if len(prefix) != TABLE_BYTES or below < 1:
        return [None for row in rows]
    if len(selection.kinds) > COLUMNS_FEW:
        many = bytearray(len(selection.kinds) * sizeof(int64_t))
        ended_in = <int64_t *> PyByteArray_AS_STRING(many)
    found = []
    for row in rows:
        found.append(settled_row(cursor, prefix, row, selection, below, start_ts, expired_to, ended_in))
    return found


cdef object settled_row(
    object cursor, bytes prefix, bytes row, Selection selection, int64_t below, int64_t start_ts, int64_t expired_to,
    int64_t *ended_in,
):
    # ended_in: for each column, the number of the record with its visible version; 0: none yet
    cdef uint8_t room[KEY_ROOM]
    cdef const uint8_t *codes
    cdef const uint8_t *kinds = <const uint8_t *> PyBytes_AS_STRING(selection.kinds)
    cdef const uint8_t *key_data
    cdef const uint8_t *data
    cdef int64_t known = PyBytes_GET_SIZE(selection.kinds), left = selection.wanted, key_size, size, version, commit_ts
    cdef int64_t place, count, index, number, length, record = 0
    cdef bytes key, value
    cdef dict found = {}
    if PyBytes_GET_SIZE(row) > ESCAPED_ROW_BYTES_MAX:
        return None
    memset(ended_in, 0, known * sizeof(int64_t))
    key_size = put_key(
        <const uint8_t *> PyBytes_AS_STRING(prefix), TABLE_BYTES, <const uint8_t *> PyBytes_AS_STRING(row),
        PyBytes_GET_SIZE(row), below - 1, room, 0,
    )
    more = left > 0 and cursor.set_range(PyBytes_FromStringAndSize(<const char *> room, key_size))
    while more:
        key, value = cursor.item()
        key_data, data = <const uint8_t *> PyBytes_AS_STRING(key), <const uint8_t *> PyBytes_AS_STRING(value)
        size = PyBytes_GET_SIZE(value)
        if PyBytes_GET_SIZE(key) != key_size or memcmp(key_data, room, key_size - VERSION_BYTES) != 0:
            break
        if left < selection.wanted and size >= HEADER_BYTES and needs_none(data, size, kinds, ended_in, known):
            more = cursor.next()
            continue
        if size < HEADER_BYTES or crc32(data + 4, size - 4, crc32(key_data, key_size, 0)) != <uint32_t> little_endian(
            data, 4
        ):
            return None
        version = INT64_MAX - big_endian(key_data + key_size - VERSION_BYTES, VERSION_BYTES)
        commit_ts = little_endian(data + 4, 8)
        if not 0 < commit_ts < start_ts:
            if (version >= start_ts or commit_ts <= 0) and not needs_none(data, size, kinds, ended_in, known):
                return None
            more = cursor.next()
            continue
        place = HEADER_BYTES
        count = cells_head(data, &place, size, &codes)
        if count < 0:
            return None
        record += 1
        for index in range(count):
            number = next_cell(data, codes, index, &place, size, &length)
            if number < 1 or number > known:
                return None
            if length == ABSENT:
                continue
            if kinds[number - 1] == TOMBSTONE_OF_WANTED:
                return None
            if ended_in[number - 1] == record:  # twice in one record
                return None
            if kinds[number - 1] == WANTED and not ended_in[number - 1]:
                ended_in[number - 1] = record
                left -= 1
                if length >= 0 and not has_expired(commit_ts, expired_to):
                    found[selection.names[number - 1]] = PyBytes_FromStringAndSize(<const char *> data + place, length)
            place += max(length, 0)
        if place != size:
            return None
        more = left > 0 and cursor.next()
    return found
