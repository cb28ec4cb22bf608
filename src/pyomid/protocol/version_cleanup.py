"""Which cells of a resolved batch compaction may drop, and which records need their shadow cells.

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

`plan_cleaning_plain` is the reference implementation; tests compare the kernel with it on random histories.
"""

from __future__ import annotations

from typing import Any

from pyomid.arrays import NDArray, np
from pyomid.cells import TOMBSTONE, CellBatch
from pyomid.protocol.native.version_cleanup import dropped_cells
from pyomid.types import start_of

Indices = NDArray[np.int64]


def plan_cleaning(
    batch: CellBatch, watermark: int, orphans: Indices, resolved: Indices, expired_to: int = 0
) -> tuple[Indices, Indices]:
    """(heals, drops): ascending indices of records and of cells, for `DataStore.clean_batch`.

    `orphans`: sorted starts ≤ W that were sealed, and whose cells were read again after that; no other unresolved cell
    is dropped. `resolved`: records whose `rec_commit` came from the commit table. A record gets its shadow cell if any
    of its cells stays. `expired_to`: a floor that every snapshot above `watermark` sees, or a higher one.
    """
    if not batch.rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if not dropped_cells.is_ready:
        return plan_cleaning_plain(batch, watermark, orphans, resolved, expired_to)
    family, is_family_tombstone_column = _families(batch)
    starts = np.ascontiguousarray(orphans, dtype=np.int64)
    dropped = dropped_cells(batch.arrays(), family, is_family_tombstone_column, starts, expired_to, watermark)
    return _records_that_stay(batch, resolved, dropped), np.flatnonzero(dropped).astype(np.int64)


def plan_cleaning_plain(
    batch: CellBatch, watermark: int, orphans: Indices, resolved: Indices, expired_to: int = 0
) -> tuple[Indices, Indices]:
    """Reference implementation: one row and cell at a time."""
    dropped = np.zeros(batch.cells, np.bool_)
    known_orphans = set(orphans.tolist())
    for row in range(batch.rows):
        for cell in _dropped_of_row(batch, row, watermark, known_orphans, expired_to):
            dropped[cell] = True
    return _records_that_stay(batch, resolved, dropped), np.flatnonzero(dropped).astype(np.int64)


def _dropped_of_row(batch: CellBatch, row: int, watermark: int, orphans: set[int], expired_to: int) -> set[int]:
    cells: list[tuple[int, int, int, bool]] = []  # index, version, commit, may be cleaned away
    drops: set[int] = set()
    for record in range(int(batch.row_rec[row]), int(batch.row_rec[row + 1])):
        version, commit_ts = int(batch.rec_version[record]), int(batch.rec_commit[record])
        cleanable = 0 < commit_ts <= watermark and start_of(version) <= watermark
        for cell in range(int(batch.rec_cell[record]), int(batch.rec_cell[record + 1])):
            if not commit_ts and start_of(version) in orphans:
                drops.add(cell)
            else:
                cells.append((cell, version, commit_ts, cleanable))
    column = {cell: batch.columns[int(batch.cell_col[cell])] for cell, *_ in cells}
    greatest: dict[Any, int] = {}
    family_tombstone: dict[bytes, int] = {}
    for cell, version, _, cleanable in cells:
        if cleanable:
            greatest[column[cell]] = max(version, greatest.get(column[cell], -1))
        if cleanable and _is_family_tombstone(batch, cell):
            family = column[cell].family
            family_tombstone[family] = max(version, family_tombstone.get(family, -1))
    kept: list[tuple[int, int, bool]] = []
    expired = {cell for cell, _, commit_ts, cleanable in cells if cleanable and commit_ts <= expired_to}
    for cell, version, _, cleanable in cells:
        hidden_to = family_tombstone.get(column[cell].family, -1)
        # A later value in its own column does not supersede a family tombstone, which still hides the other columns.
        if not cleanable:
            goes = False
        elif _is_family_tombstone(batch, cell):
            goes = version < hidden_to
        else:
            goes = version < greatest[column[cell]] or version <= hidden_to
        if goes:
            drops.add(cell)
        else:
            kept.append((cell, version, cleanable))
    rests = [
        (cell, version) for cell, version, cleanable in kept if not cleanable
    ]  # all that a cleanable cell can hide
    for cell, version, cleanable in kept:
        if not cleanable or (batch.cell_len[cell] != TOMBSTONE and cell not in expired):
            continue
        if _is_family_tombstone(batch, cell):
            hides = any(column[other].family == column[cell].family and v <= version for other, v in rests)
        else:
            hides = any(column[other] == column[cell] and v < version for other, v in rests)
        if not hides:
            drops.add(cell)
    return drops


def _is_family_tombstone(batch: CellBatch, cell: int) -> bool:
    return bool(batch.cell_len[cell] == TOMBSTONE) and not batch.columns[int(batch.cell_col[cell])].qualifier


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
