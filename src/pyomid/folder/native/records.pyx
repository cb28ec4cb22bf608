"""Many records at once between LMDB's bytes and a `CellBatch`, and compaction's changes of stored records.

`pyomid.folder.records` has the grammar.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from pyomid.native.batch cimport TOMBSTONE, Batch, batch_of
from pyomid.native.numbers cimport big_endian, little_endian, put_big_endian, put_little_endian, put_varint

from pyomid.arrays import np

from pyomid.folder import records as layout

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object)

cpdef enum:
    GOOD = 0
    BAD_CHECKSUM = 1
    BAD_GRAMMAR = 2
    UNKNOWN_COLUMN = 3
    BAD_KEY = 4

cpdef enum:
    ROW_TOO_LONG = 1
    ROW_EMPTY = 2
    ROW_OUT_OF_ORDER = 3
    VALUE_TOO_LONG = 4
    VALUE_EMPTY = 5
    VALUE_OF_FAMILY = 6

cpdef enum:
    UNCHANGED = 0
    CHANGED = 1
    EMPTIED = 2
    CORRUPT = 3

cdef enum:
    CELL_FIELDS = 3

assert (
    TABLE_BYTES, VERSION_BYTES, HEADER_BYTES, VARINT_BYTES_MAX, KEY_BYTES_MIN, ESCAPED_ROW_BYTES_MAX, DENSE_COLUMNS_MAX,
    LONG,
) == (
    layout.TABLE_BYTES, layout.VERSION_BYTES, layout.HEADER_BYTES, layout.VARINT_BYTES_MAX, layout.KEY_BYTES_MIN,
    layout.ESCAPED_ROW_BYTES_MAX, layout.DENSE_COLUMNS_MAX, layout.LONG,
)

# Checksums: CRC-32 as zlib has it, by carry-less multiplication or sixteen bytes a step ("slicing by 16", Kounavis and
# Berry 2005)

cdef extern from "crc32.h":
    enum: FOLDED_BYTES_MIN
    bint can_fold() nogil
    uint32_t fold(const uint8_t *data, int64_t size, uint32_t state) nogil

cdef uint32_t _CRC[16][256]
cdef bint _folds = can_fold()


cdef void _fill_crc_tables() noexcept:
    cdef uint32_t state
    cdef int byte, step
    for byte in range(256):
        state = byte
        for step in range(8):
            state = (state >> 1) ^ (0xEDB88320u if state & 1 else 0u)
        _CRC[0][byte] = state
    for step in range(1, 16):
        for byte in range(256):
            state = _CRC[step - 1][byte]
            _CRC[step][byte] = (state >> 8) ^ _CRC[0][state & 0xFF]


_fill_crc_tables()


cdef uint32_t crc32(const uint8_t *data, int64_t size, uint32_t before) noexcept nogil:
    cdef uint32_t state = before ^ 0xFFFFFFFFu
    cdef int64_t whole = size & ~<int64_t> 15
    if _folds and whole >= FOLDED_BYTES_MIN:
        state = fold(data, whole, state)
        data += whole
        size -= whole
    while size >= 16:
        state = (
            _CRC[15][data[0] ^ (state & 0xFF)] ^ _CRC[14][data[1] ^ (state >> 8 & 0xFF)]
            ^ _CRC[13][data[2] ^ (state >> 16 & 0xFF)] ^ _CRC[12][data[3] ^ (state >> 24)]
            ^ _CRC[11][data[4]] ^ _CRC[10][data[5]] ^ _CRC[9][data[6]] ^ _CRC[8][data[7]]
            ^ _CRC[7][data[8]] ^ _CRC[6][data[9]] ^ _CRC[5][data[10]] ^ _CRC[4][data[11]]
            ^ _CRC[3][data[12]] ^ _CRC[2][data[13]] ^ _CRC[1][data[14]] ^ _CRC[0][data[15]]
        )
        data += 16
        size -= 16
    while size >= 4:
        state = (
            _CRC[3][data[0] ^ (state & 0xFF)] ^ _CRC[2][data[1] ^ (state >> 8 & 0xFF)]
            ^ _CRC[1][data[2] ^ (state >> 16 & 0xFF)] ^ _CRC[0][data[3] ^ (state >> 24)]
        )
        data += 4
        size -= 4
    while size > 0:
        state = (state >> 8) ^ _CRC[0][data[0] ^ (state & 0xFF)]
        data += 1
        size -= 1
    return state ^ 0xFFFFFFFFu


def checksum(const uint8_t[::1] data, uint32_t before):
    """`zlib.crc32(data, before)`, for tests."""
    return crc32(&data[0], data.shape[0], before)


# Records into a batch


cdef int64_t varint(const uint8_t *data, int64_t *at, int64_t stop) noexcept nogil:
    """Return the number at `at[0]` and advance `at[0]` past it; -1 if it does not end before `stop`."""
    cdef int64_t number = 0, byte, index
    for index in range(min(VARINT_BYTES_MAX, stop - at[0])):
        byte = data[at[0] + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            at[0] += index + 1
            return number
    return -1


cdef int64_t cells_head(const uint8_t *data, int64_t *at, int64_t stop, const uint8_t **codes) noexcept nogil:
    """Read the head of encoded cells at `at[0]`, and advance `at[0]` past it. Return how often to call `next_cell`; -1
    if the head is malformed. `codes[0]` gets the argument of `next_cell`: NULL for pairs."""
    cdef int64_t count = varint(data, at, stop), greatest, first
    codes[0] = NULL
    if count != 0:
        return count
    greatest = data[at[0]] if at[0] < stop else 0
    first = at[0] + 1 + ((greatest + 1) >> 1)
    if greatest < 1 or greatest > DENSE_COLUMNS_MAX or first > stop:
        return -1
    codes[0] = data + at[0] + 1
    at[0] = first
    return greatest


cdef int64_t cells_max(const uint8_t *data, const int64_t[::1] lens) noexcept nogil:
    """Return an upper bound of the number of cells, from the records' heads. A wrong count in a head is reduced to what
    fits into the record; decoding detects it."""
    cdef const uint8_t *codes
    cdef int64_t total = 0, at = 0, stop, place, count, record
    for record in range(lens.shape[0] // 2):
        at += lens[2 * record]
        stop = at + lens[2 * record + 1]
        place = min(at + HEADER_BYTES, stop)
        count = cells_head(data, &place, stop, &codes)
        total += max(min(count, (stop - at) // 2) if codes == NULL else count, 0)
        at = stop
    return total


cdef int32_t _unescape(uint8_t *data, int64_t size) noexcept nogil:
    """Unescape a row key in place. Return its length."""
    cdef int64_t index = 0, out
    while index < size and data[index] != 0:
        index += 1
    out = index
    while index < size:
        data[out] = data[index]
        index += 2 if data[index] == 0 else 1
        out += 1
    return <int32_t> out


def decode_records(uint8_t[::1] data, const int64_t[::1] lens, const int32_t[::1] column_of):
    """Return the arrays of a `CellBatch` over `data`, then a status and the number of the malformed record (-1: none).

    `data` holds key, value, key, value … of the lengths `lens`, in the order of keys, whole rows. With status GOOD the
    row keys are unescaped in place. `column_of` maps a column's number to its index, -1 if it is not wanted; rows
    without wanted cells are omitted.
    """
    cdef uint8_t *bytes_ = &data[0]
    cdef const uint8_t *codes
    cdef int64_t records_in = lens.shape[0] // 2
    cdef int64_t found_max = cells_max(bytes_, lens)
    row_off_, row_len_ = np.empty(records_in, dtype=np.int64), np.empty(records_in, dtype=np.int32)
    row_rec_, rec_cell_ = np.zeros(records_in + 1, dtype=np.int64), np.zeros(records_in + 1, dtype=np.int64)
    rec_version_, rec_commit_ = np.empty(records_in, dtype=np.int64), np.empty(records_in, dtype=np.int64)
    cell_col_, cell_len_ = np.empty(found_max, dtype=np.int32), np.empty(found_max, dtype=np.int32)
    cell_off_ = np.empty(found_max, dtype=np.int64)
    cdef int64_t[::1] row_off = row_off_, row_rec = row_rec_, rec_version = rec_version_, rec_commit = rec_commit_
    cdef int64_t[::1] rec_cell = rec_cell_, cell_off = cell_off_
    cdef int32_t[::1] row_len = row_len_, cell_col = cell_col_, cell_len = cell_len_
    cdef int64_t rows = 0, records = 0, cells = 0, status = GOOD, bad_record = -1
    cdef int64_t record, at = 0, key, key_len, value, stop, first_cell, count, place, index, number, length
    cdef int64_t escaped, size
    with nogil:
        for record in range(records_in):
            key, key_len = at, lens[2 * record]
            value = key + key_len
            stop = value + lens[2 * record + 1]
            at = stop
            if stop - value < HEADER_BYTES or crc32(
                bytes_ + value + 4, stop - value - 4, crc32(bytes_ + key, key_len, 0)
            ) != <uint32_t> little_endian(bytes_ + value, 4):
                status = BAD_CHECKSUM
            elif key_len < KEY_BYTES_MIN or data[value - VERSION_BYTES - 1] != 0 or data[value - VERSION_BYTES] >= 0x80:
                status = BAD_KEY
            if status != GOOD:
                bad_record = record
                break
            first_cell, place = cells, value + HEADER_BYTES
            count = cells_head(bytes_, &place, stop, &codes)
            for index in range(count):
                number = next_cell(bytes_, codes, index, &place, stop, &length)
                if number < 0 or cells >= found_max:
                    status = BAD_GRAMMAR
                    break
                if length == ABSENT:
                    continue
                if number >= column_of.shape[0]:
                    status = UNKNOWN_COLUMN
                    break
                if column_of[number] >= 0:
                    cell_col[cells] = column_of[number]
                    cell_off[cells] = place
                    cell_len[cells] = <int32_t> length
                    cells += 1
                place += max(length, 0)
            if status == GOOD and (count < 0 or place != stop):
                status = BAD_GRAMMAR
            if status != GOOD:
                bad_record = record
                break
            if cells == first_cell:
                continue
            escaped, size = key + TABLE_BYTES, key_len - TABLE_BYTES - 1 - VERSION_BYTES
            if rows == 0 or row_len[rows - 1] != size or not equal(
                bytes_ + row_off[rows - 1], bytes_ + escaped, size
            ):
                row_off[rows], row_len[rows] = escaped, <int32_t> size
                rows += 1
            rec_version[records] = INT64_MAX - big_endian(bytes_ + value - VERSION_BYTES, VERSION_BYTES)
            rec_commit[records] = little_endian(bytes_ + value + 4, 8)
            records += 1
            rec_cell[records] = cells
            row_rec[rows] = records
        if status == GOOD:
            for record in range(rows):
                row_len[record] = _unescape(bytes_ + row_off[record], row_len[record])
    return (
        row_off_[:rows], row_len_[:rows], row_rec_[: rows + 1],
        rec_version_[:records], rec_commit_[:records], rec_cell_[: records + 1],
        cell_col_[:cells], cell_off_[:cells], cell_len_[:cells], status, bad_record,
    )


# A batch into records


cdef int64_t key_bytes_max(int64_t row_len) noexcept nogil:
    """Return the greatest size of a record's key, for a row key of this length."""
    return 2 * row_len + TABLE_BYTES + 1 + VERSION_BYTES


cdef int64_t put_key(
    const uint8_t *prefix, int64_t prefix_len, const uint8_t *row, int64_t row_len, int64_t version, uint8_t *out,
    int64_t to,
) noexcept nogil:
    """Write the key of a row and version at `out + to`. Return the offset of its end."""
    cdef int64_t index
    memcpy(out + to, prefix, prefix_len)
    to += prefix_len
    for index in range(row_len):
        out[to] = row[index]
        to += 1
        if row[index] == 0:
            out[to] = 255
            to += 1
    out[to] = 0
    put_big_endian(out + to + 1, INT64_MAX - version, VERSION_BYTES)
    return to + 1 + VERSION_BYTES


cdef int64_t _escaped_bytes(const uint8_t *row, int64_t size) noexcept nogil:
    cdef int64_t escaped = size, index
    for index in range(size):
        escaped += row[index] == 0
    return escaped


cdef bint _ascend(Batch *batch, int64_t row) noexcept nogil:
    """Whether the row sorts after the one before it."""
    cdef int64_t one_len = batch.row_len[row - 1], other_len = batch.row_len[row]
    cdef int order = memcmp(
        batch.buffer + batch.row_off[row - 1], batch.buffer + batch.row_off[row], min(one_len, other_len)
    )
    return order < 0 or (order == 0 and one_len < other_len)


cdef int _broken_rule(
    Batch *batch, int64_t row, const uint8_t *is_family, int64_t value_bytes_max, int64_t *cell
) noexcept nogil:
    """Return GOOD, or the rule that the row breaks; `cell[0]`: the cell that breaks it, -1 for the row key."""
    cdef int64_t length = batch.row_len[row], number
    cell[0] = -1
    if length == 0:
        return ROW_EMPTY
    if _escaped_bytes(batch.buffer + batch.row_off[row], length) > ESCAPED_ROW_BYTES_MAX:
        return ROW_TOO_LONG
    if row > 0 and not _ascend(batch, row):
        return ROW_OUT_OF_ORDER
    for number in range(batch.rec_cell[batch.row_rec[row]], batch.rec_cell[batch.row_rec[row + 1]]):
        cell[0], length = number, batch.cell_len[number]
        if length == 0:
            return VALUE_EMPTY
        if length > value_bytes_max:
            return VALUE_TOO_LONG
        if length != TOMBSTONE and is_family[batch.cell_col[number]]:
            return VALUE_OF_FAMILY
    return GOOD


def check_batch(tuple arrays, const uint8_t[::1] is_family, int64_t value_bytes_max):
    """Return GOOD or the first broken rule, and the row and cell that break it (-1: none).

    `is_family`: 1 for columns with an empty qualifier.
    """
    cdef Batch batch = batch_of(arrays)
    cdef int64_t row, cell
    cdef int rule
    with nogil:
        for row in range(batch.rows):
            rule = _broken_rule(&batch, row, &is_family[0], value_bytes_max, &cell)
            if rule != GOOD:
                with gil:
                    return rule, row, cell
    return GOOD, -1, -1


cdef bint _is_dense(const Cell *cells, int64_t count, int64_t *greatest) noexcept nogil:
    cdef int64_t index
    greatest[0] = 0
    for index in range(count):
        greatest[0] = max(greatest[0], cells[index].number)
    return greatest[0] <= DENSE_COLUMNS_MAX and (greatest[0] + 1) // 2 + 4 < 2 * count


cdef void sort_cells(Cell *cells, int64_t count) noexcept nogil:
    """Sort by column. Insertion sort, because cells are nearly always in order."""
    cdef int64_t index, to
    cdef Cell cell
    for index in range(1, count):
        cell, to = cells[index], index
        while to > 0 and cells[to - 1].number > cell.number:
            cells[to] = cells[to - 1]
            to -= 1
        cells[to] = cell


cdef int64_t put_cells(const uint8_t *data, Cell *cells, int64_t count, uint8_t *out, int64_t at) noexcept nogil:
    """Encode cells, whose values are in `data`, at `out + at`. Return the offset of their end. Sort dense cells by
    column."""
    cdef int64_t greatest, index, number, length, code
    cdef uint8_t *codes = out + at + 2
    cdef bint is_dense = _is_dense(cells, count, &greatest)
    if is_dense:
        sort_cells(cells, count)
        out[at], out[at + 1] = 0, <uint8_t> greatest
        memset(codes, 0, (greatest + 1) >> 1)
        at += 2 + ((greatest + 1) >> 1)
    else:
        at = put_varint(out, at, count)
    for index in range(count):
        number, length = cells[index].number, cells[index].length
        if is_dense:
            code = 1 if length < 0 else min(length + 1, LONG)
            codes[(number - 1) >> 1] |= <uint8_t> (code << 4 if number & 1 else code)
        else:
            at = put_varint(out, at, number)
        if not is_dense or length + 1 >= LONG:
            at = put_varint(out, at, length + 1)
        if length > 0:
            memcpy(out + at, data + cells[index].offset, length)
            at += length
    return at


def encode_rows(
    tuple arrays, int64_t first, int64_t stop, const uint8_t[::1] prefix, const int64_t[::1] number_of,
    int64_t version, uint32_t sample_mask,
):
    """Encode rows `first` … `stop` of a checked batch as records under `version`, without a commit timestamp.

    `prefix`: of the table's keys; `number_of`: the number of each of the batch's columns. Return the bytes, their
    borders (key i is bounds[2i] : bounds[2i+1], its value ends at bounds[2i+2]), and whether each row is a sample: the
    CRC of its row prefix has no bit of `sample_mask`.
    """
    cdef Batch batch = batch_of(arrays)
    cdef int64_t size = 0, most = 0, at = 0, row, cell, key, value, first_cell, stop_cell
    cdef uint32_t prefix_crc, key_crc
    for row in range(first, stop):
        first_cell, stop_cell = batch.rec_cell[batch.row_rec[row]], batch.rec_cell[batch.row_rec[row + 1]]
        most = max(most, stop_cell - first_cell)
        size += key_bytes_max(batch.row_len[row]) + HEADER_BYTES + VARINT_BYTES_MAX
        for cell in range(first_cell, stop_cell):
            size += max(batch.cell_len[cell], 0) + 2 * VARINT_BYTES_MAX
    encoded = np.empty(size, dtype=np.uint8)
    bounds_ = np.zeros(2 * (stop - first) + 1, dtype=np.int64)
    samples_ = np.zeros(stop - first, dtype=np.bool_)
    cells_ = np.empty((most, CELL_FIELDS), dtype=np.int64)
    cdef uint8_t[::1] view = encoded, samples = samples_
    cdef int64_t[::1] bounds = bounds_
    cdef int64_t[:, ::1] cells_view = cells_
    cdef Cell *cells = <Cell *> &cells_view[0, 0]
    cdef uint8_t *out = &view[0]
    with nogil:
        for row in range(first, stop):
            key = at
            value = put_key(
                &prefix[0], prefix.shape[0], batch.buffer + batch.row_off[row], batch.row_len[row], version, out, key
            )
            prefix_crc = crc32(out + key, value - VERSION_BYTES - key, 0)
            samples[row - first] = (prefix_crc & sample_mask) == 0
            key_crc = crc32(out + value - VERSION_BYTES, VERSION_BYTES, prefix_crc)
            put_little_endian(out + value + 4, 0, 8)
            first_cell, stop_cell = batch.rec_cell[batch.row_rec[row]], batch.rec_cell[batch.row_rec[row + 1]]
            for cell in range(first_cell, stop_cell):
                cells[cell - first_cell].number = number_of[batch.cell_col[cell]]
                cells[cell - first_cell].offset = batch.cell_off[cell]
                cells[cell - first_cell].length = batch.cell_len[cell]
            at = put_cells(batch.buffer, cells, stop_cell - first_cell, out, value + HEADER_BYTES)
            put_little_endian(out + value, crc32(out + value + 4, at - value - 4, key_crc), 4)
            bounds[2 * (row - first) + 1] = value
            bounds[2 * (row - first) + 2] = at
    return encoded[:at], bounds_, samples_


def pairs(const uint8_t[::1] data, const int64_t[::1] bounds):
    """Return the keys and values that `encode_rows` returned, as pairs of bytes."""
    cdef const char *first = <const char *> &data[0]
    cdef int64_t place, count = bounds.shape[0] >> 1
    if count and not 0 <= bounds[0] <= bounds[2 * count] <= data.shape[0]:
        raise ValueError(f"borders up to {bounds[2 * count]} in {data.shape[0]} bytes")
    cdef list found = []
    cdef tuple pair
    for place in range(count):
        pair = (
            PyBytes_FromStringAndSize(first + bounds[2 * place], bounds[2 * place + 1] - bounds[2 * place]),
            PyBytes_FromStringAndSize(first + bounds[2 * place + 1], bounds[2 * place + 2] - bounds[2 * place + 1]),
        )
        PyObject_GC_UnTrack(pair)  # it holds only bytes; the garbage collector would untrack it later
        found.append(pair)
    return found


# Changes of stored records. `EmbeddedStore._change_record`, for one record, is the reference implementation


def record_keys(tuple arrays, const int64_t[::1] records, const int64_t[::1] row_of, const uint8_t[::1] prefix):
    """Return the keys of `records`, whose rows are `row_of`, concatenated, and their borders. `prefix`: of the table's
    keys."""
    cdef Batch batch = batch_of(arrays)
    cdef int64_t count = records.shape[0], size = 0, at = 0, index, row
    for index in range(count):
        size += key_bytes_max(batch.row_len[row_of[index]])
    keys, bounds_ = np.empty(size, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)
    cdef uint8_t[::1] out = keys
    cdef int64_t[::1] bounds = bounds_
    with nogil:
        for index in range(count):
            row = row_of[index]
            at = put_key(
                &prefix[0], prefix.shape[0], batch.buffer + batch.row_off[row], batch.row_len[row],
                batch.rec_version[records[index]], &out[0], at,
            )
            bounds[index + 1] = at
    return keys[:at], bounds_


cdef struct Change:
    int64_t commit_ts
    const int64_t *drops
    int64_t drops_count
    const int64_t *heals
    int64_t heals_count


cdef struct Cells:
    Cell *left  # the cells that are not dropped
    int64_t room
    int64_t count  # of `left`
    bint is_whole  # no cell is dropped
    bint is_healed


cdef bint _contains(const int64_t *numbers, int64_t count, int64_t number) noexcept nogil:
    cdef int64_t index
    for index in range(count):
        if numbers[index] == number:
            return True
    return False


cdef bint _read_cells(const uint8_t *data, int64_t place, int64_t stop, Change *change, Cells *cells) noexcept nogil:
    """Read the cells of a record that ends at `stop`. False if they do not fill it."""
    cdef const uint8_t *codes
    cdef int64_t count, index, number, length
    cells.count, cells.is_whole, cells.is_healed = 0, True, False
    count = cells_head(data, &place, stop, &codes)
    for index in range(count):
        number = next_cell(data, codes, index, &place, stop, &length)
        if number < 0 or cells.count == cells.room:
            return False
        if length == ABSENT:
            continue
        if _contains(change.drops, change.drops_count, number):
            cells.is_whole = False
        else:
            cells.left[cells.count] = Cell(number, place, length)
            cells.count += 1
            cells.is_healed = cells.is_healed or _contains(change.heals, change.heals_count, number)
            if cells.is_healed and change.drops_count == 0:  # only the commit timestamp changes
                return True
        place += max(length, 0)
    return count >= 0 and place == stop


cdef int _change_record(
    const uint8_t *data, int64_t key, int64_t value, int64_t stop, Change *change, Cells *cells, uint8_t *out,
    int64_t *to,
) noexcept nogil:
    """Return UNCHANGED, CHANGED, EMPTIED or CORRUPT. If CHANGED, write the new value at `to[0]` and advance `to[0]`."""
    cdef bint is_healed
    cdef int64_t begin = to[0], commit_ts
    cdef uint32_t key_crc = crc32(data + key, value - key, 0)
    if stop - value < HEADER_BYTES:
        return CORRUPT
    if crc32(data + value + 4, stop - value - 4, key_crc) != <uint32_t> little_endian(data + value, 4):
        return CORRUPT
    if not _read_cells(data, value + HEADER_BYTES, stop, change, cells):
        return CORRUPT
    if cells.count == 0:
        return EMPTIED
    commit_ts = little_endian(data + value + 4, 8)
    is_healed = change.commit_ts != 0 and cells.is_healed and commit_ts != change.commit_ts
    if cells.is_whole and not is_healed:
        return UNCHANGED
    put_little_endian(out + begin + 4, change.commit_ts if is_healed else commit_ts, 8)
    if cells.is_whole:
        memcpy(out + begin + HEADER_BYTES, data + value + HEADER_BYTES, stop - value - HEADER_BYTES)
        to[0] = begin + stop - value
    else:
        to[0] = put_cells(data, cells.left, cells.count, out, begin + HEADER_BYTES)
    put_little_endian(out + begin, crc32(out + begin + 4, to[0] - begin - 4, key_crc), 4)
    return CHANGED


def change_records(
    const uint8_t[::1] data, const int64_t[::1] lens, const int64_t[::1] commits, const int64_t[::1] drops,
    const int64_t[::1] drop_first, const int64_t[::1] heals, const int64_t[::1] heal_first,
):
    """Return the new values of records, concatenated, their borders, and for each record whether it CHANGED.

    `data` holds key, value, key, value … of lengths `lens`. Record i loses the columns (by number)
    `drops[drop_first[i] : drop_first[i + 1]]`; it gets the commit timestamp `commits[i]` if that is not 0 and one of
    the columns `heals[heal_first[i] : heal_first[i + 1]]` is left in it.
    """
    cdef int64_t records = lens.shape[0] // 2, at = 0, to = 0, record, value
    cdef Change change
    cdef Cells cells
    changed = np.empty(data.shape[0] + records * VARINT_BYTES_MAX, dtype=np.uint8)
    bounds_, states_ = np.zeros(records + 1, dtype=np.int64), np.zeros(records, dtype=np.int64)
    cdef uint8_t[::1] out = changed
    cdef int64_t[::1] bounds = bounds_, states = states_
    cells.room = cells_max(&data[0], lens)
    left = np.empty((cells.room, CELL_FIELDS), dtype=np.int64)
    cdef int64_t[:, ::1] left_view = left
    cells.left = <Cell *> &left_view[0, 0]
    with nogil:
        for record in range(records):
            change.commit_ts = commits[record]
            change.drops, change.drops_count = &drops[drop_first[record]], drop_first[record + 1] - drop_first[record]
            change.heals, change.heals_count = &heals[heal_first[record]], heal_first[record + 1] - heal_first[record]
            value = at + lens[2 * record]
            at = value + lens[2 * record + 1]
            states[record] = _change_record(
                &data[0], value - lens[2 * record], value, at, &change, &cells, &out[0], &to
            )
            bounds[record + 1] = to
    return changed[:to], bounds_, states_
