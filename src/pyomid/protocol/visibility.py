"""What a snapshot sees of versioned cells: one definition, in Python for single rows and compiled for batches.

A version is visible to a reader at `reader_start_ts` if it is the reader's own (`own` holds the start timestamps
under which it writes: its start and its branches), or if it was committed at 0 < commit_ts < reader_start_ts. Of each
column the greatest visible version counts; if it is a tombstone, the column is absent. A visible family tombstone
(empty qualifier, no value) hides every version of its family that is not greater than its own version, whatever was
written to its own column later. A *value* under the empty qualifier, as HBase programs write it, is a value like any
other and hides nothing (Omid: CellUtils.isFamilyDeleteCell).

A value that was committed at or below `expired_to` has expired (E1): where it is the greatest visible version, the
column is absent. It hides what it hid before.

A commit timestamp of 0 counts as "not committed" here. The caller has looked it up before: `unresolved_starts`, then
`apply_commits`, then the second fetch of protocol.md. `tests/core` compares both implementations on random histories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.kernels.compiled import now
from pyomid.protocol.native import visibility as kernels
from pyomid.types import Cell, Column, start_of

Indices = NDArray[np.int64]

NO_STARTS: frozenset[int] = frozenset()
"""`own` of a reader without own writes."""


# Row at a time: the cells of one row, in any order.


def unresolved_point(cells: Iterable[Cell], reader_start_ts: int, own: Collection[int] = NO_STARTS) -> list[int]:
    """Starts that only the commit table can explain to this reader: ascending, each once."""
    versions = [cell.version for cell in cells if cell.commit_ts == 0 and cell.version < reader_start_ts]
    return sorted(set(map(start_of, versions)).difference(own)) if versions else []


def visible_point(
    cells: Sequence[Cell],
    reader_start_ts: int,
    own: Collection[int] = NO_STARTS,
    commits: Mapping[int, int] | None = None,
    expired_to: int = 0,
) -> dict[Column, bytes]:
    """The row as the reader sees it; empty if it does not exist.

    `commits` (start → commit timestamp) explains cells without a shadow cell. A start that is missing there, or has 0
    or less (`NOT_FOUND`, `SEALED`), is not committed.
    """
    row: dict[Column, bytes] = {}
    for cell in cells:
        value = cell.value
        if value is None or cell.version != cells[0].version or not expired_to < cell.commit_ts < reader_start_ts:
            break
        row[Column(cell.family, cell.qualifier)] = value
    else:
        return row  # values of one version, as of most rows: what follows says the same
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
        and not 0 < (cell.commit_ts or known.get(start_of(cell.version), 0)) <= expired_to
    }


# Vectorized: a batch of whole rows.


@dataclass(frozen=True, slots=True)
class VisibleCells:
    """What a reader sees of a batch: `cells[row_cell[i] : row_cell[i + 1]]` are row i's values.

    They are indices into the batch's cells: within a row in ascending order of `cell_col`, one for each column, no
    tombstones. A row without any does not exist for the reader.
    """

    cells: Indices
    row_cell: Indices

    def rows_present(self) -> Indices:
        """Indices of the batch's rows that exist for the reader."""
        return np.flatnonzero(self.row_cell[1:] > self.row_cell[:-1])


def unresolved_starts(batch: CellBatch, reader_start_ts: int, own: Collection[int] = NO_STARTS) -> Indices:
    """Starts that only the commit table can explain to this reader: ascending, each once."""
    found = now(kernels.unresolved, batch.rows)(batch.rec_version, batch.rec_commit, reader_start_ts, _sorted(own))
    return np.unique(found)


def apply_commits(batch: CellBatch, starts: Indices, commits: Indices) -> Indices:
    """Writes the commit table's answers into `rec_commit`; returns the records that this resolved, ascending.

    `starts` ascend. A commit of 0 or less leaves its records unresolved.
    """
    return now(kernels.apply_commits, batch.rows)(batch.rec_version, batch.rec_commit, starts, commits)


def unresolved_records(batch: CellBatch, reader_start_ts: int, own: Collection[int] = NO_STARTS) -> Indices:
    """Indices of the records that are still unresolved, ascending: the rows to fetch again."""
    return now(kernels.unresolved_records, batch.rows)(
        batch.rec_version, batch.rec_commit, reader_start_ts, _sorted(own)
    )


def visible_cells(
    batch: CellBatch, reader_start_ts: int, own: Collection[int] = NO_STARTS, expired_to: int = 0
) -> VisibleCells:
    """The batch as the reader sees it: one compiled pass, a few nanoseconds a cell, and another where values expire."""
    tombstone_of = _family_tombstone_columns(batch.columns)
    found = now(kernels.visible_cells, batch.rows)(batch.arrays(), tombstone_of, reader_start_ts, _sorted(own))
    if expired_to:
        found = now(kernels.unexpired_cells, batch.rows)(batch.rec_cell, batch.rec_commit, *found, expired_to)
    return VisibleCells(*found)


def _sorted(own: Collection[int]) -> Indices:
    return np.array(sorted(own), dtype=np.int64)


def _family_tombstone_columns(columns: Sequence[Column]) -> Indices:
    """For each column the index of its family's tombstone column; -1 if the batch has none."""
    of_family = {column.family: index for index, column in enumerate(columns) if not column.qualifier}
    return np.array([of_family.get(column.family, -1) for column in columns], dtype=np.int64)
