from libc.stdint cimport int64_t, uint8_t

from pyomid.oracle.native.records cimport Op

cdef enum:
    HEADER_BYTES = 4


# The requests of one chunk; all their ids are in two arrays, each with room for one id per byte.
cdef struct Parsed:
    Op *ops
    int64_t ops_max
    int64_t *cell_ids
    int64_t *table_ids


cdef bint holds_frame(const uint8_t *data, int64_t at, int64_t end) noexcept nogil
cdef int64_t parse_chunk(const uint8_t *data, int64_t *at, int64_t end, int64_t ops_max, Parsed *parsed) noexcept nogil
