"""The overlay, which shows a transaction's reads its own writes (C2).

    rows committed before the snapshot  ◀── over them ──  own cells in the store  ◀── over them ──  buffered cells

Reads find the first two in the store. A savepoint, and a scan that began before the newest writes, are positions in the
overlay. Both keep the cells that later writes replace: the scan shows them (C15; `open_reads`), and a rollback to the
savepoint restores them (`savepoints`). So before buffered cells are sent, the overlay reads the cells from the store
that these positions would lose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain

from pyomid.cells import CellBatch
from pyomid.coroutines import Routine
from pyomid.database.writes.open_reads import OpenRead, OpenReads
from pyomid.database.writes.own_cells import NO_CELLS, BufferedRows, Row, RowOverlay, overlaid
from pyomid.database.writes.savepoints import Replaced, SavedWrites, Savepoints
from pyomid.database.writes.shown_rows import NO_OWN_ROWS, OwnRows, SeenBatch, row_keys
from pyomid.database.writes.store_view import StoreView
from pyomid.database.writes.write_buffer import WriteBuffer
from pyomid.protocol.reading import ROWS_AT_ONCE
from pyomid.types import Column, KeyRange, TableInfo, start_of

Settle = Callable[[], Awaitable[None]]
"""Waits until no write is in flight, so that the store can be read."""


class Overlay:
    """A transaction's writes to each table, over its view of the store."""

    def __init__(self, view: StoreView) -> None:
        self.view = view
        self.buffers: dict[str, WriteBuffer] = {}
        self.savepoints: Savepoints | None = None
        """None while no savepoint is open."""
        self.open_reads: defaultdict[str, OpenReads] = defaultdict(OpenReads)

    # Reads

    def read(
        self, info: TableInfo, keys: Sequence[bytes], columns: Sequence[Column] | None, read: OpenRead | None = None
    ) -> Routine[list[Row]]:
        """Return rows as the transaction sees them, in the order of `keys`; {} for a row that does not exist. With
        `read`, return them as they were when that read began."""
        routine = self.view.read(info, keys, columns)
        return routine if info.name not in self.buffers else self._overlaid(info, keys, columns, routine, read)

    async def _overlaid(
        self,
        info: TableInfo,
        keys: Sequence[bytes],
        columns: Sequence[Column] | None,
        routine: Routine[list[Row]],
        read: OpenRead | None,
    ) -> list[Row]:
        rows = await routine
        buffer = self.buffers[info.name]
        if read is not None:
            stored = await self._stored(read, info, keys, columns)
            rows = [stored.get(key, row) for key, row in zip(keys, rows, strict=True)]
            overlays = [read.buffered(key, buffer.overlay(key)) for key in keys]
            return [overlaid(row, overlay, columns) for row, overlay in zip(rows, overlays, strict=True)]
        if buffer.rows:
            rows = [overlaid(row, buffer.overlay(key), columns) for key, row in zip(keys, rows, strict=True)]
        return rows

    async def _stored(
        self, read: OpenRead, info: TableInfo, keys: Iterable[bytes], columns: Sequence[Column] | None
    ) -> dict[bytes, Row]:
        """Return the rows whose own cells in the store were replaced since the read began, as they were then."""
        stored = {key: read.stored[key] for key in keys if key in read.stored} if read.stored else {}
        if not stored:
            return {}
        rows = await self.view.read_others(info, list(stored), columns)
        return {key: overlaid(row, stored[key], columns) for key, row in zip(stored, rows, strict=True)}

    def open_read(self, table: str, key_range: KeyRange, in_flight: Iterable[BufferedRows]) -> OpenRead:
        """Return an open read of the range, which sees the transaction's writes as they are now. The reader must keep a
        reference to the open read. `in_flight` are rows of the table that are buffered again if their write fails."""
        buffer = self.buffers.get(table)
        is_over_buffer = buffer is not None and bool(buffer.rows)
        read = self.open_reads[table].begin(key_range, is_over_buffer=is_over_buffer)
        if buffer is not None:
            for rows in in_flight:
                read.note_leaving({row: {**cells, **buffer.overlay(row)} for row, cells in rows.items()})
        return read

    async def own_rows(
        self,
        read: OpenRead,
        info: TableInfo,
        seen: Iterable[SeenBatch],
        shown: KeyRange,
        columns: Sequence[Column] | None,
    ) -> OwnRows:
        """Return the difference between the read's rows in a range and the store's, and note that these rows are
        returned. `seen` are the store's batches of the range."""
        keys = list(chain.from_iterable(row_keys(batch) for batch, _ in seen)) if read.has_noted else ()
        stored = await self._stored(read, info, keys, columns)
        overlays = {row: read.buffered(row) for row in read.noted_rows(shown)}
        buffer = self.buffers.get(info.name)
        if buffer is not None and read.is_over_buffer:
            for row in buffer.buffered_keys(shown):
                if cells := read.buffered(row, buffer.overlay(row)):
                    overlays[row] = cells
        read.show(shown, keys)
        return OwnRows(stored, overlays) if stored or overlays else NO_OWN_ROWS

    # Savepoints

    def save(self, ids_written: int) -> SavedWrites:
        if self.savepoints is None:
            self.savepoints = Savepoints()
        return self.savepoints.save(ids_written)

    def keeps(self, saved: SavedWrites) -> bool:
        return self.savepoints is not None and self.savepoints.holds(saved)

    def release(self, saved: SavedWrites) -> None:
        if self.savepoints is not None and self.savepoints.holds(saved) and not self.savepoints.release(saved):
            self.savepoints = None

    def note_write(self, buffer: WriteBuffer, row: bytes, cells: Iterable[Column]) -> Replaced | None:
        """Record the cells that a write is about to replace in the buffer, for the open savepoints."""
        return self.savepoints.note(buffer, row, cells) if self.savepoints else None

    # Called before the transaction's cells in the store are replaced

    async def before_sending(self, buffer: WriteBuffer, settle: Settle) -> None:
        if self.savepoints is not None:
            await self._fill(buffer, self.savepoints, settle)
        if buffer.reads:
            await self._keep_stored(buffer, buffer.rows, settle)

    async def before_batch(self, buffer: WriteBuffer, batch: CellBatch, settle: Settle) -> None:
        """Do the work of `before_sending` for rows that were never buffered, while no savepoint is open."""
        if buffer.reads:
            rows = dict.fromkeys(map(batch.row_key, range(batch.rows)), NO_CELLS)
            for row in rows:
                buffer.reads.note_write(row, NO_CELLS)
            await self._keep_stored(buffer, rows, settle)

    async def _fill(self, buffer: WriteBuffer, savepoints: Savepoints, settle: Settle) -> None:
        """Read the values that the transaction sees in cells that were not buffered at a savepoint."""
        lacking = [replaced for replaced in savepoints.unsent(buffer) if not replaced.is_filled]
        if lacking:
            await settle()
            keys = list(dict.fromkeys(replaced.row for replaced in lacking))
            found = await self.view.read(buffer.info, keys, None)
            seen, sent = dict(zip(keys, found, strict=True)), buffer.sent_by_row()
            for replaced in lacking:
                replaced.fill(seen[replaced.row], sent.get(replaced.row, ()))
        savepoints.note_sent(buffer)

    async def _keep_stored(self, buffer: WriteBuffer, rows: Mapping[bytes, RowOverlay], settle: Settle) -> None:
        """Read these rows' own cells in the store, for the open reads that need them (C15)."""
        needed = buffer.reads.note_leaving(rows)
        sent = buffer.perhaps_sent(needed)
        if sent:
            await settle()
        for first in range(0, len(sent), ROWS_AT_ONCE):
            some = sent[first : first + ROWS_AT_ONCE]
            found = await self.view.read_own(buffer.info.name, some)
            for row, cells in zip(some, found, strict=True):
                own = {
                    Column(c.family, c.qualifier): c.value
                    for c in sorted(cells, key=lambda each: each.version)
                    if start_of(c.version) == self.view.version
                }
                for read in needed.pop(row):
                    read.stored[row] = own
        for row, reads in needed.items():
            for read in reads:
                read.stored[row] = NO_CELLS
