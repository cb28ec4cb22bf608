"""Encoding of key columns as row keys. It is order-preserving and self-delimiting, so ranges of values are ranges of
keys.

    type                          ascending part                                               bytes
    boolean                       00 or 01                                                     1
    byte short integer long       two's complement, big-endian, sign bit inverted              1 2 4 8
    date                          days since 1970, as integer                                  4
    timestamp timestamp_ntz       microseconds since 1970, as long                             8
    interval day … second         microseconds, as long                                        8
    float double                  IEEE 754, big-endian; positive: sign bit inverted, negative: all bits;
                                  -0.0 as 0.0, every NaN as one, above infinity (Spark's order)  4 8
    decimal(p,s)                  unscaled number as integer of the bytes that p digits need   1 … 16
    string binary                 each 00 becomes 00 FF, then 00 01 ends it                    varies
    … as the last part            the bytes themselves, up to the end of the key               varies

In a descending part, every bit of the ascending part is inverted, and a string or binary always has its ending. A row
key holds no null, array, map or struct.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.rows.column_types import ColumnType, Layout, column_type
from pyomid.rows.values import exact, number_of, python_value, scaled_value, shown_value, unscaled_of
from pyomid.types import TableSchema

ESCAPED_ZERO: Final = b"\x00\xff"
ENDING: Final = b"\x00\x01"
_INVERTED: Final = bytes(255 - byte for byte in range(256))


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a row key. `is_raw` is True if it is stored unescaped, because it is the last part, an ascending
    string or binary."""

    name: str
    type: ColumnType
    descending: bool
    is_raw: bool


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The encoding of a table's row keys."""

    parts: tuple[KeyPart, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return the row key of these values, which are in the order of the parts. `Misuse` names a column that does
        not fit."""
        if len(values) != len(self.parts):
            needed = "1 value" if len(self.parts) == 1 else f"{len(self.parts)} values"
            raise Misuse(
                f"row key ({', '.join(self.names)}) needs {needed}, but {shown_value(tuple(values))} has {len(values)}"
            )
        key = b"".join(_encode_part(part, value, part.is_raw) for part, value in zip(self.parts, values, strict=True))
        if not key:
            raise Misuse(
                f"row key ({', '.join(self.names)}) = {tuple(values)!r} is empty: a row key needs at least one byte"
            )
        return key

    def encode_prefix(self, values: Sequence[Any]) -> bytes:
        """Return the common prefix of all keys whose first parts have these values. Each value must be complete, not
        the beginning of a string."""
        parts = self.parts[: len(values)]
        if len(values) > len(parts):
            raise Misuse(
                f"row key ({', '.join(self.names)}) has only {len(parts)} parts, but {shown_value(tuple(values))} has "
                f"{len(values)}"
            )
        return b"".join(_encode_part(part, value, part.is_raw) for part, value in zip(parts, values, strict=True))

    def decode(self, key: bytes) -> tuple[Any, ...]:
        """Return the values of a key. Raise `Corruption` if the key is malformed."""
        values = []
        rest = key
        for part in self.parts:
            value, rest = _decode_part(part, rest, key)
            values.append(value)
        if rest:
            raise Corruption(f"row key {key!r} has {len(rest)} bytes after its last part {self.parts[-1].name!r}")
        return tuple(values)


def key_layout(schema: TableSchema) -> KeyLayout:
    """Return the layout of a table's keys. Raise `MisuseType` if a key column's type is not allowed in a row key."""
    types = {column.name: column.spark_type for column in schema.columns}
    parts = []
    for index, part in enumerate(schema.row_key):
        kind = column_type(types[part.name], part.name)
        if kind.layout is Layout.JSON:
            raise MisuseType(f"column {part.name!r}: an array, map or struct cannot be part of a row key")
        last = index == len(schema.row_key) - 1
        parts.append(KeyPart(part.name, kind, part.descending, last and kind.is_text and not part.descending))
    return KeyLayout(tuple(parts))


# Row keys in errors, for every front end


def error_key(key: bytes, layout: KeyLayout | None) -> Any:
    """Return a row key for an error's `values`: the value of the key column, or a tuple if the key has several columns.
    If the table has no schema, or the bytes do not decode, return the bytes themselves."""
    values = None if layout is None else _decoded(key, layout)
    return key if values is None else values if len(values) > 1 else values[0]


def shown_key(key: bytes, layout: KeyLayout | None) -> str:
    """Return a row key as readable text: `name=value` for each key column, or the bytes if the table has no schema."""
    if layout is None:
        return shown_value(key)
    values = _decoded(key, layout)
    if values is None:
        return f"({', '.join(layout.names)}) = 0x{key.hex()}"
    shown = ", ".join(f"{name}={value!r}" for name, value in zip(layout.names, values, strict=True))
    return shown + (" (0.0 and -0.0 are one key)" if any(type(v) is float and v == 0 for v in values) else "")


def way_out(table: str, key: bytes) -> str:
    """Return advice, as text, on what a program can do about a stored row that does not decode."""
    return (
        "another program wrote it, or the schema does not fit it: a table without a codec has the stored bytes, "
        f"tx.table({table!r}).get({key!r}), and can put or delete the row"
    )


def _decoded(key: bytes, layout: KeyLayout) -> tuple[Any, ...] | None:
    try:
        return layout.decode(key)
    except (Corruption, OverflowError, ValueError):
        # Python's calendar ends with the year 9999; Spark's does not.
        return None


def _encode_part(part: KeyPart, value: Any, is_raw: bool) -> bytes:
    if value is None:
        raise Misuse(f"row key column {part.name!r} is null: a row key cannot hold null", column=part.name)
    try:
        ascending = _ascending(part.type, exact(value, part.type), is_raw)
    except (TypeError, ValueError) as error:
        raise MisuseType(
            f"row key column {part.name!r}: value {shown_value(value)} does not fit {part.type.name}: {error}",
            column=part.name,
        ) from error
    return ascending.translate(_INVERTED) if part.descending else ascending


def _ascending(kind: ColumnType, value: Any, is_raw: bool) -> bytes:
    if kind.is_text:
        text: bytes = value.encode() if kind.layout is Layout.STRING else value
        return text if is_raw else text.replace(b"\x00", ESCAPED_ZERO) + ENDING
    if kind.layout is Layout.BOOLEAN:
        return b"\x01" if value else b"\x00"
    if kind.layout is Layout.FLOAT:
        return _ascending_float(value, kind.width)
    number = unscaled_of(value, kind) if kind.layout is Layout.DECIMAL else number_of(value, kind)
    return _sign_inverted(number.to_bytes(kind.key_width, "big", signed=True))


def _ascending_float(value: float, width: int) -> bytes:
    canonical = math.nan if math.isnan(value) else value + 0.0
    stored = struct.pack(">f" if width == 4 else ">d", abs(canonical) if canonical == 0 else canonical)
    if math.isnan(value):
        stored = b"\x7f\xc0\x00\x00" if width == 4 else b"\x7f\xf8" + bytes(6)
    return stored.translate(_INVERTED) if stored[0] & 0x80 else _sign_inverted(stored)


def _sign_inverted(stored: bytes) -> bytes:
    return bytes([stored[0] ^ 0x80]) + stored[1:]


def _decode_part(part: KeyPart, rest: bytes, key: bytes) -> tuple[Any, bytes]:
    if part.type.is_text:
        text, rest = (rest, b"") if part.is_raw else _take_text(part, rest, key)
        return (text if part.type.layout is Layout.BINARY else _utf8(text, part, key)), rest
    width = part.type.key_width
    if len(rest) < width:
        raise Corruption(f"row key {key!r} is too short: it ends inside part {part.name!r}")
    stored = rest[:width].translate(_INVERTED) if part.descending else rest[:width]
    return _fixed_value(part.type, stored), rest[width:]


def _take_text(part: KeyPart, rest: bytes, key: bytes) -> tuple[bytes, bytes]:
    zero, escape, ending = (0xFF, 0x00, 0xFE) if part.descending else (0x00, 0xFF, 0x01)
    text = bytearray()
    at = 0
    while at < len(rest):
        if rest[at] != zero:
            text.append(rest[at])
            at += 1
        elif at + 1 < len(rest) and rest[at + 1] == escape:
            text.append(zero)
            at += 2
        elif at + 1 < len(rest) and rest[at + 1] == ending:
            taken = bytes(text)
            return taken.translate(_INVERTED) if part.descending else taken, rest[at + 2 :]
        else:
            break
    raise Corruption(f"row key {key!r} lacks the terminator after part {part.name!r}")


def _utf8(text: bytes, part: KeyPart, key: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Corruption(f"row key {key!r}: part {part.name!r} is not UTF-8") from error


def _fixed_value(kind: ColumnType, ascending: bytes) -> Any:
    if kind.layout is Layout.BOOLEAN:
        return ascending != b"\x00"
    if kind.layout is Layout.FLOAT:
        positive = ascending[0] & 0x80
        stored = _sign_inverted(ascending) if positive else ascending.translate(_INVERTED)
        return struct.unpack(">f" if kind.width == 4 else ">d", stored)[0]
    number = int.from_bytes(_sign_inverted(ascending), "big", signed=True)
    return scaled_value(number, kind.scale) if kind.layout is Layout.DECIMAL else python_value(number, kind)
