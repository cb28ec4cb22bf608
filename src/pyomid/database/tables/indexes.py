"""Secondary indexes: their rows, and how an index is built and dropped while others use the table.

An index has its own table, with an index row for each row whose indexed columns all have values:

    index row   values of the columns, in their order, then the row's key   →   one cell, 01

A transaction that writes an indexed column reads the row's values, deletes the former index row and puts the new one.
The commit does not name index rows, but it names every indexed column of the row, written or not (X3). So of two
overlapping transactions that change the indexed columns of a row, one aborts, and no index row mixes the values of two
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from pyomid.crashpoints import crash_point
from pyomid.database import table_admin
from pyomid.database.index_tables import INDEX_TABLES
from pyomid.database.issued import drawn_start
from pyomid.database.table_admin import alter_table, alter_with_fence
from pyomid.database.validation import check_list, check_table_name, find_table, shown
from pyomid.errors import ConflictError, Corruption, Misuse, MisuseType, OmidError, SnapshotTooOld
from pyomid.ports import Deployment
from pyomid.protocol.timestamps import dated
from pyomid.rows.column_types import ColumnType, Layout, column_type, stored_as
from pyomid.rows.row_key import KeyLayout, KeyPart
from pyomid.rows.schema import near, schema_of
from pyomid.rows.values import decode_earlier
from pyomid.types import Column, ColumnSchema, IndexInfo, IndexState, TableInfo

INDEX_COLUMN: Final = Column(b"i", b"\x00")
INDEX_VALUE: Final = b"\x01"

IndexChanges = tuple[tuple[bytes, bytes | None], ...]
"""Index rows to write: the key of each, and its value, or None to delete the row."""


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Encodes the keys of an index's rows. `stored` is the layout for stored values; it encodes the same keys as
    `layout`. In `stored`, a date or timestamp is its stored number, because Python cannot represent all dates and
    timestamps."""

    info: IndexInfo
    columns: tuple[ColumnSchema, ...]
    layout: KeyLayout
    stored: KeyLayout

    def key(self, row: bytes, cells: Mapping[Column, bytes | None]) -> bytes | None:
        """Return the index key of a row with these cells; None if an indexed column has no value, because the row is
        then not in the index."""
        stored = [value for place in self.info.columns if (value := cells.get(place)) is not None]
        if len(stored) < len(self.columns):
            return None
        values = [
            decode_earlier(value, part.type.name, column.earlier_types)
            for value, part, column in zip(stored, self.stored.parts[:-1], self.columns, strict=True)
        ]
        return self.stored.encode((*values, row))

    def standing_key(self, row: bytes, cells: Mapping[Column, bytes | None]) -> bytes | None:
        """Return the index key of an existing row, like `key`; also None if a value does not have its column's type."""
        with suppress(Corruption, ValueError, OverflowError):
            return self.key(row, cells)
        return None

    def prefix(self, values: object) -> bytes:
        """Return the key prefix of rows with these values in the first indexed columns."""
        given = values if isinstance(values, tuple) else (values,)
        if len(given) > len(self.columns):
            names = ", ".join(column.name for column in self.columns)
            raise Misuse(f"index {self.info.name!r} has the columns {names}, but {len(given)} values are given")
        return self.layout.encode_prefix(given)

    def changes(
        self,
        row: bytes,
        before: Mapping[Column, bytes | None],
        after: Mapping[Column, bytes | None],
        checked_key: Callable[[bytes], bytes],
    ) -> IndexChanges:
        """Return the index rows to write. `after` are the cells that replace cells of `before`. `checked_key` checks a
        key of the index's table. Raises `Misuse` if a written value does not have its column's type, or makes the
        key too long."""
        old = self.standing_key(row, before)
        try:
            new = self.key(row, {**before, **after})
            if old == new:
                return ()
            taken = ((old, None),) if old is not None and _fits(old, checked_key) else ()
            return taken if new is None else (*taken, (checked_key(new), INDEX_VALUE))
        except (Corruption, Misuse, ValueError, OverflowError) as error:
            names = ", ".join(column.name for column in self.columns)
            raise Misuse(
                f"index {self.info.name!r} of {names} cannot contain row {shown(row)}: {error}; give the row "
                "another value, or drop the index (drop_index)",
                row=row,
                index=self.info.name,
            ) from error

    def row_of(self, key: bytes) -> bytes:
        """Return the key of the row that an index row refers to."""
        row: bytes = self.stored.decode(key)[-1]
        return row


def _fits(key: bytes, checked_key: Callable[[bytes], bytes]) -> bool:
    """Whether the index table accepts the key. It may not accept the keys of rows that are older than the index."""
    with suppress(Misuse):
        checked_key(key)
        return True
    return False


@lru_cache(maxsize=1024)
def indexes_of(info: TableInfo) -> tuple[IndexRows, ...]:
    return tuple(_index_rows(info, index) for index in info.indexes)


@lru_cache(maxsize=1024)
def kept_indexes(info: TableInfo) -> tuple[IndexRows, ...]:
    """Return the indexes that writers maintain. If a writer saw that an index is being dropped, readers of the rows
    that it wrote see the drop too (X4)."""
    return tuple(index for index in indexes_of(info) if index.info.state in (IndexState.BUILDING, IndexState.READY))


def index_named(info: TableInfo, name: object) -> IndexRows:
    for index in indexes_of(info):
        if index.info.name == name:
            return index
    hint = near(str(name), [index.name for index in info.indexes])
    raise Misuse(f"table {info.name!r} has no index {name!r}{hint}", index=name)


def readable_index(info: TableInfo, name: object, start_ts: int) -> IndexRows:
    """Return an index for a read. Raise `Misuse` while the index is being built or dropped, and `SnapshotTooOld` if it
    is younger than the snapshot (X4)."""
    index = index_named(info, name)
    if index.info.state is not IndexState.READY:
        raise Misuse(f"index {name!r} of table {info.name!r} is {index.info.state.value} and cannot be read")
    if start_ts < index.info.ready_ts:
        raise SnapshotTooOld(
            f"index {name!r} of table {info.name!r} is younger than snapshot {dated(start_ts)}; begin a new "
            "transaction",
            start_ts=start_ts,
        )
    return index


def indexed_columns(info: TableInfo, names: Sequence[str]) -> tuple[Column, ...]:
    """Return the family and qualifier of the columns for an index. Raise `Misuse` if a column cannot be indexed."""
    known = {column.name: column for column in schema_of(info).columns}
    if not names or len(set(names)) < len(names):
        raise Misuse(f"table {info.name!r}: an index needs distinct columns, not {', '.join(names) or 'none'}")
    places = []
    for name in names:
        column = known.get(name)
        if column is None:
            raise Misuse(f"table {info.name!r} has no column {name!r}{near(name, known)}", column=name)
        if column.column is None or column_type(column.spark_type, name).layout is Layout.JSON:
            kind = "a column of the row key" if column.column is None else "an array, map or struct"
            raise Misuse(f"table {info.name!r}: {name!r} is {kind}, which cannot be indexed", column=name)
        places.append(column.column)
    return tuple(places)


def _index_rows(info: TableInfo, index: IndexInfo) -> IndexRows:
    by_place = {column.column: column for column in schema_of(info).columns}
    columns = tuple(by_place[place] for place in index.columns)
    row_key = KeyPart("row key", ColumnType("binary", Layout.BINARY, 0), False, True)

    def layout(types: Iterable[ColumnType]) -> KeyLayout:
        named = zip(columns, types, strict=True)
        return KeyLayout((*(KeyPart(column.name, kind, False, False) for column, kind in named), row_key))

    kinds = [column_type(column.spark_type) for column in columns]
    return IndexRows(index, columns, layout(kinds), layout(map(stored_as, kinds)))


# Build and drop (X3, X4)
#
#     create   entry: planned ─► table of the index ─► entry: building ─► fence ─► rows, some at a time
#              ─► entry: ready from S on
#     drop     entry: dropping, then a fence ─► table of the index gone ─► entry without the index
#
# The entry names the index's table before that table is created, so a client that dies leaves no table without an
# entry.
#
# From the fence on, every commit maintains the index: a transaction that began before the fence and wrote the table
# aborts. Separate transactions put the existing rows into the index and claim the rows that they read: of such a
# transaction and an overlapping writer of its rows, one aborts. S is a start drawn after the last of these
# transactions: a transaction that begins at or above S sees all index rows.
#
# A drop is the reverse. A transaction that finds *dropping* neither maintains nor reads the index. Because of the
# fence, a reader that still uses the index by an earlier entry began before any such transaction committed, so it sees
# none of that transaction's rows. If the reader finds the index's table gone, it must be rerun. The index is removed
# from the entry last: until then any client can finish the drop.

ROWS_AT_ONCE: Final = 500
"""Number of rows that one transaction of a build adds and claims. If all its attempts lost to writers, it is retried
with fewer rows."""


def create_index(
    deployment: Deployment,
    run: Callable[[Callable[[Any], bytes | None]], bytes | None],
    table: str,
    name: object,
    columns: object,
) -> TableInfo:
    """Build an index that every later transaction may read, and return the table's entry. The call is idempotent, and
    also finishes an interrupted build. It first finishes an interrupted drop of an index with that name. If an existing
    row cannot be in the index, `Misuse` is raised, and nothing is left of the index."""
    checked = _check_name(name)
    names = [str(name) for name in check_list("columns", columns, "column names")]
    present = find_table(deployment.catalog, check_table_name(table))
    _check_keeps(present)
    indexed_columns(present, names)
    for index in present.indexes:
        if index.name == checked and index.state is IndexState.DROPPING:
            _drop(deployment, present, index)
    rows_table = f"{INDEX_TABLES}{drawn_start(deployment)}"

    def with_index(info: TableInfo) -> TableInfo:
        _check_keeps(info)
        places = indexed_columns(info, names)
        _check_same(info, checked, places)
        if any(index.name == checked for index in info.indexes):
            return info
        return replace(info, indexes=(*info.indexes, IndexInfo(checked, places, rows_table)))

    found = index_named(alter_table(deployment, present, with_index), checked).info
    crash_point("client.index.planned")
    if found.state is IndexState.PLANNED:
        found = _with_rows_table(deployment, present, found)
    crash_point("client.index.kept")
    if found.state is IndexState.READY:
        return find_table(deployment.catalog, table)
    table_admin.fence_table(deployment, table)
    crash_point("client.index.fenced")
    try:
        _fill(run, table, checked)
    except Misuse as error:
        table_admin.check_present(deployment, present, error)
        _drop_refused(deployment, present, found, error)
        raise
    ready_ts = drawn_start(deployment)

    def with_ready(info: TableInfo) -> TableInfo:
        index = _of_table(info, found)
        if index.state is IndexState.READY:
            return info
        return _with(info, replace(index, state=IndexState.READY, ready_ts=ready_ts))

    return alter_table(deployment, present, with_ready)


def _with_rows_table(deployment: Deployment, present: TableInfo, index: IndexInfo) -> IndexInfo:
    """Create the index's table, and return the index in the state that the entry then has. Later transactions maintain
    the index."""

    def with_building(info: TableInfo) -> TableInfo:
        found = _of_table(info, index)
        return info if found.state is not IndexState.PLANNED else _with(info, replace(found, state=IndexState.BUILDING))

    table_admin.make_index_table(deployment, index.table, INDEX_COLUMN.family)
    try:
        return _of_table(alter_table(deployment, present, with_building), index)
    except (ConflictError, Misuse):
        table_admin.drop_index_table(deployment, index.table)
        raise


def _of_table(info: TableInfo, index: IndexInfo) -> IndexInfo:
    """Return the index's current entry. Raise `Misuse` if the index was dropped since it was planned."""
    for found in info.indexes:
        if found.table == index.table and found.state is not IndexState.DROPPING:
            return found
    raise Misuse(f"index {index.name!r} of table {info.name!r} was dropped while it was being built", index=index.name)


def _fill(run: Callable[[Callable[[Any], bytes | None]], bytes | None], table: str, index: str) -> None:
    start: bytes | None = b""
    rows_max = ROWS_AT_ONCE
    while start is not None:
        try:
            start = run(_fill_from(table, index, start, rows_max))
        except ConflictError:
            if rows_max == 1:
                raise
            rows_max = max(1, rows_max // 8)
        crash_point("client.index.filled")


def _drop_refused(deployment: Deployment, present: TableInfo, index: IndexInfo, error: Misuse) -> None:
    """Drop an index because it cannot contain an existing row; otherwise writers would have to maintain it."""
    try:
        _drop(deployment, present, index)
    except OmidError as failed:
        error.add_note(f"index {index.name!r} could not be dropped ({failed.message}): call drop_index")


def drop_index(deployment: Deployment, table: str, name: object) -> None:
    """Drop an index. When the call returns, no client maintains or reads the index, and its rows are gone. The call
    also finishes an interrupted drop."""
    present = find_table(deployment.catalog, table)
    _drop(deployment, present, index_named(present, name).info)


def _drop(deployment: Deployment, present: TableInfo, gone: IndexInfo) -> None:
    def dropping(info: TableInfo) -> TableInfo:
        return _with(info, replace(gone, state=IndexState.DROPPING))

    def without(info: TableInfo) -> TableInfo:
        return replace(info, indexes=tuple(index for index in info.indexes if index.table != gone.table))

    if gone.state is not IndexState.DROPPING:  # otherwise the fence was drawn before that state was put
        alter_with_fence(deployment, present.name, dropping)
    crash_point("client.index.dropping")
    table_admin.drop_index_table(deployment, gone.table)
    crash_point("client.index.emptied")
    alter_table(deployment, present, without)


def _check_keeps(info: TableInfo) -> None:
    if info.ttl_seconds is not None:
        raise Misuse(
            f"table {info.name!r} has or had a time to live, so it cannot have an index: the index's rows would not "
            "expire together with the table's rows",
            table=info.name,
        )


def _fill_from(table: str, index: str, start: bytes, rows_max: int) -> Callable[[Any], bytes | None]:
    def fill(transaction: Any) -> bytes | None:
        indexed = transaction.table(table)
        following: bytes | None = indexed._run(indexed._table.fill_index(index, start, rows_max))
        return following

    return fill


def _with(info: TableInfo, changed: IndexInfo) -> TableInfo:
    """Return the entry with this index replaced, if it still exists. Indexes are identified by their tables."""
    return replace(info, indexes=tuple(changed if each.table == changed.table else each for each in info.indexes))


def _check_same(info: TableInfo, name: str, places: object) -> None:
    for index in info.indexes:
        if index.name == name and (index.columns != places or index.state is IndexState.DROPPING):
            raise Misuse(
                f"table {info.name!r} already has an index {name!r} on other columns, or an index whose drop was "
                "interrupted; drop that index first"
            )


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise MisuseType(
            f"index name {name!r} must consist of letters, digits and '_', and must not begin with a digit", index=name
        )
    return name
