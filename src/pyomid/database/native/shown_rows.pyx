"""The rows of a scan as Python objects, each created when it is iterated over.

Rows that the program does not keep are freed at once, before Python's garbage collector counts them.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from pyomid.native.batch cimport Batch, batch_of


cdef class ShownRows:
    """The visible rows of a batch (`CellBatch.arrays()`), as key and dict; rows without visible cells are omitted.
    `cells` and `row_cell` are those of `VisibleCells`, `names` the keys of the dicts by column."""

    cdef tuple arrays
    cdef Batch batch
    cdef const int64_t[::1] cells
    cdef const int64_t[::1] row_cell
    cdef list names
    cdef bint is_cleared

    def __init__(self, tuple arrays, const int64_t[::1] cells, const int64_t[::1] row_cell, list names):
        self.batch = batch_of(arrays)
        if row_cell.shape[0] != self.batch.rows + 1 or row_cell[self.batch.rows] > cells.shape[0]:
            raise ValueError(f"{self.batch.rows} rows have {row_cell.shape[0]} borders, of {cells.shape[0]} cells")
        self.arrays, self.cells, self.row_cell, self.names = arrays, cells, row_cell, names

    def __iter__(self):
        return _Iterator(self)

    def clear(self):
        """End all iterations: no more rows are returned."""
        self.is_cleared = True
        self.arrays = self.cells = self.row_cell = None


cdef class _Iterator:
    cdef ShownRows rows
    cdef int64_t at

    def __init__(self, ShownRows rows):
        self.rows = rows

    def __iter__(self):
        return self

    def __next__(self):
        cdef ShownRows rows = self.rows
        cdef Batch *batch = &rows.batch
        cdef list names = rows.names
        cdef const char *buffer = <const char *> batch.buffer
        cdef int64_t row, place, cell, column
        # Created before `is_cleared` is checked: CPython before 3.12 may collect garbage here, and a finalizer may end
        # the transaction. Until the return no other object is created that could start a collection.
        cdef dict found = {}
        while not rows.is_cleared and self.at < batch.rows:
            row = self.at
            self.at += 1
            if rows.row_cell[row] == rows.row_cell[row + 1]:
                continue
            for place in range(rows.row_cell[row], rows.row_cell[row + 1]):
                cell = rows.cells[place]
                column = batch.cell_col[cell]
                if column >= len(names):
                    raise IndexError(f"column {column} of {len(names)}")
                found[names[column]] = PyBytes_FromStringAndSize(buffer + batch.cell_off[cell], batch.cell_len[cell])
            return PyBytes_FromStringAndSize(buffer + batch.row_off[row], batch.row_len[row]), found
        raise StopIteration
