"""Garbage collection of the commit table (*sanitize*): how far the horizon may move, and what holds it back.

    read W → list the marks → list the tables → list the marks again (K6: in this order) → W_min over every key of every
    table → H := W_min durable → delete entries and invalidation markers below H (law 7)

Every commit to an unregistered table with a start at or below W left its mark before W was read. The mark of a table
that is listed *after* the marks has no meaning: the records of its regions count. So a registration need not remove the
mark, and a late mark delays nobody. In the other order, if registrations remove marks (as those of earlier versions
do), a table that is registered between the two lists is in neither:

    Z lists the tables: no t | t is registered, its mark is removed | Z lists the marks: none | H passes t's commits

A client that removes a table from the catalog and leaves its rows puts a mark first. So a table that is missing in the
list of tables is in the second list of marks. Without that list:

    Z lists the marks: none | t is marked, its entry goes | Z lists the tables: no t | H passes t's commits

A key has the greatest watermark of the records that cover it: records of its table's present generation, old enough
that no retry of a commit of their time can still arrive. A key that no record covers has watermark 0 (K5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyomid.errors import Misuse
from pyomid.protocol.effects import (
    AdvanceHorizon,
    DropRegionWatermarks,
    ReadRegionWatermarks,
    ReadTables,
    ReadUnknownTables,
    ReadWatermarks,
    Steps,
)
from pyomid.protocol.hashing import table_id
from pyomid.protocol.region_watermarks import covered_watermark, superseded
from pyomid.types import TABLES_UNCONFIRMED, RegionWatermark, TableInfo


@dataclass(slots=True)
class Sanitized:
    """The result of a run. `held_back_by`: table → the watermark that kept H below W, lowest first."""

    watermark: int
    horizon_before: int
    horizon: int
    entries_deleted: int = 0
    held_back_by: dict[str, int] = field(default_factory=dict)
    too_young: dict[str, int] = field(default_factory=dict)
    """Table → its watermark by records that do not count yet, because an earlier commit's retry may still arrive."""
    counts_in_s: dict[str, float] = field(default_factory=dict)
    """Table → the seconds until these records count."""


def forget_superseded_steps(table: TableInfo, records: Sequence[RegionWatermark], *, now_s: float) -> Steps[None]:
    """Remove records of former regions that other records cover. Otherwise their number grows with each split."""
    ranges = superseded(records, table.generation, now_s)
    if ranges:
        seen = {record.key_range: record for record in reversed(records)}
        yield DropRegionWatermarks(tuple(seen[each] for each in ranges))


def sanitize_steps(*, now_s: float, retry_bound_s: float) -> Steps[Sanitized]:
    """Raise H as far as compaction allows, and delete the entries below it.

    `now_s`: the wall clock, in seconds. `retry_bound_s`: the longest time for which any client retries a commit (10
    minutes if there are Java clients). `Misuse` while an unregistered table has a mark.
    """
    watermark, horizon = yield ReadWatermarks()
    marks, tables = yield from _marks_and_tables_steps()
    unknown = sorted(set(marks) - {table_id(table.name.encode()) for table in tables})
    _demand_confirmed(unknown)
    _demand_registered(unknown)
    result = Sanitized(watermark, horizon, horizon)
    lowest = watermark
    for table in tables:
        records: list[RegionWatermark] = yield ReadRegionWatermarks(table.name)
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
        yield from forget_superseded_steps(table, records, now_s=now_s)
    result.held_back_by = dict(sorted(result.held_back_by.items(), key=lambda item: item[1]))
    if _has_work_at(lowest, horizon):
        result.entries_deleted = yield AdvanceHorizon(lowest)
        result.horizon = lowest
    return result


def _marks_and_tables_steps() -> Steps[tuple[dict[int, bytes], list[TableInfo]]]:
    """K6: list in this order; otherwise a table that is registered or unregistered between two lists is in neither."""
    marks: dict[int, bytes] = yield ReadUnknownTables()
    tables: list[TableInfo] = yield ReadTables()
    later: dict[int, bytes] = yield ReadUnknownTables()
    return marks | later, tables


def _demand_confirmed(unknown: Sequence[int]) -> None:
    if TABLES_UNCONFIRMED in unknown:
        raise Misuse(
            "the commit table is not sanitized: a Java TSO led this store, and since then nobody confirmed that every "
            "table it served is registered; `pyomid tables URL discover` lists tables that are not registered, "
            "`pyomid tables URL confirm` confirms"
        )


def _demand_registered(unknown: Sequence[int]) -> None:
    if unknown:
        raise Misuse(
            f"the commit table is not sanitized: transactions committed to tables that are missing from the catalog, "
            f"with ids {', '.join(map(str, unknown))}; `pyomid tables URL discover` finds their names, and prints the "
            "commands that register them",
            table_ids=unknown,
        )


def _has_work_at(lowest: int, horizon: int) -> bool:
    """Whether to advance H. Also if H is there already: the TSO that made it durable may have died before it deleted
    the entries."""
    return lowest > 0 and lowest >= horizon


def _counts(record: RegionWatermark, table: TableInfo, recorded_before_s: float) -> bool:
    return record.generation == table.generation and record.recorded_at_s <= recorded_before_s
