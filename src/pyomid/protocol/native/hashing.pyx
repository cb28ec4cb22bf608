"""MurmurHash3 x64 128 with seed 0 (Austin Appleby, public domain), and the ids of many cells or rows at once.

Column names repeat in every row, so a batch's columns are laid out once; per id only the row key and the column
are copied after the table's name and hashed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from pyomid.native.batch cimport Batch, batch_of
from pyomid.native.numbers cimport little_endian

from pyomid.arrays import np

from pyomid.cells import ColumnNames

cdef enum:
    SLACK = 16  # bytes after a name that hashing overwrites


cdef struct Hash:
    uint64_t low
    uint64_t high


cdef inline uint64_t rotated(uint64_t word, int bits) noexcept nogil:
    return word << bits | word >> (64 - bits)


cdef inline uint64_t avalanche(uint64_t word) noexcept nogil:
    word ^= word >> 33
    word *= 0xFF51AFD7ED558CCDu
    word ^= word >> 33
    word *= 0xC4CEB9FE1A85EC53u
    return word ^ word >> 33


cdef Hash hash_of(uint8_t *data, int64_t size) noexcept nogil:
    """Return the hash of the first `size` bytes of `data`, which has SLACK bytes after them."""
    cdef uint64_t c1 = 0x87C37B91114253D5u, c2 = 0x4CF5AD432745937Fu, h1 = 0, h2 = 0
    cdef int64_t at, whole = size & ~15
    memset(data + size, 0, SLACK)
    for at in range(0, whole, 16):
        h1 ^= rotated(<uint64_t> little_endian(data + at, 8) * c1, 31) * c2
        h1 = (rotated(h1, 27) + h2) * 5 + 0x52DCE729u
        h2 ^= rotated(<uint64_t> little_endian(data + at + 8, 8) * c2, 33) * c1
        h2 = (rotated(h2, 31) + h1) * 5 + 0x38495AB5u
    if whole != size:
        h1 ^= rotated(<uint64_t> little_endian(data + whole, 8) * c1, 31) * c2
        h2 ^= rotated(<uint64_t> little_endian(data + whole + 8, 8) * c2, 33) * c1
    h1 ^= <uint64_t> size
    h2 ^= <uint64_t> size
    h1 += h2
    h2 += h1
    h1, h2 = avalanche(h1), avalanche(h2)
    h1 += h2
    return Hash(h1, h2 + h1)


cdef inline int64_t id_of(uint8_t *data, int64_t size) noexcept nogil:
    return <int64_t> hash_of(data, size).low


def murmur3_x64_128(bytes data):
    """Return both halves of the hash, unsigned, the low half first."""
    cdef int64_t size = len(data)
    cdef uint8_t[::1] scratch = bytearray(data) + bytes(SLACK)
    cdef Hash found = hash_of(&scratch[0], size)
    return found.low, found.high


def name_ids(bytes table, names):
    """Return one id per name, in their order: a cell's name is row + family + qualifier, a row's name its key."""
    cdef int64_t size = len(table), room = 0, name_size
    cdef uint8_t[::1] scratch = bytearray(size + SLACK)
    cdef bytes name
    memcpy(&scratch[0], PyBytes_AS_STRING(table), size)
    ids = []
    for name in names:
        name_size = PyBytes_GET_SIZE(name)
        if name_size > room:
            room = 2 * name_size
            scratch = bytearray(size + room + SLACK)
            memcpy(&scratch[0], PyBytes_AS_STRING(table), size)
        memcpy(&scratch[size], PyBytes_AS_STRING(name), name_size)
        ids.append(id_of(&scratch[0], size + name_size))
    return ids


def ids_of_rows(bytes table, dict rows, bint by_cell):
    """Return the ids of rows, or of their cells, each once. `rows`: by key a dict whose keys are columns."""
    names = []
    cdef dict cells
    for row, cells in rows.items():
        if by_cell:
            for family, qualifier in cells:
                names.append(row + family + qualifier)
        else:
            names.append(row)
    return name_ids(table, names if len(names) < 2 else dict.fromkeys(names))


cdef _after_table(bytes table, Batch *batch, int64_t name_bytes):
    """Return a buffer with the table's name and room for the longest row key, `name_bytes`, and SLACK."""
    cdef int64_t longest = 0, row
    for row in range(batch.rows):
        longest = max(longest, batch.row_len[row])
    scratch = np.empty(len(table) + longest + name_bytes + SLACK, dtype=np.uint8)
    scratch[: len(table)] = np.frombuffer(table, dtype=np.uint8)
    return scratch


def cell_ids(bytes table, batch):
    """Return one id per cell, in the batch's order of cells."""
    cdef Batch cells = batch_of(batch.arrays())
    columns = ColumnNames.of(batch.columns)
    cdef const uint8_t[::1] names = columns.names
    cdef const int64_t[::1] begin = columns.begin
    cdef uint8_t[::1] scratch = _after_table(table, &cells, names.shape[0])
    ids_ = np.empty(cells.cells, dtype=np.int64)
    cdef int64_t[::1] ids = ids_
    cdef int64_t table_size = len(table), row, cell, column, after_row, size
    with nogil:
        for row in range(cells.rows):
            memcpy(&scratch[table_size], cells.buffer + cells.row_off[row], cells.row_len[row])
            after_row = table_size + cells.row_len[row]
            for cell in range(cells.rec_cell[cells.row_rec[row]], cells.rec_cell[cells.row_rec[row + 1]]):
                column = cells.cell_col[cell]
                size = begin[column + 1] - begin[column]
                memcpy(&scratch[after_row], &names[begin[column]], size)
                ids[cell] = id_of(&scratch[0], after_row + size)
    return ids_


def row_ids(bytes table, batch):
    """Return one id per row, in the batch's order of rows."""
    cdef Batch rows = batch_of(batch.arrays())
    cdef uint8_t[::1] scratch = _after_table(table, &rows, 0)
    ids_ = np.empty(rows.rows, dtype=np.int64)
    cdef int64_t[::1] ids = ids_
    cdef int64_t table_size = len(table), row
    with nogil:
        for row in range(rows.rows):
            memcpy(&scratch[table_size], rows.buffer + rows.row_off[row], rows.row_len[row])
            ids[row] = id_of(&scratch[0], table_size + rows.row_len[row])
    return ids_
