"""The messages of every transaction, written and read without the protobuf runtime: commits and the replies to begins
and commits.

A message with any other field is left to protobuf, and so is every malformed one: a length is refused if it is longer
than what is left. `omid.proto` has the numbers of the fields.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from pyomid.native.numbers cimport put_varint, varint_bytes

cpdef enum:
    BEGIN_REPLY = 1
    COMMIT_REPLY = 2

cdef enum:
    VARINT = 0
    BYTES = 2
    VARINT_BYTES_MAX = 10
    FIELDS_BYTES_MAX = 8 * (2 + VARINT_BYTES_MAX)  # Of all tags, numbers and lengths of a commit except its ids.


cdef int64_t ids_bytes(tuple ids) except -1:
    cdef int64_t size = 0, each
    for each in ids:
        size += varint_bytes(<uint64_t> each)
    return size


cdef int64_t put_ids(uint8_t *out, int64_t at, int field, tuple ids, int64_t size) except -1:
    cdef int64_t each
    if size == 0:
        return at
    at = put_varint(out, put_varint(out, at, field << 3 | BYTES), size)
    for each in ids:
        at = put_varint(out, at, <uint64_t> each)
    return at


def commit_request(int64_t start_ts, bint is_retry, tuple cell_ids, tuple table_ids, bytes cells, uint64_t request_id):
    """Return the `Request` message of a commit without branches, at level `IDS`."""
    cdef int64_t cell_ids_size = ids_bytes(cell_ids), table_ids_size = ids_bytes(table_ids)
    cdef int64_t cells_size = PyBytes_GET_SIZE(cells), size, at = 0
    cdef bytes inner = PyBytes_FromStringAndSize(NULL, FIELDS_BYTES_MAX + cell_ids_size + table_ids_size + cells_size)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(inner)
    cdef uint8_t head[FIELDS_BYTES_MAX]
    at = put_varint(out, put_varint(out, at, 1 << 3 | VARINT), <uint64_t> start_ts)
    at = put_varint(out, put_varint(out, at, 2 << 3 | VARINT), is_retry)
    at = put_ids(out, at, 3, cell_ids, cell_ids_size)
    at = put_ids(out, at, 4, table_ids, table_ids_size)
    if cells_size > 0:
        at = put_varint(out, put_varint(out, at, 66 << 3 | BYTES), cells_size)
        memcpy(out + at, PyBytes_AS_STRING(cells), cells_size)
        at += cells_size
    size = at
    at = put_varint(head, put_varint(head, 0, 2 << 3 | BYTES), size)
    cdef bytes message = PyBytes_FromStringAndSize(NULL, at + size + FIELDS_BYTES_MAX)
    cdef uint8_t *whole = <uint8_t *> PyBytes_AS_STRING(message)
    memcpy(whole, head, at)
    memcpy(whole + at, out, size)
    at += size
    if request_id > 0:
        at = put_varint(whole, put_varint(whole, at, 64 << 3 | VARINT), request_id)
    return message[:at]


cdef int64_t number_at(const uint8_t *data, int64_t *at, int64_t stop, uint64_t *number) noexcept nogil:
    """Read a varint at `at[0]`, which moves to its end. False if it does not end before `stop`, or exceeds 64 bits."""
    cdef uint64_t found = 0, byte
    cdef int64_t index
    for index in range(min(VARINT_BYTES_MAX, stop - at[0])):
        byte = data[at[0] + index]
        if index == VARINT_BYTES_MAX - 1 and byte > 1:
            return False
        found |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            at[0] += index + 1
            number[0] = found
            return True
    return False


def plain_answer(bytes payload):
    """Return (kind, request id, three numbers) of a `Response`: of a begin its start, epoch and fenced timestamp, of a
    commit its start, its commit timestamp and 0. None for every other message."""
    cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(payload)
    cdef int64_t stop = PyBytes_GET_SIZE(payload), at = 0, end
    cdef int64_t numbers[3]
    cdef uint64_t tag, number = 0, request_id = 0, length
    cdef int kind = 0, seen = 0, place
    if not number_at(data, &at, stop, &tag) or not number_at(data, &at, stop, &length):
        return None
    if (tag != (1 << 3 | BYTES) and tag != (2 << 3 | BYTES)) or length > <uint64_t> (stop - at):
        return None
    kind, end = BEGIN_REPLY if tag >> 3 == 1 else COMMIT_REPLY, at + <int64_t> length
    numbers[0] = numbers[1] = numbers[2] = 0
    while at < end:
        if not number_at(data, &at, end, &tag) or not number_at(data, &at, end, &number):
            return None
        if kind == BEGIN_REPLY:
            place = 0 if tag == 1 << 3 else 1 if tag == 64 << 3 else 2 if tag == 65 << 3 else -1
        elif tag == 1 << 3 and number == 0:  # not aborted
            continue
        else:
            place = 0 if tag == 2 << 3 else 1 if tag == 3 << 3 else -1
        if place < 0 or seen & 1 << place or number > <uint64_t> INT64_MAX:
            return None
        seen |= 1 << place
        numbers[place] = <int64_t> number
    if seen & 3 != 3:
        return None
    if at < stop:
        if not number_at(data, &at, stop, &tag) or tag != 64 << 3 or not number_at(data, &at, stop, &request_id):
            return None
    if at != stop:
        return None
    return kind, request_id, numbers[0], numbers[1], numbers[2]
