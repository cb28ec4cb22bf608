"""Compiled passes over the arrays of a `CellBatch`; `protocol.visibility` defines them."""

from libc.stdint cimport int64_t

from pyomid.native.batch cimport Batch, batch_of, has_expired, start_of
from pyomid.native.search cimport lower_bound

from pyomid.arrays import np


# A reader's start timestamp, and the starts of its own writes, ascending.
cdef struct Reader:
    int64_t start_ts
    const int64_t *own
    int64_t own_count


cdef inline Reader reader_of(int64_t start_ts, const int64_t[::1] own) noexcept nogil:
    return Reader(start_ts, &own[0], own.shape[0])


cdef inline bint is_own(Reader *reader, int64_t version) noexcept nogil:
    cdef int64_t start, at
    if reader.own_count == 0:
        return False
    start = start_of(version)
    at = lower_bound(reader.own, reader.own_count, start)
    return at < reader.own_count and reader.own[at] == start


cdef inline bint is_visible(Reader *reader, int64_t version, int64_t commit_ts) noexcept nogil:
    return 0 < commit_ts < reader.start_ts or is_own(reader, version)


cdef inline bint is_unresolved(Reader *reader, int64_t version, int64_t commit_ts) noexcept nogil:
    """Whether only the commit table can resolve the version."""
    return commit_ts == 0 and version < reader.start_ts and not is_own(reader, version)


def unresolved_records(
    const int64_t[::1] rec_version, const int64_t[::1] rec_commit, int64_t reader_start_ts, const int64_t[::1] own
):
    found_ = np.empty(rec_version.shape[0], dtype=np.int64)
    cdef int64_t[::1] found = found_
    cdef Reader reader = reader_of(reader_start_ts, own)
    cdef int64_t count = 0, record
    with nogil:
        for record in range(rec_version.shape[0]):
            if is_unresolved(&reader, rec_version[record], rec_commit[record]):
                found[count] = record
                count += 1
    return found_[:count]


def unresolved(
    const int64_t[::1] rec_version, const int64_t[::1] rec_commit, int64_t reader_start_ts, const int64_t[::1] own
):
    """Return the starts of the unresolved records, in any order; repeated starts are merged only within a run."""
    found_ = np.empty(rec_version.shape[0], dtype=np.int64)
    cdef int64_t[::1] found = found_
    cdef Reader reader = reader_of(reader_start_ts, own)
    cdef int64_t count = 0, record, start
    with nogil:
        for record in range(rec_version.shape[0]):
            if is_unresolved(&reader, rec_version[record], rec_commit[record]):
                start = start_of(rec_version[record])
                if count == 0 or found[count - 1] != start:
                    found[count] = start
                    count += 1
    return found_[:count]


def apply_commits(
    const int64_t[::1] rec_version, int64_t[::1] rec_commit, const int64_t[::1] starts, const int64_t[::1] commits
):
    """Return the records that got a commit timestamp. `starts` ascend."""
    resolved_ = np.empty(rec_version.shape[0], dtype=np.int64)
    cdef int64_t[::1] resolved = resolved_
    cdef int64_t known = starts.shape[0], count = 0, last = 0, record, start
    with nogil:
        for record in range(rec_version.shape[0] if known else 0):
            if rec_commit[record] != 0:
                continue
            start = start_of(rec_version[record])
            if starts[last] != start:
                last = min(lower_bound(&starts[0], known, start), known - 1)
            if starts[last] == start and commits[last] > 0:
                rec_commit[record] = commits[last]
                resolved[count] = record
                count += 1
    return resolved_[:count]


# State per column of a row.
cdef struct Columns:
    const int64_t *tombstone_of
    int64_t *best_cell  # -1: none yet
    int64_t *best_version
    int64_t *hidden_to  # in a family's tombstone column: its greatest visible tombstone. The column may hold values too
    int64_t *touched  # columns with a best version, ascending: nearly always the order of cells, so few are moved
    int64_t count  # of touched columns


cdef int64_t select_only(
    Batch *batch, int64_t record, const int64_t *tombstone_of, int64_t *selected, int64_t count
) noexcept nogil:
    """Append the values of a row's only visible record to `selected`; -1 if the general pass is needed."""
    cdef int64_t before = -1, cell, column
    for cell in range(batch.rec_cell[record], batch.rec_cell[record + 1]):
        column = batch.cell_col[cell]
        if column <= before or tombstone_of[column] >= 0:
            return -1
        before = column
        if batch.cell_len[cell] >= 0:
            selected[count] = cell
            count += 1
    return count


cdef void take_record(Batch *batch, int64_t record, Columns *columns) noexcept nogil:
    """Take the record's cells that are the best of their columns."""
    cdef int64_t version = batch.rec_version[record], cell, column, place
    for cell in range(batch.rec_cell[record], batch.rec_cell[record + 1]):
        column = batch.cell_col[cell]
        if batch.cell_len[cell] < 0 and columns.tombstone_of[column] == column:
            columns.hidden_to[column] = max(columns.hidden_to[column], version)
        if columns.best_cell[column] < 0:
            place = columns.count
            while place > 0 and columns.touched[place - 1] > column:
                columns.touched[place] = columns.touched[place - 1]
                place -= 1
            columns.touched[place] = column
            columns.count += 1
        elif version <= columns.best_version[column]:
            continue
        columns.best_cell[column], columns.best_version[column] = cell, version


cdef int64_t select_best(Batch *batch, Columns *columns, int64_t *selected, int64_t count) noexcept nogil:
    """Append the best values that no tombstone hides to `selected`, and reset the columns."""
    cdef int64_t index, column, above
    for index in range(columns.count):
        column = columns.touched[index]
        above = columns.tombstone_of[column]
        if batch.cell_len[columns.best_cell[column]] >= 0 and not (
            above >= 0 and columns.best_version[column] <= columns.hidden_to[above]
        ):
            selected[count] = columns.best_cell[column]
            count += 1
    for index in range(columns.count):
        column = columns.touched[index]
        columns.best_cell[column] = columns.hidden_to[column] = -1
    columns.count = 0
    return count


def visible_cells(tuple arrays, const int64_t[::1] tombstone_of, int64_t reader_start_ts, const int64_t[::1] own):
    """Return (cells, row_cell) of `VisibleCells`. `tombstone_of[column]`: the column of its family's tombstone, or
    -1."""
    cdef Batch batch = batch_of(arrays)
    cdef Reader reader = reader_of(reader_start_ts, own)
    cdef int64_t row, record, only, visible, chosen, count = 0
    selected_, row_cell_ = np.empty(batch.cells, dtype=np.int64), np.zeros(batch.rows + 1, dtype=np.int64)
    cdef int64_t[::1] selected = selected_, row_cell = row_cell_
    cdef int64_t[:, ::1] state = np.empty((4, tombstone_of.shape[0]), dtype=np.int64)
    cdef Columns columns = Columns(&tombstone_of[0], &state[0, 0], &state[1, 0], &state[2, 0], &state[3, 0], 0)
    with nogil:
        for chosen in range(tombstone_of.shape[0]):
            columns.best_cell[chosen] = columns.hidden_to[chosen] = -1
        for row in range(batch.rows):
            only, visible = 0, 0
            for record in range(batch.row_rec[row], batch.row_rec[row + 1]):
                if is_visible(&reader, batch.rec_version[record], batch.rec_commit[record]):
                    only = record
                    visible += 1
            chosen = count
            if visible == 1:
                chosen = select_only(&batch, only, &tombstone_of[0], &selected[0], count)
            if visible > 1 or chosen < 0:
                for record in range(batch.row_rec[row], batch.row_rec[row + 1]):
                    if is_visible(&reader, batch.rec_version[record], batch.rec_commit[record]):
                        take_record(&batch, record, &columns)
                chosen = select_best(&batch, &columns, &selected[0], count)
            count = chosen
            row_cell[row + 1] = count
    return selected_[:count], row_cell_


def unexpired_cells(
    const int64_t[::1] rec_cell, const int64_t[::1] rec_commit, const int64_t[::1] cells, const int64_t[::1] row_cell,
    int64_t expired_to,
):
    """Return the result of `visible_cells` without expired cells. Uncommitted own cells stay."""
    kept_, kept_row_cell_ = np.empty(cells.shape[0], dtype=np.int64), np.zeros(row_cell.shape[0], dtype=np.int64)
    cdef int64_t[::1] kept = kept_, kept_row_cell = kept_row_cell_
    cdef int64_t count = 0, row, place, record
    with nogil:
        for row in range(row_cell.shape[0] - 1):
            for place in range(row_cell[row], row_cell[row + 1]):
                record = lower_bound(&rec_cell[0], rec_cell.shape[0], cells[place] + 1) - 1
                if not has_expired(rec_commit[record], expired_to):
                    kept[count] = cells[place]
                    count += 1
            kept_row_cell[row + 1] = count
    return kept_[:count], kept_row_cell_
