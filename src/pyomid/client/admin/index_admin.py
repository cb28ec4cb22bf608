"""Build and drop of secondary indexes, while others use the table (X3, X4).

    create   entry: planned ─► table of the index ─► entry: building ─► fence ─► rows, some at a time
             ─► entry: ready from S on
    drop     entry: dropping, then a fence ─► table of the index gone ─► entry without the index

The entry names the index's table before that is created, so a client that dies leaves no table without an entry.

From the fence on every commit maintains the index: a transaction that began before it and wrote the table aborts.
Separate transactions put the existing rows into the index and claim what they read: of one of them and an overlapping
writer of its rows, one aborts. S is a start drawn after the last of them: a transaction that begins at or above it sees
all index rows.

A drop is the reverse. A transaction that finds *dropping* neither maintains nor reads the index. A reader that still
uses the index by an earlier entry began before any such writer committed (the fence), so it sees none of its rows. If
it finds the table gone, it must be rerun. The index is removed from the entry last: until then any client can finish
the drop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pyomid.client import validation
from pyomid.client.admin import table_admin
from pyomid.client.admin.table_admin import alter_table, alter_with_fence
from pyomid.client.tables.indexes import INDEX_COLUMN, index_named, indexed_columns
from pyomid.client.transaction_steps import INDEX_TABLES
from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, MisuseType, OmidError
from pyomid.ports import Deployment
from pyomid.types import IndexInfo, IndexState, TableInfo

ROWS_AT_ONCE: Final = 500
"""Rows that one transaction of a build puts in and claims. If all its attempts lost to writers, it is retried with
fewer."""


def create_index(
    deployment: Deployment,
    run: Callable[[Callable[[Any], bytes | None]], bytes | None],
    table: str,
    name: object,
    columns: object,
) -> TableInfo:
    """Build an index that every later transaction may read. Idempotent. Also finishes an interrupted build; an
    interrupted drop of that name is finished first. If an existing row cannot be in the index, `Misuse` is raised, and
    nothing is left of the index."""
    checked = _check_name(name)
    names = [str(name) for name in validation.check_list("columns", columns, "column names")]
    present = validation.find_table(deployment.catalog, validation.check_table_name(table))
    _check_keeps(present)
    indexed_columns(present, names)
    for index in present.indexes:
        if index.name == checked and index.state is IndexState.DROPPING:
            _drop(deployment, present, index)
    rows_table = f"{INDEX_TABLES}{table_admin.drawn_start(deployment)}"

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
        return validation.find_table(deployment.catalog, table)
    table_admin.fence_table(deployment, table)
    crash_point("client.index.fenced")
    try:
        _fill(run, table, checked)
    except Misuse as error:
        _drop_refused(deployment, present, found, error)
        raise
    ready_ts = table_admin.drawn_start(deployment)

    def with_ready(info: TableInfo) -> TableInfo:
        index = _of_table(info, found)
        if index.state is IndexState.READY:
            return info
        return _with(info, replace(index, state=IndexState.READY, ready_ts=ready_ts))

    return alter_table(deployment, present, with_ready)


def _with_rows_table(deployment: Deployment, present: TableInfo, index: IndexInfo) -> IndexInfo:
    """Create the index's table, and return the index as the entry then has it: later transactions maintain it."""

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
    """Return the index's current entry; `Misuse` if it was dropped since it was planned."""
    for found in info.indexes:
        if found.table == index.table and found.state is not IndexState.DROPPING:
            return found
    raise Misuse(f"index {index.name!r} of table {info.name!r} was dropped while it was built", index=index.name)


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
    """Drop an index because an existing row cannot be in it: otherwise writers would have to maintain it."""
    try:
        _drop(deployment, present, index)
    except OmidError as failed:
        error.add_note(f"index {index.name!r} could not be dropped ({failed.message}): call drop_index")


def drop_index(deployment: Deployment, table: str, name: object) -> None:
    """Drop an index: on return no client maintains or reads it, and its rows are gone. Also finishes an interrupted
    drop."""
    present = validation.find_table(deployment.catalog, table)
    _drop(deployment, present, index_named(present, name).info)


def _drop(deployment: Deployment, present: TableInfo, gone: IndexInfo) -> None:
    def dropping(info: TableInfo) -> TableInfo:
        return _with(info, replace(gone, state=IndexState.DROPPING))

    def without(info: TableInfo) -> TableInfo:
        return replace(info, indexes=tuple(index for index in info.indexes if index.table != gone.table))

    alter_with_fence(deployment, present.name, dropping)
    crash_point("client.index.dropping")
    table_admin.drop_index_table(deployment, gone.table)
    crash_point("client.index.emptied")
    alter_table(deployment, present, without)


def _check_keeps(info: TableInfo) -> None:
    if info.ttl_seconds is not None:
        raise Misuse(
            f"table {info.name!r} has, or had, a time to live: rows of an index would not expire together "
            "with the table's",
            table=info.name,
        )


def _fill_from(table: str, index: str, start: bytes, rows_max: int) -> Callable[[Any], bytes | None]:
    def fill(transaction: Any) -> bytes | None:
        indexed = transaction.table(table)
        following: bytes | None = indexed._run(indexed._table.fill_index_steps(index, start, rows_max))
        return following

    return fill


def _with(info: TableInfo, changed: IndexInfo) -> TableInfo:
    """Return the entry with an index replaced, identified by its table, if it still exists."""
    return replace(info, indexes=tuple(changed if each.table == changed.table else each for each in info.indexes))


def _check_same(info: TableInfo, name: str, places: object) -> None:
    for index in info.indexes:
        if index.name == name and (index.columns != places or index.state is IndexState.DROPPING):
            raise Misuse(
                f"table {info.name!r} has an index {name!r} on other columns, or one with an interrupted drop: drop it"
            )


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise MisuseType(f"index {name!r} is not a name of letters, digits and '_'", index=name)
    return name
