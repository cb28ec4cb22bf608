"""Secondary indexes are built and dropped while others use the table (X3, X4).

    create   table of the index ─► entry: building ─► fence ─► rows, some at a time ─► entry: ready from S on
    drop     entry: dropping, then a fence ─► table of the index gone ─► entry without the index

From the fence on every commit keeps the index: a transaction that began before it and wrote the table aborts. The rows
that are there are put in by transactions of their own, which claim what they read: so none of them overlaps a writer of
its rows. S is a start that was drawn after the last of them: a transaction that begins at or above it sees all rows.

A drop is the reverse. A transaction that finds *dropping* neither keeps nor reads the index. Because of the fence, no
transaction that begins after such a writer reads the index by an earlier entry; one that began before sees none of that
writer's rows. A transaction that used the earlier entry and finds the table gone begins anew. The entry goes last:
while it stands, the drop can be finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from pyomid.client import validation
from pyomid.client.admin import table_admin
from pyomid.client.admin.table_admin import alter_behind_fence, alter_table
from pyomid.client.tables.indexes import INDEX_COLUMN, index_named, indexed_columns
from pyomid.client.transaction_steps import INDEX_TABLES
from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, MisuseType
from pyomid.ports import Deployment
from pyomid.types import IndexInfo, IndexState, TableInfo

ROWS_AT_ONCE: Final = 500
"""Rows that one transaction of a build puts in and claims: who writes one of them meanwhile aborts, or it does. Fewer
after one that lost to writers in all its attempts."""


def create_index(
    deployment: Deployment,
    run: Callable[[Callable[[Any], bytes | None]], bytes | None],
    table: str,
    name: object,
    columns: object,
) -> TableInfo:
    """Every later transaction may read it. Repeatable: another call finishes one whose caller died."""
    checked = _check_name(name)
    names = _check_columns(columns)
    present = validation.find_table(deployment.catalog, validation.check_table_name(table))
    _check_keeps(present)
    _check_same(present, checked, indexed_columns(present, names))
    made: str | None = None
    if not any(index.name == checked for index in present.indexes):
        made = table_admin.make_index_table(deployment, INDEX_TABLES, INDEX_COLUMN.family)

    def with_index(info: TableInfo) -> TableInfo:
        _check_keeps(info)
        places = indexed_columns(info, names)
        _check_same(info, checked, places)
        if made is None or any(index.name == checked for index in info.indexes):
            return info
        return replace(info, indexes=(*info.indexes, IndexInfo(checked, places, made)))

    found = index_named(alter_table(deployment, present, with_index), checked).info
    if made is not None and found.table != made:
        table_admin.drop_index_table(deployment, made)
    crash_point("client.index.kept")
    if found.state is IndexState.READY:
        return validation.find_table(deployment.catalog, table)
    table_admin.fence_table(deployment, table)
    crash_point("client.index.fenced")
    start: bytes | None = b""
    rows_max = ROWS_AT_ONCE
    while start is not None:
        try:
            start = run(_fill_from(table, checked, start, rows_max))
        except ConflictError:
            if rows_max == 1:
                raise
            rows_max = max(1, rows_max // 8)
        crash_point("client.index.filled")
    ready_ts = table_admin.drawn_start(deployment)

    def with_ready(info: TableInfo) -> TableInfo:
        index = index_named(info, checked).info
        if index.table != found.table or index.state is IndexState.DROPPING:
            raise Misuse(f"index {checked!r} of table {table!r} was dropped while it was built", index=checked)
        if index.state is IndexState.READY:
            return info
        return _with(info, replace(index, state=IndexState.READY, ready_ts=ready_ts))

    return alter_table(deployment, present, with_ready)


def drop_index(deployment: Deployment, table: str, name: object) -> None:
    """On return no client keeps or reads it, and its rows are gone. Also finishes a drop that was interrupted."""
    present = validation.find_table(deployment.catalog, table)
    gone = index_named(present, name).info

    def dropping(info: TableInfo) -> TableInfo:
        return _with(info, replace(gone, state=IndexState.DROPPING))

    def without(info: TableInfo) -> TableInfo:
        return replace(info, indexes=tuple(index for index in info.indexes if index.table != gone.table))

    alter_behind_fence(deployment, table, dropping)
    crash_point("client.index.dropping")
    table_admin.drop_index_table(deployment, gone.table)
    crash_point("client.index.emptied")
    alter_table(deployment, present, without)


def _check_keeps(info: TableInfo) -> None:
    if info.ttl_seconds is not None:
        raise Misuse(
            f"table {info.name!r} has, or had, a time to live: rows of an index would expire at other times than what "
            "they stand for",
            table=info.name,
        )


def _fill_from(table: str, index: str, start: bytes, rows_max: int) -> Callable[[Any], bytes | None]:
    def fill(transaction: Any) -> bytes | None:
        following: bytes | None = transaction.table(table).fill_index(index, start, rows_max)
        return following

    return fill


def _with(info: TableInfo, changed: IndexInfo) -> TableInfo:
    """Where the index, which is known by its table, is still there."""
    return replace(info, indexes=tuple(changed if each.table == changed.table else each for each in info.indexes))


def _check_same(info: TableInfo, name: str, places: object) -> None:
    for index in info.indexes:
        if index.name == name and (index.columns != places or index.state is IndexState.DROPPING):
            raise Misuse(
                f"table {info.name!r} has an index {name!r} of other columns, or one whose drop was left half done: "
                "drop it"
            )


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise MisuseType(f"index {name!r} is no name of letters, digits and '_'", index=name)
    return name


def _check_columns(columns: object) -> list[str]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise MisuseType(f"columns {columns!r} is no list of column names", value=columns)
    return [str(name) for name in columns]
