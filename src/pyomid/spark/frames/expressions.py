"""A caller's columns and SQL texts: resolved by Spark before anything is computed, and cast to a table's columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
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
from pyomid.row_codec.schema import way_to_fit
from pyomid.spark.schema import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIGITS: Final[dict[type[DataType], int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_EXACT_AS_FLOAT: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    FloatType: (ByteType, ShortType),
    DoubleType: (ByteType, ShortType, IntegerType, FloatType),
}


def expression(value: Any, what: str) -> Column:
    """Return a column as it is, a text parsed as SQL, and any other value as a literal."""
    if isinstance(value, Column):
        return value
    try:
        return f.expr(value) if isinstance(value, str) else f.lit(value)
    except PySparkException as error:
        raise Misuse(f"{what}: {value!r} is not a valid expression: {reason(error)}") from error
    except (AttributeError, TypeError, ValueError) as error:  # raised by the bridge to the JVM
        raise MisuseType(
            f"{what}: Spark does not accept {value!r} of type {type(value).__name__} as a value: {error}"
        ) from error


def assignments(values: Any, what: str) -> dict[str, Any]:
    """Return the mapping from columns to their new values. `MisuseType` if `values` is not a mapping."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise MisuseType(
            f'{what}: {values!r} is not a mapping from columns to values, such as {{"count": "count + 1"}}',
            value=values,
        )
    return dict(values)


def resolved(frame: DataFrame, wanted: Mapping[str, Column], what: str) -> list[DataType]:
    """Return the types of these expressions over a frame's rows. `Misuse` names the one that Spark cannot resolve."""
    try:  # selected together with the rows, so that Spark refuses an aggregate
        fields = frame.select("*", *wanted.values()).schema.fields
        return [field.dataType for field in fields[len(fields) - len(wanted) :]]
    except PySparkException:
        for name, column in wanted.items():
            try:
                _ = frame.select("*", column).schema
            except PySparkException as error:
                raise Misuse(f"{what}, {name} cannot be resolved: {reason(error)}") from error
        raise


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


def reason(error: PySparkException) -> str:
    """Return Spark's message without the plan that follows it."""
    return str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]


def fitted(value: Column, has: DataType, needs: DataType, what: str, column: str) -> Column:
    """Return the value cast to its column's type if that is lossless; else `MisuseType`: the caller must cast it."""
    if isinstance(has, NullType) or _widens(has, needs):
        return value.cast(needs)
    if spark_type(has) != spark_type(needs):
        raise MisuseType(
            f"{what}: column {column!r} is {needs.simpleString()}, its value {has.simpleString()}; "
            f"{way_to_fit(spark_type(needs), spark_type(has))}",
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
