"""Compaction's rules, one row and cell at a time: what the compiled pass is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE, CellBatch
from pyomid.protocol.compaction import _records_that_stay
from pyomid.types import FIRST_TIME, start_of

Indices = NDArray[np.int64]


def plan_cleaning_plain(
    batch: CellBatch, watermark: int, orphans: Indices, resolved: Indices, expired_to: int = 0
) -> tuple[Indices, Indices]:
    """The reference implementation of `plan_cleaning`."""
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
    expired = {cell for cell, _, commit_ts, cleanable in cells if cleanable and FIRST_TIME <= commit_ts <= expired_to}
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
