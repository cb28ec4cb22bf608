"""Encode the answers to begins, commits and aborts, with the same bytes as `wire.codec`."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from pyomid.native.numbers cimport BYTES, put_big_endian, put_varint
from pyomid.omid.wire.native.fields cimport (
    COMMIT_RESPONSE_ABORTED, COMMIT_RESPONSE_COMMIT_TIMESTAMP, COMMIT_RESPONSE_CONFLICT_TIMESTAMP,
    COMMIT_RESPONSE_REASON, COMMIT_RESPONSE_START_TIMESTAMP, RESPONSE_COMMIT_RESPONSE, RESPONSE_REQUEST_ID, RESPONSE_TIMESTAMP_RESPONSE,
    TIMESTAMP_RESPONSE_EPOCH, TIMESTAMP_RESPONSE_FENCED_TIMESTAMP, TIMESTAMP_RESPONSE_START_TIMESTAMP,
)

cdef enum:
    REPLY_BYTES_MAX = 128
    # Above the longest reply: header 4, lengths, two keys, three varints of 10 bytes, a reason of 13, a tag.
    COMMITTED = 0
    CONFLICT = 1
    LOW_WATERMARK = 2
    FENCE = 3


cdef inline int64_t put_field(uint8_t *out, int64_t at, int64_t field, int64_t number) noexcept nogil:
    """Write a varint field; an int64 is written as its 64 bits."""
    at = put_varint(out, at, field << 3)
    return put_varint(out, at, <uint64_t> number)


cdef inline int64_t end_reply(
    uint8_t *out, int64_t frame_at, int64_t at, int64_t kind, int64_t tag, bint extended
) noexcept nogil:
    """Complete the frame: the inner length (always below 128), then tag and frame length."""
    out[frame_at + 4], out[frame_at + 5] = <uint8_t> (kind << 3 | BYTES), <uint8_t> (at - frame_at - 6)
    if extended and tag:
        at = put_field(out, at, RESPONSE_REQUEST_ID, tag)
    put_big_endian(out + frame_at, at - frame_at - 4, 4)
    return at


cdef inline int64_t put_begin(
    uint8_t *out, int64_t frame_at, int64_t start_ts, int64_t epoch, int64_t fenced_ts, int64_t tag, bint extended
) noexcept nogil:
    cdef int64_t at = put_field(out, frame_at + 6, TIMESTAMP_RESPONSE_START_TIMESTAMP, start_ts)
    if extended:
        at = put_field(out, at, TIMESTAMP_RESPONSE_EPOCH, epoch)
        if fenced_ts:
            at = put_field(out, at, TIMESTAMP_RESPONSE_FENCED_TIMESTAMP, fenced_ts)
    return end_reply(out, frame_at, at, RESPONSE_TIMESTAMP_RESPONSE, tag, extended)


cdef inline int64_t put_commit(
    uint8_t *out, int64_t frame_at, int64_t start_ts, int64_t commit_ts, int64_t tag, bint extended
) noexcept nogil:
    cdef int64_t at = put_field(out, frame_at + 6, COMMIT_RESPONSE_ABORTED, 0)
    at = put_field(out, at, COMMIT_RESPONSE_START_TIMESTAMP, start_ts)
    at = put_field(out, at, COMMIT_RESPONSE_COMMIT_TIMESTAMP, commit_ts)
    return end_reply(out, frame_at, at, RESPONSE_COMMIT_RESPONSE, tag, extended)


cdef inline int64_t put_abort(
    uint8_t *out, int64_t frame_at, int64_t start_ts, const char *reason, int64_t reason_bytes, int64_t cause,
    int64_t tag, bint extended,
) noexcept nogil:
    cdef int64_t at = put_field(out, frame_at + 6, COMMIT_RESPONSE_ABORTED, 1)
    at = put_field(out, at, COMMIT_RESPONSE_START_TIMESTAMP, start_ts)
    at = put_field(out, at, COMMIT_RESPONSE_COMMIT_TIMESTAMP, 0)
    if extended:
        at = put_varint(out, at, COMMIT_RESPONSE_REASON << 3 | BYTES)
        out[at] = <uint8_t> reason_bytes
        memcpy(out + at + 1, reason, reason_bytes)
        at = put_field(out, at + 1 + reason_bytes, COMMIT_RESPONSE_CONFLICT_TIMESTAMP, cause)
    return end_reply(out, frame_at, at, RESPONSE_COMMIT_RESPONSE, tag, extended)
