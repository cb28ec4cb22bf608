from libc.stdint cimport int64_t, uint8_t

cdef enum:
    COMMIT_ROW = 9


# The buffers of a Multi call, and how far they are filled: bytes of both, and rows.
cdef struct Request:
    uint8_t *actions
    uint8_t *block
    int64_t *used


cdef Request request_of(tuple arrays) except *
cdef int64_t put_bytes(uint8_t *out, int64_t at, const uint8_t *source, int64_t size) noexcept nogil
cdef int64_t action_bytes(int64_t number, int64_t row_bytes, int64_t cells, int64_t durability) noexcept nogil
cdef int64_t put_action(
    uint8_t *out, int64_t at, int64_t number, const uint8_t *row, int64_t row_bytes, int64_t cells, int64_t kind,
    int64_t durability,
) noexcept nogil
cdef void put_commit_row(uint8_t *row, int64_t start) noexcept nogil
cdef int64_t put_commit(uint8_t *out, int64_t at, const uint8_t *row, int64_t start, int64_t commit) noexcept nogil
cdef int64_t read_varint(const uint8_t *data, int64_t at, int64_t end, int64_t *number) noexcept nogil
