"""Decodes cell blocks into the arrays of a `CellBatch`, in two compiled passes; `batches` describes them.

`index_cells` finds the parts of each KeyValue, checks every length against the block, which is untrusted, and numbers
the names (family and qualifier). It predicts that each name is the one that followed the previous name last time, or
the previous name itself, so that most names cost one comparison. `match_cells` then works on numbers alone: rows,
records, and for each cell its shadow cell's timestamp.
"""

from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from pyomid.native.batch cimport TOMBSTONE
from pyomid.native.numbers cimport big_endian
from pyomid.omid.hbase.codec.native.fields cimport CELL_PUT

NAMES_FULL = INT64_MIN // 2
"""Result of `index_cells` if it needs a larger table of names."""

cpdef enum:
    ROW_AT = 0  # Fields of an indexed KeyValue: positions in the block.
    ROW_BYTES = 1

cdef enum:
    UNSEEN = -2


cdef struct KeyValue:
    int64_t row_at
    int64_t row_bytes
    int64_t name  # number of the name: family and qualifier
    int64_t version
    int64_t value_at
    int64_t value_bytes
    int64_t kind
    int64_t is_same_row  # the same as the preceding KeyValue's


# The fields of a name; -1: unknown.
cdef struct Name:
    int64_t column  # the column's number; -1 until a cell of it is seen
    int64_t base  # of a shadow cell's name: its data cell's name; else -1, and UNSEEN if only its shadow cell was seen
    int64_t shadow  # the name of its shadow cells with Omid's prefix
    int64_t old_shadow  # the same without the prefix
    int64_t next  # the name that followed it last time
    int64_t row  # first KeyValue of the last row with shadow cells of this name: `shadow_at` : `shadow_end`
    int64_t shadow_at  # moves forward as cells grow older: shadow cells of one name are newest first
    int64_t shadow_end


KEY_VALUE_FIELDS = sizeof(KeyValue) // 8
NAME_FIELDS = sizeof(Name) // 8


cdef struct Names:
    uint8_t *bytes
    int64_t bytes_room
    int64_t *begin  # name n is `bytes[begin[n] : begin[n + 1]]`: its family's length, family and qualifier
    int32_t *slots  # a hash table of the names' numbers; -1: free
    int64_t slots_count
    Name *names
    int64_t names_room
    int32_t *column_names  # the name of each column
    int64_t *count
    int64_t *columns


cdef Names names_of(tuple arrays) except *:
    cdef uint8_t[::1] name_bytes = arrays[0]
    cdef int64_t[::1] begin = arrays[1], known = arrays[5]
    cdef int32_t[::1] slots = arrays[2], column_names = arrays[4]
    cdef int64_t[:, ::1] names = arrays[3]
    if names.shape[1] != NAME_FIELDS:
        raise ValueError("these are no names")
    return Names(
        &name_bytes[0], name_bytes.shape[0], &begin[0], &slots[0], slots.shape[0], <Name *> &names[0, 0],
        names.shape[0], &column_names[0], &known[0], &known[1],
    )


cdef KeyValue *parts_of(int64_t[:, ::1] cells) except? NULL:
    if cells.shape[1] != KEY_VALUE_FIELDS:
        raise ValueError("these are no parts of KeyValues")
    return <KeyValue *> &cells[0, 0]


def last_cell(const uint8_t[::1] block):
    """Return where the last KeyValue begins; -1 if the block is empty or ends inside one."""
    cdef int64_t position = 0, last = -1, end = block.shape[0]
    while position + 16 <= end:
        last = position
        position += 4 + big_endian(&block[position], 4)
    return last if position == end else -1


cdef uint64_t hash_of(const uint8_t *name, int64_t size) noexcept nogil:
    """Return the FNV-1a hash, with its halves mixed."""
    cdef uint64_t key = 14695981039346656037u
    cdef int64_t index
    for index in range(size):
        key = (key ^ name[index]) * 1099511628211u
    return key ^ key >> 32


cdef inline bint is_name(Names *names, int64_t number, const uint8_t *name, int64_t size) noexcept nogil:
    cdef int64_t begin = names.begin[number]
    return names.begin[number + 1] - begin == size and memcmp(names.bytes + begin, name, size) == 0


cdef int64_t entered(Names *names, int64_t size) noexcept nogil:
    """Return the number of the name whose bytes are after the last one's; a new number if the name is new."""
    cdef int64_t count = names.count[0], mask = names.slots_count - 1, slot
    cdef const uint8_t *name = names.bytes + names.begin[count]
    cdef Name *fresh = names.names + count
    slot = <int64_t> (hash_of(name, size) & <uint64_t> mask)
    while names.slots[slot] >= 0:
        if is_name(names, names.slots[slot], name, size):
            return names.slots[slot]
        slot = (slot + 1) & mask
    fresh.column = fresh.base = fresh.shadow = fresh.old_shadow = -1
    fresh.next = 0
    names.slots[slot] = <int32_t> count
    names.begin[count + 1] = names.begin[count] + size
    names.count[0] = count + 1
    return count


def fill_slots(tuple arrays):
    """Enter the known names into the slots, which are all -1 before."""
    cdef Names names = names_of(arrays)
    cdef int64_t mask = names.slots_count - 1, slot, name
    for name in range(names.count[0]):
        slot = <int64_t> (
            hash_of(names.bytes + names.begin[name], names.begin[name + 1] - names.begin[name]) & <uint64_t> mask
        )
        while names.slots[slot] >= 0:
            slot = (slot + 1) & mask
        names.slots[slot] = <int32_t> name


cdef int64_t number_of(Names *names, const uint8_t *text, int64_t size) noexcept nogil:
    """Return the number of a name that was not predicted; -1 if there is no room for it and its data cell's name.

    A name is the family's length, family and qualifier, adjacent as in a KeyValue.
    """
    cdef int64_t before = names.count[0], begin = names.begin[before], number, known, base, skip = 0
    cdef int64_t family_bytes = <int64_t> text[0] + 1, qualifier_bytes = size - family_bytes
    cdef const uint8_t *qualifier = text + family_bytes
    cdef Name *name
    if before + 3 > names.names_room or begin + 2 * size > names.bytes_room or 2 * (before + 2) > names.slots_count:
        return -1
    memcpy(names.bytes + begin, text, size)
    number = entered(names, size)
    name = names.names + number
    if names.count[0] == before and name.base != UNSEEN:
        return number
    name.base = -1
    if qualifier_bytes < 2 or memcmp(text + size - 2, b"\xc2\x80", 2) != 0:
        return number
    if qualifier_bytes >= 5 and memcmp(qualifier, b"\x00\xc2\x80", 3) == 0:
        skip = 3
    known = names.count[0]
    begin = names.begin[known]
    memcpy(names.bytes + begin, text, family_bytes)
    memcpy(names.bytes + begin + family_bytes, qualifier + skip, qualifier_bytes - skip - 2)
    base = entered(names, size - skip - 2)
    if names.count[0] > known:  # it may be a shadow cell's name too, in a table that other programs wrote
        names.names[base].base = UNSEEN
    name.base = base
    if skip:
        names.names[base].shadow = number
    else:
        names.names[base].old_shadow = number
    return number


cdef int64_t index_all(const uint8_t *block, int64_t end, KeyValue *cells, int64_t room, Names *names) noexcept nogil:
    cdef int64_t position = 0, count = 0, name = 0, expected, found, total, key_bytes, value_bytes, row_bytes, name_size
    cdef const uint8_t *head
    cdef const uint8_t *text
    cdef KeyValue *cell
    cdef KeyValue *before = NULL
    while position < end:
        if end - position < 24 or count == room:
            return -1 - position
        head = block + position
        total, key_bytes = big_endian(head, 4), big_endian(head + 4, 4)
        value_bytes, row_bytes = big_endian(head + 8, 4), big_endian(head + 12, 2)
        if 8 + key_bytes + value_bytes > total or total > end - position - 4 or key_bytes < 12 + row_bytes:
            return -1 - position
        text, name_size = head + 14 + row_bytes, key_bytes - 11 - row_bytes
        if text[0] + 1 > name_size:
            return -1 - position
        expected = names.names[name].next
        if expected < names.count[0] and is_name(names, expected, text, name_size):
            name = expected
        elif not (name < names.count[0] and is_name(names, name, text, name_size)):
            found = number_of(names, text, name_size)
            if found < 0:
                return INT64_MIN // 2
            names.names[name].next = found
            name = found
        cell = cells + count
        cell.row_at, cell.row_bytes, cell.name = position + 14, row_bytes, name
        cell.version, cell.kind = big_endian(text + name_size, 8), text[name_size + 8]
        cell.value_at, cell.value_bytes = text + name_size + 9 - block, value_bytes
        cell.is_same_row = (
            before != NULL
            and row_bytes == before.row_bytes
            and memcmp(block + cell.row_at, block + before.row_at, row_bytes) == 0
        )
        before = cell
        count += 1
        position += 4 + total
    return count


def index_cells(const uint8_t[::1] block, int64_t[:, ::1] cells, tuple name_arrays):
    """Fill in the parts of each KeyValue; return their number, or -1 - position of the first malformed one, or
    NAMES_FULL."""
    cdef Names names = names_of(name_arrays)
    cdef KeyValue *parts = parts_of(cells)
    cdef int64_t count
    with nogil:
        count = index_all(&block[0], block.shape[0], parts, cells.shape[0], &names)
    return count


cdef bint is_tombstone(const uint8_t *value, int64_t size, const uint8_t[::1] legacy) noexcept nogil:
    return size == 0 or (size == legacy.shape[0] and memcmp(value, &legacy[0], size) == 0)


cdef bint has_commit(
    const uint8_t *block, KeyValue *cells, int64_t first, KeyValue *cell, int64_t beside, Names *names, int64_t *commit
) noexcept nogil:
    """Return whether a cell of the row has a shadow cell of this name; `commit[0]` gets its timestamp."""
    cdef Name *name = names.names + beside
    if beside < 0 or name.row != first:
        return False
    while name.shadow_at < name.shadow_end and cells[name.shadow_at].version > cell.version:
        name.shadow_at += 1
    if name.shadow_at == name.shadow_end:
        return False
    cells += name.shadow_at
    if cells.version != cell.version or cells.name != beside or cells.value_bytes != 8:
        return False
    commit[0] = big_endian(block + cells.value_at, 8)
    return True


def match_cells(
    const uint8_t[::1] block, int64_t[:, ::1] cell_parts, int64_t count, bint ends_inside_row,
    const uint8_t[::1] legacy_tombstone, tuple name_arrays, tuple batch_arrays,
):
    """Write the first `count` of `cells` into a batch's arrays; return the numbers of rows, records and cells, and of
    the KeyValues of whole rows.

    A shadow cell without its cell is omitted. Adjacent cells of equal version and commit timestamp share a record.
    """
    cdef Names names = names_of(name_arrays)
    cdef KeyValue *cells = parts_of(cell_parts)
    cdef int64_t[::1] row_off = batch_arrays[0], row_rec = batch_arrays[2], rec_version = batch_arrays[3]
    cdef int64_t[::1] rec_commit = batch_arrays[4], rec_cell = batch_arrays[5], cell_off = batch_arrays[7]
    cdef int32_t[::1] row_len = batch_arrays[1], cell_col = batch_arrays[6], cell_len = batch_arrays[8]
    cdef int64_t rows = 0, records = 0, out = 0, first = 0, last, row_records, row_begin, index, commit
    cdef KeyValue *cell
    cdef Name *name
    with nogil:
        row_rec[0] = rec_cell[0] = 0
        for index in range(names.count[0]):
            names.names[index].row = -1
        while first < count:
            last = first + 1
            while last < count and cells[last].is_same_row:
                last += 1
            if last == count and ends_inside_row:
                break
            row_records, row_begin = records, out
            for index in range(first, last):
                name = names.names + cells[index].name
                if name.base >= 0:
                    if name.row != first:
                        name.row, name.shadow_at = first, index
                    name.shadow_end = index + 1
            for index in range(first, last):
                cell = cells + index
                name = names.names + cell.name
                if name.base >= 0 or cell.kind != CELL_PUT:
                    continue
                commit = 0
                if not has_commit(&block[0], cells, first, cell, name.shadow, &names, &commit):
                    has_commit(&block[0], cells, first, cell, name.old_shadow, &names, &commit)
                if name.column < 0:
                    name.column = names.columns[0]
                    names.column_names[name.column] = <int32_t> cell.name
                    names.columns[0] += 1
                if (
                    records == row_records
                    or rec_version[records - 1] != cell.version
                    or rec_commit[records - 1] != commit
                ):
                    rec_version[records], rec_commit[records] = cell.version, commit
                    records += 1
                cell_col[out], cell_off[out] = <int32_t> name.column, cell.value_at
                if is_tombstone(&block[cell.value_at], cell.value_bytes, legacy_tombstone):
                    cell_len[out] = TOMBSTONE
                else:
                    cell_len[out] = <int32_t> cell.value_bytes
                out += 1
                rec_cell[records] = out
            if out > row_begin:
                row_off[rows], row_len[rows] = cells[first].row_at, <int32_t> cells[first].row_bytes
                rows += 1
                row_rec[rows] = records
            first = last
    return rows, records, out, first
