"""Columns and SQL texts from a caller. Spark resolves them before anything is computed; this module casts them to a
table's columns, and derives the range of row keys that a condition allows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    AtomicType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pyomid.errors import Misuse, MisuseType
from pyomid.rows.row_key import KeyLayout, KeyPart
from pyomid.rows.schema import schema_of, way_to_fit
from pyomid.spark.coded_errors import coded_message
from pyomid.spark.frame_schema import fields_of, spark_type, struct_of
from pyomid.spark.source.key_ranges import Comparison, comparisons_in, conjuncts, key_range_of, literal_value
from pyomid.types import KeyRange, TableInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_JAVA: Final = re.compile(r"An error occurred while calling .*\n: (?:[\w.$]+: )?")

_OF_TASK: Final = re.compile(
    r"Job aborted due to stage failure: .*?: Lost task [^\n]*?\): ([\w.$]+(?:Exception|Error)\b[^\n]*)(.*)", re.DOTALL
)
"""The exception that a task raised, and the lines after it."""
_CAUSE: Final = re.compile(r"^Caused by: (.*)", re.MULTILINE)

_DIGITS: Final[dict[type[DataType], int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_OF_DECIMALS: Final = (FloatType, DoubleType, DecimalType)
_CHECKED: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    **dict.fromkeys(_DIGITS, (*_DIGITS, *_OF_DECIMALS)),
    DecimalType: _OF_DECIMALS,
    TimestampType: (TimestampNTZType,),
    TimestampNTZType: (TimestampType,),
}
"""Types of numbers and times that are cast to a column's type if it can hold the value."""
_DECIMAL_DIGITS_AS_FLOAT: Final[dict[type[DataType], int]] = {FloatType: 6, DoubleType: 15}
_EXACT_AS_FLOAT: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    FloatType: (ByteType, ShortType),
    DoubleType: (ByteType, ShortType, IntegerType, FloatType),
}


def expression(value: Any, what: str) -> Column:
    """Return the value as a column: a column unchanged, a text parsed as SQL, any other value as a literal."""
    if isinstance(value, Column):
        return value
    try:
        with refusals(f"{what}: {_shown(value)} is not a valid expression"):
            return f.expr(value) if isinstance(value, str) else f.lit(value)
    except (AttributeError, TypeError, ValueError) as error:  # raised by the bridge to the JVM
        if isinstance(error, Misuse):
            raise
        raise MisuseType(
            f"{what}: Spark does not accept {value!r} of type {type(value).__name__} as a value: {error}"
        ) from error


def assignments(values: Any, what: str) -> dict[str, Any]:
    """Return the mapping from columns to their new values. Raises `MisuseType` if `values` is not a mapping."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise MisuseType(
            f'{what}: {values!r} is not a mapping from columns to values, such as {{"count": "count + 1"}}',
            value=values,
        )
    return dict(values)


def resolved(frame: DataFrame, wanted: Mapping[str, Column], what: str) -> list[DataType]:
    """Return the types of these expressions over a frame's rows. A `Misuse` names one that Spark cannot resolve."""
    try:
        return _types(frame, wanted.values())
    except (PySparkException, Py4JJavaError):
        for name, column in wanted.items():
            try:
                with refusals(f"{what}, {name} cannot be resolved"):
                    _types(frame, [column])
            except Misuse as error:
                unknown = _unknown_column(error.__cause__)
                if unknown is None:
                    raise
                hint = f"a text value needs quotes within the SQL text: \"'{unknown}'\""
                raise Misuse(f"{error.message.rstrip('.')}; {hint}") from error.__cause__
        raise


def _unknown_column(error: BaseException | None) -> str | None:
    """Return the unqualified name for which Spark found no column; None for any other error."""
    if not isinstance(error, PySparkException) or not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
        return None
    name = (error.getMessageParameters() or {}).get("objectName", "")
    return None if not name or "`.`" in name else name.strip("`")


def condition_of(frame: DataFrame, given: Column | str, what: str, name: str) -> Column:
    """Return a boolean expression over a frame's rows. Raises `Misuse` if Spark cannot resolve it, and `MisuseType` if
    its type is neither boolean nor that of NULL."""
    condition = expression(given, what)
    (kind,) = resolved(frame, {name: condition}, what)
    if not isinstance(kind, BooleanType | NullType):
        raise MisuseType(f"{what}: {name} has type {kind.simpleString()}, not boolean")
    return condition.cast("boolean") if isinstance(kind, NullType) else condition


def _types(frame: DataFrame, columns: Collection[Column]) -> list[DataType]:
    # in a filter Spark refuses aggregates, window functions and generators
    met = functools.reduce(lambda one, other: one & other, (column.isNotNull() for column in columns), f.lit(True))
    return [field.dataType for field in frame.where(met).select(*columns).schema.fields]


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Context manager that turns Spark's refusal into `Misuse`: `what`, then Spark's reason. Its block computes no
    rows."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise Misuse(f"{what}: {_reason(error)}") from error


def unknown_table(error: BaseException | None) -> str | None:
    """Return the name of the table or view that Spark did not find; None for any other error."""
    if not isinstance(error, PySparkException) or error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    name = (error.getMessageParameters() or {}).get("relationName")
    return None if name is None else name.strip("`").replace("`.`", ".")


@contextmanager
def java_errors(what: str) -> Iterator[None]:
    """Context manager that raises `Misuse` for a Java stack trace which the statement or its data caused: the statement
    is nested too deep, Spark names the fault, or a task raised a Java exception. Lost executors, cancelled jobs and
    exceptions of Python functions are raised unchanged."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        reason = _reason(error)
        if not isinstance(error, Py4JJavaError) or not (reason == _TOO_DEEP or reason.startswith("[")):
            reason = _raised_in_task(str(error)) or ""
        if not reason:
            raise
        raise Misuse(f"{what}: {reason}") from error


def _raised_in_task(text: str) -> str | None:
    """Return the first line of the Java exception that a task raised, without stack frames; None if there is none.
    `text`: PySpark's message."""
    found = _OF_TASK.search(text.partition("\nDriver stacktrace:")[0])
    if found is None:
        return None
    raised = [found[1], *_CAUSE.findall(found[2])]
    if any("PythonException" in each for each in raised):
        return None
    named = next((each for each in raised if "[" in each and " SQLSTATE: " in each), raised[-1])
    return f"a task of Spark failed: {named.partition(' SQLSTATE')[0]}"


_TOO_DEEP: Final = (
    "the expression is nested too deep for Spark; compute a part of it first, or give Spark's JVM a larger stack (-Xss)"
)


def _reason(error: Exception) -> str:
    """Return Spark's message without the plan or the frames that follow it."""
    text = str(error).strip()
    if "StackOverflowError" in text or "TOO_COMPLEX" in text:
        return _TOO_DEEP
    if isinstance(error, Py4JJavaError):
        text = _OF_JAVA.sub("", text)
    return text.partition("\n")[0].partition(" SQLSTATE")[0]


def _shown(value: Any) -> str:
    """Return a value as shown in an error; a long text is truncated."""
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "…"


def fitted(value: Column, has: DataType, needs: DataType, what: str, column: str, *, compares: bool = False) -> Column:
    """Return the value cast to its column's type if the cast loses nothing. Where the types do not guarantee that, the
    cast is checked when the value is computed. Raises `MisuseType` if the caller must cast the value. `compares`: rows
    match by the value, so a number is not cast to text."""
    if _widens(has, needs) or (_becomes_text(has, needs) and not compares):
        return value.cast(needs)
    if _is_checked(has, needs):
        return _exactly(value, has, needs, what, column)
    if spark_type(has) != spark_type(needs):
        raise MisuseType(
            f"{what}: column {column!r} has type {needs.simpleString()}, but the given value has type "
            f"{has.simpleString()}; {way_to_fit(spark_type(needs), spark_type(has))}",
            column=column,
            type=has.simpleString(),
        )
    return value


def fitted_frame(frame: DataFrame, info: TableInfo, what: str) -> DataFrame:
    """Return the frame with its values `fitted` to the table's columns."""
    return _with_fitted(frame, info, what, lambda has, needs: has != needs, compares=False)


def frame_for_tasks(frame: DataFrame, info: TableInfo | None, what: str, *, compares: bool = False) -> DataFrame:
    """Return the frame in which the values that tasks would refuse are `fitted`. Tasks check all types and convert
    numbers (`arrow_gate`), except decimals to other types; they do not know the session's time zone."""

    def is_cast(has: DataType, needs: DataType) -> bool:
        if isinstance(has, NumericType) and isinstance(needs, NumericType):
            return isinstance(has, DecimalType) and not isinstance(needs, DecimalType)
        return _widens(has, needs) or _is_checked(has, needs) or (_becomes_text(has, needs) and not compares)

    if info is None or info.schema is None:
        return frame
    return _with_fitted(frame, info, what, is_cast, compares=compares)


def _with_fitted(
    frame: DataFrame, info: TableInfo, what: str, is_fitted: Callable[[DataType, DataType], bool], *, compares: bool
) -> DataFrame:
    schema = schema_of(info)
    wanted = {each.name: each.dataType for each in struct_of(schema, [c.name for c in schema.columns]).fields}
    fields = frame.schema.fields
    fits = {
        each.name: fitted(
            f.col(quoted(each.name)), each.dataType, wanted[each.name], what, each.name, compares=compares
        )
        for each in fields
        if each.name in wanted and is_fitted(each.dataType, wanted[each.name])
    }
    if not fits:
        return frame
    fields_of(frame.schema)  # refuses two columns with the same name
    return frame.select(*(fits.get(each.name, f.col(quoted(each.name))).alias(each.name) for each in fields))


def _exactly(value: Column, has: DataType, needs: DataType, what: str, column: str) -> Column:
    """Return a value cast to another type; computing it raises `MisuseType` if the type cannot hold the value."""
    text = f"{what}: column {column!r} has type {needs.simpleString()}, which cannot hold the value "
    refusal = coded_message(MisuseType(text, column=column))

    def checked(one: Column) -> Column:  # computes a value such as rand() once
        found = one.try_cast(needs)
        error = f.raise_error(f.concat(f.lit(refusal), one.cast("string"), f.lit("\n")))
        return f.when(one.isNull() | (found.try_cast(has) == one), found).otherwise(error.cast(needs))

    return f.transform(f.array(value), checked)[0]


def _is_checked(has: DataType, needs: DataType) -> bool:
    if isinstance(has, DecimalType) and type(needs) in _DIGITS:
        return has.scale == 0
    return has != needs and type(needs) in _CHECKED.get(type(has), ())


def _becomes_text(has: DataType, needs: DataType) -> bool:
    is_known = isinstance(has, AtomicType | CalendarIntervalType) and not isinstance(has, VariantType)
    return isinstance(needs, StringType) and has != needs and is_known


def _widens(has: DataType, needs: DataType) -> bool:
    if isinstance(has, NullType):
        return True
    if isinstance(has, DateType):
        return isinstance(needs, TimestampType | TimestampNTZType)
    if isinstance(has, DayTimeIntervalType):
        return isinstance(needs, DayTimeIntervalType) and has != needs and has.endField <= needs.endField
    if isinstance(needs, DecimalType):
        digits = needs.precision - needs.scale
        if isinstance(has, DecimalType):
            return has != needs and needs.scale >= has.scale and digits >= has.precision - has.scale
        return type(has) in _DIGITS and digits >= _DIGITS[type(has)]
    if isinstance(has, DecimalType):  # a literal such as 1.5 is a decimal
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
# Spark's analyser compares the condition with one rebuilt from the parsed parts and the texts of the other parts. If
# the two conditions differ, the range is not used.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

OfKey = tuple[KeyPart, Comparison]


def range_of(frame: DataFrame, layout: KeyLayout, condition: str, name: str | None = None) -> tuple[KeyRange, bool]:
    """Return a range that holds every row of the table for which the condition is true, and whether it holds no other
    row. `frame` has the table's columns and is not computed. `name` is the frame's alias; the condition may
    qualify columns with it."""
    parts = list(conjuncts(condition))
    read = [_comparisons_of_key(part, layout, name) for part in parts]
    found = [each for comparisons in read for each in comparisons or ()]
    if not any(part is layout.parts[0] for part, _ in found):
        return KeyRange(), False
    try:
        if not _is_equivalent(frame, condition, parts, read):
            return KeyRange(), False
        moment = functools.partial(_moment, frame)
        values = [(part, each.operator, literal_value(part.type.name, each.literal, moment)) for part, each in found]
    except (PySparkException, Py4JJavaError):
        return KeyRange(), False
    keys, is_exact = key_range_of(layout, [each for each in values if each[2] is not None])
    return keys, is_exact and None not in read and all(value is not None for _, _, value in values)


def _comparisons_of_key(part: str, layout: KeyLayout, qualifier: str | None) -> list[OfKey] | None:
    """Return the comparisons if this part of the condition compares one key column with literals; else None."""
    if qualifier is not None:
        same = "|".join(map(re.escape, (qualifier, quoted(qualifier))))
        part = re.sub(rf"^([(\s]*)(?:{same})\s*\.\s*", r"\1", part, flags=re.IGNORECASE)
    found = comparisons_in(part)
    if found is None:
        return None
    lower = found[0].column.lower()
    column = next((each for each in layout.parts if each.name.lower() == lower), None)
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
