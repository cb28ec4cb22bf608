"""A table's schema in the catalog: made of fields, a row key and places; fitted to what is written and read, with
errors that name the column. Fields are pairs (name, Spark's JSON type name), so that nothing here needs Spark."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Final

from pyomid.errors import Misuse, MisuseType
from pyomid.row_codec.column_types import ColumnType, Layout, column_type
from pyomid.row_codec.row_key import key_layout
from pyomid.row_codec.sentinel import SENTINEL_QUALIFIER
from pyomid.types import SHADOW_SUFFIX, Column, ColumnSchema, RowKeyPart, TableInfo, TableSchema

DEFAULT_FAMILY: Final = b"d"

ColumnMapping = Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a frame."""

    name: str
    spark_type: str


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


def parse_row_key(text: str) -> tuple[RowKeyPart, ...]:
    """`"origin, time_hour desc, carrier"`."""
    return row_key_parts(text.split(","))


def row_key_parts(parts: str | Iterable[str | RowKeyPart]) -> tuple[RowKeyPart, ...]:
    """Key columns by name, each followed by " desc" where larger values are to come first."""
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
            raise Misuse(f"row key or columnMapping names column {name!r}{near(name, names)}", column=name)
    columns = []
    for field in fields:
        column_type(field.spark_type, field.name)
        place = None if field.name in keys else mapping.get(field.name, Column(family, field.name.encode()))
        if place is not None:
            _check_place(field.name, place)
        columns.append(ColumnSchema(field.name, field.spark_type, place))
    check_distinct(columns)
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
            f"table {info.name!r} has no schema in the catalog: Database.table_schema gives it one (Spark reads it "
            "without one by .schema(…) and the option rowKey)",
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
                f"table {info.name!r}: the frame lacks the row key column {part.name!r}{near(part.name, given)}",
                column=part.name,
            )
    added = []
    for field in fields:
        present = known.get(field.name)
        if present is not None:
            check_type(info, present, field)
        elif merge:
            added.append(field)
        else:
            raise Misuse(
                f"table {info.name!r} has no column {field.name!r}{near(field.name, known)}; "
                "a write adds columns only with mergeSchema",
                column=field.name,
            )
    return extended_schema(info, added, mapping or {})


def select_columns(info_name: str, schema: TableSchema, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The columns to read, in order; all where none are named."""
    known = [column.name for column in schema.columns]
    if wanted is None:
        return tuple(known)
    for name in wanted:
        if name not in known:
            raise Misuse(f"table {info_name!r} has no column {name!r}{near(name, known)}", column=name)
    if len(set(wanted)) < len(wanted):
        raise Misuse(f"columns {', '.join(wanted)}: each at most once")
    return tuple(wanted)


def extended_schema(info: TableInfo, added: Sequence[Field], mapping: ColumnMapping) -> TableSchema:
    """The table's schema with these columns after its own, each at a place that no column has or had (X1)."""
    schema = schema_of(info)
    if not added:
        return schema
    family = families_of(schema)[0] if any(each.column for each in schema.columns) else info.families[0]
    columns = list(schema.columns)
    for field in added:
        column_type(field.spark_type, field.name)
        place = mapping.get(field.name) or free_place(schema, columns, Column(family, field.name.encode()))
        _check_place(field.name, place)
        if place in schema.retired:
            raise Misuse(
                f"column {field.name!r} cannot be stored in {place}: a column that was dropped left its values there; "
                "leave its place away, or name another one",
                column=field.name,
            )
        if place.family not in info.families:
            raise Misuse(f"table {info.name!r} has no family {place.family!r} for column {field.name!r}")
        columns.append(ColumnSchema(field.name, field.spark_type, place))
    check_distinct(columns)
    return replace(schema, columns=tuple(columns))


def free_place(schema: TableSchema, columns: Sequence[ColumnSchema], wanted: Column) -> Column:
    """`wanted`, or the next one like it that none of these columns has, and no dropped one had."""
    taken = {column.column for column in columns} | set(schema.retired)
    places = chain([wanted], (Column(wanted.family, wanted.qualifier + b"~%d" % n) for n in count(2)))
    return next(place for place in places if place not in taken)


def check_type(info: TableInfo, present: ColumnSchema, field: Field) -> None:
    if not _is_same(column_type(present.spark_type, present.name), column_type(field.spark_type, field.name)):
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


def check_distinct(columns: Sequence[ColumnSchema]) -> None:
    owners: dict[Column, str] = {}
    for column in columns:
        if column.column is None:
            continue
        other = owners.setdefault(column.column, column.name)
        if other != column.name:
            raise Misuse(f"columns {other!r} and {column.name!r} are both stored in {column.column}")


def near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names) or 'none'}"


def _shown(parts: Sequence[RowKeyPart]) -> str:
    return ", ".join(f"{part.name} desc" if part.descending else part.name for part in parts)


def _two(pair: Sequence[str], text: str) -> tuple[str, str]:
    if len(pair) != 2:
        raise Misuse(f"columnMapping {text!r} is not name=family:qualifier, …")
    return pair[0].strip(), pair[1].strip()


def _is_same(one: ColumnType, other: ColumnType) -> bool:
    """Day-time intervals of any fields are one type, and so are two texts of one nested type."""
    if one.layout is Layout.JSON and other.layout is Layout.JSON:
        return bool(json.loads(one.name) == json.loads(other.name))
    if one.name.startswith("interval ") and other.name.startswith("interval "):
        return True
    if one.layout is Layout.DECIMAL and other.layout is Layout.DECIMAL:
        return (one.precision, one.scale) == (other.precision, other.scale)
    return one.name == other.name
