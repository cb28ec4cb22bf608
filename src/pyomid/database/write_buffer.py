"""A transaction's writes to one table: the unsent cells, the names of all sent cells, and the ids that the commit
names; and the open reads, each of which sees these writes as of its own begin (C15).

A scan, a lookup or a `to_arrow` continues while the transaction writes. It must return what it would have returned if
it had finished at once, even if writes went to the store meanwhile. Own writes are in three states:

    buffered       not sent yet
    in the store   sent, one version per cell: a later write replaces it
    committed      the row without own writes: it never changes for this transaction

So before a row changes, each read that has not returned it yet records what is about to be lost: the row's buffered
cells before its first write, and its own cells in the store before that write is sent. The record is dropped when the
read has passed the row.

A batch that the store prefetched may or may not contain what was sent meanwhile. Either is correct, because recorded
rows are read again without own versions and then get the recorded cells.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

from pyomid.cells import CellBatch, CellNames, batch_of_rows, without_values
from pyomid.database.native import puts
from pyomid.errors import Misuse
from pyomid.protocol.hashing import row_id
from pyomid.protocol.native import hashing
from pyomid.types import CellVersion, Column, ConflictLevel, KeyRange, RowWrite, TableChanges, TableInfo

if TYPE_CHECKING:
    from pyomid.database.savepoints import Replaced

T = TypeVar("T")


class NotBuffered(Enum):
    """The former value of a cell that was not buffered."""

    NOT_BUFFERED = 0


FREE: Final = 1
"""Added to a version, it is the version of conflict-free cells (folder.md)."""

NOT_BUFFERED: Final = NotBuffered.NOT_BUFFERED

RowOverlay = Mapping[Column, bytes | None]
"""Own cells of one row; None is a deleted column."""

NO_CELLS: Final[dict[Column, bytes | None]] = {}

_NOTHING: Final = KeyRange(b"", b"")

BufferedRows = dict[bytes, dict[Column, bytes | None]]

OwnCell = tuple[bytes, Column]


class WriteBuffer(puts.Buffered):
    """A transaction's writes to one table: the unsent cells, and the names of all sent cells.

    The names stay until the end: the commit needs them for ids, completion for shadow cells, a rollback for exact
    deletes. Batches that were sent are kept without values, which avoids an object per cell.
    """

    __slots__ = (
        *("_batches", "_keys", "_sent", "_sent_free"),
        *("checked", "claims", "has_taken_back", "info", "levels", "reads", "taken_back"),
    )

    def __init__(self, info: TableInfo, reads: OpenReads) -> None:
        self.info = info
        self.reads = reads
        self.levels = levels = info.id_levels
        self._by_cell, self._by_row = ConflictLevel.CELL in levels, ConflictLevel.ROW in levels
        self.buffered_bytes = 0
        self.claims: dict[tuple[bytes, Column | None], None] = {}
        """Cells, and rows (None), that the commit names in addition to the writes."""
        self.checked: dict[OwnCell, None] | None = None
        """The written cells that the commit names; None: all."""
        self.taken_back: set[OwnCell] = set()
        """Cells that were sent and then taken back: the transaction sees its snapshot's value again and does not write
        them (C14). Until the commit they are buffered or stored with that value, so all reads find it."""
        self.has_taken_back = False
        """Whether any cell ever was in `taken_back`."""
        self.rows = {}
        self._keys: list[bytes] = []
        """The first keys of `rows`, sorted (`keys_in_order`)."""
        self._sent: dict[bytes, set[Column]] = {}
        self._batches: list[CellBatch] = []
        self._sent_free: set[OwnCell] = set()
        """The cells that were sent by `split_free`."""

    def ids_of(self, cells: int, rows: int = 1) -> int:
        """Return how many ids a commit has for this many cells in this many rows."""
        return cells * self._by_cell + rows * self._by_row

    def put(self, row: bytes, cells: dict[Column, bytes | None]) -> int:
        """Buffer `cells` over earlier writes; it may keep the dict. Return the added size in bytes."""
        if self.taken_back:
            self.taken_back.difference_update((row, column) for column in cells)
        if self.reads.open:
            self.reads.note_write(row, self.overlay(row))
        added = len(row) + puts.CELL_OVERHEAD_BYTES * len(cells)
        for value in cells.values():
            if value is not None:
                added += len(value)
        self.buffered_bytes += added  # first: after an interrupt, every buffered row must be counted
        buffered = self.rows.setdefault(row, cells)
        if buffered is not cells:
            buffered.update(cells)
        return added

    def take_back(self, replaced: Replaced) -> None:
        """Restore what the writes of a row replaced after a savepoint."""
        row = replaced.row
        if self.reads.open:
            self.reads.note_write(row, self.overlay(row))
        added = len(row) if replaced.is_sent and row not in self.rows else -replaced.added_bytes
        cells = self.rows.setdefault(row, {})
        for column, value in replaced.cells.items():
            if value is NOT_BUFFERED:
                cells.pop(column, None)
            else:
                if replaced.is_sent:
                    added += _size(value) - (_size(cells[column]) if column in cells else 0)
                cells[column] = value
            if column in replaced.taken_back:
                self.taken_back.add((row, column))
                self.has_taken_back = True
            else:
                self.taken_back.discard((row, column))
        if not cells:
            keys, self._keys = self._keys, []
            del self.rows[row]
            drop_key(keys, row)
            self._keys = keys
        self.buffered_bytes = max(0, self.buffered_bytes + added)
        if self.checked is not None:
            for column in self._unnamed(replaced):
                self.checked.pop((row, column), None)

    def _unnamed(self, replaced: Replaced) -> Collection[Column]:
        """Return the cells that the commit did not name before the writes."""
        if not replaced.names_all:
            return replaced.unnamed
        sent = () if replaced.is_filled else self.sent_by_row().get(replaced.row, ())
        unwritten = {each for each, value in replaced.cells.items() if value is NOT_BUFFERED and each not in sent}
        return replaced.unnamed | replaced.taken_back | unwritten

    def forget_taken_back(self) -> None:
        """Note that the store holds no version that was taken back: the cells need not be buffered either."""
        sent, rows = self.sent_by_row(), dict(self.rows)
        for row, column in self.taken_back:
            sent[row].discard(column)
            if not sent[row]:
                del sent[row]
            if row in rows:
                rows[row] = {each: value for each, value in rows[row].items() if each != column}
                if not rows[row]:
                    del rows[row]
        self.rows, self._keys, self.taken_back = rows, [], set()
        self.buffered_bytes *= bool(rows)

    def note_checked(self, row: bytes, cells: Iterable[Column], *, conflict: bool) -> None:
        """Before a put: record the cells that the commit names, once there are cells that it does not name."""
        if self.checked is None:
            self.checked = dict.fromkeys(self.written_cells())
        if conflict:
            self.checked.update(((row, column), None) for column in cells)

    def overlay(self, row: bytes) -> RowOverlay:
        return self.rows.get(row, NO_CELLS)

    def buffered_keys(self, key_range: KeyRange) -> Sequence[bytes]:
        """Return the rows with buffered cells in the range, ascending."""
        self._keys = keys_in_order(self._keys, self.rows)
        first = bisect_left(self._keys, key_range.start)
        last = len(self._keys) if key_range.stop is None else bisect_left(self._keys, key_range.stop)
        return self._keys[first:last]

    def overlaps(self, rows: BufferedRows) -> bool:
        """Whether any of these rows is buffered."""
        return not self.rows.keys().isdisjoint(rows)

    @property
    def has_sent(self) -> bool:
        """Whether anything may be in the store."""
        return bool(self._sent or self._batches)

    def row_writes(self) -> list[RowWrite]:
        """Return everything buffered, ascending by row."""
        rows = self.rows
        return [RowWrite(row, tuple(rows[row].items())) for row in sorted(rows)]

    def take_rows(self) -> tuple[BufferedRows, list[RowWrite]]:
        """Take `row_writes` out of the buffer to send them: from now on any of these cells may be stored, whatever the
        reply. Later writes are buffered for the next flush.
        """
        rows, writes = self.rows, self.row_writes()  # first: it may raise MemoryError
        for row, cells in rows.items():
            self._sent.setdefault(row, set()).update(cells)
        self._clear()
        return rows, writes

    def take_batch(self) -> tuple[BufferedRows, CellBatch]:
        """As `take_rows`, but as a batch."""
        rows = self.rows
        batch = batch_of_rows(rows)
        self._batches.append(without_values(batch))
        self._clear()
        return rows, batch

    def split_free(self, writes: Sequence[RowWrite]) -> tuple[list[RowWrite], list[RowWrite]]:
        """Divide writes into those that the commit checks, and conflict-free ones, which have a version of their own
        above the others. A cell that was conflict-free once is among both: there its newest value counts."""
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
        self.rows, self._keys = {}, []
        self.buffered_bytes = 0

    def restore(self, rows: BufferedRows) -> None:
        """After a failed write: buffer these rows again, below later writes."""
        for row, cells in rows.items():
            self.put(row, {**cells, **self.rows.get(row, {})})

    @property
    def sent_batches(self) -> Sequence[CellBatch] | None:
        """The batches of all sent cells; None if some cells were not sent in batches, or none were sent."""
        return None if self._sent or not self._batches else self._batches

    def sent_by_row(self) -> dict[bytes, set[Column]]:
        """Return the columns of every row that may be in the store. Converts names in batches to objects."""
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
        """Yield every cell that may be in the store, by row and column; a cell that was written twice perhaps twice."""
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
        """Yield every written cell, sent or not; a cell that was written twice perhaps twice."""
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
        """Whether anything is written or claimed: then the commit names the table (C12)."""
        return bool(self.rows or self._sent or self._batches or self.claims)


def _size(value: bytes | None) -> int:
    return puts.CELL_OVERHEAD_BYTES + (0 if value is None else len(value))


# Keys in order


def keys_in_order(keys: list[bytes], rows: dict[bytes, Any]) -> list[bytes]:
    """Return the keys of `rows`, sorted. `keys`: the result for the first of these rows, which is reused: the cost is
    that of the rows added since."""
    added = list(islice(reversed(rows), len(rows) - len(keys)))
    if _SORTED_MIN * len(added) > len(keys):
        return sorted(chain(keys, added))
    for key in reversed(added):  # in their order: an interrupt leaves the keys of the first rows
        insort(keys, key)
    return keys


_SORTED_MIN: Final = 16
"""Sorting all keys is cheaper if at least one in this many is new."""


def drop_key(keys: list[bytes], key: bytes) -> None:
    """Remove a key that was removed from the rows, if it is among the keys of the first rows."""
    at = bisect_left(keys, key)
    if at < len(keys) and keys[at] == key:
        del keys[at]


def overlaid(row: Mapping[Column, bytes], overlay: RowOverlay, columns: Sequence[Column] | None) -> dict[Column, bytes]:
    """Return `row` with the buffered writes over it, in the selected columns only."""
    result = dict(row)
    for column, value in overlay.items():
        if columns is not None and column not in columns and Column(column.family, b"") not in columns:
            continue
        if value is None:
            result.pop(column, None)
        else:
            result[column] = value
    return result


def changes_of(buffer: WriteBuffer, *, claims_all: bool = False) -> TableChanges:
    """Return what is buffered and claimed, for a packed commit request. `claims_all`: what was sent, too."""
    claims: dict[tuple[bytes, Column | None], None] = dict(buffer.claims) if claims_all else buffer.claims
    if claims_all:
        claims.update((cell, None) for cell in (buffer.sent_cells() if buffer.checked is None else buffer.checked))
    free: Collection[OwnCell] = ()
    if buffer.checked is not None:
        named = buffer.checked
        free = {(row, each) for row, cells in buffer.rows.items() for each in cells if (row, each) not in named}
    return TableChanges(buffer.info.name, buffer.levels, buffer.rows, claims, free)


# Conflict ids


def conflict_ids(buffer: WriteBuffer) -> Iterable[int]:
    """Return the ids of all writes and claims of a table, at each of its levels."""
    return chain.from_iterable(_ids_at(buffer, level) for level in buffer.info.id_levels)


def _ids_at(buffer: WriteBuffer, level: ConflictLevel) -> Iterable[int]:
    table = buffer.info.name.encode()
    if buffer.is_only_buffered:
        return hashing.ids_of_rows(table, buffer.rows, level is ConflictLevel.CELL)
    batches = buffer.sent_batches
    if batches is not None and buffer.checked is None and not buffer.claims and not buffer.rows:
        return dict.fromkeys(chain.from_iterable(batch_ids(buffer, level, batch) for batch in batches))
    if level is ConflictLevel.ROW:
        written = buffer.written_rows() if buffer.checked is None else (row for row, _ in buffer.checked)
        claimed = (row for row, _ in buffer.claims)
    else:
        cells = buffer.written_cells() if buffer.checked is None else buffer.checked
        written = (_cell_name(row, column) for row, column in cells)
        claimed = (row if column is None else _cell_name(row, column) for row, column in buffer.claims)
    return hashing.name_ids(table, dict.fromkeys(chain(written, claimed)))


def batch_ids(buffer: WriteBuffer, level: ConflictLevel, batch: CellBatch) -> list[int]:
    """Return the ids of a batch's rows or cells."""
    ids = hashing.row_ids if level is ConflictLevel.ROW else hashing.cell_ids
    named: list[int] = ids(buffer.info.name.encode(), batch).tolist()
    return named


def row_ids(buffer: WriteBuffer, row: bytes, columns: Iterable[Column | None]) -> Iterator[int]:
    """Yield the ids of a row's cells; None among the columns is the row itself."""
    table = buffer.info.name.encode()
    for level in buffer.info.id_levels:
        names = {row if level is ConflictLevel.ROW or column is None else _cell_name(row, column) for column in columns}
        yield from (row_id(table, name) for name in names)


def too_many_ids(info: TableInfo, ids_max: int) -> Misuse:
    """Return the error for a commit with too many ids."""
    by_row = (
        ""
        if info.id_levels == (ConflictLevel.ROW,)
        else (
            ", or give the table the conflict level 'row' (`alter_table`), which needs one id per row instead of one "
            "per cell"
        )
    )
    return Misuse(
        f"with this write of table {info.name!r} the transaction has more than {ids_max} conflict ids, the "
        f"maximum of its TSO for a commit: commit smaller transactions{by_row}",
        table=info.name,
        limit=ids_max,
    )


def _cell_name(row: bytes, column: Column) -> bytes:
    return row + column.family + column.qualifier


# Open reads


def remember(each: T, among: set[ref[T]]) -> None:
    """Add a weak reference. `set.discard` removes it: a `WeakSet` would run Python code in a destructor, where a signal
    handler's exception is swallowed."""
    among.add(ref(each, among.discard))


def remembered(among: set[ref[T]]) -> list[T]:
    return [each for reference in among.copy() if (each := reference()) is not None]


class OpenRead:
    """An open read of one table. `key_range`: the range that it has not returned yet."""

    __slots__ = ("__weakref__", "_buffered", "_keys", "_shown", "_unbuffered", "is_over_buffer", "key_range", "stored")

    def __init__(self, key_range: KeyRange, *, is_over_buffer: bool) -> None:
        self.key_range = key_range
        self.is_over_buffer = is_over_buffer
        """Whether cells that were buffered at the begin may still be buffered."""
        self._buffered: dict[bytes, RowOverlay] = {}
        """Rows written or sent since the begin, with their cells that were buffered then."""
        self._unbuffered: set[bytes] = set()
        """Rows written since the begin, of which nothing was buffered then."""
        self._keys: list[bytes] = []
        """The first keys of `_buffered`, sorted (`keys_in_order`)."""
        self._shown: Collection[bytes] = ()
        self.stored: dict[bytes, RowOverlay] = {}
        """Rows written and sent since the begin, with their own cells that the store had then."""

    # What it sees

    def buffered(self, row: bytes, now: RowOverlay = NO_CELLS) -> RowOverlay:
        """Return the row's cells that were buffered when the read began. `now`: the cells buffered now."""
        if row in self._unbuffered:
            return NO_CELLS
        return self._buffered.get(row, now if self.is_over_buffer else NO_CELLS)

    @property
    def has_noted(self) -> bool:
        """Whether any row is recorded."""
        return bool(self._buffered or self._unbuffered)

    def noted_rows(self, key_range: KeyRange) -> list[bytes]:
        """Return the rows in the range with recorded buffered cells."""
        self._keys = keys_in_order(self._keys, self._buffered)
        first = bisect_left(self._keys, key_range.start)
        last = len(self._keys) if key_range.stop is None else bisect_left(self._keys, key_range.stop)
        return self._keys[first:last]

    # Progress

    def up_to(self, key: bytes | None) -> KeyRange:
        """Return the remaining range before `key` (None: all of it), to return next."""
        return KeyRange(self.key_range.start, self.key_range.stop if key is None else key)

    def down_to(self, key: bytes) -> KeyRange:
        """Return the remaining range from `key` on."""
        return KeyRange(key, self.key_range.stop)

    def show(self, shown: KeyRange, rows: Iterable[bytes] = ()) -> None:
        """Note that this range, at one end of the remaining range, is returned now. `rows`: rows in it that may be
        recorded."""
        rest = self.key_range
        if shown.start == rest.start:
            self.key_range = _NOTHING if shown.stop is None else KeyRange(shown.stop, rest.stop)
        else:
            self.key_range = KeyRange(rest.start, shown.start)
        self._forget(self.noted_rows(shown))
        self._forget(rows)

    def end(self) -> None:
        """Note that nothing more is returned."""
        self.key_range = _NOTHING
        self._buffered, self._keys, self.stored = {}, [], {}
        self._unbuffered.clear()

    def show_rows(self, rows: Collection[bytes]) -> None:
        """Note that these rows are returned now, for a read that is not in key order."""
        self._shown = frozenset(rows)
        self._forget(rows)

    def _forget(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            if row in self._buffered:
                keys, self._keys = self._keys, []
                del self._buffered[row]
                drop_key(keys, row)
                self._keys = keys
            self._unbuffered.discard(row)
            self.stored.pop(row, None)

    # Notes before own writes change

    def note_write(self, row: bytes, buffered: RowOverlay) -> None:
        if self._is_ahead(row) and not self._knows(row):
            if buffered:
                self._buffered[row] = dict(buffered)
            else:
                self._unbuffered.add(row)

    def note_leaving(self, rows: Mapping[bytes, RowOverlay]) -> set[bytes]:
        """Note that buffered rows are about to be sent. Return the rows whose own cells in the store this read
        needs."""
        changed = set()
        for row, cells in rows.items():
            if self._is_ahead(row):
                if not self._knows(row):
                    self._buffered[row] = dict(cells)
                elif row not in self.stored:
                    changed.add(row)
        return changed

    def _is_ahead(self, row: bytes) -> bool:
        return row in self.key_range and row not in self._shown

    def _knows(self, row: bytes) -> bool:
        return row in self._buffered or row in self._unbuffered


class OpenReads:
    """The open reads of one table. Only its reader keeps a read alive."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: set[ref[OpenRead]] = set()

    def begin(self, key_range: KeyRange, *, is_over_buffer: bool) -> OpenRead:
        read = OpenRead(key_range, is_over_buffer=is_over_buffer)
        remember(read, self.open)
        return read

    def note_write(self, row: bytes, buffered: RowOverlay) -> None:
        """Note that the buffered cells of a row are about to change."""
        for read in remembered(self.open):
            read.note_write(row, buffered)

    def note_leaving(self, rows: Mapping[bytes, RowOverlay]) -> dict[bytes, list[OpenRead]]:
        """Note that everything buffered is about to be sent. Return the rows whose own cells in the store are needed,
        each with the reads that need them."""
        needed: dict[bytes, list[OpenRead]] = {}
        for read in remembered(self.open):
            for row in read.note_leaving(rows):
                needed.setdefault(row, []).append(read)
            read.is_over_buffer = False
        return needed
