"""The arrays of a `CellBatch`, of rows as dicts: one record per row."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from pyomid.native.batch cimport TOMBSTONE

from pyomid.arrays import np

CHANGED = "the rows changed while they were copied: a finalizer or another thread wrote to them"


def records_of(list keys, list rows):
    """Return (buffer, columns, row_off, row_len, rec_cell, cell_col, cell_off, cell_len): all keys, then all values.

    `rows`: for each key a dict of column → value, None for a tombstone. A column's index is the place of its first cell
    among all columns.
    """
    cdef int64_t row, rows_in = len(keys), cells_in = 0, cell = 0, key_at = 0, value_at = 0, size = 0, length, stop
    cdef dict cells, columns = {}
    cdef bytes key, value
    cdef int32_t number
    cdef object before = None, column, found
    if len(rows) != rows_in:
        raise ValueError(f"{rows_in} keys and {len(rows)} rows")
    for row in range(rows_in):
        key, cells = keys[row], rows[row]
        if key is None or cells is None:
            raise TypeError("a row without key or cells")
        value_at += PyBytes_GET_SIZE(key)
        cells_in += len(cells)
        for found in cells.values():
            if found is not None:
                value = found
                length = PyBytes_GET_SIZE(value)
                if length > INT32_MAX:
                    raise ValueError(f"a value of {length} bytes")
                size += length
    stop = value_at + size
    buffer_ = np.empty(stop, dtype=np.uint8)
    row_off_, row_len_ = np.empty(rows_in, dtype=np.int64), np.empty(rows_in, dtype=np.int32)
    rec_cell_ = np.zeros(rows_in + 1, dtype=np.int64)
    cell_col_, cell_len_ = np.empty(cells_in, dtype=np.int32), np.empty(cells_in, dtype=np.int32)
    cell_off_ = np.empty(cells_in, dtype=np.int64)
    cdef uint8_t[::1] buffer = buffer_
    cdef int64_t[::1] row_off = row_off_, rec_cell = rec_cell_, cell_off = cell_off_
    cdef int32_t[::1] row_len = row_len_, cell_col = cell_col_, cell_len = cell_len_
    cdef uint8_t *out = &buffer[0]
    number = 0
    for row in range(rows_in):
        key, cells = keys[row], rows[row]
        length = PyBytes_GET_SIZE(key)
        row_off[row], row_len[row] = key_at, <int32_t> length
        memcpy(out + key_at, PyBytes_AS_STRING(key), length)
        key_at += length
        for column, found in cells.items():
            if cell == cells_in:
                raise RuntimeError(CHANGED)
            if column is not before:  # nearly always the same object
                number = columns.setdefault(column, len(columns))
                before = column
            cell_col[cell], cell_off[cell], cell_len[cell] = number, value_at, TOMBSTONE
            if found is not None:
                value = found
                length = PyBytes_GET_SIZE(value)
                if length > stop - value_at:
                    raise RuntimeError(CHANGED)
                cell_len[cell] = <int32_t> length
                memcpy(out + value_at, PyBytes_AS_STRING(value), length)
                value_at += length
            cell += 1
        rec_cell[row + 1] = cell
    if cell != cells_in or value_at != stop:
        raise RuntimeError(CHANGED)
    return buffer_, list(columns), row_off_, row_len_, rec_cell_, cell_col_, cell_off_, cell_len_
