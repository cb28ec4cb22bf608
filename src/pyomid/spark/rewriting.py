"""Writing the cells of branches again under a branch of a later transaction.

A blind write that lost may be decided again under a new snapshot, but not with its old branches: the version of the
winner can lie between them and the new start, and would hide cells that were committed after it. So the cells are
copied to a new branch, above the winner's commit; the old branches are forgotten as orphans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.spark.connection import Connection
from pyomid.spark.write_task import BranchReport, WritePlan
from pyomid.types import KeyRange


def rewrite_branches(conn: Connection, plan: WritePlan, reports: Sequence[BranchReport]) -> BranchReport:
    """One report for everything that the reports name, under one new branch above `plan.start_ts`."""
    branch = conn.parts.tso.begin(not_before=plan.start_ts).start_ts
    branches = np.array(sorted(report.branch for report in reports), np.int64)
    for batch in conn.parts.store.scan(plan.info.name, KeyRange()):
        for piece in _latest_of(batch, branches):
            conn.parts.store.write_batch(plan.info.name, branch, piece)
        conn.renew((plan.start_ts,))
    witness = reports[0].witness
    return BranchReport(
        branch,
        sum(report.rows for report in reports),
        sum(report.cells for report in reports),
        sum(report.bytes for report in reports),
        np.concatenate([report.ids for report in reports]),
        np.empty(0, np.int64),
        None if witness is None else witness._replace(version=branch),
    )


def _latest_of(batch: CellBatch, branches: NDArray[np.int64]) -> Iterator[CellBatch]:
    """The cells of a batch that were written under the branches, a record a row: of each row its greatest branch."""
    ours = np.isin(batch.rec_version, branches)
    row_of_record = np.repeat(np.arange(batch.rows), np.diff(batch.row_rec))
    latest = np.zeros(batch.rows, np.int64)
    np.maximum.at(latest, row_of_record[ours], batch.rec_version[ours])
    records = np.flatnonzero(ours & (batch.rec_version == latest[row_of_record]))
    if not len(records):
        return
    rows = np.unique(row_of_record[records])
    counts = np.diff(batch.rec_cell)[records]
    cells = np.concatenate([np.arange(batch.rec_cell[r], batch.rec_cell[r + 1]) for r in records.tolist()])
    cells_a_row = np.zeros(batch.rows, np.int64)
    np.add.at(cells_a_row, row_of_record[records], counts)
    yield replace(
        batch,
        row_off=batch.row_off[rows],
        row_len=batch.row_len[rows],
        row_rec=np.arange(len(rows) + 1, dtype=np.int64),
        rec_version=np.zeros(len(rows), np.int64),
        rec_commit=np.zeros(len(rows), np.int64),
        rec_cell=np.concatenate([[0], np.cumsum(cells_a_row[rows])]).astype(np.int64),
        cell_col=batch.cell_col[cells],
        cell_off=batch.cell_off[cells],
        cell_len=batch.cell_len[cells],
    )
