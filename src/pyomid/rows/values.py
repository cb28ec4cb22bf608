"""One column value: the Python values that a type accepts, and their stored bytes. This module is the reference
implementation of the column kernels.

`exact` returns an accepted value, or raises an error that says why it does not fit:

    boolean          bool                                  date            date
    byte … long      int in the type's range               timestamp       datetime with a time zone
    double           float; int if exactly representable   timestamp_ntz   datetime without one
    float            the same; a float is rounded          interval        timedelta
    decimal(p,s)     Decimal with no more digits           array           list or tuple
    string           str                                   map             dict or list of pairs
    binary           bytes, bytearray, memoryview          struct          dict of its fields

A value of a subclass, or a numpy scalar, is converted to the built-in Python value that it equals. If it equals none,
it is refused: a `pandas.Timestamp` with nanoseconds, a `numpy.longdouble`, NaT.

Stored values follow HBase's `Bytes` conventions, so that other programs can read them (the table is in `column_types`).

An empty stored value is a tombstone, but strings and binaries may be empty. So a string or binary that is empty, or has
only zero bytes, is stored with one more zero byte:

    value   b""     b"\\0"      b"\\0\\0"       b"a"   b"\\0a"
    stored  b"\\0"  b"\\0\\0"   b"\\0\\0\\0"    b"a"   b"\\0a"

Every other value is stored unchanged.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final, TypeVar

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.rows.column_types import ColumnType, Layout, column_type
from pyomid.rows.nested import from_json, to_json
from pyomid.types import is_loaded_instance, python_scalar

T = TypeVar("T")

_SHOWN_MAX: Final = 80
WIDE_CONTEXT: Final = Context(prec=60)
"""A decimal context with enough digits for 38 digits at any scale; the default context rounds to 28 digits."""
_NUMPY_FINE_UNITS: Final = frozenset({"ns", "ps", "fs", "as"})
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


# Stored bytes


def encode_value(value: Any, type_name: str) -> bytes:
    """Return a Python value (never None, which is a tombstone) as stored bytes. Raise `MisuseType` if it does not
    fit."""
    kind = column_type(type_name)
    try:
        if kind.layout is Layout.JSON:
            return to_json(exact_nested(value, json.loads(type_name)), type_name)
        return _encode(exact(value, kind), kind)
    except (TypeError, ValueError) as error:
        raise MisuseType(
            f"value {shown_value(value)} does not fit column type {type_name}: {error}", type=type_name
        ) from error


def decode_value(stored: bytes, type_name: str) -> Any:
    """Return the value of stored bytes. Raise `Corruption` if they are not a value of that type."""
    kind = column_type(type_name)
    if kind.is_fixed and len(stored) != kind.width:
        raise Corruption(
            f"stored value {stored!r} has {len(stored)} bytes, but a value of column type {type_name} has {kind.width}"
        )
    if kind.layout is Layout.BOOLEAN:
        return stored != b"\x00"
    if kind.layout is Layout.INTEGER:
        return python_value(int.from_bytes(stored, "big", signed=True), kind)
    if kind.layout is Layout.FLOAT:
        return struct.unpack(">f" if kind.width == 4 else ">d", stored)[0]
    if kind.layout is Layout.DECIMAL:
        return _decode_decimal(stored, kind)
    if kind.layout is Layout.JSON:
        return from_json(stored, kind.name)
    text = remove_zero_byte(stored)
    return text if kind.layout is Layout.BINARY else _decode_text(text)


def decode_earlier(stored: bytes, type_name: str, earlier_types: Sequence[str]) -> Any:
    """Return a value of a column that was widened from these types. A stored value's length shows its type."""
    fits = next((each for each in earlier_types if column_type(each).width == len(stored)), type_name)
    return decode_value(stored, fits)


def add_zero_byte(value: bytes) -> bytes:
    """Return the stored form of a string's or binary's bytes."""
    return value if value.strip(b"\x00") else value + b"\x00"


def remove_zero_byte(stored: bytes) -> bytes:
    return stored if stored.strip(b"\x00") else stored[:-1]


def number_of(value: Any, kind: ColumnType) -> int:
    """Return the integer that represents an `exact` integer, date, timestamp or interval."""
    number: int
    if kind.name == "date":
        number = value.toordinal() - _EPOCH_DAY
    elif kind.name == "timestamp":
        number = (value - _EPOCH_UTC) // _MICROSECOND
    elif kind.name == "timestamp_ntz":
        number = (value - _EPOCH) // _MICROSECOND
    elif kind.name.startswith("interval"):
        number = value // _MICROSECOND
    else:
        number = value
    return number


def python_value(number: int, kind: ColumnType) -> Any:
    """Return the value that an integer represents. Raise `Misuse` for a date or time outside the range of Python's
    `datetime`, which other programs may store."""
    try:
        if kind.name == "date":
            return date.fromordinal(number + _EPOCH_DAY)
        if kind.name == "timestamp":
            return _EPOCH_UTC + timedelta(microseconds=number)
        if kind.name == "timestamp_ntz":
            return _EPOCH + timedelta(microseconds=number)
    except (OverflowError, ValueError) as error:
        unit = "days" if kind.name == "date" else "microseconds"
        raise Misuse(
            f"a {kind.name} of {number} {unit} since 1970 is outside the years 1 to 9999 (UTC), the range of Python's "
            "datetime; read the value as Arrow (`to_arrow`) or with Spark"
        ) from error
    return timedelta(microseconds=number) if kind.name.startswith("interval") else number


def unscaled_of(value: Any, kind: ColumnType) -> int:
    """Return the unscaled number, at the type's scale, of a decimal that fits the type."""
    return int(value.scaleb(kind.scale, WIDE_CONTEXT))


def scaled_value(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, WIDE_CONTEXT)


def minimal_bytes(number: int) -> bytes:
    """Return the shortest two's complement bytes of a number, big-endian, as Java's `BigInteger.toByteArray` does."""
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True)


def _encode(value: Any, kind: ColumnType) -> bytes:
    if kind.layout is Layout.BOOLEAN:
        return b"\xff" if value else b"\x00"
    if kind.layout is Layout.INTEGER:
        return number_of(value, kind).to_bytes(kind.width, "big", signed=True)
    if kind.layout is Layout.FLOAT:
        return struct.pack(">f" if kind.width == 4 else ">d", value)
    if kind.layout is Layout.DECIMAL:
        return kind.scale.to_bytes(4, "big", signed=True) + minimal_bytes(unscaled_of(value, kind))
    return add_zero_byte(value.encode() if kind.layout is Layout.STRING else value)


def _decode_decimal(stored: bytes, kind: ColumnType) -> Decimal:
    if not 5 <= len(stored) <= 20:
        raise Corruption(
            f"stored value {stored!r} is not a valid decimal: it has {len(stored)} bytes, but a decimal has 5 to 20"
        )
    scale = int.from_bytes(stored[:4], "big", signed=True)
    if scale != kind.scale:
        raise Corruption(
            f"stored decimal {stored!r} has scale {scale}, but column type {kind.name} has scale {kind.scale}"
        )
    return scaled_value(int.from_bytes(stored[4:], "big", signed=True), scale)


def _decode_text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Corruption(f"stored value {text!r} of a string column is not UTF-8") from error


# Accepted values


def exact(value: Any, kind: ColumnType) -> Any:
    """Return the built-in Python value that equals `value` and fits a simple type. TypeError or ValueError says why
    there is none."""
    take, needed = _TAKEN[_family(kind)]
    scalar = python_scalar(value)
    is_numpy_time = is_loaded_instance(scalar, "numpy", "generic") and scalar.dtype.kind in "mM"
    found = take(_of_numpy_time(scalar) if is_numpy_time else scalar, kind)
    if found is _NONE:
        raise TypeError(f"{needed} needed, not {full_name(type(value))}")
    return found


def _family(kind: ColumnType) -> str:
    if kind.layout is not Layout.INTEGER or kind.name in ("date", "timestamp", "timestamp_ntz"):
        return kind.name if kind.layout is Layout.INTEGER else kind.layout
    return "interval" if kind.name.startswith("interval") else "integer"


def exact_nested(value: Any, spark: Any) -> Any:
    """Return a nested value of a Spark type (given as its JSON value) with all its parts `exact`: lists, lists of
    pairs, dicts."""
    if value is None:
        return None
    if isinstance(spark, str):
        return exact(value, column_type(spark))
    match spark["type"]:
        case "array":
            if not isinstance(value, list | tuple):
                raise TypeError(f"a list is needed, not {full_name(type(value))}")
            return [_exact_part(each, spark["elementType"], spark["containsNull"], "array element") for each in value]
        case "map":
            return [_exact_pair(pair, spark) for pair in _pairs(value)]
    names = {field["name"] for field in spark["fields"]}
    if not isinstance(value, Mapping) or set(value) != names:
        raise TypeError(f"a dict with {', '.join(sorted(names))} is needed, not {shown_value(value)}")
    return {
        field["name"]: _exact_part(value[field["name"]], field["type"], field["nullable"], f"field {field['name']!r}")
        for field in spark["fields"]
    }


def _exact_part(value: Any, spark: Any, is_nullable: bool, part: str) -> Any:
    """Return a part of a nested value, made `exact`. `is_nullable` says whether the type allows None there."""
    if value is None and not is_nullable:
        raise ValueError(f"the type does not allow None as {part}")
    return exact_nested(value, spark)


def _pairs(value: Any) -> Any:
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise TypeError(f"a dict or a list of pairs is needed, not {full_name(type(value))}")
    return pairs


def _exact_pair(pair: Any, spark: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise TypeError(f"a pair of key and value is needed, not {shown_value(pair)}")
    if pair[0] is None:
        raise TypeError("a map cannot have the key None")
    value = _exact_part(pair[1], spark["valueType"], spark["valueContainsNull"], "map value")
    return exact_nested(pair[0], spark["keyType"]), value


def full_name(kind: type) -> str:
    """Return a type's name with its module, because several modules have a `bool`, `datetime` or `Timestamp`."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shown_value(value: object) -> str:
    """Return a value as text for a message, truncated if long."""
    try:
        text = repr(value)
    except Exception:  # an int with more digits than Python prints, or an error in the program's `__repr__`
        return f"of type {full_name(type(value))}"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


# numpy's dates and times; numpy may not be installed


def _of_numpy_time(value: Any) -> date | timedelta:
    """Return the Python value that equals a numpy date, time or duration."""
    if value != value:
        raise ValueError("NaT is not a value: write None")
    unit, _ = sys.modules["numpy"].datetime_data(value.dtype)
    in_us = value.astype(f"{value.dtype.kind}8[us]") if unit in _NUMPY_FINE_UNITS else value
    found = in_us.item() if in_us == value else value
    if isinstance(found, date | timedelta):
        return found
    raise ValueError(
        f"{full_name(type(value))}({value}, {unit!r}) equals no Python value: Python has microseconds and the years 1 "
        "to 9999"
    )


# The values that each type accepts. `_NONE` means that the value's type is not accepted

_NONE: Final = object()


def _boolean(value: Any, _: ColumnType) -> Any:
    return value if isinstance(value, bool) else _NONE


def _integer(value: Any, kind: ColumnType) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        return _NONE
    return in_range(int(value), kind)


def in_range(number: int, kind: ColumnType) -> int:
    """Return the number. Raise ValueError if the type cannot hold it."""
    bound = 1 << (8 * kind.width - 1)
    if not -bound <= number < bound:
        what = "" if kind.name in ("byte", "short", "integer", "long") else " microseconds"
        raise ValueError(f"{kind.name} holds {-bound} to {bound - 1}{what}")
    return number


def _float(value: Any, kind: ColumnType) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _NONE
    try:
        found: float = float(value) if kind.width == 8 else struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError:
        raise ValueError(f"it is beyond the largest {kind.name}") from None
    if isinstance(value, int) and found != value:
        raise ValueError(f"a {kind.name} cannot hold this int exactly: write float(…) to round it to {found!r}")
    return found


def _decimal(value: Any, kind: ColumnType) -> Any:
    if not isinstance(value, Decimal):
        return _NONE
    if not value.is_finite():
        raise ValueError(f"a decimal cannot be {value}")
    if not value:
        return Decimal(0).scaleb(-kind.scale)
    before, after = max(value.adjusted() + 1, 0), _digits_after_point(value)
    if after > kind.scale:
        raise ValueError(f"it has {after} digits after the point, but {kind.name} allows {kind.scale}")
    if before > kind.precision - kind.scale:
        raise ValueError(
            f"it has {before} digits before the point, but {kind.name} allows {kind.precision - kind.scale}"
        )
    return value.quantize(Decimal(1).scaleb(-kind.scale), context=WIDE_CONTEXT)


def _digits_after_point(value: Decimal) -> int:
    """Return the number of digits after the point without trailing zeros; negative for a multiple of ten."""
    _, digits, exponent = value.as_tuple()
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -(int(exponent) + zeros)


def _string(value: Any, _: ColumnType) -> Any:
    if not isinstance(value, str):
        return _NONE
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it has the lone surrogate {value[error.start]!r}, which is not a character") from None
    return str.__str__(value)


def _binary(value: Any, _: ColumnType) -> Any:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else _NONE


def _date(value: Any, _: ColumnType) -> Any:
    if isinstance(value, datetime):
        raise TypeError("a date is needed, not a datetime, which has a time of day")
    return _same(value, date, lambda: _day(value))


def _timestamp(value: Any, _: ColumnType) -> Any:
    moment = _datetime(value)
    if moment is _NONE:
        return _NONE
    if moment.utcoffset() is None:
        raise TypeError("a timestamp needs a datetime with a time zone")
    try:
        return moment.astimezone(UTC)  # the form that a read returns
    except OverflowError:
        raise ValueError("in UTC it lies outside the years 1 to 9999") from None


def _timestamp_ntz(value: Any, _: ColumnType) -> Any:
    local = _datetime(value)
    if local is not _NONE and local.tzinfo is not None:
        raise TypeError("a timestamp_ntz needs a datetime without a time zone")
    return local


def _datetime(value: Any) -> Any:
    return _same(value, datetime, lambda: datetime.combine(_day(value), _time(value), value.tzinfo))


def _day(value: date) -> date:
    return date(value.year, value.month, value.day)


def _time(value: datetime) -> time:
    return time(value.hour, value.minute, value.second, value.microsecond, fold=value.fold)


def _interval(value: Any, kind: ColumnType) -> Any:
    found = _same(value, timedelta, lambda: timedelta(value.days, value.seconds, value.microseconds))
    if found is not _NONE:
        in_range(found // timedelta(microseconds=1), kind)
    return found


def _same(value: Any, kind: type[T], plain: Callable[[], T]) -> Any:
    """Return the value, or, if its class is a subclass of `kind`, the equal value of `kind`; `_NONE` if it is not a
    `kind`."""
    if type(value) is kind or not isinstance(value, kind):
        return value if isinstance(value, kind) else _NONE
    try:
        found = plain()
    except (TypeError, ValueError):  # NaT of pandas: its parts are NaN
        raise ValueError(f"{value} is not a value: write None") from None
    if found != value:
        raise ValueError(f"{full_name(type(value))} {value} is finer than a microsecond, Python's resolution")
    return found


_TAKEN: Final[dict[str, tuple[Callable[[Any, ColumnType], Any], str]]] = {
    "boolean": (_boolean, "bool is"),
    "integer": (_integer, "int is"),
    "float": (_float, "float is"),
    "decimal": (_decimal, "decimal.Decimal is"),
    "string": (_string, "str is"),
    "binary": (_binary, "bytes are"),
    "date": (_date, "datetime.date is"),
    "timestamp": (_timestamp, "datetime.datetime is"),
    "timestamp_ntz": (_timestamp_ntz, "datetime.datetime is"),
    "interval": (_interval, "datetime.timedelta is"),
}
