"""One transaction's reads and writes as steps, without threads, sockets or clocks: what the blocking and the
asyncio client share.

Writes are held back and flushed in batches under the start timestamp; reads see the flushed ones in the store as
own versions and the held-back ones as an overlay (C2). A later write of a cell already flushed replaces it under
the same version.

Over a store that takes writes ahead they leave while the caller goes on writing:

    put put put … │ put put put … │ put …   commit
                  └─ sent ────────┴─ sent ──┴─ rest sent, all answers awaited (law 1), then the request

An answer is awaited before anything that needs it: a commit, a read, a second write of the same row, too much on its
way. That is where a failure comes to light, and makes the transaction rollback-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from pyomid.cells import CellBatch
from pyomid.client.write_buffer import HeldRows, OpenScan, WriteBuffer, overlaid
from pyomid.protocol import visibility
from pyomid.protocol.commit import WriteSet
from pyomid.protocol.commit_cache import CommitCache
from pyomid.protocol.effects import BeginWrite, EndWrites, Steps, WriteCells
from pyomid.protocol.hashing import row_id, table_id
from pyomid.protocol.native import hashing
from pyomid.protocol.reading import Snapshot, check_snapshot_steps, read_rows_steps, resolve_batch_steps
from pyomid.types import BeginReply, Column, CommitRequest, ConflictLevel, KeyRange, TableInfo

Row = dict[Column, bytes]

ROWS_AT_ONCE: Final = 10_000
"""Keys of one multi-get request; more are asked for in turns."""


IDS_COMPILED_MIN: Final = 2_000
"""Fewer ids are hashed faster (10 us each) than the compiled form is loaded in a process that had no use for it yet."""


AHEAD_BYTES: Final = 96 << 10
"""Held back before it is sent ahead: a few hundred rows, whose call costs what they cost and not its round trip."""

AHEAD_MAX: Final = 8
"""Writes on their way; the oldest is awaited before the next one leaves. Bounds what is kept of them."""

BATCH_ROWS_MIN: Final = 16
"""Fewer rows are cheaper as rows than as a batch."""


@dataclass(frozen=True, slots=True)
class _Begun:
    own: WriteBuffer
    rows: HeldRows
    write: object


class TransactionSteps:
    """What one transaction holds: its snapshot and its own writes by table.

    `ahead`: its store has pipelined writes (`ports.Capabilities`).
    """

    def __init__(self, begun: BeginReply, cache: CommitCache, *, flush_bytes: int, ahead: bool = False) -> None:
        self.start_ts = begun.start_ts
        self._snapshot = Snapshot(begun.start_ts, begun.epoch, own=frozenset((begun.start_ts,)))
        self._cache = cache
        self._ahead = ahead
        self._flush_bytes = min(flush_bytes, AHEAD_BYTES) if ahead else flush_bytes
        self._held_bytes = 0
        self._begun: list[_Begun] = []
        self._tables: dict[str, WriteBuffer] = {}
        self.is_torn = False
        """Some of the writes that left may be in the store and some not: only a rollback is right now (C1). Set before
        anything leaves, and cleared by the end that went well: no error or interrupt on the way can miss it.
        """

    # Writing

    def hold(self, info: TableInfo, row: bytes, cells: Mapping[Column, bytes | None]) -> bool:
        """Keeps the writes for the next flush; True when that is due."""
        self._held_bytes += self._own(info).hold(row, cells)
        return self._held_bytes >= self._flush_bytes

    def _own(self, info: TableInfo) -> WriteBuffer:
        own = self._tables.get(info.name)
        if own is None:
            own = self._tables[info.name] = WriteBuffer(info)
        return own

    def flush_steps(self) -> Steps[None]:
        """Every write held back when it began is durable on return (law 1). After an error the transaction must roll
        back (C1)."""
        return self._whole_steps(self._flush_steps())

    def _flush_steps(self) -> Steps[None]:
        for own in list(self._tables.values()):
            if not own.held_bytes:
                continue
            if self._ahead and (own.held_rows >= BATCH_ROWS_MIN or own.sent_batches):
                yield from self._begin_steps(own)
            else:
                yield from self._keep_apart_steps(own)
                yield from self._write_steps(own)
        self._count_held()
        yield from self._end_steps(len(self._begun))

    def send_steps(self) -> Steps[None]:
        """What is held back leaves for the store: durable on return, or on its way. Errors as of `flush_steps`."""
        return self._whole_steps(self._send_ahead_steps() if self._ahead else self._flush_steps())

    def _send_ahead_steps(self) -> Steps[None]:
        for own in list(self._tables.values()):
            if own.held_bytes:
                yield from self._begin_steps(own)
        self._count_held()

    @property
    def is_writing(self) -> bool:
        """Writes are on their way: reads must not begin before `end_steps`."""
        return bool(self._begun)

    def end_steps(self) -> Steps[None]:
        """Everything that is on its way is durable on return. Errors as of `flush_steps`."""
        return self._whole_steps(self._end_steps(len(self._begun)))

    def _whole_steps(self, steps: Steps[None]) -> Steps[None]:
        was_torn, self.is_torn = self.is_torn, True
        yield from steps
        self.is_torn = was_torn

    def _count_held(self) -> None:
        self._held_bytes = sum(own.held_bytes for own in self._tables.values())

    def _write_steps(self, own: WriteBuffer) -> Steps[None]:
        rows, writes = own.take_rows()
        try:
            yield WriteCells(own.info.name, self.start_ts, writes)
        except BaseException:
            own.take_back(rows)
            raise

    def _begin_steps(self, own: WriteBuffer) -> Steps[None]:
        yield from self._keep_apart_steps(own)
        if len(self._begun) >= AHEAD_MAX:
            yield from self._end_steps(1)
        rows, batch = own.take_batch()
        try:
            write = yield BeginWrite(own.info.name, self.start_ts, batch)
        except BaseException:
            own.take_back(rows)
            raise
        self._begun.append(_Begun(own, rows, write))

    def _keep_apart_steps(self, own: WriteBuffer) -> Steps[None]:
        """Two writes of one row never travel together: the earlier might arrive later."""
        if any(begun.own is own and own.overlaps(begun.rows) for begun in self._begun):
            yield from self._end_steps(len(self._begun))

    def _end_steps(self, count: int) -> Steps[None]:
        ending = self._begun[:count]
        if not ending:
            return
        try:
            yield EndWrites(tuple(begun.write for begun in ending))
        except BaseException:
            for begun in ending:
                begun.own.take_back(begun.rows)
            raise
        finally:
            del self._begun[:count]

    # Reading

    def read_steps(self, info: TableInfo, keys: Sequence[bytes], columns: Sequence[Column] | None) -> Steps[list[Row]]:
        """The rows as the transaction sees them, in the order asked; {} where there is none."""
        rows = yield from read_rows_steps(info.name, keys[:ROWS_AT_ONCE], columns, self._snapshot, self._cache)
        for first in range(ROWS_AT_ONCE, len(keys), ROWS_AT_ONCE):
            some = keys[first : first + ROWS_AT_ONCE]
            rows += yield from read_rows_steps(info.name, some, columns, self._snapshot, self._cache)
        own = self._tables.get(info.name)
        if own is not None and own.held_bytes:
            rows = [overlaid(row, own.overlay(key), columns) for key, row in zip(keys, rows, strict=True)]
        return rows

    def batch_steps(
        self, info: TableInfo, batch: CellBatch, columns: Sequence[Column] | None
    ) -> Steps[list[tuple[bytes, Row]]]:
        """The visible rows of a scanned batch, ascending, without the overlay."""
        resolved = yield from resolve_batch_steps(info.name, batch, columns, self._snapshot, self._cache)
        yield from check_snapshot_steps(self._snapshot)
        return list(_rows_of(resolved, self._snapshot))

    def begin_scan(self, info: TableInfo, key_range: KeyRange) -> OpenScan:
        """Where a scan of this transaction stands: it tells when what the store asked ahead lacks own writes (C2)."""
        return self._own(info).begin_scan(key_range)

    def scanned_steps(self) -> Steps[None]:
        """R7 after the last batch: what lay behind it, or a range that looked empty, may have been cleaned away."""
        return check_snapshot_steps(self._snapshot)

    def merged(
        self, info: TableInfo, rows: Iterable[tuple[bytes, Row]], key_range: KeyRange, columns: Sequence[Column] | None
    ) -> Iterator[tuple[bytes, Row]]:
        """`rows` of the range with the held-back writes over them; rows that those add or empty included or left out.

        `rows` ascend and lie in `key_range`, which tells how far the overlay may speak.
        """
        own = self._tables.get(info.name)
        held = own.held_keys(key_range) if own is not None and own.held_bytes else ()
        if own is None or not held:
            yield from rows
            return
        stored = dict(rows)
        for key in sorted(stored.keys() | set(held)):
            row = overlaid(stored.get(key, {}), own.overlay(key), columns)
            if row:
                yield key, row

    # Ending

    def abandoned_writes(self) -> tuple[object, ...]:
        """What is on its way and nobody will await but a rollback, which deletes it then."""
        begun, self._begun = self._begun, []
        return tuple(each.write for each in begun)

    @property
    def wrote(self) -> bool:
        return any(own.touched for own in self._tables.values())

    def write_set(self) -> WriteSet:
        """Every version that may be in the store."""
        return {name: versions for name, own in self._tables.items() if (versions := own.sent_versions(self.start_ts))}

    def commit_request(self) -> CommitRequest:
        """After the last flush: the ids of everything written, each table at its own level (T9)."""
        written = [own for own in self._tables.values() if own.touched]
        return CommitRequest(
            self.start_ts,
            cell_ids=tuple(cell for own in written for cell in _conflict_ids(own)),
            table_ids=tuple(table_id(own.info.name.encode()) for own in written),
        )


def _conflict_ids(own: WriteBuffer) -> Iterable[int]:
    table = own.info.name.encode()
    batches = own.sent_batches
    if batches is not None:
        ids = hashing.row_ids if own.info.conflict_level is ConflictLevel.ROW else hashing.cell_ids
        return dict.fromkeys(chain.from_iterable(ids(table, batch).tolist() for batch in batches))
    if own.info.conflict_level is ConflictLevel.ROW:
        names = list(dict.fromkeys(own.sent_rows()))
    else:
        cells = dict.fromkeys(own.sent_cells())
        names = [row + column.family + column.qualifier for row, column in cells]
    if len(names) < IDS_COMPILED_MIN:
        return (row_id(table, name) for name in names)
    return hashing.name_ids(table, names)


def _rows_of(batch: CellBatch, snapshot: Snapshot) -> Iterator[tuple[bytes, Row]]:
    """Point objects of a batch: from plain lists and one bytes object, as numpy's scalars cost a microsecond each."""
    visible = visibility.visible_cells(batch, snapshot.start_ts, snapshot.own)
    taken, row_cell = visible.cells, visible.row_cell.tolist()
    columns = [batch.columns[index] for index in batch.cell_col[taken].tolist()]
    offsets, lengths = batch.cell_off[taken].tolist(), batch.cell_len[taken].tolist()
    data = batch.buffer.tobytes()
    for index in range(batch.rows):
        first, last = row_cell[index], row_cell[index + 1]
        if first < last:
            yield (
                batch.row_key(index),
                {columns[cell]: data[offsets[cell] : offsets[cell] + lengths[cell]] for cell in range(first, last)},
            )
