"""One transaction's reads and writes as steps, without threads, sockets or clocks: the blocking and the asyncio client
share them.

Writes are buffered and flushed in batches under the start timestamp. Reads find the flushed ones in the store, as own
versions, and see the buffered ones as an overlay (C2). A later write of a flushed cell replaces it under the same
version.

If the store has pipelined writes, a batch leaves while the caller goes on writing:

    put put put … │ put put put … │ put …   commit
                  └─ sent ────────┴─ sent ──┴─ rest sent, all answers awaited (law 1), then the request

An answer is awaited before anything that needs it: a commit, a read, a second write of the same row, too many batches
under way. A failure comes to light there, and makes the transaction rollback-only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch, CellNames, batch_of_rows, without_values
from pyomid.errors import ConflictError, Misuse, UnknownTable
from pyomid.protocol.commit import WriteSet
from pyomid.protocol.effects import BeginWrite, EndWrites, Steps, WriteCells
from pyomid.protocol.expiry import seen_steps
from pyomid.protocol.hashing import row_id, table_id
from pyomid.protocol.native import hashing
from pyomid.protocol.reading import CommitCache, Snapshot, read_batch_steps, read_rows_steps
from pyomid.protocol.visibility import VisibleCells
from pyomid.types import (
    BeginReply,
    CellVersion,
    Column,
    CommitRequest,
    ConflictLevel,
    KeyRange,
    ReadBounds,
    RowWrite,
    TableInfo,
)

Row = dict[Column, bytes]

INDEX_TABLES: Final = "PYOMID_INDEX_"
"""What the names of tables begin with that hold the rows of indexes."""

IDS_COMPILED_MIN: Final = 2_000
"""Fewer ids are hashed faster (10 us each) than the compiled form is loaded in a process that has not used it yet."""

PIPELINED_BYTES: Final = 96 << 10
"""Buffered before a batch is sent: a few hundred rows, whose call costs what they cost and not its round trip."""

PIPELINED_WRITES_MAX: Final = 8
"""Writes under way. The oldest is awaited before the next one leaves, which bounds what is kept of them."""

BATCH_ROWS_MIN: Final = 16
"""Fewer rows are cheaper as rows than as a batch, in a store with pipelined writes."""

LARGE_FLUSH_ROWS_MIN: Final = 500
"""From so many on a flush is a batch in any store, if it can be made by kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedWrites:
    """A savepoint, by table: what was buffered, and what cells that left since held then (None: nothing)."""

    buffered: dict[str, BufferedRows]
    left: dict[str, BufferedRows]

    def missing(self, table: str, rows: BufferedRows) -> dict[bytes, set[Column]]:
        """Which of these cells it knows nothing of."""
        known = self.buffered.get(table, {}), self.left.get(table, {})
        found = {
            row: {c for c in cells if not any(c in each.get(row, {}) for each in known)} for row, cells in rows.items()
        }
        return {row: columns for row, columns in found.items() if columns}


@dataclass(frozen=True, slots=True)
class _Begun:
    """A pipelined write under way: what was taken out of the buffer, and the store's handle."""

    buffer: WriteBuffer
    rows: BufferedRows
    write: object


class UnlessIndexDropped:
    """`ConflictError` where the table of an index was dropped, which the program never named: it may begin anew."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, UnknownTable) and str(error.values.get("table", "")).startswith(INDEX_TABLES):
            raise ConflictError(
                "an index that this transaction reads or keeps was dropped meanwhile: begin anew"
            ) from error


unless_index_dropped: Final = UnlessIndexDropped()


def _nothing_steps() -> Steps[None]:
    yield from ()


class TransactionSteps:
    """What one transaction holds: its snapshot, and a write buffer for each table.

    `pipelined`: its store has pipelined writes (`ports.Capabilities`).
    """

    def __init__(self, begun: BeginReply, cache: CommitCache, *, flush_bytes: int, pipelined: bool = False) -> None:
        self.start_ts = begun.read_at or begun.start_ts
        own = () if begun.read_at else (begun.start_ts,)
        self._snapshot = Snapshot(self.start_ts, begun.epoch, own=frozenset(own))
        self._expiring: dict[str, Snapshot] = {}
        """The snapshot with what has expired for it, of tables with a time to live (E1)."""
        self._cache = cache
        self._pipelined = pipelined
        self._flush_bytes = min(flush_bytes, PIPELINED_BYTES) if pipelined else flush_bytes
        self._buffered_bytes = 0
        self._begun: list[_Begun] = []
        self._buffers: dict[str, WriteBuffer] = {}
        self._savepoints: list[SavedWrites] = []
        self.is_torn = False
        """Some of the writes that left may be in the store and some not, so the transaction must roll back (C1). Set
        before anything leaves, cleared when all of it arrived: no error or interrupt on the way can miss it.
        """

    # Writing

    def buffer(self, info: TableInfo, row: bytes, cells: dict[Column, bytes | None], *, conflict: bool = True) -> bool:
        """Keeps the writes for the next flush: `cells` itself, which the caller gives away. True when a flush is due.
        `conflict` False: the commit does not name these cells, unless they are written or claimed otherwise too."""
        buffer = self._buffers.get(info.name) or self._buffer_of(info)
        if not conflict or buffer.checked is not None:
            buffer.note_checked(row, cells, conflict=conflict)
        self._buffered_bytes += buffer.put(row, cells)
        return self._buffered_bytes >= self._flush_bytes

    def claim(self, info: TableInfo, row: bytes, columns: Iterable[Column | None]) -> None:
        """The commit names these cells as if they had been written. None among them: it names the row as well, which at
        level cell is an id of its own."""
        self._buffer_of(info).claims.update(((row, column), None) for column in columns)

    def claimed_rows(self, tables_max: int, rows_max: int) -> dict[str, list[bytes]]:
        """The first rows that were claimed, by table."""
        claimed = ((name, buffer.claims) for name, buffer in self._buffers.items() if buffer.claims)
        return {
            name: list(islice(dict.fromkeys(row for row, _ in claims), rows_max))
            for name, claims in islice(claimed, tables_max)
        }

    def _buffer_of(self, info: TableInfo) -> WriteBuffer:
        buffer = self._buffers.get(info.name)
        if buffer is None:
            buffer = self._buffers[info.name] = WriteBuffer(info)
        return buffer

    def save(self) -> SavedWrites:
        saved = SavedWrites({name: buffer.copied_rows() for name, buffer in self._buffers.items()}, {})
        self._savepoints.append(saved)
        return saved

    def keeps(self, saved: SavedWrites) -> bool:
        return saved in self._savepoints

    def go_back(self, saved: SavedWrites) -> None:
        """What is buffered and sent is as it was when it was saved, once the buffer has left again."""
        if saved not in self._savepoints:
            raise Misuse(f"the savepoint of transaction {self.start_ts} was released, or an earlier one rolled back")
        was_torn, self.is_torn = self.is_torn, True
        del self._savepoints[self._savepoints.index(saved) + 1 :]
        for name, buffer in self._buffers.items():
            buffer.go_back(saved.buffered.get(name, {}), saved.left.get(name, {}))
        self._count_buffered()
        self.is_torn = was_torn

    def forget(self, saved: SavedWrites) -> None:
        if saved in self._savepoints:
            del self._savepoints[self._savepoints.index(saved) :]

    def _note_left_steps(self, buffer: WriteBuffer) -> Steps[None]:
        """Before the buffer leaves: what its cells hold in the store, for the savepoints that do not know it."""
        name, rows = buffer.info.name, buffer.copied_rows()
        missing = [(saved, cells) for saved in self._savepoints if (cells := saved.missing(name, rows))]
        if not missing:
            return
        yield from self._end_steps(len(self._begun))
        keys = list(dict.fromkeys(row for _, cells in missing for row in cells))
        found = yield from read_rows_steps(name, keys, None, self._snapshot_of(name), self._cache)
        stored = dict(zip(keys, found, strict=True))
        for saved, cells in missing:
            left = saved.left.setdefault(name, {})
            for row, columns in cells.items():
                left.setdefault(row, {}).update({column: stored[row].get(column) for column in columns})

    def batch_write_steps(self, info: TableInfo, batch: CellBatch) -> Steps[None]:
        """The cells of a batch for writing, durable on return. Errors as of `flush_steps`."""
        buffer = self._buffer_of(info)
        if self._savepoints or buffer.checked is not None:
            for index in range(batch.rows):
                cells = {Column(cell.family, cell.qualifier): cell.value for cell in batch.row_cells(index)}
                if self.buffer(info, batch.row_key(index), cells):
                    yield from self.send_steps()
        elif batch.rows:
            yield from self._whole_steps(self._write_batch_steps(buffer, batch))

    def _write_batch_steps(self, buffer: WriteBuffer, batch: CellBatch) -> Steps[None]:
        """After everything that was written before: of two writes of a cell the later one stays."""
        yield from self._flush_steps()
        buffer.note_batch(batch)
        write = yield BeginWrite(buffer.info.name, self.start_ts, batch)
        yield EndWrites((write,))

    def flush_steps(self) -> Steps[None]:
        """Every write that was buffered when it began is durable on return (law 1). After an error the transaction must
        roll back (C1)."""
        return self._whole_steps(self._flush_steps()) if self._buffers else _nothing_steps()

    def _flush_steps(self) -> Steps[None]:
        for buffer in list(self._buffers.values()):
            if not buffer.buffered_bytes:
                continue
            if self._savepoints:
                yield from self._note_left_steps(buffer)
            if self._leaves_as_batch(buffer):
                yield from self._begin_steps(buffer)
            else:
                yield from self._keep_apart_steps(buffer)
                yield from self._write_steps(buffer)
        self._count_buffered()
        yield from self._end_steps(len(self._begun))

    def _leaves_as_batch(self, buffer: WriteBuffer) -> bool:
        """Rather than row by row. All or nothing of a table is best: ids and shadow cells are made of batches then."""
        if self._pipelined:
            return buffer.buffered_rows >= BATCH_ROWS_MIN or bool(buffer.sent_batches)
        return (buffer.buffered_rows >= LARGE_FLUSH_ROWS_MIN or bool(buffer.sent_batches)) and hashing.is_ready()

    def send_steps(self) -> Steps[None]:
        """Sends what is buffered: durable on return, or under way. Errors as of `flush_steps`."""
        return self._whole_steps(self._begin_all_steps() if self._pipelined else self._flush_steps())

    def _begin_all_steps(self) -> Steps[None]:
        for buffer in list(self._buffers.values()):
            if buffer.buffered_bytes:
                if self._savepoints:
                    yield from self._note_left_steps(buffer)
                yield from self._begin_steps(buffer)
        self._count_buffered()

    @property
    def is_writing(self) -> bool:
        """Writes are under way: reads must not begin before `end_steps`."""
        return bool(self._begun)

    def end_steps(self) -> Steps[None]:
        """Everything that is under way is durable on return. Errors as of `flush_steps`."""
        return self._whole_steps(self._end_steps(len(self._begun)))

    def _whole_steps(self, steps: Steps[None]) -> Steps[None]:
        was_torn, self.is_torn = self.is_torn, True
        with unless_index_dropped:
            yield from steps
        self.is_torn = was_torn

    def _count_buffered(self) -> None:
        self._buffered_bytes = sum(buffer.buffered_bytes for buffer in self._buffers.values())

    def _write_steps(self, buffer: WriteBuffer) -> Steps[None]:
        rows, writes = buffer.take_rows()
        try:
            yield WriteCells(buffer.info.name, self.start_ts, writes)
        except BaseException:
            buffer.restore(rows)
            raise

    def _begin_steps(self, buffer: WriteBuffer) -> Steps[None]:
        yield from self._keep_apart_steps(buffer)
        if len(self._begun) >= PIPELINED_WRITES_MAX:
            yield from self._end_steps(1)
        rows, batch = buffer.take_batch()
        try:
            write = yield BeginWrite(buffer.info.name, self.start_ts, batch)
        except BaseException:
            buffer.restore(rows)
            raise
        self._begun.append(_Begun(buffer, rows, write))

    def _keep_apart_steps(self, buffer: WriteBuffer) -> Steps[None]:
        """Two writes of one row are never under way together: the earlier might arrive later."""
        if any(begun.buffer is buffer and buffer.overlaps(begun.rows) for begun in self._begun):
            yield from self._end_steps(len(self._begun))

    def _end_steps(self, count: int) -> Steps[None]:
        ending = self._begun[:count]
        if not ending:
            return
        try:
            yield EndWrites(tuple(begun.write for begun in ending))
        except BaseException:
            for begun in ending:
                begun.buffer.restore(begun.rows)
            raise
        finally:
            del self._begun[:count]

    # Reading

    def look_steps(self, info: TableInfo) -> Steps[None]:
        """Before the first read of a table: what has expired in it for this transaction."""
        if info.ttl_seconds is not None:
            self._expiring[info.name] = yield from seen_steps(info, self._snapshot, self._cache)

    def _snapshot_of(self, table: str) -> Snapshot:
        return self._expiring.get(table, self._snapshot)

    def read_steps(self, info: TableInfo, keys: Sequence[bytes], columns: Sequence[Column] | None) -> Steps[list[Row]]:
        """The rows as the transaction sees them, in the order of `keys`; {} for a row that does not exist."""
        steps = read_rows_steps(info.name, keys, columns, self._snapshot_of(info.name), self._cache)
        return steps if info.name not in self._buffers else self._overlaid_steps(info, keys, columns, steps)

    def _overlaid_steps(
        self, info: TableInfo, keys: Sequence[bytes], columns: Sequence[Column] | None, steps: Steps[list[Row]]
    ) -> Steps[list[Row]]:
        rows = yield from steps
        buffer = self._buffers[info.name]
        if buffer.buffered_bytes:
            rows = [overlaid(row, buffer.overlay(key), columns) for key, row in zip(keys, rows, strict=True)]
        return rows

    @property
    def bounds(self) -> ReadBounds:
        """What the transaction needs of a row."""
        return self._snapshot.bounds

    def batch_steps(
        self, info: TableInfo, batch: CellBatch | None, columns: Sequence[Column] | None
    ) -> Steps[SeenBatch | None]:
        """What is visible of a scanned batch, without the overlay. `batch` None: the end of the scan."""
        return read_batch_steps(info.name, batch, columns, self._snapshot_of(info.name), self._cache)

    def begin_scan(self, info: TableInfo, key_range: KeyRange) -> OpenScan:
        """The position of a scan of this transaction, which tells when a prefetched answer lacks own writes (C2)."""
        return self._buffer_of(info).begin_scan(key_range)

    def merged(
        self, info: TableInfo, seen: Iterable[SeenBatch], key_range: KeyRange, columns: Sequence[Column] | None
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """The rows of batches that ascend and lie in `key_range`, with the buffered writes over them, including rows
        that only these make, and without rows that these empty. The overlay counts in the range only. Columns under
        their full names.
        """
        buffer = self._buffers.get(info.name)
        buffered = self._buffered_keys(buffer, key_range)
        if buffer is None or not buffered:
            return list(chain.from_iterable(map(_named_rows, seen)))
        stored = dict(chain.from_iterable(visible_rows(*each, each[0].columns) for each in seen))
        keys = sorted(stored.keys() | set(buffered))
        rows = ((key, overlaid(stored.get(key, {}), buffer.overlay(key), columns)) for key in keys)
        return [(key, named(row)) for key, row in rows if row]

    def shown(
        self, info: TableInfo, seen: Sequence[SeenBatch], key_range: KeyRange, columns: Sequence[Column] | None
    ) -> ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]]:
        """The same, which may be made when they are asked for."""
        if len(seen) == 1 and not self._buffered_keys(self._buffers.get(info.name), key_range):
            return _named_rows(seen[0])
        return self.merged(info, seen, key_range, columns)

    @staticmethod
    def _buffered_keys(buffer: WriteBuffer | None, key_range: KeyRange) -> Sequence[bytes]:
        return buffer.buffered_keys(key_range) if buffer is not None and buffer.buffered_bytes else ()

    # Ending

    def abandoned_writes(self) -> tuple[object, ...]:
        """The writes under way, which only a rollback awaits: it deletes them then."""
        begun, self._begun = self._begun, []
        return tuple(each.write for each in begun)

    @property
    def has_buffered(self) -> bool:
        return any(buffer.buffered_bytes for buffer in self._buffers.values())

    def reading(self, table: str) -> tuple[Snapshot, CommitCache]:
        """What a vectorized read goes by, which sees of the transaction's writes those in the store."""
        return self._snapshot_of(table), self._cache

    @property
    def wrote(self) -> bool:
        return any(buffer.touched for buffer in self._buffers.values())

    def write_set(self) -> WriteSet:
        """Every version that may be in the store."""
        sent = {name: buffer.sent_versions(self.start_ts) for name, buffer in self._buffers.items()}
        return {name: versions for name, versions in sent.items() if versions}

    def commit_request(self) -> CommitRequest:
        """After the last flush: the ids of everything written and claimed, each table at its own level (T9)."""
        written = [buffer for buffer in self._buffers.values() if buffer.touched]
        return CommitRequest(
            self.start_ts,
            cell_ids=tuple(cell for buffer in written for cell in _conflict_ids(buffer)),
            table_ids=tuple(table_id(buffer.info.name.encode()) for buffer in written),
        )


def _conflict_ids(buffer: WriteBuffer) -> Iterable[int]:
    return chain.from_iterable(_ids_at(buffer, level) for level in buffer.info.id_levels)


def _ids_at(buffer: WriteBuffer, level: ConflictLevel) -> Iterable[int]:
    table = buffer.info.name.encode()
    batches = buffer.sent_batches
    if batches is not None and buffer.checked is None and not buffer.claims:
        ids = hashing.row_ids if level is ConflictLevel.ROW else hashing.cell_ids
        return dict.fromkeys(chain.from_iterable(ids(table, batch).tolist() for batch in batches))
    if level is ConflictLevel.ROW:
        written = buffer.sent_rows() if buffer.checked is None else (row for row, _ in buffer.checked)
        claimed = (row for row, _ in buffer.claims)
    else:
        cells = buffer.sent_cells() if buffer.checked is None else buffer.checked
        written = (_cell_name(row, column) for row, column in cells)
        claimed = (row if column is None else _cell_name(row, column) for row, column in buffer.claims)
    names = list(dict.fromkeys(chain(written, claimed)))
    if len(names) < IDS_COMPILED_MIN:
        return (row_id(table, name) for name in names)
    return hashing.name_ids(table, names)


def _cell_name(row: bytes, column: Column) -> bytes:
    return row + column.family + column.qualifier


SeenBatch = tuple[CellBatch, VisibleCells]

Name = TypeVar("Name", Column, bytes)


class ShownRows(Generic[Name]):
    """Rows of a batch as objects, each made when it is asked for: rows that the program does not keep are gone before
    Python's collector counts them, which costs more than to make them.

    `values` are those of all rows, each of which has the columns `names`; without `names` each is a row's cells.
    """

    __slots__ = ("_keys", "_names", "_values")

    def __init__(self, keys: list[bytes], names: Sequence[Name], values: list[Any]) -> None:
        self._keys = keys
        self._names: Sequence[Name] = names
        self._values = values

    def __iter__(self) -> Iterator[tuple[bytes, dict[Name, bytes]]]:
        names, values = self._names, self._values
        if not names:
            return zip(self._keys, values, strict=False)
        if len(names) == 1:
            return self._of_one(names[0])
        return self._of_some(names)

    def _of_one(self, name: Name) -> Iterator[tuple[bytes, dict[Name, bytes]]]:
        for key, value in zip(self._keys, self._values, strict=False):
            yield key, {name: value}

    def _of_some(self, names: Sequence[Name]) -> Iterator[tuple[bytes, dict[Name, bytes]]]:
        for key, values in zip(self._keys, zip(*[iter(self._values)] * len(names), strict=True), strict=False):
            yield key, dict(zip(names, values, strict=True))

    def clear(self) -> None:
        """No more of them are shown, whoever goes through them."""
        self._keys.clear()


def visible_rows(batch: CellBatch, visible: VisibleCells, names: Sequence[Name]) -> ShownRows[Name]:
    """Rows as objects, their columns under `names`, from plain lists and one bytes object: numpy's scalars cost a
    microsecond each."""
    taken, data = visible.cells, batch.buffer.tobytes()
    keys = _cut(data, batch.row_off, batch.row_len)
    values = _cut(data, batch.cell_off[taken], batch.cell_len[taken])
    columns, ends = batch.cell_col[taken].tolist(), visible.row_cell.tolist()
    width = ends[1] if keys else 0
    if width and ends == list(range(0, width * len(keys) + 1, width)) and columns == columns[:width] * len(keys):
        return ShownRows(keys, [names[column] for column in columns[:width]], values)
    cells = list(zip(map(names.__getitem__, columns), values, strict=True))
    places = list(zip(ends, islice(ends, 1, None), strict=False))
    present = [key for key, (first, last) in zip(keys, places, strict=True) if first < last]
    return ShownRows(present, (), [dict(cells[first:last]) for first, last in places if first < last])


def _named_rows(seen: SeenBatch) -> ShownRows[bytes]:
    return visible_rows(*seen, list(map(full_name, seen[0].columns)))


def _cut(data: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int32]) -> list[bytes]:
    places = zip(begins.tolist(), (begins + lengths).tolist(), strict=True)
    return [data[first:last] for first, last in places]


def named(row: Mapping[Column, bytes]) -> dict[bytes, bytes]:
    """A row under the full names of its columns."""
    return {full_name(column): value for column, value in row.items()}


@lru_cache(maxsize=10_000)
def full_name(column: Column) -> bytes:
    return b"%b:%b" % column


# The buffer of one table

BufferedRows = dict[bytes, dict[Column, bytes | None]]

RowOverlay = Mapping[Column, bytes | None]
"""Buffered cells of one row; None is a deleted column."""

_EMPTY: dict[Column, bytes | None] = {}

CELL_OVERHEAD_BYTES: Final = 40
"""What a buffered cell costs beside its value, roughly. It decides only when to flush."""


class OpenScan:
    """A scan of the transaction itself. `key_range`: what it has not shown yet.

    A store prefetches. Writes that leave for the store while the scan runs are in none of the answers that the store
    holds by then, and in the buffer no more. The scan is overtaken then, and begins again at its position.
    """

    __slots__ = ("__weakref__", "is_overtaken", "key_range")

    def __init__(self, key_range: KeyRange) -> None:
        self.key_range = key_range
        self.is_overtaken = False

    def begin_again(self) -> KeyRange:
        """The range to ask the store for, once everything that left is durable."""
        self.is_overtaken = False
        return self.key_range

    def pass_to(self, key: bytes) -> KeyRange:
        """Everything before `key` is shown now: that range."""
        passed = KeyRange(self.key_range.start, key)
        self.key_range = KeyRange(key, self.key_range.stop)
        return passed

    def pass_down_to(self, key: bytes) -> KeyRange:
        """Everything from `key` on is shown now: that range."""
        passed = KeyRange(key, self.key_range.stop)
        self.key_range = KeyRange(self.key_range.start, key)
        return passed

    def note_left(self, rows: Iterable[bytes]) -> None:
        self.is_overtaken = self.is_overtaken or any(row in self.key_range for row in rows)


class WriteBuffer:
    """One transaction's writes in one table: those not yet sent, and the names of all that were sent.

    The names stay until the end: the commit makes ids of them, completion shadow cells, a rollback exact deletes. What
    was sent in batches is remembered as these batches without values, not as an object a cell.
    """

    __slots__ = ("_batches", "_keys", "_rows", "_scans", "_sent", "buffered_bytes", "checked", "claims", "info")

    def __init__(self, info: TableInfo) -> None:
        self.info = info
        self.buffered_bytes = 0
        self.claims: dict[tuple[bytes, Column | None], None] = {}
        """Cells, and whole rows (None), that the commit names beside the writes."""
        self.checked: dict[tuple[bytes, Column], None] | None = None
        """The written cells that the commit names; None while these are all."""
        self._rows: BufferedRows = {}
        self._keys: list[bytes] = []
        """Those of `_rows`, sorted, when they were asked for last."""
        self._sent: dict[bytes, set[Column]] = {}
        self._batches: list[CellBatch] = []
        self._scans: WeakSet[OpenScan] | None = None

    def begin_scan(self, key_range: KeyRange) -> OpenScan:
        """The scanner keeps it as long as it scans."""
        scan = OpenScan(key_range)
        if self._scans is None:
            self._scans = WeakSet()
        self._scans.add(scan)
        return scan

    def put(self, row: bytes, cells: dict[Column, bytes | None]) -> int:
        """Buffers `cells`, over what this transaction wrote to them before, and may keep the dict. Returns the bytes
        added."""
        added = len(row) + CELL_OVERHEAD_BYTES * len(cells)
        for value in cells.values():
            if value is not None:
                added += len(value)
        self.buffered_bytes += added  # first: an interrupt must not leave rows that count as none
        buffered = self._rows.setdefault(row, cells)
        if buffered is not cells:
            buffered.update(cells)
        return added

    def copied_rows(self) -> BufferedRows:
        """What is buffered now."""
        return {row: dict(cells) for row, cells in self._rows.items()}

    def go_back(self, buffered: BufferedRows, left: BufferedRows) -> None:
        """Buffers this alone. Cells of `left`, which the store holds otherwise by now, are conflict-checked: what they
        held is not to hide what others wrote meanwhile."""
        self._rows, self._keys, self.buffered_bytes = {}, [], 0
        for row, cells in left.items():
            if self.checked is not None:
                self.note_checked(row, cells, conflict=True)
            self.put(row, dict(cells))
        for row, cells in buffered.items():
            self.put(row, dict(cells))

    def note_checked(self, row: bytes, cells: Iterable[Column], *, conflict: bool) -> None:
        """Before a put, once the table has cells that the commit does not name."""
        if self.checked is None:
            buffered = ((row, column) for row, columns in self._rows.items() for column in columns)
            self.checked = dict.fromkeys(chain(self.sent_cells(), buffered))
        if conflict:
            self.checked.update(((row, column), None) for column in cells)

    def overlay(self, row: bytes) -> RowOverlay:
        return self._rows.get(row, _EMPTY)

    def buffered_keys(self, key_range: KeyRange) -> Sequence[bytes]:
        """Rows with buffered cells in the range, ascending."""
        if len(self._keys) != len(self._rows):  # rows come one by one, and go all at once
            self._keys = sorted(self._rows)
        first = bisect_left(self._keys, key_range.start)
        last = len(self._keys) if key_range.stop is None else bisect_left(self._keys, key_range.stop)
        return self._keys[first:last]

    @property
    def buffered_rows(self) -> int:
        return len(self._rows)

    def overlaps(self, rows: BufferedRows) -> bool:
        """Whether one of these rows is buffered again."""
        return not self._rows.keys().isdisjoint(rows)

    def take_rows(self) -> tuple[BufferedRows, list[RowWrite]]:
        """Everything buffered, ascending by row, for the store: from now on any of these cells may be there, whatever
        the answer. What is written meanwhile is buffered for the next flush.
        """
        rows = self._rows
        writes = [RowWrite(row, tuple(rows[row].items())) for row in sorted(rows)]  # first: memory may be lacking
        for row, cells in rows.items():
            self._sent.setdefault(row, set()).update(cells)
        self._clear()
        return rows, writes

    def take_batch(self) -> tuple[BufferedRows, CellBatch]:
        """As `take_rows`, as a batch."""
        rows = self._rows
        batch = batch_of_rows(rows)
        self._batches.append(without_values(batch))
        self._clear()
        return rows, batch

    def note_batch(self, batch: CellBatch) -> None:
        """These cells may be in the store from now on, without having been buffered."""
        self._batches.append(without_values(batch))
        for scan in self._scans or ():
            scan.note_left(map(batch.row_key, range(batch.rows)))

    def _clear(self) -> None:
        for scan in self._scans or ():
            scan.note_left(self._rows)
        self._rows, self._keys = {}, []
        self.buffered_bytes = 0

    def restore(self, rows: BufferedRows) -> None:
        """After a write that failed: the overlay shows these rows again, under what was written since."""
        for row, cells in rows.items():
            self.put(row, {**cells, **self._rows.get(row, {})})

    @property
    def sent_batches(self) -> Sequence[CellBatch] | None:
        """All that may be in the store; None if some of it was not sent in batches, or if nothing was sent."""
        return None if self._sent or not self._batches else self._batches

    def sent_cells(self) -> Iterator[tuple[bytes, Column]]:
        """Every cell that may be in the store, by row and column. One that was written twice may come twice."""
        for row, columns in self._sent.items():
            for column in columns:
                yield row, column
        for cell in CellNames(self._batches, 0):
            yield cell.row, Column(cell.family, cell.qualifier)

    def sent_versions(self, version: int) -> Sequence[CellVersion]:
        if self.sent_batches is not None:
            return CellNames(self._batches, version)
        return tuple(CellVersion(row, column.family, column.qualifier, version) for row, column in self.sent_cells())

    def sent_rows(self) -> Iterator[bytes]:
        yield from self._sent
        for batch in self._batches:
            yield from map(batch.row_key, range(batch.rows))

    @property
    def touched(self) -> bool:
        """Anything written or claimed: the commit names the table."""
        return self.is_written or bool(self.claims)

    @property
    def is_written(self) -> bool:
        """Anything written at all, sent or not."""
        return bool(self._rows or self._sent or self._batches)


def overlaid(row: Mapping[Column, bytes], overlay: RowOverlay, columns: Sequence[Column] | None) -> dict[Column, bytes]:
    """`row` as the transaction sees it with its buffered writes, in the wanted columns only."""
    result = dict(row)
    for column, value in overlay.items():
        if columns is not None and column not in columns and Column(column.family, b"") not in columns:
            continue
        if value is None:
            result.pop(column, None)
        else:
            result[column] = value
    return result
