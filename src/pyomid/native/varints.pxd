"""Read protobuf's varints; `put_varint` in `numbers` writes them."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    int __builtin_ctzll(unsigned long long word) nogil

cdef enum:
    VARINT_BYTES_MAX = 10
    SHORT_BYTES_MAX = 5  # of a tag or a length: protobuf refuses longer ones, even if they are padded


cdef inline int64_t read_varint_at_end(const uint8_t *data, int64_t at, int64_t end, int64_t *number) noexcept nogil:
    """`read_varint`, byte by byte, near the end of the data."""
    cdef uint64_t value = 0, byte
    cdef int count
    for count in range(VARINT_BYTES_MAX):
        if at >= end:
            return -1
        byte = data[at]
        at += 1
        if count == VARINT_BYTES_MAX - 1 and byte > 1:
            return -1
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            number[0] = <int64_t> value
            return at
    return -1


cdef inline uint64_t joined_sevens(uint64_t word) noexcept nogil:
    """Return the low 7 bits of each of the 8 bytes, the first byte lowest: 56 bits."""
    word = word & 0x007F007F007F007Fu | (word & 0x7F007F007F007F00u) >> 1
    word = word & 0x00003FFF00003FFFu | (word & 0x3FFF00003FFF0000u) >> 2
    return word & 0x0FFFFFFFu | (word & 0x0FFFFFFF00000000u) >> 4


cdef inline int64_t read_varint(const uint8_t *data, int64_t at, int64_t end, int64_t *number) noexcept nogil:
    """Return where the varint ends, its 64 bits in `number[0]`; -1 if it is truncated or does not fit 64 bits."""
    cdef uint64_t word, stops, value, byte
    if end - at < VARINT_BYTES_MAX:
        return read_varint_at_end(data, at, end, number)
    memcpy(&word, data + at, 8)  # little-endian
    stops = ~word & 0x8080808080808080u
    if stops:
        number[0] = <int64_t> joined_sevens(word & (stops ^ (stops - 1)))
        return at + (__builtin_ctzll(stops) >> 3) + 1
    value = joined_sevens(word)
    byte = data[at + 8]
    value |= (byte & 0x7F) << 56
    if byte < 0x80:
        number[0] = <int64_t> value
        return at + 9
    byte = data[at + 9]
    if byte > 1:
        return -1
    number[0] = <int64_t> (value | byte << 63)
    return at + 10


cdef inline int64_t read_short(const uint8_t *data, int64_t at, int64_t end, int64_t *number) noexcept nogil:
    """`read_varint`, for a tag or a length."""
    return read_varint(data, at, min(end, at + SHORT_BYTES_MAX), number)
