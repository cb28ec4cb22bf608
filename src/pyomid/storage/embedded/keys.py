"""Keys of records, in bytes that sort as table, row, version descending.

    number of the table   4 bytes, big-endian
    row                   each 00 as 00 FF, then 00
    version               8 bytes, big-endian, TIMESTAMP_MAX − version: its first byte is below 80, so a row's end
                          (00, then less than 80) sorts before any continuation of the row (00 FF, or 01 and more)

So keys sort as their rows, and all records of a row lie together. The keys of row 'a\\0' begin with the row prefix of
'a' too: a key belongs to a row if the key without its version *is* the row prefix.
"""

from __future__ import annotations

from typing import Final

from pyomid.types import TIMESTAMP_MAX, KeyRange

KEY_BYTES_MAX: Final = 511
"""LMDB's limit, as it is compiled by default."""
TABLE_BYTES: Final = 4
VERSION_BYTES: Final = 8
KEY_BYTES_MIN: Final = TABLE_BYTES + 1 + 1 + VERSION_BYTES
"""The key of a row of one byte. No row is empty."""
ESCAPED_ROW_BYTES_MAX: Final = KEY_BYTES_MAX - TABLE_BYTES - 1 - VERSION_BYTES


def table_prefix(number: int) -> bytes:
    return number.to_bytes(TABLE_BYTES)


def escaped_bytes(row: bytes) -> int:
    return len(row) + row.count(0)


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
