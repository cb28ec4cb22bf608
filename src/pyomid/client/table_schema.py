"""Give a table a schema from Python types, and change its columns."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Final

from pyomid.client.table_admin import alter_table, alter_with_fence
from pyomid.client.validation import check_list, find_table
from pyomid.errors import Misuse, MisuseType
from pyomid.ports import Deployment
from pyomid.row_codec.column_types import type_name
from pyomid.row_codec.schema import (
    ColumnChanges,
    Field,
    changed_table,
    check_row_key,
    column_mapping,
    families_of,
    fit_frame,
    make_schema,
    row_key_parts,
)
from pyomid.types import TableInfo, TableSchema

PYTHON_TYPES: Final[dict[object, str]] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "binary",
    date: "date",
    datetime: "timestamp",
    timedelta: "interval day to second",
}


def give_schema(
    deployment: Deployment,
    name: str,
    columns: object,
    row_key: str | Iterable[str] | None,
    mapping: Mapping[str, str | bytes] | None,
) -> TableSchema:
    """Give a table a schema, or add missing columns to it. Durable on return. `Misuse` if it has a schema that differs
    otherwise."""
    fields, places = fields_of(columns), column_mapping(mapping or {})
    parts = None if row_key is None else row_key_parts(row_key)

    def with_schema(info: TableInfo) -> TableInfo:
        if info.schema is not None:
            if parts is not None:
                check_row_key(info, parts)
            return replace(info, schema=fit_frame(info, fields, merge=True, mapping=places))
        if parts is None:
            raise Misuse(f"table {info.name!r} has no schema: name the columns of its row key", table=info.name)
        schema = make_schema(fields, parts, places, family=info.families[0])
        for family in families_of(schema, family=info.families[0]):
            if family not in info.families:
                raise Misuse(f"table {info.name!r} has no family {family!r}", table=info.name)
        return replace(info, schema=schema)

    given = alter_table(deployment, find_table(deployment.catalog, name), with_schema).schema
    assert given is not None
    return given


def alter_columns(
    deployment: Deployment,
    name: str,
    *,
    rename: Mapping[str, str] | None = None,
    drop: Iterable[str] = (),
    widen: Mapping[str, Any] | None = None,
    add: object = None,
    order: Iterable[str] = (),
    mapping: Mapping[str, str | bytes] | None = None,
) -> TableSchema:
    """Change the columns of a table with data. Durable on return; every later transaction uses the new columns."""
    for what, value in (("rename", rename), ("widen", widen)):
        if value is not None and not isinstance(value, Mapping):
            raise MisuseType(f"{what}={value!r} is not a mapping of column names", value=value)
    changes = ColumnChanges(
        rename=dict(rename or {}),
        drop=tuple(check_list("drop", drop, "column names")),
        widen={field.name: field.spark_type for field in fields_of(widen)} if widen else {},
        add=fields_of(add) if add else (),
        order=tuple(check_list("order", order, "column names")),
        mapping=column_mapping(mapping or {}),
    )
    altered = alter_with_fence(deployment, name, lambda info: changed_table(info, changes)).schema
    assert altered is not None
    return altered


def fields_of(columns: object) -> list[Field]:
    """Return the fields of a mapping of names to types, or of a class with annotations."""
    if isinstance(columns, type):
        columns = typing.get_type_hints(columns, include_extras=True)
    if not isinstance(columns, Mapping) or not columns:
        raise MisuseType(f"columns {columns!r} is neither a class with annotations nor a mapping of names to types")
    return [Field(str(name), _spark_type(str(name), kind)) for name, kind in columns.items()]


def _spark_type(name: str, kind: Any) -> str:
    if isinstance(kind, str):
        return type_name(kind)
    if typing.get_origin(kind) is Annotated:
        named = next((each for each in kind.__metadata__ if isinstance(each, str)), None)
        return _spark_type(name, named or kind.__origin__)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(kind) if each is not type(None)]
        if len(others) == 1:
            return _spark_type(name, others[0])
    if isinstance(kind, type) and kind in PYTHON_TYPES:
        return PYTHON_TYPES[kind]
    raise MisuseType(
        f'column {name!r}: {kind!r} is not a column type; name one, such as Annotated[Decimal, "decimal(10,2)"]',
        column=name,
    )
