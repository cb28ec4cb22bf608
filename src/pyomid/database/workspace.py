"""A transaction's reads and writes, shared by the blocking and the asyncio client. No threads, sockets or
clocks.

Writes are buffered and flushed in batches under the start timestamp. Reads find flushed writes in the store as own
versions, and buffered writes as an overlay (C2). A later write of a flushed cell replaces it under the same version. An
open read sees own writes as of its begin (C15; `write_buffer`).

If the store has pipelined writes, a batch is sent while the caller continues to write:

    put put put … │ put put put … │ put …   commit
                  └─ sent ────────┴─ sent ──┴─ rest sent, all replies awaited (law 1), then the request

The client awaits a reply before anything that needs it: a commit, a read, a second write of the same row, too many
batches in flight. A failure is raised there, and makes the transaction rollback-only.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice
from operator import attrgetter
from typing import Final, TypeVar

from pyomid.arrays import np
from pyomid.cells import CellBatch, batch_of_rows
from pyomid.coroutines import NOTHING, Routine
from pyomid.database.native import puts
from pyomid.database.native import shown_rows as kernels
from pyomid.database.savepoints import SavedWrites, Savepoints
from pyomid.database.validation import TableRules
from pyomid.database.write_buffer import (
    FREE,
    NO_CELLS,
    BufferedRows,
    OpenRead,
    OpenReads,
    RowOverlay,
    WriteBuffer,
    batch_ids,
    changes_of,
    conflict_ids,
    overlaid,
    row_ids,
    too_many_ids,
)
from pyomid.errors import ConflictError, Misuse, SnapshotTooOld, UnknownTable
from pyomid.protocol.commit import WriteSet, delete_writes
from pyomid.protocol.effects import BeginWrite, DrawVersion, EndWrites, PackCommit, ReadRows, WriteCells
from pyomid.protocol.expiry import expiring
from pyomid.protocol.hashing import table_id
from pyomid.protocol.reading import (
    ROWS_AT_ONCE,
    CommitCache,
    Snapshot,
    SnapshotScan,
    check_life,
    read_rows,
    read_settled,
    start_of_last_rows,
)
from pyomid.protocol.visibility import NO_STARTS, VisibleCells, visible_cells
from pyomid.types import (
    TIMESTAMP_STEP,
    BeginReply,
    Cell,
    CellVersion,
    Column,
    CommitRequest,
    KeyRange,
    ReadBounds,
    TableInfo,
    start_of,
)

Row = dict[Column, bytes]

_BUFFERED_BYTES, _TOUCHED = attrgetter("buffered_bytes"), attrgetter("touched")

INDEX_TABLES: Final = "PYOMID_INDEX_"
"""Prefix of the names of index tables."""

PIPELINED_BYTES: Final = 96 << 10
"""Size of a pipelined batch: a few hundred rows, which cost more than the call's round trip."""

PIPELINED_WRITES_MAX: Final = 8
"""Writes in flight. The oldest is awaited before the next is sent, which bounds their memory."""

BATCH_ROWS_MIN: Final = 16
"""In a store with pipelined writes, fewer rows are cheaper as rows than as a batch."""

SMALL_BATCH_ROWS: Final = 32
"""A batch of at most this many rows is buffered row by row if the commit can carry it; more rows are cheaper to write
as a batch."""

LARGE_FLUSH_ROWS_MIN: Final = 500
"""A flush of this many rows or more is a batch in any store."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A pipelined write in flight: the rows taken from the buffer, and the store's handle."""

    buffer: WriteBuffer
    rows: BufferedRows
    write: object


def raise_if_index_dropped(error: BaseException) -> None:
    """Raise `ConflictError` in place of an error about an index's table, which the program never named: the program
    may rerun."""
    if isinstance(error, UnknownTable | SnapshotTooOld) and str(error.values.get("table", "")).startswith(INDEX_TABLES):
        kind = SnapshotTooOld if isinstance(error, SnapshotTooOld) else ConflictError
        raise kind("an index that this transaction reads or maintains was dropped: rerun the transaction") from error


class Workspace(puts.Counts):
    """A transaction's state: its snapshot, and a write buffer for each table.

    `pipelined`, `packs_commits` and `settled_reads`: capabilities of the store (`ports.Capabilities`). `ids_max`:
    maximum number of ids in a commit; 0: unlimited. `packed_bytes_max`: as of `ports.Tso`. `dates_commits`: returns
    whether timestamps are times.
    """

    def __init__(
        self,
        begun: BeginReply,
        cache: CommitCache,
        *,
        flush_bytes: int,
        pipelined: bool = False,
        ids_max: int = 0,
        packed_bytes_max: int = 0,
        packs_commits: bool = False,
        settled_reads: bool = False,
        dates_commits: Callable[[], bool] = lambda: True,
    ) -> None:
        self.start_ts = begun.read_at or begun.start_ts
        self._packs_commits = packs_commits
        self.version = 0 if packs_commits else self.start_ts
        """Under which it writes to the store before its commit; 0: not drawn yet."""
        own = () if begun.read_at or packs_commits else (begun.start_ts,)
        self._snapshot = Snapshot(self.start_ts, begun.epoch, own=frozenset(own))
        self._expiring: dict[str, Snapshot] = {}
        """The snapshot, for tables with a time to live (E1)."""
        self._cache = cache
        self._settled_reads = settled_reads
        self._dates_commits = dates_commits
        self._pipelined = pipelined
        self._flush_bytes = min(flush_bytes, PIPELINED_BYTES) if pipelined else flush_bytes
        self._buffered_bytes = 0
        self._begun: list[_Begun] = []
        self._buffers: dict[str, WriteBuffer] = {}
        self._open_reads: dict[str, OpenReads] = {}
        self._savepoints: Savepoints | None = None
        """None while no savepoint is open."""
        self._packed_bytes_max = packed_bytes_max
        self._packed = b""
        """The commit request of a database that decides commits itself."""
        self._ids_max = ids_max or sys.maxsize
        self._ids_noted = 0
        """Upper bound of the number of ids in the commit: cells written twice may count twice."""
        self._ids_claimed = 0
        """How many of them are of claims, which a rollback to a savepoint leaves."""
        self._ids: set[int] | None = None
        """The ids themselves, once the bound exceeds `ids_max`."""
        self.is_torn = False
        """Whether the sent writes may be stored only in part, so that the transaction must roll back (C1). Set before
        anything is sent, cleared when all of it is stored, so it is set after any error or interrupt in between.
        """

    # Writing

    def put_known(self, rules: TableRules, key: object, cells: object) -> bool:
        """Check and buffer an ordinary put of valid cells in known columns. False, and nothing is buffered, if the put
        needs the full checks, or if an open read, a savepoint or the choice of ids depends on it."""
        buffer = self._buffers.get(rules.info.name) or self._buffer_of(rules.info)
        if self._savepoints or buffer.taken_back or buffer.reads.open or buffer.checked is not None:
            return False
        return puts.put_known(self, buffer, rules, key, cells)

    def buffer(self, info: TableInfo, row: bytes, cells: dict[Column, bytes | None], *, conflict: bool = True) -> bool:
        """Buffer a write until the next flush; it takes ownership of `cells`. True if a flush is due. `conflict` False:
        the commit does not name these cells, unless another write or a claim does."""
        buffer = self._buffers.get(info.name) or self._buffer_of(info)
        if conflict:
            self._ids_noted += buffer.ids_of(len(cells))
            if self._ids_noted > self._ids_max:
                self._note_ids(buffer, row_ids(buffer, row, cells))
        replaced = self._savepoints.note(buffer, row, cells) if self._savepoints else None
        if not conflict or buffer.checked is not None:
            buffer.note_checked(row, cells, conflict=conflict)
        added = buffer.put(row, cells)
        if replaced is not None:
            replaced.added_bytes += added
        self._buffered_bytes += added
        return self.is_flush_due

    def claim(self, info: TableInfo, row: bytes, columns: Iterable[Column | None]) -> None:
        """Have the commit name these cells as if they were written (C12). None among them: also the row, which at level
        cell has an id of its own."""
        buffer, claimed = self._buffer_of(info), list(columns)
        ids = buffer.ids_of(len(claimed))
        self._ids_noted += ids
        if self._ids_noted > self._ids_max:
            self._note_ids(buffer, row_ids(buffer, row, claimed))
        self._ids_claimed += ids
        buffer.claims.update(((row, column), None) for column in claimed)

    def check_room(self, info: TableInfo, rows: Sequence[tuple[bytes, Collection[Column]]]) -> None:
        """Raise `Misuse` if the commit would have too many ids with these cells. Called before the first is written."""
        buffer = self._buffer_of(info)
        if self._ids_noted + sum(buffer.ids_of(len(cells)) for _, cells in rows) > self._ids_max:
            self._more_ids(buffer, chain.from_iterable(row_ids(buffer, row, cells) for row, cells in rows))

    def note_ids_of(self, info: TableInfo, batch: CellBatch) -> None:
        """Count the ids of a batch before it is written. `Misuse` if the commit would have too many."""
        buffer = self._buffer_of(info)
        self._ids_noted += buffer.ids_of(batch.cells, batch.rows)
        if self._ids_noted > self._ids_max:
            ids = (batch_ids(buffer, level, batch) for level in info.id_levels)
            self._note_ids(buffer, chain.from_iterable(ids))

    def _note_ids(self, buffer: WriteBuffer, ids: Iterable[int]) -> None:
        """Count ids before their cells are written or claimed. `Misuse` if there are too many."""
        named, more = self._more_ids(buffer, ids)
        named |= more
        if len(named) < self._ids_max // 2:
            self._ids, self._ids_noted = None, len(named)

    def _more_ids(self, buffer: WriteBuffer, ids: Iterable[int]) -> tuple[set[int], set[int]]:
        """Return the ids that the commit names so far, and the new ids in `ids`."""
        if self._ids is None:
            self._ids = set(chain.from_iterable(map(conflict_ids, self._buffers.values())))
        more = set(ids) - self._ids
        if len(self._ids) + len(more) > self._ids_max:
            raise too_many_ids(buffer.info, self._ids_max)
        return self._ids, more

    def claimed_rows(self, tables_max: int, rows_max: int) -> dict[str, list[bytes]]:
        """Return the first claimed rows, by table."""
        claimed = ((name, buffer.claims) for name, buffer in self._buffers.items() if buffer.claims)
        return {
            name: list(islice(dict.fromkeys(row for row, _ in claims), rows_max))
            for name, claims in islice(claimed, tables_max)
        }

    def _buffer_of(self, info: TableInfo) -> WriteBuffer:
        buffer = self._buffers.get(info.name)
        if buffer is None:
            if info.ttl_seconds:
                self._check_dated(info)
            reads = self._open_reads.setdefault(info.name, OpenReads())
            buffer = self._buffers[info.name] = WriteBuffer(info, reads)
        return buffer

    def _check_dated(self, info: TableInfo) -> None:
        """E6: `Misuse` if the timestamps of this table's writes are no times."""
        if not self._dates_commits():
            raise Misuse(
                f"table {info.name!r} has a time to live, and the timestamps of the TSO that leads are no times "
                f"(start {self.start_ts}): serve it with `pyomid tso`, or Apache Omid's TSO with timestampType "
                "WORLD_TIME, or end the time to live with ttl_seconds=0",
                table=info.name,
            )

    def save(self) -> SavedWrites:
        if self._savepoints is None:
            self._savepoints = Savepoints()
        return self._savepoints.save(self._ids_noted - self._ids_claimed)

    def keeps(self, saved: SavedWrites) -> bool:
        return self._savepoints is not None and self._savepoints.holds(saved)

    def go_back(self, saved: SavedWrites) -> None:
        """Return to the saved writes. The store follows when the buffer is sent."""
        if self._savepoints is None or not self._savepoints.holds(saved):
            raise Misuse(f"the savepoint of transaction {self.start_ts} was released, or an earlier one rolled back")
        was_torn, self.is_torn = self.is_torn, True
        self._savepoints.go_back(saved)
        self._ids, self._ids_noted = None, saved.ids_written + self._ids_claimed
        self._count_buffered()
        self.is_torn = was_torn

    def forget(self, saved: SavedWrites) -> None:
        if self._savepoints is not None and self._savepoints.holds(saved) and not self._savepoints.release(saved):
            self._savepoints = None

    async def _before_leaving(self, buffer: WriteBuffer) -> None:
        if self._savepoints is not None:
            await self._fill_savepoints(buffer, self._savepoints)
        if buffer.reads.open:
            await self._keep_stored(buffer, buffer.rows)

    async def _keep_stored(self, buffer: WriteBuffer, rows: Mapping[bytes, RowOverlay]) -> None:
        """Before these rows are sent: read their own cells in the store, for the open reads that need them (C15)."""
        needed = buffer.reads.note_leaving(rows)
        sent = buffer.perhaps_sent(needed)
        if sent:
            await self._end(len(self._begun))
        for first in range(0, len(sent), ROWS_AT_ONCE):
            some = sent[first : first + ROWS_AT_ONCE]
            bounds = ReadBounds(at_least=self.version, below=self.version + TIMESTAMP_STEP)
            found: list[list[Cell]] = await ReadRows(buffer.info.name, some, None, bounds)
            for row, cells in zip(some, found, strict=True):
                own = {
                    Column(c.family, c.qualifier): c.value
                    for c in sorted(cells, key=lambda each: each.version)
                    if start_of(c.version) == self.version
                }
                for read in needed.pop(row):
                    read.stored[row] = own
        for row, reads in needed.items():
            for read in reads:
                read.stored[row] = NO_CELLS

    async def _fill_savepoints(self, buffer: WriteBuffer, savepoints: Savepoints) -> None:
        """Before the buffer is sent: read what the transaction sees in cells that were not buffered at a savepoint."""
        lacking = [replaced for replaced in savepoints.unsent(buffer) if not replaced.is_filled]
        if lacking:
            await self._end(len(self._begun))
            info, keys = buffer.info, list(dict.fromkeys(replaced.row for replaced in lacking))
            found = await read_rows(info, keys, None, self._snapshot_of(info.name), self._cache)
            seen, sent = dict(zip(keys, found, strict=True)), buffer.sent_by_row()
            for replaced in lacking:
                replaced.fill(seen[replaced.row], sent.get(replaced.row, ()))
        savepoints.note_sent(buffer)

    async def batch_write(self, info: TableInfo, batch: CellBatch) -> None:
        """Write the cells of a batch: durable on return, or buffered. Errors as of `flush`."""
        buffer = self._buffer_of(info)
        is_small = self._packed_bytes_max and batch.rows <= SMALL_BATCH_ROWS and not buffer.has_sent
        if is_small or self._savepoints or buffer.taken_back or buffer.checked is not None:
            for index in range(batch.rows):
                cells = {Column(cell.family, cell.qualifier): cell.value for cell in batch.row_cells(index)}
                if self.buffer(info, batch.row_key(index), cells):
                    await self.send()
        elif batch.rows:
            await self._whole(self._write_batch(buffer, batch))

    async def _write_batch(self, buffer: WriteBuffer, batch: CellBatch) -> None:
        """Write a batch after all earlier writes, because the later write of a cell stays."""
        await self._flush()
        if buffer.reads.open:
            rows = dict.fromkeys(map(batch.row_key, range(batch.rows)), NO_CELLS)
            for row in rows:
                buffer.reads.note_write(row, NO_CELLS)
            await self._keep_stored(buffer, rows)
        await self._version()
        buffer.note_batch(batch)
        write = await BeginWrite(buffer.info.name, self.version, batch)
        await EndWrites((write,))

    def flush(self) -> Routine[None]:
        """Make every write that was buffered at the begin durable (law 1). After an error the transaction must roll
        back (C1)."""
        return self._whole(self._flush())

    async def _flush(self) -> None:
        for buffer in list(self._buffers.values()):
            if not buffer.rows:
                continue
            await self._before_leaving(buffer)
            if self._leaves_as_batch(buffer):
                await self._begin(buffer)
            else:
                await self._keep_apart(buffer)
                await self._write(buffer)
        self._count_buffered()
        await self._end(len(self._begun))

    def settle(self) -> Awaitable[None]:
        """Before the commit request: make all writes durable (law 1), and delete versions that a savepoint took back
        (law 11). Or pack the request, in a database that decides commits itself. Errors as of `flush`."""
        if not self._buffers:
            return NOTHING
        if self._packs_commits:
            return self._pack(NOTHING if self._fits_request() else self._whole(self._settle()))
        return self._whole(self._settle())

    async def _settle(self) -> None:
        for buffer in self._buffers.values():
            if buffer.taken_back:
                await self._delete_taken_back(buffer)
        self._count_buffered()
        await self._flush()

    async def _pack(self, sent: Awaitable[None]) -> None:
        """Pack the commit request, after `sent`, with the cells that are buffered then."""
        await sent
        # What was sent and taken back has been compared: its conflicts do not count.
        claims_all = bool(self.version) and any(each.has_taken_back for each in self._buffers.values())
        changes = list(map(partial(changes_of, claims_all=claims_all), filter(_TOUCHED, self._buffers.values())))
        if changes:
            branches = (self.version,) if self.version else ()
            self._packed = await PackCommit(self.start_ts, branches, changes, claims_all)

    async def _version(self) -> None:
        """Draw a version before the first write to the store."""
        if not self.version:
            self.version = await DrawVersion(self.start_ts)
            for snapshot in (self._snapshot, *self._expiring.values()):
                snapshot.own_too(self.version)

    def _fits_request(self) -> bool:
        """Whether all cells can be packed into the commit request: nothing was ever sent, and they are few. Many rows
        cost less as a batch."""
        is_small = self._buffered_bytes <= self._packed_bytes_max
        return is_small and not self.version and not any(map(self._leaves_as_batch, self._buffers.values()))

    async def _delete_taken_back(self, buffer: WriteBuffer) -> None:
        """Delete versions that a savepoint took back (C14). Not earlier: in HBase a delete also hides a later put of
        the same version, and the cell may be put again. The cells that are buffered with their snapshot's value need
        not be sent."""
        await self._end(len(self._begun))
        versions = tuple(
            CellVersion(row, *column, version)
            for row, column in sorted(buffer.taken_back)
            for version in ((self.version, self.version + FREE) if self._packs_commits else (self.version,))
        )
        await delete_writes({buffer.info.name: versions})
        buffer.forget_taken_back()

    def _leaves_as_batch(self, buffer: WriteBuffer) -> bool:
        """Whether the buffer is sent as a batch. A table whose writes are all in batches is best: ids and shadow cells
        are then computed from batches."""
        if self._packs_commits and buffer.checked is not None:
            return False
        rows_min = BATCH_ROWS_MIN if self._pipelined else LARGE_FLUSH_ROWS_MIN
        return len(buffer.rows) >= rows_min or bool(self.version and buffer.sent_batches)

    def send(self) -> Routine[None]:
        """Send the buffered writes: durable on return, or in flight. Errors as of `flush`."""
        return self._whole(self._begin_all() if self._pipelined else self._flush())

    async def _begin_all(self) -> None:
        for buffer in list(self._buffers.values()):
            if buffer.rows:
                await self._before_leaving(buffer)
                await self._begin(buffer)
        self._count_buffered()

    @property
    def is_writing(self) -> bool:
        """Whether writes are in flight: no read may begin before `end`."""
        return bool(self._begun)

    def end(self) -> Routine[None]:
        """Wait until all writes in flight are durable. Errors as of `flush`."""
        return self._whole(self._end(len(self._begun)))

    async def _whole(self, routine: Routine[None]) -> None:
        was_torn, self.is_torn = self.is_torn, True
        try:
            await routine
        except BaseException as error:
            raise_if_index_dropped(error)
            raise
        self.is_torn = was_torn

    def _count_buffered(self) -> None:
        self._buffered_bytes = sum(map(_BUFFERED_BYTES, self._buffers.values()))

    async def _write(self, buffer: WriteBuffer) -> None:
        await self._version()
        rows, writes = buffer.take_rows()
        try:
            if not self._packs_commits:
                await WriteCells(buffer.info.name, self.version, writes)
                return
            named, free = buffer.split_free(writes)
            for version, some in ((self.version, named), (self.version + FREE, free)):
                if some:
                    await WriteCells(buffer.info.name, version, some)
        except BaseException:
            buffer.restore(rows)
            raise

    async def _begin(self, buffer: WriteBuffer) -> None:
        await self._keep_apart(buffer)
        if len(self._begun) >= PIPELINED_WRITES_MAX:
            await self._end(1)
        await self._version()
        rows, batch = buffer.take_batch()
        try:
            write = await BeginWrite(buffer.info.name, self.version, batch)
        except BaseException:
            buffer.restore(rows)
            raise
        self._begun.append(_Begun(buffer, rows, write))

    async def _keep_apart(self, buffer: WriteBuffer) -> None:
        """Never have two writes of one row in flight: the earlier might arrive later."""
        if any(begun.buffer is buffer and buffer.overlaps(begun.rows) for begun in self._begun):
            await self._end(len(self._begun))

    async def _end(self, count: int) -> None:
        ending = self._begun[:count]
        if not ending:
            return
        try:
            await EndWrites(tuple(begun.write for begun in ending))
        except BaseException:
            for begun in ending:
                begun.buffer.restore(begun.rows)
            raise
        finally:
            del self._begun[:count]

    # Reading

    def note_expiring(self, info: TableInfo) -> None:
        """Called before the first read of a table with a time to live."""
        self._expiring[info.name] = expiring(self._snapshot, info)

    def check_life(self, info: TableInfo) -> Routine[None]:
        """Before the first use of a table that is younger than the snapshot (R10)."""
        return check_life(info, self._snapshot, info.generation)

    def _snapshot_of(self, table: str) -> Snapshot:
        return self._expiring.get(table, self._snapshot)

    def read(
        self, info: TableInfo, keys: Sequence[bytes], columns: Sequence[Column] | None, read: OpenRead | None = None
    ) -> Routine[list[Row]]:
        """Return rows as the transaction sees them, in the order of `keys`; {} for a row that does not exist. `read`:
        as of the begin of that read."""
        read_stored = read_settled if self._settled_reads and len(keys) <= ROWS_AT_ONCE else read_rows
        routine = read_stored(info, keys, columns, self._expiring.get(info.name, self._snapshot), self._cache)
        return routine if info.name not in self._buffers else self._overlaid(info, keys, columns, routine, read)

    async def _overlaid(
        self,
        info: TableInfo,
        keys: Sequence[bytes],
        columns: Sequence[Column] | None,
        routine: Routine[list[Row]],
        read: OpenRead | None,
    ) -> list[Row]:
        rows = await routine
        buffer = self._buffers[info.name]
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
        without_own = replace(self._snapshot_of(info.name), own=NO_STARTS)
        rows = await read_rows(info, list(stored), columns, without_own, self._cache)
        return {key: overlaid(row, stored[key], columns) for key, row in zip(stored, rows, strict=True)}

    def scan(
        self, info: TableInfo, key_range: KeyRange, columns: Sequence[Column] | None, rows_max: int
    ) -> SnapshotScan:
        """Return a scan of what the transaction sees in the store, without the overlay."""
        return SnapshotScan(info, key_range, columns, self._snapshot_of(info.name), self._cache, rows_max=rows_max)

    def start_of_last_rows(self, info: TableInfo, key_range: KeyRange, rows: int) -> Routine[bytes]:
        """Return the key at which about the last `rows` rows of the range begin."""
        return start_of_last_rows(info, key_range, rows, self._snapshot_of(info.name))

    def begin_read(self, table: str, key_range: KeyRange) -> OpenRead:
        """Return an open read of the range, which sees own writes as they are now (C15). The reader must keep a
        reference to it."""
        buffer = self._buffers.get(table)
        is_over_buffer = buffer is not None and bool(buffer.rows)
        reads = self._open_reads.setdefault(table, OpenReads())
        read = reads.begin(key_range, is_over_buffer=is_over_buffer)
        for begun in self._begun:
            if buffer is begun.buffer:  # if it fails, its rows are buffered again
                read.note_leaving({row: {**cells, **buffer.overlay(row)} for row, cells in begun.rows.items()})
        return read

    async def own_rows(
        self,
        read: OpenRead,
        info: TableInfo,
        seen: Iterable[SeenBatch],
        shown: KeyRange,
        columns: Sequence[Column] | None,
    ) -> OwnRows:
        """Return how the read's rows in a range differ from the store's, and note that they are returned. `seen`: the
        store's batches of the range."""
        keys = list(chain.from_iterable(row_keys(batch) for batch, _ in seen)) if read.has_noted else ()
        stored = await self._stored(read, info, keys, columns)
        overlays = {row: read.buffered(row) for row in read.noted_rows(shown)}
        buffer = self._buffers.get(info.name)
        if buffer is not None and read.is_over_buffer:
            for row in buffer.buffered_keys(shown):
                if cells := read.buffered(row, buffer.overlay(row)):
                    overlays[row] = cells
        read.show(shown, keys)
        return OwnRows(stored, overlays) if stored or overlays else NO_OWN_ROWS

    # Ending

    def abandoned_writes(self) -> tuple[object, ...]:
        """Return the writes in flight, which the rollback awaits before it deletes them."""
        begun, self._begun = self._begun, []
        return tuple(each.write for each in begun)

    @property
    def has_buffered(self) -> bool:
        return any(buffer.rows for buffer in self._buffers.values())

    @property
    def wrote(self) -> bool:
        return bool(self._packed) or any(map(_TOUCHED, self._buffers.values()))

    def shown_writes(self) -> WriteSet:
        """Return some written versions, for messages."""
        if not self._packed or (self._packs_commits and self.version):
            return self.write_set()
        return {
            name: [CellVersion(row, *column, self.start_ts) for row, cells in each.rows.items() for column in cells]
            for name, each in self._buffers.items()
            if each.rows
        }

    def write_set(self) -> WriteSet:
        """Return every version that may be in the store before the commit."""
        if not self.version:
            return {}
        sent = ((name, buffer) for name, buffer in self._buffers.items() if buffer.has_sent)
        return {name: buffer.sent_versions(self.version) for name, buffer in sent}

    def commit_request(self) -> CommitRequest:
        """Return the commit request, after `settle`: the ids of everything written and claimed, at each table's
        level (T9). In a folder the packed request is all of it."""
        if self._packs_commits:
            return CommitRequest(self.start_ts, packed=self._packed)
        written = [buffer for buffer in self._buffers.values() if buffer.touched]
        return CommitRequest(
            self.start_ts,
            cell_ids=tuple(cell for buffer in written for cell in conflict_ids(buffer)),
            table_ids=tuple(table_id(buffer.info.name.encode()) for buffer in written),
        )


SeenBatch = tuple[CellBatch, VisibleCells]


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Own writes in a part of a scan: `stored`, rows that replace the store's rows, and `overlays`, own cells over all
    rows, including rows that exist only by them."""

    stored: Mapping[bytes, Row]
    overlays: Mapping[bytes, RowOverlay]

    def over(self, seen: Iterable[SeenBatch], columns: Sequence[Column] | None) -> Iterator[tuple[bytes, Row]]:
        """Yield the existing rows, ascending."""
        rows = dict(chain.from_iterable(visible_rows(*each, each[0].columns) for each in seen))
        rows.update(self.stored)
        for key in sorted(rows.keys() | self.overlays.keys()):
            row = overlaid(rows.get(key, {}), self.overlays.get(key, NO_CELLS), columns)
            if row:
                yield key, row


NO_OWN_ROWS: Final = OwnRows({}, {})


def merged(
    seen: Iterable[SeenBatch], own: OwnRows, columns: Sequence[Column] | None
) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the rows of ascending batches as the transaction sees them, with full column names."""
    if own is NO_OWN_ROWS:
        return list(chain.from_iterable(map(_named_rows, seen)))
    return [(key, named(row)) for key, row in own.over(seen, columns)]


def shown_rows(
    seen: Sequence[SeenBatch], own: OwnRows, columns: Sequence[Column] | None
) -> kernels.ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]]:
    """As `merged`, but rows may be created lazily."""
    return _named_rows(seen[0]) if own is NO_OWN_ROWS and len(seen) == 1 else merged(seen, own, columns)


def merged_batch(seen: SeenBatch | None, own: OwnRows) -> SeenBatch | None:
    """As `merged`, for a batch and as a batch. None: no rows."""
    if own is NO_OWN_ROWS:
        return seen
    rows = dict(own.over(() if seen is None else (seen,), None))
    if not rows:
        return None
    batch = batch_of_rows(rows)
    committed = replace(batch, rec_commit=np.full(batch.records, 1, dtype=np.int64))
    return committed, visible_cells(committed, 2)


Name = TypeVar("Name", Column, bytes)


def visible_rows(batch: CellBatch, visible: VisibleCells, names: Sequence[Name]) -> kernels.ShownRows[Name]:
    """Return the rows, with `names` for the columns, each created when it is iterated over."""
    return kernels.ShownRows(batch.arrays(), visible.cells, visible.row_cell, list(names))


def _named_rows(seen: SeenBatch) -> kernels.ShownRows[bytes]:
    return visible_rows(*seen, list(map(full_name, seen[0].columns)))


def row_keys(batch: CellBatch) -> list[bytes]:
    data, ends = batch.buffer.tobytes(), batch.row_off + batch.row_len
    return [data[first:last] for first, last in zip(batch.row_off.tolist(), ends.tolist(), strict=True)]


def named(row: Mapping[Column, bytes]) -> dict[bytes, bytes]:
    """Return a row with full column names."""
    return dict(zip(map(full_name, row), row.values(), strict=True))


@lru_cache(maxsize=10_000)
def full_name(column: Column) -> bytes:
    return b"%b:%b" % column
