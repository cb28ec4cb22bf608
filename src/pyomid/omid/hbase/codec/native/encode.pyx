"""Encodes puts of batches, of commit entries and of changes in one compiled pass: actions (protobuf) and cell block.

An action, inside the region action that `regions/bulk_writes` wraps around it:
    1A len { 08 index  12 len { 0A len row  10 kind  [30 durability]  40 count } }

A change puts the shadow cell of a cell, or deletes the cell and its shadow cell, or deletes the shadow cell alone. A row
with both puts and deletes is a separate, atomic region action; all others share one:
    region action   0A len { 0A len region  10 01 (atomic)  action of the puts  action of the deletes }
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from pyomid.native.batch cimport Batch, batch_of
from pyomid.native.numbers cimport BYTES, VARINT, put_big_endian, put_varint, varint_bytes
from pyomid.omid.hbase.codec.native.fields cimport (
    ACTION_INDEX, ACTION_MUTATION, CELL_DELETED, CELL_PUT, MULTI_REQUEST_REGION_ACTION,
    MULTI_RESPONSE_REGION_ACTION_RESULT, MUTATION_ASSOCIATED_CELL_COUNT, MUTATION_DELETE, MUTATION_DURABILITY,
    MUTATION_MUTATE_TYPE, MUTATION_PUT, MUTATION_ROW, REGION_ACTION_ACTION, REGION_ACTION_ATOMIC,
    REGION_ACTION_REGION, REGION_ACTION_RESULT_EXCEPTION, REGION_ACTION_RESULT_RESULT_OR_EXCEPTION,
    RESULT_OR_EXCEPTION_EXCEPTION,
)

cpdef enum:
    ACTION_BYTES_MAX = 48  # Bytes of an action in addition to its row.
    CELL_BYTES_MAX = 32  # Bytes of a KeyValue with its length, in addition to row, family, qualifier and value.
    COMMIT_ROW_BYTES = COMMIT_ROW
    COMMIT_CELL_BYTES_MAX = CELL_BYTES_MAX + 32  # Bytes of a whole commit entry.
    DROPPED = -1  # Delete the cell and its shadow cell.
    ORPHANED = -2  # Delete the shadow cell alone.
    SHADOW_BYTES = 5 + 8  # Bytes of a shadow cell in addition to its cell's name: prefix, suffix, commit timestamp.


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


# Changes of stored cells


# See `pyomid.omid.hbase.codec.changes`.
cdef struct Changes:
    const uint8_t *keys
    const int64_t *row_at
    const int64_t *row_bytes
    const int64_t *row_cell
    const uint8_t *names
    const int64_t *name_at
    const int64_t *family_bytes
    const int64_t *qualifier_bytes
    const int64_t *version
    const int64_t *change
    int64_t rows


cdef Changes changes_of(tuple arrays) except *:
    cdef const uint8_t[::1] keys = arrays[0], names = arrays[4]
    cdef const int64_t[::1] row_at = arrays[1], row_bytes = arrays[2], row_cell = arrays[3], name_at = arrays[5]
    cdef const int64_t[::1] family_bytes = arrays[6], qualifier_bytes = arrays[7], version = arrays[8]
    cdef const int64_t[::1] change = arrays[9]
    return Changes(
        &keys[0], &row_at[0], &row_bytes[0], &row_cell[0], &names[0], &name_at[0], &family_bytes[0],
        &qualifier_bytes[0], &version[0], &change[0], row_at.shape[0],
    )


cdef int64_t put_cell(
    uint8_t *out, int64_t at, Changes *changes, int64_t row, int64_t cell, bint is_shadow
) noexcept nogil:
    """Write the KeyValue, with its length, that changes a cell of the row, or its shadow cell; return where it ends."""
    cdef int64_t commit = changes.change[cell], row_bytes = changes.row_bytes[row]
    cdef int64_t family_bytes = changes.family_bytes[cell], qualifier_bytes = changes.qualifier_bytes[cell]
    cdef const uint8_t *name = changes.names + changes.name_at[cell]
    at = put_lengths(
        out, at, row_bytes, family_bytes + qualifier_bytes + (5 if is_shadow else 0), 8 if commit > 0 else 0
    )
    at = put_bytes(out, at, changes.keys + changes.row_at[row], row_bytes)
    out[at] = <uint8_t> family_bytes
    at = put_bytes(out, at + 1, name, family_bytes)
    if is_shadow:
        at = put_bytes(out, at, b"\x00\xc2\x80", 3)
    at = put_bytes(out, at, name + family_bytes, qualifier_bytes)
    if is_shadow:
        at = put_bytes(out, at, b"\xc2\x80", 2)
    at = put_number(out, at, changes.version[cell], 8)
    out[at] = CELL_PUT if commit > 0 else CELL_DELETED
    return put_number(out, at + 1, commit, 8) if commit > 0 else at + 1


def encode_changes(
    tuple change_arrays, int64_t first, int64_t end, bint atomic, const uint8_t[::1] region, int64_t durability,
    int64_t[::1] encoded, tuple request_arrays,
):
    """Encode those of the rows `first` … `end` that have one kind of change, or (`atomic`) those that have both.

    Their numbers are written to `encoded`, in order. Not atomic: actions alone, numbered from 0. Atomic: whole region
    actions for the region specifier `region`.
    """
    cdef Changes changes = changes_of(change_arrays)
    cdef Request request = request_of(request_arrays)
    cdef int64_t at = 0, action_at = 0, count = 0, region_bytes = region.shape[0]
    cdef int64_t row, cell, puts, deletes, key_bytes, number
    cdef const uint8_t *key
    with nogil:
        for row in range(first, end):
            puts = deletes = 0
            for cell in range(changes.row_cell[row], changes.row_cell[row + 1]):
                if changes.change[cell] > 0:
                    puts += 1
                else:
                    deletes += 2 if changes.change[cell] == DROPPED else 1
            if (puts > 0 and deletes > 0) != atomic or puts + deletes == 0:
                continue
            key, key_bytes = changes.keys + changes.row_at[row], changes.row_bytes[row]
            number = 0 if atomic else count
            if atomic:
                request.actions[action_at] = MULTI_REQUEST_REGION_ACTION << 3 | BYTES
                action_at = put_varint(
                    request.actions,
                    action_at + 1,
                    1 + varint_bytes(region_bytes) + region_bytes + 2
                    + action_bytes(number, key_bytes, puts, durability)
                    + action_bytes(number, key_bytes, deletes, durability),
                )
                request.actions[action_at] = REGION_ACTION_REGION << 3 | BYTES
                action_at = put_varint(request.actions, action_at + 1, region_bytes)
                action_at = put_bytes(request.actions, action_at, &region[0], region_bytes)
                request.actions[action_at], request.actions[action_at + 1] = REGION_ACTION_ATOMIC << 3 | VARINT, 1
                action_at += 2
            if puts:
                action_at = put_action(
                    request.actions, action_at, number, key, key_bytes, puts, MUTATION_PUT, durability
                )
            for cell in range(changes.row_cell[row], changes.row_cell[row + 1]):
                if changes.change[cell] > 0:
                    at = put_cell(request.block, at, &changes, row, cell, True)
            if deletes:
                action_at = put_action(
                    request.actions, action_at, number, key, key_bytes, deletes, MUTATION_DELETE, durability
                )
            for cell in range(changes.row_cell[row], changes.row_cell[row + 1]):
                if changes.change[cell] == DROPPED:
                    at = put_cell(request.block, at, &changes, row, cell, False)
                if changes.change[cell] < 0:
                    at = put_cell(request.block, at, &changes, row, cell, True)
            encoded[count] = row
            count += 1
    request.used[0], request.used[1], request.used[2] = action_at, at, count


cdef int64_t order_of(Batch *batch, int64_t other, Changes *changes, int64_t row) noexcept nogil:
    """Return a number below, at or above 0 if the batch's row sorts before, equals or sorts after the changed row."""
    cdef int64_t one_bytes = batch.row_len[other], two_bytes = changes.row_bytes[row]
    cdef int found = memcmp(
        batch.buffer + batch.row_off[other], changes.keys + changes.row_at[row], min(one_bytes, two_bytes)
    )
    return found if found else one_bytes - two_bytes


def mark_present(tuple change_arrays, tuple batch_arrays, const int64_t[::1] column, uint8_t[::1] present):
    """Set `present` of each changed cell that the batch holds. Both ascend by row; `column` of a changed cell is its
    number among the batch's columns, -1 if the batch has no such column."""
    cdef Changes changes = changes_of(change_arrays)
    cdef Batch batch = batch_of(batch_arrays)
    cdef int64_t other = 0, order, row, cell, record, found
    with nogil:
        for row in range(changes.rows):
            order = -1
            while other < batch.rows:
                order = order_of(&batch, other, &changes, row)
                if order >= 0:
                    break
                other += 1
            if other == batch.rows:
                break
            if order > 0:
                continue
            for cell in range(changes.row_cell[row], changes.row_cell[row + 1]):
                for record in range(batch.row_rec[other], batch.row_rec[other + 1]):
                    if batch.rec_version[record] != changes.version[cell]:
                        continue
                    for found in range(batch.rec_cell[record], batch.rec_cell[record + 1]):
                        if batch.cell_col[found] == column[cell]:
                            present[cell] = True
