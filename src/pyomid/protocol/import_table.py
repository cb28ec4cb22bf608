"""Import an existing HBase table: it becomes transactional, and each cell counts as committed at its own version.

    stop the table's writers  →  draw N, a start timestamp  →  check that the table is not in the catalog
    →  read every region: if transactions would not see what HBase shows now, refuse the import and change nothing
    →  in every region, write shadow cells of all cells below N  →  make the catalog entry  →  the first transaction

The catalog is read after N is drawn. So a second run is harmless after a first run has finished, or while a task of the
first run, presumed dead, still runs. Transactions begin after the entry is made, so their starts are above N; a cell at
or above N is refused, never imported. In the other order:

    run 1 imports and registers; T writes x@120, undecided
                                                            run 2 finds x@120 without a shadow cell and writes one:
                                                            T is committed although no TSO decided it

An empty value is an ordinary value in HBase (a flag, a member of a set), but Omid's readers, Java's included, take it
for a deletion. An import would hide the value, and the next compaction would drop it (decision 0036).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyomid.arrays import np
from pyomid.cells import CellBatch
from pyomid.errors import Misuse
from pyomid.protocol import visibility
from pyomid.protocol.compaction import each_batch
from pyomid.protocol.effects import CleanBatch
from pyomid.types import Cell, Column, KeyRange

_VERSION_MAX = (1 << 63) - 1


@dataclass(slots=True)
class RangeImported:
    """The result of importing a range of rows. Of its `records`, `imported` had no shadow cell before."""

    rows: int = 0
    records: int = 0
    imported: int = 0


async def check_range(table: str, key_range: KeyRange, newest_ts: int) -> dict[str, Misuse]:
    """Read the whole range, and return the first error of each kind that forbids the import: the import would change
    what readers see, or `import_range` would refuse a cell."""
    found: dict[str, Misuse] = {}

    async def check(batch: CellBatch) -> None:
        for kind, refusal in _refusals(table, batch, newest_ts):
            found.setdefault(kind, refusal)

    await each_batch(table, key_range, check)
    return found


async def import_range(table: str, key_range: KeyRange, newest_ts: int) -> RangeImported:
    """Write missing shadow cells. On return every cell of the range has one, durably; existing ones stay. Idempotent.

    `newest_ts` is N (see above). Raises `Misuse` if a cell is at or above N, or if a transaction committed a cell. The
    caller checks all ranges of the table before it imports the first; this call refuses what was written since.
    """
    done = RangeImported()
    await each_batch(table, key_range, lambda batch: _import_batch(table, batch, newest_ts, done))
    return done


async def _import_batch(table: str, batch: CellBatch, newest_ts: int, done: RangeImported) -> None:
    for _, refusal in _refusals(table, batch, newest_ts):
        raise refusal
    bare = np.flatnonzero(batch.rec_commit == 0)
    done.rows += batch.rows
    done.records += len(batch.rec_commit)
    done.imported += len(bare)
    if len(bare):
        batch.rec_commit[bare] = batch.rec_version[bare]
        await CleanBatch(table, batch, bare, np.empty(0, np.int64))


def _refusals(table: str, batch: CellBatch, newest_ts: int) -> Iterator[tuple[str, Misuse]]:
    """Yield what forbids the import of these rows: for each kind, the kind and its first error."""
    newest = int(batch.rec_version.max())
    if newest >= newest_ts:
        yield "newer", _newer(table, newest, newest_ts)
    of_transactions = np.flatnonzero((batch.rec_commit != 0) & (batch.rec_commit != batch.rec_version))
    if len(of_transactions):
        start, commit = (int(of[of_transactions[0]]) for of in (batch.rec_version, batch.rec_commit))
        yield "transactions", _touched(table, start, commit)
    if (unseen := _unseen(table, batch, max(min(newest, _VERSION_MAX - 1) + 1, newest_ts))) is not None:
        yield "unseen", unseen


def _unseen(table: str, batch: CellBatch, newest_ts: int) -> Misuse | None:
    """Return an error if a transaction would not see the newest version of each column, which HBase shows; otherwise
    None."""
    imported = replace(batch, rec_commit=batch.rec_version)
    seen = visibility.visible_cells(imported, newest_ts)
    width = len(batch.columns)
    row_of_cell = np.repeat(np.arange(batch.rows), np.diff(batch.rec_cell[batch.row_rec]))
    there = np.unique(row_of_cell * width + batch.cell_col)
    row_of_seen = np.repeat(np.arange(batch.rows), np.diff(seen.row_cell))
    if len(there) == len(seen.cells):
        return None
    lost = np.setdiff1d(there, row_of_seen * width + batch.cell_col[seen.cells], assume_unique=True)
    row, column = divmod(int(lost[0]), width)
    return _refusal(table, list(batch.row_cells(row)), batch.columns[column])


def _refusal(table: str, cells: list[Cell], lost: Column) -> Misuse:
    newest = max((cell for cell in cells if (cell.family, cell.qualifier) == lost), key=lambda cell: cell.version)
    deletions = [cell for cell in cells if cell.family == lost.family and not cell.qualifier and cell.value is None]
    where = f"table {table}, row {newest.row!r}, column {b'%b:%b' % lost!r}"
    if deletions:
        cell = max(deletions, key=lambda each: each.version)
        said = (
            f"table {table}, row {cell.row!r} holds an empty value of version {cell.version} in column "
            f"{cell.family + b':'!r} (no qualifier), which to Omid deletes the whole family in the row: delete all "
            "versions of that column, or move its content to a column with a qualifier"
        )
    elif newest.value is None:
        said = (
            f"{where} holds an empty value (version {newest.version}), which every transaction, Java's included, reads "
            "as a deletion: put another value there (one byte is enough), or delete the cell"
        )
    else:
        said = (
            f"{where} has version {newest.version}, which no commit can have: write the cell again with a later version"
        )
    return Misuse(f"{said}; then adopt again", table=table, row=newest.row)


def _newer(table: str, newest: int, newest_ts: int) -> Misuse:
    return Misuse(
        f"table {table} holds a cell of version {newest}, newer than the TSO's timestamp {newest_ts}: no transaction "
        "would see this cell; stop the table's writers and serve the database with `pyomid tso`, or with Apache "
        "Omid's TSO with timestampType WORLD_TIME; or adopt a copy of the table",
        table=table,
        version=newest,
    )


def _touched(table: str, start: int, commit: int) -> Misuse:
    return Misuse(
        f"transactions already wrote to table {table} (start {start}, committed at {commit}): adopting the table "
        "would commit the undecided cells of such transactions; register it with `pyomid tables URL register` instead",
        table=table,
        start_ts=start,
    )
