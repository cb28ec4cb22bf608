"""Row keys between row keys: how a range is cut where nobody counted its rows."""

from __future__ import annotations

from collections.abc import Sequence


def keys_between(first: bytes, last: bytes, known: Sequence[bytes], pieces: int) -> list[bytes]:
    """Up to `pieces` - 1 keys, ascending and strictly between. `known` keys lie at about equal distances in rows."""
    anchors = [first, *sorted(set(known)), last]
    gaps = len(anchors) - 1
    cuts: list[bytes] = []
    for piece in range(1, pieces):
        gap, share = divmod(piece * gaps, pieces)
        key = anchors[gap] if share == 0 else _interpolate(anchors[gap], anchors[gap + 1], share, pieces)
        if first < key < last and (not cuts or key > cuts[-1]):
            cuts.append(key)
    return cuts


def _interpolate(low: bytes, high: bytes, share: int, whole: int) -> bytes:
    """The key `share`/`whole` of the way: keys are fractions of base 256, a few bytes beyond their common part."""
    common = 0
    while common < min(len(low), len(high)) and low[common] == high[common]:
        common += 1
    size = 6
    begin = int.from_bytes(low[common : common + size].ljust(size, b"\0"), "big")
    end = int.from_bytes(high[common : common + size].ljust(size, b"\0"), "big")
    middle = begin + (end - begin) * share // whole
    return low[:common] + middle.to_bytes(size, "big").rstrip(b"\0")
