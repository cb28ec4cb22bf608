"""The change feed as Spark reads it, inserts by batches, in the form in which a client tells it."""

from __future__ import annotations

from pyomid import Bookmark, RowChange
from pyomid.database.change_feed import ChangeScan
from pyomid.database.database import Database
from pyomid.database.row_changes import shown
from pyomid.protocol.reading import CommitCache, Snapshot
from pyomid.types import KeyRange


def told_in_batches(db: Database, table: str, since: Bookmark, until: int) -> tuple[list[RowChange], int]:
    """In the order of `Database.changes`, each start looked up anew; and how many came as inserts of batches."""
    info = db.table_info(table)
    scan = ChangeScan(db._core.deployment, info, KeyRange(), since, Snapshot(until + 1, 0), CommitCache())
    found: list[RowChange] = []
    inserted = 0
    while (told := db._core.driver.run(scan.next_batch())) is not None:
        if told.inserts is not None:
            batch, seen, commits = told.inserts
            inserted += len(commits)
            for row, commit_ts in zip(seen.rows_present().tolist(), commits.tolist(), strict=True):
                cells = seen.cells[seen.row_cell[row] : seen.row_cell[row + 1]].tolist()
                after = {b"%b:%b" % batch.columns[batch.cell_col[cell]]: batch.value(cell) or b"" for cell in cells}
                found.append(RowChange("insert", batch.row_key(row), commit_ts, None, after))
        found += map(shown, told.others)
    return sorted(found, key=lambda change: (change.row, change.commit_ts)), inserted
