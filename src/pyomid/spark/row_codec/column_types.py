"""Spark's types as pyomid stores them: which there are, their Arrow form, and what is refused by name.

A type is known by Spark's own JSON name (`DataType.jsonValue`): "long", "decimal(10,2)", or for arrays, maps and
structs the JSON object as text. That name is what the catalog keeps.

    name                          stored value                                     Arrow
    boolean                       1 byte, FF or 00                                 bool
    byte short integer long       1, 2, 4, 8 bytes, two's complement, big-endian   int8 … int64
    float double                  4, 8 bytes, IEEE 754, big-endian                 float32 float64
    decimal(p,s)                  scale in 4 bytes, then the unscaled number       decimal128(p,s)
    string                        UTF-8                                            string
    binary                        itself                                           binary
    date                          days since 1970 in 4 bytes                       date32
    timestamp timestamp_ntz       microseconds since 1970 in 8 bytes               timestamp[us, UTC] timestamp[us]
    interval day … second         microseconds in 8 bytes                          duration[us]
    array map struct              JSON, UTF-8 (`pyomid.spark.row_codec.nested`)              list map struct

All but the last five rows are HBase's `Bytes` conventions. Everything else is refused by name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from pyomid.errors import MisuseType


class Layout(StrEnum):
    """How a type's bytes are made."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One Spark type. `width` is the bytes of a stored value, 0 where they vary."""

    name: str
    layout: Layout
    width: int
    arrow: pa.DataType
    precision: int = 0
    scale: int = 0

    @property
    def is_fixed(self) -> bool:
        return self.width > 0

    @property
    def is_text(self) -> bool:
        return self.layout in (Layout.STRING, Layout.BINARY)

    @property
    def key_width(self) -> int:
        """Bytes in a row key, 0 where they vary; a decimal's go by its precision."""
        return decimal_key_width(self.precision) if self.layout is Layout.DECIMAL else self.width


_SIMPLE: Final = {
    "boolean": (Layout.BOOLEAN, 1, pa.bool_()),
    "byte": (Layout.INTEGER, 1, pa.int8()),
    "short": (Layout.INTEGER, 2, pa.int16()),
    "integer": (Layout.INTEGER, 4, pa.int32()),
    "long": (Layout.INTEGER, 8, pa.int64()),
    "float": (Layout.FLOAT, 4, pa.float32()),
    "double": (Layout.FLOAT, 8, pa.float64()),
    "string": (Layout.STRING, 0, pa.string()),
    "binary": (Layout.BINARY, 0, pa.binary()),
    "date": (Layout.INTEGER, 4, pa.date32()),
    "timestamp": (Layout.INTEGER, 8, pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": (Layout.INTEGER, 8, pa.timestamp("us")),
}

_DAY_TIME_UNITS: Final = frozenset({"day", "hour", "minute", "second"})
_NESTED: Final = frozenset({"array", "map", "struct"})
KNOWN_TYPES: Final = (*_SIMPLE, "decimal(p,s)", "interval day to second", "array", "map", "struct")


def decimal_key_width(precision: int) -> int:
    """Bytes that hold every unscaled number of `precision` digits in two's complement."""
    largest: int = 10**precision
    return (largest.bit_length() + 8) // 8


@lru_cache(maxsize=1024)
def column_type(name: str, column: str = "") -> ColumnType:
    """The type that Spark calls `name`; MisuseType naming the column where it is none of ours."""
    if name in _SIMPLE:
        layout, width, arrow = _SIMPLE[name]
        return ColumnType(name, layout, width, arrow)
    if match := re.fullmatch(r"decimal\((\d+),\s*(-?\d+)\)", name):
        precision, scale = int(match[1]), int(match[2])
        return ColumnType(name, Layout.DECIMAL, 0, pa.decimal128(precision, scale), precision, scale)
    if name.startswith("interval ") and set(name.split()[1:]) - {"to"} <= _DAY_TIME_UNITS:
        return ColumnType(name, Layout.INTEGER, 8, pa.duration("us"))
    if name.startswith("{"):
        return ColumnType(name, Layout.JSON, 0, nested_arrow_type(json.loads(name), column))
    raise refusal(name, column)


def refusal(name: str, column: str) -> MisuseType:
    """The error for a type that cannot be stored."""
    where = f"column {column!r}: " if column else ""
    return MisuseType(
        f"{where}Spark type {name!r} cannot be stored; known types are {', '.join(KNOWN_TYPES)}",
        column=column,
        type=name,
    )


def nested_arrow_type(spark: Any, column: str) -> pa.DataType:
    """The Arrow type of a Spark type's JSON value, however deep."""
    if isinstance(spark, str):
        return column_type(spark, column).arrow
    kind = spark["type"] if isinstance(spark, dict) else None
    if kind == "array":
        return pa.list_(
            pa.field("element", nested_arrow_type(spark["elementType"], column), nullable=spark["containsNull"])
        )
    if kind == "map":
        return pa.map_(
            nested_arrow_type(spark["keyType"], column),
            pa.field("value", nested_arrow_type(spark["valueType"], column), nullable=spark["valueContainsNull"]),
        )
    if kind == "struct":
        fields = spark["fields"]
        names = [each["name"] for each in fields]
        if len(set(names)) < len(names):
            raise refusal(f"struct with two fields of one name among {names}", column)
        return pa.struct(
            [pa.field(f["name"], nested_arrow_type(f["type"], column), nullable=f["nullable"]) for f in fields]
        )
    raise refusal(str(kind or spark), column)
