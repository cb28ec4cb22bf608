"""Which cells of a resolved batch compaction drops, and which records need their shadow cells.

Per cell (protocol.md, "Compaction"; hazards K1, K3), for versions with start ≤ W:

    not committed                        is dropped
    commit > W                           stays: a reader between its predecessor's commit and its own needs both
    commit ≤ W                           the greatest version stays, the others are dropped
    hidden by a family tombstone         is dropped, if both committed ≤ W: no snapshot above W sees it
    family tombstone                     a later one supersedes it; a later value in its own column does not
    tombstone, itself the greatest ≤ W   is dropped only when nothing that it hides stays in this row
    value committed ≤ `expired_to`       the same: every snapshot above W reads it as a tombstone of its column (E2)

Versions with start > W stay as they are. A rule by start timestamps would get this history wrong (K1): v1 (start 10,
commit 20), v2 (start 30, commit 100), W = 50. A reader at 60 needs v1.

Tests compare the compiled pass with a reference implementation on random histories.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.protocol.native import version_cleanup as kernels

Indices = NDArray[np.int64]

dropped_cells = kernels.dropped_cells


def plan_cleaning(
    batch: CellBatch, watermark: int, orphans: Indices, resolved: Indices, expired_to: int = 0
) -> tuple[Indices, Indices]:
    """Return (heals, drops): ascending indices of records and of cells, for `DataStore.clean_batch`.

    `orphans`: sorted starts ≤ W that were sealed, and whose cells were read again after that; no other unresolved cell
    is dropped. `resolved`: records whose `rec_commit` came from the commit table. A record gets its shadow cell if any
    of its cells stays. `expired_to`: an expiry floor; every snapshot above `watermark` sees it or a higher one.
    """
    if not batch.rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    family, is_family_tombstone_column = _families(batch)
    starts = np.ascontiguousarray(orphans, dtype=np.int64)
    dropped = dropped_cells(batch.arrays(), family, is_family_tombstone_column, starts, expired_to, watermark)
    return _records_that_stay(batch, resolved, dropped), np.flatnonzero(dropped).astype(np.int64)


def _families(batch: CellBatch) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    numbers: dict[bytes, int] = {}
    family = [numbers.setdefault(column.family, len(numbers)) for column in batch.columns]
    return np.array(family, np.int32), np.array([not c.qualifier for c in batch.columns], np.bool_)


def _records_that_stay(batch: CellBatch, resolved: Indices, dropped: NDArray[np.bool_]) -> Indices:
    if not len(resolved):
        return np.empty(0, np.int64)
    dropped_before = np.zeros(batch.cells + 1, np.int64)
    np.cumsum(dropped, out=dropped_before[1:])
    begin, end = batch.rec_cell[resolved], batch.rec_cell[resolved + 1]
    staying = (end - begin) > (dropped_before[end] - dropped_before[begin])
    return np.sort(resolved[staying]).astype(np.int64)
