"""Encodes puts of shadow cells and deletes of exact versions, many rows in one compiled pass: actions and cell block.

Each change names a cell, and either puts its shadow cell, or deletes the cell and its shadow cell, or deletes the
shadow cell alone. A row with both puts and deletes is a separate, atomic region action; all others share one:
    action          1A len { 08 index  12 len { 0A len row  10 kind  [30 durability]  40 count } }
    region action   0A len { 0A len region  10 01 (atomic)  action of the puts  action of the deletes }
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from pyomid.native.batch cimport Batch, batch_of
from pyomid.native.numbers cimport BYTES, VARINT, put_varint, varint_bytes
from pyomid.storage.hbase.codec.native.encode cimport (
    Request, action_bytes, put_action, put_bytes, put_lengths, put_number, request_of,
)
from pyomid.storage.hbase.codec.native.fields cimport (
    CELL_DELETED, CELL_PUT, MULTI_REQUEST_REGION_ACTION, MUTATION_DELETE, MUTATION_PUT, REGION_ACTION_ATOMIC,
    REGION_ACTION_REGION,
)

cpdef enum:
    DROPPED = -1  # Delete the cell and its shadow cell.
    ORPHANED = -2  # Delete the shadow cell alone.
    SHADOW_BYTES = 5 + 8  # Bytes of a shadow cell in addition to its cell's name: prefix, suffix, commit timestamp.


# See `pyomid.storage.hbase.codec.changes`.
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
