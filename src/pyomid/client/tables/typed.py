"""A table with types: rows as dicts, dataclasses, TypedDicts or JSON, by the schema that the catalog has.

    accounts = tx.table("accounts", codec=Account)          # a dataclass or TypedDict; dict; "json"
    accounts.put(Account(id=17, owner="alice", balance=Decimal("1.50")))
    accounts.get(17)                                        # an Account; None where there is no such row

Rows have the types of the schema: rows that Spark wrote are read as Python values, and the other way round.
The steps are those of the table of bytes, on what `row_codec.rows` makes of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, is_typeddict

from pyomid.client.drive import Run
from pyomid.client.observers.observer import Kind
from pyomid.client.public_names import TYPED_TABLE, shows
from pyomid.client.tables.arrow import ArrowScan
from pyomid.client.tables.indexes import IndexRows, readable_index
from pyomid.client.tables.table import RowScan, TableBase, check_step, columns_of, unexpected
from pyomid.client.transaction_steps import named, unless_index_dropped
from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.protocol.effects import Steps
from pyomid.row_codec.rows import RowCodec
from pyomid.types import Column, TableInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.client.transaction import RowTransaction

RowT = TypeVar("RowT")

JSON: Final = "json"


class Shape(Generic[RowT]):
    """What a program has for a row, and the dict that stands for it."""

    def __init__(self, codec: object, rows: RowCodec, table: str) -> None:
        """`Misuse` if the columns of a class are not the table's, or lack a column of its key."""
        self._rows = rows
        names: tuple[str, ...] | None = None
        if codec == JSON:
            self._made: Callable[[dict[str, Any]], Any] = rows.to_json
            self._taken: Callable[[Any], Mapping[str, Any]] = self._of_json
        elif codec is dict:
            self._made, self._taken = dict, self._of_mapping
        elif is_typeddict(codec):
            names = tuple(codec.__annotations__)
            self._made, self._taken = partial(_chosen, names), self._of_mapping
        elif isinstance(codec, type) and dataclasses.is_dataclass(codec):
            names = tuple(field.name for field in dataclasses.fields(codec) if field.init)
            self._made, self._taken = partial(_instance, codec, names), partial(_fields, codec, names)
        else:
            raise MisuseType(f'codec {codec!r} is no dataclass, TypedDict, dict or "json"', value=codec)
        if names is not None:
            _check_names(table, names, rows)
        self.names = names

    def made(self, row: dict[str, Any]) -> RowT:
        made: RowT = self._made(row)
        return made

    def taken(self, row: object) -> Mapping[str, Any]:
        return self._taken(row)

    def _of_mapping(self, row: object) -> Mapping[str, Any]:
        if not isinstance(row, Mapping):
            raise MisuseType(f"row {row!r} is {type(row).__name__}, not a dict of column to value", value=row)
        return row

    def _of_json(self, row: object) -> Mapping[str, Any]:
        return self._rows.from_json(self._of_mapping(row))


def _several(keys: object) -> Iterable[Any]:
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise MisuseType(f"keys {keys!r} is not a list of keys", value=keys)
    return keys


def _check_names(table: str, names: Sequence[str], rows: RowCodec) -> None:
    known = ", ".join(rows.types)
    for name in names:
        if name not in rows.types:
            raise Misuse(f"table {table!r} has no column {name!r}; it has {known}", column=name)
    for name in rows.layout.names:
        if name not in names:
            raise Misuse(f"table {table!r}: a row needs its key column {name!r}", column=name)


def _chosen(names: Sequence[str], row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _instance(kind: type, names: Sequence[str], row: dict[str, Any]) -> Any:
    return kind(**_chosen(names, row))


def _fields(kind: type, names: Sequence[str], row: object) -> Mapping[str, Any]:
    if not isinstance(row, kind):
        raise MisuseType(f"row {row!r} is {type(row).__name__}, not {kind.__name__}", value=row)
    return {name: getattr(row, name) for name in names}


@dataclasses.dataclass(frozen=True, slots=True)
class TypedPage(Generic[RowT]):
    """Rows of a scan, and `next`: the token of the page after them, None if no row follows."""

    rows: tuple[RowT, ...]
    next: str | None


class IndexScan:
    """The rows of the table that rows of an index stand for, batch by batch."""

    def __init__(self, transaction: RowTransaction[Any], table: TableBase, index: IndexRows, scan: RowScan) -> None:
        self._transaction = transaction
        self._table = table
        self._index = index
        self._scan = scan

    def next_steps(self) -> Steps[Iterator[tuple[bytes, dict[bytes, bytes]]] | None]:
        """As `RowScan.next_steps`."""
        return self._transaction.alone(self._transaction.observed(Kind.SCAN, self._table.name, self._next_steps()))

    def _next_steps(self) -> Steps[Iterator[tuple[bytes, dict[bytes, bytes]]] | None]:
        with unless_index_dropped:
            entries = yield from self._scan.read_steps()
        if entries is None:
            return None
        keys = [self._index.row_of(entry) for entry, _ in entries]
        rows = yield from self._table.read_steps(keys, None)
        for key, row in zip(keys, rows, strict=True):
            if not row:
                raise Corruption(f"index {self._index.info.name!r} has a row for {key!r}, which the table has not")
        return ((key, named(row)) for key, row in zip(keys, rows, strict=True))


class TypedTableBase(Generic[RowT]):
    """A typed table in one transaction, as steps for both front ends."""

    def __init__(self, table: TableBase, transaction: RowTransaction[Any], codec: object) -> None:
        self._table = table
        self._transaction = transaction
        self._rows = RowCodec(table.info)
        self._shape: Shape[RowT] = Shape(codec, self._rows, table.name)

    @property
    def info(self) -> TableInfo:
        """The catalog entry."""
        return self._table.info

    @property
    def name(self) -> str:
        return self._table.name

    __dir__ = shows(TYPED_TABLE)

    # For pyomid's own use

    def get_steps(self, key: Any, *, for_update: bool) -> Steps[RowT | None]:
        return self._transaction.alone(self._get_steps(key, for_update=for_update))

    def rows_steps(self, keys: Iterable[Any], *, for_update: bool) -> Steps[dict[Any, RowT | None]]:
        return self._transaction.alone(self._rows_steps(keys, for_update=for_update))

    def put_steps(self, row: RowT, expect: Mapping[str, Any] | None, *, conflict: bool) -> Steps[None]:
        return self._transaction.alone(self._put_steps(row, expect, conflict=conflict))

    def put_if_absent_steps(self, row: RowT) -> Steps[bool]:
        return self._transaction.alone(self._put_if_absent_steps(row))

    def delete_steps(self, keys: Iterable[Any]) -> Steps[None]:
        return self._table.delete_steps([self._rows.key(key) for key in _several(keys)], None)

    def begin_scan(self, start: Any, stop: Any, prefix: Any, limit: int | None, *, reverse: bool) -> RowScan:
        """Bounds are keys, or values of the first columns of the key."""
        return self._table.begin_scan(*self._bounds(start, stop, prefix), None, limit, reverse=reverse)

    def lookup_steps(self, index: str, values: Any, limit: int | None, *, reverse: bool) -> Steps[IndexScan]:
        """Begins a scan of the index's rows with these values."""
        self._transaction.check_read()
        rows = readable_index(self.info, index, self._transaction.start_ts)
        with unless_index_dropped:
            entries = yield from self._transaction.table_steps(rows.info.table)
        scan = entries.begin_scan(b"", None, rows.prefix(values), None, limit, reverse=reverse)
        return IndexScan(self._transaction, self._table, rows, scan)

    def page_steps(
        self, start: Any, stop: Any, prefix: Any, limit: int, *, reverse: bool, after: str | None
    ) -> Steps[TypedPage[RowT]]:
        low, high, within = self._bounds(start, stop, prefix)
        page = yield from self._table.page_steps(low, high, within, None, limit, reverse=reverse, after=after)
        return TypedPage(tuple(self.shown(key, row) for key, row in page.rows), page.next)

    def increment_steps(self, key: Any, column: str, by: int) -> Steps[int]:
        return self._transaction.alone(self._increment_steps(key, column, by))

    def arrow_scan_steps(self, start: Any, stop: Any, prefix: Any, columns: Sequence[str] | None) -> Steps[ArrowScan]:
        wanted = self._shape.names if columns is None else columns
        return self._table.arrow_scan_steps(*self._bounds(start, stop, prefix), wanted)

    def shown(self, key: bytes, row: Mapping[bytes, bytes]) -> RowT:
        """A row of a scan."""
        return self._made(key, columns_of(row))

    def _bounds(self, start: Any, stop: Any, prefix: Any) -> tuple[bytes, bytes | None, bytes | None]:
        low = b"" if start is None else self._rows.prefix(start)
        high, within = (None if bound is None else self._rows.prefix(bound) for bound in (stop, prefix))
        return low, high, within

    def _made(self, key: bytes, cells: Mapping[Column, bytes]) -> RowT:
        return self._shape.made(self._rows.decode(key, cells))

    def _get_steps(self, key: Any, *, for_update: bool) -> Steps[RowT | None]:
        stored = self._table.checked_key(self._rows.key(key))
        (cells,) = yield from self._read_steps([stored], for_update=for_update)
        return self._made(stored, cells) if cells else None

    def _rows_steps(self, keys: Iterable[Any], *, for_update: bool) -> Steps[dict[Any, RowT | None]]:
        asked = list(dict.fromkeys(_several(keys)))
        stored = [self._table.checked_key(self._rows.key(key)) for key in asked]
        found = yield from self._read_steps(stored, for_update=for_update)
        pairs = zip(asked, stored, found, strict=True)
        return {key: self._made(row, cells) if cells else None for key, row, cells in pairs}

    def _read_steps(self, keys: Sequence[bytes], *, for_update: bool) -> Steps[list[dict[Column, bytes]]]:
        """Whole rows; a claim is of every cell in which a row shows that it is there."""
        found = yield from self._table.read_steps(keys, None)
        if for_update:
            yield from self._table.claim_cells_steps(keys, self._rows.all_cells)
        return found

    def _put_steps(self, row: RowT, expect: Mapping[str, Any] | None, *, conflict: bool) -> Steps[None]:
        self._transaction.check_write()
        key, cells = self._rows.encode(self._shape.taken(row))
        checked = self._table.checked_cells(key, cells)
        if expect is not None:
            if not isinstance(expect, Mapping) or not expect:
                raise MisuseType(f"expect {expect!r} is not a mapping of column to value", value=expect)
            expected = self._rows.expected(expect)
            (found,) = yield from self._table.read_steps([key], list(expected))
            yield from self._table.claim_cells_steps([key], tuple(expected))
            for column, value in expected.items():
                stored = found.get(column)
                if (None if stored is None else self._rows.as_now(column, stored)) != value:
                    raise unexpected(self.info, key, column, value, stored)
        yield from self._table.buffer_steps(key, checked, conflict=conflict)

    def _increment_steps(self, key: Any, column: str, by: int) -> Steps[int]:
        self._transaction.check_write()
        stored, place = self._table.checked_key(self._rows.key(key)), self._rows.counter(column)
        (found,) = yield from self._table.read_steps([stored], [place])
        total: int = (self._rows.decode(stored, found)[column] or 0) + check_step(by)
        yield from self._table.buffer_steps(stored, {place: self._rows.value(column, total)})
        return total

    def _put_if_absent_steps(self, row: RowT) -> Steps[bool]:
        self._transaction.check_write()
        key, cells = self._rows.encode(self._shape.taken(row))
        checked = self._table.checked_cells(key, cells)
        (found,) = yield from self._read_steps([key], for_update=True)
        if found:
            return False
        yield from self._table.buffer_steps(key, checked)
        return True


class TypedTable(TypedTableBase[RowT]):
    """A typed table in one transaction's snapshot, with its own writes. Made by `Transaction.table` with a codec."""

    def __init__(self, table: TableBase, transaction: RowTransaction[Any], codec: object, run: Run) -> None:
        super().__init__(table, transaction, codec)
        self._run = run

    def get(self, key: Any, *, for_update: bool = False) -> RowT | None:
        """The row with this key, a tuple where the key has several columns; None if there is none.

        `for_update`: the row is claimed too (`Transaction.claim`), whether it is there or not.
        """
        return self._run(self.get_steps(key, for_update=for_update))

    def rows(self, keys: Iterable[Any], *, for_update: bool = False) -> dict[Any, RowT | None]:
        """Many rows in one request: every requested key, in the requested order."""
        return self._run(self.rows_steps(keys, for_update=for_update))

    def put(self, row: RowT, *, expect: Mapping[str, Any] | None = None, conflict: bool = True) -> None:
        """Sets columns of a row: those of its class, or those that the dict has. None removes a value. `MisuseType`
        names the column that a value does not fit. `expect` and `conflict` as in `Table.put`, by column names."""
        self._run(self.put_steps(row, expect, conflict=conflict))

    def put_if_absent(self, row: RowT) -> bool:
        """As `put`, if there is no row with its key. Whether it wrote."""
        return self._run(self.put_if_absent_steps(row))

    def delete(self, key: Any) -> None:
        """Deletes the row."""
        self._run(self.delete_steps([key]))

    def delete_rows(self, keys: Iterable[Any]) -> None:
        """`delete` of many rows, which are read in one request."""
        self._run(self.delete_steps(keys))

    def increment(self, key: Any, column: str, by: int = 1) -> int:
        """Adds to a column of whole numbers, which begins at 0, and returns the sum. `MisuseType` if it outgrows the
        column's type. Of two transactions that overlap and count in one cell, one aborts."""
        return self._run(self.increment_steps(key, column, by))

    def scan(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[RowT]:
        """Rows in the order of their keys, from `start` (inclusive) to `stop` (exclusive), fetched in batches. Bounds
        are keys, or values of the first key columns; `prefix` is values that the first key columns have."""
        return self._rows_of(self.begin_scan(start, stop, prefix, limit, reverse=reverse))

    def lookup(self, index: str, values: Any, *, limit: int | None = None, reverse: bool = False) -> Iterator[RowT]:
        """The rows with these values in the columns of an index (`Database.create_index`): a value, or a tuple of those
        of its first columns. They come in the order of the index's other columns and the row's key."""
        return self._rows_of(self._run(self.lookup_steps(index, values, limit, reverse=reverse)))

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
        """Up to `limit` rows of a scan with these arguments; `after` as in `Table.page`."""
        return self._run(self.page_steps(start, stop, prefix, limit, reverse=reverse, after=after))

    def to_arrow(
        self, start: Any = None, stop: Any = None, *, prefix: Any = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """As `Table.to_arrow`, with the bounds of `scan`. Without `columns` those of the class, else all."""
        scan = self._run(self.arrow_scan_steps(start, stop, prefix, columns))
        return scan.reader(scan.batches(self._transaction.database.driver.run))

    def _rows_of(self, scan: RowScan | IndexScan) -> Iterator[RowT]:
        while (rows := self._run(scan.next_steps())) is not None:
            for key, row in rows:
                yield self.shown(key, row)
