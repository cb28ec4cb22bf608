"""What `DataStore.read_settled` returns for one row, by definition: the reference implementation."""

from __future__ import annotations

from collections.abc import Sequence

from pyomid.protocol.visibility import visible_point
from pyomid.types import Cell, Column, ReadBounds


def settled_row(cells: Sequence[Cell], bounds: ReadBounds, expired_to: int) -> dict[Column, bytes] | None:
    """Return the row as a reader at the snapshot `bounds.committed_below` sees it. None if that is not certain without
    the commit table, or if a version may be the reader's own."""
    snapshot = bounds.committed_below
    needed = bounds.needed(cells)
    if any(not cell.commit_ts or (cell.version >= snapshot and cell.commit_ts >= snapshot) for cell in needed):
        return None
    return visible_point(needed, snapshot, expired_to=expired_to)
