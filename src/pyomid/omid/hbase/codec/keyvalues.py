"""HBase's KeyValues, one at a time: for operations on single rows, and as reference for the compiled kernels.

A cell block is a sequence of KeyValues, each preceded by its 4-byte length. All numbers are big-endian:
    key length (4), value length (4), row length (2), row, family length (1), family, qualifier, timestamp (8),
    type (1), value
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from pyomid.errors import Corruption
from pyomid.omid.hbase.codec.native import decode as kernels

PUT: Final = 4
DELETE_VERSION: Final = 8
DELETE_FAMILY_VERSION: Final = 10
DELETE_COLUMN: Final = 12
DELETE_FAMILY: Final = 14

LATEST: Final = (1 << 63) - 1
"""A timestamp that the server replaces by the time of its own clock."""

_HEAD: Final = struct.Struct(">IIIH")
_TAIL: Final = struct.Struct(">QB")
_FIXED_KEY_BYTES: Final = 12
"""The size of a key without its names: row length, family length, timestamp, type."""


class KeyValue(NamedTuple):
    row: bytes
    family: bytes
    qualifier: bytes
    timestamp: int
    value: bytes
    kind: int = PUT


def encode(cell: KeyValue) -> bytes:
    """Return the KeyValue after its 4-byte length, as in a cell block."""
    row, family, qualifier, timestamp, value, kind = cell
    key_bytes = _FIXED_KEY_BYTES + len(row) + len(family) + len(qualifier)
    return b"".join(
        (
            _HEAD.pack(8 + key_bytes + len(value), key_bytes, len(value), len(row)),
            row,
            bytes((len(family),)),
            family,
            qualifier,
            _TAIL.pack(timestamp, kind),
            value,
        )
    )


def decode(block: bytes | bytearray | memoryview) -> Iterator[KeyValue]:
    """Yield all KeyValues of a cell block, in order. Raises `Corruption` if a length does not fit."""
    position, end = 0, len(block)
    while position < end:
        if end - position < _HEAD.size:
            raise Corruption(f"a cell block ends inside a cell, at byte {position} of {end}")
        total, key_bytes, value_bytes, row_bytes = _HEAD.unpack_from(block, position)
        body = position + 4
        if 8 + key_bytes + value_bytes > total or body + total > end or key_bytes < _FIXED_KEY_BYTES + row_bytes:
            raise Corruption(f"the lengths of the cell at byte {position} do not fit into {end} bytes")
        row_at = position + _HEAD.size
        family_at = row_at + row_bytes + 1
        family_bytes = block[family_at - 1]
        qualifier_at = family_at + family_bytes
        tail_at = body + 8 + key_bytes - _TAIL.size
        if qualifier_at > tail_at:
            raise Corruption(f"the family of the cell at byte {position} reaches beyond its key")
        timestamp, kind = _TAIL.unpack_from(block, tail_at)
        value_at = tail_at + _TAIL.size
        yield KeyValue(
            bytes(block[row_at : row_at + row_bytes]),
            bytes(block[family_at:qualifier_at]),
            bytes(block[qualifier_at:tail_at]),
            timestamp,
            bytes(block[value_at : value_at + value_bytes]),
            kind,
        )
        position = body + total


def first_row(block: memoryview) -> bytes:
    """Return the row of the first KeyValue."""
    return next(decode(block)).row


def last_row(block: memoryview) -> bytes:
    """Return the row of the last KeyValue. Reads only lengths to find it."""
    cells = np.frombuffer(block, dtype=np.uint8)
    position = kernels.last_cell(cells)
    if position < 0:
        raise Corruption(f"a cell block of {len(block)} bytes ends inside a cell")
    (row_bytes,) = struct.unpack_from(">H", block, position + 12)
    return bytes(block[position + _HEAD.size : position + _HEAD.size + row_bytes])
