"""Secondary indexes: an index has its own table, with an index row for each row whose indexed columns all have values.

    index row   values of the columns, in their order, then the row's key   →   one cell, 01

A transaction that writes an indexed column reads the row's values, deletes the former index row and puts the new one.
The commit does not name index rows, but it names every indexed column of the row, written or not (X3): of two
overlapping transactions that change the indexed columns of a row, one aborts. So no index row mixes the values of two
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pyomid.client.validation import shown
from pyomid.errors import Corruption, Misuse, SnapshotTooOld
from pyomid.row_codec.column_types import ColumnType, Layout, column_type, stored_as
from pyomid.row_codec.row_key import KeyLayout, KeyPart
from pyomid.row_codec.schema import near, schema_of
from pyomid.row_codec.values import decode_earlier
from pyomid.types import Column, ColumnSchema, IndexInfo, IndexState, TableInfo

INDEX_COLUMN: Final = Column(b"i", b"\x00")
INDEX_VALUE: Final = b"\x01"

IndexChanges = tuple[tuple[bytes, bytes | None], ...]
"""Index rows to write: key, and value or None to delete it."""


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Encodes the keys of an index's rows. `stored`: the layout for stored values, in which a date or timestamp is its
    stored number, because Python cannot represent all of them; it encodes the same keys as `layout`."""

    info: IndexInfo
    columns: tuple[ColumnSchema, ...]
    layout: KeyLayout
    stored: KeyLayout

    def key(self, row: bytes, cells: Mapping[Column, bytes | None]) -> bytes | None:
        """Return the index key of a row with these cells. None if a column has no value: the row is not in the
        index."""
        stored = [value for place in self.info.columns if (value := cells.get(place)) is not None]
        if len(stored) < len(self.columns):
            return None
        values = [
            decode_earlier(value, part.type.name, column.earlier_types)
            for value, part, column in zip(stored, self.stored.parts[:-1], self.columns, strict=True)
        ]
        return self.stored.encode((*values, row))

    def standing_key(self, row: bytes, cells: Mapping[Column, bytes | None]) -> bytes | None:
        """As `key`, for an existing row. None also if a value is not of its column's type."""
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
        """Return the index rows to write. `after`: the cells that replace cells of `before`. `checked_key`: of the
        index's table. `Misuse` if a written value is not of its column's type, or makes the key too long."""
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
    """Whether the index table accepts the key. Rows older than the index may have keys that it does not."""
    with suppress(Misuse):
        checked_key(key)
        return True
    return False


@lru_cache(maxsize=1024)
def indexes_of(info: TableInfo) -> tuple[IndexRows, ...]:
    return tuple(_index_rows(info, index) for index in info.indexes)


@lru_cache(maxsize=1024)
def kept_indexes(info: TableInfo) -> tuple[IndexRows, ...]:
    """Return the indexes that writers maintain. A reader of rows from a writer that saw the index being dropped sees
    the drop too (X4)."""
    return tuple(index for index in indexes_of(info) if index.info.state in (IndexState.BUILDING, IndexState.READY))


def index_named(info: TableInfo, name: object) -> IndexRows:
    for index in indexes_of(info):
        if index.info.name == name:
            return index
    hint = near(str(name), [index.name for index in info.indexes])
    raise Misuse(f"table {info.name!r} has no index {name!r}{hint}", index=name)


def readable_index(info: TableInfo, name: object, start_ts: int) -> IndexRows:
    """Return an index for a read. `Misuse` while it is being built or dropped, `SnapshotTooOld` if it is younger than
    the snapshot (X4)."""
    index = index_named(info, name)
    if index.info.state is not IndexState.READY:
        raise Misuse(f"index {name!r} of table {info.name!r} is {index.info.state.value}: it cannot be read")
    if start_ts < index.info.ready_ts:
        raise SnapshotTooOld(
            f"index {name!r} of table {info.name!r} is younger than snapshot {start_ts}: begin again", start_ts=start_ts
        )
    return index


def indexed_columns(info: TableInfo, names: Sequence[str]) -> tuple[Column, ...]:
    """Return family and qualifier of columns for an index. `Misuse` if a column cannot be indexed."""
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
