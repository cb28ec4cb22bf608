"""Region watermarks: up to which W compactors cleaned every key, and which records are still needed.

A record counts once it is older than the longest retry of a commit (`protocol.sanitize`). So a newer record must not
replace the last one that counts: if regions are compacted more often than that, no record would ever count. Therefore
each range keeps several records, each at least twice as old as the one before. All of them stay true: a range that is
clean up to W stays clean up to it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from pyomid.types import KeyRange, RegionWatermark

RETRY_S_MAX: Final = 3600.0
"""Records as old as this count for every sanitizer: no client retries a commit for longer."""


class Cleaned(NamedTuple):
    """One record of a range: its wall-clock time, and its W."""

    at_s: float
    watermark: int


def kept(records: Iterable[Cleaned]) -> list[Cleaned]:
    """Return the records of one range and generation that a sanitizer may still need, newest first."""
    best: list[Cleaned] = []
    for record in sorted(records, key=lambda each: (each.at_s, -each.watermark)):
        if not best or record.watermark > best[-1].watermark:
            best.append(record)
    best.reverse()
    if not best:
        return []
    now_s = best[0].at_s
    thinned = best[:1]
    for record, older in pairwise(best[1:]):
        newer_age_s = now_s - thinned[-1].at_s
        if newer_age_s >= RETRY_S_MAX:
            return thinned
        if now_s - older.at_s > 2 * newer_age_s:
            thinned.append(record)
    if len(best) > 1 and now_s - thinned[-1].at_s < RETRY_S_MAX:
        thinned.append(best[-1])
    return thinned


def with_record(records: Sequence[RegionWatermark], record: RegionWatermark) -> list[RegionWatermark]:
    """Return the `records` of a range with `record` added, without those that no sanitizer needs, newest first."""
    if records and records[0].generation > record.generation:
        return list(records)  # of a compactor that began before the table was created again
    same = [each for each in records if each.generation == record.generation]
    left = kept([Cleaned(each.recorded_at_s, each.watermark) for each in [*same, record]])
    return [replace(record, watermark=each.watermark, recorded_at_s=each.at_s) for each in left]


def covered_watermark(records: Sequence[RegionWatermark]) -> int:
    """Return the minimum, over all keys, of the greatest watermark recorded for the key; 0 if a key has none."""
    return min((watermark for _, watermark in _by_key(records)), default=0)


def superseded(records: Sequence[RegionWatermark], generation: int, now_s: float) -> list[KeyRange]:
    """Return the ranges whose records no sanitizer needs: ranges of another generation, and former regions that are
    covered by records with a greater watermark that count for every sanitizer."""
    needed = [record for record in records if record.generation == generation]
    newest = {record.key_range: record.watermark for record in sorted(needed, key=lambda each: each.watermark)}
    counting = _by_key([record for record in needed if record.recorded_at_s <= now_s - RETRY_S_MAX])
    lowest = _Lowest([watermark for _, watermark in counting])
    starts = [start for start, _ in counting]
    gone = {record.key_range for record in records} - newest.keys()
    for key_range, watermark in newest.items():
        first = bisect_right(starts, key_range.start) - 1
        last = bisect_left(starts, key_range.stop) if key_range.stop else len(starts)
        if lowest.of(first, last) > watermark:
            gone.add(key_range)
    return sorted(gone, key=lambda each: (each.start, each.stop or b""))


def _by_key(records: Sequence[RegionWatermark]) -> list[tuple[bytes, int]]:
    """Return (first key, greatest watermark recorded for the keys up to the next first key), over all keys, in one
    sweep."""
    borders = {b""} | {record.key_range.start for record in records}
    borders |= {record.key_range.stop for record in records if record.key_range.stop}
    begins = sorted(records, key=lambda record: record.key_range.start)
    reached: list[tuple[int, bool, bytes]] = []
    """(−watermark, has a stop, stop) of the open ranges; the greatest watermark first."""
    found: list[tuple[bytes, int]] = []
    at = 0
    for border in sorted(borders):
        while at < len(begins) and begins[at].key_range.start <= border:
            record = begins[at]
            heapq.heappush(reached, (-record.watermark, bool(record.key_range.stop), record.key_range.stop or b""))
            at += 1
        while reached and reached[0][1] and reached[0][2] <= border:
            heapq.heappop(reached)
        found.append((border, -reached[0][0] if reached else 0))
    return found


class _Lowest:
    """The least number of any slice, in constant time: a sparse table over powers of two."""

    def __init__(self, numbers: list[int]) -> None:
        self._levels = [numbers]
        while len(self._levels[-1]) > 1 << (len(self._levels) - 1):
            before, half = self._levels[-1], 1 << (len(self._levels) - 1)
            self._levels.append([min(pair) for pair in zip(before, before[half:], strict=False)])

    def of(self, first: int, last: int) -> int:
        """Return the least of `numbers[first:last]`, which must not be empty."""
        level = (last - first).bit_length() - 1
        numbers = self._levels[level]
        return min(numbers[first], numbers[last - (1 << level)])
