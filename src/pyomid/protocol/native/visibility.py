"""Compiled passes over the arrays of a `CellBatch`; `protocol.visibility` says what they mean."""

from __future__ import annotations

from typing import Any

from pyomid.arrays import NDArray, np
from pyomid.cells import BatchArrays
from pyomid.kernels.compiled import kernel
from pyomid.types import TIMESTAMP_STEP

Int64s = NDArray[np.int64]


@kernel("boolean(int64, int64[::1])")
def _is_own(version: int, own: Int64s) -> bool:
    if len(own) == 0:
        return False
    start = version - version % TIMESTAMP_STEP
    low, high = 0, len(own)
    while low < high:
        middle = (low + high) >> 1
        if own[middle] < start:
            low = middle + 1
        else:
            high = middle
    return bool(low < len(own) and own[low] == start)


@kernel("boolean(int64, int64, int64, int64[::1])", _nrt=False, forceinline=True)
def _is_visible(version: int, commit_ts: int, reader_start_ts: int, own: Int64s) -> bool:
    return 0 < commit_ts < reader_start_ts or _is_own(version, own)


@kernel("boolean(int64, int64, int64, int64[::1])", _nrt=False, forceinline=True)
def _is_unresolved(version: int, commit_ts: int, reader_start_ts: int, own: Int64s) -> bool:
    """Whether only the commit table can tell."""
    return commit_ts == 0 and version < reader_start_ts and not _is_own(version, own)


@kernel("int64[::1](int64[::1], int64[::1], int64, int64[::1])")
def unresolved_records(rec_version: Int64s, rec_commit: Int64s, reader_start_ts: int, own: Int64s) -> Int64s:
    found = np.empty(len(rec_version), dtype=np.int64)
    count = 0
    for record in range(len(rec_version)):
        if _is_unresolved(rec_version[record], rec_commit[record], reader_start_ts, own):
            found[count] = record
            count += 1
    return found[:count]


@kernel("int64[::1](int64[::1], int64[::1], int64, int64[::1])")
def unresolved(rec_version: Int64s, rec_commit: Int64s, reader_start_ts: int, own: Int64s) -> Int64s:
    """Starts of the unresolved records; runs of equal ones once, else in any order and number."""
    found = np.empty(len(rec_version), dtype=np.int64)
    count = 0
    for record in range(len(rec_version)):
        version = rec_version[record]
        if _is_unresolved(version, rec_commit[record], reader_start_ts, own):
            start = version - version % TIMESTAMP_STEP
            if count == 0 or found[count - 1] != start:
                found[count] = start
                count += 1
    return found[:count]


@kernel("int64[::1](int64[::1], int64[::1], int64[::1], int64[::1])")
def apply_commits(rec_version: Int64s, rec_commit: Int64s, starts: Int64s, commits: Int64s) -> Int64s:
    resolved = np.empty(len(rec_version), dtype=np.int64)
    count = 0
    last = 0
    for record in range(len(rec_version)):
        if rec_commit[record] != 0 or len(starts) == 0:
            continue
        start = rec_version[record] - rec_version[record] % TIMESTAMP_STEP
        if starts[last] != start:
            last = min(np.searchsorted(starts, start), len(starts) - 1)
        if starts[last] == start and commits[last] > 0:
            rec_commit[record] = commits[last]
            resolved[count] = record
            count += 1
    return resolved[:count]


@kernel("Tuple((int64[::1], int64[::1]))(Fields(BatchArrays), int64[::1], int64, int64[::1])")
def visible_cells(arrays: Any, tombstone_of: Int64s, reader_start_ts: int, own: Int64s) -> tuple[Int64s, Int64s]:
    """`tombstone_of[column]` is the column of its family's tombstone, -1 where there is none.

    `hidden_to[column]`, of such a column: the greatest visible tombstone in it. Values may stand there too.
    Per row and column the best version so far; a row with one visible record needs none of that. `touched` are the
    row's columns with a best version, kept ascending: cells come in one order of columns nearly always, so the
    insertion seldom moves anything.
    """
    batch = BatchArrays(*arrays)
    row_rec, rec_version, rec_commit = batch.row_rec, batch.rec_version, batch.rec_commit
    rec_cell, cell_col, cell_len = batch.rec_cell, batch.cell_col, batch.cell_len
    rows = len(row_rec) - 1
    selected = np.empty(len(cell_col), dtype=np.int64)
    row_cell = np.zeros(rows + 1, dtype=np.int64)
    best_cell = np.full(len(tombstone_of), -1, dtype=np.int64)
    best_version = np.zeros(len(tombstone_of), dtype=np.int64)
    hidden_to = np.full(len(tombstone_of), -1, dtype=np.int64)
    touched = np.empty(len(tombstone_of), dtype=np.int64)
    count = 0
    for row in range(rows):
        only, visible = row_rec[row], 0
        for record in range(row_rec[row], row_rec[row + 1]):
            if _is_visible(rec_version[record], rec_commit[record], reader_start_ts, own):
                only = record
                visible += 1
        first = count
        ascending = True
        if visible == 1:
            before = np.int64(-1)
            for cell in range(rec_cell[only], rec_cell[only + 1]):
                column = np.int64(cell_col[cell])
                if column <= before or tombstone_of[column] >= 0:
                    ascending = False
                    break
                before = column
                if cell_len[cell] >= 0:
                    selected[count] = cell
                    count += 1
        if visible > 1 or not ascending:
            count = first
            columns = 0
            for record in range(row_rec[row], row_rec[row + 1]):
                version = rec_version[record]
                if not _is_visible(version, rec_commit[record], reader_start_ts, own):
                    continue
                for cell in range(rec_cell[record], rec_cell[record + 1]):
                    column = np.int64(cell_col[cell])
                    if cell_len[cell] < 0 and tombstone_of[column] == column:
                        hidden_to[column] = max(hidden_to[column], version)
                    if best_cell[column] < 0:
                        place = columns
                        while place > 0 and touched[place - 1] > column:
                            touched[place] = touched[place - 1]
                            place -= 1
                        touched[place] = column
                        columns += 1
                    elif version <= best_version[column]:
                        continue
                    best_cell[column] = cell
                    best_version[column] = version
            for index in range(columns):
                chosen = touched[index]
                above = tombstone_of[chosen]
                hidden = above >= 0 and best_version[chosen] <= hidden_to[above]
                if cell_len[best_cell[chosen]] >= 0 and not hidden:
                    selected[count] = best_cell[chosen]
                    count += 1
            for index in range(columns):
                best_cell[touched[index]] = -1
                hidden_to[touched[index]] = -1
        row_cell[row + 1] = count
    return selected[:count], row_cell


@kernel("Tuple((int64[::1], int64[::1]))(int64[::1], int64[::1], int64[::1], int64[::1], int64)")
def unexpired_cells(
    rec_cell: Int64s, rec_commit: Int64s, cells: Int64s, row_cell: Int64s, expired_to: int
) -> tuple[Int64s, Int64s]:
    """Of the answer of `visible_cells` those that are committed above `expired_to`, or not committed: own ones."""
    kept = np.empty(len(cells), dtype=np.int64)
    kept_row_cell = np.zeros(len(row_cell), dtype=np.int64)
    count = 0
    for row in range(len(row_cell) - 1):
        for place in range(row_cell[row], row_cell[row + 1]):
            record = np.searchsorted(rec_cell, cells[place], side="right") - 1
            if not 0 < rec_commit[record] <= expired_to:
                kept[count] = cells[place]
                count += 1
        kept_row_cell[row + 1] = count
    return kept[:count], kept_row_cell
