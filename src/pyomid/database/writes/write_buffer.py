"""A transaction's writes to one table: the unsent cells, the names of all sent cells, and the claims, which the commit
also names.

    put ──▶ rows ──take──▶ sent: in the store, or perhaps
             ▲               │
             └────restore────┘  the write failed: buffered again, and still perhaps sent

The names of sent cells stay until the transaction's end: the commit needs them for ids, completion for shadow cells,
and a rollback for exact deletes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from pyomid.cells import CellBatch, CellNames, batch_of_rows, without_values
from pyomid.database.native import puts
from pyomid.database.writes.open_reads import OpenReads
from pyomid.database.writes.own_cells import NO_CELLS, BufferedRows, KeyOrder, OwnCell, RowOverlay
from pyomid.types import CellVersion, Column, ConflictLevel, KeyRange, RowWrite, TableInfo

FREE: Final = 1
"""The version of conflict-free cells is the transaction's version plus this number (folder.md)."""


class WriteBuffer(puts.Buffered):
    """A transaction's writes to one table. Batches that were sent are kept without values, which avoids an object per
    cell."""

    __slots__ = (
        *("_batches", "_order", "_sent", "_sent_free"),
        *("checked", "claims", "has_taken_back", "info", "levels", "reads", "taken_back"),
    )

    def __init__(self, info: TableInfo, reads: OpenReads) -> None:
        self.info = info
        self.reads = reads
        self.levels = levels = info.id_levels
        self._by_cell, self._by_row = ConflictLevel.CELL in levels, ConflictLevel.ROW in levels
        self.buffered_bytes = 0
        self.claims: dict[tuple[bytes, Column | None], None] = {}
        """Claimed cells, and rows (column None), which the commit names in addition to the writes."""
        self.checked: dict[OwnCell, None] | None = None
        """The written cells that the commit names; None means all."""
        self.taken_back: set[OwnCell] = set()
        """Cells that were sent and then taken back: the transaction sees its snapshot's value again, and does not write
        these cells (C14). Until the commit, the cells are buffered or stored with that value, so all reads find it."""
        self.has_taken_back = False
        """Whether any cell ever was in `taken_back`."""
        self.rows = {}
        self._order = KeyOrder()
        """The key order of `rows`."""
        self._sent: dict[bytes, set[Column]] = {}
        self._batches: list[CellBatch] = []
        self._sent_free: set[OwnCell] = set()
        """The cells that were sent by `split_free`."""

    def ids_of(self, cells: int, rows: int = 1) -> int:
        """Return the number of ids that a commit needs for so many cells in so many rows."""
        return cells * self._by_cell + rows * self._by_row

    def put(self, row: bytes, cells: dict[Column, bytes | None]) -> int:
        """Buffer `cells` over earlier writes, and return the added size in bytes. The buffer may keep the dict."""
        if self.taken_back:
            self.taken_back.difference_update((row, column) for column in cells)
        if self.reads:
            self.reads.note_write(row, self.overlay(row))
        added = len(row) + puts.CELL_OVERHEAD_BYTES * len(cells)
        for value in cells.values():
            if value is not None:
                added += len(value)
        self.buffered_bytes += added  # before the next step: after an interrupt, every buffered row must be counted
        buffered = self.rows.setdefault(row, cells)
        if buffered is not cells:
            buffered.update(cells)
        return added

    def remove(self, row: bytes) -> None:
        """Remove a row from the unsent rows."""
        self._order.remove(self.rows, row)

    def forget_taken_back(self) -> None:
        """Note that the store holds no version that was taken back, so these cells need not stay buffered."""
        sent, rows = self.sent_by_row(), dict(self.rows)
        for row, column in self.taken_back:
            if row in sent:  # not if the write was interrupted before it was buffered
                sent[row].discard(column)
                if not sent[row]:
                    del sent[row]
            if row in rows:
                rows[row] = {each: value for each, value in rows[row].items() if each != column}
                if not rows[row]:
                    del rows[row]
        self.rows, self._order, self.taken_back = rows, KeyOrder(), set()
        self.buffered_bytes *= bool(rows)

    def note_checked(self, row: bytes, cells: Iterable[Column], *, conflict: bool) -> None:
        """Record the cells that the commit names, before a put, once there are cells that it does not name."""
        if self.checked is None:
            self.checked = dict.fromkeys(self.written_cells())
        if conflict:
            self.checked.update(((row, column), None) for column in cells)

    def overlay(self, row: bytes) -> RowOverlay:
        return self.rows.get(row, NO_CELLS)

    def buffered_keys(self, key_range: KeyRange) -> Sequence[bytes]:
        """Return the rows with buffered cells in the range, ascending."""
        return self._order.within(self.rows, key_range)

    def overlaps(self, rows: BufferedRows) -> bool:
        """Whether any of these rows is buffered."""
        return not self.rows.keys().isdisjoint(rows)

    @property
    def has_sent(self) -> bool:
        """Whether cells of this table may be in the store."""
        return bool(self._sent or self._batches)

    def row_writes(self) -> list[RowWrite]:
        """Return all buffered cells, ascending by row."""
        rows = self.rows
        return [RowWrite(row, tuple(rows[row].items())) for row in sorted(rows)]

    def take_rows(self) -> tuple[BufferedRows, list[RowWrite]]:
        """Take the buffered rows out of the buffer to send them, and return them, also as `row_writes`. From now on,
        any of these cells may be stored, whatever the reply. Later writes are buffered for the next flush.
        """
        rows, writes = self.rows, self.row_writes()  # first: it may raise MemoryError
        for row, cells in rows.items():
            self._sent.setdefault(row, set()).update(cells)
        self._clear()
        return rows, writes

    def take_batch(self) -> tuple[BufferedRows, CellBatch]:
        """Take the buffered rows out of the buffer, like `take_rows`, but return them as a batch."""
        rows = self.rows
        batch = batch_of_rows(rows)
        self._batches.append(without_values(batch))
        self._clear()
        return rows, batch

    def split_free(self, writes: Sequence[RowWrite]) -> tuple[list[RowWrite], list[RowWrite]]:
        """Divide writes into cells that the commit checks, and conflict-free cells, which have a separate, higher
        version. A cell that was conflict-free once is in both parts, so that its newest value counts."""
        checked = self.checked
        if checked is None:
            return list(writes), []
        named, free = [], []
        for row, cells in writes:
            is_free = [(row, each) not in checked or (row, each) in self._sent_free for each, _ in cells]
            self._sent_free.update((row, each) for (each, _), is_one in zip(cells, is_free, strict=True) if is_one)
            named.append(RowWrite(row, tuple(cell for cell in cells if (row, cell[0]) in checked)))
            free.append(RowWrite(row, tuple(cell for cell, is_one in zip(cells, is_free, strict=True) if is_one)))
        return [each for each in named if each.cells], [each for each in free if each.cells]

    def note_batch(self, batch: CellBatch) -> None:
        """Note that these cells, which were not buffered, may be in the store from now on."""
        self._batches.append(without_values(batch))

    def _clear(self) -> None:
        self.rows, self._order = {}, KeyOrder()
        self.buffered_bytes = 0

    def restore(self, rows: BufferedRows) -> None:
        """Buffer these rows again after a failed write, below later writes."""
        for row, cells in rows.items():
            self.put(row, {**cells, **self.rows.get(row, {})})

    @property
    def sent_batches(self) -> Sequence[CellBatch] | None:
        """The batches of all sent cells; None if some cells were not sent in batches, or no cells were sent."""
        return None if self._sent or not self._batches else self._batches

    def sent_by_row(self) -> dict[bytes, set[Column]]:
        """Return the columns of every row that may be in the store. The call converts names in batches to objects."""
        for cell in CellNames(self._batches, 0):
            self._sent.setdefault(cell.row, set()).add(Column(cell.family, cell.qualifier))
        self._batches = []
        return self._sent

    def perhaps_sent(self, rows: Iterable[bytes]) -> list[bytes]:
        """Return a superset of the rows that have cells in the store."""
        ascending = sorted(rows)
        found = {row for row in ascending if row in self._sent}
        for batch in self._batches:
            first = bisect_left(ascending, batch.row_key(0))
            found.update(ascending[first : bisect_right(ascending, batch.row_key(batch.rows - 1))])
        return list(found)

    def sent_cells(self) -> Iterator[tuple[bytes, Column]]:
        """Yield every cell that may be in the store, by row and column. A cell that was written twice may be yielded
        twice."""
        for row, columns in self._sent.items():
            for column in columns:
                yield row, column
        for cell in CellNames(self._batches, 0):
            yield cell.row, Column(cell.family, cell.qualifier)

    def sent_versions(self, version: int) -> Sequence[CellVersion]:
        if self.sent_batches is not None:
            return CellNames(self._batches, version)
        sent = [CellVersion(row, *column, version) for row, column in self.sent_cells()]
        return (*sent, *(CellVersion(row, *column, version + FREE) for row, column in self._sent_free))

    def written_cells(self) -> Iterator[OwnCell]:
        """Yield every written cell, sent or not. A cell that was written twice may be yielded twice."""
        buffered = ((row, column) for row, columns in self.rows.items() for column in columns)
        return (cell for cell in chain(self.sent_cells(), buffered) if cell not in self.taken_back)

    def written_rows(self) -> Iterator[bytes]:
        if self.taken_back:
            yield from (row for row, _ in self.written_cells())
            return
        yield from self.rows
        yield from self._sent
        for batch in self._batches:
            yield from map(batch.row_key, range(batch.rows))

    @property
    def is_only_buffered(self) -> bool:
        """Whether the commit names the buffered cells and nothing else."""
        return not (self._sent or self._batches or self.claims or self.taken_back) and self.checked is None

    @property
    def touched(self) -> bool:
        """Whether any cell is written or claimed, so that the commit names the table (C12)."""
        return bool(self.rows or self._sent or self._batches or self.claims)
