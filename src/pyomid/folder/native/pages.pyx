"""Copy records from LMDB's pages in bulk, without a Python object per record; `scans` says when that is safe.

The format is that of LMDB 0.9 (`mdb.c`: MDB_page, MDB_node, MDB_db) on 64-bit little-endian machines:

    page       number (8), padding (2), flags (2), lower (2), upper (2), then a 2-byte offset for each node
    node       low half (2), high half (2), flags (2), key's length (2), key, value
    leaf       the halves are the value's length; the node of a big value holds the number of its first overflow page
    branch     the halves and the flags are the child's page number; the first node's key counts as the least

LMDB's own cursor is the reference implementation (`scans.records_until`). Every page and node is validated: one that
does not have this format ends the walk with STRANGE, and the caller reads with LMDB's cursor.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from pyomid.native.numbers cimport big_endian, little_endian
from pyomid.folder.native.records cimport ABSENT, HEADER_BYTES, VERSION_BYTES, cells_head, equal, next_cell

from pyomid.arrays import np

cpdef enum:
    WHOLE = 0  # The range ended.
    MORE = 1  # The limit was reached, and another row follows.
    OUTSIDE = 2  # A page lies after the end of the mapped bytes: the file has grown, or it is damaged.
    STRANGE = 3  # A page or node does not have the known format.
    NO_ROOM = 4  # The next record does not fit into `out` or `lens`.

cdef enum:
    PAGE_HEADER = 16
    NODE_HEADER = 8
    BRANCH = 0x01
    LEAF = 0x02
    BIG_VALUE = 0x01
    DEPTH_MAX = 32  # LMDB's own bound (CURSOR_STACK)


cdef struct Stretch:
    const uint8_t *data
    int64_t size


cdef struct Pages:
    const uint8_t *data
    int64_t size
    int64_t page_bytes
    int64_t count


# As `pyomid.folder.scans.Limits`.
cdef struct Limits:
    int64_t tail_bytes
    int64_t records_max
    int64_t bytes_max
    int64_t below
    int64_t committed_below
    Stretch asked
    int64_t asked_count
    int64_t at_least


cdef struct Found:
    uint8_t *out
    int64_t room
    int64_t *lens
    int64_t lens_room
    int64_t records
    int64_t written
    int64_t next_key
    int64_t next_len


cdef struct Row:
    int64_t number
    int64_t key  # of its last record
    int64_t key_len  # -1: there was none
    int64_t *ended_in  # for each asked column, the number of the last row whose last needed version of it was found
    int64_t ended
    bint is_done  # nothing else of the row is needed


cdef inline int64_t u16(const uint8_t *data) noexcept nogil:
    return data[0] | <int64_t> data[1] << 8


cdef int64_t order(const uint8_t *data, int64_t size, Stretch key) noexcept nogil:
    """Compare as `memcmp`: below 0 if the bytes sort before `key`, 0 if they are equal, above 0 otherwise."""
    cdef int found = memcmp(data, key.data, min(size, key.size))
    return found if found else size - key.size


cdef int64_t nodes_of(Pages *pages, int64_t page, int64_t kind) noexcept nogil:
    """Return the number of nodes of a page of this kind; -1 if the page is not of this kind."""
    cdef const uint8_t *data = pages.data + page * pages.page_bytes
    cdef int64_t lower, upper
    if little_endian(data, 8) != page or u16(data + 10) & 0x0F != kind:
        return -1
    lower, upper = u16(data + 12), u16(data + 14)
    if lower < PAGE_HEADER or lower > upper or upper > pages.page_bytes or lower & 1:
        return -1
    return (lower - PAGE_HEADER) >> 1


cdef int64_t node_of(Pages *pages, int64_t page, int64_t index) noexcept nogil:
    """Return the node's offset; -1 if its key does not lie inside the page."""
    cdef int64_t at = page * pages.page_bytes
    cdef int64_t offset = u16(pages.data + at + PAGE_HEADER + 2 * index)
    if offset + NODE_HEADER > pages.page_bytes:
        return -1
    if offset + NODE_HEADER + u16(pages.data + at + offset + 6) > pages.page_bytes:
        return -1
    return at + offset


cdef inline int64_t key_len_of(Pages *pages, int64_t node) noexcept nogil:
    return u16(pages.data + node + 6)


cdef inline int64_t order_of(Pages *pages, int64_t node, Stretch key) noexcept nogil:
    return order(pages.data + node + NODE_HEADER, key_len_of(pages, node), key)


cdef inline int64_t child_of(Pages *pages, int64_t node) noexcept nogil:
    return little_endian(pages.data + node, 6)


cdef int64_t place_of(Pages *pages, int64_t page, int64_t nodes, int64_t first, Stretch key, bint above) noexcept nogil:
    """Return the first node from `first` whose key is at or above `key` (with `above`: above it); -1 if a node is
    malformed."""
    cdef int64_t low = first, high = nodes, middle, node, found
    while low < high:
        middle = (low + high) >> 1
        node = node_of(pages, page, middle)
        if node < 0:
            return -1
        found = order_of(pages, node, key)
        if found < 0 or (above and found == 0):
            low = middle + 1
        else:
            high = middle
    return low


cdef inline int64_t version_of(Pages *pages, int64_t key, int64_t key_len) noexcept nogil:
    return INT64_MAX - max(big_endian(pages.data + key + key_len - VERSION_BYTES, VERSION_BYTES), 0)


cdef int64_t ended_by(Pages *pages, int64_t at, int64_t end, Limits *limits, Row *row) noexcept nogil:
    """Return the number of asked columns whose last needed version in this row is in this record; -1 if the reader does
    not see the record. Of a damaged record only the part before the damage counts; decoding refuses it later."""
    cdef const uint8_t *codes
    cdef int64_t commit_ts, ended = 0, place = at + HEADER_BYTES, count, index, number, length
    if end - at < HEADER_BYTES:
        return -1
    commit_ts = little_endian(pages.data + at + 4, 8)
    if commit_ts <= 0 or commit_ts >= limits.committed_below:
        return -1
    count = cells_head(pages.data, &place, end, &codes)
    for index in range(count):
        number = next_cell(pages.data, codes, index, &place, end, &length)
        if number < 0:
            break
        if length == ABSENT:
            continue
        if number < limits.asked.size and limits.asked.data[number] and row.ended_in[number] != row.number:
            row.ended_in[number] = row.number
            ended += 1
        place += max(length, 0)
    return ended


cdef bint is_of_row(Pages *pages, int64_t page, int64_t index, Row *row, int64_t tail_bytes) noexcept nogil:
    """Whether the node's key is of the row. False for a malformed node, so that it is not skipped unnoticed."""
    cdef int64_t node = node_of(pages, page, index)
    if node < 0 or key_len_of(pages, node) != row.key_len:
        return False
    return equal(pages.data + node + NODE_HEADER, pages.data + row.key, row.key_len - tail_bytes)


cdef int64_t first_of_next_row(
    Pages *pages, int64_t page, int64_t nodes, int64_t first, Row *row, int64_t tail_bytes
) noexcept nogil:
    """Return the first node from `first` that is not of the row. Searches in doubling steps: most rows have few
    versions."""
    cdef int64_t low = first, high = first, step = 1, middle
    while high < nodes and is_of_row(pages, page, high, row, tail_bytes):
        low, high, step = high + 1, high + step, 2 * step
    high = min(high, nodes)
    while low < high:
        middle = (low + high) >> 1
        if is_of_row(pages, page, middle, row, tail_bytes):
            low = middle + 1
        else:
            high = middle
    return low


cdef int64_t last_of_row(
    Pages *pages, int64_t page, int64_t nodes, int64_t first, Row *row, int64_t tail_bytes
) noexcept nogil:
    """Return the first child from `first` that may hold another row: all keys of a child are of the row if the next
    child begins with a key of the row."""
    cdef int64_t low = first, high = nodes - 1, middle
    while low < high:
        middle = (low + high + 1) >> 1
        if is_of_row(pages, page, middle, row, tail_bytes):
            low = middle
        else:
            high = middle - 1
    return low


cdef int take_leaf(
    Pages *pages, int64_t page, int64_t first, int64_t nodes, Stretch stop, Limits *limits, Row *row, Found *found
) noexcept nogil:
    """Copy the needed records of a leaf, from node `first` on. Return how the walk ended; -1 if it continues."""
    cdef int64_t each = first, node, key, key_len, size, flags, value, end, first_page, newly
    cdef bint is_new, is_within = False  # whether the page's last key, and so each of its keys, lies before the stop
    if first < nodes:
        node = node_of(pages, page, nodes - 1)
        is_within = node >= 0 and order_of(pages, node, stop) < 0
    while each < nodes:
        if row.is_done:
            each = first_of_next_row(pages, page, nodes, each, row, limits.tail_bytes)
            if each == nodes:
                break
            row.is_done = False
        node = node_of(pages, page, each)
        each += 1
        if node < 0:
            return STRANGE
        key, key_len = node + NODE_HEADER, key_len_of(pages, node)
        size, flags = little_endian(pages.data + node, 4), u16(pages.data + node + 4)
        value, end = key + key_len, (page + 1) * pages.page_bytes
        if flags == BIG_VALUE and end - value >= 8:
            first_page = little_endian(pages.data + value, 8)
            if first_page < 0 or first_page >= pages.count:
                return OUTSIDE
            value, end = first_page * pages.page_bytes + PAGE_HEADER, pages.size
            if size > end - value:
                return OUTSIDE
        elif flags != 0:
            return STRANGE
        if size > end - value or key_len < limits.tail_bytes:
            return STRANGE
        if not is_within and order_of(pages, node, stop) >= 0:
            return WHOLE
        if limits.committed_below > 0 and version_of(pages, key, key_len) >= limits.below:
            continue
        if limits.at_least > 0 and version_of(pages, key, key_len) < limits.at_least:
            continue
        is_new = key_len != row.key_len or not equal(
            pages.data + key, pages.data + row.key, key_len - limits.tail_bytes
        )
        if is_new and (found.records >= limits.records_max or found.written > limits.bytes_max):
            found.next_key, found.next_len = key, key_len
            return MORE
        row.key, row.key_len = key, key_len
        if limits.committed_below > 0:
            if is_new:
                row.number, row.ended = row.number + 1, 0
            newly = ended_by(pages, value, value + size, limits, row)
            row.ended += max(newly, 0)
            row.is_done = newly >= 0 and row.ended == limits.asked_count
        if found.room > 0:
            if key_len + size > found.room - found.written or found.lens_room - 2 * found.records < 2:
                return NO_ROOM
            memcpy(found.out + found.written, pages.data + key, key_len)
            memcpy(found.out + found.written + key_len, pages.data + value, size)
            found.lens[2 * found.records], found.lens[2 * found.records + 1] = key_len, size
        found.records += 1
        found.written += key_len + size
    return -1


cdef int walk_tree(
    Pages *pages, int64_t root, Stretch start, Stretch stop, Limits *limits, Row *row, Found *found
) noexcept nogil:
    cdef int64_t stack[DEPTH_MAX]
    cdef int64_t places[DEPTH_MAX]
    cdef int64_t depth = 0, page = root, unseen = pages.count, nodes, index, node
    cdef bint is_seeking = True
    cdef int ended
    while True:
        while True:  # descend to a leaf: the first time to the position of `start`, later to the leftmost
            if page < 0 or page >= pages.count:
                return OUTSIDE
            if unseen == 0:
                return STRANGE
            unseen -= 1
            nodes = nodes_of(pages, page, BRANCH)
            if nodes < 0:
                break
            index = place_of(pages, page, nodes, 1, start, True) - 1 if is_seeking else 0
            if nodes < 1 or index < 0 or depth == DEPTH_MAX:
                return STRANGE
            stack[depth], places[depth] = page, index
            depth += 1
            node = node_of(pages, page, index)
            if node < 0:
                return STRANGE
            page = child_of(pages, node)
        nodes = nodes_of(pages, page, LEAF)
        index = place_of(pages, page, nodes, 0, start, False) if is_seeking and nodes > 0 else 0
        if nodes < 0 or index < 0:
            return STRANGE
        is_seeking = False
        ended = take_leaf(pages, page, index, nodes, stop, limits, row, found)
        if ended >= 0:
            return ended
        while True:  # ascend to a branch that has another child
            if depth == 0:
                return WHOLE
            depth -= 1
            page, index = stack[depth], places[depth] + 1
            nodes = nodes_of(pages, page, BRANCH)
            if index < nodes:
                break
        if row.is_done:
            index = last_of_row(pages, page, nodes, index, row, limits.tail_bytes)
        node = node_of(pages, page, index)
        if node < 0:
            return STRANGE
        stack[depth], places[depth] = page, index
        depth += 1
        page = child_of(pages, node)


def walk(
    const uint8_t[::1] pages, int64_t page_bytes, int64_t root, const uint8_t[::1] start, const uint8_t[::1] stop,
    limits, uint8_t[::1] out, int64_t[::1] lens,
):
    """Copy the records with `start` ≤ key < `stop`, in order: key, value, key, value … to `out`, their lengths to
    `lens`. With an empty `out` only measure.

    Return how the walk ended, the number of records and of bytes, and for MORE the offset in `pages` and the length of
    the next key. The caller's read transaction keeps the tree unchanged. If it changed nevertheless, nothing would be
    written beyond `out` and `lens`, and a cycle would end the walk, which enters no more pages than the file has.
    """
    cdef const uint8_t[::1] asked = limits[5]
    cdef int64_t[::1] ended_in = np.zeros(asked.shape[0], dtype=np.int64)
    cdef Pages mapped = Pages(&pages[0], pages.shape[0], page_bytes, pages.shape[0] // page_bytes)
    cdef Limits limit
    cdef Row row = Row(0, 0, -1, &ended_in[0], 0, False)
    cdef Found found = Found(&out[0], out.shape[0], &lens[0], lens.shape[0], 0, 0, 0, 0)
    cdef int64_t number
    cdef int ended
    limit.tail_bytes, limit.records_max, limit.bytes_max, limit.below, limit.committed_below, _, limit.at_least = limits
    limit.asked, limit.asked_count = Stretch(&asked[0], asked.shape[0]), 0
    for number in range(asked.shape[0]):
        limit.asked_count += asked[number]
    with nogil:
        ended = walk_tree(
            &mapped, root, Stretch(&start[0], start.shape[0]), Stretch(&stop[0], stop.shape[0]), &limit, &row, &found
        )
    return ended, found.records, found.written, found.next_key, found.next_len
