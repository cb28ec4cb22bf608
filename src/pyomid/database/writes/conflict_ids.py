"""The conflict ids of a commit (T9): the cells and rows that they stand for, and the check that the TSO accepts so
many.

A commit names each written and claimed cell, each such row, or both, by the table's conflict level. The limit is
checked before a cell is written, mostly by a count that costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from pyomid.cells import CellBatch
from pyomid.database.native import puts
from pyomid.database.writes.write_buffer import WriteBuffer
from pyomid.errors import Misuse
from pyomid.protocol.hashing import row_id
from pyomid.protocol.native import hashing
from pyomid.types import Column, ConflictLevel, TableInfo


class CommitIds(puts.IdCount):
    """The number of ids that the commit will have. `noted` is an upper bound, because a cell that is written twice may
    count twice. Once it exceeds `noted_max`, the ids themselves are counted (`_named`). `_claimed` is the number of
    noted ids that come from claims, which a rollback to a savepoint keeps."""

    # Called before a write or a claim; they raise `Misuse` if the commit would have too many ids

    def note_row(self, buffer: WriteBuffer, row: bytes, columns: Collection[Column | None]) -> None:
        if self.add(buffer.ids_of(len(columns))):
            self._note(buffer, row_ids(buffer, row, columns))

    def note_claim(self, buffer: WriteBuffer, row: bytes, columns: Collection[Column | None]) -> None:
        self.note_row(buffer, row, columns)
        self._claimed += buffer.ids_of(len(columns))

    def note_batch(self, buffer: WriteBuffer, batch: CellBatch) -> None:
        if self.add(buffer.ids_of(batch.cells, batch.rows)):
            ids = (batch_ids(buffer, level, batch) for level in buffer.info.id_levels)
            self._note(buffer, chain.from_iterable(ids))

    def check_room(self, buffer: WriteBuffer, rows: Sequence[tuple[bytes, Collection[Column]]]) -> None:
        """Check that rows, which are noted one by one later, do not add too many ids."""
        if self.noted + sum(buffer.ids_of(len(cells)) for _, cells in rows) > self.noted_max:
            self._more(buffer, chain.from_iterable(row_ids(buffer, row, cells) for row, cells in rows))

    def _note(self, buffer: WriteBuffer, ids: Iterable[int]) -> None:
        named, more = self._more(buffer, ids)
        named |= more
        if len(named) < self.noted_max // 2:
            self._named, self.noted = None, len(named)

    def _more(self, buffer: WriteBuffer, ids: Iterable[int]) -> tuple[set[int], set[int]]:
        """Return the ids that the commit names so far, and the new ids in `ids`."""
        if self._named is None:
            self._named = set(chain.from_iterable(map(conflict_ids, self._buffers.values())))
        more = set(ids) - self._named
        if len(self._named) + len(more) > self.noted_max:
            raise too_many_ids(buffer.info, self.noted_max)
        return self._named, more

    # Savepoints

    @property
    def written(self) -> int:
        return self.noted - self._claimed

    def go_back(self, written: int) -> None:
        """Reset the number of ids of writes to `written`; the ids of claims stay."""
        self._named, self.noted = None, written + self._claimed


def conflict_ids(buffer: WriteBuffer) -> Iterable[int]:
    """Return the conflict ids of all writes and claims in a table, at each of the table's levels."""
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
    """Yield the ids of a row's cells. None among the columns stands for the row itself."""
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
        f"with this write to table {info.name!r}, the transaction has more than {ids_max} conflict ids, which is the "
        f"TSO's maximum for one commit; commit smaller transactions{by_row}",
        table=info.name,
        limit=ids_max,
    )


def _cell_name(row: bytes, column: Column) -> bytes:
    return row + column.family + column.qualifier
