"""The compiled pass of `protocol.version_cleanup`, which says what it means."""

from __future__ import annotations

from typing import Any

from pyomid.arrays import NDArray, np
from pyomid.cells import TOMBSTONE, BatchArrays
from pyomid.kernels.compiled import kernel
from pyomid.types import TIMESTAMP_MAX, TIMESTAMP_STEP

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]


@kernel("boolean(int64, int64, int64)", _nrt=False)
def _is_covered(version: int, commit_ts: int, watermark: int) -> bool:
    """Whether it was committed and began at W or below: every snapshot above W sees it or its successor."""
    return 0 < commit_ts <= watermark and version - version % TIMESTAMP_STEP <= watermark


@kernel("boolean[::1](Fields(BatchArrays), int32[::1], boolean[::1], int64[::1], int64, int64)")
def dropped_cells(
    arrays: Any, family: Int32s, family_column: Bools, orphans: Int64s, expired_to: int, watermark: int
) -> Bools:
    """Whether each cell goes. `family` numbers each column's family; `family_column` marks columns with an empty
    qualifier; `orphans` are starts, ascending."""
    batch = BatchArrays(*arrays)
    row_rec, rec_version, rec_commit = batch.row_rec, batch.rec_version, batch.rec_commit
    rec_cell, cell_col, cell_len = batch.rec_cell, batch.cell_col, batch.cell_len
    n_cols = len(family)
    n_families = 0
    for col in range(n_cols):
        n_families = max(n_families, family[col] + 1)
    dropped = np.zeros(len(cell_col), np.bool_)
    greatest = np.full(n_cols, -1, np.int64)  # greatest version with commit ≤ W
    oldest_kept = np.full(n_cols, TIMESTAMP_MAX, np.int64)  # oldest version that stays for other reasons
    family_tombstone = np.full(n_families, -1, np.int64)
    family_oldest_kept = np.full(n_families, TIMESTAMP_MAX, np.int64)
    for row in range(len(row_rec) - 1):
        first, last = row_rec[row], row_rec[row + 1]
        for record in range(first, last):
            for cell in range(rec_cell[record], rec_cell[record + 1]):
                col = cell_col[cell]
                greatest[col] = -1
                oldest_kept[col] = TIMESTAMP_MAX
                family_tombstone[family[col]] = -1
                family_oldest_kept[family[col]] = TIMESTAMP_MAX
        for record in range(first, last):
            version, commit_ts = rec_version[record], rec_commit[record]
            orphan = False
            if commit_ts == 0:
                start = version - version % TIMESTAMP_STEP
                at = np.searchsorted(orphans, start)
                orphan = at < len(orphans) and orphans[at] == start
            for cell in range(rec_cell[record], rec_cell[record + 1]):
                col = cell_col[cell]
                if orphan:
                    dropped[cell] = True
                elif _is_covered(version, commit_ts, watermark):
                    greatest[col] = max(greatest[col], version)
                else:
                    oldest_kept[col] = min(oldest_kept[col], version)
                    family_oldest_kept[family[col]] = min(family_oldest_kept[family[col]], version)
        for record in range(first, last):
            version = rec_version[record]
            if not _is_covered(version, rec_commit[record], watermark):
                continue
            for cell in range(rec_cell[record], rec_cell[record + 1]):
                col = cell_col[cell]
                if family_column[col] and cell_len[cell] == TOMBSTONE:
                    family_tombstone[family[col]] = max(family_tombstone[family[col]], version)
        for record in range(first, last):
            version = rec_version[record]
            if not _is_covered(version, rec_commit[record], watermark):
                continue
            for cell in range(rec_cell[record], rec_cell[record + 1]):
                col = cell_col[cell]
                hidden_to = family_tombstone[family[col]]
                if family_column[col] and cell_len[cell] == TOMBSTONE:
                    dropped[cell] = version < hidden_to
                else:
                    dropped[cell] = version < greatest[col] or version <= hidden_to
        for record in range(first, last):
            version = rec_version[record]
            if not _is_covered(version, rec_commit[record], watermark):
                continue
            for cell in range(rec_cell[record], rec_cell[record + 1]):
                is_tombstone = cell_len[cell] == TOMBSTONE
                if dropped[cell] or not (is_tombstone or rec_commit[record] <= expired_to):
                    continue
                col = cell_col[cell]
                if family_column[col] and is_tombstone:
                    dropped[cell] = not family_oldest_kept[family[col]] <= version
                else:
                    dropped[cell] = not oldest_kept[col] < version
    return dropped
