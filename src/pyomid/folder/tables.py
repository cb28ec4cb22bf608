"""A folder's tables: numbers of tables and columns, which keep keys and records short, and the tables' regions.

    n name            → {"number", "families"} as JSON
    c number column   → length of the family (2 bytes), family, qualifier
    s number          → the region splits, as JSON
    d number          → a dropped table whose records may not all be gone yet
    #                 → the last number given to a table

A table's number is never reused, so the numbers of its columns may be cached for ever. Only numbers that a read
transaction read are cached, because a write transaction that allocates numbers may still be undone.

Regions are ranges whose borders never move, because region watermarks are recorded per region. Borders are chosen from
samples of the table's rows: one row in 512, chosen by its hash. A row is a sample for every writer or for none, so
writing the row again changes nothing. Samples of deleted rows stay; they only make a region look larger than it is.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Any, Final
from zlib import crc32

from pyomid.arrays import NDArray, np
from pyomid.errors import Corruption, Misuse, UnknownTable
from pyomid.folder.catalog import read_generation
from pyomid.folder.environment import Commit, Environment, Transaction
from pyomid.folder.folder_state import read_state
from pyomid.folder.layout import EPOCH, SAMPLES, TABLES
from pyomid.folder.native import points
from pyomid.folder.records import (
    TABLE_BYTES,
    VERSION_BYTES,
    key_row,
    range_bounds,
    table_prefix,
    version_suffix,
)
from pyomid.types import Column, KeyRange, TableInfo

COLUMNS_MAX: Final = 65_535
"""The most columns of a table, enough for every schema. A program that uses qualifiers as data should put the data into
row keys."""
_COLUMN_BYTES: Final = 4
_SELECTIONS_REMEMBERED_MAX: Final = 1_000
SAMPLE_EVERY: Final = 512
SAMPLE_MASK: Final = SAMPLE_EVERY - 1
REGION_ROWS_DEFAULT: Final = 1 << 16
_REGIONS_MAX: Final = 256
"""The most regions of a table's first split."""


@dataclass(frozen=True, slots=True)
class LoadedColumns:
    """The columns loaded at one moment. Immutable, so a reader, or a thread interrupted while it loads, sees the
    columns of one moment, never a mixture."""

    columns: tuple[Column, ...] = ()
    """The column with number i is at index i − 1."""
    numbers: Mapping[Column, int] = field(default_factory=dict)
    tombstones: Mapping[int, bytes] = field(default_factory=dict)
    """The numbers of family tombstones → their families."""
    asked: frozenset[int] = frozenset()
    """The numbers of all other columns."""
    _selections: dict[tuple[Column, ...] | None, points.Selection] = field(default_factory=dict)
    """Cached results of `selection`. Any thread may add one."""

    def wanted(self, columns: Sequence[Column]) -> frozenset[int]:
        """Return the numbers of the columns that a read needs: the given ones, all columns of a family that is given by
        an empty qualifier, and the family tombstones of both."""
        families = {column.family for column in columns}
        found = {number for number, family in self.tombstones.items() if family in families}
        found.update(number for column in columns if (number := self.numbers.get(column)) is not None)
        whole = {column.family for column in columns if not column.qualifier}
        if whole:
            found.update(number for column, number in self.numbers.items() if column.family in whole)
        return frozenset(found)

    def selection(self, columns: Sequence[Column] | None) -> points.Selection:
        """Return, for each column, whether a read of `columns` wants it, or needs it as a family tombstone."""
        key = None if columns is None else tuple(columns)
        found = self._selections.get(key)
        if found is None:
            needed = self.asked | self.tombstones.keys() if columns is None else self.wanted(columns)
            kinds = bytearray(len(self.columns))
            for number in needed:
                kinds[number - 1] = points.TOMBSTONE_OF_WANTED if number in self.tombstones else points.WANTED
            if len(self._selections) >= _SELECTIONS_REMEMBERED_MAX:
                self._selections.clear()
            found = self._selections[key] = points.Selection(bytes(kinds), self.columns)
        return found

    def with_added(self, columns: Sequence[Column]) -> LoadedColumns:
        """Return these columns together with further ones."""
        added = {column: number for number, column in enumerate(columns, start=len(self.columns) + 1)}
        tombstones = {number: column.family for column, number in added.items() if not column.qualifier}
        return LoadedColumns(
            (*self.columns, *columns),
            {**self.numbers, **added},
            {**self.tombstones, **tombstones},
            self.asked.union(added.values()) - tombstones.keys(),
        )


class Table:
    """The number, families and columns of one table, as far as this process has read them."""

    def __init__(self, name: str, entry: bytes) -> None:
        content = json.loads(entry)
        self.name = name
        self.entry = entry
        self.number: int = content["number"]
        self.prefix = table_prefix(self.number)
        self.families = frozenset(bytes.fromhex(family) for family in content["families"])
        self.take(LoadedColumns())
        self._loading = threading.RLock()
        """Serializes loads, so that a thread with an older transaction removes no columns."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.loaded.columns

    @property
    def numbers(self) -> Mapping[Column, int]:
        return self.loaded.numbers

    @property
    def tombstones(self) -> Mapping[int, bytes]:
        return self.loaded.tombstones

    def take(self, loaded: LoadedColumns) -> None:
        self.loaded = loaded
        self._next_column_key = self.column_key(len(loaded.columns) + 1)

    def load(self, transaction: Transaction, database: Any) -> None:
        """Load the columns that were added since the last load. Call it in a read transaction."""
        with self._loading:
            added = list(self.added(transaction, database, self.loaded))
            if added:
                self.take(self.loaded.with_added(added))

    def added(self, transaction: Transaction, database: Any, loaded: LoadedColumns) -> Iterator[Column]:
        """Yield the columns that follow the loaded ones, in the order of their numbers."""
        prefix = b"c" + self.prefix
        with transaction.cursor(database) as cursor:
            found = cursor.set_range(prefix + (len(loaded.columns) + 1).to_bytes(_COLUMN_BYTES))
            while found and cursor.key().startswith(prefix):
                yield _column(cursor.value())
                found = cursor.next()

    def load_new(self, transaction: Transaction, database: Any) -> None:
        """Load the columns that another process has added, if there are any."""
        if transaction.get(self._next_column_key, db=database) is not None:
            self.load(transaction, database)

    def asked(self, wanted: frozenset[int] | None) -> frozenset[int]:
        """Return the numbers of the columns that a read asks for, without family tombstones."""
        return self.loaded.asked if wanted is None else wanted - self.tombstones.keys()

    def column_key(self, number: int) -> bytes:
        return b"c" + self.prefix + number.to_bytes(_COLUMN_BYTES)

    def wanted(self, columns: Sequence[Column] | None) -> frozenset[int] | None:
        """Return the numbers of the columns that a read needs, or None if it needs all. See `LoadedColumns.wanted`."""
        return None if columns is None else self.loaded.wanted(columns)

    def indices(self, columns: Sequence[Column] | None) -> tuple[list[Column], NDArray[np.int32]]:
        """Return the columns of a batch, and for each column number its index among them, or −1 if the column is not
        wanted."""
        wanted = self.wanted(columns)
        known = self.columns
        if wanted is None:
            return list(known), np.arange(-1, len(known), dtype=np.int32)
        column_of = np.full(len(known) + 1, -1, dtype=np.int32)
        chosen = sorted(number for number in wanted if number <= len(known))
        column_of[chosen] = np.arange(len(chosen), dtype=np.int32)
        return [known[number - 1] for number in chosen], column_of


class Tables:
    """The tables of one environment. Call every method inside a transaction."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._known: dict[str, Table] = {}
        self._seen: dict[str, tuple[Commit, bool, tuple[Table, int, int]]] = {}
        """name → (commit, whether all columns of the table are loaded, what `asked_for` returns in that commit)."""

    @property
    def database(self) -> Any:
        return self._environment.databases[TABLES]

    def table(self, transaction: Transaction, name: str) -> Table:
        """Return the table as this transaction sees it. Raises `UnknownTable` if there is none."""
        entry = transaction.get(_name_key(name), db=self._environment.databases[TABLES])
        if entry is None:
            raise UnknownTable(f"there is no table {name!r} in this store", table=name)
        known = self._known.get(name)
        if known is not None and known.entry == entry:
            return known
        table = Table(name, entry)
        if known is not None and known.number == table.number:
            table.take(known.loaded)
        return table

    def entry(self, transaction: Transaction, table: Table) -> bytes | None:
        """Return the current entry under the table's name. If it differs from `table.entry`, the table has changed."""
        return self.entry_of(transaction, table.name)

    def entry_of(self, transaction: Transaction, name: str) -> bytes | None:
        entry: bytes | None = transaction.get(_name_key(name), db=self.database)
        return entry

    def is_there(self, transaction: Transaction, table: Table) -> bool:
        """Return whether the table has not been dropped. Families may have been added."""
        return self.entry(transaction, table) == table.entry or self.number(transaction, table.name) == table.number

    def loaded(self, transaction: Transaction, name: str, columns: Collection[Column] = ()) -> Table:
        """Return the table in a read transaction, with those of these columns loaded that exist, and cache it."""
        table = self.table(transaction, name)
        if self._known.get(name) is not table or (columns and any(each not in table.numbers for each in columns)):
            table.load(transaction, self.database)
            self._known[name] = table
        return table

    def known(self, name: str, columns: Collection[Column]) -> Table | None:
        """Return the table as `loaded` last saw it, or None if that lacks one of these columns. Meant for a write,
        which then checks that the table has not changed."""
        table = self._known.get(name)
        return table if table is not None and all(column in table.numbers for column in columns) else None

    def asked_for(
        self, transaction: Transaction, name: str, columns: Sequence[Column] | None
    ) -> tuple[Table, int, int]:
        """Return, in a read transaction, the table, its generation (`Catalog.generation`), and W. The table has every
        column loaded that a reader of `columns` needs, even those that another process added. The result is cached
        until the next commit."""
        commit = self._environment.data_file, transaction.id()
        seen = self._seen.get(name)
        if seen is not None and seen[0] == commit and (seen[1] or _has(seen[2][0], columns)):
            return seen[2]
        table = self.loaded(transaction, name, () if columns is None else columns)
        is_whole = columns is None or not all(column.qualifier for column in columns)
        if is_whole:
            table.load_new(transaction, self.database)
        generation = read_generation(self._environment, transaction, name)
        watermark = read_state(transaction, self._environment.databases[EPOCH]).watermark
        found = table, generation, watermark
        self._seen[name] = commit, is_whole, found
        return found

    def numbers(self, transaction: Transaction, table: Table, columns: Iterable[Column]) -> Mapping[Column, int]:
        """Return the columns' numbers. Numbers of new columns are allocated in this write transaction, and count if it
        commits."""
        wanted, loaded = list(columns), table.loaded
        if all(column in loaded.numbers for column in wanted):
            return loaded.numbers
        numbers = dict(loaded.numbers)
        for column in table.added(transaction, self.database, loaded):
            numbers[column] = len(numbers) + 1
        for column in wanted:
            if column not in numbers:
                self._allocate(transaction, table, numbers, column)
        return numbers

    def _allocate(self, transaction: Transaction, table: Table, numbers: dict[Column, int], column: Column) -> None:
        number = len(numbers) + 1
        if number > COLUMNS_MAX:
            raise Misuse(
                f"column {column} would be column number {number} of the table, but a table in a folder has at most "
                f"{COLUMNS_MAX} different columns; put varying qualifiers into the row key",
                limit=COLUMNS_MAX,
            )
        content = len(column.family).to_bytes(2) + column.family + column.qualifier
        if not transaction.put(table.column_key(number), content, overwrite=False, db=self.database):
            raise Corruption(
                f"column number {number} of table {table.name!r} already belongs to another column; nothing was written"
            )
        numbers[column] = number

    def has(self, transaction: Transaction, info: TableInfo) -> bool:
        entry = transaction.get(_name_key(info.name), db=self.database)
        return entry is not None and Table(info.name, entry).families.issuperset(info.families)

    def create(self, transaction: Transaction, info: TableInfo) -> None:
        entry = transaction.get(_name_key(info.name), db=self.database)
        families = set(info.families)
        if entry is None:
            number = int.from_bytes(transaction.get(b"#", b"", db=self.database)) + 1
            transaction.put(b"#", number.to_bytes(TABLE_BYTES), db=self.database)
        else:
            number = Table(info.name, entry).number
            families |= Table(info.name, entry).families
        content = {"number": number, "families": sorted(family.hex() for family in families)}
        transaction.put(_name_key(info.name), json.dumps(content).encode(), db=self.database)

    def number(self, transaction: Transaction, name: str) -> int | None:
        """Return the table's number, or None if there is no such table."""
        entry = transaction.get(_name_key(name), db=self.database)
        return None if entry is None else Table(name, entry).number

    def drop(self, transaction: Transaction, name: str, wanted: object | None = None) -> bool:
        """Remove the name at once; `dropped` then lists the records to delete. Returns False if the name has another
        number than `wanted`."""
        number = self.number(transaction, name)
        if number is None:
            return True
        if wanted is not None and wanted != number:
            return False
        transaction.delete(_name_key(name), db=self.database)
        transaction.put(b"d" + table_prefix(number), b"", db=self.database)
        return True

    def dropped(self, transaction: Transaction) -> list[bytes]:
        """Return the key prefixes of dropped tables whose records may not all be gone."""
        found = []
        with transaction.cursor(self.database) as cursor:
            more = cursor.set_range(b"d")
            while more and cursor.key().startswith(b"d"):
                found.append(cursor.key()[1:])
                more = cursor.next()
        return found

    def forget(self, transaction: Transaction, prefix: bytes) -> None:
        """Remove the last entries of a dropped table. Call this after its records are deleted."""
        with transaction.cursor(self.database) as cursor:
            more = cursor.set_range(b"c" + prefix)
            while more and cursor.key().startswith(b"c" + prefix):
                more = cursor.delete()
        transaction.delete(b"s" + prefix, db=self.database)
        transaction.delete(b"d" + prefix, db=self.database)

    def splits(self, transaction: Transaction, table: Table) -> list[bytes]:
        stored = transaction.get(b"s" + table.prefix, db=self.database)
        return [] if stored is None else [bytes.fromhex(key) for key in json.loads(stored)]

    def put_splits(self, transaction: Transaction, table: Table, splits: list[bytes]) -> None:
        content = json.dumps([key.hex() for key in splits]).encode()
        transaction.put(b"s" + table.prefix, content, db=self.database)


def _has(table: Table, columns: Sequence[Column] | None) -> bool:
    """Return whether all of these columns are given with a qualifier, and are loaded."""
    return columns is not None and all(column.qualifier and column in table.numbers for column in columns)


@lru_cache(maxsize=1000)
def _name_key(name: str) -> bytes:
    encoded = name.encode()
    if not 0 < len(encoded) <= 255:
        raise Misuse(f"table name {name!r} must have 1 … 255 bytes, but has {len(encoded)}")
    return b"n" + encoded


def _column(content: bytes) -> Column:
    family = 2 + int.from_bytes(content[:2])
    return Column(content[2:family], content[family:])


# Regions


def is_sample(key: bytes) -> bool:
    """Return whether the row of this record's key is a sample."""
    return not crc32(key[:-VERSION_BYTES]) & SAMPLE_MASK


class Regions:
    """The regions of one folder's tables. A region with twice `region_rows` rows is split."""

    def __init__(self, environment: Environment, tables: Tables, region_rows: int) -> None:
        self._environment = environment
        self._tables = tables
        self._region_rows = region_rows

    def regions(self, table: str) -> list[KeyRange]:
        """Return the table's regions, after splitting those that have grown too large."""

        def read(transaction: Transaction) -> tuple[list[bytes], list[bytes]]:
            current = self._tables.loaded(transaction, table)
            splits = self._tables.splits(transaction, current)
            return splits, grown_splits(splits, self._samples(transaction, current, KeyRange()), self._region_rows)

        splits, grown = self._environment.read(read)
        if grown != splits:
            splits = self._split_at(table, grown)
        return _ranges([b"", *splits, None])

    def _split_at(self, table: str, keys: Sequence[bytes]) -> list[bytes]:
        """Make a region begin at each of `keys`, and return all borders."""

        def add(transaction: Transaction) -> list[bytes]:
            current = self._tables.table(transaction, table)
            together = sorted({*self._tables.splits(transaction, current), *keys} - {b""})
            self._tables.put_splits(transaction, current, together)
            return together

        return self._environment.write(add)

    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        """Return samples at which to cut the range into `partitions`. A range of a few hundred rows is not cut."""

        def read(transaction: Transaction) -> list[bytes]:
            return self._samples(transaction, self._tables.loaded(transaction, table), key_range)

        return [cut for cut in cuts(self._environment.read(read), partitions) if cut > key_range.start]

    def even_parts(self, table: str, key_range: KeyRange, partitions: int) -> list[KeyRange]:
        """Split the range into up to `partitions` ranges of about equal size, in key order, independent of the
        regions."""
        return _ranges([key_range.start, *self.split_points(table, key_range, partitions), key_range.stop])

    def _samples(self, transaction: Transaction, table: Table, key_range: KeyRange) -> list[bytes]:
        """Return the rows of the range that are samples, in ascending order."""
        start, stop = range_bounds(table.prefix, key_range)
        with transaction.cursor(self._environment.databases[SAMPLES]) as cursor:
            if not cursor.set_range(start):
                return []
            keys = takewhile(lambda key: key < stop, cursor.iternext(values=False))
            return [key_row(key + version_suffix(0)) for key in keys]


def _ranges(borders: list[bytes | None]) -> list[KeyRange]:
    return [KeyRange(start or b"", stop) for start, stop in pairwise(borders)]


def grown_splits(splits: Sequence[bytes], samples: Sequence[bytes], region_rows: int) -> list[bytes]:
    """Return `splits`, with each region of at least twice `region_rows` split into equal parts. `samples` must
    ascend."""
    per_region = max(region_rows // SAMPLE_EVERY, len(samples) // _REGIONS_MAX, 1)
    borders = [0, *(bisect_left(samples, split) for split in splits), len(samples)]
    grown = list(splits)
    for first, stop in pairwise(borders):
        parts = (stop - first) // per_region
        grown += [samples[first + (stop - first) * part // parts] for part in range(1, parts)]
    return sorted(set(grown) - {b""})


def cuts(samples: Sequence[bytes], partitions: int) -> list[bytes]:
    """Return up to `partitions` − 1 of the ascending samples, evenly spaced."""
    return sorted({samples[len(samples) * number // partitions] for number in range(1, partitions)}) if samples else []
