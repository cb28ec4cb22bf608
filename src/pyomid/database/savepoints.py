"""A transaction's savepoints: what its writes replaced since, newest last, so that they can be taken back.

A savepoint is a position in this list. A row gets an entry before its first write after a savepoint, and the entry
grows with the columns that later writes add. So a savepoint costs nothing, and a rollback what was written since.

    a cell before the write        what the entry keeps          a rollback
    buffered                       its value                     buffers the value
    not buffered                   that it was not buffered      removes the cell from the buffer
    not buffered, then it is sent  what the transaction saw,     buffers that value: the version in the store is then
                                   read just before the sending  replaced, or deleted before the commit (C14)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pyomid.database.write_buffer import NOT_BUFFERED, NotBuffered, WriteBuffer
from pyomid.types import Column

_NO_COLUMNS: Final[frozenset[Column]] = frozenset()


@lru_cache(maxsize=1_000)
def _shared(columns: frozenset[Column]) -> frozenset[Column]:
    """Return an equal set: most rows have the same columns."""
    return columns


@dataclass(frozen=True, slots=True, eq=False)
class SavedWrites:
    """A savepoint: its number among the open ones, its position in the list, and how many ids had been written."""

    number: int
    position: int
    ids_written: int


@dataclass(slots=True, eq=False)
class Replaced:
    """What the writes of one row replaced."""

    buffer: WriteBuffer
    row: bytes
    names_all: bool
    """Whether the commit named all written cells when the entry was made."""
    cells: dict[Column, bytes | NotBuffered | None] = field(default_factory=dict)
    """Former values."""
    taken_back: frozenset[Column] = _NO_COLUMNS
    """Cells that the transaction had not written, where it sees its snapshot's value (C14)."""
    unnamed: frozenset[Column] = _NO_COLUMNS
    """Cells that the commit did not name although it may name some."""
    added_bytes: int = 0
    """What the writes added to the buffer; 0 once it was sent."""
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
        """Before the row is sent, note what the transaction sees in the cells that were not buffered. `sent`: the cells
        of the row that it sent before."""
        unbuffered = frozenset(column for column, value in self.cells.items() if value is NOT_BUFFERED)
        self.taken_back = _shared(self.taken_back | unbuffered.difference(sent))
        for column in unbuffered:
            self.cells[column] = seen.get(column)


class Savepoints:
    """The open savepoints of one transaction, and the list of what was replaced since the first of them."""

    __slots__ = ("_open", "_recent", "_replaced", "_sent")

    def __init__(self) -> None:
        self._open: list[SavedWrites] = []
        self._replaced: list[Replaced] = []
        self._recent: dict[tuple[str, bytes], Replaced] = {}
        """The entries that may grow: those since the last savepoint, rollback, release or sending."""
        self._sent: dict[str, int] = {}
        """By table: the position of the first entry that was not sent."""

    def save(self, ids_written: int) -> SavedWrites:
        saved = SavedWrites(len(self._open), len(self._replaced), ids_written)
        self._recent = {}
        self._open.append(saved)
        return saved

    def holds(self, saved: SavedWrites) -> bool:
        """Whether the savepoint was neither released nor ended by an earlier one."""
        return saved.number < len(self._open) and self._open[saved.number] is saved

    def note(self, buffer: WriteBuffer, row: bytes, columns: Iterable[Column]) -> Replaced:
        """Before a write: note what it replaces."""
        key = buffer.info.name, row
        replaced = self._recent.get(key)
        if replaced is None:
            replaced = self._recent[key] = Replaced(buffer, row, buffer.checked is None)
            self._replaced.append(replaced)
        replaced.note(columns)
        return replaced

    def unsent(self, buffer: WriteBuffer) -> list[Replaced]:
        """Return the entries of the buffer's rows since it was last sent."""
        first = self._sent.get(buffer.info.name, 0)
        return [replaced for replaced in self._replaced[first:] if replaced.buffer is buffer]

    def note_sent(self, buffer: WriteBuffer) -> None:
        """Note that the buffer is about to be sent. Its entries are filled."""
        for replaced in self.unsent(buffer):
            replaced.is_sent, replaced.added_bytes = True, 0
        self._recent = {}
        self._sent[buffer.info.name] = len(self._replaced)

    def go_back(self, saved: SavedWrites) -> None:
        """Take back all writes after an open savepoint, which ends the later ones."""
        del self._open[saved.number + 1 :]
        self._recent = {}
        for position in reversed(range(saved.position, len(self._replaced))):
            replaced = self._replaced[position]
            replaced.buffer.take_back(replaced)
        del self._replaced[saved.position :]
        self._sent = {table: min(position, saved.position) for table, position in self._sent.items()}

    def release(self, saved: SavedWrites) -> bool:
        """End an open savepoint and the later ones. Return whether any is left."""
        del self._open[saved.number :]
        self._recent = {}
        return bool(self._open)
