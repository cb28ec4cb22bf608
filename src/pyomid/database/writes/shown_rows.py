"""Rows as programs see them: the store's batches, with the transaction's own cells over them.

If a batch contains none of the transaction's cells, compiled code creates its rows lazily.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Final, TypeVar

from pyomid.arrays import np
from pyomid.cells import CellBatch, batch_of_rows
from pyomid.database.native import shown_rows as kernels
from pyomid.database.writes.own_cells import NO_CELLS, Row, RowOverlay, overlaid
from pyomid.protocol.visibility import VisibleCells, visible_cells
from pyomid.types import Column

SeenBatch = tuple[CellBatch, VisibleCells]


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The transaction's writes in a part of a scan. `stored` are rows that replace the store's rows. `overlays` are own
    cells over all rows, including rows that exist only because of these cells."""

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
    """Return the rows of ascending batches, like `merged`, but perhaps created lazily."""
    return _named_rows(seen[0]) if own is NO_OWN_ROWS and len(seen) == 1 else merged(seen, own, columns)


def merged_batch(seen: SeenBatch | None, own: OwnRows) -> SeenBatch | None:
    """Return the rows of a batch as the transaction sees them, as a batch; None if there are no rows."""
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
    """Return the rows, with `names` for the columns. Each row is created when the iteration reaches it."""
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
