"""The supported Spark types: their stored form and their Arrow type.

A type's name is Spark's JSON (`DataType.jsonValue`): "long", "decimal(10,2)"; for arrays, maps and structs the JSON
object as text. The catalog stores this name.

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
    array map struct              JSON, UTF-8 (`nested`)                         list map struct

Booleans, numbers, strings and binaries are stored as HBase's `Bytes` stores them. Every other type is refused, with an
error that names it.
"""

from __future__ import annotations

import json
import re
import typing
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final

from pyomid.errors import MisuseType
from pyomid.rows.annotations import aliased, besides_none, qualifier

if TYPE_CHECKING:
    import pyarrow as pa


class Layout(StrEnum):
    """The kind of encoding of a type's values."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One Spark type. `width` is the number of bytes of a stored value; 0 if it varies."""

    name: str
    layout: Layout
    width: int
    precision: int = 0
    scale: int = 0

    @property
    def arrow(self) -> pa.DataType:
        """The type's Arrow type. Only this property needs pyarrow."""
        return arrow_type(self.name)

    @property
    def is_fixed(self) -> bool:
        return self.width > 0

    @property
    def is_text(self) -> bool:
        return self.layout in (Layout.STRING, Layout.BINARY)

    @property
    def key_width(self) -> int:
        """The number of bytes in a row key; 0 if it varies. For a decimal it depends on the precision."""
        return decimal_key_width(self.precision) if self.layout is Layout.DECIMAL else self.width


_SIMPLE: Final = {
    "boolean": (Layout.BOOLEAN, 1),
    "byte": (Layout.INTEGER, 1),
    "short": (Layout.INTEGER, 2),
    "integer": (Layout.INTEGER, 4),
    "long": (Layout.INTEGER, 8),
    "float": (Layout.FLOAT, 4),
    "double": (Layout.FLOAT, 8),
    "string": (Layout.STRING, 0),
    "binary": (Layout.BINARY, 0),
    "date": (Layout.INTEGER, 4),
    "timestamp": (Layout.INTEGER, 8),
    "timestamp_ntz": (Layout.INTEGER, 8),
}

_DAY_TIME_UNITS: Final = frozenset({"day", "hour", "minute", "second"})
DECIMAL_DIGITS_MAX: Final = 38
KNOWN_TYPES: Final = (*_SIMPLE, "decimal(p,s)", "interval day to second", "array", "map", "struct")


def decimal_key_width(precision: int) -> int:
    """Return the number of bytes that hold every unscaled number of `precision` digits in two's complement."""
    largest: int = 10**precision
    return (largest.bit_length() + 8) // 8


_SQL_NAMES: Final = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long", "real": "float"}


def type_name(written: str) -> str:
    """Return the canonical name of a type. The call accepts the names of SQL and `DataFrame.dtypes`, in upper or lower
    case."""
    name = written.strip().lower()
    return written if name.startswith(("{", "interval")) else _SQL_NAMES.get(name, name)


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


def type_of_python(name: str, kind: Any) -> str:
    """Return the Spark type of column `name` for a Python type, an annotation, or the name of a type."""
    if isinstance(kind, str):
        return type_name(kind)
    if typing.get_origin(kind) is Annotated:
        named = next((each for each in kind.__metadata__ if isinstance(each, str)), None)
        return type_of_python(name, named or kind.__origin__)
    if qualifier(kind) is not None:
        return type_of_python(name, typing.get_args(kind)[0])
    if (alias := aliased(kind)) is not None:
        return type_of_python(name, alias)
    if (other := besides_none(kind)) is not None:
        return type_of_python(name, other)
    if isinstance(kind, type) and kind in PYTHON_TYPES:
        return PYTHON_TYPES[kind]
    raise MisuseType(
        f"column {name!r}: {kind!r} has no column type; annotate it with the name of one, such as "
        'Annotated[Decimal, "decimal(10,2)"]',
        column=name,
    )


@lru_cache(maxsize=1024)
def python_type(name: str) -> type | None:
    """Return the Python class of the values that a read of such a column returns; None for a nested type."""
    if name.startswith("interval "):
        return timedelta
    moment = {"date": date, "timestamp": datetime, "timestamp_ntz": datetime}.get(name)
    return moment or _CLASSES.get(column_type(name).layout)


_CLASSES: Final[dict[Layout, type]] = {
    Layout.BOOLEAN: bool,
    Layout.INTEGER: int,
    Layout.FLOAT: float,
    Layout.DECIMAL: Decimal,
    Layout.STRING: str,
    Layout.BINARY: bytes,
}
COLUMN_CLASSES: Final = frozenset((*_CLASSES.values(), date, datetime, timedelta))
"""The classes of the values of all columns that are not nested."""


@lru_cache(maxsize=1024)
def column_type(name: str, column: str = "") -> ColumnType:
    """Return the type with this name. If it is not supported, raise `MisuseType`, which names the column."""
    if name in _SIMPLE:
        return ColumnType(name, *_SIMPLE[name])
    if match := re.fullmatch(r"decimal\((\d+),\s*(-?\d+)\)", name):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= DECIMAL_DIGITS_MAX:
            raise refusal(name, column)
        return ColumnType(name, Layout.DECIMAL, 0, precision, scale)
    if name.startswith("interval ") and set(name.split()[1:]) - {"to"} <= _DAY_TIME_UNITS:
        return ColumnType(name, Layout.INTEGER, 8)
    if name.startswith("{"):
        _check_nested(json.loads(name), column)
        return ColumnType(name, Layout.JSON, 0)
    raise refusal(name, column)


def stored_as(kind: ColumnType) -> ColumnType:
    """Return the integer type in which a date, timestamp or interval is stored; other types unchanged."""
    is_number = kind.layout is Layout.INTEGER and kind.name not in ("byte", "short")
    return column_type("integer" if kind.width == 4 else "long") if is_number else kind


def refusal(name: str, column: str) -> MisuseType:
    """Return the error for a type that cannot be stored."""
    where = f"column {column!r}: " if column else ""
    return MisuseType(
        f"{where}type {name!r} cannot be stored; known types are {', '.join(KNOWN_TYPES)}",
        column=column,
        type=name,
    )


@lru_cache(maxsize=1024)
def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a type that `column_type` accepts."""
    import pyarrow as pa

    kind = column_type(name)
    match kind.layout:
        case Layout.BOOLEAN:
            return pa.bool_()
        case Layout.FLOAT:
            return pa.float32() if kind.width == 4 else pa.float64()
        case Layout.DECIMAL:
            return pa.decimal128(kind.precision, kind.scale)
        case Layout.STRING:
            return pa.string()
        case Layout.BINARY:
            return pa.binary()
        case Layout.JSON:
            return nested_arrow_type(json.loads(name), "")
    if name.startswith("interval "):
        return pa.duration("us")
    moments = {"date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us")}
    return moments.get(name) or {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[kind.width]


def _check_nested(spark: Any, column: str) -> None:
    """Raise `refusal` if a Spark type's JSON value contains, at any depth, a type that cannot be stored."""
    if isinstance(spark, str):
        if spark.startswith("{"):  # a nested type as text, where its JSON object belongs
            raise refusal(spark, column)
        column_type(spark, column)
        return
    match spark["type"] if isinstance(spark, dict) else None:
        case "array":
            _check_nested(spark["elementType"], column)
        case "map":
            _check_nested(spark["keyType"], column)
            _check_nested(spark["valueType"], column)
        case "struct":
            names = [each["name"] for each in spark["fields"]]
            if len(set(names)) < len(names):
                raise refusal(f"struct with two fields of one name among {names}", column)
            for field in spark["fields"]:
                _check_nested(field["type"], column)
        case kind:
            raise refusal(str(kind or spark), column)


def nested_arrow_type(spark: Any, column: str) -> pa.DataType:
    """Return the Arrow type of a Spark type's JSON value, which may be nested."""
    import pyarrow as pa

    if isinstance(spark, str):
        return column_type(spark, column).arrow
    _check_nested(spark, column)
    kind = spark["type"]
    if kind == "array":
        return pa.list_(
            pa.field("element", nested_arrow_type(spark["elementType"], column), nullable=spark["containsNull"])
        )
    if kind == "map":
        return pa.map_(
            nested_arrow_type(spark["keyType"], column),
            pa.field("value", nested_arrow_type(spark["valueType"], column), nullable=spark["valueContainsNull"]),
        )
    return pa.struct(
        [pa.field(f["name"], nested_arrow_type(f["type"], column), nullable=f["nullable"]) for f in spark["fields"]]
    )
