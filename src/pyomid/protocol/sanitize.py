"""Collect the garbage of the commit table (*sanitize*): decide how far H may rise and what holds it back, and raise it.

    read W → list the marks → list the tables → list the marks again (K6: in this order) → W_min over every key of every
    table → H := W_min durable → delete entries and invalidation markers below H (law 7)

Every commit to an unregistered table with a start at or below W left its mark before W was read. A mark is ignored if
the list of tables, read *after* it, has the table; then the records of its regions count. So a registration need not
remove the mark, and a late mark delays nobody. In the other order, if a registration removes the mark (earlier versions
do so), a table that is registered between the two lists is in neither:

    Z lists the tables: no t | t is registered, its mark is removed | Z lists the marks: none | H passes t's commits

A client that removes a table from the catalog and leaves its rows puts a mark first. So such a table, if it is missing
in the list of tables, is in the second list of marks. Without the second list:

    Z lists the marks: none | t is marked, its entry goes | Z lists the tables: no t | H passes t's commits

A key's watermark is the greatest of the records that cover it. A record counts if it is of the table's present
generation, and so old that no retry of a commit of its time can still arrive. A key that no record covers has watermark
0 (K5).

If regions were compacted more often than a retry lasts, and only the newest record were kept, no record would ever
become old enough. So each range keeps several records, each at least twice as old as the one before. All of them stay
true, because a range that is clean up to W stays clean up to W.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

from pyomid.errors import Misuse
from pyomid.protocol.effects import (
    AdvanceHorizon,
    DropRegionWatermarks,
    ReadRegionWatermarks,
    ReadTables,
    ReadUnknownTables,
    ReadWatermarks,
)
from pyomid.protocol.hashing import table_id
from pyomid.types import TABLES_UNCONFIRMED, KeyRange, RegionWatermark, TableInfo

RETRY_S_MAX: Final = 3600.0
"""Records of this age count for every sanitizer, because no client retries a commit for longer."""


class Cleaned(NamedTuple):
    """One record of a range: the wall-clock time when it was recorded, and its W."""

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
    """Return the `records` of a range together with `record`, newest first, without those that no sanitizer needs."""
    if records and records[0].generation > record.generation:
        return list(records)  # `record` is of a compactor that began before the table was created again
    same = [each for each in records if each.generation == record.generation]
    left = kept([Cleaned(each.recorded_at_s, each.watermark) for each in [*same, record]])
    return [replace(record, watermark=each.watermark, recorded_at_s=each.at_s) for each in left]


def covered_watermark(records: Sequence[RegionWatermark]) -> int:
    """Return the minimum, over all keys, of the greatest watermark recorded for the key; 0 if some key has none."""
    return min((watermark for _, watermark in _by_key(records)), default=0)


def superseded(records: Sequence[RegionWatermark], generation: int, now_s: float) -> list[KeyRange]:
    """Return the ranges whose records no sanitizer needs: ranges of another generation, and former regions. A former
    region is covered by records with a greater watermark that count for every sanitizer."""
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
    """Return (first key, greatest watermark) for each interval of keys up to the next first key. Computed in one sweep
    over all keys."""
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
    """Finds the least number of any slice in constant time, by a sparse table over powers of two."""

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


@dataclass(slots=True)
class Sanitized:
    """The result of a run. `held_back_by` maps each table that kept H below W to its watermark, lowest first."""

    watermark: int
    horizon_before: int
    horizon: int
    entries_deleted: int = 0
    held_back_by: dict[str, int] = field(default_factory=dict)
    too_young: dict[str, int] = field(default_factory=dict)
    """Table → its watermark if all its records counted. Some do not count yet, because the retry of an earlier commit
    may still arrive."""
    counts_in_s: dict[str, float] = field(default_factory=dict)
    """Table → the seconds until those records count."""


async def forget_superseded(table: TableInfo, records: Sequence[RegionWatermark], *, now_s: float) -> None:
    """Remove records of former regions that other records cover. Otherwise the number of records grows with each
    split."""
    ranges = superseded(records, table.generation, now_s)
    if ranges:
        seen = {record.key_range: record for record in reversed(records)}
        await DropRegionWatermarks(tuple(seen[each] for each in ranges))


async def sanitize_entries(*, now_s: float, retry_bound_s: float) -> Sanitized:
    """Raise H as far as compaction allows, delete the entries below it, and return the result.

    `now_s` is the wall clock in seconds. `retry_bound_s` is the longest time for which any client retries a commit (10
    minutes if there are Java clients). Raises `Misuse` while an unregistered table has a mark.
    """
    watermark, horizon = await ReadWatermarks()
    marks, tables = await _marks_and_tables()
    unknown = sorted(set(marks) - {table_id(table.name.encode()) for table in tables})
    _demand_confirmed(unknown)
    _demand_registered(unknown)
    result = Sanitized(watermark, horizon, horizon)
    lowest = watermark
    for table in tables:
        records: list[RegionWatermark] = await ReadRegionWatermarks(table.name)
        counted = [r for r in records if _counts(r, table, now_s - retry_bound_s)]
        covered = covered_watermark(counted)
        if covered < watermark:
            result.held_back_by[table.name] = covered
            present = [r for r in records if r.generation == table.generation]
            cleaned = covered_watermark(present)
            if cleaned > covered:
                result.too_young[table.name] = cleaned
                newest_s = max(r.recorded_at_s for r in present if r.watermark > covered)
                result.counts_in_s[table.name] = max(0.0, newest_s + retry_bound_s - now_s)
        lowest = min(lowest, covered)
        await forget_superseded(table, records, now_s=now_s)
    result.held_back_by = dict(sorted(result.held_back_by.items(), key=lambda item: item[1]))
    if _has_work_at(lowest, horizon):
        result.entries_deleted = await AdvanceHorizon(lowest)
        result.horizon = lowest
    return result


async def _marks_and_tables() -> tuple[dict[int, bytes], list[TableInfo]]:
    """K6: list marks, tables, and marks again. In any other order a table that is registered or unregistered between
    two lists may be in neither."""
    marks: dict[int, bytes] = await ReadUnknownTables()
    tables: list[TableInfo] = await ReadTables()
    later: dict[int, bytes] = await ReadUnknownTables()
    return marks | later, tables


def _demand_confirmed(unknown: Sequence[int]) -> None:
    if TABLES_UNCONFIRMED in unknown:
        raise Misuse(
            "the commit table is not sanitized, because a Java TSO led this store and since then no operator has "
            "confirmed that all tables are registered: `pyomid tables URL discover` lists unregistered tables, and "
            "`pyomid tables URL confirm` records the confirmation"
        )


def _demand_registered(unknown: Sequence[int]) -> None:
    if unknown:
        raise Misuse(
            "the commit table is not sanitized, because transactions committed to tables with ids "
            f"{', '.join(map(str, unknown))}, which the catalog does not know; `pyomid tables URL discover` finds the "
            "tables' names and prints the commands that register them",
            table_ids=unknown,
        )


def _has_work_at(lowest: int, horizon: int) -> bool:
    """Return whether to advance H. Returns True even if H is there already: the TSO that made H durable may have died
    before it deleted the entries."""
    return lowest > 0 and lowest >= horizon


def _counts(record: RegionWatermark, table: TableInfo, recorded_before_s: float) -> bool:
    return record.generation == table.generation and record.recorded_at_s <= recorded_before_s
