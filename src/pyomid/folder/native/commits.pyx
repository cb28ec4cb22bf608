"""Commit requests of ordinary transactions, packed and decided: what `pyomid.folder.decision` does too, which
has the grammar and the rules. What is not ordinary is left to it: each function here then returns None, and has written
nothing.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pyomid.native.batch cimport TOMBSTONE
from pyomid.native.numbers cimport big_endian, little_endian, put_big_endian, put_little_endian
from pyomid.folder.native.records cimport (
    ESCAPED_ROW_BYTES_MAX, HEADER_BYTES, TABLE_BYTES, VARINT_BYTES_MAX, VERSION_BYTES, Cell, crc32, put_cells, put_key,
    sort_cells,
)

cdef enum:
    HEAD_BYTES = 15
    TABLE_HEAD_BYTES = 19
    ROW_HEAD_BYTES = 12
    STATE_BYTES = 40
    NUMBER_BYTES = 8
    BY_ROW = 2
    FREE = 1
    COLUMNS_MAX = 65535


cdef int64_t room_of(dict rows, dict numbers, int64_t value_bytes_max) except -2:
    """Return how many bytes the packed rows have at most; -1 if they are not ordinary."""
    cdef int64_t room = 0, size
    cdef dict cells
    for row, cells in rows.items():
        size = PyBytes_GET_SIZE(<bytes?> row)
        if not 0 < size or not 0 < len(cells) <= COLUMNS_MAX:
            return -1
        if size + (<bytes> row).count(0) > ESCAPED_ROW_BYTES_MAX:
            return -1
        room += ROW_HEAD_BYTES + 2 * size + 1 + VERSION_BYTES + VARINT_BYTES_MAX
        for column, value in cells.items():
            if column not in numbers:
                return -1
            room += 2 + 2 * VARINT_BYTES_MAX
            if value is not None:
                size = PyBytes_GET_SIZE(<bytes?> value)
                if not 0 < size <= value_bytes_max or not (<tuple> column)[1]:
                    return -1
                room += size
    return room


def packed_rows(dict rows, dict numbers, int64_t value_bytes_max):
    """Return the rows of a table in a commit request, ascending. None if a row, a column or a value needs the full
    checks, or a column has no number. `rows`: key → column → value, None to delete the cell."""
    cdef int64_t room = room_of(rows, numbers, value_bytes_max), at = 0, to, key_size, count, index, begin, most = 1
    cdef const uint8_t *key
    cdef uint8_t *out
    cdef Cell *cells
    cdef dict written
    cdef bytes value
    if room < 0:
        return None
    for written in rows.values():
        most = max(most, <int64_t> len(written))
    out, cells = <uint8_t *> PyMem_Malloc(room + 1), <Cell *> PyMem_Malloc(most * sizeof(Cell))
    try:
        if out == NULL or cells == NULL:
            raise MemoryError
        for row in sorted(rows):
            written = rows[row]
            key, count = <const uint8_t *> PyBytes_AS_STRING(row), len(written)
            to = put_key(NULL, 0, key, PyBytes_GET_SIZE(row), 0, out, at + ROW_HEAD_BYTES) - VERSION_BYTES
            key_size = to - at - ROW_HEAD_BYTES
            values = []
            begin = 0
            for index, (column, given) in enumerate(written.items()):
                put_little_endian(out + to, <int64_t> numbers[column], 2)
                to += 2
                cells[index].number, cells[index].offset = numbers[column], begin
                if given is None:
                    cells[index].length = TOMBSTONE
                else:
                    cells[index].length = PyBytes_GET_SIZE(given)
                    begin += cells[index].length
                    values.append(given)
            value = values[0] if len(values) == 1 else b"".join(values)
            sort_cells(cells, count)
            begin, to = to, put_cells(<const uint8_t *> PyBytes_AS_STRING(value), cells, count, out, to)
            put_little_endian(out + at, key_size, 2)
            put_little_endian(out + at + 2, count, 2)
            put_little_endian(out + at + 4, to - begin, 4)
            put_little_endian(out + at + 8, 0, 4)
            at = to
        return PyBytes_FromStringAndSize(<const char *> out, at)
    finally:
        PyMem_Free(out)
        PyMem_Free(cells)


class Unsettled(Exception):
    """A record has no commit timestamp: its branch decides."""


def _unsettled(start):
    raise Unsettled


cdef bytes record_of(bytes key, int64_t commit_ts, bytes cells):
    """Return the record of these encoded cells."""
    cdef int64_t size = HEADER_BYTES + PyBytes_GET_SIZE(cells)
    cdef bytes record = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(record)
    put_little_endian(out + 4, commit_ts, 8)
    memcpy(out + HEADER_BYTES, PyBytes_AS_STRING(cells), PyBytes_GET_SIZE(cells))
    put_little_endian(
        out, crc32(out + 4, size - 4, crc32(<const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), 0)), 4
    )
    return record


cdef bytes number_after(bytes before, int64_t number):
    """Return `before`, then the number, big-endian."""
    cdef int64_t size = PyBytes_GET_SIZE(before)
    cdef bytes found = PyBytes_FromStringAndSize(NULL, size + NUMBER_BYTES)
    memcpy(PyBytes_AS_STRING(found), PyBytes_AS_STRING(before), size)
    put_big_endian(<uint8_t *> PyBytes_AS_STRING(found) + size, number, NUMBER_BYTES)
    return found


cdef bint is_row_key(const uint8_t *key, int64_t size) noexcept nogil:
    """As of `records.is_row_key`."""
    cdef int64_t at = 0
    if not 1 < size <= ESCAPED_ROW_BYTES_MAX + 1 or key[size - 1]:
        return False
    while at < size - 1:
        if not key[at]:
            at += 1
            if at == size - 1 or key[at] != 0xFF:
                return False
        at += 1
    return True


cdef class Ordinary:
    """Decides ordinary requests of one write transaction at a time, between `begin` and `end`. It reads the folder's
    state, tables and fences once for all of them, and writes clock and newest commits at the end.

    `search`: a `conflicts.Search`. `entries`, `columns`: what `Decision` found last. `records_cleaned`: how many records
    of a row are looked at to delete some. `sample_mask`: see `tables.is_sample`."""

    cdef object search
    cdef dict entries
    cdef dict columns
    cdef int64_t records_cleaned
    cdef uint32_t sample_mask
    cdef object transaction, cells, state, tables, samples, cursor, next_timestamp
    cdef bytes found
    cdef int64_t clock, watermark
    cdef bint is_ordinary, has_drawn
    cdef dict newest
    cdef dict fences
    cdef set same

    def __init__(self, search, dict entries, dict columns, int64_t records_cleaned, uint32_t sample_mask):
        self.search, self.entries, self.columns = search, entries, columns
        self.records_cleaned, self.sample_mask = records_cleaned, sample_mask
        self.is_ordinary = False

    cdef bint is_sound(self, bytes key, bytes numbers, bytes cells, bytes free, int64_t known) except -1:
        """As `Decision._check`."""
        if not (cells or free) or bool(cells) != bool(numbers):
            return False
        if not is_row_key(<const uint8_t *> PyBytes_AS_STRING(key) + TABLE_BYTES, PyBytes_GET_SIZE(key) - TABLE_BYTES):
            return False
        if cells and not self.search.greatest(cells, numbers):
            return False
        return not free or 0 < self.search.greatest(free, b"") <= known

    def begin(self, transaction, dict databases, int64_t released, next_timestamp):
        """Begin to decide in a write transaction, which nobody else uses up to `end`. `released`: W may be raised to
        it. `next_timestamp`: clock → timestamp."""
        cdef bytes state
        self.is_ordinary = self.has_drawn = False
        self.cursor = None  # an interrupt may have left one, of a transaction that has ended
        self.transaction, self.next_timestamp = transaction, next_timestamp
        self.cells, self.state = databases[b"cells"], databases[b""]
        self.tables, self.samples = databases[b"tables"], databases[b"samples"]
        self.newest, self.fences, self.same = {}, {}, set()
        state = self.found = transaction.get(b"state", db=self.state)
        if state is None or PyBytes_GET_SIZE(state) != STATE_BYTES:
            return
        self.clock = big_endian(<const uint8_t *> PyBytes_AS_STRING(state), 8)
        self.watermark = big_endian(<const uint8_t *> PyBytes_AS_STRING(state) + 8, 8)
        if released > self.watermark or transaction.stat(databases[b"claims"])["entries"]:
            return
        self.cursor = transaction.cursor(self.cells)
        self.is_ordinary = True

    def end(self):
        """Write what the decisions left: the transaction has all of them only now."""
        cdef bint has_drawn = self.has_drawn
        self.is_ordinary = self.has_drawn = False
        if self.cursor is not None:
            self.cursor.close()
            self.cursor = None
        transaction, self.transaction = self.transaction, None
        if has_drawn:
            transaction.put(b"state", number_after(b"", self.clock) + self.found[8:], db=self.state)
            for prefix, commit_ts in self.newest.items():
                transaction.put(b"C" + prefix, number_after(b"", commit_ts), db=self.state)

    cdef bint is_same(self, bytes name, bytes prefix) except -1:
        """Whether the table is the one that was found last."""
        if name in self.same:
            return self.entries[name][1] == prefix
        found = self.entries.get(name)
        if found is None or found[1] != prefix or self.transaction.get(b"n" + name, db=self.tables) != found[0]:
            return False
        self.same.add(name)
        return True

    cdef int64_t fence_of(self, int64_t table_id) except -1:
        found = self.fences.get(table_id)
        if found is None:
            content = self.transaction.get(number_after(b"F", table_id), db=self.state)
            found = self.fences[table_id] = 0 if content is None else int.from_bytes(content)
        return found

    def decided(self, bytes packed, bint is_foreign=False):
        """Commit an ordinary request, and return the commit timestamp; or the commit that it conflicts with, negated,
        and write nothing. `is_foreign`: another process packed it, perhaps wrongly.

        None: the request claims, or has branches; is malformed; W is due to be raised, or above its start; there are
        claims; its tables are not those that were found last; a record that it meets has no commit timestamp, or is
        malformed.
        """
        cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(packed)
        cdef int64_t size = PyBytes_GET_SIZE(packed), at = HEAD_BYTES, begin, start_ts, commit_ts
        cdef int64_t table, table_id, name_size, row, row_count, key_size, count, cells_size, free_size, known, index
        cdef int64_t conflict = 0
        cdef bint by_row
        cdef bytes name, prefix, key, numbers, full
        cdef list written = [], former = [], gone = [], prefixes = []
        if not self.is_ordinary or size < HEAD_BYTES or data[8] or little_endian(data + 9, 4):
            return None
        start_ts = little_endian(data, 8)
        if start_ts <= self.watermark:
            return None
        transaction, cells_database = self.transaction, self.cells
        try:
            for table in range(little_endian(data + 13, 2)):
                if size - at < TABLE_HEAD_BYTES:
                    return None
                name_size, table_id = little_endian(data + at, 2), little_endian(data + at + 2, 8)
                by_row, row_count = (data[at + 10] & BY_ROW) != 0, little_endian(data + at + 11, 4)
                if little_endian(data + at + 15, 4) or size - at - TABLE_HEAD_BYTES < name_size + TABLE_BYTES:
                    return None
                at += TABLE_HEAD_BYTES + name_size + TABLE_BYTES
                name, prefix = packed[at - TABLE_BYTES - name_size : at - TABLE_BYTES], packed[at - TABLE_BYTES : at]
                if not self.is_same(name, prefix) or self.fence_of(table_id) > start_ts:
                    return None
                known = self.columns.get(prefix, 0)
                if row_count:
                    prefixes.append(prefix)
                for row in range(row_count):
                    if size - at < ROW_HEAD_BYTES:
                        return None
                    key_size, count = little_endian(data + at, 2), little_endian(data + at + 2, 2)
                    cells_size, free_size = little_endian(data + at + 4, 4), little_endian(data + at + 8, 4)
                    at += ROW_HEAD_BYTES
                    if size - at < key_size + 2 * count + cells_size + free_size:
                        return None
                    key, begin = prefix + packed[at : at + key_size], at + key_size
                    at = begin + 2 * count
                    for index in range(count):
                        if little_endian(data + begin + 2 * index, 2) > known:
                            return None
                    if count and not conflict:
                        numbers = b"" if by_row else packed[begin:at]
                        met = self.search.row(self.cursor, key, numbers, start_ts, (), _unsettled)
                        if met is None:
                            return None
                        conflict = met[0]
                        if met[2]:
                            former.append(key)
                    begin = at + cells_size
                    at = begin + free_size
                    if is_foreign and not self.is_sound(
                        key, packed[begin - cells_size - 2 * count : begin - cells_size],
                        packed[begin - cells_size : begin], packed[begin:at], known,
                    ):
                        return None
                    written.append((key, packed[begin - cells_size : begin], packed[begin:at]))
            if at != size:
                return None
            if conflict:
                return -conflict
            for key in former:
                hidden = self.search.hidden(self.cursor, key, self.watermark, self.records_cleaned)
                if hidden is None:
                    return None
                gone += hidden
        except Unsettled:
            return None
        self.has_drawn = True
        commit_ts = self.clock = self.next_timestamp(self.clock)
        for key in gone:
            transaction.delete(key, db=cells_database)
        for key, cells, free in written:
            if cells:
                full = number_after(key, INT64_MAX - commit_ts)
                transaction.put(full, record_of(full, commit_ts, cells), db=cells_database)
            if free:
                full = number_after(key, INT64_MAX - commit_ts - FREE)
                transaction.put(full, record_of(full, commit_ts, free), db=cells_database)
            if not crc32(<const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), 0) & self.sample_mask:
                transaction.put(key, b"", db=self.samples)
        for prefix in prefixes:
            self.newest[prefix] = commit_ts
        return commit_ts
