"""A table's catalog schema and the schemas of Spark, each fitted to the other with errors that name the column; and the
table itself, made or extended for a frame before the first row of a write.

A frame's fields are pairs (name, Spark's JSON type name), so that nothing here needs Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyomid.client.admin.table_admin import alter_table, make_table
from pyomid.client.validation import find_table
from pyomid.errors import Misuse, MisuseType, UnknownTable
from pyomid.row_codec.column_types import nested_arrow_type
from pyomid.row_codec.encode import Duplicates, Nulls
from pyomid.row_codec.schema import (
    DEFAULT_FAMILY,
    ColumnMapping,
    Field,
    check_distinct,
    check_row_key,
    check_type,
    families_of,
    fit_frame,
    make_schema,
    schema_of,
    select_columns,
    type_name,
)
from pyomid.spark.databases import Connection, connection
from pyomid.spark.source.options import AUTO_LEVEL, TABLE_LEVEL
from pyomid.types import ColumnSchema, ConflictLevel, RowKeyPart, TableInfo, TableSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a frame is written; the same names as the data source's options."""

    row_key: tuple[RowKeyPart, ...] | None = None
    mapping: ColumnMapping | None = None
    family: bytes = DEFAULT_FAMILY
    duplicates: Duplicates = Duplicates.ERROR
    nulls: Nulls = Nulls.TOMBSTONE
    merge_schema: bool = False
    whole: bool = False
    """Protects what the rows were: at level cell the write conflicts with one that makes or deletes one of them."""


def fields_of(struct: StructType) -> tuple[Field, ...]:
    """The fields of a Spark schema; MisuseType where two have one name."""
    fields = tuple(Field(each.name, type_name(each.dataType.jsonValue())) for each in struct.fields)
    names = [each.name for each in fields]
    for name in names:
        if names.count(name) > 1:
            raise MisuseType(f"the frame has two columns {name!r}", column=name)
    return fields


def check_same_columns(what: str, schema: TableSchema, names: Sequence[str]) -> None:
    """`Misuse` where the table's frame has these names, others than the schema that was planned with."""
    if list(names) != [column.name for column in schema.columns]:
        raise Misuse(
            f"{what}: another transaction changed the columns of the table meanwhile; begin the transaction anew"
        )


def struct_of(schema: TableSchema, names: Sequence[str]) -> StructType:
    """The Spark schema of these columns; all nullable."""
    from pyspark.sql.types import StructType

    types = {column.name: column.spark_type for column in schema.columns}
    return StructType.fromJson({"type": "struct", "fields": [_json_field(name, types[name]) for name in names]})


def _json_field(name: str, spark_type: str) -> dict[str, Any]:
    kind = json.loads(spark_type) if spark_type.startswith("{") else spark_type
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def arrow_of(struct: StructType) -> pa.Schema:
    """The Arrow form of a Spark schema, down to what may be null: Spark compares it with what a reader yields.
    PySpark's own function for it is not public, and another one in each of its versions."""
    return pa.schema(
        [
            pa.field(field.name, nested_arrow_type(field.dataType.jsonValue(), field.name), nullable=field.nullable)
            for field in struct.fields
        ]
    )


def check_read_fields(info: TableInfo, schema: TableSchema, fields: Sequence[Field]) -> tuple[str, ...]:
    """The columns of a schema that a reader gave for a table which has one of its own."""
    known = {column.name: column for column in schema.columns}
    names = select_columns(info.name, schema, [field.name for field in fields])
    for field in fields:
        check_type(info, known[field.name], field)
    return names


def table_or_none(conn: Connection, name: str) -> TableInfo | None:
    try:
        return conn.deployment.catalog.table(name)
    except UnknownTable:
        return None


def prepared_table(
    conn: Connection, name: str, fields: Sequence[Field], options: WriteOptions, level: str | None
) -> TableInfo:
    """The table's catalog entry, fit for a frame of these fields; made, or extended, where options allow it. A table
    that another client made first is fitted as any other.

    Both are durable at once, and stay where the transaction rolls back: others may have begun to use them.
    """
    info = table_or_none(conn, name) or _made(conn, name, fields, options, level)
    conn.deployment.store.check_leases(name)
    check_level(info, level)
    if info.schema is None:
        info = _with_schema(conn, info, fields, options)
    if options.row_key is not None:
        check_row_key(info, options.row_key)
    schema = fit_frame(info, fields, merge=options.merge_schema, mapping=options.mapping)
    info = extended(conn, info, schema)
    fit_frame(info, fields, merge=False)  # a column may have been renamed since: it would be left out in silence
    return info


def check_level(info: TableInfo, level: str | None) -> None:
    """`Misuse` where a level was asked for that is not the table's (T9)."""
    if level not in (None, AUTO_LEVEL, TABLE_LEVEL, *(each.value for each in info.id_levels)):
        raise Misuse(
            f"table {info.name!r} has conflict level {info.conflict_level.value!r}, not {level!r}: a table has one "
            "level, because transactions of two levels would not see each other's writes; leave the conflict level "
            "away, give 'table', or change the table's by `pyomid tables URL alter NAME --conflict-level`",
            table=info.name,
        )


def extended(conn: Connection, info: TableInfo, schema: TableSchema) -> TableInfo:
    """The table with at least the columns of `schema`, also where another writer adds columns at the same time. Columns
    are known by their places: one that was renamed, widened or dropped since `info` was read is not missing (X1)."""
    known = {column.column for column in schema_of(info).columns}

    def with_missing(info: TableInfo) -> TableInfo:
        present = schema_of(info)
        missing = [c for c in schema.columns if c.column not in known and c not in present.columns]
        names = {column.name for column in present.columns}
        for column in missing:
            if column.name in names:
                raise Misuse(f"table {info.name!r}: column {column.name!r} was added with another type meanwhile")
        if not missing:
            return info
        columns = (*present.columns, *missing)
        check_distinct((*columns, *(ColumnSchema("a dropped column", "binary", place) for place in present.retired)))
        return replace(info, schema=replace(present, columns=columns))

    return alter_table(conn.deployment, info, with_missing)


def alter_columns(
    url: str,
    table: str,
    *,
    rename: Mapping[str, str] | None = None,
    drop: Iterable[str] = (),
    widen: Mapping[str, Any] | None = None,
    add: Mapping[str, Any] | StructType | None = None,
    order: Iterable[str] = (),
    mapping: Mapping[str, str | bytes] | None = None,
) -> TableSchema:
    """As `pyomid.Database.alter_columns`; types may be Spark's own (`LongType()`), and `add` a `StructType`.

    Frames that were loaded before keep the columns that they had. A write whose frame has a column's former name or
    type is refused.
    """
    from pyomid.client.admin import table_schema

    deployment, wide, added = connection(url, create=False).deployment, _type_names(widen), _type_names(add)
    return table_schema.alter_columns(
        deployment, table, rename=rename, drop=drop, widen=wide, add=added, order=order, mapping=mapping
    )


def _type_names(columns: Any) -> Any:
    if hasattr(columns, "fields"):
        columns = {field.name: field.dataType for field in columns.fields}
    if not isinstance(columns, Mapping):
        return columns
    return {name: type_name(kind.jsonValue()) if hasattr(kind, "jsonValue") else kind for name, kind in columns.items()}


def _made(conn: Connection, name: str, fields: Sequence[Field], options: WriteOptions, level: str | None) -> TableInfo:
    if options.row_key is None:
        find_table(conn.deployment.catalog, name)
        raise Misuse(f"there is no table {name!r}; a write makes one where it names its row key", table=name)
    schema = make_schema(fields, options.row_key, options.mapping, family=options.family)
    families = families_of(schema, family=options.family)
    return make_table(conn.deployment, name, families, conflict_level=_level_of_new(conn, level), schema=schema)


def _level_of_new(conn: Connection, level: str | None) -> ConflictLevel:
    """By rows, which is what a write of a frame replaces. Where Java clients make tables too it is the deployment's:
    their commits name the ids of one level, which is cell unless they are all set otherwise."""
    if level in (None, AUTO_LEVEL, TABLE_LEVEL):
        if conn.deployment.store.capabilities.foreign_tables:
            return conn.deployment.catalog.tables_level() or ConflictLevel.CELL
        return ConflictLevel.ROW
    return ConflictLevel(level)


def _with_schema(conn: Connection, info: TableInfo, fields: Sequence[Field], options: WriteOptions) -> TableInfo:
    """A table that a program without Spark made gets its schema from the first frame that names the row key."""
    if options.row_key is None:
        schema_of(info)
    family = options.family if options.family in info.families else info.families[0]
    schema = make_schema(fields, options.row_key or (), options.mapping, family=family)
    for needed in families_of(schema, family=family):
        if needed not in info.families:
            raise Misuse(f"table {info.name!r} has no family {needed!r}", table=info.name)
    return alter_table(conn.deployment, info, lambda found: found if found.schema else replace(found, schema=schema))
