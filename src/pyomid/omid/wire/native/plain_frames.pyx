"""The most common messages, encoded and decoded without the protobuf runtime: commits without branches, and the replies
to begins and commits.

Messages with other fields and malformed messages are left to protobuf. A length that exceeds the rest of the message is
malformed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from pyomid.native.numbers cimport BYTES, VARINT, put_varint, varint_bytes
from pyomid.native.varints cimport VARINT_BYTES_MAX, read_short, read_varint
from pyomid.omid.wire.native.fields cimport (
    COMMIT_REQUEST_CELL_ID, COMMIT_REQUEST_IS_RETRY, COMMIT_REQUEST_START_TIMESTAMP,
    COMMIT_REQUEST_TABLE_ID, COMMIT_RESPONSE_ABORTED, COMMIT_RESPONSE_COMMIT_TIMESTAMP, COMMIT_RESPONSE_START_TIMESTAMP,
    REQUEST_COMMIT_REQUEST, REQUEST_REQUEST_ID, RESPONSE_COMMIT_RESPONSE, RESPONSE_REQUEST_ID,
    RESPONSE_TIMESTAMP_RESPONSE, TIMESTAMP_RESPONSE_EPOCH, TIMESTAMP_RESPONSE_FENCED_TIMESTAMP,
    TIMESTAMP_RESPONSE_START_TIMESTAMP,
)

cpdef enum:
    BEGIN_REPLY = 1
    COMMIT_REPLY = 2

cdef enum:
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


def commit_request(int64_t start_ts, bint is_retry, tuple cell_ids, tuple table_ids, uint64_t request_id):
    """Return the `Request` message of a commit without branches, at level `IDS`."""
    cdef int64_t cell_ids_size = ids_bytes(cell_ids), table_ids_size = ids_bytes(table_ids)
    cdef int64_t size, at = 0
    cdef bytes inner = PyBytes_FromStringAndSize(NULL, FIELDS_BYTES_MAX + cell_ids_size + table_ids_size)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(inner)
    cdef uint8_t head[FIELDS_BYTES_MAX]
    at = put_varint(out, put_varint(out, at, COMMIT_REQUEST_START_TIMESTAMP << 3 | VARINT), <uint64_t> start_ts)
    at = put_varint(out, put_varint(out, at, COMMIT_REQUEST_IS_RETRY << 3 | VARINT), is_retry)
    at = put_ids(out, at, COMMIT_REQUEST_CELL_ID, cell_ids, cell_ids_size)
    at = put_ids(out, at, COMMIT_REQUEST_TABLE_ID, table_ids, table_ids_size)
    size = at
    at = put_varint(head, put_varint(head, 0, REQUEST_COMMIT_REQUEST << 3 | BYTES), size)
    cdef bytes message = PyBytes_FromStringAndSize(NULL, at + size + FIELDS_BYTES_MAX)
    cdef uint8_t *whole = <uint8_t *> PyBytes_AS_STRING(message)
    memcpy(whole, head, at)
    memcpy(whole + at, out, size)
    at += size
    if request_id > 0:
        at = put_varint(whole, put_varint(whole, at, REQUEST_REQUEST_ID << 3 | VARINT), request_id)
    return message[:at]


def plain_answer(bytes payload):
    """Return (kind, request id, three numbers) of a `Response`: for a begin its start, epoch and newest fence, for a
    commit its start, its commit timestamp and 0. None for every other message."""
    cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(payload)
    cdef int64_t stop = PyBytes_GET_SIZE(payload), at, end
    cdef int64_t numbers[3]
    cdef int64_t tag = 0, number = 0, request_id = 0, length = 0
    cdef int kind, seen = 0, place
    at = read_short(data, 0, stop, &tag)
    if at < 0:
        return None
    at = read_short(data, at, stop, &length)
    if at < 0 or not 0 <= length <= stop - at:
        return None
    if tag == (RESPONSE_TIMESTAMP_RESPONSE << 3 | BYTES):
        kind = BEGIN_REPLY
    elif tag == (RESPONSE_COMMIT_RESPONSE << 3 | BYTES):
        kind = COMMIT_REPLY
    else:
        return None
    end = at + length
    numbers[0] = numbers[1] = numbers[2] = 0
    while at < end:
        at = read_short(data, at, end, &tag)
        if at < 0 or tag & 7 != VARINT:
            return None
        at = read_varint(data, at, end, &number)
        if at < 0:
            return None
        if kind == COMMIT_REPLY and tag >> 3 == COMMIT_RESPONSE_ABORTED and number == 0:
            continue
        place = begin_place(tag >> 3) if kind == BEGIN_REPLY else commit_place(tag >> 3)
        if place < 0 or seen & 1 << place or number < 0:
            return None
        seen |= 1 << place
        numbers[place] = number
    if seen & 3 != 3:
        return None
    if at < stop:
        at = read_short(data, at, stop, &tag)
        if at < 0 or tag != (RESPONSE_REQUEST_ID << 3 | VARINT):
            return None
        at = read_varint(data, at, stop, &request_id)
        if at != stop:
            return None
    return kind, <uint64_t> request_id, numbers[0], numbers[1], numbers[2]


cdef int begin_place(int64_t field) noexcept nogil:
    if field == TIMESTAMP_RESPONSE_START_TIMESTAMP:
        return 0
    if field == TIMESTAMP_RESPONSE_EPOCH:
        return 1
    return 2 if field == TIMESTAMP_RESPONSE_FENCED_TIMESTAMP else -1


cdef int commit_place(int64_t field) noexcept nogil:
    if field == COMMIT_RESPONSE_START_TIMESTAMP:
        return 0
    return 1 if field == COMMIT_RESPONSE_COMMIT_TIMESTAMP else -1
