"""A caller's columns and SQL texts: resolved by Spark before anything is computed, cast to a table's columns, and
searched for the range of row keys that a condition allows.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
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
from pyomid.row_codec.row_key import KeyLayout, KeyPart
from pyomid.row_codec.schema import way_to_fit
from pyomid.spark.frame_schema import spark_type
from pyomid.spark.source.key_ranges import Comparison, comparisons_in, conjuncts, key_range_of, literal_value
from pyomid.types import KeyRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DIGITS: Final[dict[type[DataType], int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_DECIMAL_DIGITS_AS_FLOAT: Final[dict[type[DataType], int]] = {FloatType: 6, DoubleType: 15}
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
    try:
        return _types(frame, wanted.values())
    except PySparkException:
        for name, column in wanted.items():
            try:
                _types(frame, [column])
            except PySparkException as error:
                raise Misuse(f"{what}, {name} cannot be resolved: {reason(error)}") from error
        raise


def condition_of(frame: DataFrame, given: Column | str, what: str, name: str) -> Column:
    """Return a boolean expression over a frame's rows. `Misuse` if Spark cannot resolve it, `MisuseType` if it is not
    boolean."""
    condition = expression(given, what)
    (kind,) = resolved(frame, {name: condition}, what)
    if kind.typeName() != "boolean":
        raise MisuseType(f"{what}: {name} has type {kind.simpleString()}, not boolean")
    return condition


def _types(frame: DataFrame, columns: Collection[Column]) -> list[DataType]:
    # in a filter Spark refuses aggregates, window functions and generators
    met = functools.reduce(lambda one, other: one & other, (column.isNotNull() for column in columns), f.lit(True))
    return [field.dataType for field in frame.where(met).select(*columns).schema.fields]


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
        digits = needs.precision - needs.scale
        if isinstance(has, DecimalType):
            return has != needs and needs.scale >= has.scale and digits >= has.precision - has.scale
        return type(has) in _DIGITS and digits >= _DIGITS[type(has)]
    if isinstance(has, DecimalType):  # as is a literal such as 1.5
        return has.precision <= _DECIMAL_DIGITS_AS_FLOAT.get(type(needs), 0)
    if type(needs) in _DIGITS:
        return type(has) in _DIGITS and _DIGITS[type(has)] < _DIGITS[type(needs)]
    return type(has) in _EXACT_AS_FLOAT.get(type(needs), ())


# The range of row keys that a condition allows, derived from its comparisons of leading key columns:
#
#     row key (origin, time_hour, flight)
#     "origin = 'EWR' and time_hour >= '2013-01-02' and delay > 5"    →    keys from (EWR, 2013-01-02) to the end of EWR
#
# Spark applies the whole condition to the rows of the range. So a range may be too wide, but must never be too narrow.
# The text is split at its ANDs; parts of the form `column operator literal` narrow the range, all others do not. Then
# Spark's analyser compares the condition with one rebuilt from the parsed parts and the texts of the others: if the two
# differ, the range is not used.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

OfKey = tuple[KeyPart, Comparison]


def range_of(frame: DataFrame, layout: KeyLayout, condition: str) -> tuple[KeyRange, bool]:
    """Return a range that holds every row of the table for which the condition is true, and whether it holds no other
    row. `frame`: has the table's columns; it is not computed."""
    parts = list(conjuncts(condition))
    read = [_comparisons_of_key(part, layout) for part in parts]
    found = [each for comparisons in read for each in comparisons or ()]
    if not any(part is layout.parts[0] for part, _ in found):
        return KeyRange(), False
    try:
        if not _is_equivalent(frame, condition, parts, read):
            return KeyRange(), False
        moment = functools.partial(_moment, frame)
        values = [(part, each.operator, literal_value(part.type.name, each.literal, moment)) for part, each in found]
    except PySparkException:
        return KeyRange(), False
    keys, is_exact = key_range_of(layout, [each for each in values if each[2] is not None])
    return keys, is_exact and None not in read and all(value is not None for _, _, value in values)


def _comparisons_of_key(part: str, layout: KeyLayout) -> list[OfKey] | None:
    """Return the comparisons, if a part of the text compares one key column with literals; else None."""
    found = comparisons_in(part)
    if found is None:
        return None
    name = found[0].column.lower()
    column = next((each for each in layout.parts if each.name.lower() == name), None)
    return None if column is None else [(column, each) for each in found]


def _is_equivalent(frame: DataFrame, condition: str, parts: Sequence[str], read: Sequence[list[OfKey] | None]) -> bool:
    """Whether the condition means the same to Spark as its parsed parts joined by AND."""
    made = [_built(part, comparisons) for part, comparisons in zip(parts, read, strict=True)]
    return frame.where(condition).sameSemantics(frame.where(functools.reduce(lambda one, other: one & other, made)))


def _built(text: str, comparisons: list[OfKey] | None) -> Column:
    if not comparisons:
        return f.expr(text)
    name = quoted(comparisons[0][0].name)
    if len(comparisons) == 2:
        (_, low), (_, high) = comparisons
        return f.expr(f"{name} between {low.literal} and {high.literal}")
    _, one = comparisons[0]
    return f.expr(f"{name} {one.operator} {one.literal}")


def _moment(frame: DataFrame, text: str) -> datetime | None:
    """Return the moment of a timestamp literal. Spark parses it, because its time zone rules decide."""
    (row,) = frame.sparkSession.sql(f"SELECT unix_micros(CAST('{text}' AS TIMESTAMP_LTZ))").collect()
    return moment_of(row[0])


def moment_of(micros: int | None) -> datetime | None:
    """Return the moment `micros` after 1970; None if Spark found none, or one outside the years 1 to 9999 in UTC."""
    try:
        return None if micros is None else _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
