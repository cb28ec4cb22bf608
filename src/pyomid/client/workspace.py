"""One transaction's reads and writes as steps, without threads, sockets or clocks: what the blocking and the
asyncio client share.

Writes are held back and flushed in batches under the start timestamp; reads see the flushed ones in the store as
own versions and the held-back ones as an overlay (C2). A later write of a cell already flushed replaces it under
the same version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pyomid.cells import CellBatch
from pyomid.client.own_writes import OwnWrites, overlaid
from pyomid.core import hashing_batch, visibility
from pyomid.core.commit_cache import CommitCache
from pyomid.core.committing import WriteSet
from pyomid.core.effects import Steps, WriteCells
from pyomid.core.hashing import row_id, table_id
from pyomid.core.reading import Snapshot, check_snapshot_steps, read_rows_steps, resolve_batch_steps
from pyomid.types import BeginReply, Column, CommitRequest, ConflictLevel, KeyRange, TableInfo

Row = dict[Column, bytes]

ROWS_AT_ONCE: Final = 10_000
"""Keys of one multi-get request; more are asked for in turns."""


IDS_COMPILED_MIN: Final = 2_000
"""Fewer ids are hashed faster (10 us each) than the compiled form is loaded in a process that had no use for it yet."""


class Workspace:
    """What one transaction holds: its snapshot and its own writes by table."""

    def __init__(self, begun: BeginReply, cache: CommitCache, *, flush_bytes: int) -> None:
        self.start_ts = begun.start_ts
        self._snapshot = Snapshot(begun.start_ts, begun.epoch, own=frozenset((begun.start_ts,)))
        self._cache = cache
        self._flush_bytes = flush_bytes
        self._held_bytes = 0
        self._tables: dict[str, OwnWrites] = {}

    # Writing

    def hold(self, info: TableInfo, row: bytes, cells: Mapping[Column, bytes | None]) -> bool:
        """Keeps the writes for the next flush; True when that is due."""
        own = self._tables.get(info.name)
        if own is None:
            own = self._tables[info.name] = OwnWrites(info)
        self._held_bytes += own.hold(row, cells)
        return self._held_bytes >= self._flush_bytes

    def flush_steps(self) -> Steps[None]:
        """Every held-back write is durable on return (law 1). After an error the transaction must roll back (C1)."""
        for own in self._tables.values():
            if own.held_bytes:
                own.note_sending()
                yield WriteCells(own.info.name, self.start_ts, own.row_writes())
                own.note_sent()
        self._held_bytes = 0

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


def _conflict_ids(own: OwnWrites) -> Iterable[int]:
    table = own.info.name.encode()
    if own.info.conflict_level is ConflictLevel.ROW:
        names = list(own.sent_rows())
    else:
        names = [row + column.family + column.qualifier for row, column in own.sent_cells()]
    if len(names) < IDS_COMPILED_MIN:
        return (row_id(table, name) for name in names)
    return hashing_batch.name_ids(table, names)


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
