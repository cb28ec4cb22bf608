"""Numbers as bytes. The caller must check that the buffer has as many bytes as a function reads or writes."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef enum:
    VARINT = 0  # wire types of protobuf
    BYTES = 2


cdef inline int64_t big_endian(const uint8_t *data, int64_t size) noexcept nogil:
    cdef uint64_t number = 0
    cdef int64_t index
    for index in range(size):
        number = number << 8 | data[index]
    return <int64_t> number


cdef inline int64_t little_endian(const uint8_t *data, int64_t size) noexcept nogil:
    cdef uint64_t number = 0
    cdef int64_t index
    for index in range(size):
        number |= <uint64_t> data[index] << 8 * index
    return <int64_t> number


cdef inline void put_big_endian(uint8_t *out, int64_t number, int64_t size) noexcept nogil:
    cdef int64_t index
    for index in range(size):
        out[index] = <uint8_t> (number >> 8 * (size - 1 - index))


cdef inline void put_little_endian(uint8_t *out, int64_t number, int64_t size) noexcept nogil:
    cdef int64_t index
    for index in range(size):
        out[index] = <uint8_t> (number >> 8 * index)


cdef inline int64_t varint_bytes(uint64_t number) noexcept nogil:
    cdef int64_t size = 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


cdef inline int64_t put_varint(uint8_t *out, int64_t at, uint64_t number) noexcept nogil:
    """Write a varint at `at`. Return where it ends."""
    while number > 0x7F:
        out[at] = <uint8_t> (number & 0x7F | 0x80)
        number >>= 7
        at += 1
    out[at] = <uint8_t> number
    return at + 1
