"""Changes to the columns of a table with data. Only the catalog's entry changes, never a stored byte.

    rename    changes the name, not the place: the cells stay where they are, also for Java programs
    drop      retires the place: its cells are no longer read, and no column ever gets it again (X1)
    widen     to a type that has every value of the former one; a stored value's length shows its type
    add       at a place that no column has or had
    order     changes the order of names only

Value columns may always be null, key columns never. Key columns may be renamed and ordered, but not dropped or widened,
because their bytes are the row keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyomid.errors import Misuse, MisuseType
from pyomid.row_codec.column_types import Layout, column_type
from pyomid.row_codec.schema import ColumnMapping, Field, extended_schema, near, schema_of, sentinel_column
from pyomid.types import ColumnSchema, TableInfo, TableSchema

_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Changes to apply together. Names are the former ones; in `order` they are the new ones, and columns that `order`
    omits follow those that it names."""

    rename: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    widen: Mapping[str, str] = field(default_factory=dict)
    add: Sequence[Field] = ()
    order: Sequence[str] = ()
    mapping: ColumnMapping = field(default_factory=dict)
    """Places of added columns; optional."""


def changed_table(info: TableInfo, changes: ColumnChanges) -> TableInfo:
    """Return the entry after the changes. `Misuse` or `MisuseType` names a column that cannot be changed like this."""
    schema = schema_of(info)
    _check_names(info, schema, changes)
    key = {part.name for part in schema.row_key}
    for name in (*changes.drop, *changes.widen):
        if name in key:
            raise Misuse(
                f"table {info.name!r}: {name!r} is a row key column, which cannot be dropped or widened: its bytes are "
                "the row keys",
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
    _check_distinct(info, [column.name for column in kept] + [added.name for added in changes.add])
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
                f"table {info.name!r}: column {column.name!r} is in the index {index!r}, whose rows hold its values: "
                "drop the index first",
                column=column.name,
            )


def _check_names(info: TableInfo, schema: TableSchema, changes: ColumnChanges) -> None:
    known = [column.name for column in schema.columns]
    if not (changes.rename or changes.drop or changes.widen or changes.add or changes.order):
        raise Misuse(f"table {info.name!r}: no change was given", table=info.name)
    for name in (*changes.rename, *changes.drop, *changes.widen):
        if name not in known:
            raise Misuse(f"table {info.name!r} has no column {name!r}{near(str(name), known)}", column=name)
    for name in changes.drop:
        if name in changes.rename or name in changes.widen or list(changes.drop).count(name) > 1:
            raise Misuse(
                f"table {info.name!r}: column {name!r} is dropped: it cannot be changed otherwise in the same call",
                column=name,
            )
    for name in changes.rename.values():
        if not isinstance(name, str) or not name:
            raise MisuseType(f"table {info.name!r}: {name!r} is not a column name", value=name)


def _check_distinct(info: TableInfo, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise Misuse(
                f"table {info.name!r} already has a column {name!r}: give another name, or rename or drop that column "
                "in the same call",
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
        f"table {info.name!r}: column {column.name!r} is {column.spark_type} and cannot become {type_name}: an integer "
        "can become longer, a float a double, a decimal one with more digits and the same scale; otherwise add a "
        "column",
        column=column.name,
        type=type_name,
    )


def _ordered(info: TableInfo, columns: Sequence[ColumnSchema], order: Sequence[str]) -> tuple[ColumnSchema, ...]:
    by_name = {column.name: column for column in columns}
    for name in order:
        if name not in by_name or list(order).count(name) > 1:
            hint = near(str(name), by_name) if name not in by_name else ""
            what = "several times" if name in by_name else "which is not a column"
            raise Misuse(f"table {info.name!r}: order names {name!r}, {what}{hint}", column=name)
    return (*(by_name[name] for name in order), *(column for column in columns if column.name not in order))
