"""A `CellBatch` for compiled code: its arrays as pointers, valid while the tuple of arrays lives."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    TOMBSTONE = -1
    TIMESTAMP_STEP = 50


cdef inline bint has_expired(int64_t commit_ts, int64_t expired_to) noexcept nogil:
    """Whether a value of this commit has expired. Below 10^18 (`types.FIRST_TIME`) a timestamp is no time."""
    return 1000000000000000000LL <= commit_ts <= expired_to


cdef inline int64_t start_of(int64_t version) noexcept nogil:
    """Return the start timestamp of the transaction that wrote the version."""
    return version - version % TIMESTAMP_STEP


cdef struct Batch:
    const uint8_t *buffer
    const int64_t *row_off
    const int32_t *row_len
    const int64_t *row_rec
    const int64_t *rec_version
    const int64_t *rec_commit
    const int64_t *rec_cell
    const int32_t *cell_col
    const int64_t *cell_off
    const int32_t *cell_len
    int64_t rows
    int64_t records
    int64_t cells


cdef inline Batch batch_of(tuple arrays) except *:
    """Return the pointers of `CellBatch.arrays()`."""
    cdef const uint8_t[::1] buffer = arrays[0]
    cdef const int64_t[::1] row_off = arrays[1]
    cdef const int32_t[::1] row_len = arrays[2]
    cdef const int64_t[::1] row_rec = arrays[3]
    cdef const int64_t[::1] rec_version = arrays[4]
    cdef const int64_t[::1] rec_commit = arrays[5]
    cdef const int64_t[::1] rec_cell = arrays[6]
    cdef const int32_t[::1] cell_col = arrays[7]
    cdef const int64_t[::1] cell_off = arrays[8]
    cdef const int32_t[::1] cell_len = arrays[9]
    cdef Batch batch
    batch.buffer, batch.row_off, batch.row_len = &buffer[0], &row_off[0], &row_len[0]
    batch.row_rec, batch.rec_version, batch.rec_commit = &row_rec[0], &rec_version[0], &rec_commit[0]
    batch.rec_cell, batch.cell_col = &rec_cell[0], &cell_col[0]
    batch.cell_off, batch.cell_len = &cell_off[0], &cell_len[0]
    batch.rows, batch.records, batch.cells = row_off.shape[0], rec_version.shape[0], cell_col.shape[0]
    return batch
