"""Whether a commit may write a row, by the row's records: the decision of a folder, row by row.

A commit conflicts with a record that committed at or above its snapshot and has one of its cells (at level row: with
any). The records of a row descend by version, and for one cell the order of versions is the order of commits, so the
search of a cell ends at its first committed record. A record of an open branch is no conflict for the commit, but the
commit is one for the branch: the caller notes it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t
from libc.string cimport memcmp, memset

from pyomid.native.numbers cimport big_endian, little_endian
from pyomid.folder.native.records cimport ABSENT, HEADER_BYTES, VERSION_BYTES, cells_head, next_cell

cdef enum:
    STEP = 50
    COLUMNS_MAX = 65536

cdef enum:
    OPEN = 0
    SEALED = -1


cdef int64_t marked(
    const uint8_t *data, int64_t size, uint8_t *wanted, bint clear
) noexcept nogil:
    """Return how many cells of the record are wanted; -1 if the record is malformed. `clear`: no longer want them."""
    cdef const uint8_t *codes
    cdef int64_t at = HEADER_BYTES, count = cells_head(data, &at, size, &codes), index, number, length, found = 0
    if count < 0:
        return -1
    for index in range(count):
        number = next_cell(data, codes, index, &at, size, &length)
        if number < 1 or number >= COLUMNS_MAX:
            return -1
        if length == ABSENT:
            continue
        if wanted[number]:
            found += 1
            if clear:
                wanted[number] = 0
        if length > 0:
            at += length
    return found


cdef class Search:
    """The wanted columns of one row at a time. One thread at a time may use it."""

    cdef uint8_t wanted[COLUMNS_MAX]

    def __init__(self):
        memset(self.wanted, 0, COLUMNS_MAX)

    def row(self, cursor, bytes row, bytes numbers, int64_t start_ts, own, state_of):
        """Return (commit timestamp of the first conflict or 0, starts of the open branches met, whether the row has any
        record); None if a record is malformed.

        `cursor`: over the records. `row`: the row's key without a version. `numbers`: of the columns, 2 bytes each;
        empty at level row. `own`: starts whose records are the commit's own. `state_of`: start of a branch → its commit
        timestamp, OPEN, or SEALED if it never commits.
        """
        cdef int64_t left = PyBytes_GET_SIZE(numbers) // 2, row_size = PyBytes_GET_SIZE(row), size, version, commit_ts, hits
        cdef const uint16_t *number = <const uint16_t *> PyBytes_AS_STRING(numbers)
        cdef const uint8_t *data
        cdef bint whole = left == 0, is_there = False
        cdef int64_t index, conflict = 0, count = left
        cdef list met = []
        cdef bytes key, value
        for index in range(count):
            self.wanted[number[index]] = 1
        try:
            more = cursor.set_range(row)
            while more:
                key = cursor.key()
                if PyBytes_GET_SIZE(key) != row_size + VERSION_BYTES or memcmp(
                    PyBytes_AS_STRING(key), PyBytes_AS_STRING(row), row_size
                ) != 0:
                    break
                is_there = True
                value = cursor.value()
                data, size = <const uint8_t *> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
                if size < HEADER_BYTES:
                    return None
                version = INT64_MAX - big_endian(<const uint8_t *> PyBytes_AS_STRING(key) + row_size, VERSION_BYTES)
                commit_ts = little_endian(data + 4, 8)
                start = version - version % STEP
                if commit_ts == 0 and start not in own:
                    commit_ts = state_of(start)
                if start in own or commit_ts == SEALED or version % STEP:
                    more = cursor.next()
                    continue
                if commit_ts == OPEN or commit_ts >= start_ts:
                    hits = 1 if whole else marked(data, size, self.wanted, False)
                    if hits < 0:
                        return None
                    if hits and commit_ts == OPEN:
                        met.append(start)
                    elif hits:
                        conflict = commit_ts
                        break
                elif whole:
                    break
                else:
                    hits = marked(data, size, self.wanted, True)
                    if hits < 0:
                        return None
                    left -= hits
                    if left <= 0:
                        break
                more = cursor.next()
            return conflict, met, is_there
        finally:
            for index in range(count):
                self.wanted[number[index]] = 0

    def greatest(self, bytes cells, bytes numbers):
        """Return the greatest column number of encoded cells; 0 if they are malformed, or have other columns than
        `numbers` (2 bytes each), unless that is empty."""
        cdef int64_t size = PyBytes_GET_SIZE(cells), left = PyBytes_GET_SIZE(numbers) // 2, at = 0, greatest = 0
        cdef const uint16_t *named = <const uint16_t *> PyBytes_AS_STRING(numbers)
        cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(cells)
        cdef const uint8_t *codes
        cdef int64_t index, number, length, wanted = left, count = cells_head(data, &at, size, &codes)
        try:
            for index in range(wanted):
                self.wanted[named[index]] = 1
            for index in range(count):
                number = next_cell(data, codes, index, &at, size, &length)
                if number < 1 or number >= COLUMNS_MAX:
                    return 0
                if length == ABSENT:
                    continue
                if wanted and not self.wanted[number]:
                    return 0
                self.wanted[number] = 0
                left -= 1
                greatest = max(greatest, number)
                if length > 0:
                    at += length
            return greatest if at == size and (not wanted or left == 0) else 0
        finally:
            for index in range(wanted):
                self.wanted[named[index]] = 0

    def hidden(self, cursor, bytes row, int64_t watermark, int64_t records):
        """Return the keys of records that no snapshot above the watermark reads: each of their cells has a newer record
        that committed at or below it, and so did they. It looks at the newest `records` records of the row. None if
        one is malformed.

        `cursor`: over the records. `row`: the row's key without a version.
        """
        cdef int64_t row_size = PyBytes_GET_SIZE(row), size, commit_ts, at, index, count, number, length, shown
        cdef const uint8_t *data
        cdef const uint8_t *codes
        cdef list found = [], covered = []
        cdef bytes key, value
        try:
            more = cursor.set_range(row)
            while more and records > 0:
                records -= 1
                key = cursor.key()
                if PyBytes_GET_SIZE(key) != row_size + VERSION_BYTES or memcmp(
                    PyBytes_AS_STRING(key), PyBytes_AS_STRING(row), row_size
                ) != 0:
                    break
                value = cursor.value()
                data, size = <const uint8_t *> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
                if size < HEADER_BYTES:
                    return None
                commit_ts = little_endian(data + 4, 8)
                if 0 < commit_ts <= watermark:
                    at, shown = HEADER_BYTES, 0
                    count = cells_head(data, &at, size, &codes)
                    if count < 0:
                        return None
                    for index in range(count):
                        number = next_cell(data, codes, index, &at, size, &length)
                        if number < 1 or number >= COLUMNS_MAX:
                            return None
                        if length == ABSENT:
                            continue
                        if not self.wanted[number]:
                            self.wanted[number] = 1
                            covered.append(number)
                            shown += 1
                        if length > 0:
                            at += length
                    if not shown:
                        found.append(key)
                more = cursor.next()
            return found
        finally:
            for index in covered:
                self.wanted[index] = 0
