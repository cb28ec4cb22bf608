"""Encode keys and records as bytes. All cells of one row and version are one record.

Keys sort by table, row, and descending version:

    number of the table   4 bytes, big-endian
    row                   each 00 as 00 FF, then 00
    version               8 bytes, big-endian, TIMESTAMP_MAX − version: its first byte is below 80, so a row's end
                          (00, then less than 80) sorts before any continuation of the row (00 FF, or 01 and more)

So keys sort like their rows, and all records of a row lie together. The keys of row 'a\\0' begin with the row prefix of
'a' too. So a key belongs to a row only if the key without its version *equals* the row prefix.

A record has one commit timestamp, which is the shadow cell of all its cells:

    checksum   4 bytes, little-endian: CRC-32 of the key and of everything after this field
    commit_ts  8 bytes, little-endian; 0 while unknown
    cells      as pairs or dense

    pairs      number of cells, not 0; then for each: column's number, 0 for a tombstone or length + 1, value
    dense      0; the greatest column number, below 128 (1 byte); 4 bits for each column from 1 up to it, the high
               half of a byte first: 0 for no cell, 1 for a tombstone, length + 1 of a value up to 13 bytes, 15 for a
               longer one; then the values in the order of their columns, each longer one with length + 1 before it

Cells are dense if that saves at least 4 bytes, not counting values of more than 13 bytes (`is_dense`). A record with
most of a table's columns then needs half a byte per column, not two bytes. All records from before layout 3 are pairs.

Numbers are unsigned varints (7 bits a byte, low bits first). The checksum includes the commit timestamp, because a
flipped bit in that would show or hide a whole row without an error; LMDB rewrites the page for a shadow cell in any
case. This is the reference implementation, row at a time; `native/records` is the compiled one, and a test compares
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from pyomid.checks import shown
from pyomid.errors import Corruption
from pyomid.types import TIMESTAMP_MAX, KeyRange, StoreLimits

KEY_BYTES_MAX: Final = 511
"""LMDB's limit, as LMDB is compiled by default."""
TABLE_BYTES: Final = 4
VERSION_BYTES: Final = 8
KEY_BYTES_MIN: Final = TABLE_BYTES + 1 + 1 + VERSION_BYTES
"""The length of the key of a row of one byte; no row is empty."""
ESCAPED_ROW_BYTES_MAX: Final = KEY_BYTES_MAX - TABLE_BYTES - 1 - VERSION_BYTES

VALUE_BYTES_MAX: Final = 10 << 20

LIMITS: Final = StoreLimits(
    row_bytes_max=ESCAPED_ROW_BYTES_MAX,
    qualifier_bytes_max=32_767,
    value_bytes_max=VALUE_BYTES_MAX,
    zeros_count_twice=True,
)

HEADER_BYTES: Final = 12
_CHECKSUM_BYTES: Final = 4
_HEADER: Final = struct.Struct("<IQ")
_COPIED_BYTES_MAX: Final = 4096
"""From this size on, the checksum is computed over a view of the record. Shorter records are copied, which is
faster."""
VARINT_BYTES_MAX: Final = 5
DENSE_COLUMNS_MAX: Final = 127
LONG: Final = 15
"""Stands in dense cells in place of a value's length + 1 if that does not fit into 4 bits."""

_DIGITS: Final = b"0123456789abcdef" + bytes(240)
_CODES: Final = bytes.maketrans(b"0123456789abcdef", bytes(range(16)))

NO_SUCH_COLUMN: Final = "it names a column that the table does not have"


def table_prefix(number: int) -> bytes:
    return number.to_bytes(TABLE_BYTES)


def row_prefix(prefix: bytes, row: bytes) -> bytes:
    """Return the key of the row without a version. `prefix` is the table's prefix."""
    return prefix + row.replace(b"\x00", b"\x00\xff") + b"\x00"


def is_row_key(key: bytes) -> bool:
    """Return whether `row_prefix` returns this key, with an empty table prefix, for a row that is not too long."""
    row = key[:-1].replace(b"\x00\xff", b"\x00")
    return 1 < len(key) <= ESCAPED_ROW_BYTES_MAX + 1 and row_prefix(b"", row) == key


def record_key(prefix: bytes, row: bytes, version: int) -> bytes:
    return row_prefix(prefix, row) + version_suffix(version)


def version_suffix(version: int) -> bytes:
    return (TIMESTAMP_MAX - version).to_bytes(VERSION_BYTES)


def range_bounds(prefix: bytes, key_range: KeyRange) -> tuple[bytes, bytes]:
    """Return the first key of the range, and the first key after the range."""
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
    """A decoded record: column number → value, or None for a tombstone."""

    commit_ts: int
    cells: dict[int, bytes | None]


def encode_record(key: bytes, record: Record) -> bytes:
    return record_of(key, record.commit_ts, encode_cells(record.cells))


def encode_cells(cells: Mapping[int, bytes | None]) -> bytes:
    """Return the cells, given by column number, encoded as the last field of a record."""
    columns, count = sorted(cells), len(cells)
    if count > 1 and is_dense(count, columns[-1]):
        return _dense(cells, columns)
    out = bytearray()
    _put_varint(out, count)
    for column in columns:
        value = cells[column]
        _put_varint(out, column)
        _put_varint(out, 0 if value is None else len(value) + 1)
        if value is not None:
            out += value
    return bytes(out)


def is_dense(count: int, greatest: int) -> bool:
    """Return whether a record with `count` cells is stored dense. `greatest` is its greatest column number."""
    return greatest <= DENSE_COLUMNS_MAX and (greatest + 1) // 2 + 4 < 2 * count


def _dense(cells: Mapping[int, bytes | None], columns: list[int]) -> bytes:
    codes, values = bytearray(columns[-1] + columns[-1] % 2), bytearray()
    for column in columns:
        value = cells[column]
        if value is None:
            codes[column - 1] = 1
        elif (length := len(value) + 1) < LONG:
            codes[column - 1] = length
            values += value
        else:
            codes[column - 1] = LONG
            _put_varint(values, length)
            values += value
    return bytes((0, columns[-1])) + bytes.fromhex(codes.translate(_DIGITS).decode()) + values


def _codes(value: bytes, at: int) -> tuple[bytes, int]:
    """Return the codes of dense cells, one byte for each column, and the offset of their values. `at` is the offset of
    the greatest column number."""
    greatest = value[at]
    end = at + 1 + (greatest + 1) // 2
    if not 0 < greatest <= DENSE_COLUMNS_MAX or end > len(value):
        raise IndexError
    return value[at + 1 : end].hex().encode().translate(_CODES)[:greatest], end


def record_of(key: bytes, commit_ts: int, cells: bytes) -> bytes:
    """Return the record with this commit timestamp and these encoded cells."""
    content = commit_ts.to_bytes(8, "little") + cells
    return crc32(content, crc32(key)).to_bytes(_CHECKSUM_BYTES, "little") + content


def decode_record(key: bytes, value: bytes) -> Record:
    """Decode a record. Raises `Corruption` if its checksum or format is wrong."""
    return Record(*decode_cells(key, value))


def decode_cells(key: bytes, value: bytes) -> tuple[int, dict[int, bytes | None]]:
    """Return the commit timestamp and the cells of a record. Raises `Corruption` if its checksum or format is wrong."""
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
        if not count:
            codes, at = _codes(value, at)
            for column, length in enumerate(codes, 1):
                if length > 1:
                    if length == LONG:
                        length, at = value[at], at + 1
                        if not LONG <= length < 0x80:
                            length, at = _long(value, at - 1)
                    first, at = at, at + length - 1
                    cells[column] = value[first:at]
                elif length:
                    cells[column] = None
        elif count >= 0x80:
            count, at = _varint(value, HEADER_BYTES)
        for _ in range(count):
            column, length = value[at], value[at + 1]
            if column < 0x80 and length < 0x80:  # both numbers nearly always take one byte
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


def first_cell(value: bytes) -> bytes:
    """Return the first two bytes of a record's cells. In a record of pairs with small numbers, they are the number of
    cells and the first cell's column. In a dense record, they are 0 and the greatest column number."""
    return value[HEADER_BYTES : HEADER_BYTES + 2]


def only_cell(number: int) -> bytes:
    """Return what `first_cell` returns for a record with a single cell, of this column (below 128)."""
    return bytes((1, number))


def holds_only(value: bytes, numbers: frozenset[int]) -> bool:
    """Return whether all cells of a record are of these columns, so that the reader may skip the record without
    checking its bytes.

    Returns False too if the record is damaged, or a number in it is too large for this quick check. Then the caller
    decodes the record, which reports damage.
    """
    try:
        at, count = HEADER_BYTES + 1, value[HEADER_BYTES]
        if not count:
            return _dense_holds_only(value, at, numbers)
        for _ in range(count):
            number, length = value[at], value[at + 1]
            if number not in numbers or number >= 0x80 or length >= 0x80:
                return False
            at += length + 1 if length else 2
    except IndexError:
        return False
    return count < 0x80 and at == len(value)


def _dense_holds_only(value: bytes, at: int, numbers: frozenset[int]) -> bool:
    codes, at = _codes(value, at)
    for number, length in enumerate(codes, 1):
        if length:
            if number not in numbers:
                return False
            if length == LONG:
                length, at = value[at], at + 1
                if not LONG <= length < 0x80:
                    return False
            at += length - 1
    return at == len(value)


def is_whole(key: bytes, value: bytes) -> bool:
    """Return whether the record's checksum is right."""
    return len(value) >= HEADER_BYTES and _checksum(key, value) == int.from_bytes(value[:_CHECKSUM_BYTES], "little")


def places_in(value: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield column number, value's offset and value's length (-1 for a tombstone) of each encoded cell from `at` on.
    Raises IndexError if `value` ends too early, and ValueError if bytes are left."""
    count, at = _varint(value, at)
    codes, at = _codes(value, at) if not count else (b"", at)
    for number, code in enumerate(codes, 1):
        if code:
            length, at = _long(value, at) if code == LONG else (code, at)
            yield number, at, length - 1 if length > 1 else -1
            at += length - 1
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


def _long(value: bytes, at: int) -> tuple[int, int]:
    """Return length + 1 of a long value in dense cells, and the value's offset."""
    length, at = _varint(value, at)
    if length < LONG:
        raise IndexError
    return length, at


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
