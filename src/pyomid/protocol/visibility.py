"""Decide which versions a snapshot sees: in Python for single rows, and by compiled code for batches, with one result.

A version is visible to a reader at `reader_start_ts` if it is the reader's own, or if 0 < commit_ts < reader_start_ts.
(`own` holds the start timestamps under which the reader writes: its start and its branches.) In each column the
greatest visible version counts; if it is a tombstone, the column is absent. A visible family tombstone (empty
qualifier, no value) hides every version of its family that is not greater than its own version, even if its own column
was written later. A *value* under the empty qualifier, as HBase programs write it, is an ordinary value and hides
nothing (Omid: CellUtils.isFamilyDeleteCell).

A value committed between `FIRST_TIME` and `expired_to` has expired (E1). If it is the greatest visible version, the
column is absent. It still hides what it hid before.

A commit timestamp of 0 means "not committed" here, because the caller has looked up unresolved starts before
(`unresolved_starts`, `apply_commits`, the second fetch of protocol.md). `tests/core` compares both implementations on
random histories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.protocol.native import visibility as kernels
from pyomid.types import FIRST_TIME, Cell, Column, start_of

Indices: TypeAlias = "NDArray[np.int64]"

NO_STARTS: frozenset[int] = frozenset()
"""The argument `own` for a reader without own writes."""


# Row at a time: the cells of one row, in any order.


def unresolved_point(cells: Iterable[Cell], reader_start_ts: int, own: Collection[int] = NO_STARTS) -> list[int]:
    """Return the starts that only the commit table can resolve for this reader, ascending, each once."""
    versions = [cell.version for cell in cells if cell.commit_ts == 0 and cell.version < reader_start_ts]
    return sorted(set(map(start_of, versions)).difference(own)) if versions else []


def visible_point(
    cells: Sequence[Cell],
    reader_start_ts: int,
    own: Collection[int] = NO_STARTS,
    commits: Mapping[int, int] | None = None,
    expired_to: int = 0,
) -> dict[Column, bytes]:
    """Return the row as the reader sees it; it is empty if the row does not exist.

    `commits` (start → commit timestamp) resolves the cells that have no shadow cell. A start that is missing there, or
    maps to 0 or less (`NOT_FOUND`, `SEALED`), is not committed.
    """
    row: dict[Column, bytes] = {}
    for cell in cells:
        value = cell.value
        if value is None or cell.version != cells[0].version or not expired_to < cell.commit_ts < reader_start_ts:
            break
        row[Column(cell.family, cell.qualifier)] = value
    else:
        return row  # the common case, values of one version; the general code below gives the same result
    known = commits or {}
    best: dict[Column, Cell] = {}
    hidden_to: dict[bytes, int] = {}
    for cell in cells:
        if not 0 < cell.commit_ts < reader_start_ts:
            start = start_of(cell.version)
            if start not in own and not 0 < (cell.commit_ts or known.get(start, 0)) < reader_start_ts:
                continue
        column = Column(cell.family, cell.qualifier)
        if not cell.qualifier and cell.value is None:
            hidden_to[cell.family] = max(cell.version, hidden_to.get(cell.family, 0))
        found = best.get(column)
        if found is None or cell.version > found.version:
            best[column] = cell
    return {
        column: cell.value
        for column, cell in best.items()
        if cell.value is not None
        and cell.version > hidden_to.get(column.family, 0)
        and not FIRST_TIME <= (cell.commit_ts or known.get(start_of(cell.version), 0)) <= expired_to
    }


# Vectorized: a batch of complete rows.


@dataclass(frozen=True, slots=True)
class VisibleCells:
    """The values of a batch that a reader sees. The values of row i are `cells[row_cell[i] : row_cell[i + 1]]`.

    `cells` are indices into the batch's cells; within a row they ascend by `cell_col`, one per column, without
    tombstones. A row without values does not exist for the reader.
    """

    cells: Indices
    row_cell: Indices

    def rows_present(self) -> Indices:
        """Return the indices of the batch's rows that exist for the reader."""
        return np.flatnonzero(self.row_cell[1:] > self.row_cell[:-1])


def unresolved_starts(batch: CellBatch, reader_start_ts: int, own: Collection[int] = NO_STARTS) -> Indices:
    """Return the starts that only the commit table can resolve for this reader, ascending, each once."""
    found = kernels.unresolved(batch.rec_version, batch.rec_commit, reader_start_ts, _sorted(own))
    return np.unique(found) if len(found) else found


def apply_commits(batch: CellBatch, starts: Indices, commits: Indices) -> Indices:
    """Write the commit table's answers into `rec_commit`. Return the indices of the records that this resolved,
    ascending.

    `starts` must ascend. A commit of 0 or less leaves its records unresolved.
    """
    return kernels.apply_commits(batch.rec_version, batch.rec_commit, starts, commits)


def unresolved_records(batch: CellBatch, reader_start_ts: int, own: Collection[int] = NO_STARTS) -> Indices:
    """Return the indices of the records that are still unresolved, ascending."""
    return kernels.unresolved_records(batch.rec_version, batch.rec_commit, reader_start_ts, _sorted(own))


def visible_cells(
    batch: CellBatch, reader_start_ts: int, own: Collection[int] = NO_STARTS, expired_to: int = 0
) -> VisibleCells:
    """Return the cells of the batch that the reader sees. This takes one compiled pass (a few nanoseconds per cell),
    and another if values expire."""
    tombstone_of = _family_tombstone_columns(batch.columns)
    found = kernels.visible_cells(batch.arrays(), tombstone_of, reader_start_ts, _sorted(own))
    if expired_to:
        found = kernels.unexpired_cells(batch.rec_cell, batch.rec_commit, *found, expired_to)
    return VisibleCells(*found)


def _sorted(own: Collection[int]) -> Indices:
    return np.array(sorted(own), dtype=np.int64)


def _family_tombstone_columns(columns: Sequence[Column]) -> Indices:
    """Return, for each column, the index of its family's tombstone column, or -1 if the batch has none."""
    of_family = {column.family: index for index, column in enumerate(columns) if not column.qualifier}
    return np.array([of_family.get(column.family, -1) for column in columns], dtype=np.int64)
