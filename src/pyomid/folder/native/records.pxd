from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyomid.native.batch cimport TOMBSTONE

cdef enum:
    TABLE_BYTES = 4
    VERSION_BYTES = 8
    HEADER_BYTES = 12
    VARINT_BYTES_MAX = 5
    KEY_BYTES_MIN = TABLE_BYTES + 1 + 1 + VERSION_BYTES
    ESCAPED_ROW_BYTES_MAX = 511 - TABLE_BYTES - 1 - VERSION_BYTES
    DENSE_COLUMNS_MAX = 127
    LONG = 15

cdef enum:
    ABSENT = -2  # Returned as a length: the dense cells have no cell of this column.


cdef struct Cell:
    int64_t number  # of its column
    int64_t offset  # of its value
    int64_t length  # or TOMBSTONE


cdef inline bint equal(const uint8_t *one, const uint8_t *other, int64_t size) noexcept nogil:
    """Compare from the end, because neighbouring rows often have a long common prefix."""
    while size > 0:
        size -= 1
        if one[size] != other[size]:
            return False
    return True


cdef int64_t varint(const uint8_t *data, int64_t *at, int64_t stop) noexcept nogil
cdef int64_t cells_head(const uint8_t *data, int64_t *at, int64_t stop, const uint8_t **codes) noexcept nogil
cdef uint32_t crc32(const uint8_t *data, int64_t size, uint32_t before) noexcept nogil
cdef int64_t put_key(
    const uint8_t *prefix, int64_t prefix_len, const uint8_t *row, int64_t row_len, int64_t version, uint8_t *out,
    int64_t to,
) noexcept nogil
cdef void sort_cells(Cell *cells, int64_t count) noexcept nogil
cdef int64_t put_cells(const uint8_t *data, Cell *cells, int64_t count, uint8_t *out, int64_t at) noexcept nogil


cdef inline int64_t next_cell(
    const uint8_t *data, const uint8_t *codes, int64_t index, int64_t *at, int64_t stop, int64_t *length
) noexcept nogil:
    """Return the column number of cell `index`; -1 if the cell is malformed. Set `length[0]` to the value's length,
    TOMBSTONE or ABSENT, and advance `at[0]` to the value, which ends at or before `stop`."""
    cdef int64_t number, size, place = at[0]  # its address is taken, so that `at[0]` can stay in a register
    if codes != NULL:
        number, size = index + 1, codes[index >> 1]
        size = size & 15 if index & 1 else size >> 4
        if size < 2:
            length[0] = TOMBSTONE if size else ABSENT
            return number
        if size == LONG:
            size = varint(data, &place, stop)
            at[0] = place
            if size < LONG:
                return -1
    elif at[0] + 1 < stop and (data[at[0]] | data[at[0] + 1]) < 0x80:  # nearly always: one byte each
        number, size = data[at[0]], data[at[0] + 1]
        at[0] += 2
    else:
        number = varint(data, &place, stop)
        size = varint(data, &place, stop)
        at[0] = place
    if number < 0 or size < 0 or size - 1 > stop - at[0]:
        return -1
    length[0] = size - 1 if size > 0 else TOMBSTONE
    return number
