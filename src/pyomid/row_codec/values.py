"""One column value ↔ its stored bytes: row-at-a-time, the reference implementation of the column kernels.

HBase's `Bytes` conventions, so that other programs read what Spark wrote (the table is in `column_types`).

An empty stored value is the tombstone, yet strings and binaries may be empty. So for these two types a stored
value made of zero bytes only stands for one zero byte fewer:

    value   b""     b"\\0"      b"\\0\\0"       b"a"   b"\\0a"
    stored  b"\\0"  b"\\0\\0"   b"\\0\\0\\0"    b"a"   b"\\0a"

Every other value is stored as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from pyomid.errors import Corruption, MisuseType
from pyomid.row_codec.column_types import ColumnType, Layout, column_type
from pyomid.row_codec.nested import from_json, to_json

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_WIDE: Final = Context(prec=60)
"""Room for 38 digits at any scale: the default context rounds to 28."""


def encode_value(value: Any, type_name: str) -> bytes:
    """A Python value (never None: that is a tombstone) as stored bytes; MisuseType where it does not fit."""
    kind = column_type(type_name)
    try:
        return _encode(value, kind)
    except (TypeError, ValueError, OverflowError, AttributeError, InvalidOperation, struct.error) as error:
        raise MisuseType(f"value {value!r} does not fit Spark type {type_name}: {error}", type=type_name) from error


def decode_value(stored: bytes, type_name: str) -> Any:
    """The value again; Corruption where the bytes cannot be of that type."""
    kind = column_type(type_name)
    if kind.is_fixed and len(stored) != kind.width:
        raise Corruption(f"stored value {stored!r} has {len(stored)} bytes, Spark type {type_name} has {kind.width}")
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
    """`decode_value`, of a column that was widened from these types: a value tells its type by its length."""
    fits = next((each for each in earlier_types if column_type(each).width == len(stored)), type_name)
    return decode_value(stored, fits)


def add_zero_byte(value: bytes) -> bytes:
    """What stands in the store for a string's or binary's bytes."""
    return value if value.strip(b"\x00") else value + b"\x00"


def remove_zero_byte(stored: bytes) -> bytes:
    return stored if stored.strip(b"\x00") else stored[:-1]


def number_of(value: Any, kind: ColumnType) -> int:
    """The whole number that stands for an integer, date, timestamp or interval."""
    if kind.name == "date":
        if isinstance(value, datetime):
            raise TypeError("a date is needed, not a datetime, which has a time of day")
        return require(value, date).toordinal() - _EPOCH_DAY
    if kind.name == "timestamp":
        moment = require(value, datetime)
        if moment.tzinfo is None:
            raise TypeError("a timestamp is a moment, and a datetime without a time zone is none")
        return (_in_utc(moment) - _EPOCH_UTC) // _MICROSECOND
    if kind.name == "timestamp_ntz":
        local = require(value, datetime)
        if local.tzinfo is not None:
            raise TypeError("a timestamp_ntz has no time zone: a datetime without one is needed")
        return (local - _EPOCH) // _MICROSECOND
    if kind.name.startswith("interval"):
        return require(value, timedelta) // _MICROSECOND
    return require(value, int)


def _in_utc(moment: datetime) -> datetime:
    """As it is read back."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("in UTC it lies outside of the years 1 to 9999") from None


def python_value(number: int, kind: ColumnType) -> Any:
    if kind.name == "date":
        return date.fromordinal(number + _EPOCH_DAY)
    if kind.name == "timestamp":
        return _EPOCH_UTC + timedelta(microseconds=number)
    if kind.name == "timestamp_ntz":
        return _EPOCH + timedelta(microseconds=number)
    if kind.name.startswith("interval"):
        return timedelta(microseconds=number)
    return number


def unscaled_of(value: Any, kind: ColumnType) -> int:
    """A decimal's digits at the type's scale; ValueError where digits would be lost."""
    try:
        scaled = _WIDE.multiply(require(value, Decimal), Decimal(1).scaleb(kind.scale))
        is_exact = _WIDE.scaleb(scaled, -kind.scale) == value
        if is_exact and scaled == scaled.to_integral_value() and _WIDE.abs(scaled) < 10**kind.precision:
            return int(scaled)
    except ArithmeticError:  # no number, or one of a million digits
        pass
    raise ValueError(f"needs more than {kind.precision} digits with {kind.scale} after the point")


def scaled_value(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, _WIDE)


def minimal_bytes(number: int) -> bytes:
    """Java's `BigInteger.toByteArray`: two's complement, big-endian, as short as it goes."""
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True)


def _encode(value: Any, kind: ColumnType) -> bytes:
    if kind.layout is Layout.BOOLEAN:
        return b"\xff" if require(value, bool) else b"\x00"
    if kind.layout is Layout.INTEGER:
        return number_of(value, kind).to_bytes(kind.width, "big", signed=True)
    if kind.layout is Layout.FLOAT:
        if isinstance(value, bool):
            raise TypeError("a float is needed, not a bool")
        return struct.pack(">f" if kind.width == 4 else ">d", value)
    if kind.layout is Layout.DECIMAL:
        return kind.scale.to_bytes(4, "big", signed=True) + minimal_bytes(unscaled_of(value, kind))
    if kind.layout is Layout.JSON:
        return to_json(value, kind.name)
    if kind.layout is Layout.STRING:
        return add_zero_byte(require(value, str).encode())
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"bytes are needed, not a {type(value).__name__}")
    return add_zero_byte(bytes(value))


def _decode_decimal(stored: bytes, kind: ColumnType) -> Decimal:
    if not 5 <= len(stored) <= 20:
        raise Corruption(f"stored value {stored!r} is no decimal: {len(stored)} bytes, not 5 to 20")
    scale = int.from_bytes(stored[:4], "big", signed=True)
    if scale != kind.scale:
        raise Corruption(f"stored decimal {stored!r} has scale {scale}, Spark type {kind.name} has {kind.scale}")
    return scaled_value(int.from_bytes(stored[4:], "big", signed=True), scale)


def _decode_text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Corruption(f"stored value {text!r} of a string column is not UTF-8") from error


def require(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{kind.__name__} is needed, not {type(value).__name__}")
    return value
