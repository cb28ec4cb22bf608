"""Columns and SQL texts of a caller: resolved by Spark before anything is computed, fitted to a table's columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
)

from pyomid.errors import Misuse, MisuseType
from pyomid.row_codec.schema import type_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIGITS: Final[dict[type[DataType], int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_EXACT_AS_FLOAT: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    FloatType: (ByteType, ShortType),
    DoubleType: (ByteType, ShortType, IntegerType, FloatType),
}


def expression(value: Any, what: str) -> Column:
    """A column as it is, a text as SQL, any other value as itself."""
    if isinstance(value, Column):
        return value
    try:
        return f.expr(value) if isinstance(value, str) else f.lit(value)
    except PySparkException as error:
        raise Misuse(f"{what}: {value!r} is no expression: {reason(error)}") from error


def resolved(frame: DataFrame, wanted: Mapping[str, Column], what: str) -> list[DataType]:
    """The types of these expressions over a frame's rows. `Misuse` names what Spark cannot resolve."""
    try:  # beside the rows themselves, so that an aggregate is refused
        fields = frame.select("*", *wanted.values()).schema.fields
        return [field.dataType for field in fields[len(fields) - len(wanted) :]]
    except AnalysisException:
        for name, column in wanted.items():
            try:
                _ = frame.select("*", column).schema
            except AnalysisException as error:
                raise Misuse(f"{what}, {name} cannot be resolved: {reason(error)}") from error
        raise


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def reason(error: PySparkException) -> str:
    """Spark's sentence, without the plan below it."""
    return str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]


def fitted(value: Column, has: DataType, needs: DataType, what: str, column: str) -> Column:
    """The value as its column's type, where that loses nothing; else `MisuseType`: the caller casts it."""
    if isinstance(has, NullType) or _widens(has, needs):
        return value.cast(needs)
    if type_name(has.jsonValue()) != type_name(needs.jsonValue()):
        raise MisuseType(
            f"{what}: column {column!r} is {needs.simpleString()}, its value {has.simpleString()}; cast it",
            column=column,
            type=has.simpleString(),
        )
    return value


def _widens(has: DataType, needs: DataType) -> bool:
    if isinstance(needs, DecimalType):
        if isinstance(has, DecimalType):
            return (
                has != needs and needs.scale >= has.scale and needs.precision - needs.scale >= has.precision - has.scale
            )
        return type(has) in _DIGITS and needs.precision - needs.scale >= _DIGITS[type(has)]
    if type(needs) in _DIGITS:
        return type(has) in _DIGITS and _DIGITS[type(has)] < _DIGITS[type(needs)]
    return type(has) in _EXACT_AS_FLOAT.get(type(needs), ())
