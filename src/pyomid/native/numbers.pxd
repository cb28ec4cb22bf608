"""Numbers as bytes. The caller must check that the buffer has as many bytes as a function reads or writes."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef enum:
    VARINT = 0  # wire types of protobuf
    BYTES = 2


cdef extern from * nogil:
    """
    /* Loads of 4 and 8 bytes are one instruction each. Compilers leave loops over bytes as they are. */
    #include <stdint.h>
    #include <string.h>

    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define IS_LITTLE_ENDIAN 1
    #define ALWAYS_INLINE static inline __attribute__((always_inline))
    #else
    #define IS_LITTLE_ENDIAN 0
    #define ALWAYS_INLINE static inline
    #endif

    ALWAYS_INLINE uint64_t load_little_endian(const uint8_t *data, int64_t size) {
        uint64_t number = 0;
        uint32_t half;
        if (IS_LITTLE_ENDIAN && size == 8) {
            memcpy(&number, data, 8);
            return number;
        }
        if (IS_LITTLE_ENDIAN && size == 4) {
            memcpy(&half, data, 4);
            return half;
        }
        for (int64_t index = 0; index < size; index++) number |= (uint64_t) data[index] << 8 * index;
        return number;
    }

    ALWAYS_INLINE uint64_t load_big_endian(const uint8_t *data, int64_t size) {
        uint64_t number = 0;
    #if IS_LITTLE_ENDIAN
        if (size == 8) return __builtin_bswap64(load_little_endian(data, 8));
        if (size == 4) return __builtin_bswap32((uint32_t) load_little_endian(data, 4));
    #endif
        for (int64_t index = 0; index < size; index++) number = number << 8 | data[index];
        return number;
    }
    """
    uint64_t load_big_endian(const uint8_t *data, int64_t size)
    uint64_t load_little_endian(const uint8_t *data, int64_t size)


cdef inline int64_t big_endian(const uint8_t *data, int64_t size) noexcept nogil:
    return <int64_t> load_big_endian(data, size)


cdef inline int64_t little_endian(const uint8_t *data, int64_t size) noexcept nogil:
    return <int64_t> load_little_endian(data, size)


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
    """Write a varint at `at`. Return the offset of its end."""
    while number > 0x7F:
        out[at] = <uint8_t> (number & 0x7F | 0x80)
        number >>= 7
        at += 1
    out[at] = <uint8_t> number
    return at + 1
