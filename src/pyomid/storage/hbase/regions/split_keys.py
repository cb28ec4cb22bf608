"""Keys that divide a range into parts of about equally many rows, without counting the rows."""

from __future__ import annotations

import string
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final


def keys_between(first: bytes, last: bytes, known: Sequence[bytes], partitions: int) -> list[bytes]:
    """Return up to `partitions` - 1 ascending keys strictly between `first` and `last`. Assumes about equally many rows
    between any two neighbouring `known` keys."""
    anchors = [first, *sorted(set(known)), last]
    gaps = len(anchors) - 1
    cuts: list[bytes] = []
    for number in range(1, partitions):
        gap, share = divmod(number * gaps, partitions)
        key = anchors[gap] if share == 0 else _interpolate(anchors[gap], anchors[gap + 1], share, partitions)
        if first < key < last and (not cuts or key > cuts[-1]):
            cuts.append(key)
    return cuts


def _interpolate(low: bytes, high: bytes, share: int, whole: int) -> bytes:
    """Return the key at `share`/`whole` of the way from `low` to `high`. Keys are compared as base-256 fractions of a
    few bytes after their common prefix."""
    common = 0
    while common < min(len(low), len(high)) and low[common] == high[common]:
        common += 1
    size = 6
    begin = int.from_bytes(low[common : common + size].ljust(size, b"\0"), "big")
    end = int.from_bytes(high[common : common + size].ljust(size, b"\0"), "big")
    middle = begin + (end - begin) * share // whole
    return low[:common] + middle.to_bytes(size, "big").rstrip(b"\0")


_ALPHABETS: Final = tuple(
    (string.digits + more).encode()
    for more in (
        "",
        "abcdef",
        "ABCDEF",
        string.ascii_lowercase,
        string.ascii_uppercase,
        string.ascii_uppercase + string.ascii_lowercase,
    )
)
_EVERY_BYTE: Final = bytes(range(256))

SCALE_BYTES_MAX: Final = 64
"""If two keys do not differ within this many bytes, no key is estimated."""

_FINE_BYTES: Final = 8
"""Bytes after the common prefix of two keys that count for their distance."""

_PARTS: Final = 1 << 10


class KeyScale:
    """Row keys as numbers, so that the distance between two keys can be added to a third.

    A position's digits are the smallest usual alphabet with all bytes seen there: `row1000` follows `row0999`. In base
    256 the next key would be `row0:`, far from any row. The result is an estimate; any key may divide a range.
    """

    def __init__(self) -> None:
        self._alphabets: list[bytes] = []

    def learn(self, key: bytes) -> None:
        for position, byte in enumerate(key[:SCALE_BYTES_MAX]):
            if position == len(self._alphabets):
                self._alphabets.append(_alphabet((byte,)))
            elif byte not in self._alphabets[position]:
                self._alphabets[position] = _alphabet((byte, *self._alphabets[position]))

    def ahead(self, start: bytes, first: bytes, last: bytes, times: float) -> bytes | None:
        """Return the key that is `times` as far after `start` as `last` is after `first`. Call `learn` with the latter
        two before.

        None if `last` is not after `first`, or if there is no such key.
        """
        common = 0
        while common < min(len(first), len(last)) and first[common] == last[common]:
            common += 1
        alphabets = self._alphabets[: common + _FINE_BYTES]
        if common >= SCALE_BYTES_MAX:
            return None
        step = (_number(last, alphabets) - _number(first, alphabets)) * int(times * _PARTS) // _PARTS
        key = _key(_number(start, alphabets) + step, alphabets) if step > 0 else None
        return key if key is not None and key > start else None


def _alphabet(seen: Iterable[int]) -> bytes:
    wanted = frozenset(seen)
    for alphabet in _ALPHABETS:
        if wanted <= frozenset(alphabet):
            return alphabet
    if len(wanted) == 1 and chr(min(wanted)) in string.punctuation:
        return bytes(wanted)  # probably a separator between the parts of a key
    return _EVERY_BYTE


def _number(key: bytes, alphabets: Sequence[bytes]) -> int:
    number = 0
    for position, alphabet in enumerate(alphabets):
        digit = bisect_left(alphabet, key[position]) if position < len(key) else 0
        number = number * len(alphabet) + min(digit, len(alphabet) - 1)
    return number


def _key(number: int, alphabets: Sequence[bytes]) -> bytes | None:
    digits = bytearray()
    for alphabet in reversed(alphabets):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return bytes(reversed(digits)) if number == 0 else None
