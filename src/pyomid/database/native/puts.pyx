"""Puts of valid cells in known columns: checked and buffered by one call.

`put_known` does for such a put what `TableRules` and `WriteBuffer` do, and refuses any other. The classes here have the
fields of a transaction that it needs; their Python subclasses describe them.
"""

from libc.stdint cimport INT64_MAX, int64_t


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object)

cpdef enum:
    CELL_OVERHEAD_BYTES = 40  # Estimated overhead of a buffered cell; it only decides when to flush.


cdef class Backlog:
    """What a transaction has buffered (`Outbox`)."""

    cdef public int64_t _buffered_bytes
    cdef public int64_t _flush_bytes

    @property
    def is_flush_due(self):
        """Whether the buffered writes should be sent."""
        return self._buffered_bytes >= self._flush_bytes


cdef class IdCount:
    """How many ids the commit will have (`CommitIds`)."""

    cdef public int64_t noted
    cdef public int64_t noted_max
    cdef public int64_t _claimed
    cdef public set _named
    cdef public dict _buffers

    def __init__(self, int64_t ids_max, dict buffers):
        self.noted_max = ids_max or INT64_MAX
        self._buffers = buffers

    def add(self, int64_t ids):
        """Note more ids. Return whether they may be too many."""
        self.noted += ids
        return self.noted > self.noted_max


cdef class Buffered:
    """The unsent cells of one table (`WriteBuffer`)."""

    cdef public dict rows
    cdef public int64_t buffered_bytes
    cdef public int64_t _by_cell
    cdef public int64_t _by_row


cdef class KnownColumns:
    """Column names that were checked, and the limits of the store (`TableRules`)."""

    cdef public dict _columns
    cdef public int64_t _surely_fits
    cdef public int64_t _value_bytes_max


def put_known(Backlog backlog, IdCount ids, Buffered buffer, KnownColumns rules, key, cells):
    """Buffer a put of valid cells in known columns. False, and nothing is buffered, if it needs the full checks."""
    cdef dict given, present, checked = {}
    cdef int64_t added, more, size
    if type(key) is not bytes or type(cells) is not dict:
        return False
    given = cells
    size = len(<bytes> key)
    more = buffer._by_cell * len(given) + buffer._by_row
    if not 0 < size <= rules._surely_fits or not given or ids.noted > ids.noted_max - more:
        return False
    added = size + CELL_OVERHEAD_BYTES * len(given)
    for name, value in given.items():
        if type(name) is not bytes or type(value) is not bytes:
            return False
        size = len(<bytes> value)
        column = rules._columns.get(name)
        if column is None or not 0 < size <= rules._value_bytes_max:
            return False
        checked[column] = value
        added += size
    PyObject_GC_UnTrack(checked)  # it holds only bytes and columns: many of them would make each collection slow
    ids.noted += more
    backlog._buffered_bytes += added
    buffer.buffered_bytes += added
    present = buffer.rows.setdefault(key, checked)
    if present is not checked:
        present.update(checked)
    return True
