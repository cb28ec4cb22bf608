"""Encodes and decodes calls for commit entries in compiled passes: their regions, puts, gets, and results of gets.

A row is a bucket and a start, so a region's border is a pair of numbers. Rows of one region are adjacent, in their
given order:
    puts   0A len { 0A len region  action … }, as `encode` has it, with a block of `F:C` = varint(commit - start)
    gets   0A len { 0A len region  1A len { 08 index  1A len { 0A 09 row  tail } } … }
"""

from libc.stdint cimport int64_t, uint8_t

from pyomid.native.numbers cimport BYTES, VARINT, big_endian, put_varint, varint_bytes
from pyomid.omid.hbase.codec.native.encode cimport (
    COMMIT_ROW, Request, action_bytes, put_action, put_bytes, put_commit, put_commit_row, read_varint, request_of,
)
from pyomid.omid.hbase.codec.native.fields cimport (
    ACTION_GET, ACTION_INDEX, GET_ROW, MULTI_REQUEST_REGION_ACTION, MULTI_RESPONSE_REGION_ACTION_RESULT, MUTATION_PUT,
    REGION_ACTION_ACTION, REGION_ACTION_RESULT_EXCEPTION, REGION_ACTION_RESULT_RESULT_OR_EXCEPTION,
    RESULT_ASSOCIATED_CELL_COUNT, RESULT_CELL, RESULT_OR_EXCEPTION_EXCEPTION, RESULT_OR_EXCEPTION_INDEX,
    RESULT_OR_EXCEPTION_RESULT,
)

from pyomid.arrays import np

from pyomid import types

cpdef enum:
    SEVERAL = -1  # The regions are on several servers.
    UNKNOWN = -2  # The region of the first entry is unknown; of the n-th entry: `UNKNOWN - n`.
    GET_BYTES_MAX = 40  # Bytes of a get's action in addition to its tail.

cdef enum:
    UNANSWERED = -2
    NOT_FOUND = 0
    SEALED = -1
    FIELD_MAX = (1 << 29) - 1  # The largest field number that Protocol Buffers permits.

assert (types.NOT_FOUND, types.SEALED) == (NOT_FOUND, SEALED)


# See `pyomid.omid.hbase.regions.commit_entries`.
cdef struct Ranges:
    const int64_t *border_bucket
    const int64_t *border_start
    const int64_t *servers
    int64_t count
    const uint8_t *specifiers
    const int64_t *specifier_at


cdef Ranges ranges_of(tuple arrays) except *:
    cdef const int64_t[::1] border_bucket = arrays[0], border_start = arrays[1], servers = arrays[2]
    cdef const uint8_t[::1] specifiers = arrays[3]
    cdef const int64_t[::1] specifier_at = arrays[4]
    return Ranges(
        &border_bucket[0], &border_start[0], &servers[0], servers.shape[0], &specifiers[0], &specifier_at[0]
    )


def place(const int64_t[::1] starts, tuple range_arrays, int64_t[::1] where, int64_t[::1] counts):
    """Return the number of the server that has the rows of all `starts`, or SEVERAL, or UNKNOWN and below.

    Sets `where`, the range of each start, and `counts` (all 0 before), the number of starts in each range.
    """
    cdef Ranges ranges = ranges_of(range_arrays)
    cdef int64_t found = UNKNOWN, index, start, bucket, low, high, middle
    for index in range(starts.shape[0]):
        start = starts[index]
        bucket = start & 15
        low, high = 0, ranges.count - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if ranges.border_bucket[middle] < bucket or (
                ranges.border_bucket[middle] == bucket and ranges.border_start[middle] <= start
            ):
                low = middle
            else:
                high = middle - 1
        if ranges.servers[low] < 0:
            return UNKNOWN - index
        where[index] = low
        counts[low] += 1
        if found == UNKNOWN:
            found = ranges.servers[low]
        elif found != ranges.servers[low]:
            found = SEVERAL
    return found


cdef by_range(const int64_t[::1] where, const int64_t[::1] counts):
    """Return the entries' numbers, range by range."""
    order = np.empty(where.shape[0], dtype=np.int64)
    cdef int64_t[::1] numbers = order, ends = np.cumsum(counts)
    cdef int64_t index
    for index in range(where.shape[0] - 1, -1, -1):
        ends[where[index]] -= 1
        numbers[ends[where[index]]] = index
    return order


cdef int64_t put_region(uint8_t *out, int64_t at, int64_t actions_bytes, Ranges *ranges, int64_t number) noexcept nogil:
    """Write the beginning of the action on a range's region, which so many bytes of actions follow."""
    cdef int64_t begin = ranges.specifier_at[number], size = ranges.specifier_at[number + 1] - begin
    out[at] = MULTI_REQUEST_REGION_ACTION << 3 | BYTES
    at = put_varint(out, at + 1, size + actions_bytes)
    return put_bytes(out, at, ranges.specifiers + begin, size)


cdef int64_t get_bytes(int64_t number, int64_t tail_bytes) noexcept nogil:
    """Return the size of an action that gets a row, without its tag and length."""
    cdef int64_t get = 2 + COMMIT_ROW + tail_bytes
    return 1 + varint_bytes(number) + 1 + varint_bytes(get) + get


def encode_commit_puts(
    const int64_t[:, ::1] entries, const int64_t[::1] where, const int64_t[::1] counts, tuple range_arrays,
    int64_t durability, tuple request_arrays,
):
    """Encode puts of entries (start, commit), placed by `where` and `counts`, as whole region actions and their block.
    """
    cdef Ranges ranges = ranges_of(range_arrays)
    cdef Request request = request_of(request_arrays)
    cdef const int64_t[::1] order = by_range(where, counts)
    cdef uint8_t row[COMMIT_ROW]
    cdef int64_t at = 0, cell_at = 0, position = 0, number, size, index, entry
    with nogil:
        for number in range(counts.shape[0]):
            if counts[number] == 0:
                continue
            size = 0
            for index in range(counts[number]):
                size += action_bytes(index, COMMIT_ROW, 1, durability)
            at = put_region(request.actions, at, size, &ranges, number)
            for index in range(counts[number]):
                entry = order[position]
                put_commit_row(row, entries[entry, 0])
                at = put_action(request.actions, at, index, row, COMMIT_ROW, 1, MUTATION_PUT, durability)
                cell_at = put_commit(request.block, cell_at, row, entries[entry, 0], entries[entry, 1])
                position += 1
    request.used[0], request.used[1], request.used[2] = at, cell_at, position


def encode_commit_gets(
    const int64_t[::1] starts, const int64_t[::1] where, const int64_t[::1] counts, tuple range_arrays,
    const uint8_t[::1] tail, uint8_t[::1] parameter,
):
    """Encode gets of the rows of `starts`, placed by `where` and `counts`, as region actions; a get's index is its
    start's. Return how many bytes of `parameter` they take.

    `tail`: the part of a get's message after the row.
    """
    cdef Ranges ranges = ranges_of(range_arrays)
    cdef const int64_t[::1] order = by_range(where, counts)
    cdef uint8_t *out = &parameter[0]
    cdef int64_t at = 0, position = 0, number, size, index, action
    with nogil:
        for number in range(counts.shape[0]):
            if counts[number] == 0:
                continue
            size = 0
            for index in range(position, position + counts[number]):
                action = get_bytes(order[index], tail.shape[0])
                size += 1 + varint_bytes(action) + action
            at = put_region(out, at, size, &ranges, number)
            for index in range(position, position + counts[number]):
                out[at] = REGION_ACTION_ACTION << 3 | BYTES
                at = put_varint(out, at + 1, get_bytes(order[index], tail.shape[0]))
                out[at] = ACTION_INDEX << 3 | VARINT
                at = put_varint(out, at + 1, order[index])
                out[at] = ACTION_GET << 3 | BYTES
                at = put_varint(out, at + 1, 2 + COMMIT_ROW + tail.shape[0])
                out[at], out[at + 1] = GET_ROW << 3 | BYTES, COMMIT_ROW
                put_commit_row(out + at + 2, starts[order[index]])
                at = put_bytes(out, at + 2 + COMMIT_ROW, &tail[0], tail.shape[0])
            position += counts[number]
    return at


# A server's reply: every length is checked against the remaining bytes


cdef struct Bytes:
    const uint8_t *data
    int64_t size


cdef int64_t cell_end(Bytes block, int64_t at) noexcept nogil:
    """Return where the KeyValue at `at` ends; -1 if its lengths do not fit."""
    cdef int64_t total, key, value, row
    cdef const uint8_t *cell = block.data + at
    if block.size - at < 16:
        return -1
    total, key, value, row = big_endian(cell, 4), big_endian(cell + 4, 4), big_endian(cell + 8, 4), big_endian(cell + 12, 2)
    if total > block.size - at - 4 or 8 + key + value > total or key < 12 + row:
        return -1
    if cell[14 + row] + 12 + row > key:
        return -1
    return at + 4 + total


cdef int read_cell(Bytes block, int64_t at, int64_t start, int64_t *difference) noexcept nogil:
    """Return 1 for the invalidation marker of `start`'s row, 0 for its entry, with its commit's difference, -1
    otherwise."""
    cdef const uint8_t *cell = block.data + at
    cdef const uint8_t *qualifier
    cdef int64_t row_bytes = big_endian(cell + 12, 2), qualifier_bytes, value_at
    if row_bytes != COMMIT_ROW or cell[14] != start & 15 or big_endian(cell + 15, 8) != start:
        return -1
    qualifier_bytes = big_endian(cell + 4, 4) - 12 - row_bytes - cell[14 + row_bytes]
    qualifier = cell + 15 + row_bytes + cell[14 + row_bytes]
    if qualifier_bytes == 2 and qualifier[0] == c"I" and qualifier[1] == c"T":
        return 1
    value_at = qualifier - block.data + qualifier_bytes + 9
    if qualifier_bytes != 1 or qualifier[0] != c"C":
        return -1
    if read_varint(block.data, value_at, block.size, difference) != value_at + big_endian(cell + 8, 4):
        return -1
    return 0


cdef int64_t read_entry(Bytes block, int64_t at, int64_t count, int64_t start, int64_t *commit) noexcept nogil:
    """Return where the `count` cells of a row end; -1 if they are not a commit entry's.

    `commit[0]` gets the commit timestamp, SEALED or NOT_FOUND.
    """
    cdef int64_t end, difference = 0
    cdef int kind
    commit[0] = NOT_FOUND
    for _ in range(count):
        end = cell_end(block, at)
        kind = -1 if end < 0 else read_cell(block, at, start, &difference)
        if kind < 0:
            return -1
        if kind == 1:
            commit[0] = SEALED
        elif commit[0] != SEALED:
            commit[0] = start + difference
        at = end
    return at


cdef struct Field:
    int64_t number
    int64_t value  # or its length
    bint has_length


cdef int64_t read_field(Bytes message, int64_t at, int64_t end, Field *field) noexcept nogil:
    """Return the position after the tag of the field at `at` and its number or length; -1 if it is of another kind, or
    reaches beyond `end`."""
    cdef int64_t tag = 0
    at = read_varint(message.data, at, message.size, &tag)
    if at < 0:
        return -1
    at = read_varint(message.data, at, message.size, &field.value)
    field.number, field.has_length = tag >> 3, tag & 7 == BYTES
    if at < 0 or at > end or (tag & 7 != VARINT and tag & 7 != BYTES) or not 1 <= field.number <= FIELD_MAX:
        return -1
    if field.has_length and field.value > end - at:
        return -1
    return at


cdef int64_t read_result(Bytes message, int64_t at, int64_t end, int64_t *index, int64_t *cells) noexcept nogil:
    """Read index and number of cells of a ResultOrException; return `end`, or -1 if it is not such a result.

    ResultOrException { 1 index, 2 result { 1 cell, 2 associated_cell_count }, 3 exception }
    """
    cdef Field field
    cdef int64_t inner_end
    index[0] = cells[0] = 0
    while at < end:
        at = read_field(message, at, end, &field)
        if at < 0 or (field.has_length and field.number == RESULT_OR_EXCEPTION_EXCEPTION):
            return -1
        if not field.has_length:
            if field.number == RESULT_OR_EXCEPTION_INDEX:
                index[0] = field.value
            continue
        inner_end = at + field.value
        if field.number == RESULT_OR_EXCEPTION_RESULT:
            while at < inner_end:
                at = read_field(message, at, inner_end, &field)
                if at < 0 or (field.has_length and field.number == RESULT_CELL):
                    return -1
                if field.has_length:
                    at += field.value
                elif field.number == RESULT_ASSOCIATED_CELL_COUNT:
                    cells[0] = field.value
        at = inner_end
    return at


cdef struct Answer:
    Bytes block
    const int64_t *starts
    int64_t count
    int64_t *found
    int64_t *last  # where the cells of the last get begin and end; -1: not answered yet
    int64_t cell_at
    int64_t left


cdef bint take_result(Answer *answer, int64_t index, int64_t cells) noexcept nogil:
    """Return whether the next cells of the block are what this index requested."""
    if index > answer.count or cells > answer.block.size:
        return False
    if index < answer.count:
        if answer.found[index] != UNANSWERED:
            return False
        answer.cell_at = read_entry(
            answer.block, answer.cell_at, cells, answer.starts[index], &answer.found[index]
        )
    else:
        if answer.last[0] >= 0:
            return False
        answer.last[0] = answer.cell_at
        for _ in range(cells):
            answer.cell_at = cell_end(answer.block, answer.cell_at)
            if answer.cell_at < 0:
                return False
        answer.last[1] = answer.cell_at
    answer.left -= 1
    return answer.cell_at >= 0


cdef bint read_answer(Bytes message, Answer *answer) noexcept nogil:
    """MultiResponse { 1: RegionActionResult { 1: ResultOrException, 2 exception } }"""
    cdef Field field
    cdef int64_t at = 0, end, index, cells
    while at < message.size:
        at = read_field(message, at, message.size, &field)
        if at < 0:
            return False
        if not field.has_length:
            continue
        end = at + field.value
        if field.number != MULTI_RESPONSE_REGION_ACTION_RESULT:
            at = end
            continue
        while at < end:
            at = read_field(message, at, end, &field)
            if at < 0 or (field.has_length and field.number == REGION_ACTION_RESULT_EXCEPTION):
                return False
            if not field.has_length:
                continue
            if field.number != REGION_ACTION_RESULT_RESULT_OR_EXCEPTION:
                at += field.value
                continue
            at = read_result(message, at, at + field.value, &index, &cells)
            if at < 0 or not take_result(answer, index, cells):
                return False
    return answer.left == 0 and answer.cell_at == answer.block.size


def read_commit_gets(
    const uint8_t[::1] message, const uint8_t[::1] block, const int64_t[::1] starts, int64_t[::1] found,
    int64_t[::1] last,
):
    """Read the reply to `encode_commit_gets` and one more get, index `len(starts)`. Set `found`, each start's commit
    timestamp, SEALED or NOT_FOUND, and `last`, where the cells of that last get begin and end in the block.

    Return False if anything failed, is missing, or is malformed.
    """
    cdef Answer answer = Answer(
        Bytes(&block[0], block.shape[0]), &starts[0], starts.shape[0], &found[0], &last[0], 0, starts.shape[0] + 1
    )
    cdef bint is_good
    found[:] = UNANSWERED
    last[0] = -1
    with nogil:
        is_good = read_answer(Bytes(&message[0], message.shape[0]), &answer)
    return is_good
