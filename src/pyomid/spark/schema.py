"""A table's catalog schema and the schemas of Spark, each fitted to the other with errors that name the column; and the
table itself, made or extended for a frame before the first row of a write.

A frame's fields are pairs (name, Spark's JSON type name), so that nothing here needs Spark.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pyomid.client.table_admin import alter_table, make_table
from pyomid.client.validation import SHADOW_SUFFIX, find_table
from pyomid.errors import Misuse, MisuseType, UnknownTable
from pyomid.row_codec.column_types import column_type, nested_arrow_type
from pyomid.row_codec.encode import SENTINEL_QUALIFIER, Duplicates, Nulls
from pyomid.row_codec.row_key import key_layout
from pyomid.spark.databases import Connection
from pyomid.spark.options import AUTO_LEVEL, TABLE_LEVEL
from pyomid.types import Column, ColumnSchema, ConflictLevel, RowKeyPart, TableInfo, TableSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DEFAULT_FAMILY: Final = b"d"

ColumnMapping = Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a frame."""

    name: str
    spark_type: str


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a frame is written; the same names as the data source's options."""

    row_key: tuple[RowKeyPart, ...] | None = None
    mapping: ColumnMapping | None = None
    family: bytes = DEFAULT_FAMILY
    duplicates: Duplicates = Duplicates.ERROR
    nulls: Nulls = Nulls.TOMBSTONE
    merge_schema: bool = False


def fields_of(struct: StructType) -> tuple[Field, ...]:
    """The fields of a Spark schema; MisuseType where two have one name."""
    fields = tuple(Field(each.name, type_name(each.dataType.jsonValue())) for each in struct.fields)
    names = [each.name for each in fields]
    for name in names:
        if names.count(name) > 1:
            raise MisuseType(f"the frame has two columns {name!r}", column=name)
    return fields


def type_name(json_value: object) -> str:
    """A Spark type's JSON value as one text: simple types are their name, nested ones JSON, everything nullable
    (an array of a frame that has no null in it is no other type)."""
    if isinstance(json_value, str):
        return json_value
    return json.dumps(_nullable(json_value), separators=(",", ":"), sort_keys=True)


def _nullable(json_value: Any) -> Any:
    if isinstance(json_value, list):
        return [_nullable(each) for each in json_value]
    if not isinstance(json_value, dict):
        return json_value
    flags = {name: True for name in ("containsNull", "valueContainsNull", "nullable") if name in json_value}
    metadata: dict[str, Any] = {"metadata": {}} if "metadata" in json_value else {}
    return {name: _nullable(value) for name, value in json_value.items()} | flags | metadata


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


def parse_row_key(text: str) -> tuple[RowKeyPart, ...]:
    """`"origin, time_hour desc, carrier"`."""
    return row_key_parts(text.split(","))


def row_key_parts(parts: str | Iterable[str | RowKeyPart]) -> tuple[RowKeyPart, ...]:
    """Key columns by name, each with " desc" behind it where larger values are to come first."""
    if isinstance(parts, str):
        return parse_row_key(parts)
    made = []
    for part in parts:
        if isinstance(part, RowKeyPart):
            made.append(part)
            continue
        name, _, direction = part.strip().rpartition(" ")
        if direction.lower() in ("asc", "desc") and name:
            made.append(RowKeyPart(name.strip(), direction.lower() == "desc"))
        elif part.strip():
            made.append(RowKeyPart(part.strip()))
    names = [part.name for part in made]
    if not names or len(set(names)) < len(names):
        raise Misuse(f"row key {', '.join(names) or 'without columns'!r} must name columns, each once")
    return tuple(made)


def parse_column_mapping(text: str) -> dict[str, Column]:
    """`"name=family:qualifier, other=family:qualifier"`, or a JSON object of the same."""
    if text.lstrip().startswith("{"):
        pairs = list(json.loads(text).items())
    else:
        pairs = [tuple(part.split("=", 1)) for part in text.split(",") if part.strip()]
    return column_mapping(dict(_two(pair, text) for pair in pairs))


def column_mapping(mapping: Mapping[str, str | bytes | Column]) -> dict[str, Column]:
    """Column name → family and qualifier, from "family:qualifier"."""
    made = {}
    for name, place in mapping.items():
        if not isinstance(place, Column):
            raw = place.encode() if isinstance(place, str) else place
            family, colon, qualifier = raw.partition(b":")
            if not colon or not family:
                raise Misuse(f"columnMapping of {name!r} is {place!r}, not family:qualifier", column=name)
            place = Column(family, qualifier)
        made[name.strip()] = place
    return made


def make_schema(
    fields: Sequence[Field],
    row_key: Sequence[RowKeyPart],
    mapping: ColumnMapping | None = None,
    *,
    family: bytes = DEFAULT_FAMILY,
) -> TableSchema:
    """The schema of a new table, or of one that a program without Spark wrote."""
    mapping = mapping or {}
    names = {field.name for field in fields}
    keys = {part.name for part in row_key}
    for name in (*keys, *mapping):
        if name not in names:
            raise Misuse(f"row key or columnMapping names column {name!r}{_near(name, names)}", column=name)
    columns = []
    for field in fields:
        column_type(field.spark_type, field.name)
        place = None if field.name in keys else mapping.get(field.name, Column(family, field.name.encode()))
        if place is not None:
            _check_place(field.name, place)
        columns.append(ColumnSchema(field.name, field.spark_type, place))
    _check_distinct(columns)
    schema = TableSchema(tuple(columns), tuple(row_key))
    key_layout(schema)
    return schema


def families_of(schema: TableSchema, *, family: bytes = DEFAULT_FAMILY) -> tuple[bytes, ...]:
    """The families that its columns need; the default one where there is no column but the key's."""
    found = dict.fromkeys(column.column.family for column in schema.columns if column.column is not None)
    return tuple(found) or (family,)


def schema_of(info: TableInfo) -> TableSchema:
    """The catalog's schema; Misuse where the table has none."""
    if info.schema is None:
        raise Misuse(
            f"table {info.name!r} has no schema in the catalog (it was not written by Spark): "
            "give one by .schema(…) and the option rowKey",
            table=info.name,
        )
    return info.schema


def check_row_key(info: TableInfo, row_key: Sequence[RowKeyPart]) -> None:
    """A row key named for a table that has one must be that one."""
    present = schema_of(info).row_key
    if tuple(row_key) != present:
        raise Misuse(
            f"table {info.name!r} has the row key ({_shown(present)}), not ({_shown(row_key)}): "
            "a table's row key never changes",
            table=info.name,
        )


def fit_frame(
    info: TableInfo, fields: Sequence[Field], *, merge: bool, mapping: ColumnMapping | None = None
) -> TableSchema:
    """The schema that a frame is written by: the table's, with the frame's new columns where `merge` allows them.

    Every key column must be there, every type must be the table's. Columns that the frame lacks stay as they are.
    """
    schema = schema_of(info)
    known = {column.name: column for column in schema.columns}
    given = {field.name for field in fields}
    for part in schema.row_key:
        if part.name not in given:
            raise Misuse(
                f"table {info.name!r}: the frame lacks the row key column {part.name!r}{_near(part.name, given)}",
                column=part.name,
            )
    added = []
    for field in fields:
        present = known.get(field.name)
        if present is not None:
            _check_type(info, present, field)
        elif merge:
            added.append(field)
        else:
            raise Misuse(
                f"table {info.name!r} has no column {field.name!r}{_near(field.name, known)}; "
                "a write adds columns only with mergeSchema",
                column=field.name,
            )
    return _extended(info, schema, added, mapping or {})


def select_columns(info_name: str, schema: TableSchema, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The columns to read, in order; all where none are named."""
    known = [column.name for column in schema.columns]
    if wanted is None:
        return tuple(known)
    for name in wanted:
        if name not in known:
            raise Misuse(f"table {info_name!r} has no column {name!r}{_near(name, known)}", column=name)
    if len(set(wanted)) < len(wanted):
        raise Misuse(f"columns {', '.join(wanted)}: each at most once")
    return tuple(wanted)


def check_read_fields(info: TableInfo, schema: TableSchema, fields: Sequence[Field]) -> tuple[str, ...]:
    """The columns of a schema that a reader gave for a table which has one of its own."""
    known = {column.name: column for column in schema.columns}
    names = select_columns(info.name, schema, [field.name for field in fields])
    for field in fields:
        _check_type(info, known[field.name], field)
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
    return extended(conn, info, schema)


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
    """The table with at least the columns of `schema`, also where another writer adds columns at the same time."""

    def with_missing(info: TableInfo) -> TableInfo:
        present = schema_of(info)
        missing = [column for column in schema.columns if column not in present.columns]
        names = {column.name for column in present.columns}
        for column in missing:
            if column.name in names:
                raise Misuse(f"table {info.name!r}: column {column.name!r} was added with another type meanwhile")
        if not missing:
            return info
        columns = (*present.columns, *missing)
        _check_distinct(columns)
        return replace(info, schema=replace(present, columns=columns))

    return alter_table(conn.deployment, info, with_missing)


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


def _extended(info: TableInfo, schema: TableSchema, added: Sequence[Field], mapping: ColumnMapping) -> TableSchema:
    if not added:
        return schema
    family = families_of(schema)[0]
    columns = list(schema.columns)
    for field in added:
        column_type(field.spark_type, field.name)
        place = mapping.get(field.name, Column(family, field.name.encode()))
        _check_place(field.name, place)
        if place.family not in info.families:
            raise Misuse(f"table {info.name!r} has no family {place.family!r} for column {field.name!r}")
        columns.append(ColumnSchema(field.name, field.spark_type, place))
    _check_distinct(columns)
    return replace(schema, columns=tuple(columns))


def _check_type(info: TableInfo, present: ColumnSchema, field: Field) -> None:
    if column_type(present.spark_type, present.name).arrow != column_type(field.spark_type, field.name).arrow:
        raise MisuseType(
            f"table {info.name!r}: column {field.name!r} is {present.spark_type}, the frame has {field.spark_type}; "
            "cast it",
            column=field.name,
            type=field.spark_type,
        )


def _check_place(name: str, place: Column) -> None:
    if place.qualifier.endswith(SHADOW_SUFFIX):
        raise Misuse(f"column {name!r}: qualifier {place.qualifier!r} ends in C2 80, the mark of shadow cells")
    if not place.qualifier:
        raise Misuse(f"column {name!r}: an empty qualifier stands for the whole family {place.family!r}")
    if place.qualifier == SENTINEL_QUALIFIER:
        raise Misuse(f"column {name!r}: qualifier 00 is kept for the sentinel of rows without values")


def _check_distinct(columns: Sequence[ColumnSchema]) -> None:
    owners: dict[Column, str] = {}
    for column in columns:
        if column.column is None:
            continue
        other = owners.setdefault(column.column, column.name)
        if other != column.name:
            raise Misuse(f"columns {other!r} and {column.name!r} are both stored in {column.column}")


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names) or 'none'}"


def _shown(parts: Sequence[RowKeyPart]) -> str:
    return ", ".join(f"{part.name} desc" if part.descending else part.name for part in parts)


def _two(pair: Sequence[str], text: str) -> tuple[str, str]:
    if len(pair) != 2:
        raise Misuse(f"columnMapping {text!r} is not name=family:qualifier, …")
    return pair[0].strip(), pair[1].strip()
