"""A table's schema in the catalog. This module creates a schema from fields and a row key, extends and changes it, and
checks frames against it, with errors that name the column. Fields are pairs (name, Spark's JSON type name), so the
module does not need Spark.

A change of a table with data changes only its entry in the catalog, never a stored byte:

    rename    changes the name, not the place (family and qualifier) of the cells, which Java programs see
    drop      retires the place: its cells are no longer read, and no column ever gets the place again (X1)
    widen     gives a type that has every value of the former type; a stored value's length shows its type
    add       puts a column at a place that no column has or had
    order     changes the order of names only

A value column may always be null, a key column never. Key columns may be renamed and reordered, but not dropped or
widened, because their bytes are the row keys.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Final, Literal

from pyomid.errors import Misuse, MisuseType
from pyomid.rows.annotations import Unresolved, field_annotations
from pyomid.rows.column_types import ColumnType, Layout, column_type, type_of_python
from pyomid.rows.row_key import key_layout
from pyomid.types import SHADOW_SUFFIX, Column, ColumnSchema, RowKeyPart, TableInfo, TableSchema

DEFAULT_FAMILY: Final = b"d"

ColumnMapping = Mapping[str, Column]

_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}


_INTEGERS: Final = ("byte", "short", "integer", "long")


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a frame."""

    name: str
    spark_type: str


def fields_of(columns: object) -> list[Field]:
    """Return the fields of a mapping of names to types, or of a class with annotations."""
    if isinstance(columns, type):
        columns = _resolved(columns)
    if not isinstance(columns, Mapping) or not columns:
        raise MisuseType(f"columns must be a class with annotations or a mapping from names to types, not {columns!r}")
    for name in columns:
        if not isinstance(name, str):
            raise MisuseType(
                f"columns: a column name must be a string, not {name!r} ({type(name).__name__})", column=name
            )
    return [Field(name, type_of_python(name, kind)) for name, kind in columns.items()]


def _resolved(kind: type) -> dict[str, Any]:
    annotations = field_annotations(kind)
    for name, annotation in annotations.items():
        if isinstance(annotation, Unresolved):
            raise MisuseType(
                f"class {kind.__name__}: the annotation of {name!r} cannot be evaluated ({annotation.error}); define "
                "the missing name in the module of the class, or give the columns as a mapping from names to types",
                column=name,
            )
    return annotations


def type_name(json_value: object) -> str:
    """Return a Spark type's JSON value as text: the name of a simple type, or the JSON of a nested type with all parts
    nullable, so that types that differ only in nullability have the same name."""
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


def utf8(text: str, what: str) -> bytes:
    """Return a name as bytes. Raise `Misuse` if it has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Misuse(
            f"{what} {text!r} contains the lone surrogate {text[error.start]!r}, which is not a character", column=text
        ) from None


def names_in(text: str, what: str) -> list[str]:
    """Return the names in a text, which is comma-separated, or a JSON array of strings if a name contains a comma."""
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Misuse(f'{what} {text!r} is not a JSON array of names, such as ["one", "two, or three"]', value=text)
    return names


def names_text(names: Iterable[str]) -> str:
    """Return names as text for `names_in`; names may contain any characters."""
    return json.dumps(list(names))


def parse_row_key(text: str) -> tuple[RowKeyPart, ...]:
    """Return the parts of a row key from `"origin, time_hour desc, carrier"`, or from a JSON array of such parts."""
    return row_key_parts([_DIRECTION.sub(r" \1", name) for name in names_in(text, "row key")])


_DIRECTION: Final = re.compile(r"\s+(asc|desc)$", re.IGNORECASE)


def row_key_text(row_key: str | Iterable[str | RowKeyPart]) -> str:
    """Return key columns as text for `parse_row_key`; names may contain any characters."""
    return names_text(f"{part.name} {'desc' if part.descending else 'asc'}" for part in row_key_parts(row_key))


def row_key_parts(parts: str | Iterable[str | RowKeyPart]) -> tuple[RowKeyPart, ...]:
    """Return the parts of a row key from column names; " desc" after a name puts larger values first."""
    if isinstance(parts, str):
        return parse_row_key(parts)
    given = list(parts) if isinstance(parts, Iterable) else [parts]
    made = []
    for part in given:
        if not isinstance(part, str | RowKeyPart):
            raise MisuseType(f"row key {parts!r}: {part!r} is not a column name", value=parts)
        if isinstance(part, RowKeyPart):
            made.append(part)
            continue
        name, _, direction = part.rpartition(" ")
        if direction.lower() in ("asc", "desc") and name.strip():
            made.append(RowKeyPart(name, direction.lower() == "desc"))
        elif part.strip():
            made.append(RowKeyPart(part))
        else:
            raise Misuse(f"row key {parts!r}: {part!r} is not a column name", value=parts)
    names = [part.name for part in made]
    if not names or len(set(names)) < len(names):
        raise Misuse(f"row key {', '.join(names) or 'without columns'!r} must name at least one column, and none twice")
    return tuple(made)


def parse_column_mapping(text: str) -> dict[str, Column]:
    """Return the mapping in `"name=family:qualifier, other=family:qualifier"`, or in an equivalent JSON object."""
    if text.lstrip().startswith("{"):
        try:
            pairs = list(json.loads(text).items())
        except ValueError as error:
            raise Misuse(f"mapping {text!r} is not a JSON object: {error}") from error
    else:
        pairs = [tuple(part.split("=", 1)) for part in text.split(",") if part.strip()]
    return column_mapping(dict(_two(pair, text) for pair in pairs))


def column_mapping(mapping: Mapping[str, str | bytes | Column]) -> dict[str, Column]:
    """Return a dict from each column name to its family and qualifier, parsed from "family:qualifier"."""
    made = {}
    if not isinstance(mapping, Mapping):
        raise MisuseType(
            f"mapping must be a mapping from column names to family:qualifier, not {mapping!r}", value=mapping
        )
    for name, place in mapping.items():
        if not isinstance(place, Column):
            if not isinstance(place, str | bytes):
                raise MisuseType(f"mapping of column {name!r} must be family:qualifier, not {place!r}", column=name)
            raw = utf8(place, f"the place of {name!r}") if isinstance(place, str) else place
            family, colon, qualifier = raw.partition(b":")
            if not colon or not family:
                raise Misuse(f"mapping of column {name!r} must be family:qualifier, not {place!r}", column=name)
            place = Column(family, qualifier)
        made[name] = place
    return made


def make_schema(
    fields: Sequence[Field],
    row_key: Sequence[RowKeyPart],
    mapping: ColumnMapping | None = None,
    *,
    family: bytes = DEFAULT_FAMILY,
) -> TableSchema:
    """Return the schema for a new table, or for a table that has no schema yet."""
    mapping = mapping or {}
    names = {field.name for field in fields}
    keys = {part.name for part in row_key}
    for name in (*keys, *mapping):
        if name not in names:
            raise Misuse(f"the row key or the mapping names an unknown column {name!r}{near(name, names)}", column=name)
    columns = []
    for field in fields:
        column_type(field.spark_type, field.name)
        qualifier = utf8(field.name, "column name")
        place = None if field.name in keys else mapping.get(field.name, Column(family, qualifier))
        if place is not None:
            _check_place(field.name, place)
        columns.append(ColumnSchema(field.name, field.spark_type, place))
    check_distinct(columns)
    schema = TableSchema(tuple(columns), tuple(row_key))
    key_layout(schema)
    return schema


def families_of(schema: TableSchema, *, family: bytes = DEFAULT_FAMILY) -> tuple[bytes, ...]:
    """Return the families that the columns need; `family` if there are only key columns."""
    found = dict.fromkeys(column.column.family for column in schema.columns if column.column is not None)
    return tuple(found) or (family,)


def schema_of(info: TableInfo) -> TableSchema:
    """Return the table's schema in the catalog. Raise `Misuse` if the table has none."""
    if info.schema is None:
        raise Misuse(
            f"table {info.name!r} has no schema in the catalog; add one with Database.set_schema. Spark can read the "
            "table without a schema in the catalog, with .schema(…) and the option rowKey",
            table=info.name,
        )
    return info.schema


def check_row_key(info: TableInfo, row_key: Sequence[RowKeyPart]) -> None:
    """Raise `Misuse` if the row key differs from the table's."""
    present = schema_of(info).row_key
    if tuple(row_key) != present:
        raise Misuse(
            f"table {info.name!r} has the row key ({_shown(present)}), not ({_shown(row_key)}): "
            "a table's row key cannot change",
            table=info.name,
        )


def fit_frame(
    info: TableInfo,
    fields: Sequence[Field],
    *,
    merge: bool,
    mapping: ColumnMapping | None = None,
    given: Literal["frame", "columns"] = "frame",
) -> TableSchema:
    """Return the schema for writing a frame: the table's columns, and, if `merge` allows it, the frame's new columns.

    The frame must have every key column, and the table's types. Columns that it lacks keep their stored values. `given`
    says, for errors, whether the fields are a frame's, or columns that a program declares.
    """
    schema = schema_of(info)
    known = {column.name: column for column in schema.columns}
    names = {field.name for field in fields}
    for part in schema.row_key:
        if part.name not in names:
            lacking = "the frame lacks" if given == "frame" else "the given columns lack"
            raise Misuse(
                f"table {info.name!r}: {lacking} the row key column {part.name!r}{near(part.name, names)}",
                column=part.name,
            )
    added = []
    for field in fields:
        present = known.get(field.name)
        if present is not None:
            check_type(info, present, field, by_name=True, given=given)
        elif merge:
            added.append(field)
        else:
            raise Misuse(
                f"table {info.name!r} has no column {field.name!r}{near(field.name, known)}; "
                "to add it, set merge_schema=True (in df.write: option mergeSchema)",
                column=field.name,
            )
    return extended_schema(info, added, mapping or {})


def select_columns(
    info_name: str, schema: TableSchema, wanted: Sequence[str] | None, *, any_case: bool = False
) -> tuple[str, ...]:
    """Return the columns to read, in order; all if `wanted` is None. `any_case` has the same meaning as in
    `column_named`."""
    known = [column.name for column in schema.columns]
    if wanted is None:
        return tuple(known)
    found = []
    for name in wanted:
        column = column_named(name, known, f"table {info_name!r}", any_case=any_case)
        if column is None:
            raise Misuse(f"table {info_name!r} has no column {name!r}{near(name, known)}", column=name)
        found.append(column)
    if len(set(found)) < len(found):
        raise Misuse(f"columns {', '.join(wanted)}: name each column at most once")
    return tuple(found)


def column_named(name: str, known: Iterable[str], whose: str, *, any_case: bool) -> str | None:
    """Return the column with this name, or, with `any_case`, a column whose name differs only by case; None if there is
    none. Raise `Misuse` if several names differ only by case."""
    names = list(known)
    if name in names or not any_case:
        return name if name in names else None
    same = [each for each in names if each.lower() == name.lower()]
    if len(same) > 1:
        raise Misuse(
            f"{whose} has several names that differ from {name!r} only by case: {', '.join(same)}; give one of these "
            "names",
            column=name,
        )
    return same[0] if same else None


def extended_schema(info: TableInfo, added: Sequence[Field], mapping: ColumnMapping) -> TableSchema:
    """Return the table's schema with these columns added, each at a place that no column has or had (X1)."""
    schema = schema_of(info)
    if not added:
        return schema
    family = families_of(schema)[0] if any(each.column for each in schema.columns) else info.families[0]
    columns = list(schema.columns)
    for field in added:
        column_type(field.spark_type, field.name)
        qualifier = utf8(field.name, "column name")
        place = mapping.get(field.name) or free_place(schema, columns, Column(family, qualifier))
        _check_place(field.name, place)
        if place in schema.retired:
            raise Misuse(
                f"column {field.name!r} cannot be stored in {place}, which holds values of a dropped column; map the "
                "column to another place, or omit the column from the mapping",
                column=field.name,
            )
        if place.family not in info.families:
            raise Misuse(
                f"column {field.name!r} is mapped to family {place.family!r}, which table {info.name!r} does not have"
            )
        columns.append(ColumnSchema(field.name, field.spark_type, place))
    check_distinct(columns)
    return replace(schema, columns=tuple(columns))


def free_place(schema: TableSchema, columns: Sequence[ColumnSchema], wanted: Column) -> Column:
    """Return `wanted`, or `wanted` with a number appended, so that no present or dropped column has this place."""
    taken = {column.column for column in columns} | set(schema.retired)
    places = chain([wanted], (Column(wanted.family, wanted.qualifier + b"~%d" % n) for n in count(2)))
    return next(place for place in places if place not in taken)


def check_type(
    info: TableInfo,
    present: ColumnSchema,
    field: Field,
    *,
    by_name: bool = False,
    given: Literal["frame", "columns"] = "frame",
) -> None:
    """Raise `MisuseType` if a field does not have the column's type. With `by_name`, structs may have their fields in
    another order, because their values are matched by name, and numbers may have a type that tasks convert."""
    found, wanted = column_type(field.spark_type, field.name), column_type(present.spark_type, present.name)
    if not (_is_same(wanted, found, by_name=by_name) or (by_name and is_converted(found, wanted))):
        but = (
            f"but the frame has {field.spark_type}; {way_to_fit(present.spark_type, field.spark_type)}"
            if given == "frame"
            else f"not {field.spark_type}; declare the column with the type of the table, or name a new column"
        )
        raise MisuseType(
            f"table {info.name!r}: column {field.name!r} has type {present.spark_type}, {but}",
            column=field.name,
            type=field.spark_type,
        )


def way_to_fit(wanted: str, given: str) -> str:
    """Return advice on how to convert a value of the type `given` to the type `wanted`."""
    if wanted.startswith("{") and given.startswith("{") and _by_name(json.loads(wanted)) == _by_name(json.loads(given)):
        return (
            "the order of the fields differs, and a cast would swap their values, because it matches fields by "
            "position: rebuild the struct by named_struct, with the fields in the column's order"
        )
    if "{" in (wanted[:1], given[:1]):
        return "rebuild the value with that type; a cast matches the fields of structs by position"
    return "cast it"


def _by_name(spark: Any) -> Any:
    """Return a Spark type's JSON value with the fields of structs sorted by name."""
    if isinstance(spark, list):
        return [_by_name(each) for each in spark]
    if not isinstance(spark, dict):
        return spark
    plain = {name: _by_name(value) for name, value in spark.items()}
    if "fields" in plain:
        plain["fields"] = sorted(plain["fields"], key=lambda each: str(each["name"]))
    return plain


def _check_place(name: str, place: Column) -> None:
    if place.qualifier.endswith(SHADOW_SUFFIX):
        raise Misuse(
            f"column {name!r}: qualifier {place.qualifier!r} ends with the bytes C2 80, which mark shadow cells; give "
            "another qualifier"
        )
    if not place.qualifier:
        raise Misuse(f"column {name!r}: an empty qualifier means the whole family {place.family!r}; give a qualifier")
    if place.qualifier == SENTINEL_QUALIFIER:
        raise Misuse(
            f"column {name!r}: the one-byte qualifier 00 is reserved for the sentinel of rows without values; give "
            "another qualifier"
        )


def check_distinct(columns: Sequence[ColumnSchema]) -> None:
    """S9: raise `Misuse` if two columns have the same place (family and qualifier)."""
    owners: dict[Column, str] = {}
    for column in columns:
        if column.column is None:
            continue
        other = owners.setdefault(column.column, column.name)
        if other != column.name:
            raise Misuse(
                f"columns {other!r} and {column.name!r} have the same place {column.column}; map each column to a "
                "different place"
            )


def near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names) or 'none'}"


def _shown(parts: Sequence[RowKeyPart]) -> str:
    return ", ".join(f"{part.name} desc" if part.descending else part.name for part in parts)


def _two(pair: Sequence[str], text: str) -> tuple[str, str]:
    if len(pair) != 2:
        raise Misuse(f"mapping {text!r} is not of the form name=family:qualifier, other=family:qualifier")
    return pair[0].strip(), pair[1].strip()


def is_converted(given: ColumnType, wanted: ColumnType) -> bool:
    """Whether a write converts values of one type to the other. It converts dates, and numbers that the column can hold
    exactly; it refuses other numbers."""
    if given.name == "date":
        return wanted.name == "timestamp_ntz"
    if given.name in _INTEGERS:
        return wanted.name in _INTEGERS or wanted.layout in (Layout.FLOAT, Layout.DECIMAL)
    if given.layout is Layout.FLOAT:
        return wanted.layout is Layout.FLOAT and wanted.width >= given.width
    return given.layout is Layout.DECIMAL and wanted.layout is Layout.DECIMAL


def _is_same(one: ColumnType, other: ColumnType, *, by_name: bool = False) -> bool:
    """Whether two types are the same. All day-time intervals are the same type; nested types are the same if their JSON
    is equal."""
    if one.layout is Layout.JSON and other.layout is Layout.JSON:
        types = json.loads(one.name), json.loads(other.name)
        return bool(types[0] == types[1] or (by_name and _by_name(types[0]) == _by_name(types[1])))
    if one.name.startswith("interval ") and other.name.startswith("interval "):
        return True
    if one.layout is Layout.DECIMAL and other.layout is Layout.DECIMAL:
        return (one.precision, one.scale) == (other.precision, other.scale)
    return one.name == other.name


SENTINEL_QUALIFIER: Final = b"\x00"
"""The qualifier of the row-existence sentinel: a cell `<family>:00` that makes a row without values (all null, or only
key columns) exist. The sentinel is deleted with the row; a row with any value needs no sentinel. On tables of conflict
level `cell`, writers of whole rows (a merge, an update or a delete of `pyomid.spark`) write the sentinel too, as a
tombstone if the row has values. So they conflict with transactions that create or delete a row without values."""
SENTINEL_VALUE: Final = b"\x01"


def sentinel_column(schema: TableSchema, families: tuple[bytes, ...]) -> Column:
    """Return the column of a table's sentinels, which is in the family of the first value column, or else in the first
    family. The column never changes, because transactions that create and delete rows without values must conflict on
    it."""
    family = next((each.column.family for each in schema.columns if each.column is not None), families[0])
    return Column(schema.sentinel_family or family, SENTINEL_QUALIFIER)


# Changes of the columns of a table with data


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Changes of columns to apply together. `order` has the new names, all other fields the former names. Columns that
    `order` omits follow the columns that it names."""

    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drop: Sequence[str] = ()
    widen: Mapping[str, str] = dataclasses.field(default_factory=dict)
    add: Sequence[Field] = ()
    order: Sequence[str] = ()
    mapping: ColumnMapping = dataclasses.field(default_factory=dict)
    """Family and qualifier of added columns; optional."""


def changed_table(info: TableInfo, changes: ColumnChanges) -> TableInfo:
    """Return the entry after the changes. `Misuse` or `MisuseType` names a column that cannot be changed like this."""
    schema = schema_of(info)
    _check_names(info, schema, changes)
    key = {part.name for part in schema.row_key}
    for name in (*changes.drop, *changes.widen):
        if name in key:
            raise Misuse(
                f"table {info.name!r}: column {name!r} belongs to the row key and cannot be dropped or widened, "
                "because the stored row keys contain its values",
                column=name,
            )
    _check_indexes(info, schema, changes)
    kept = [
        _widened(info, replace(column, name=changes.rename.get(column.name, column.name)), changes.widen[column.name])
        if column.name in changes.widen
        else replace(column, name=changes.rename.get(column.name, column.name))
        for column in schema.columns
        if column.name not in changes.drop
    ]
    _check_names_differ(info, [column.name for column in kept] + [added.name for added in changes.add])
    dropped = [column.column for column in schema.columns if column.name in changes.drop]
    after = TableSchema(
        tuple(kept),
        tuple(replace(part, name=changes.rename.get(part.name, part.name)) for part in schema.row_key),
        (*schema.retired, *(place for place in dropped if place is not None)),
        sentinel_column(schema, info.families).family,
    )
    after = extended_schema(replace(info, schema=after), changes.add, changes.mapping)
    return replace(info, schema=replace(after, columns=_ordered(info, after.columns, changes.order)))


def _check_indexes(info: TableInfo, schema: TableSchema, changes: ColumnChanges) -> None:
    for column in schema.columns:
        index = next((index.name for index in info.indexes if column.column in index.columns), None)
        if index is not None and (column.name in changes.drop or column.name in changes.widen):
            raise Misuse(
                f"table {info.name!r}: column {column.name!r} is in the index {index!r} and cannot be dropped or "
                "widened; drop the index first",
                column=column.name,
            )


def _check_names(info: TableInfo, schema: TableSchema, changes: ColumnChanges) -> None:
    known = [column.name for column in schema.columns]
    if not (changes.rename or changes.drop or changes.widen or changes.add or changes.order):
        raise Misuse(
            f"table {info.name!r}: no change was given; give rename, drop, widen, add or order", table=info.name
        )
    for name in (*changes.rename, *changes.drop, *changes.widen):
        if name not in known:
            raise Misuse(f"table {info.name!r} has no column {name!r}{near(str(name), known)}", column=name)
    for name in changes.drop:
        if name in changes.rename or name in changes.widen or list(changes.drop).count(name) > 1:
            raise Misuse(
                f"table {info.name!r}: drop names column {name!r}, so the same call cannot rename the column, widen it "
                "or drop it again",
                column=name,
            )
    for name in changes.rename.values():
        if not isinstance(name, str) or not name:
            raise MisuseType(
                f"table {info.name!r}: the new name of a column must be a non-empty string, not {name!r}", value=name
            )
        utf8(name, "column name")


def _check_names_differ(info: TableInfo, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise Misuse(
                f"table {info.name!r} would have two columns {name!r}; give another name, or rename or drop the "
                "existing column in the same call",
                column=name,
            )


def _widened(info: TableInfo, column: ColumnSchema, type_name: str) -> ColumnSchema:
    if type_name == column.spark_type:
        return column
    old, new = column_type(column.spark_type, column.name), column_type(type_name, column.name)
    if old.layout is Layout.DECIMAL and new.layout is Layout.DECIMAL:
        if new.scale == old.scale and new.precision >= old.precision:
            return replace(column, spark_type=type_name)  # a stored decimal has a variable length
    elif type_name in _WIDER.get(column.spark_type, ()):
        return replace(column, spark_type=type_name, earlier_types=(*column.earlier_types, column.spark_type))
    raise MisuseType(
        f"table {info.name!r}: column {column.name!r} has type {column.spark_type}, which cannot be widened to "
        f"{type_name}. An integer can be widened to a longer integer, a float to a double, and a decimal to more "
        "digits with the same scale. For any other type, add a column",
        column=column.name,
        type=type_name,
    )


def _ordered(info: TableInfo, columns: Sequence[ColumnSchema], order: Sequence[str]) -> tuple[ColumnSchema, ...]:
    by_name = {column.name: column for column in columns}
    for name in order:
        if name not in by_name or list(order).count(name) > 1:
            hint = near(str(name), by_name) if name not in by_name else ""
            what = " several times; name each column once" if name in by_name else ", which is not a column"
            raise Misuse(f"table {info.name!r}: order names {name!r}{what}{hint}", column=name)
    return (*(by_name[name] for name in order), *(column for column in columns if column.name not in order))
