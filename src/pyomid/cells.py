"""Cell batches: many cells as arrays over one buffer, for vectorized work.

    rows      row_off, row_len         the position of each row's key in `buffer`; keys ascend, rows are complete
              row_rec[i] : row_rec[i+1]   the records of row i
    records   rec_version, rec_commit  the version of all cells of the record; the commit timestamp from the shadow
                                       cell, 0 if there is none
              rec_cell[r] : rec_cell[r+1] the cells of record r
    cells     cell_col                 index into `columns`
              cell_off, cell_len       the value in `buffer`; length TOMBSTONE for a tombstone

The cells of a record share a commit timestamp: in the embedded store, a record has all cells that a transaction wrote
in a row; in HBase, each cell is a separate record. Records of a row are in any order; two records of a row may have the
same version, but never the same (column, version). A batch for writing has one record per row, whose version is
ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple, overload

from pyomid.arrays import NDArray, np
from pyomid.native import records_of_rows as kernels
from pyomid.types import TIMESTAMP_STEP, Cell, CellVersion, Column, RowWrite

TOMBSTONE: Final = -1
"""`cell_len` of a tombstone. If the column has an empty qualifier, it is the family's tombstone."""


@dataclass(slots=True)
class CellBatch:
    """A batch that owns its arrays: no array points into memory that a store may reuse."""

    buffer: NDArray[np.uint8]
    columns: list[Column]
    row_off: NDArray[np.int64]
    row_len: NDArray[np.int32]
    row_rec: NDArray[np.int64]
    rec_version: NDArray[np.int64]
    rec_commit: NDArray[np.int64]
    rec_cell: NDArray[np.int64]
    cell_col: NDArray[np.int32]
    cell_off: NDArray[np.int64]
    cell_len: NDArray[np.int32]

    @property
    def rows(self) -> int:
        return len(self.row_off)

    @property
    def records(self) -> int:
        return len(self.rec_version)

    @property
    def cells(self) -> int:
        return len(self.cell_col)

    @property
    def rec_start(self) -> NDArray[np.int64]:
        """The start of the transaction (or branch) that wrote each record (`types.start_of`)."""
        return self.rec_version - self.rec_version % TIMESTAMP_STEP

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays in the order in which compiled code takes them (`native/batch.pxd`)."""
        return (
            self.buffer, self.row_off, self.row_len, self.row_rec, self.rec_version, self.rec_commit, self.rec_cell,
            self.cell_col, self.cell_off, self.cell_len,
        )  # fmt: skip

    def row_key(self, index: int) -> bytes:
        start = int(self.row_off[index])
        return self.buffer[start : start + int(self.row_len[index])].tobytes()

    def value(self, cell: int) -> bytes | None:
        length = int(self.cell_len[cell])
        if length == TOMBSTONE:
            return None
        start = int(self.cell_off[cell])
        return self.buffer[start : start + length].tobytes()

    def record_of(self, cell: int) -> int:
        return int(np.searchsorted(self.rec_cell, cell, side="right")) - 1

    def row_of(self, record: int) -> int:
        return int(np.searchsorted(self.row_rec, record, side="right")) - 1

    def cell_version(self, cell: int) -> CellVersion:
        """Return the name of one cell. This is slow: use it only for stores without compiled code, and for tests."""
        record = self.record_of(cell)
        column = self.columns[int(self.cell_col[cell])]
        row = self.row_key(self.row_of(record))
        return CellVersion(row, column.family, column.qualifier, int(self.rec_version[record]))

    def row_cells(self, index: int) -> Iterator[Cell]:
        """Yield the cells of one row as objects. This is slow: use it for tests and few rows, never for a scan."""
        row = self.row_key(index)
        for record in range(int(self.row_rec[index]), int(self.row_rec[index + 1])):
            version, commit_ts = int(self.rec_version[record]), int(self.rec_commit[record])
            for cell in range(int(self.rec_cell[record]), int(self.rec_cell[record + 1])):
                column = self.columns[int(self.cell_col[cell])]
                yield Cell(row, column.family, column.qualifier, version, self.value(cell), commit_ts)

    def row_write(self, index: int) -> RowWrite:
        """Return a write of the row's cells, ignoring their versions."""
        cells = ((Column(cell.family, cell.qualifier), cell.value) for cell in self.row_cells(index))
        return RowWrite(self.row_key(index), tuple(cells))

    def all_cells(self) -> Iterator[Cell]:
        for index in range(self.rows):
            yield from self.row_cells(index)


class ColumnNames(NamedTuple):
    """A batch's columns as kernels read them: family and qualifier of column c are `names[begin[c] : begin[c + 1]]`."""

    names: NDArray[np.uint8]
    begin: NDArray[np.int64]
    family_bytes: NDArray[np.int64]
    """The length of the family in each name."""

    @classmethod
    def of(cls, columns: Sequence[Column]) -> ColumnNames:
        """Return the names of a batch's columns; kernels take them as a plain tuple."""
        names = [column.family + column.qualifier for column in columns]
        return cls(
            np.frombuffer(b"".join(names) or b"\0", dtype=np.uint8),
            np.array([*accumulate(map(len, names), initial=0)], dtype=np.int64),
            np.array([len(column.family) for column in columns], dtype=np.int64),
        )


def batch_of(rows: Sequence[Sequence[Cell]]) -> CellBatch:
    """Return a batch of these cells, rows ascending; each (version, commit timestamp) of a row becomes a record."""
    buffer = bytearray()
    columns: dict[Column, int] = {}
    row_off: list[int] = []
    row_len: list[int] = []
    row_rec, rec_version, rec_commit, rec_cell = [0], [], [], [0]
    cell_col: list[int] = []
    cell_off: list[int] = []
    cell_len: list[int] = []
    for cells in rows:
        if not cells:
            continue
        row_off.append(len(buffer))
        row_len.append(len(cells[0].row))
        buffer += cells[0].row
        records: dict[tuple[int, int], list[Cell]] = {}
        for cell in cells:
            records.setdefault((cell.version, cell.commit_ts), []).append(cell)
        for (version, commit_ts), members in records.items():
            rec_version.append(version)
            rec_commit.append(commit_ts)
            for cell in members:
                cell_col.append(columns.setdefault(Column(cell.family, cell.qualifier), len(columns)))
                cell_off.append(len(buffer))
                cell_len.append(TOMBSTONE if cell.value is None else len(cell.value))
                buffer += cell.value or b""
            rec_cell.append(len(cell_col))
        row_rec.append(len(rec_version))
    return CellBatch(
        buffer=np.frombuffer(buffer, dtype=np.uint8),
        columns=list(columns),
        row_off=np.array(row_off, dtype=np.int64),
        row_len=np.array(row_len, dtype=np.int32),
        row_rec=np.array(row_rec, dtype=np.int64),
        rec_version=np.array(rec_version, dtype=np.int64),
        rec_commit=np.array(rec_commit, dtype=np.int64),
        rec_cell=np.array(rec_cell, dtype=np.int64),
        cell_col=np.array(cell_col, dtype=np.int32),
        cell_off=np.array(cell_off, dtype=np.int64),
        cell_len=np.array(cell_len, dtype=np.int32),
    )


def batch_of_rows(rows: Mapping[bytes, Mapping[Column, bytes | None]]) -> CellBatch:
    """Return a batch for writing, with one record per row; the value None is a tombstone. `rows` has at least one row,
    in any order."""
    keys = sorted(rows)
    return batch_of_records(keys, [rows[key] for key in keys])


def batch_of_records(keys: Sequence[bytes], cells: Sequence[Mapping[Column, bytes | None]]) -> CellBatch:
    """Return a batch of at least one row, with one record per row; keys may repeat."""
    rows = [each if type(each) is dict else dict(each) for each in cells]
    buffer, columns, row_off, row_len, rec_cell, cell_col, cell_off, cell_len = kernels.records_of(list(keys), rows)
    return CellBatch(
        buffer=buffer,
        columns=columns,
        row_off=row_off,
        row_len=row_len,
        row_rec=np.arange(len(keys) + 1, dtype=np.int64),
        rec_version=np.zeros(len(keys), dtype=np.int64),
        rec_commit=np.zeros(len(keys), dtype=np.int64),
        rec_cell=rec_cell,
        cell_col=cell_col,
        cell_off=cell_off,
        cell_len=cell_len,
    )


def without_values(batch: CellBatch) -> CellBatch:
    """Return the batch with tombstones in place of values, which keeps the cells' names but not the memory of the
    values."""
    keys_end = int((batch.row_off + batch.row_len).max(initial=0))
    return replace(
        batch,
        buffer=batch.buffer[:keys_end].copy(),
        cell_off=np.zeros(batch.cells, dtype=np.int64),
        cell_len=np.full(batch.cells, TOMBSTONE, dtype=np.int32),
    )


def without_cells(batch: CellBatch, gone: NDArray[np.bool_]) -> CellBatch:
    """Return the batch without the cells that are `gone`, and without rows and records that lose their last cell."""
    cells = np.diff(_ends(~gone)[batch.rec_cell])
    records = np.diff(_ends(cells > 0)[batch.row_rec])
    return replace(
        batch,
        row_off=batch.row_off[records > 0],
        row_len=batch.row_len[records > 0],
        row_rec=_ends(records[records > 0]),
        rec_version=batch.rec_version[cells > 0],
        rec_commit=batch.rec_commit[cells > 0],
        rec_cell=_ends(cells[cells > 0]),
        cell_col=batch.cell_col[~gone],
        cell_off=batch.cell_off[~gone],
        cell_len=batch.cell_len[~gone],
    )


def with_columns_present(batch: CellBatch) -> CellBatch:
    """Return the batch without the columns that have no cell in it."""
    present, cell_col = np.unique(batch.cell_col, return_inverse=True)
    columns = [batch.columns[column] for column in present.tolist()]
    return replace(batch, columns=columns, cell_col=cell_col.astype(np.int32))


def _ends(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


class CellNames(Sequence[CellVersion]):
    """The names of all cells of some batches, under one version, created on demand.

    If a cell is in two batches, its name occurs twice.
    """

    __slots__ = ("batches", "version")

    def __init__(self, batches: Sequence[CellBatch], version: int) -> None:
        self.batches = batches
        self.version = version

    def __len__(self) -> int:
        return sum(batch.cells for batch in self.batches)

    def __iter__(self) -> Iterator[CellVersion]:
        for batch in self.batches:
            columns = [batch.columns[number] for number in batch.cell_col.tolist()]
            ends = batch.rec_cell[batch.row_rec].tolist()
            for row in range(batch.rows):
                key = batch.row_key(row)
                for column in columns[ends[row] : ends[row + 1]]:
                    yield CellVersion(key, column.family, column.qualifier, self.version)

    @overload
    def __getitem__(self, index: int) -> CellVersion: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[CellVersion]: ...

    def __getitem__(self, index: int | slice) -> CellVersion | Sequence[CellVersion]:
        return tuple(self)[index]
