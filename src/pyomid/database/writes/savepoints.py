"""A transaction's savepoints: a list of the cells that its writes replaced, newest last, so that writes can be taken
back.

A savepoint is a position in this list. A row gets an entry before its first write after a savepoint, and the entry
grows with the columns that later writes add. So a savepoint costs nothing, and the cost of a rollback is proportional
to the writes since.

    a cell before the write        what the entry keeps          a rollback
    buffered                       its value                     buffers the value
    not buffered                   that it was not buffered      removes the cell from the buffer
    not buffered, then it is sent  what the transaction saw,     buffers that value: the version in the store is then
                                   read just before the sending  replaced, or deleted before the commit (C14)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final

from pyomid.database.native import puts
from pyomid.database.writes.write_buffer import WriteBuffer
from pyomid.types import Column


class NotBuffered(Enum):
    """The former value of a cell that was not buffered."""

    NOT_BUFFERED = 0


NOT_BUFFERED: Final = NotBuffered.NOT_BUFFERED

_NO_COLUMNS: Final[frozenset[Column]] = frozenset()


@lru_cache(maxsize=1_000)
def _shared(columns: frozenset[Column]) -> frozenset[Column]:
    """Return an equal set that rows share, because most rows have the same columns."""
    return columns


@dataclass(frozen=True, slots=True, eq=False)
class SavedWrites:
    """A savepoint: its number among the open savepoints, its position in the list, and the number of ids written before
    it."""

    number: int
    position: int
    ids_written: int


@dataclass(slots=True, eq=False)
class Replaced:
    """The former values that writes of one row replaced."""

    buffer: WriteBuffer
    row: bytes
    names_all: bool
    """Whether the commit named all written cells when the entry was made."""
    cells: dict[Column, bytes | NotBuffered | None] = field(default_factory=dict)
    """Former values."""
    taken_back: frozenset[Column] = _NO_COLUMNS
    """Cells that the transaction had not written, in which it saw its snapshot's value (C14)."""
    unnamed: frozenset[Column] = _NO_COLUMNS
    """Cells that the commit did not name, although it may have named other cells."""
    added_bytes: int = 0
    """Number of bytes that the writes added to the buffer; 0 once the buffer was sent."""
    is_sent: bool = False

    def note(self, columns: Iterable[Column]) -> None:
        buffer, row = self.buffer, self.row
        before, new = buffer.overlay(row), [column for column in columns if column not in self.cells]
        if buffer.taken_back:
            self.taken_back |= {column for column in new if (row, column) in buffer.taken_back}
        if buffer.checked is not None:
            self.unnamed = _shared(self.unnamed | {column for column in new if (row, column) not in buffer.checked})
        for column in new:  # last: an interrupt before this leaves the columns new
            self.cells[column] = before.get(column, NOT_BUFFERED)

    @property
    def is_filled(self) -> bool:
        return NOT_BUFFERED not in self.cells.values()

    def fill(self, seen: Mapping[Column, bytes], sent: Collection[Column]) -> None:
        """Record the values that the transaction sees in the cells that were not buffered. Call this just before the
        row is sent. `seen` holds the values that the transaction sees in the row, and `sent` the cells of the row that
        were sent earlier."""
        unbuffered = frozenset(column for column, value in self.cells.items() if value is NOT_BUFFERED)
        self.taken_back = _shared(self.taken_back | unbuffered.difference(sent))
        for column in unbuffered:
            self.cells[column] = seen.get(column)

    def take_back(self) -> None:
        """Put the former values back into the buffer."""
        buffer, row = self.buffer, self.row
        if buffer.reads:
            buffer.reads.note_write(row, buffer.overlay(row))
        added = len(row) if self.is_sent and row not in buffer.rows else -self.added_bytes
        cells = buffer.rows.setdefault(row, {})
        for column, value in self.cells.items():
            if value is NOT_BUFFERED:
                cells.pop(column, None)
            else:
                if self.is_sent:
                    added += _size(value) - (_size(cells[column]) if column in cells else 0)
                cells[column] = value
            if column in self.taken_back:
                buffer.taken_back.add((row, column))
                buffer.has_taken_back = True
            else:
                buffer.taken_back.discard((row, column))
        if not cells:
            buffer.remove(row)
        buffer.buffered_bytes = max(0, buffer.buffered_bytes + added)
        if buffer.checked is not None:
            for column in self._unnamed_before():
                buffer.checked.pop((row, column), None)

    def _unnamed_before(self) -> Collection[Column]:
        """Return the cells that the commit did not name before the writes."""
        if not self.names_all:
            return self.unnamed
        sent = () if self.is_filled else self.buffer.sent_by_row().get(self.row, ())
        unwritten = {each for each, value in self.cells.items() if value is NOT_BUFFERED and each not in sent}
        return self.unnamed | self.taken_back | unwritten


def _size(value: bytes | None) -> int:
    return puts.CELL_OVERHEAD_BYTES + (0 if value is None else len(value))


class Savepoints:
    """The open savepoints of one transaction, and the list of the cells that were replaced since the first of them."""

    __slots__ = ("_open", "_recent", "_replaced", "_sent")

    def __init__(self) -> None:
        self._open: list[SavedWrites] = []
        self._replaced: list[Replaced] = []
        self._recent: dict[tuple[str, bytes], Replaced] = {}
        """The entries that may grow: those made since the last savepoint, rollback, release or flush."""
        self._sent: dict[str, int] = {}
        """For each table, the position of the first entry that was not sent."""

    def save(self, ids_written: int) -> SavedWrites:
        saved = SavedWrites(len(self._open), len(self._replaced), ids_written)
        self._recent = {}
        self._open.append(saved)
        return saved

    def holds(self, saved: SavedWrites) -> bool:
        """Whether the savepoint is still open: it was not released, and no rollback to an earlier savepoint ended
        it."""
        return saved.number < len(self._open) and self._open[saved.number] is saved

    def note(self, buffer: WriteBuffer, row: bytes, columns: Iterable[Column]) -> Replaced:
        """Record the values that a write is about to replace, and return the row's entry."""
        key = buffer.info.name, row
        replaced = self._recent.get(key)
        if replaced is None:
            replaced = Replaced(buffer, row, buffer.checked is None)
            self._replaced.append(replaced)  # first, because it may raise MemoryError
            self._recent[key] = replaced
        replaced.note(columns)
        return replaced

    def unsent(self, buffer: WriteBuffer) -> list[Replaced]:
        """Return the entries of the buffer's rows that were made since the buffer was last sent."""
        first = self._sent.get(buffer.info.name, 0)
        return [replaced for replaced in self._replaced[first:] if replaced.buffer is buffer]

    def note_sent(self, buffer: WriteBuffer) -> None:
        """Note that the buffer, whose entries are filled, is about to be sent."""
        for replaced in self.unsent(buffer):
            replaced.is_sent, replaced.added_bytes = True, 0
        self._recent = {}
        self._sent[buffer.info.name] = len(self._replaced)

    def go_back(self, saved: SavedWrites) -> None:
        """Take back all writes after an open savepoint, and end the later savepoints."""
        del self._open[saved.number + 1 :]
        self._recent = {}
        for position in reversed(range(saved.position, len(self._replaced))):
            self._replaced[position].take_back()
        del self._replaced[saved.position :]
        self._sent = {table: min(position, saved.position) for table, position in self._sent.items()}

    def release(self, saved: SavedWrites) -> bool:
        """End an open savepoint and all later ones. Return whether any savepoint is still open."""
        del self._open[saved.number :]
        self._recent = {}
        return bool(self._open)
