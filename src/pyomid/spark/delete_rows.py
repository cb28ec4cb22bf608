"""Deleting whole rows: a tombstone on every column that the snapshot sees in them, as Java Omid does.

At cell level a column that another transaction adds to the row meanwhile survives; who needs rows uses level row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE, CellBatch, batch_of
from pyomid.protocol.reading import VisibleRow, read_rows_steps
from pyomid.protocol.visibility import VisibleCells
from pyomid.spark.databases import Connection
from pyomid.spark.read_task import ReadPlan, visible_batches
from pyomid.spark.row_codec.encode import RowEncoder
from pyomid.types import Cell, KeyRange

KEYS_AT_ONCE: Final = 2_000
"""Keys of one multi-get."""


def delete_range(conn: Connection, read: ReadPlan, key_range: KeyRange) -> Iterator[CellBatch]:
    """Tombstones for everything visible in a range, to be written under a branch."""
    for batch, visible in visible_batches(conn, read, key_range):
        yield tombstones(batch, visible)


def delete_keys(conn: Connection, read: ReadPlan, encoder: RowEncoder, batch: pa.RecordBatch) -> CellBatch:
    """Tombstones for everything visible in the rows with these keys; keys without a row are no error."""
    encoded = encoder.encode_keys(batch)
    keys = sorted({encoded.key(row) for row in range(batch.num_rows)})
    rows: list[VisibleRow] = []
    for first in range(0, len(keys), KEYS_AT_ONCE):
        some: Sequence[bytes] = keys[first : first + KEYS_AT_ONCE]
        rows += conn.driver.run(read_rows_steps(read.table, some, None, read.snapshot, conn.cache))
    return batch_of(
        [[Cell(key, *column, 0, None) for column in row] for key, row in zip(keys, rows, strict=True) if row]
    )


def tombstones(batch: CellBatch, visible: VisibleCells) -> CellBatch:
    """The visible rows and columns of a batch as tombstones, a record a row."""
    rows = visible.rows_present()
    counts: NDArray[np.int64] = (visible.row_cell[1:] - visible.row_cell[:-1])[rows]
    cells = len(visible.cells)
    return CellBatch(
        buffer=batch.buffer,
        columns=batch.columns,
        row_off=batch.row_off[rows],
        row_len=batch.row_len[rows],
        row_rec=np.arange(len(rows) + 1, dtype=np.int64),
        rec_version=np.zeros(len(rows), dtype=np.int64),
        rec_commit=np.zeros(len(rows), dtype=np.int64),
        rec_cell=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        cell_col=batch.cell_col[visible.cells],
        cell_off=np.zeros(cells, dtype=np.int64),
        cell_len=np.full(cells, TOMBSTONE, dtype=np.int32),
    )
