"""The outbox, which sends a transaction's buffered writes, in batches under its version, and then the commit request.

A later write of a sent cell replaces it under the same version. If the store has pipelined writes, a batch is sent
while the caller continues to write:

    put put put … │ put put put … │ put …   commit
                  └─ sent ────────┴─ sent ──┴─ rest sent, all replies awaited (law 1), then the request

The client awaits a reply before an operation that needs it: a commit, a read, a second write of the same row, or a
write with too many batches in flight. That operation raises the error of a failed write, and the transaction becomes
rollback-only.

In a folder the commit request carries the writes: `packed_outbox`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Final

from pyomid.cells import CellBatch
from pyomid.coroutines import NOTHING, Routine
from pyomid.database.index_tables import raise_if_index_dropped
from pyomid.database.native import puts
from pyomid.database.validation import TableRules
from pyomid.database.writes.conflict_ids import CommitIds, conflict_ids
from pyomid.database.writes.overlay import Overlay
from pyomid.database.writes.own_cells import BufferedRows
from pyomid.database.writes.savepoints import SavedWrites
from pyomid.database.writes.write_buffer import WriteBuffer
from pyomid.errors import Misuse
from pyomid.protocol.commit import WriteSet, delete_writes
from pyomid.protocol.effects import BeginWrite, EndWrites, WriteCells
from pyomid.protocol.hashing import table_id
from pyomid.types import CellVersion, Column, CommitRequest, RowWrite, TableInfo

BUFFERED_BYTES, TOUCHED = attrgetter("buffered_bytes"), attrgetter("touched")

PIPELINED_BYTES: Final = 96 << 10
"""Size of a pipelined batch: a few hundred rows, whose cost exceeds that of the call's round trip."""

PIPELINED_WRITES_MAX: Final = 8
"""Maximum number of writes in flight, which bounds their memory. The oldest is awaited before a further one is sent."""

BATCH_ROWS_MIN: Final = 16
"""Minimum size of a batch in a store with pipelined writes; fewer rows are cheaper as single rows."""

LARGE_FLUSH_ROWS_MIN: Final = 500
"""A flush of this many rows or more is a batch in any store."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A pipelined write: the rows taken from the buffer, and the store's handle."""

    buffer: WriteBuffer
    rows: BufferedRows
    write: object


class Outbox(puts.Backlog):
    """A transaction's writes on their way to the store. `pipelined` is the store's capability, `ids_max` the limit of
    `CommitIds`, and `packed_bytes_max` that of `ports.Tso`. `dates_commits` returns whether timestamps are wall-clock
    times."""

    def __init__(
        self,
        overlay: Overlay,
        *,
        flush_bytes: int,
        pipelined: bool = False,
        ids_max: int = 0,
        packed_bytes_max: int = 0,
        dates_commits: Callable[[], bool] = lambda: True,
    ) -> None:
        self.start_ts: Final = overlay.view.start_ts
        self.ids: Final = CommitIds(ids_max, overlay.buffers)
        self._view = overlay.view
        self._overlay = overlay
        self._buffers = overlay.buffers
        self._dates_commits = dates_commits
        self._pipelined = pipelined
        self._packed_bytes_max = packed_bytes_max
        self._flush_bytes = min(flush_bytes, PIPELINED_BYTES) if pipelined else flush_bytes
        self._buffered_bytes = 0
        self._in_flight: list[_InFlight] = []
        self.is_torn = False
        """Whether the sent writes may be stored only in part, so that the transaction must roll back (C1). It is set
        before writes are sent and cleared when all of them are stored, so it is set after any error or interrupt in
        between.
        """

    # Writing

    def put_known(self, rules: TableRules, key: object, cells: object) -> bool:
        """Check and buffer an ordinary put of valid cells in known columns. If the put needs the full checks, or if an
        open read, a savepoint or the choice of ids depends on it, buffer nothing and return False."""
        buffer = self._buffers.get(rules.info.name) or self.buffer_of(rules.info)
        if self._overlay.savepoints or buffer.taken_back or buffer.reads or buffer.checked is not None:
            return False
        return puts.put_known(self, self.ids, buffer, rules, key, cells)

    def buffer(self, info: TableInfo, row: bytes, cells: dict[Column, bytes | None], *, conflict: bool = True) -> bool:
        """Buffer a write until the next flush, and return True if a flush is due. The outbox then owns `cells`. With
        `conflict=False`, the commit does not name these cells, unless another write or a claim names them."""
        buffer = self._buffers.get(info.name) or self.buffer_of(info)
        if conflict:
            self.ids.note_row(buffer, row, cells)
        replaced = self._overlay.note_write(buffer, row, cells)
        if not conflict or buffer.checked is not None:
            buffer.note_checked(row, cells, conflict=conflict)
        added = buffer.put(row, cells)
        if replaced is not None:
            replaced.added_bytes += added
        self._buffered_bytes += added
        return self.is_flush_due

    def claim(self, info: TableInfo, row: bytes, columns: Collection[Column | None]) -> None:
        """Make the commit name these cells as if they were written (C12). None among them stands for the row, which at
        level cell has a separate id."""
        buffer = self.buffer_of(info)
        self.ids.note_claim(buffer, row, columns)
        buffer.claims.update(((row, column), None) for column in columns)

    def buffer_of(self, info: TableInfo) -> WriteBuffer:
        buffer = self._buffers.get(info.name)
        if buffer is None:
            if info.ttl_seconds:
                self._check_dated(info)
            buffer = self._buffers[info.name] = WriteBuffer(info, self._overlay.open_reads[info.name])
        return buffer

    def _check_dated(self, info: TableInfo) -> None:
        """E6: raise `Misuse` if the timestamps of this table's writes are not wall-clock times."""
        if not self._dates_commits():
            raise Misuse(
                f"table {info.name!r} has a time to live, but the leading TSO's timestamps are not wall-clock times "
                f"(this transaction's start timestamp is {self.start_ts}): serve the database with `pyomid tso`, or "
                "with Apache Omid's TSO with timestampType WORLD_TIME, or end the time to live with ttl_seconds=0",
                table=info.name,
            )

    def go_back(self, saved: SavedWrites) -> None:
        """Restore the saved writes. The store follows when the buffer is sent."""
        savepoints = self._overlay.savepoints
        if savepoints is None or not savepoints.holds(saved):
            raise Misuse(
                f"cannot roll back to this savepoint of transaction {self.start_ts}: it was released, or the "
                "transaction has rolled back to an earlier savepoint"
            )
        was_torn, self.is_torn = self.is_torn, True
        savepoints.go_back(saved)
        self.ids.go_back(saved.ids_written)
        self._count_buffered()
        self.is_torn = was_torn

    async def batch_write(self, info: TableInfo, batch: CellBatch) -> None:
        """Write the cells of a batch, whose ids are already noted. When the call returns, the cells are durable or
        buffered. It raises the errors of `flush`."""
        buffer = self.buffer_of(info)
        if self._overlay.savepoints or buffer.taken_back or buffer.checked is not None or self._carries(buffer, batch):
            for index in range(batch.rows):
                cells = {Column(cell.family, cell.qualifier): cell.value for cell in batch.row_cells(index)}
                if self.buffer(info, batch.row_key(index), cells):
                    await self.send()
        elif batch.rows:
            await self._whole(self._write_batch(buffer, batch))

    def _carries(self, buffer: WriteBuffer, batch: CellBatch) -> bool:
        """Whether the commit request can carry the batch."""
        return False

    # Sending. Errors make the transaction roll back (C1)

    def flush(self) -> Routine[None]:
        """Make every write that was buffered before the call durable (law 1)."""
        return self._whole(self._flush())

    def send(self) -> Routine[None]:
        """Send the buffered writes. When the call returns, they are durable or in flight."""
        return self._whole(self._begin_all() if self._pipelined else self._flush())

    def end(self) -> Routine[None]:
        """Wait until all writes in flight are durable."""
        return self._whole(self._end_all())

    def settle(self) -> Awaitable[None]:
        """Make all writes durable (law 1), and delete versions that a rollback to a savepoint took back (law 11). The
        commit request follows."""
        return self._whole(self._settle()) if self._buffers else NOTHING

    @property
    def is_writing(self) -> bool:
        """Whether writes are in flight; then no read may begin before `end`."""
        return bool(self._in_flight)

    def rows_in_flight(self, table: str) -> list[BufferedRows]:
        return [sent.rows for sent in self._in_flight if sent.buffer.info.name == table]

    @property
    def has_buffered(self) -> bool:
        return any(buffer.rows for buffer in self._buffers.values())

    async def _whole(self, routine: Routine[None]) -> None:
        was_torn, self.is_torn = self.is_torn, True
        try:
            await routine
        except BaseException as error:
            raise_if_index_dropped(error)
            raise
        self.is_torn = was_torn

    async def _flush(self) -> None:
        for buffer in list(self._buffers.values()):
            if not buffer.rows:
                continue
            await self._overlay.before_sending(buffer, self._end_all)
            if self._leaves_as_batch(buffer):
                await self._begin(buffer)
            else:
                await self._keep_apart(buffer)
                await self._write(buffer)
        self._count_buffered()
        await self._end_all()

    async def _begin_all(self) -> None:
        for buffer in list(self._buffers.values()):
            if buffer.rows:
                await self._overlay.before_sending(buffer, self._end_all)
                await self._begin(buffer)
        self._count_buffered()

    async def _settle(self) -> None:
        for buffer in self._buffers.values():
            if buffer.taken_back:
                await self._delete_taken_back(buffer)
        self._count_buffered()
        await self._flush()

    async def _delete_taken_back(self, buffer: WriteBuffer) -> None:
        """Delete versions that a rollback to a savepoint took back (C14). This must not happen earlier: in HBase a
        delete also hides a later put of the same version, and the cell may be put again. Cells that are buffered with
        their snapshot's value need not be sent."""
        await self._end_all()
        versions = tuple(
            CellVersion(row, *column, version)
            for row, column in sorted(buffer.taken_back)
            for version in self._versions()
        )
        await delete_writes({buffer.info.name: versions})
        buffer.forget_taken_back()

    def _versions(self) -> tuple[int, ...]:
        """Return the versions that a cell may have."""
        return (self._view.version,)

    def _count_buffered(self) -> None:
        self._buffered_bytes = sum(map(BUFFERED_BYTES, self._buffers.values()))

    def _leaves_as_batch(self, buffer: WriteBuffer) -> bool:
        """Whether the buffer is sent as a batch. If all writes of a table are in batches, ids and shadow cells can be
        computed from the batches, which is fastest."""
        rows_min = BATCH_ROWS_MIN if self._pipelined else LARGE_FLUSH_ROWS_MIN
        return len(buffer.rows) >= rows_min or bool(self._view.version and buffer.sent_batches)

    async def _draw_version(self) -> None:
        """Draw the version for writes, if that is still due; called before each write to the store."""

    async def _write(self, buffer: WriteBuffer) -> None:
        await self._draw_version()
        rows, writes = buffer.take_rows()
        try:
            await self._write_rows(buffer, writes)
        except BaseException:
            buffer.restore(rows)
            raise

    async def _write_rows(self, buffer: WriteBuffer, writes: Sequence[RowWrite]) -> None:
        await WriteCells(buffer.info.name, self._view.version, writes)

    async def _write_batch(self, buffer: WriteBuffer, batch: CellBatch) -> None:
        """Write a batch after all earlier writes, because the later write of a cell wins."""
        await self._flush()
        await self._overlay.before_batch(buffer, batch, self._end_all)
        await self._draw_version()
        buffer.note_batch(batch)
        write = await BeginWrite(buffer.info.name, self._view.version, batch)
        await EndWrites((write,))

    async def _begin(self, buffer: WriteBuffer) -> None:
        await self._keep_apart(buffer)
        if len(self._in_flight) >= PIPELINED_WRITES_MAX:
            await self._end(1)
        await self._draw_version()
        rows, batch = buffer.take_batch()
        try:
            write = await BeginWrite(buffer.info.name, self._view.version, batch)
        except BaseException:
            buffer.restore(rows)
            raise
        self._in_flight.append(_InFlight(buffer, rows, write))

    async def _keep_apart(self, buffer: WriteBuffer) -> None:
        """Never have two writes of one row in flight, because the earlier write might arrive later."""
        if any(sent.buffer is buffer and buffer.overlaps(sent.rows) for sent in self._in_flight):
            await self._end_all()

    async def _end_all(self) -> None:
        await self._end(len(self._in_flight))

    async def _end(self, count: int) -> None:
        ending = self._in_flight[:count]
        if not ending:
            return
        try:
            await EndWrites(tuple(sent.write for sent in ending))
        except BaseException:
            for sent in ending:
                sent.buffer.restore(sent.rows)
            raise
        finally:
            del self._in_flight[:count]

    # Ending

    @property
    def wrote(self) -> bool:
        return any(map(TOUCHED, self._buffers.values()))

    def commit_request(self) -> CommitRequest:
        """Return the commit request, after `settle`. It has the ids of all written and claimed cells or rows, at each
        table's level (T9)."""
        written = [buffer for buffer in self._buffers.values() if buffer.touched]
        return CommitRequest(
            self.start_ts,
            cell_ids=tuple(cell for buffer in written for cell in conflict_ids(buffer)),
            table_ids=tuple(table_id(buffer.info.name.encode()) for buffer in written),
        )

    def write_set(self) -> WriteSet:
        """Return every version that may be in the store before the commit."""
        if not self._view.version:
            return {}
        sent = ((name, buffer) for name, buffer in self._buffers.items() if buffer.has_sent)
        return {name: buffer.sent_versions(self._view.version) for name, buffer in sent}

    def shown_writes(self) -> WriteSet:
        """Return some written versions, for messages."""
        return self.write_set()

    def claimed_rows(self, tables_max: int, rows_max: int) -> dict[str, list[bytes]]:
        """Return the first claimed rows, by table."""
        claimed = ((name, buffer.claims) for name, buffer in self._buffers.items() if buffer.claims)
        return {
            name: list(islice(dict.fromkeys(row for row, _ in claims), rows_max))
            for name, claims in islice(claimed, tables_max)
        }

    def abandoned_writes(self) -> tuple[object, ...]:
        """Return the writes in flight, which the rollback awaits before it deletes them."""
        abandoned, self._in_flight = self._in_flight, []
        return tuple(sent.write for sent in abandoned)
