"""MurmurHash3 x64 128, restated from Austin Appleby's (public domain): what the compiled form is compared with."""

from __future__ import annotations

from struct import Struct
from typing import Final

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_TWO_WORDS: Final = Struct("<QQ")


def plain_id(name: bytes) -> int:
    """The low half, signed."""
    low = murmur3_x64_128(name)[0]
    return low - (1 << 64) if low >> 63 else low


def murmur3_x64_128(data: bytes) -> tuple[int, int]:
    """Both halves of the hash with seed 0, unsigned, the low half first."""
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
