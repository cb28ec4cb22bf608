"""Write whole batches: put rows, and apply compaction's changes, in parts that each fit one write transaction.

How pages fill: LMDB splits a full page in half, unless the new record is the last one of the page; then the page stays
full. So ascending records fill their pages only if no other record follows on the same page; otherwise the pages end up
half full. Two tasks that load one table would leave its pages two thirds full. To avoid this, `put_full` deletes the
existing records between the batch's own, and puts all of them in order, in one transaction:

    filler 1, after the batch's last key    half a page
    filler 2, before filler 1               also half a page. The two force a split, so the records that follow the
                                            batch move to the next page with filler 1. Filler 2 is deleted at once
    the records, in steps                   each is now the last record of its page. If a step takes too many pages,
                                            LMDB has moved the following records back (it does so at the first child of
                                            a branch page). Then filler 2 is put and deleted again

At the end filler 1 is deleted. No other transaction sees a filler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.checks import check_column, check_row_key, check_value_length, shown
from pyomid.errors import Corruption, Misuse
from pyomid.folder.environment import Transaction
from pyomid.folder.native import records as kernels
from pyomid.folder.records import KEY_BYTES_MAX, LIMITS, VERSION_BYTES, corrupt
from pyomid.folder.tables import SAMPLE_MASK, Table

Indices: TypeAlias = "NDArray[np.int64]"
Records = list[tuple[bytes, bytes]]

WRITE_RECORDS_MAX: Final = 2000
"""The most records in one write transaction. It holds the writer lock for a few milliseconds; then other writers get
their turn (C6)."""
WRITE_BYTES_MAX: Final = 1 << 20
_FULL_RECORDS_MIN: Final = 256
_BETWEEN_BYTES_MAX: Final = 2 << 20
"""The most bytes of existing records between the batch's own. More would delay other writers."""
_STEP_RECORDS: Final = 16
_PAGE_HEADER: Final = 16
_NODE_BYTES: Final = 11
"""The approximate overhead of a record in a page: header, pointer and padding."""
_SPARSE: Final = 1.3
"""If a step takes more than this many times the pages that its bytes fill, it has left pages half full."""


# Rows to put


def for_kernels(batch: CellBatch) -> CellBatch:
    """Return the batch with contiguous arrays, which the kernels need."""
    buffer, *others = map(np.ascontiguousarray, batch.arrays())
    return CellBatch(buffer, batch.columns, *others)


def check_batch(table: Table, batch: CellBatch) -> None:
    """Check a batch that `for_kernels` returned, before its first write."""
    if batch.records != batch.rows:
        raise Misuse(f"a batch must have one record per row, but has {batch.records} records and {batch.rows} rows")
    for column in batch.columns:
        check_column(column, table.families, LIMITS)
    is_family = np.array([not column.qualifier for column in batch.columns], dtype=np.bool_)
    rule, row, cell = kernels.check_batch(batch.arrays(), is_family, LIMITS.value_bytes_max)
    if rule != kernels.GOOD:
        _raise_broken(rule, batch, row, cell)


def _raise_broken(rule: int, batch: CellBatch, row: int, cell: int) -> None:
    """Raise the error that the row-at-a-time path would raise for the violation that the kernel found."""
    key = batch.row_key(row)
    if rule == kernels.ROW_OUT_OF_ORDER:
        raise Misuse(
            f"the rows of a batch must be unique and ascending, but {shown(key)} comes after "
            f"{shown(batch.row_key(row - 1))}"
        )
    check_row_key(key, LIMITS)
    check_value_length(key, batch.columns[int(batch.cell_col[cell])], int(batch.cell_len[cell]), LIMITS)
    raise AssertionError(f"rule {rule} is broken, but no check finds it")


def batch_parts(batch: CellBatch) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, each with a bounded number of records and bytes."""
    if batch.rows == 0:
        return
    lengths = np.concatenate(([0], np.cumsum(np.maximum(batch.cell_len, 0), dtype=np.int64)))
    bytes_before = lengths[batch.rec_cell[batch.row_rec]]
    first = 0
    while first < batch.rows:
        fits = int(np.searchsorted(bytes_before, bytes_before[first] + WRITE_BYTES_MAX, side="right")) - 1
        stop = min(max(fits, first + 1), first + WRITE_RECORDS_MAX, batch.rows)
        yield first, stop
        first = stop


def encoded_rows(table: Table, version: int, batch: CellBatch, first: int, stop: int) -> tuple[Records, Records]:
    """Return the records of rows `first` … `stop` of a checked batch, ascending, and those of the rows that are
    samples."""
    numbers = np.array([table.numbers[column] for column in batch.columns], dtype=np.int64)
    prefix = np.frombuffer(bytearray(table.prefix), dtype=np.uint8)
    encoded, bounds, sampled = kernels.encode_rows(batch.arrays(), first, stop, prefix, numbers, version, SAMPLE_MASK)
    records = kernels.pairs(encoded, bounds)
    return records, [(records[index][0][:-VERSION_BYTES], b"") for index in np.flatnonzero(sampled).tolist()]


def put_full(transaction: Transaction, database: Any, records: list[tuple[bytes, bytes]]) -> bool:
    """Put ascending records so that they fill their pages. Returns False, and writes nothing, if that would cost too
    much or one of the records exists."""
    first, last = records[0][0], records[-1][0]
    if len(records) < _FULL_RECORDS_MIN or len(last) + 2 > KEY_BYTES_MAX:
        return False
    with transaction.cursor(database) as cursor:
        between = _between(cursor, first, last)
        if not between or not between.keys().isdisjoint(key for key, _ in records):
            return False
        before = transaction.stat(database)
        cursor.set_range(first)
        for _ in between:
            cursor.delete()
        page_bytes = before["psize"]
        filler = bytes(page_bytes // 2 - 22 - len(last))
        transaction.put(last + b"\0\0", filler, db=database)
        pages, room = 0, 0.0
        together = sorted([*between.items(), *records])
        for at in range(0, len(together), _STEP_RECORDS):
            if pages > _SPARSE * room + 1 or not at:
                transaction.put(last + b"\0", filler, db=database)
                transaction.delete(last + b"\0", db=database)
            step, had = together[at : at + _STEP_RECORDS], transaction.stat(database)["leaf_pages"]
            cursor.putmulti(step, overwrite=False)
            pages = transaction.stat(database)["leaf_pages"] - had
            room = sum(len(key) + len(value) + _NODE_BYTES for key, value in step) / (page_bytes - _PAGE_HEADER)
        transaction.delete(last + b"\0\0", db=database)
        if transaction.stat(database)["entries"] != before["entries"] + len(records):
            raise Corruption("LMDB did not store each record exactly once")
    return True


def _between(cursor: Any, first: bytes, last: bytes) -> dict[bytes, bytes]:
    """Return the existing records of this range, or none if they exceed `_BETWEEN_BYTES_MAX`."""
    found: dict[bytes, bytes] = {}
    size = 0
    if cursor.set_range(first):
        for key, value in cursor.iternext():
            if key > last:
                break
            found[key] = value
            size += len(key) + len(value)
            if size > _BETWEEN_BYTES_MAX:
                return {}
    return found


# Compaction's changes


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The changes of some records of one batch. Each array has one element per record, except `drops` and `heals`.
    These are lists of lists, with their borders in `drop_first` and `heal_first`."""

    keys: list[bytes]
    commits: Indices
    drops: Indices
    drop_first: Indices
    heals: Indices
    heal_first: Indices

    def apply(self, transaction: Transaction, database: Any) -> None:
        """Change the records that still exist. Raises `Corruption`, and changes nothing, if one cannot be read."""
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
        """Return the changes of the records with these indices only."""
        drops, drop_first = _lists_of(self.drops, self.drop_first, present)
        heals, heal_first = _lists_of(self.heals, self.heal_first, present)
        keys = [self.keys[index] for index in present.tolist()]
        return Cleaning(keys, self.commits[present], drops, drop_first, heals, heal_first)


def cleanings(
    batch: CellBatch, heals: Indices, drops: Indices, prefix: bytes, number_of: Indices
) -> Iterator[Cleaning]:
    """Yield the changes, ascending by row. `number_of` holds the number of each of the batch's columns, 0 if the table
    has no such column."""
    record_of_drop = np.searchsorted(batch.rec_cell, drops, side="right") - 1
    records = np.union1d(heals, record_of_drop)
    row_of = np.searchsorted(batch.row_rec, records, side="right") - 1
    first = 0
    while first < len(records):
        stop = min(first + WRITE_RECORDS_MAX, len(records))
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
    """Return the lists `values[first[i] : first[i + 1]]` for the indices i in `chosen` (ascending), and their
    borders."""
    lengths = first[chosen + 1] - first[chosen]
    borders = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(borders[-1]) - np.repeat(borders[:-1], lengths)
    return values[np.repeat(first[chosen], lengths) + within], borders


def has_twins(batch: CellBatch) -> bool:
    """Return whether two records of one row have the same version. This store keeps such records as one."""
    row_of = np.repeat(np.arange(batch.rows), np.diff(batch.row_rec))
    order = np.lexsort((batch.rec_version, row_of))
    rows, versions = row_of[order], batch.rec_version[order]
    return bool(np.any((rows[1:] == rows[:-1]) & (versions[1:] == versions[:-1])))
