"""The open reads of a table. Each sees the transaction's own writes as they were when the read began (C15).

A scan, a lookup or a `to_arrow` continues while the transaction writes. It must return the rows that it would have
returned if it had finished at once, even if writes went to the store meanwhile. The transaction's own cells are in
three states:

    buffered       not sent yet
    in the store   sent, one version per cell: a later write replaces it
    committed      the row without own writes: it never changes for this transaction

So before a row changes, each read that has not returned it yet records the cells that are about to be lost: the row's
buffered cells before its first write, and its own cells in the store before that write is sent. The record is dropped
when the read has passed the row.

A batch that the store prefetched may or may not contain cells that were sent meanwhile. Both are correct, because
recorded rows are read again without the transaction's versions, and then get the recorded cells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar
from weakref import ref

from pyomid.database.writes.own_cells import NO_CELLS, KeyOrder, RowOverlay
from pyomid.types import KeyRange

T = TypeVar("T")

_NOTHING: Final = KeyRange(b"", b"")


class OpenRead:
    """An open read of one table. `key_range` is the range that it has not returned yet."""

    __slots__ = ("__weakref__", "_buffered", "_order", "_shown", "_unbuffered", "is_over_buffer", "key_range", "stored")

    def __init__(self, key_range: KeyRange, *, is_over_buffer: bool) -> None:
        self.key_range = key_range
        self.is_over_buffer = is_over_buffer
        """Whether cells that were buffered when the read began may still be buffered."""
        self._buffered: dict[bytes, RowOverlay] = {}
        """Rows that were written or sent since the read began, with the cells that were buffered then."""
        self._unbuffered: set[bytes] = set()
        """Rows that were written since the read began, and had no buffered cells then."""
        self._order = KeyOrder()
        """The key order of `_buffered`."""
        self._shown: Collection[bytes] = ()
        self.stored: dict[bytes, RowOverlay] = {}
        """Rows that were written and sent since the read began, with the transaction's cells that the store had
        then."""

    # What it sees

    def buffered(self, row: bytes, now: RowOverlay = NO_CELLS) -> RowOverlay:
        """Return the row's cells that were buffered when the read began. `now` are the cells that are buffered now."""
        if row in self._unbuffered:
            return NO_CELLS
        return self._buffered.get(row, now if self.is_over_buffer else NO_CELLS)

    @property
    def has_noted(self) -> bool:
        """Whether any row is recorded."""
        return bool(self._buffered or self._unbuffered)

    def noted_rows(self, key_range: KeyRange) -> list[bytes]:
        """Return the rows in the range with recorded buffered cells."""
        return self._order.within(self._buffered, key_range)

    # Progress

    def up_to(self, key: bytes | None) -> KeyRange:
        """Return the part of the remaining range before `key` (None: all of it), whose rows are returned next."""
        return KeyRange(self.key_range.start, self.key_range.stop if key is None else key)

    def down_to(self, key: bytes) -> KeyRange:
        """Return the part of the remaining range from `key` on."""
        return KeyRange(key, self.key_range.stop)

    def show(self, shown: KeyRange, rows: Iterable[bytes] = ()) -> None:
        """Note that the rows of `shown`, a range at one end of the remaining range, are returned now. `rows` are rows
        in it that may be recorded."""
        rest = self.key_range
        if shown.start == rest.start:
            self.key_range = _NOTHING if shown.stop is None else KeyRange(shown.stop, rest.stop)
        else:
            self.key_range = KeyRange(rest.start, shown.start)
        self._forget(self.noted_rows(shown))
        self._forget(rows)

    def end(self) -> None:
        """Note that the read returns no more rows."""
        self.key_range = _NOTHING
        self._buffered, self._order, self.stored = {}, KeyOrder(), {}
        self._unbuffered.clear()

    def show_rows(self, rows: Collection[bytes]) -> None:
        """Note that these rows are returned now, for a read that is not in key order."""
        self._shown = frozenset(rows)
        self._forget(rows)

    def _forget(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            if row in self._buffered:
                self._order.remove(self._buffered, row)
            self._unbuffered.discard(row)
            self.stored.pop(row, None)

    # Notes, made before the transaction's writes change

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


class OpenReads(set[ref[OpenRead]]):
    """The open reads of one table. Only the reader of an open read keeps it alive."""

    __slots__ = ()

    def begin(self, key_range: KeyRange, *, is_over_buffer: bool) -> OpenRead:
        read = OpenRead(key_range, is_over_buffer=is_over_buffer)
        remember(read, self)
        return read

    def note_write(self, row: bytes, buffered: RowOverlay) -> None:
        """Note that the buffered cells of a row are about to change."""
        for read in remembered(self):
            read.note_write(row, buffered)

    def note_leaving(self, rows: Mapping[bytes, RowOverlay]) -> dict[bytes, list[OpenRead]]:
        """Note that all buffered cells are about to be sent. Return the rows whose own cells in the store are needed,
        each with the reads that need them."""
        needed: dict[bytes, list[OpenRead]] = {}
        for read in remembered(self):
            for row in read.note_leaving(rows):
                needed.setdefault(row, []).append(read)
            read.is_over_buffer = False
        return needed


def remember(each: T, among: set[ref[T]]) -> None:
    """Add a weak reference. `set.discard` removes it: a `WeakSet` would run Python code in a destructor, where a signal
    handler's exception is swallowed."""
    among.add(ref(each, among.discard))


def remembered(among: set[ref[T]]) -> list[T]:
    return [each for reference in among.copy() if (each := reference()) is not None]
