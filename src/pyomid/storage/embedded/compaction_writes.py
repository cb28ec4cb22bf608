"""Compaction's changes of a batch, split at rows into parts that each fit one write transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.storage.embedded.environment import Transaction
from pyomid.storage.embedded.native import changes as kernels
from pyomid.storage.embedded.records import corrupt

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The changes of some records of one batch. An array has an element per record, or is a list of lists: `drops` and
    `heals`, whose borders are in `drop_first` and `heal_first`."""

    keys: list[bytes]
    commits: Indices
    drops: Indices
    drop_first: Indices
    heals: Indices
    heal_first: Indices

    def apply(self, transaction: Transaction, database: Any) -> None:
        """Change the records that still exist. `Corruption`, and no change, if one cannot be read."""
        stored = [transaction.get(key, db=database) for key in self.keys]
        present = [index for index, value in enumerate(stored) if value is not None]
        if present:
            keys = [self.keys[index] for index in present]
            self._apply_to(transaction, database, keys, [stored[index] for index in present], np.array(present))

    def _apply_to(
        self, transaction: Transaction, database: Any, keys: list[bytes], values: list[bytes], present: Indices
    ) -> None:
        items = [part for pair in zip(keys, values, strict=True) for part in pair]
        lens = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
        data = np.frombuffer(bytearray().join(items), dtype=np.uint8)
        chosen = self if len(present) == len(self.keys) else self._only(present)
        encoded, bounds, states = kernels.change_records(
            data, lens, chosen.commits, chosen.drops, chosen.drop_first, chosen.heals, chosen.heal_first
        )
        for index in np.flatnonzero(states == kernels.CORRUPT).tolist():
            raise corrupt(keys[index], "its checksum or its cells are wrong")
        content, border = encoded.tobytes(), bounds.tolist()
        changed = np.flatnonzero(states == kernels.CHANGED).tolist()
        with transaction.cursor(database) as cursor:
            cursor.putmulti([(keys[index], content[border[index] : border[index + 1]]) for index in changed])
        for index in np.flatnonzero(states == kernels.EMPTIED).tolist():
            transaction.delete(keys[index], db=database)

    def _only(self, present: Indices) -> Cleaning:
        """Return the changes of these records only."""
        drops, drop_first = _lists_of(self.drops, self.drop_first, present)
        heals, heal_first = _lists_of(self.heals, self.heal_first, present)
        keys = [self.keys[index] for index in present.tolist()]
        return Cleaning(keys, self.commits[present], drops, drop_first, heals, heal_first)


def cleanings(
    batch: CellBatch, heals: Indices, drops: Indices, prefix: bytes, number_of: Indices, *, records_max: int
) -> Iterator[Cleaning]:
    """Yield the changes, ascending by row. `number_of`: the number of each of the batch's columns (0: the table has no
    such column)."""
    record_of_drop = np.searchsorted(batch.rec_cell, drops, side="right") - 1
    records = np.union1d(heals, record_of_drop)
    row_of = np.searchsorted(batch.row_rec, records, side="right") - 1
    first = 0
    while first < len(records):
        stop = min(first + records_max, len(records))
        while stop < len(records) and row_of[stop] == row_of[stop - 1]:
            stop += 1
        piece = records[first:stop]
        yield _cleaning(batch, heals, drops, record_of_drop, piece, row_of[first:stop], prefix, number_of)
        first = stop


def _cleaning(
    batch: CellBatch,
    heals: Indices,
    drops: Indices,
    record_of_drop: Indices,
    records: Indices,
    row_of: Indices,
    prefix: bytes,
    number_of: Indices,
) -> Cleaning:
    prefix_bytes = np.frombuffer(bytearray(prefix), dtype=np.uint8)
    data, bounds = kernels.record_keys(batch.arrays(), records, row_of, prefix_bytes)
    encoded, border = data.tobytes(), bounds.tolist()
    numbers = number_of[batch.cell_col]
    in_piece = slice(*np.searchsorted(record_of_drop, [records[0], records[-1] + 1]))
    cells, cell_first = _lists_of(numbers, batch.rec_cell, records)
    return Cleaning(
        keys=[encoded[border[index] : border[index + 1]] for index in range(len(records))],
        commits=np.where(np.isin(records, heals), batch.rec_commit[records], 0),
        drops=numbers[drops[in_piece]],
        drop_first=np.searchsorted(record_of_drop[in_piece], np.append(records, records[-1] + 1)).astype(np.int64),
        heals=cells,
        heal_first=cell_first,
    )


def _lists_of(values: Indices, first: Indices, chosen: Indices) -> tuple[Indices, Indices]:
    """Return the chosen (ascending) of all lists `values[first[i] : first[i + 1]]`, and their borders."""
    lengths = first[chosen + 1] - first[chosen]
    borders = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(borders[-1]) - np.repeat(borders[:-1], lengths)
    return values[np.repeat(first[chosen], lengths) + within], borders


def has_twins(batch: CellBatch) -> bool:
    """Whether two records of one row have the same version: this store keeps them as one record."""
    row_of = np.repeat(np.arange(batch.rows), np.diff(batch.row_rec))
    order = np.lexsort((batch.rec_version, row_of))
    rows, versions = row_of[order], batch.rec_version[order]
    return bool(np.any((rows[1:] == rows[:-1]) & (versions[1:] == versions[:-1])))
