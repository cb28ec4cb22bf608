"""One column value ↔ its stored bytes: row-at-a-time, the reference implementation of the column kernels.

Values follow HBase's `Bytes` conventions, so that other programs can read them (the table is in `column_types`).

An empty stored value is a tombstone, but strings and binaries may be empty. So a string or binary that is empty, or has
only zero bytes, is stored with one more zero byte:

    value   b""     b"\\0"      b"\\0\\0"       b"a"   b"\\0a"
    stored  b"\\0"  b"\\0\\0"   b"\\0\\0\\0"    b"a"   b"\\0a"

Every other value is stored unchanged.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.row_codec.column_types import ColumnType, Layout, column_type
from pyomid.row_codec.exact import WIDE_CONTEXT, exact, exact_nested, shown_value
from pyomid.row_codec.nested import from_json, to_json

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


def encode_value(value: Any, type_name: str) -> bytes:
    """Return a Python value (never None, which is a tombstone) as stored bytes; MisuseType if it does not fit."""
    kind = column_type(type_name)
    try:
        if kind.layout is Layout.JSON:
            return to_json(exact_nested(value, json.loads(type_name)), type_name)
        return _encode(exact(value, kind), kind)
    except (TypeError, ValueError) as error:
        raise MisuseType(
            f"value {shown_value(value)} does not fit Spark type {type_name}: {error}", type=type_name
        ) from error


def decode_value(stored: bytes, type_name: str) -> Any:
    """Return the value of stored bytes; Corruption if they are not of that type."""
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
    """Return the value of a column that was widened from these types: a stored value's length shows its type."""
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
    """Return the value that an integer represents. `Misuse` for a date or time outside Python's `datetime`, which other
    programs may store."""
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
            f"a {kind.name} of {number} {unit} since 1970 lies outside the years 1 to 9999 (UTC) of Python's datetime: "
            "read it as Arrow (`to_arrow`) or by Spark"
        ) from error
    return timedelta(microseconds=number) if kind.name.startswith("interval") else number


def unscaled_of(value: Any, kind: ColumnType) -> int:
    """Return the unscaled number, at the type's scale, of a decimal that fits the type."""
    return int(value.scaleb(kind.scale, WIDE_CONTEXT))


def scaled_value(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, WIDE_CONTEXT)


def minimal_bytes(number: int) -> bytes:
    """Return the shortest two's complement bytes, big-endian, as Java's `BigInteger.toByteArray`."""
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
        raise Corruption(f"stored value {stored!r} is not a valid decimal: it has {len(stored)} bytes, not 5 to 20")
    scale = int.from_bytes(stored[:4], "big", signed=True)
    if scale != kind.scale:
        raise Corruption(f"stored decimal {stored!r} has scale {scale}, Spark type {kind.name} has {kind.scale}")
    return scaled_value(int.from_bytes(stored[4:], "big", signed=True), scale)


def _decode_text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Corruption(f"stored value {text!r} of a string column is not UTF-8") from error
