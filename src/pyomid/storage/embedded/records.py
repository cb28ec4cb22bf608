"""Keys and records, in bytes; all cells of one row and version are one record.

A key sorts as table, row, version descending:

    number of the table   4 bytes, big-endian
    row                   each 00 as 00 FF, then 00
    version               8 bytes, big-endian, TIMESTAMP_MAX − version: its first byte is below 80, so a row's end
                          (00, then less than 80) sorts before any continuation of the row (00 FF, or 01 and more)

So keys sort as their rows, and all records of a row lie together. The keys of row 'a\\0' begin with the row prefix of
'a' too: a key belongs to a row if the key without its version *is* the row prefix.

A record has one commit timestamp, which is the shadow cell of all its cells:

    checksum   4 bytes, little-endian: CRC-32 of the key and of everything after this field
    commit_ts  8 bytes, little-endian; 0 while unknown
    cells      number of them, then for each: column's number, 0 for a tombstone or length + 1, value

Numbers are unsigned varints (7 bits a byte, low bits first). The checksum includes the commit timestamp: a flipped bit
in it would show or hide a whole row without an error, and LMDB rewrites the page for a shadow cell in any case, so to
leave it out would save nothing. This is the reference implementation, row at a time; `native/records` is the compiled
one, and a test compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from pyomid.errors import Corruption
from pyomid.storage.checks import shown
from pyomid.types import TIMESTAMP_MAX, KeyRange

KEY_BYTES_MAX: Final = 511
"""LMDB's limit, as it is compiled by default."""
TABLE_BYTES: Final = 4
VERSION_BYTES: Final = 8
KEY_BYTES_MIN: Final = TABLE_BYTES + 1 + 1 + VERSION_BYTES
"""The key of a row of one byte. No row is empty."""
ESCAPED_ROW_BYTES_MAX: Final = KEY_BYTES_MAX - TABLE_BYTES - 1 - VERSION_BYTES

HEADER_BYTES: Final = 12
_CHECKSUM_BYTES: Final = 4
_HEADER: Final = struct.Struct("<IQ")
_COPIED_BYTES_MAX: Final = 4096
"""A record of so many bytes is cut for its checksum by a view; to copy a shorter one costs less than a view of it."""
VARINT_BYTES_MAX: Final = 5

NO_SUCH_COLUMN: Final = "it names a column that the table does not have"


def table_prefix(number: int) -> bytes:
    return number.to_bytes(TABLE_BYTES)


def row_prefix(prefix: bytes, row: bytes) -> bytes:
    """The key of the row without a version. `prefix` is the table's."""
    return prefix + row.replace(b"\x00", b"\x00\xff") + b"\x00"


def record_key(prefix: bytes, row: bytes, version: int) -> bytes:
    return row_prefix(prefix, row) + version_suffix(version)


def version_suffix(version: int) -> bytes:
    return (TIMESTAMP_MAX - version).to_bytes(VERSION_BYTES)


def range_bounds(prefix: bytes, key_range: KeyRange) -> tuple[bytes, bytes]:
    """The keys of the range's records lie from the first (inclusive) to the second (exclusive)."""
    start = prefix + key_range.start.replace(b"\x00", b"\x00\xff")
    if key_range.stop is None:
        return start, next_prefix(prefix)
    return start, prefix + key_range.stop.replace(b"\x00", b"\x00\xff")


def next_prefix(prefix: bytes) -> bytes:
    return (int.from_bytes(prefix) + 1).to_bytes(TABLE_BYTES)


def key_version(key: bytes) -> int:
    return TIMESTAMP_MAX - int.from_bytes(key[-VERSION_BYTES:])


def key_row(key: bytes) -> bytes:
    return key[TABLE_BYTES : -VERSION_BYTES - 1].replace(b"\x00\xff", b"\x00")


@dataclass(slots=True)
class Record:
    """A decoded record: column number → value, None for a tombstone."""

    commit_ts: int
    cells: dict[int, bytes | None]


def encode_record(key: bytes, record: Record) -> bytes:
    out = bytearray(HEADER_BYTES)
    out[_CHECKSUM_BYTES:HEADER_BYTES] = record.commit_ts.to_bytes(8, "little")
    _put_varint(out, len(record.cells))
    for column in sorted(record.cells):
        value = record.cells[column]
        _put_varint(out, column)
        _put_varint(out, 0 if value is None else len(value) + 1)
        if value is not None:
            out += value
    out[:_CHECKSUM_BYTES] = crc32(memoryview(out)[_CHECKSUM_BYTES:], crc32(key)).to_bytes(_CHECKSUM_BYTES, "little")
    return bytes(out)


def decode_record(key: bytes, value: bytes) -> Record:
    """Decodes a record. `Corruption` if checksum or format is wrong."""
    return Record(*decode_cells(key, value))


def decode_cells(key: bytes, value: bytes) -> tuple[int, dict[int, bytes | None]]:
    """The commit timestamp and the cells of a record. `Corruption` if checksum or format is wrong."""
    size = len(value)
    if size < HEADER_BYTES:
        raise corrupt(key, "its checksum does not match")
    checksum, commit_ts = _HEADER.unpack_from(value)
    content = value if size < _COPIED_BYTES_MAX else memoryview(value)
    if crc32(content[_CHECKSUM_BYTES:], crc32(key)) != checksum:
        raise corrupt(key, "its checksum does not match")
    cells: dict[int, bytes | None] = {}
    try:
        count, at = value[HEADER_BYTES], HEADER_BYTES + 1
        if count >= 0x80:
            count, at = _varint(value, HEADER_BYTES)
        for _ in range(count):
            column, length = value[at], value[at + 1]
            if column < 0x80 and length < 0x80:  # nearly always one byte each
                at += 2
            else:
                column, at = _varint(value, at)
                length, at = _varint(value, at)
            if length:
                first, at = at, at + length - 1
                cells[column] = value[first:at]
            else:
                cells[column] = None
    except IndexError:
        raise corrupt(key, "it ends in the middle of a cell") from None
    if at != size:
        raise corrupt(key, "its cells do not fill it")
    return commit_ts, cells


def is_whole(key: bytes, value: bytes) -> bool:
    """Whether its checksum matches."""
    return len(value) >= HEADER_BYTES and _checksum(key, value) == int.from_bytes(value[:_CHECKSUM_BYTES], "little")


def cell_places(value: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each cell of a record: column's number, offset and length of its value (-1: a tombstone). IndexError where
    the record ends before, ValueError where it ends later."""
    count, at = _varint(value, HEADER_BYTES)
    for _ in range(count):
        number, at = _varint(value, at)
        length, at = _varint(value, at)
        yield number, at, length - 1
        at += max(length - 1, 0)
    if at != len(value):
        raise ValueError


def corrupt(key: bytes, what: str) -> Corruption:
    row, version = key_row(key), key_version(key)
    return Corruption(f"record of row {shown(row)}, version {version}: {what}", row=row, version=version)


def _checksum(key: bytes, value: bytes) -> int:
    return crc32(memoryview(value)[_CHECKSUM_BYTES:], crc32(key))


def _put_varint(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = value[at]
    if number < 0x80:
        return number, at + 1
    number &= 0x7F
    for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
        at += 1
        byte = value[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
    raise IndexError
