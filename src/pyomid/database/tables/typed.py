"""Typed tables: rows are dicts, dataclasses, NamedTuples, TypedDicts or JSON, according to the table's schema in the
catalog.

    accounts = tx.table("accounts", codec=Account)          # a dataclass or TypedDict; dict; "json"
    accounts.put(Account(id=17, owner="alice", balance=Decimal("1.50")))
    accounts.get(17)                                        # an Account; None if there is no such row

Rows have the types of the schema: Python reads Spark's rows as Python values, and Spark reads Python's rows. Typed
tables use the routines of the byte table, on rows that `rows.rows` encodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pyomid.coroutines import Routine
from pyomid.database.index_tables import raise_if_index_dropped
from pyomid.database.tables.arrow import ArrowScan
from pyomid.database.tables.indexes import IndexRows, readable_index
from pyomid.database.tables.row_classes import RowClass, row_class
from pyomid.database.tables.scans import DescendingScan, RowScan, iterated
from pyomid.database.tables.table import BlockingTable, TableCore, check_step, columns_of, unexpected
from pyomid.database.validation import check_limit, check_list
from pyomid.database.writes.own_cells import Row
from pyomid.database.writes.shown_rows import full_name, named
from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.observe import Kind
from pyomid.rows.column_types import python_type
from pyomid.rows.rows import RowCodec
from pyomid.types import Column, KeyRange, TableInfo, prefix_range

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.database.transaction import TransactionCore

RowT = TypeVar("RowT")

JSON: Final = "json"


class Shape(Generic[RowT]):
    """Converts between a program's row objects and dicts."""

    def __init__(self, codec: object, rows: RowCodec, table: str) -> None:
        """Raise `Misuse` if the table lacks a column of the class, or the class lacks a key column."""
        found: RowClass | None = None
        if codec == JSON:
            self._made: Callable[[dict[str, Any]], Any] = rows.to_json
            self._taken: Callable[[Any], Mapping[str, Any]] = lambda row: rows.from_json(_mapping(row))
        elif codec is dict:
            self._made, self._taken = dict, _mapping
        elif isinstance(codec, type) and (found := row_class(codec)) is not None:
            self._made, self._taken = found.made, found.taken
        else:
            raise MisuseType(f'codec {codec!r} is not a dataclass, NamedTuple, TypedDict, dict or "json"', value=codec)
        self.names = None if found is None else found.names
        if found is not None:
            _check_columns(table, found, codec, rows)

    def made(self, row: dict[str, Any]) -> RowT:
        made: RowT = self._made(row)
        return made

    def taken(self, row: object) -> Mapping[str, Any]:
        return self._taken(row)


def _mapping(row: object) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise MisuseType(f"row {row!r} is {type(row).__name__}, not a dict of column to value", value=row)
    return row


def _check_columns(table: str, found: RowClass, codec: Any, rows: RowCodec) -> None:
    for name in found.names:
        if name not in rows.types:
            known = ", ".join(rows.types)
            raise Misuse(
                f"table {table!r} has no column {name!r}, which class {codec.__name__} declares; the table's columns "
                f"are {known}",
                column=name,
            )
    for name in rows.layout.names:
        if name not in found.names:
            raise Misuse(f"table {table!r}: class {codec.__name__} lacks the key column {name!r}", column=name)
    for name, annotated in found.classes.items():
        column = rows.types[name]
        stored = python_type(column)
        if stored is not None and stored is not annotated:
            raise Misuse(
                f"class {codec.__name__}: {name!r} is annotated as {annotated.__name__}, but the column of table "
                f"{table!r} is {column}: annotate it as {stored.__name__}",
                column=name,
            )


class Codec(Generic[RowT]):
    """Converts between row objects and stored rows of one table, without a transaction. Returned by `Database.codec`.

        codec = db.codec("accounts", Account)
        key, cells = codec.encode(Account("alice", 100))
        codec.decode(key, tx.table("accounts").get(key))

    A codec keeps the schema that the table had when the codec was created. After a change of the table's columns, get a
    new codec."""

    def __init__(self, info: TableInfo, codec: object) -> None:
        self._info = info
        self._rows = RowCodec(info)
        self._shape: Shape[RowT] = Shape(codec, self._rows, info.name)

    def key(self, key: Any) -> bytes:
        """Return the row key as bytes. `key` is the value of the key column, or a tuple if the key has several
        columns."""
        return self._rows.key(key)

    def prefix(self, values: Any) -> bytes:
        """Return the common prefix of the row keys whose first key columns have these values."""
        return self._rows.prefix(values)

    def key_of(self, stored: bytes) -> Any:
        """Return the value of the key column that a stored row key encodes, or a tuple if the key has several columns.
        Raises `Corruption` if the row key is malformed."""
        return self._rows.key_of(self._stored(stored))

    def encode(self, row: RowT) -> tuple[bytes, dict[bytes, bytes | None]]:
        """Return the row key, and a dict that maps b"family:qualifier" to the stored value, or to None if the row has
        no value for that column."""
        key, cells = self._rows.encode(self._shape.taken(row))
        return key, {full_name(column): value for column, value in cells.items()}

    def decode(self, key: bytes, row: Mapping[bytes, bytes] | None) -> RowT | None:
        """Return the row object for a stored row, in the form that `Table.get` returns; None if the row does not
        exist."""
        return self._shape.made(self._rows.decode(self._stored(key), columns_of(row))) if row else None

    def _stored(self, key: object) -> bytes:
        if not isinstance(key, bytes):
            raise MisuseType(
                f"table {self._info.name!r}: row key {key!r} is {type(key).__name__}, not bytes: encode it with `key`",
                value=key,
            )
        return key

    def __repr__(self) -> str:
        return f"<Codec of table {self._info.name!r} ({', '.join(self._rows.types)})>"


@dataclasses.dataclass(frozen=True, slots=True)
class TypedPage(Generic[RowT]):
    """A page of a scan's rows, returned by `TypedTable.page`. `next` is the token of the next page; None if no row
    follows this page."""

    rows: tuple[RowT, ...]
    next: str | None

    def _repr_html_(self) -> str:
        from pyomid.database.tables.html import fields_of, rows_html

        return rows_html(map(fields_of, self.rows))


class IndexScan:
    """A scan of the rows that an index refers to, batch by batch. It shows the transaction's writes to both tables as
    they were when the scan was created (C15)."""

    def __init__(
        self,
        transaction: TransactionCore,
        table: TableCore,
        index: IndexRows,
        prefix: bytes,
        limit: int | None,
        *,
        reverse: bool,
    ) -> None:
        self._transaction = transaction
        self._table = table
        self._index = index
        self._limit = limit
        self._kind = DescendingScan if reverse else RowScan
        self._entries_read = transaction.open_read(index.info.table, prefix_range(prefix))
        self._rows_read = transaction.open_read(table.name, KeyRange())
        self._scan: RowScan | None = None
        self._entries: list[tuple[bytes, dict[bytes, bytes]]] | None = None
        """Entries whose rows were not returned yet, because reading the rows failed."""

    def next(self) -> Routine[Iterator[tuple[bytes, dict[bytes, bytes]]] | None]:
        """Return the next rows, like `RowScan.next`."""
        return self._transaction.observed(Kind.SCAN, self._table.name, self._next())

    async def _next(self) -> Iterator[tuple[bytes, dict[bytes, bytes]]] | None:
        try:
            if self._scan is None:
                self._scan = await self._begun_scan()
            if self._entries is None:
                self._entries = await self._scan.read()
        except BaseException as error:
            raise_if_index_dropped(error)
            raise
        if self._entries is None:
            self._rows_read.end()
            return None
        keys = [self._index.row_of(entry) for entry, _ in self._entries]
        rows = await self._table.read(keys, None, read=self._rows_read)
        self._rows_read.show_rows(keys)
        for key, row in zip(keys, rows, strict=True):
            if not row:
                raise Corruption(f"index {self._index.info.name!r} has an entry for row {key!r}, which does not exist")
        self._entries = None
        return self._shown(keys, rows)

    def _shown(self, keys: Sequence[bytes], rows: Sequence[Row]) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """Yield rows while the transaction may still read."""
        for key, row in zip(keys, rows, strict=True):
            self._transaction.check_open()
            yield key, named(row)

    async def _begun_scan(self) -> RowScan:
        entries = await self._transaction.table(self._index.info.table)
        read = self._entries_read
        return self._kind(self._transaction, entries.info, read.key_range, None, self._limit, read)


class TypedCore(Generic[RowT]):
    """A typed table in a transaction, for both front ends."""

    def __init__(self, table: TableCore, codec: object) -> None:
        self._table = table
        self.transaction: Final = table.transaction
        self._rows = RowCodec(table.info)
        self._shape: Shape[RowT] = Shape(codec, self._rows, table.name)

    @property
    def info(self) -> TableInfo:
        return self._table.info

    @property
    def name(self) -> str:
        return self._table.name

    def delete(self, keys: Iterable[Any]) -> Routine[None]:
        return self._table.delete([self._rows.key(key) for key in check_list("keys", keys, "keys")], None)

    async def claim(self, keys: Iterable[Any], columns: Iterable[str] | None) -> None:
        stored = [self._table.checked_key(self._rows.key(key)) for key in check_list("keys", keys, "keys")]
        if columns is None:
            places = self._rows.all_cells
        else:
            names = check_list("columns", columns, "column names")
            places = tuple(self._rows.expected(dict.fromkeys(names)))
        await self._table.claim_cells(stored, places)

    def begin_scan(self, start: Any, stop: Any, prefix: Any, limit: int | None, *, reverse: bool) -> RowScan:
        """Return a scan. The bounds are keys, or values of the first key columns."""
        return self._table.begin_scan(*self._bounds(start, stop, prefix), None, limit, reverse=reverse)

    def begin_lookup(self, index: str, values: Any, limit: int | None, *, reverse: bool) -> IndexScan:
        """Return a scan of the rows with these values in an index."""
        self.transaction.check_read()
        rows = readable_index(self.info, index, self.transaction.start_ts)
        prefix = rows.prefix(values)
        return IndexScan(self.transaction, self._table, rows, prefix, check_limit(limit), reverse=reverse)

    async def page(
        self, start: Any, stop: Any, prefix: Any, limit: int, *, reverse: bool, after: str | None
    ) -> TypedPage[RowT]:
        low, high, within = self._bounds(start, stop, prefix)
        page = await self._table.page(low, high, within, None, limit, reverse=reverse, after=after)
        return TypedPage(tuple(self.shown(key, row) for key, row in page.rows), page.next)

    def arrow_scan(self, start: Any, stop: Any, prefix: Any, columns: Sequence[str] | None) -> Routine[ArrowScan]:
        wanted = self._shape.names if columns is None else columns
        return self._table.arrow_scan(*self._bounds(start, stop, prefix), wanted)

    def shown(self, key: bytes, row: Mapping[bytes, bytes]) -> RowT:
        """Return a row of a scan as the program's type."""
        return self._made(key, columns_of(row))

    def _bounds(self, start: Any, stop: Any, prefix: Any) -> tuple[bytes, bytes | None, bytes | None]:
        low = b"" if start is None else self._rows.prefix(start)
        high, within = (None if bound is None else self._rows.prefix(bound) for bound in (stop, prefix))
        return low, high, within

    def _made(self, key: bytes, cells: Mapping[Column, bytes]) -> RowT:
        return self._shape.made(self._rows.decode(key, cells))

    async def get(self, key: Any, *, for_update: bool) -> RowT | None:
        stored = self._table.checked_key(self._rows.key(key))
        (cells,) = await self._read([stored], for_update=for_update)
        return self._made(stored, cells) if cells else None

    async def rows(self, keys: Iterable[Any], *, for_update: bool) -> dict[Any, RowT | None]:
        asked = list(dict.fromkeys(check_list("keys", keys, "keys")))
        stored = [self._table.checked_key(self._rows.key(key)) for key in asked]
        found = await self._read(stored, for_update=for_update)
        pairs = zip(asked, stored, found, strict=True)
        return {key: self._made(row, cells) if cells else None for key, row, cells in pairs}

    async def _read(self, keys: Sequence[bytes], *, for_update: bool) -> list[dict[Column, bytes]]:
        """Return whole rows. `for_update` also claims every cell that can make a row exist."""
        found = await self._table.read(keys, None)
        if for_update:
            await self._table.claim_cells(keys, self._rows.all_cells)
        return found

    async def put_indexed(self, row: RowT, expect: Mapping[str, Any] | None, *, conflict: bool) -> None:
        self.transaction.check_write()
        key, cells = self._rows.encode(self._shape.taken(row))
        checked = self._table.checked_cells(key, cells)
        if expect is not None:
            if not isinstance(expect, Mapping) or not expect:
                raise MisuseType(f"expect {expect!r} is not a mapping of column to value", value=expect)
            expected = self._rows.expected(expect)
            (found,) = await self._table.read([key], list(expected))
            await self._table.claim_cells([key], tuple(expected))
            for (name, value), (column, wanted) in zip(expect.items(), expected.items(), strict=True):
                stored = found.get(column)
                if (None if stored is None else self._rows.as_now(column, stored)) != wanted:
                    raise unexpected(self.info, key, name, value, self._rows.decode(key, found)[name])
        await self._table.buffer(key, checked, conflict=conflict)

    async def increment(self, key: Any, column: str, by: int) -> int:
        self.transaction.check_write()
        stored, place = self._table.checked_key(self._rows.key(key)), self._rows.counter(column)
        (found,) = await self._table.read([stored], [place])
        total: int = (self._rows.decode(stored, found)[column] or 0) + check_step(by)
        await self._table.buffer(stored, {place: self._rows.value(column, total)})
        return total

    async def put_if_absent(self, row: RowT) -> bool:
        self.transaction.check_write()
        key, cells = self._rows.encode(self._shape.taken(row))
        checked = self._table.checked_cells(key, cells)
        (found,) = await self._read([key], for_update=True)
        if found:
            return False
        await self._table.buffer(key, checked)
        return True


class TypedTable(BlockingTable[TypedCore[RowT]], Generic[RowT]):
    """A typed table as a transaction sees it: the transaction's snapshot and its own writes. Returned by
    `Transaction.table` with a codec."""

    def get(self, key: Any, *, for_update: bool = False) -> RowT | None:
        """Return the row with this key, or None if the row does not exist. If the key has several columns, `key` is a
        tuple.

        With `for_update`, the call also claims the row, whether the row exists or not (see `Transaction.claim`).
        """
        return self._run(self._table.get(key, for_update=for_update))

    def rows(self, keys: Iterable[Any], *, for_update: bool = False) -> dict[Any, RowT | None]:
        """Return a dict that maps each key to the key's row, or to None if the row does not exist. The dict keeps the
        order of `keys`. The call reads all keys in one request."""
        return self._run(self._table.rows(keys, for_update=for_update))

    def put(self, row: RowT, *, expect: Mapping[str, Any] | None = None, conflict: bool = True) -> None:
        """Set columns of a row: every column of the class, or, for a dict, only the columns that the dict names. The
        value None removes the stored value. If a value does not fit its column, the call raises `MisuseType`, which
        names the column. `expect` (with the schema's column names) and `conflict` work as in `Table.put`."""
        return self._run(self._table.put_indexed(row, expect, conflict=conflict))

    def put_if_absent(self, row: RowT) -> bool:
        """Put the row if there is no row with its key. Return True if the row was put."""
        return self._run(self._table.put_if_absent(row))

    def delete(self, key: Any) -> None:
        """Delete the row with this key."""
        return self._run(self._table.delete([key]))

    def delete_rows(self, keys: Iterable[Any]) -> None:
        """Delete the rows with these keys. The call first reads all of these rows in one request."""
        return self._run(self._table.delete(keys))

    def claim(self, keys: Iterable[Any], columns: Iterable[str] | None = None) -> None:
        """Claim rows, or value columns of rows, like `Transaction.claim`: the commit checks them as if they were
        written. The rows need not exist. The call reads and writes nothing."""
        return self._run(self._table.claim(keys, columns))

    def increment(self, key: Any, column: str, by: int = 1) -> int:
        """Add `by` to an integer column and return the sum. A column without a value counts as 0. Raises `MisuseType`
        if the sum does not fit the column's type. Of two overlapping transactions that increment the same column of a
        row, one aborts."""
        return self._run(self._table.increment(key, column, by))

    def scan(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[RowT]:
        """Iterate over rows in key order, from `start` (inclusive) to `stop` (exclusive). The scan fetches rows in
        batches. `start` and `stop` are keys, or values of the first key columns; `prefix` gives the values of the first
        key columns."""
        return self._rows_of(self._table.begin_scan(start, stop, prefix, limit, reverse=reverse))

    def lookup(self, index: str, values: Any, *, limit: int | None = None, reverse: bool = False) -> Iterator[RowT]:
        """Iterate over the rows that have these `values` in the indexed columns (see `Database.create_index`). `values`
        is the value of the index's first column, or a tuple of the values of the index's first columns. The rows are
        sorted by the index's other columns, then by row key."""
        return self._rows_of(self._table.begin_lookup(index, values, limit, reverse=reverse))

    def page(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int = 100,
        reverse: bool = False,
        after: str | None = None,
    ) -> TypedPage[RowT]:
        """Return up to `limit` rows of a scan with these arguments. `after` works as in `Table.page`."""
        return self._run(self._table.page(start, stop, prefix, limit, reverse=reverse, after=after))

    def to_arrow(
        self, start: Any = None, stop: Any = None, *, prefix: Any = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows of a range as Arrow data, like `Table.to_arrow`. The bounds work as in `scan`. By default,
        `columns` are the columns of the codec's class, or all columns if the codec is not a class."""
        return self._reader(self._table.arrow_scan(start, stop, prefix, columns))

    def _rows_of(self, scan: RowScan | IndexScan) -> Iterator[RowT]:
        def next_rows() -> Iterator[RowT] | None:
            rows = self._run(scan.next())
            return None if rows is None else starmap(self._table.shown, rows)

        return iterated(next_rows)
