"""Changes of rows as programs see them: as stored columns, or, with a codec, as row objects.

db.changes("accounts", mark)                    # RowChange: keys and columns are bytes
db.changes("accounts", mark, codec=Account)     # TypedChange: key values, before and after as Account
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from pyomid.coroutines import Blocking, Routine
from pyomid.database.tables.typed import RowT, Shape
from pyomid.database.validation import find_table
from pyomid.database.writes.shown_rows import named
from pyomid.protocol.timestamps import dated, is_time, time_of
from pyomid.rows.rows import RowCodec, stored_key, stored_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyomid.ports import Catalog
    from pyomid.protocol.changes import Change
    from pyomid.types import Column, TableInfo

ChangeT = TypeVar("ChangeT")


class RowChange(NamedTuple):
    """The change that one commit made to a row. `before` and `after` are the row's columns before and after the commit,
    in the form that `Table.get` returns."""

    kind: str
    """insert, update or delete."""
    row: bytes
    commit_ts: int
    before: dict[bytes, bytes] | None
    """The columns before the commit; None if the commit inserted the row."""
    after: dict[bytes, bytes] | None
    """The columns after the commit; None if the commit deleted the row."""

    @property
    def commit_time(self) -> datetime | None:
        """The time at which the commit was decided; None if the commit timestamp is not a wall-clock time."""
        return _commit_time(self.commit_ts)

    def __str__(self) -> str:
        return f"{self.kind} of {self.row!r} by commit {dated(self.commit_ts)}: {self.before} → {self.after}"

    def _repr_html_(self) -> str:
        from pyomid.database.tables.html import change_html

        return change_html(
            f"{self.kind} of {self.row!r} by commit {dated(self.commit_ts)}", self.before or {}, self.after or {}
        )


class TypedChange(NamedTuple, Generic[RowT]):
    """The change that one commit made to a typed row. `before` and `after` are the row before and after the commit, in
    the form that `TypedTable.get` returns."""

    kind: str
    """insert, update or delete."""
    key: Any
    """The value of the key column; a tuple if the key has several columns."""
    commit_ts: int
    before: RowT | None
    """The row before the commit; None if the commit inserted the row."""
    after: RowT | None
    """The row after the commit; None if the commit deleted the row."""

    @property
    def commit_time(self) -> datetime | None:
        """The time at which the commit was decided; None if the commit timestamp is not a wall-clock time."""
        return _commit_time(self.commit_ts)

    def __str__(self) -> str:
        return f"{self.kind} of {self.key!r} by commit {dated(self.commit_ts)}: {self.before} → {self.after}"

    def _repr_html_(self) -> str:
        from pyomid.database.tables.html import change_html, fields_of

        before, after = ({} if row is None else fields_of(row) for row in (self.before, self.after))
        return change_html(f"{self.kind} of {self.key!r} by commit {dated(self.commit_ts)}", before, after)


def _commit_time(commit_ts: int) -> datetime | None:
    return time_of(commit_ts) if is_time(commit_ts) else None


def _kind(change: Change) -> str:
    return "insert" if not change.before else "update" if change.after else "delete"


def shown(change: Change) -> RowChange:
    before, after = named(change.before) or None, named(change.after) or None
    return RowChange(_kind(change), change.row, change.commit_ts, before, after)


class ChangeView(Protocol[ChangeT]):
    """Converts between stored rows of one table and the keys and changes that a program uses."""

    def begin(self, info: TableInfo) -> None:
        """Check the view against the table's entry, before the other methods are used."""

    def key(self, key: Any) -> bytes: ...

    def prefix(self, prefix: Any) -> bytes: ...

    def shown(self, found: Sequence[Change]) -> Routine[list[ChangeT]]:
        """Return changes that were read, in the form that the program gets."""


class StoredView:
    """The view of a program without a codec: changes of stored columns. Keys and prefixes that are not bytes are values
    of the key columns."""

    _info: TableInfo

    def begin(self, info: TableInfo) -> None:
        self._info = info

    def key(self, key: Any) -> bytes:
        return stored_key(self._info, key)

    def prefix(self, prefix: Any) -> bytes:
        return stored_prefix(self._info, prefix)

    async def shown(self, found: Sequence[Change]) -> list[RowChange]:
        return list(map(shown, found))


class TypedView(Generic[RowT]):
    """The view of a program with a codec: changes of row objects. It uses the current schema, which can decode the
    values of every earlier schema."""

    _rows: RowCodec
    _shape: Shape[RowT]

    def __init__(self, catalog: Catalog, codec: object) -> None:
        self._catalog: Final = catalog
        self._codec: Final = codec
        self._info: TableInfo | None = None

    def begin(self, info: TableInfo) -> None:
        if info != self._info:
            rows = RowCodec(info)
            self._shape = Shape(self._codec, rows, info.name)
            self._info, self._rows = info, rows

    def key(self, key: Any) -> bytes:
        return self._rows.key(key)

    def prefix(self, prefix: Any) -> bytes:
        return self._rows.prefix(prefix)

    async def shown(self, found: Sequence[Change]) -> list[TypedChange[RowT]]:
        assert self._info is not None
        if found:
            self.begin(await Blocking(partial(find_table, self._catalog, self._info.name)))
        return list(map(self._shown, found))

    def _shown(self, change: Change) -> TypedChange[RowT]:
        key = self._rows.key_of(change.row)
        before, after = (self._made(change.row, cells) for cells in (change.before, change.after))
        return TypedChange(_kind(change), key, change.commit_ts, before, after)

    def _made(self, row: bytes, cells: Mapping[Column, bytes]) -> RowT | None:
        return self._shape.made(self._rows.decode(row, cells)) if cells else None


def view_of(catalog: Catalog, codec: object) -> ChangeView[Any]:
    """Return the view for a call that was given this `codec`."""
    return StoredView() if codec is None else TypedView(catalog, codec)
