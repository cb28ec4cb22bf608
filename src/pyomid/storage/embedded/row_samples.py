"""Samples of rows, to divide a table into regions without reading it: one row in 512, chosen by its hash.

A row is a sample for every writer or for none, so a second write of it changes nothing. Samples of deleted rows stay;
they only make a region look larger than it is. Borders never move and are never removed, because the compactor's
records are kept by region.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

SAMPLE_EVERY: Final = 512
SAMPLE_MASK: Final = SAMPLE_EVERY - 1
_REGIONS_MAX: Final = 256
"""Regions of a table's first split. More of them would only make planning slow."""


def grown_splits(splits: Sequence[bytes], samples: Sequence[bytes], region_rows: int) -> list[bytes]:
    """`splits`, with each region of at least twice `region_rows` divided into equal parts. `samples` ascend."""
    per_region = max(region_rows // SAMPLE_EVERY, len(samples) // _REGIONS_MAX, 1)
    borders = [0, *(bisect_left(samples, split) for split in splits), len(samples)]
    grown = list(splits)
    for first, stop in pairwise(borders):
        parts = (stop - first) // per_region
        grown += [samples[first + (stop - first) * part // parts] for part in range(1, parts)]
    return sorted(set(grown) - {b""})


def cuts(samples: Sequence[bytes], pieces: int) -> list[bytes]:
    """Up to `pieces` − 1 of the ascending samples, evenly spaced."""
    return sorted({samples[len(samples) * piece // pieces] for piece in range(1, pieces)}) if samples else []
