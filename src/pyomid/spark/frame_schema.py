"""Converts between a table's catalog schema and Spark's schemas, with errors that name the column; and creates or
extends the table for a frame, before the first row is written.

A frame's fields are pairs (name, Spark's JSON type name), so most of this module does not need Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyomid.database import table_admin
from pyomid.database.table_admin import alter_table, make_table
from pyomid.database.validation import check_table_name, near_table
from pyomid.errors import Misuse, MisuseType, UnknownTable
from pyomid.rows.column_types import nested_arrow_type
from pyomid.rows.encode import Duplicates, Nulls
from pyomid.rows.schema import (
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
from pyomid.spark.connections import Connection
from pyomid.spark.source.options import AUTO_LEVEL, TABLE_LEVEL, checked_choice
from pyomid.types import ColumnSchema, ConflictLevel, RowKeyPart, TableInfo, TableSchema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from pyomid.spark.database import SparkDatabase


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write of a frame; they have the names of the data source's options."""

    row_key: tuple[RowKeyPart, ...] | None = None
    mapping: ColumnMapping | None = None
    family: bytes = DEFAULT_FAMILY
    duplicates: Duplicates = Duplicates.ERROR
    nulls: Nulls = Nulls.TOMBSTONE
    merge_schema: bool = False
    any_case: bool = True
    """Whether the writer's Spark session ignores case in names; True if its settings are unknown."""
    new_keys: bool = False
    """Refuse a row whose key exists in the snapshot, as SQL's INSERT does."""
    whole: bool = False
    """At level cell, also conflict with transactions that create or delete these rows."""

    @classmethod
    def checked(
        cls,
        row_key: tuple[RowKeyPart, ...] | None,
        mapping: ColumnMapping | None,
        family: str | None,
        duplicates: str | None,
        nulls: str | None,
        merge_schema: bool,
        any_case: bool = True,
    ) -> WriteOptions:
        """Return the options after checking the caller's values; None stands for the default."""
        return cls(
            row_key,
            mapping,
            DEFAULT_FAMILY if family is None else family.encode(),
            Duplicates(checked_choice("duplicates", duplicates or "error", ("error", "last"))),
            Nulls(checked_choice("nulls", nulls or "tombstone", ("tombstone", "keep"))),
            merge_schema,
            any_case,
        )


def fields_of(struct: StructType) -> tuple[Field, ...]:
    """Return the fields of a Spark schema. Raises `MisuseType` if two fields have the same name."""
    fields = tuple(Field(each.name, spark_type(each.dataType)) for each in struct.fields)
    names = [each.name for each in fields]
    for name in names:
        if names.count(name) > 1:
            raise MisuseType(f"the frame has two columns named {name!r}; rename or drop one of them", column=name)
    return fields


def spark_type(kind: DataType) -> str:
    """Return the name of a Spark type, with the collations of nested strings: Spark's own JSON of a struct keeps its
    fields' collations in their metadata."""
    return type_name(_type_json(kind))


def _type_json(kind: DataType) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        names = ("name", "nullable")
        fields = [{n: getattr(f, n) for n in names} | {"type": _type_json(f.dataType), "metadata": {}} for f in kind]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ArrayType):
        return {"type": "array", "elementType": _type_json(kind.elementType), "containsNull": kind.containsNull}
    if isinstance(kind, MapType):
        key, value = _type_json(kind.keyType), _type_json(kind.valueType)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": kind.valueContainsNull}
    return kind.jsonValue()


def check_case(table: str, known: Sequence[str], fields: Sequence[Field]) -> None:
    """Raise `Misuse` if a column that a frame would add, or a field inside it, differs only by case from another
    name, because Spark could then resolve neither."""
    names = list(known)
    for field in fields:
        if field.name not in known:
            _check_new_name(table, "column", field.name, names)
            names.append(field.name)
            if field.spark_type.startswith("{"):
                _check_field_names(table, field.name, json.loads(field.spark_type))


def _check_new_name(table: str, what: str, name: str, others: Sequence[str]) -> None:
    same = next((other for other in others if other.lower() == name.lower()), None)
    if same is not None:
        raise Misuse(
            f"table {table!r}: {what} {name!r} of the frame and {same!r} differ only by case, and Spark ignores case; "
            f"rename {name!r} in the frame (with spark.sql.caseSensitive=true, tx.write accepts both names)",
            column=name,
        )


def _check_field_names(table: str, path: str, spark: Any) -> None:
    if isinstance(spark, dict) and "fields" in spark:
        names: list[str] = []
        for field in spark["fields"]:
            _check_new_name(table, f"field of {path!r}", field["name"], names)
            names.append(field["name"])
            _check_field_names(table, f"{path}.{field['name']}", field["type"])
    elif isinstance(spark, dict):
        for part in ("elementType", "keyType", "valueType"):
            _check_field_names(table, path, spark.get(part))


def check_same_columns(what: str, schema: TableSchema, names: Sequence[str]) -> None:
    """Raise `Misuse` if the columns of a frame of the table are not those of the planned schema."""
    if list(names) != [column.name for column in schema.columns]:
        raise Misuse(f"{what}: another transaction has changed the columns of the table; begin the transaction again")


def struct_of(schema: TableSchema, names: Sequence[str]) -> StructType:
    """Return the Spark schema of these columns, all nullable."""
    types = {column.name: column.spark_type for column in schema.columns}
    return struct_of_types({name: types[name] for name in names})


def struct_of_types(types: Mapping[str, str]) -> StructType:
    """Return a Spark schema made of names and Spark types."""
    from pyspark.sql.types import StructType

    return StructType.fromJson({"type": "struct", "fields": [_json_field(*each) for each in types.items()]})


def _json_field(name: str, spark_type: str) -> dict[str, Any]:
    kind = json.loads(spark_type) if spark_type.startswith("{") else spark_type
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def arrow_of(struct: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema, nullability included, because Spark compares it with the batches that
    a reader yields. PySpark's own function is not public and differs between versions."""
    return pa.schema(
        [
            pa.field(field.name, nested_arrow_type(field.dataType.jsonValue(), field.name), nullable=field.nullable)
            for field in struct.fields
        ]
    )


def check_read_fields(info: TableInfo, schema: TableSchema, fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the table's columns that a reader's schema names, after checking their types."""
    known = {column.name: column for column in schema.columns}
    names = select_columns(info.name, schema, [field.name for field in fields])
    for field in fields:
        check_type(info, known[field.name], field)
    return names


def column_types(info: TableInfo) -> dict[str, str]:
    """Return the Spark types of the table's columns by name; empty if it has no schema."""
    return {column.name: column.spark_type for column in info.schema.columns} if info.schema is not None else {}


def table_or_none(conn: Connection, name: str) -> TableInfo | None:
    try:
        return conn.deployment.catalog.table(name)
    except UnknownTable:
        return None


def prepared_table(
    conn: Connection, name: str, fields: Sequence[Field], options: WriteOptions, level: str | None
) -> TableInfo:
    """Return the catalog entry of a table that can store a frame of these fields; create or extend the table if the
    options allow it. A table that another client created first is treated like any existing table.

    A new table or column is durable at once, and stays if the transaction rolls back: other transactions may use it.
    """
    info = table_or_none(conn, name)
    if options.any_case:
        schema = None if info is None else info.schema
        check_case(name, [column.name for column in schema.columns] if schema is not None else [], fields)
    if info is None:
        info = _made(conn, name, fields, options, level)
    conn.deployment.store.check_opened(name, info.families, leased=True)
    check_level(info, level)
    if info.schema is None:
        info = _with_schema(conn, info, fields, options)
    if options.row_key is not None:
        check_row_key(info, options.row_key)
    schema = fit_frame(info, fields, merge=options.merge_schema, mapping=options.mapping)
    info = extended(conn, info, schema)
    fit_frame(info, fields, merge=False)  # S9: a column that was renamed meanwhile would be omitted silently
    return info


def check_level(info: TableInfo, level: str | None) -> None:
    """Raise `Misuse` if the requested level is not the table's level (T9)."""
    if level not in (None, AUTO_LEVEL, TABLE_LEVEL, *(each.value for each in info.id_levels)):
        raise Misuse(
            f"table {info.name!r} has conflict level {info.conflict_level.value!r}, not {level!r}. A table has only "
            "one level, because transactions with different levels would not detect each other's conflicting writes. "
            "Omit the conflict level, give 'table', or change the table's level with `pyomid tables URL alter NAME "
            "--conflict-level`",
            table=info.name,
        )


def extended(conn: Connection, info: TableInfo, schema: TableSchema) -> TableInfo:
    """Return the table with at least the columns of `schema`, even if another writer adds columns at the same time.
    Family and qualifier identify a column: a column that was renamed, widened or dropped since `info` was read does
    not count as missing (X1)."""
    known = {column.column for column in schema_of(info).columns}

    def with_missing(info: TableInfo) -> TableInfo:
        present = schema_of(info)
        missing = [c for c in schema.columns if c.column not in known and c not in present.columns]
        names = {column.name for column in present.columns}
        for column in missing:
            if column.name in names:
                raise Misuse(
                    f"table {info.name!r}: another writer added column {column.name!r} with another type at the "
                    "same time; repeat the write"
                )
        if not missing:
            return info
        columns = (*present.columns, *missing)
        check_distinct((*columns, *(ColumnSchema("a dropped column", "binary", place) for place in present.retired)))
        return replace(info, schema=replace(present, columns=columns))

    return alter_table(conn.deployment, info, with_missing)


def alter_columns(
    db: SparkDatabase,
    table: str,
    *,
    rename: Mapping[str, str] | None = None,
    drop: Iterable[str] = (),
    widen: Mapping[str, Any] | None = None,
    add: Mapping[str, Any] | StructType | None = None,
    order: Iterable[str] = (),
    mapping: Mapping[str, str | bytes] | None = None,
) -> TableSchema:
    """Change a table's columns and return the new schema, as `pyomid.Database.alter_columns` does. Types may be Spark
    types, such as `LongType()`, and `add` may be a `StructType`.

    Frames that were loaded before the call keep their former columns. Without `merge_schema`, a later write raises
    `Misuse` if its frame has a column's former name. A frame with a column's former, narrower type is still accepted.
    """
    deployment, wide, added = db.opened(create=False).deployment, _type_names(widen), _type_names(add)
    return table_admin.alter_columns(
        deployment, table, rename=rename, drop=drop, widen=wide, add=added, order=order, mapping=mapping
    )


def _type_names(columns: Any) -> Any:
    if hasattr(columns, "fields"):
        columns = {field.name: field.dataType for field in columns.fields}
    if not isinstance(columns, Mapping):
        return columns
    return {name: spark_type(kind) if hasattr(kind, "jsonValue") else kind for name, kind in columns.items()}


def _made(conn: Connection, name: str, fields: Sequence[Field], options: WriteOptions, level: str | None) -> TableInfo:
    if options.row_key is None:
        near = near_table(check_table_name(name), [each.name for each in conn.deployment.catalog.tables()])
        raise UnknownTable(
            f"there is no table {name!r}; to create the table with this write, give row_key=[…] (in df.write: option "
            f"rowKey){near}",
            table=name,
        )
    schema = make_schema(fields, options.row_key, options.mapping, family=options.family)
    families = families_of(schema, family=options.family)
    return make_table(conn.deployment, name, families, conflict_level=level_of_new(conn, level), schema=schema)


def level_of_new(conn: Connection, level: str | None) -> ConflictLevel:
    """Return the conflict level of a new table. The default is row, because a write of a frame replaces rows; if Java
    clients share the tables, it is the deployment's level, because a Java client uses one level (cell by default) for
    all tables."""
    if level in (None, AUTO_LEVEL, TABLE_LEVEL):
        if conn.deployment.foreign is not None:
            return conn.deployment.catalog.tables_level() or ConflictLevel.CELL
        return ConflictLevel.ROW
    return ConflictLevel(level)


def _with_schema(conn: Connection, info: TableInfo, fields: Sequence[Field], options: WriteOptions) -> TableInfo:
    """Return a table that was created without a schema after giving it the schema of the first frame with a row key."""
    if options.row_key is None:
        schema_of(info)
    family = options.family if options.family in info.families else info.families[0]
    schema = make_schema(fields, options.row_key or (), options.mapping, family=family)
    for needed in families_of(schema, family=family):
        if needed not in info.families:
            raise Misuse(
                f"table {info.name!r} has no family {needed!r}; its families are {info.families!r}", table=info.name
            )
    return alter_table(conn.deployment, info, lambda found: found if found.schema else replace(found, schema=schema))
