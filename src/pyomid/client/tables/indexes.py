"""Secondary indexes: for each row of a table whose indexed columns have values, a row in a table of the index's own.

    row of the index   values of the columns, in their order, then the row's key   →   one cell, 01

A transaction that writes an indexed column reads what the row had, deletes the former row of the index and puts the new
one. The rows of an index conflict with nothing. What keeps them right is that the commit names every
column of the index, written or not (X3): of two that change one row's columns one aborts, so an index never has a row
of one's former and the other's new value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pyomid.client.validation import shown
from pyomid.errors import Corruption, Misuse, SnapshotTooOld
from pyomid.row_codec.column_types import ColumnType, Layout, column_type
from pyomid.row_codec.row_key import KeyLayout, KeyPart
from pyomid.row_codec.schema import near, schema_of
from pyomid.row_codec.values import decode_earlier
from pyomid.types import Column, ColumnSchema, IndexInfo, IndexState, TableInfo

INDEX_COLUMN: Final = Column(b"i", b"\x00")
INDEX_VALUE: Final = b"\x01"

IndexChanges = tuple[tuple[bytes, bytes | None], ...]
"""Rows of an index to write: key and value, None to take it away."""


@dataclass(frozen=True, slots=True)
class IndexRows:
    """The keys of one index's rows."""

    info: IndexInfo
    columns: tuple[ColumnSchema, ...]
    layout: KeyLayout

    def key(self, row: bytes, cells: Mapping[Column, bytes | None]) -> bytes | None:
        """Of a row with these cells; None where a column has no value: such a row is not in the index."""
        stored = [value for place in self.info.columns if (value := cells.get(place)) is not None]
        if len(stored) < len(self.columns):
            return None
        values = [
            decode_earlier(value, column.spark_type, column.earlier_types)
            for value, column in zip(stored, self.columns, strict=True)
        ]
        return self.layout.encode((*values, row))

    def standing_key(self, row: bytes, cells: Mapping[Column, bytes | None]) -> bytes | None:
        """As `key`, of a row that is there: one whose value is none of its column's type is not in the index."""
        with suppress(Corruption, ValueError, OverflowError):
            return self.key(row, cells)
        return None

    def prefix(self, values: object) -> bytes:
        """What the keys of the rows begin with whose first indexed columns have these values."""
        given = values if isinstance(values, tuple) else (values,)
        if len(given) > len(self.columns):
            names = ", ".join(column.name for column in self.columns)
            raise Misuse(f"index {self.info.name!r} is of {names}, and {len(given)} values are given")
        return self.layout.encode_prefix(given)

    def changes(
        self,
        row: bytes,
        before: Mapping[Column, bytes | None],
        after: Mapping[Column, bytes | None],
        checked_key: Callable[[bytes], bytes],
    ) -> IndexChanges:
        """What is to be written. `after`: the cells that are written over those of `before`. `checked_key`: of the
        index's table. `Misuse` where a written value is none of its column's type, or makes too long a key."""
        old = self.standing_key(row, before)
        try:
            new = self.key(row, {**before, **after})
            if old == new:
                return ()
            taken = () if old is None else ((old, None),)
            return taken if new is None else (*taken, (checked_key(new), INDEX_VALUE))
        except (Corruption, Misuse, ValueError, OverflowError) as error:
            raise Misuse(f"index {self.info.name!r} cannot have row {shown(row)}: {error}", row=row) from error

    def row_of(self, key: bytes) -> bytes:
        """The key of the row that a row of the index stands for."""
        row: bytes = self.layout.decode(key)[-1]
        return row


@lru_cache(maxsize=1024)
def indexes_of(info: TableInfo) -> tuple[IndexRows, ...]:
    return tuple(_index_rows(info, index) for index in info.indexes)


@lru_cache(maxsize=1024)
def kept_indexes(info: TableInfo) -> tuple[IndexRows, ...]:
    """Those that writers keep. Whoever reads rows of one that saw an index being dropped sees that too (X4)."""
    return tuple(index for index in indexes_of(info) if index.info.state is not IndexState.DROPPING)


def index_named(info: TableInfo, name: object) -> IndexRows:
    for index in indexes_of(info):
        if index.info.name == name:
            return index
    hint = near(str(name), [index.name for index in info.indexes])
    raise Misuse(f"table {info.name!r} has no index {name!r}{hint}", index=name)


def readable_index(info: TableInfo, name: object, start_ts: int) -> IndexRows:
    """`Misuse` while it is being built or dropped, `SnapshotTooOld` where it is younger than the snapshot (X4)."""
    index = index_named(info, name)
    if index.info.state is not IndexState.READY:
        raise Misuse(f"index {name!r} of table {info.name!r} is {index.info.state.value}: it has not all rows yet")
    if start_ts < index.info.ready_ts:
        raise SnapshotTooOld(
            f"index {name!r} of table {info.name!r} is younger than snapshot {start_ts}: begin again", start_ts=start_ts
        )
    return index


def indexed_columns(info: TableInfo, names: Sequence[str]) -> tuple[Column, ...]:
    """The places of columns that an index may be of."""
    known = {column.name: column for column in schema_of(info).columns}
    if not names or len(set(names)) < len(names):
        raise Misuse(f"table {info.name!r}: an index names columns, each once, not {', '.join(names) or 'none'}")
    places = []
    for name in names:
        column = known.get(name)
        if column is None:
            raise Misuse(f"table {info.name!r} has no column {name!r}{near(name, known)}", column=name)
        if column.column is None or column_type(column.spark_type, name).layout is Layout.JSON:
            kind = "a column of the row key" if column.column is None else "an array, map or struct"
            raise Misuse(f"table {info.name!r}: {name!r} is {kind}, of which there is no index", column=name)
        places.append(column.column)
    return tuple(places)


def _index_rows(info: TableInfo, index: IndexInfo) -> IndexRows:
    by_place = {column.column: column for column in schema_of(info).columns}
    columns = tuple(by_place[place] for place in index.columns)
    parts = [KeyPart(column.name, column_type(column.spark_type), False, False) for column in columns]
    row_key = KeyPart("row key", ColumnType("binary", Layout.BINARY, 0), False, True)
    return IndexRows(index, columns, KeyLayout((*parts, row_key)))
