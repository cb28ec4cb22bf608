"""Changes of stored cells as arrays: shadow cells to put, versions and orphans to delete, for many rows at once.

`changes_of` builds changes from names, `changes_of_batch` from the indices of a batch; `regions/bulk_writes` sends
them. `as_mutation` is the reference implementation of the encoder. It also encodes a row again that a server refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch, ColumnNames
from pyomid.omid.hbase.codec.keyvalues import DELETE_VERSION, KeyValue
from pyomid.omid.hbase.codec.layout import shadow_qualifier, timestamp_bytes
from pyomid.omid.hbase.codec.native import encode as kernels
from pyomid.omid.hbase.rpc.requests import RowMutation, deletes, puts
from pyomid.types import CellVersion, Column, KeyRange

Int64s = NDArray[np.int64]

_NO_BYTES: Final = np.zeros(1, dtype=np.uint8)


class Changes(NamedTuple):
    """Changes of cells. Compiled code takes them as `tuple(changes)`.

    Rows ascend and are unique; `row_cell[i] : row_cell[i + 1]` are the cells of row i. The `change` of a cell is the
    commit timestamp for its shadow cell, DROPPED (delete the cell and its shadow cell), or ORPHANED (delete the shadow
    cell). The family and qualifier of a cell are in `names` at `name_at`, one after the other; the key of a row is in
    `keys`.
    """

    keys: NDArray[np.uint8]
    row_at: Int64s
    row_bytes: Int64s
    row_cell: Int64s
    names: NDArray[np.uint8]
    name_at: Int64s
    family_bytes: Int64s
    qualifier_bytes: Int64s
    version: Int64s
    change: Int64s

    @property
    def rows(self) -> int:
        return len(self.row_at)

    def key(self, row: int) -> bytes:
        begin = int(self.row_at[row])
        return self.keys[begin : begin + int(self.row_bytes[row])].tobytes()

    def block_ends(self) -> Int64s:
        """Return, for each row, an upper bound of the encoded bytes of all cells up to the row's end."""
        row_bytes = np.repeat(self.row_bytes, np.diff(self.row_cell))
        each = 2 * (
            kernels.CELL_BYTES_MAX + row_bytes + self.family_bytes + self.qualifier_bytes + kernels.SHADOW_BYTES
        )
        sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(each)])
        return sums[self.row_cell[1:]]

    def cell_version(self, row: int, cell: int) -> CellVersion:
        begin = int(self.name_at[cell])
        middle = begin + int(self.family_bytes[cell])
        end = middle + int(self.qualifier_bytes[cell])
        name = self.names[begin:end].tobytes()
        return CellVersion(self.key(row), name[: middle - begin], name[middle - begin :], int(self.version[cell]))

    def as_mutation(self, row: int) -> RowMutation:
        put: list[KeyValue] = []
        gone: list[KeyValue] = []
        for cell in range(int(self.row_cell[row]), int(self.row_cell[row + 1])):
            key, family, qualifier, version = self.cell_version(row, cell)
            change, shadow = int(self.change[cell]), shadow_qualifier(qualifier)
            if change > 0:
                put.append(KeyValue(key, family, shadow, version, timestamp_bytes(change)))
                continue
            names = (qualifier, shadow) if change == kernels.DROPPED else (shadow,)
            gone += [KeyValue(key, family, name, version, b"", DELETE_VERSION) for name in names]
        mutations = (*((puts(put),) if put else ()), *((deletes(gone),) if gone else ()))
        return RowMutation(self.key(row), mutations)

    def only(self, chosen: NDArray[np.bool_], change: int | None = None) -> Changes:
        """Return the changes of the chosen cells only. If `change` is given, it replaces the change of each cell."""
        cells = np.flatnonzero(chosen)
        row_of_cell = np.repeat(np.arange(self.rows), np.diff(self.row_cell))
        rows, row_cell = _grouped(row_of_cell[cells])
        return Changes(
            self.keys, self.row_at[rows], self.row_bytes[rows], row_cell, self.names, self.name_at[cells],
            self.family_bytes[cells], self.qualifier_bytes[cells], self.version[cells],
            self.change[cells] if change is None else np.full(len(cells), change, dtype=np.int64),
        )  # fmt: skip


def changes_of(cells: Sequence[CellVersion], change: Sequence[int]) -> Changes:
    """Return the changes `change` of `cells`. The cells may be in any order but must be distinct."""
    order = sorted(range(len(cells)), key=lambda index: cells[index].row)
    ordered = [cells[index] for index in order]
    rows = [cell.row for cell in ordered]
    families, qualifiers = [cell.family for cell in ordered], [cell.qualifier for cell in ordered]
    firsts = [index for index, row in enumerate(rows) if not index or row != rows[index - 1]]
    family_bytes, qualifier_bytes = _lengths(families), _lengths(qualifiers)
    row_bytes = _lengths([rows[index] for index in firsts])
    return Changes(
        keys=_joined(rows[index] for index in firsts),
        row_at=_starts(row_bytes),
        row_bytes=row_bytes,
        row_cell=np.array([*firsts, len(rows)], dtype=np.int64),
        names=_joined(chain.from_iterable(zip(families, qualifiers, strict=True))),
        name_at=_starts(family_bytes + qualifier_bytes),
        family_bytes=family_bytes,
        qualifier_bytes=qualifier_bytes,
        version=np.array([cell.version for cell in ordered], dtype=np.int64),
        change=np.array([change[index] for index in order], dtype=np.int64),
    )


def changes_of_batch(batch: CellBatch, heals: Int64s, drops: Int64s) -> Changes:
    """Return changes that put the shadow cells of the records `heals` and drop the cells `drops`. A cell in both is
    dropped."""
    cells_of_record = np.diff(batch.rec_cell)
    record_of_cell = np.repeat(np.arange(batch.records), cells_of_record)
    row_of_record = np.repeat(np.arange(batch.rows), np.diff(batch.row_rec))
    commits = np.zeros(batch.records, dtype=np.int64)
    commits[heals] = batch.rec_commit[heals]
    change = commits[record_of_cell]
    change[drops] = kernels.DROPPED
    cells = np.flatnonzero(change)
    rows, row_cell = _grouped(row_of_record[record_of_cell[cells]])
    columns, names = batch.cell_col[cells], ColumnNames.of(batch.columns)
    name_bytes = np.diff(names.begin)
    return Changes(
        keys=batch.buffer if len(batch.buffer) else _NO_BYTES,
        row_at=batch.row_off[rows],
        row_bytes=batch.row_len[rows].astype(np.int64),
        row_cell=row_cell,
        names=names.names,
        name_at=names.begin[columns],
        family_bytes=names.family_bytes[columns],
        qualifier_bytes=(name_bytes - names.family_bytes)[columns],
        version=batch.rec_version[record_of_cell[cells]],
        change=change[cells],
    )


def shadows_of_batch(batch: CellBatch, version: int, commit_ts: int) -> Changes:
    """Return changes that put all shadow cells of a batch. The batch was written under `version` and has one record per
    row."""
    columns, names = batch.cell_col, ColumnNames.of(batch.columns)
    name_bytes = np.diff(names.begin)
    return Changes(
        keys=batch.buffer,
        row_at=batch.row_off,
        row_bytes=batch.row_len.astype(np.int64),
        row_cell=batch.rec_cell,
        names=names.names,
        name_at=names.begin[columns],
        family_bytes=names.family_bytes[columns],
        qualifier_bytes=(name_bytes - names.family_bytes)[columns],
        version=np.full(batch.cells, version, dtype=np.int64),
        change=np.full(batch.cells, commit_ts, dtype=np.int64),
    )


def key_range_of(changes: Changes) -> KeyRange:
    return KeyRange(changes.key(0), changes.key(changes.rows - 1) + b"\0")


def missing_cells(changes: Changes, batches: Iterable[CellBatch]) -> NDArray[np.bool_]:
    """Return a mask of the cells that none of the batches holds."""
    present = np.zeros(len(changes.version), dtype=np.bool_)
    names = np.stack([changes.name_at, changes.family_bytes, changes.qualifier_bytes])
    distinct, name_of_cell = np.unique(names, axis=1, return_inverse=True)
    data = changes.names.tobytes()
    columns = [
        Column(data[at : at + family], data[at + family : at + family + qualifier])
        for at, family, qualifier in distinct.T.tolist()
    ]
    for batch in batches:
        known = {column: index for index, column in enumerate(batch.columns)}
        numbers = np.array([known.get(column, -1) for column in columns], dtype=np.int64)
        kernels.mark_present(tuple(changes), batch.arrays(), numbers[name_of_cell.reshape(-1)], present)
    return ~present


def _grouped(row_of_cell: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct rows of an ascending list, and the index at which the cells of each row begin."""
    firsts = np.flatnonzero(np.diff(row_of_cell, prepend=-1))
    return row_of_cell[firsts], np.append(firsts, len(row_of_cell)).astype(np.int64)


def _lengths(parts: Sequence[bytes]) -> Int64s:
    return np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))


def _starts(lengths: Int64s) -> Int64s:
    return np.cumsum(lengths) - lengths


def _joined(parts: Iterable[bytes]) -> NDArray[np.uint8]:
    data = bytearray().join(parts)
    return np.frombuffer(data, dtype=np.uint8) if data else _NO_BYTES
