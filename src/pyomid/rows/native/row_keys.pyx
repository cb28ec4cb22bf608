"""Row keys of many rows at once (`rows.row_key`): encoding and decoding of their parts, and their order."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

# Encoding of fixed-width parts: each row's bytes are written to its place, which then advances past them


def put_blocks(uint8_t[::1] out, int64_t[::1] places, const uint8_t[:, ::1] blocks):
    """Write row i of `blocks` at `out[places[i]:]`, and advance `places[i]` past it."""
    cdef int64_t row
    with nogil:
        for row in range(blocks.shape[0]):
            memcpy(&out[places[row]], &blocks[row, 0], blocks.shape[1])
            places[row] += blocks.shape[1]


# Decoding of fixed-width parts


def take_blocks(const uint8_t[::1] buffer, int64_t[::1] places, const int64_t[::1] ends, uint8_t[:, ::1] out):
    """Copy the bytes at each row's place to `out`, and advance the places past them.

    Return -1, or the first row that ends before its part.
    """
    cdef int64_t row
    with nogil:
        for row in range(out.shape[0]):
            if out.shape[1] > ends[row] - places[row]:
                with gil:
                    return row
            memcpy(&out[row, 0], &buffer[places[row]], out.shape[1])
            places[row] += out.shape[1]
    return -1


# Encoding of strings and binaries: 00 becomes 00 FF, and 00 01 is the ending


def escaped_lengths(const uint8_t[::1] data, const int64_t[::1] offsets, int64_t[::1] lengths):
    """Add to each row's length the encoded length of its value, ending included."""
    cdef int64_t row, at, zeros
    with nogil:
        for row in range(lengths.shape[0]):
            zeros = 0
            for at in range(offsets[row], offsets[row + 1]):
                zeros += data[at] == 0
            lengths[row] += offsets[row + 1] - offsets[row] + zeros + 2


def put_escaped(
    uint8_t[::1] out, int64_t[::1] places, const uint8_t[::1] data, const int64_t[::1] offsets, uint8_t inversion,
    bint is_raw,
):
    """Write each value at its row's place, every byte XOR `inversion`; `is_raw`: unchanged and without an ending."""
    cdef int64_t row, at, source
    with nogil:
        for row in range(places.shape[0]):
            at = places[row]
            for source in range(offsets[row], offsets[row + 1]):
                out[at] = data[source] ^ inversion
                at += 1
                if data[source] == 0 and not is_raw:
                    out[at] = 0xFF ^ inversion
                    at += 1
            if not is_raw:
                out[at], out[at + 1] = inversion, 0x01 ^ inversion
                at += 2
            places[row] = at


# Decoding of strings and binaries


def unescape(
    const uint8_t[::1] buffer, int64_t[::1] places, const int64_t[::1] ends, uint8_t inversion, uint8_t[::1] out,
    int32_t[::1] offsets,
):
    """Write the values, concatenated, to `out` and their offsets to `offsets`; advance the places past the endings.

    `out` needs room for all bytes of all keys. Return -1, or the first row whose value has no ending.
    """
    cdef int64_t written = 0, row, at, end
    cdef uint8_t following = 0
    offsets[0] = 0
    with nogil:
        for row in range(places.shape[0]):
            at, end = places[row], ends[row]
            while True:
                while at < end and buffer[at] != inversion:
                    out[written] = buffer[at] ^ inversion
                    written += 1
                    at += 1
                if end - at < 2:
                    with gil:
                        return row
                following = buffer[at + 1] ^ inversion
                at += 2
                if following != 0xFF:
                    break
                out[written] = 0
                written += 1
            if following != 0x01:
                with gil:
                    return row
            places[row] = at
            offsets[row + 1] = <int32_t> written
    return -1


# Check whether keys are already in order: most writes arrive sorted and need no other sort

cpdef enum:
    ASCENDING = 0
    WITH_EQUALS = 1
    UNSORTED = 2


def key_order(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] order):
    """Return ASCENDING, WITH_EQUALS (ascending, some keys equal) or UNSORTED for the keys taken in `order`."""
    cdef int64_t index, one, other, one_size, other_size
    cdef int found
    cdef bint has_equals = False
    with nogil:
        for index in range(1, order.shape[0]):
            one, other = order[index - 1], order[index]
            one_size, other_size = offsets[one + 1] - offsets[one], offsets[other + 1] - offsets[other]
            found = memcmp(&data[offsets[one]], &data[offsets[other]], min(one_size, other_size))
            if found > 0 or (found == 0 and one_size > other_size):
                with gil:
                    return UNSORTED
            has_equals = has_equals or (found == 0 and one_size == other_size)
    return WITH_EQUALS if has_equals else ASCENDING


# The last row of each key


def last_of_equals(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] order, uint8_t[::1] last):
    """Set `last[i]` to whether no later key equals that of `order[i]`; `order` must be ascending by key."""
    cdef int64_t index, one, other, size
    with nogil:
        for index in range(order.shape[0]):
            last[index] = True
            if index + 1 == order.shape[0]:
                break
            one, other = order[index], order[index + 1]
            size = offsets[one + 1] - offsets[one]
            if size == offsets[other + 1] - offsets[other]:
                last[index] = memcmp(&data[offsets[one]], &data[offsets[other]], size) != 0
