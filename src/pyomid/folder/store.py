"""The port `DataStore` over LMDB. Writes are short durable transactions. A read copies its result out of one fresh read
transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch, batch_of_rows
from pyomid.checks import (
    check_version,
    check_writes,
)
from pyomid.errors import Misuse
from pyomid.folder.batch_writes import (
    WRITE_BYTES_MAX,
    WRITE_RECORDS_MAX,
    batch_parts,
    check_batch,
    cleanings,
    encoded_rows,
    for_kernels,
    has_twins,
    put_full,
)
from pyomid.folder.decision import Decision, pack_request, pack_rows, pack_table
from pyomid.folder.environment import MAP_BYTES_DEFAULT, Environment, Transaction, release
from pyomid.folder.layout import CELLS, SAMPLES, open_data, open_folder
from pyomid.folder.native import commits, points
from pyomid.folder.records import (
    LIMITS,
    NO_SUCH_COLUMN,
    VERSION_BYTES,
    Record,
    corrupt,
    decode_cells,
    decode_record,
    encode_record,
    first_cell,
    holds_only,
    key_version,
    only_cell,
    record_key,
    row_prefix,
    version_suffix,
)
from pyomid.folder.requests import CommitRequests
from pyomid.folder.scans import Scans
from pyomid.folder.tables import REGION_ROWS_DEFAULT, Regions, Table, Tables, is_sample
from pyomid.ports import Capabilities, DataStore
from pyomid.types import (
    TIMESTAMP_MAX,
    Cell,
    CellVersion,
    Column,
    KeyRange,
    ReadBounds,
    RowWrite,
    ShadowWrite,
    StoreLimits,
    TableChanges,
    TableInfo,
)

_FEW_RECORDS: Final = 64
_NO_BOUNDS: Final = ReadBounds()


@dataclass(slots=True)
class _Change:
    """The changes of one record. First cells are dropped; then the commit timestamp is set, if a cell that needs it is
    left."""

    heal_columns: set[Column] = field(default_factory=set)
    commit_ts: int = 0
    drops: set[Column] = field(default_factory=set)


class _TableChanged(Exception):
    """Raised if the table was dropped, recreated or given families after a write was prepared and before its
    transaction."""


class _ColumnAdded(Exception):
    """Raised if another process added a column after the table was loaded."""


class EmbeddedStore(DataStore):
    """The cells of one folder. Any number of stores, threads and processes may have the folder open."""

    capabilities = Capabilities(packs_commits=True, settled_reads=True)

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        create: bool = True,
        map_bytes: int = MAP_BYTES_DEFAULT,
        region_rows: int = REGION_ROWS_DEFAULT,
    ) -> None:
        self._environment = open_data(open_folder(folder, create=create), map_bytes=map_bytes)
        self._tables = Tables(self._environment)
        self._scans = Scans(self._environment, self._tables)
        self._regions = Regions(self._environment, self._tables, region_rows)
        self._decision = Decision(self._environment, Tables(self._environment))
        if self._environment.requests is None:
            self._environment.requests = CommitRequests(self._environment, self._decision)
        self._closed = False

    @property
    def environment(self) -> Environment:
        return self._environment

    @property
    def limits(self) -> StoreLimits:
        return LIMITS

    @property
    def _cells(self) -> Any:
        return self._environment.databases[CELLS]

    @property
    def _samples(self) -> Any:
        return self._environment.databases[SAMPLES]

    # Writing cells

    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        check_version(version)
        columns = _columns_of(rows)
        prepared = self._tables.known(table, columns)
        if prepared is None:
            prepared = self._environment.read(lambda transaction: self._tables.loaded(transaction, table, columns))
        check_writes(rows, prepared.families, LIMITS)
        for part in _parts([write for write in rows if write.cells]):
            self._write_again_if_changed(prepared, partial(self._write_part, version=version, part=part))

    def pack_commit(
        self,
        start_ts: int,
        branches: Sequence[int],
        changes: Sequence[TableChanges],
        *,
        claims_all: bool = False,
        claims_tables: bool = False,
        at_once: bool = False,
    ) -> bytes:
        """Pack a commit request and return it. A new column first gets its number, in a separate write. With `at_once`,
        return b"" if a column has none."""
        while True:
            tables, lacking = self._environment.read(self._packed, changes)
            if not lacking:
                return pack_request(start_ts, tables, branches, claims_tables=claims_tables, claims_all=claims_all)
            if at_once:
                return b""
            for name, columns in lacking:
                self._allocate(name, columns)

    def _packed(
        self, transaction: Transaction, changes: Sequence[TableChanges]
    ) -> tuple[list[bytes], list[tuple[str, Sequence[Column]]]]:
        """Return the packed changes, and for each table whose columns lack numbers its name and columns. If a table was
        dropped and created again since, the decision refuses the request."""
        tables: list[bytes] = []
        lacking: list[tuple[str, Sequence[Column]]] = []
        for each in changes:
            table = self._tables.loaded(transaction, each.name)
            rows = None
            if not each.claims and not each.free:
                rows = commits.packed_rows(each.rows, table.loaded.numbers, LIMITS.value_bytes_max)
            if rows is None:
                columns = each.columns()
                table = self._tables.loaded(transaction, each.name, columns)
                check_writes(each.row_writes(), table.families, LIMITS)
                if not table.numbers.keys() >= set(columns):
                    lacking.append((each.name, columns))
                    continue
                rows = pack_rows(table, each)
            tables.append(pack_table(table, each, rows))
        return tables, lacking

    def _write_again_if_changed(self, table: Table, write: Callable[[Table], None]) -> None:
        """Call `write` with the table as it was read. If the table has changed by the time of the write transaction,
        read it again and retry."""
        while True:
            try:
                return write(table)
            except _TableChanged:
                table = self._environment.read(partial(self._tables.loaded, name=table.name))

    def _write_part(self, table: Table, *, version: int, part: list[RowWrite]) -> None:
        """Write a part. It is encoded before the transaction if possible, to hold the writer lock only briefly."""
        columns = _columns_of(part)
        if all(column in table.numbers for column in columns):
            ready = _encoded(table, table.numbers, version, part)
            self._environment.write(lambda transaction: self._put_records(transaction, table, ready), records=len(part))
        else:
            self._environment.write(
                lambda transaction: self._put_records(
                    transaction,
                    table,
                    _encoded(table, self._tables.numbers(transaction, table, columns), version, part),
                ),
                records=len(part),
            )

    def _put_records(self, transaction: Transaction, table: Table, records: Iterable[tuple[bytes, bytes]]) -> None:
        self._check_unchanged(transaction, table)
        records = list(records)
        self._compare(transaction, table, records)
        cells, samples = self._cells, self._samples
        for key, value in records:
            if not transaction.put(key, value, overwrite=False, db=cells):
                self._merge(transaction, key, value)
            if is_sample(key):
                transaction.put(key[:-VERSION_BYTES], b"", db=samples)

    def _compare(self, transaction: Transaction, table: Table, records: Sequence[tuple[bytes, bytes]]) -> None:
        """L8: compare the rows of a branch with the newest records, in the transaction that writes them."""
        if records:
            self._decision.check_branch(transaction, table, key_version(records[0][0]), records)

    def _merge(self, transaction: Transaction, key: bytes, value: bytes) -> None:
        """Merge a later write of the same version into the stored record. The new cells replace those of the same
        columns."""
        stored = decode_record(key, transaction.get(key, db=self._cells))
        stored.cells.update(decode_record(key, value).cells)
        transaction.put(key, encode_record(key, stored), db=self._cells)

    def _check_unchanged(self, transaction: Transaction, table: Table) -> None:
        if self._tables.entry(transaction, table) != table.entry:
            raise _TableChanged

    def write_batch(self, table: str, version: int, batch: CellBatch) -> None:
        check_version(version)
        prepared = self._environment.read(lambda transaction: self._tables.loaded(transaction, table, batch.columns))
        batch = for_kernels(batch)
        check_batch(prepared, batch)
        if any(column not in prepared.numbers for column in batch.columns):
            self._allocate(table, batch.columns)
        for first, stop in batch_parts(batch):
            self._write_again_if_changed(
                prepared, partial(self._write_rows, version=version, batch=batch, first=first, stop=stop)
            )

    def _allocate(self, table: str, columns: Sequence[Column]) -> None:
        def allocate(transaction: Transaction) -> None:
            current = self._tables.table(transaction, table)
            self._tables.numbers(transaction, current, columns)

        self._environment.write(allocate)
        self._environment.read(lambda transaction: self._tables.loaded(transaction, table, columns))

    def _write_rows(self, table: Table, *, version: int, batch: CellBatch, first: int, stop: int) -> None:
        if any(column not in table.numbers for column in batch.columns):  # dropped and created again meanwhile
            self._allocate(table.name, batch.columns)
            raise _TableChanged
        records, samples = encoded_rows(table, version, batch, first, stop)
        self._environment.write(
            lambda transaction: self._put_sorted(transaction, table, records, samples), records=len(records)
        )

    def _put_sorted(
        self,
        transaction: Transaction,
        table: Table,
        records: list[tuple[bytes, bytes]],
        samples: list[tuple[bytes, bytes]],
    ) -> None:
        self._check_unchanged(transaction, table)
        self._compare(transaction, table, records)
        with transaction.cursor(self._cells) as cursor:
            if not cursor.last() or cursor.key() < records[0][0]:
                cursor.putmulti(records, append=True)
            elif not put_full(transaction, self._cells, records):
                _, added = cursor.putmulti(records, overwrite=False)
                if added != len(records):
                    self._put_records(transaction, table, records)
        if samples:
            with transaction.cursor(self._samples) as cursor:
                cursor.putmulti(samples)

    # Reading

    def read_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        columns: Sequence[Column] | None = None,
        *,
        bounds: ReadBounds | None = None,
    ) -> list[list[Cell]]:
        return self._environment.read(self._rows_of, table, rows, columns, bounds or _NO_BOUNDS)

    def _rows_of(
        self,
        transaction: Transaction,
        table: str,
        rows: Sequence[bytes],
        columns: Sequence[Column] | None,
        bounds: ReadBounds,
    ) -> list[list[Cell]]:
        current, _, _ = self._tables.asked_for(transaction, table, columns)
        cursor = transaction.cursor(self._environment.databases[CELLS])  # the cursor ends with the transaction
        try:
            wanted = None if columns is None else current.wanted(columns)
            return [_cells_of_row(cursor, current, row, wanted, bounds) for row in rows]
        except _ColumnAdded:
            current.load(transaction, self._tables.database)
            wanted = current.wanted(columns)
            return [_cells_of_row(cursor, current, row, wanted, bounds, is_fresh=True) for row in rows]

    def read_settled(
        self, table: str, rows: Sequence[bytes], columns: Sequence[Column] | None, bounds: ReadBounds, expired_to: int
    ) -> tuple[list[dict[Column, bytes] | None], int, int]:
        return self._environment.read(self._settled, table, rows, columns, bounds, expired_to)

    def _settled(
        self,
        transaction: Transaction,
        table: str,
        rows: Sequence[bytes],
        columns: Sequence[Column] | None,
        bounds: ReadBounds,
        expired_to: int,
    ) -> tuple[list[dict[Column, bytes] | None], int, int]:
        current, generation, watermark = self._tables.asked_for(transaction, table, columns)
        cursor = transaction.cursor(self._environment.databases[CELLS])
        selection = current.loaded.selection(columns)
        found = points.settled_rows(cursor, current.prefix, rows, selection, bounds, expired_to)
        return found, watermark, generation

    def scan(
        self,
        table: str,
        key_range: KeyRange,
        columns: Sequence[Column] | None = None,
        *,
        batch_rows_max: int = 10_000,
        bounds: ReadBounds | None = None,
    ) -> Iterator[CellBatch]:
        """Yield the range's cells in batches (`DataStore.scan`). A batch has at most `batch_rows_max` records, not
        counting further ones of its last row."""
        if batch_rows_max < 1:
            raise Misuse(f"batch_rows_max must be at least 1, not {batch_rows_max}")
        self._environment.read(lambda transaction: self._tables.loaded(transaction, table))
        return self._scans.batches(table, key_range, columns, batch_rows_max, bounds)

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        """Return the key at which about the last `rows` rows begin (`DataStore.start_of_last_rows`). It counts records,
        and every version of a row is one."""
        return self._environment.read(
            partial(self._scans.start_of_last, table=table, key_range=key_range, records=rows)
        )

    # Changes of existing records

    def write_shadow_cells(self, table: str, shadows: Sequence[ShadowWrite]) -> None:
        changes: dict[tuple[bytes, int], _Change] = {}
        for cell, commit_ts in shadows:
            change = changes.setdefault((cell.row, cell.version), _Change())
            change.commit_ts = commit_ts
            change.heal_columns.add(Column(cell.family, cell.qualifier))
        self._change_records(table, changes)

    def write_shadow_batches(self, table: str, version: int, batches: Sequence[CellBatch], commit_ts: int) -> None:
        """Write the shadow cells of cells that are given by their names; the work is done by `clean_batch`."""
        for batch in batches:
            versions = np.full(batch.records, version, dtype=np.int64)
            commits = np.full(batch.records, commit_ts, dtype=np.int64)
            records = np.arange(batch.records, dtype=np.int64)
            named = replace(batch, rec_version=versions, rec_commit=commits)
            self.clean_batch(table, named, records, np.empty(0, dtype=np.int64))

    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        if len(cells) > _FEW_RECORDS and len({cell.version for cell in cells}) == 1:
            self._delete_one_version(table, cells)
            return
        changes: dict[tuple[bytes, int], _Change] = {}
        for cell in cells:
            change = changes.setdefault((cell.row, cell.version), _Change())
            change.drops.add(Column(cell.family, cell.qualifier))
        self._change_records(table, changes)

    def _delete_one_version(self, table: str, cells: Sequence[CellVersion]) -> None:
        """Like `delete_versions`, for many cells of one transaction."""
        rows: dict[bytes, dict[Column, bytes | None]] = {}
        for row, family, qualifier, _ in cells:
            rows.setdefault(row, {})[Column(family, qualifier)] = None
        batch = batch_of_rows(rows)
        batch.rec_version[:] = cells[0].version
        self.clean_batch(table, batch, np.empty(0, dtype=np.int64), np.arange(batch.cells, dtype=np.int64))

    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        current = self._environment.read(lambda transaction: self._tables.loaded(transaction, table, batch.columns))
        if has_twins(batch):
            self._change_records(table, _changes_of(batch, heals, drops))
            return
        numbers = np.array([current.numbers.get(column, 0) for column in batch.columns], dtype=np.int64)
        ready = for_kernels(batch)
        for cleaning in cleanings(ready, heals, drops, current.prefix, numbers):
            self._environment.write(partial(cleaning.apply, database=self._cells), records=len(cleaning.keys))

    def _change_records(self, table: str, changes: dict[tuple[bytes, int], _Change]) -> None:
        """Change records. All changes of a row are made in one transaction."""
        columns = {column for change in changes.values() for column in (*change.heal_columns, *change.drops)}
        current = self._environment.read(lambda transaction: self._tables.loaded(transaction, table, columns))
        for part in _change_parts(sorted(changes.items())):
            work = partial(self._change_part, table=current, part=part)
            self._environment.write(work, records=len(part))

    def _change_part(
        self, transaction: Transaction, *, table: Table, part: list[tuple[tuple[bytes, int], _Change]]
    ) -> None:
        for (row, version), change in part:
            key = record_key(table.prefix, row, version)
            stored = transaction.get(key, db=self._cells)
            if stored is not None:
                self._change_record(transaction, table, key, stored, change)

    def _change_record(
        self, transaction: Transaction, table: Table, key: bytes, stored: bytes, change: _Change
    ) -> None:
        record = decode_record(key, stored)
        for column in change.drops:
            record.cells.pop(table.numbers.get(column, 0), None)
        if any(table.numbers.get(column, 0) in record.cells for column in change.heal_columns):
            record.commit_ts = change.commit_ts
        if not record.cells:
            transaction.delete(key, db=self._cells)
        elif (encoded := encode_record(key, record)) != stored:
            transaction.put(key, encoded, db=self._cells)

    # Tables and regions

    def regions(self, table: str) -> list[KeyRange]:
        return self._regions.regions(table)

    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        return self._regions.split_points(table, key_range, partitions)

    def even_parts(self, table: str, key_range: KeyRange, partitions: int) -> list[KeyRange]:
        """Divide the range into up to `partitions` ranges of about equal size, in key order, independent of the
        regions."""
        return self._regions.even_parts(table, key_range, partitions)

    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        """Check that the table exists. There is nothing to flush, because nothing is kept only in memory."""
        self._environment.read(lambda transaction: self._tables.loaded(transaction, table))

    def create_table(self, info: TableInfo, split_keys: Sequence[bytes] = ()) -> None:
        if not self._environment.read(lambda transaction: self._tables.has(transaction, info)):
            self._environment.write(lambda transaction: self._tables.create(transaction, info))

    def withdraw_table(self, table: str) -> object | None:
        return self._environment.read(lambda transaction: self._tables.number(transaction, table))

    def give_back_table(self, table: str) -> None:
        pass

    def drop_table(self, table: str, withdrawn: object | None = None) -> bool:
        """Drop the table at once. Then delete its records in parts, together with those that an interrupted drop
        left."""
        dropped = self._environment.write(lambda transaction: self._tables.drop(transaction, table, withdrawn))
        for prefix in self._environment.read(self._tables.dropped):
            while self._environment.write(partial(self._sweep, prefix=prefix), records=WRITE_RECORDS_MAX):
                pass
            self._environment.write(partial(self._tables.forget, prefix=prefix))
        return dropped

    def _sweep(self, transaction: Transaction, prefix: bytes) -> bool:
        """Delete a bounded number of records and samples. Return whether some may be left."""
        left = WRITE_RECORDS_MAX
        for database in (self._cells, self._samples):
            with transaction.cursor(database) as cursor:
                more = cursor.set_range(prefix)
                while more and left > 0 and cursor.key().startswith(prefix):
                    more = cursor.delete()
                    left -= 1
        return left < WRITE_RECORDS_MAX

    def record_count(self) -> int:
        """Return the current number of records of all tables: one for each row and version."""
        entries: int = self._environment.read(lambda transaction: transaction.stat(self._cells)["entries"])
        return entries

    def is_gone(self) -> bool:
        """Return whether the folder was removed, moved or replaced. From then on every call refuses."""
        return not self._environment.is_in_place

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._scans.pages.close()
            release(self._environment)


# Records out of LMDB


def _cells_of_row(
    cursor: Any,
    table: Table,
    row: bytes,
    wanted: frozenset[int] | None,
    bounds: ReadBounds,
    *,
    is_fresh: bool = False,
) -> list[Cell]:
    """Return the cells of the row's records, newest first. Reading ends at the last record that the reader needs, so
    older versions cost nothing, however many there are.

    Raises `_ColumnAdded` if a record has a column that the table does not know, unless the table was loaded just now.
    """
    loaded = table.loaded
    columns = loaded.columns
    known = len(columns)
    asked = loaded.asked if wanted is None else table.asked(wanted)
    prefix = row_prefix(table.prefix, row)
    below, committed_below, at_least = bounds.below, bounds.committed_below, bounds.at_least
    ended: frozenset[int] = _NO_NUMBERS
    passed: frozenset[bytes] = frozenset()
    """`first_cell` of records to skip: their only column needs no older version."""
    cells: list[Cell] = []
    if not cursor.set_range(prefix if below == TIMESTAMP_MAX else prefix + version_suffix(below - 1)):
        return cells
    for key, value in cursor.iternext():
        if key[:-VERSION_BYTES] != prefix:
            break
        if first_cell(value) in passed or (passed and holds_only(value, ended)):
            continue
        if (version := key_version(key)) < at_least:
            break
        commit_ts, values = decode_cells(key, value)
        for number, stored in values.items():
            if number > known and not is_fresh:
                raise _ColumnAdded
            if (wanted is None or number in wanted) and number not in ended:
                if not 0 < number <= known:
                    raise corrupt(key, NO_SUCH_COLUMN)
                family, qualifier = columns[number - 1]
                cells.append(Cell(row, family, qualifier, version, stored, commit_ts))
        if 0 < commit_ts < committed_below:
            if asked <= values.keys():
                break
            ended = ended.union(_ended_by(table, values, asked))
            if len(ended) == len(asked):
                break
            if not at_least:
                passed = frozenset(map(only_cell, filter((0x80).__gt__, ended)))
    return cells


_NO_NUMBERS: Final[frozenset[int]] = frozenset()


def _ended_by(table: Table, values: Mapping[int, bytes | None], asked: frozenset[int]) -> frozenset[int]:
    """Return the asked columns for which a reader that sees these values needs no older version."""
    ended = asked.intersection(values)
    if table.tombstones and not table.tombstones.keys().isdisjoint(values):
        hidden = {table.tombstones[number] for number in values if number in table.tombstones}
        ended = ended.union(number for number in asked if table.columns[number - 1].family in hidden)
    return ended


# Writes, checked and divided


def _encoded(
    table: Table, numbers: Mapping[Column, int], version: int, rows: Sequence[RowWrite]
) -> list[tuple[bytes, bytes]]:
    encoded = []
    for row, cells in rows:
        key = record_key(table.prefix, row, version)
        record = Record(0, {numbers[column]: value for column, value in cells})
        encoded.append((key, encode_record(key, record)))
    return sorted(encoded)


def _changes_of(
    batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]
) -> dict[tuple[bytes, int], _Change]:
    """Return the heals and drops, grouped by row and version."""
    changes: dict[tuple[bytes, int], _Change] = {}
    for drop in drops.tolist():
        name = batch.cell_version(drop)
        changes.setdefault((name.row, name.version), _Change()).drops.add(Column(name.family, name.qualifier))
    for record in heals.tolist():
        row = batch.row_key(batch.row_of(record))
        change = changes.setdefault((row, int(batch.rec_version[record])), _Change())
        change.commit_ts = int(batch.rec_commit[record])
        cells = batch.cell_col[int(batch.rec_cell[record]) : int(batch.rec_cell[record + 1])]
        change.heal_columns.update(batch.columns[column] for column in cells.tolist())
    return changes


def _columns_of(rows: Sequence[RowWrite]) -> list[Column]:
    """Return the columns, each once, in the order of their first cells. New columns get their numbers in this order."""
    return list(dict.fromkeys(column for write in rows for column, _ in write.cells))


def _parts(rows: list[RowWrite]) -> Iterator[list[RowWrite]]:
    """Divide rows into parts, each with a bounded number of records and bytes."""
    part: list[RowWrite] = []
    total = 0
    for row in rows:
        size = sum(len(value) for _, value in row.cells if value is not None)
        if part and (len(part) == WRITE_RECORDS_MAX or total + size > WRITE_BYTES_MAX):
            yield part
            part, total = [], 0
        part.append(row)
        total += size
    if part:
        yield part


def _change_parts(
    changes: list[tuple[tuple[bytes, int], _Change]],
) -> Iterator[list[tuple[tuple[bytes, int], _Change]]]:
    """Divide changes, which ascend by row, into parts with a bounded number of records. Changes of one row stay
    together."""
    part: list[tuple[tuple[bytes, int], _Change]] = []
    for change in changes:
        if len(part) >= WRITE_RECORDS_MAX and change[0][0] != part[-1][0][0]:
            yield part
            part = []
        part.append(change)
    if part:
        yield part
