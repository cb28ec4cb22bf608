"""Before the first row of a write: the table is there, and the frame fits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyomid.client.table_admin import alter_table, check_leases, create_table, find_table
from pyomid.errors import Misuse, UnknownTable
from pyomid.protocol.reading import Snapshot
from pyomid.spark.databases import Connection
from pyomid.spark.options import TABLE_LEVEL
from pyomid.spark.read_task import sees_rows
from pyomid.spark.row_codec.encode import Duplicates, Nulls
from pyomid.spark.schema import (
    DEFAULT_FAMILY,
    ColumnMapping,
    Field,
    check_row_key,
    families_of,
    fit_frame,
    make_schema,
    schema_of,
)
from pyomid.types import ConflictLevel, RowKeyPart, TableInfo, TableSchema


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a frame is written; the same names as the data source's options."""

    row_key: tuple[RowKeyPart, ...] | None = None
    mapping: ColumnMapping | None = None
    family: bytes = DEFAULT_FAMILY
    duplicates: Duplicates = Duplicates.ERROR
    nulls: Nulls = Nulls.TOMBSTONE
    merge_schema: bool = False


def table_or_none(conn: Connection, name: str) -> TableInfo | None:
    try:
        return conn.parts.catalog.table(name)
    except UnknownTable:
        return None


def is_there(conn: Connection, info: TableInfo | None, snapshot: Snapshot) -> bool:
    """What the modes `error` and `ignore` mean by a table that exists: one of which the snapshot sees a row.

    Not the catalog: a table is durable there before the transaction that made it commits, and stays when that one
    fails. Its next try would take its own table for somebody else's and drop its rows (decision 0031).
    """
    return info is not None and sees_rows(conn, info.name, snapshot)


def prepared_table(
    conn: Connection, name: str, fields: Sequence[Field], options: WriteOptions, level: str | None
) -> TableInfo:
    """The table's catalog entry, fit for a frame of these fields; made, or extended, where options allow it.

    Both are durable at once and stay when the transaction rolls back: an empty table, a column without values.
    """
    info = table_or_none(conn, name)
    if info is None:
        return _created(conn, name, fields, options, level)
    check_leases(conn.parts, name)
    if info.schema is None:
        info = _with_schema(conn, info, fields, options)
    if options.row_key is not None:
        check_row_key(info, options.row_key)
    schema = fit_frame(info, fields, merge=options.merge_schema, mapping=options.mapping)
    return extended(conn, info, schema)


def extended(conn: Connection, info: TableInfo, schema: TableSchema) -> TableInfo:
    """The table with at least the columns of `schema`, also where another writer adds columns at the same time."""

    def with_missing(info: TableInfo) -> TableInfo:
        present = schema_of(info)
        missing = [column for column in schema.columns if column not in present.columns]
        names = {column.name for column in present.columns}
        for column in missing:
            if column.name in names:
                raise Misuse(f"table {info.name!r}: column {column.name!r} was added with another type meanwhile")
        return replace(info, schema=replace(present, columns=(*present.columns, *missing))) if missing else info

    return alter_table(conn.parts, info, with_missing)


def _created(
    conn: Connection, name: str, fields: Sequence[Field], options: WriteOptions, level: str | None
) -> TableInfo:
    if options.row_key is None:
        find_table(conn.parts, name)
        raise Misuse(f"there is no table {name!r}; a write makes one where it names its row key", table=name)
    schema = make_schema(fields, options.row_key, options.mapping, family=options.family)
    return create_table(
        conn.parts,
        name,
        families_of(schema, family=options.family),
        conflict_level=ConflictLevel.CELL if level in (None, TABLE_LEVEL) else level,
        schema=schema,
        if_not_exists=True,
    )


def _with_schema(conn: Connection, info: TableInfo, fields: Sequence[Field], options: WriteOptions) -> TableInfo:
    """A table that a program without Spark made gets its schema from the first frame that names the row key."""
    if options.row_key is None:
        schema_of(info)
    family = options.family if options.family in info.families else info.families[0]
    schema = make_schema(fields, options.row_key or (), options.mapping, family=family)
    for needed in families_of(schema, family=family):
        if needed not in info.families:
            raise Misuse(f"table {info.name!r} has no family {needed!r}", table=info.name)
    return alter_table(conn.parts, info, lambda found: found if found.schema else replace(found, schema=schema))
