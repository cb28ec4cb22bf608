"""The compiled pass of `protocol.compaction.plan_cleaning`."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from pyomid.native.batch cimport TOMBSTONE, Batch, batch_of, has_expired, start_of
from pyomid.native.search cimport lower_bound

from pyomid.arrays import np


cdef struct Rules:
    const int32_t *family  # each column's, by number
    const uint8_t *family_column  # 1 for columns with an empty qualifier
    const int64_t *orphans  # starts, ascending
    int64_t orphans_count
    int64_t expired_to
    int64_t watermark


# State per column and family of a row.
cdef struct Known:
    int64_t *greatest  # the column's greatest version with commit ≤ W
    int64_t *oldest_kept  # the column's oldest version that stays for other reasons
    int64_t *family_tombstone
    int64_t *family_oldest_kept


cdef inline bint is_covered(Batch *batch, int64_t record, int64_t watermark) noexcept nogil:
    """Whether start and commit are at or below W: every snapshot above W sees the record or its successor."""
    return 0 < batch.rec_commit[record] <= watermark and start_of(batch.rec_version[record]) <= watermark


cdef inline bint is_orphan(Batch *batch, int64_t record, Rules *rules) noexcept nogil:
    cdef int64_t start = start_of(batch.rec_version[record]), at
    if batch.rec_commit[record] != 0:
        return False
    at = lower_bound(rules.orphans, rules.orphans_count, start)
    return at < rules.orphans_count and rules.orphans[at] == start


cdef inline bint is_family_tombstone(Batch *batch, int64_t cell, Rules *rules) noexcept nogil:
    return rules.family_column[batch.cell_col[cell]] and batch.cell_len[cell] == TOMBSTONE


cdef void clean_row(Batch *batch, int64_t row, Rules *rules, Known *known, uint8_t *dropped) noexcept nogil:
    cdef int64_t first = batch.row_rec[row], last = batch.row_rec[row + 1], record, cell, column, family, version
    for cell in range(batch.rec_cell[first], batch.rec_cell[last]):
        column = batch.cell_col[cell]
        family = rules.family[column]
        known.greatest[column] = known.family_tombstone[family] = -1
        known.oldest_kept[column] = known.family_oldest_kept[family] = INT64_MAX
    for record in range(first, last):
        version = batch.rec_version[record]
        if is_orphan(batch, record, rules):
            for cell in range(batch.rec_cell[record], batch.rec_cell[record + 1]):
                dropped[cell] = True
            continue
        for cell in range(batch.rec_cell[record], batch.rec_cell[record + 1]):
            column = batch.cell_col[cell]
            family = rules.family[column]
            if is_covered(batch, record, rules.watermark):
                known.greatest[column] = max(known.greatest[column], version)
                if is_family_tombstone(batch, cell, rules):
                    known.family_tombstone[family] = max(known.family_tombstone[family], version)
            else:
                known.oldest_kept[column] = min(known.oldest_kept[column], version)
                known.family_oldest_kept[family] = min(known.family_oldest_kept[family], version)
    for record in range(first, last):
        if is_covered(batch, record, rules.watermark):
            for cell in range(batch.rec_cell[record], batch.rec_cell[record + 1]):
                dropped[cell] = goes(batch, record, cell, rules, known)


cdef bint goes(Batch *batch, int64_t record, int64_t cell, Rules *rules, Known *known) noexcept nogil:
    """Whether a cell of a covered record may be dropped: it is superseded or hidden, or it is a tombstone or an expired
    value that hides nothing."""
    cdef int64_t version = batch.rec_version[record], column = batch.cell_col[cell], family = rules.family[column]
    if is_family_tombstone(batch, cell, rules):
        return version < known.family_tombstone[family] or known.family_oldest_kept[family] > version
    if version < known.greatest[column] or version <= known.family_tombstone[family]:
        return True
    if batch.cell_len[cell] != TOMBSTONE and not has_expired(batch.rec_commit[record], rules.expired_to):
        return False
    return known.oldest_kept[column] >= version


def dropped_cells(
    tuple arrays, const int32_t[::1] family, const uint8_t[::1] family_column, const int64_t[::1] orphans,
    int64_t expired_to, int64_t watermark,
):
    """Return whether each cell is dropped. `family`: the number of each column's family; `family_column`: whether a
    column's qualifier is empty; `orphans`: starts, ascending."""
    cdef Batch batch = batch_of(arrays)
    cdef Rules rules = Rules(&family[0], &family_column[0], &orphans[0], orphans.shape[0], expired_to, watermark)
    cdef int64_t row
    dropped_ = np.zeros(batch.cells, dtype=np.bool_)
    cdef uint8_t[::1] dropped = dropped_
    cdef int64_t[:, ::1] state = np.empty((4, family.shape[0]), dtype=np.int64)  # no more families than columns
    cdef Known known = Known(&state[0, 0], &state[1, 0], &state[2, 0], &state[3, 0])
    with nogil:
        for row in range(batch.rows):
            clean_row(&batch, row, &rules, &known, &dropped[0])
    return dropped_
