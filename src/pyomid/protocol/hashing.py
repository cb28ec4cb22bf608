"""The 64-bit ids of cells, rows and tables that a commit names (interop.md, Hashes).

An id is the low half of MurmurHash3 x64 128 with seed 0 over the concatenated bytes, as a signed 64-bit integer:
cell id = table + row + family + qualifier, row id = table + row, table id = table. The algorithm is Austin
Appleby's MurmurHash3_x64_128 (public domain), restated here. `native/hashing.py` is its compiled implementation.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_TWO_WORDS: Final = Struct("<QQ")


def cell_id(table: bytes, row: bytes, family: bytes, qualifier: bytes) -> int:
    """The id by which a cell-level commit names one column of one row."""
    return signed(murmur3_x64_128(table + row + family + qualifier)[0])


def row_id(table: bytes, row: bytes) -> int:
    """The id by which a row-level commit names one row."""
    return signed(murmur3_x64_128(table + row)[0])


@lru_cache(maxsize=4096)
def table_id(table: bytes) -> int:
    """The id by which fences, commits and marks name a table."""
    return signed(murmur3_x64_128(table)[0])


def signed(word: int) -> int:
    """An unsigned 64-bit number as protobuf's int64 and Java's long hold it."""
    return word - (1 << 64) if word >> 63 else word


def murmur3_x64_128(data: bytes) -> tuple[int, int]:
    """Both halves of the hash with seed 0, unsigned, the low half first. Without a function for each step: to call one
    costs as much as the step."""
    h1 = h2 = 0
    length = len(data)
    whole = length & ~15
    for k1, k2 in _TWO_WORDS.iter_unpack(data if whole == length else data[:whole]):
        k1 = k1 * _C1 & _MASK
        h1 ^= ((k1 << 31 | k1 >> 33) & _MASK) * _C2 & _MASK
        h1 = ((h1 << 27 | h1 >> 37) + h2 & _MASK) * 5 + 0x52DCE729 & _MASK
        k2 = k2 * _C2 & _MASK
        h2 ^= ((k2 << 33 | k2 >> 31) & _MASK) * _C1 & _MASK
        h2 = ((h2 << 31 | h2 >> 33) + h1 & _MASK) * 5 + 0x38495AB5 & _MASK
    if whole != length:
        k1, k2 = _TWO_WORDS.unpack(data[whole:].ljust(16, b"\0"))
        k2 = k2 * _C2 & _MASK
        h2 ^= ((k2 << 33 | k2 >> 31) & _MASK) * _C1 & _MASK
        k1 = k1 * _C1 & _MASK
        h1 ^= ((k1 << 31 | k1 >> 33) & _MASK) * _C2 & _MASK
    h1 ^= length
    h2 ^= length
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _avalanche(h1), _avalanche(h2)
    h1 = h1 + h2 & _MASK
    return h1, h2 + h1 & _MASK


def _avalanche(word: int) -> int:
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & _MASK
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
