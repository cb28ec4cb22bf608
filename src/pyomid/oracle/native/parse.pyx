"""Phase 1: parse the begins, commits and completions among a chunk's complete frames into flat arrays. Any other frame
is *rare*: `wire.codec` decodes it.

The parser accepts only frames that it understands completely: one timestamp, commit or complete request, with its
fields in any order, ids packed or not, any varint that fits 64 bits. Retries, two requests in one frame, another wire
type, truncation, and every field that the parser does not read make a frame rare.

Every read is bounded by the frame's end, and a frame yields at most one id per byte.
"""

from libc.stdint cimport int64_t, uint8_t

from pyomid.native.numbers cimport BYTES, VARINT, big_endian
from pyomid.native.varints cimport read_varint
from pyomid.wire.native.fields cimport (
    COMMIT_REQUEST_CELLS, COMMIT_REQUEST_CELL_ID, COMMIT_REQUEST_IS_RETRY, COMMIT_REQUEST_START_TIMESTAMP,
    COMMIT_REQUEST_TABLE_ID, COMPLETE_REQUEST_START_TIMESTAMP, REQUEST_COMMIT_REQUEST, REQUEST_COMPLETE_REQUEST,
    REQUEST_REQUEST_ID, REQUEST_TIMESTAMP_REQUEST, TIMESTAMP_REQUEST_NOT_BEFORE,
)
from pyomid.oracle.native.records cimport Op

cpdef enum:
    RARE = 0
    BEGIN = 1
    COMMIT = 2
    COMPLETE = 3  # Its starts are stored as a commit's cell ids.


cdef inline int64_t read_key(const uint8_t *data, int64_t at, int64_t end, int64_t *key) noexcept nogil:
    """Return where the key ends, field number and wire type in `key[0]`; -1 for field 0 or more than 32 bits."""
    at = read_varint(data, at, end, key)
    return -1 if at < 0 or key[0] < 8 or key[0] >> 32 else at


cdef int64_t parse_begin(const uint8_t *data, int64_t at, int64_t end, Op *op) noexcept nogil:
    """Parse a TimestampRequest: its `not_before`, if any."""
    cdef int64_t key = 0
    op.ts = 0
    while at < end:
        at = read_key(data, at, end, &key)
        if at < 0 or key != (TIMESTAMP_REQUEST_NOT_BEFORE << 3 | VARINT):
            return RARE
        at = read_varint(data, at, end, &op.ts)
        if at < 0:
            return RARE
    return BEGIN


cdef int64_t parse_ids(
    const uint8_t *data, int64_t at, int64_t end, int64_t wire_type, int64_t *ids, int64_t *count
) noexcept nogil:
    """Append ids, one or packed, to `ids` from `count[0]` on. Return where the field ends, or -1."""
    cdef int64_t length = 0, stop
    if wire_type == VARINT:
        at = read_varint(data, at, end, ids + count[0])
        count[0] += 1
        return at
    at = read_varint(data, at, end, &length)
    if wire_type != BYTES or at < 0 or length < 0 or length > end - at:
        return -1
    stop = at + length
    while at < stop:
        at = read_varint(data, at, stop, ids + count[0])
        if at < 0:
            return -1
        count[0] += 1
    return at


cdef int64_t parse_commit(
    const uint8_t *data, int64_t at, int64_t end, Op *op, int64_t *cells, int64_t *tables
) noexcept nogil:
    """Parse a CommitRequest that has no rare field."""
    cdef int64_t key = 0, length = 0, retried = 0
    op.ts = op.carried_bytes = 0
    while at < end:
        at = read_key(data, at, end, &key)
        if at < 0:
            return RARE
        if key >> 3 == COMMIT_REQUEST_CELL_ID:
            at = parse_ids(data, at, end, key & 7, cells, &op.cell_end)
        elif key >> 3 == COMMIT_REQUEST_TABLE_ID:
            at = parse_ids(data, at, end, key & 7, tables, &op.table_end)
        elif key == (COMMIT_REQUEST_CELLS << 3 | BYTES):
            at = read_varint(data, at, end, &length)
            if at < 0 or length < 0 or length > end - at:
                return RARE
            op.carried_at, op.carried_bytes = at, length
            at += length
        elif key == (COMMIT_REQUEST_START_TIMESTAMP << 3 | VARINT):
            at = read_varint(data, at, end, &op.ts)
        elif key == (COMMIT_REQUEST_IS_RETRY << 3 | VARINT):
            at = read_varint(data, at, end, &retried)
        else:
            return RARE
        if at < 0:
            return RARE
    return RARE if retried else COMMIT


cdef int64_t parse_complete(const uint8_t *data, int64_t at, int64_t end, Op *op, int64_t *starts) noexcept nogil:
    """Parse a CompleteRequest: its starts."""
    cdef int64_t key = 0
    while at < end:
        at = read_key(data, at, end, &key)
        if at < 0 or key >> 3 != COMPLETE_REQUEST_START_TIMESTAMP:
            return RARE
        at = parse_ids(data, at, end, key & 7, starts, &op.cell_end)
        if at < 0:
            return RARE
    return COMPLETE


cdef int64_t parse_one(
    const uint8_t *data, int64_t at, int64_t end, Op *op, int64_t *cells, int64_t *tables
) noexcept nogil:
    """Parse one Request into `op`. Return its kind, or RARE. Ids go to `op.cell_begin` and `op.table_begin`."""
    cdef int64_t key = 0, length = 0
    op.tag, op.kind = 0, RARE
    op.cell_end, op.table_end = op.cell_begin, op.table_begin
    while at < end:
        at = read_key(data, at, end, &key)
        if at < 0:
            return RARE
        if key & 7 == BYTES:
            at = read_varint(data, at, end, &length)
            if at < 0 or length < 0 or length > end - at or op.kind != RARE:
                return RARE
            if key >> 3 == REQUEST_TIMESTAMP_REQUEST:
                op.kind = parse_begin(data, at, at + length, op)
            elif key >> 3 == REQUEST_COMPLETE_REQUEST:
                op.kind = parse_complete(data, at, at + length, op, cells)
            elif key >> 3 == REQUEST_COMMIT_REQUEST:
                op.kind = parse_commit(data, at, at + length, op, cells, tables)
            if op.kind == RARE:
                return RARE
            at += length
        elif key == (REQUEST_REQUEST_ID << 3 | VARINT):
            at = read_varint(data, at, end, &op.tag)
        else:
            return RARE
        if at < 0:
            return RARE
    return op.kind


cdef bint holds_frame(const uint8_t *data, int64_t at, int64_t end) noexcept nogil:
    """Whether a complete frame begins at `at`."""
    return end - at >= HEADER_BYTES and big_endian(data + at, 4) <= end - at - HEADER_BYTES


cdef int64_t parse_chunk(const uint8_t *data, int64_t *at, int64_t end, int64_t ops_max, Parsed *parsed) noexcept nogil:
    """Return the number of ops; `at[0]` moves to the first frame that is not among them: rare, incomplete or beyond
    `ops_max`."""
    cdef int64_t count = 0, cell_count = 0, table_count = 0, stop
    cdef Op *op
    while count < ops_max and holds_frame(data, at[0], end):
        stop = at[0] + HEADER_BYTES + big_endian(data + at[0], 4)
        op = parsed.ops + count
        op.cell_begin, op.table_begin, op.frame_at = cell_count, table_count, at[0]
        if parse_one(data, at[0] + HEADER_BYTES, stop, op, parsed.cell_ids, parsed.table_ids) == RARE:
            break
        cell_count, table_count = op.cell_end, op.table_end
        at[0] = stop
        count += 1
    return count


def parse_frame(
    const uint8_t[::1] data, int64_t at, int64_t end, Op[::1] ops, int64_t[::1] cells, int64_t[::1] tables
):
    """Parse one Request into the first of `ops`. Return its kind, or RARE."""
    return parse_one(&data[0], at, end, &ops[0], &cells[0], &tables[0])


def parse_frames(const uint8_t[::1] data, int64_t at, int64_t end, int64_t ops_max, tuple parsed):
    """Return (number of ops, where the first other frame begins). `parsed`: ops, cell ids and table ids."""
    cdef Op[::1] ops = parsed[0]
    cdef int64_t[::1] cells = parsed[1], tables = parsed[2]
    cdef Parsed into = Parsed(&ops[0], ops.shape[0], &cells[0], &tables[0])
    cdef int64_t count = parse_chunk(&data[0], &at, end, ops_max, &into)
    return count, at
