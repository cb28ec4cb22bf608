"""Encodes puts of whole batches in one compiled pass: actions (protobuf) and their cell block.

An action, inside the region action that `regions/bulk_writes` wraps around it:
    1A len { 08 index  12 len { 0A len row  10 02 (PUT)  [30 durability]  40 count } }
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from pyomid.native.batch cimport Batch, batch_of
from pyomid.native.numbers cimport BYTES, VARINT, put_big_endian, put_varint, varint_bytes
from pyomid.storage.hbase.codec.native.fields cimport (
    ACTION_INDEX, ACTION_MUTATION, CELL_PUT, MULTI_RESPONSE_REGION_ACTION_RESULT, MUTATION_ASSOCIATED_CELL_COUNT,
    MUTATION_DURABILITY, MUTATION_MUTATE_TYPE, MUTATION_PUT, MUTATION_ROW, REGION_ACTION_ACTION,
    REGION_ACTION_RESULT_EXCEPTION, REGION_ACTION_RESULT_RESULT_OR_EXCEPTION, RESULT_OR_EXCEPTION_EXCEPTION,
)

cpdef enum:
    ACTION_BYTES_MAX = 48  # Bytes of an action in addition to its row.
    CELL_BYTES_MAX = 32  # Bytes of a KeyValue with its length, in addition to row, family, qualifier and value.
    COMMIT_ROW_BYTES = COMMIT_ROW
    COMMIT_CELL_BYTES_MAX = CELL_BYTES_MAX + 32  # Bytes of a whole commit entry.


cdef Request request_of(tuple arrays) except *:
    """Return the pointers of `RequestBuffers.arrays()`. The callers of encoders make the buffers large enough."""
    cdef uint8_t[::1] actions = arrays[0], block = arrays[1]
    cdef int64_t[::1] used = arrays[2]
    return Request(&actions[0], &block[0], &used[0])


cdef int64_t put_bytes(uint8_t *out, int64_t at, const uint8_t *source, int64_t size) noexcept nogil:
    memcpy(out + at, source, size)
    return at + size


cdef int64_t put_number(uint8_t *out, int64_t at, int64_t number, int64_t size) noexcept nogil:
    put_big_endian(out + at, number, size)
    return at + size


cdef int64_t put_lengths(
    uint8_t *out, int64_t at, int64_t row_bytes, int64_t name_bytes, int64_t value_bytes
) noexcept nogil:
    """Write a KeyValue up to its row: its length, and those of key, value and row. `name_bytes`: family and qualifier.
    """
    cdef int64_t key_bytes = 12 + row_bytes + name_bytes
    put_big_endian(out + at, 8 + key_bytes + value_bytes, 4)
    put_big_endian(out + at + 4, key_bytes, 4)
    put_big_endian(out + at + 8, value_bytes, 4)
    put_big_endian(out + at + 12, row_bytes, 2)
    return at + 14


cdef int64_t mutation_bytes(int64_t row_bytes, int64_t cells, int64_t durability) noexcept nogil:
    return 1 + varint_bytes(row_bytes) + row_bytes + 2 + (2 if durability else 0) + 1 + varint_bytes(cells)


cdef int64_t action_bytes(int64_t number, int64_t row_bytes, int64_t cells, int64_t durability) noexcept nogil:
    """Return the size of the whole action, including its tag."""
    cdef int64_t mutation = mutation_bytes(row_bytes, cells, durability)
    cdef int64_t action = 1 + varint_bytes(number) + 1 + varint_bytes(mutation) + mutation
    return 1 + varint_bytes(action) + action


cdef int64_t put_action(
    uint8_t *out, int64_t at, int64_t number, const uint8_t *row, int64_t row_bytes, int64_t cells, int64_t kind,
    int64_t durability,
) noexcept nogil:
    """Write the action with this number: a mutation of `row` with so many cells of the block; return where it ends."""
    cdef int64_t mutation = mutation_bytes(row_bytes, cells, durability)
    out[at] = REGION_ACTION_ACTION << 3 | BYTES
    at = put_varint(out, at + 1, 1 + varint_bytes(number) + 1 + varint_bytes(mutation) + mutation)
    out[at] = ACTION_INDEX << 3 | VARINT
    at = put_varint(out, at + 1, number)
    out[at] = ACTION_MUTATION << 3 | BYTES
    at = put_varint(out, at + 1, mutation)
    out[at] = MUTATION_ROW << 3 | BYTES
    at = put_varint(out, at + 1, row_bytes)
    at = put_bytes(out, at, row, row_bytes)
    out[at], out[at + 1] = MUTATION_MUTATE_TYPE << 3 | VARINT, <uint8_t> kind
    at += 2
    if durability:
        out[at], out[at + 1] = MUTATION_DURABILITY << 3 | VARINT, <uint8_t> durability
        at += 2
    out[at] = MUTATION_ASSOCIATED_CELL_COUNT << 3 | VARINT
    return put_varint(out, at + 1, cells)


def encode_puts(
    tuple batch_arrays, tuple column_names, int64_t first, int64_t end, int64_t version, int64_t durability,
    tuple request_arrays,
):
    """Encode rows `first` … `end` of a batch, under `version`; numbers of actions count from `first`."""
    cdef Batch batch = batch_of(batch_arrays)
    cdef const uint8_t[::1] names = column_names[0]
    cdef const int64_t[::1] name_begin = column_names[1], family_bytes = column_names[2]
    cdef Request request = request_of(request_arrays)
    cdef uint8_t *block = request.block
    cdef int64_t at = 0, action_at = 0, row, cell, row_bytes, begin, stop, column, name_bytes, value_bytes
    cdef const uint8_t *key
    with nogil:
        for row in range(first, end):
            key, row_bytes = batch.buffer + batch.row_off[row], batch.row_len[row]
            begin, stop = batch.rec_cell[batch.row_rec[row]], batch.rec_cell[batch.row_rec[row + 1]]
            action_at = put_action(
                request.actions, action_at, row - first, key, row_bytes, stop - begin, MUTATION_PUT, durability
            )
            for cell in range(begin, stop):
                column = batch.cell_col[cell]
                name_bytes = name_begin[column + 1] - name_begin[column]
                value_bytes = max(batch.cell_len[cell], 0)
                at = put_lengths(block, at, row_bytes, name_bytes, value_bytes)
                at = put_bytes(block, at, key, row_bytes)
                block[at] = <uint8_t> family_bytes[column]
                at = put_bytes(block, at + 1, &names[name_begin[column]], name_bytes)
                at = put_number(block, at, version, 8)
                block[at] = CELL_PUT
                at = put_bytes(block, at + 1, batch.buffer + batch.cell_off[cell], value_bytes)
    request.used[0], request.used[1], request.used[2] = action_at, at, end - first


cdef void put_commit_row(uint8_t *row, int64_t start) noexcept nogil:
    row[0] = start & 15
    put_big_endian(row + 1, start, 8)


cdef int64_t put_commit(uint8_t *out, int64_t at, const uint8_t *row, int64_t start, int64_t commit) noexcept nogil:
    """Write the KeyValue of a commit entry, with its length: `F:C` = varint(commit - start), under version start."""
    at = put_lengths(out, at, COMMIT_ROW, 2, varint_bytes(commit - start))
    at = put_bytes(out, at, row, COMMIT_ROW)
    out[at], out[at + 1], out[at + 2] = 1, c"F", c"C"
    at = put_number(out, at + 3, start, 8)
    out[at] = CELL_PUT
    return put_varint(out, at + 1, commit - start)


def encode_commits(
    const int64_t[:, ::1] entries, const int64_t[::1] order, int64_t first, int64_t end, int64_t durability,
    tuple request_arrays,
):
    """Encode the entries (start, commit) in `order[first:end]` as puts of `F:C` = varint(commit - start)."""
    cdef Request request = request_of(request_arrays)
    cdef uint8_t row[COMMIT_ROW]
    cdef int64_t at = 0, action_at = 0, position, entry
    with nogil:
        for position in range(first, end):
            entry = order[position]
            put_commit_row(row, entries[entry, 0])
            action_at = put_action(
                request.actions, action_at, position - first, row, COMMIT_ROW, 1, MUTATION_PUT, durability
            )
            at = put_commit(request.block, at, row, entries[entry, 0], entries[entry, 1])
    request.used[0], request.used[1], request.used[2] = action_at, at, end - first


cdef int64_t read_varint(const uint8_t *data, int64_t at, int64_t end, int64_t *number) noexcept nogil:
    """Return the position after the number; -1 if the data end inside it."""
    cdef int64_t found = 0, shift = 0, byte
    while at < end and shift < 63:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            number[0] = found
            return at
        shift += 7
    return -1


def all_succeeded(const uint8_t[::1] response):
    """Return whether a MultiResponse holds no exception at any level; False also if it is malformed.

    MultiResponse { 1: RegionActionResult { 1: ResultOrException { 1 index, 2 result, 3 exception }, 2 exception } }
    """
    cdef int64_t ends[3]
    cdef int64_t depth = 0, at = 0, tag = 0, value = 0, field
    ends[0] = response.shape[0]
    while True:
        while depth >= 0 and at == ends[depth]:
            depth -= 1
        if depth < 0:
            return True
        if at > ends[depth]:
            return False
        at = read_varint(&response[0], at, response.shape[0], &tag)
        if at < 0:
            return False
        at = read_varint(&response[0], at, response.shape[0], &value)
        if at < 0 or (tag & 7 != VARINT and tag & 7 != BYTES):
            return False
        if tag & 7 == VARINT:
            continue
        if value > ends[depth] - at:
            return False
        field = tag >> 3
        if (
            depth == 1 and field == REGION_ACTION_RESULT_EXCEPTION
            or depth == 2 and field == RESULT_OR_EXCEPTION_EXCEPTION
        ):
            return False
        if (
            depth == 0 and field == MULTI_RESPONSE_REGION_ACTION_RESULT
            or depth == 1 and field == REGION_ACTION_RESULT_RESULT_OR_EXCEPTION
        ):
            depth += 1
            ends[depth] = at + value
        else:
            at += value
