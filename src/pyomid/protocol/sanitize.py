"""Sanitising the commit table: how far the horizon may go, and why not further.

    W read → marks listed → tables listed (K6: in this order) → W_min over every key of every table
    → H := W_min durable → entries and seals below H deleted (law 7)

Every commit to an unregistered table with a start at or below W left its mark before W was read. A mark whose table
is listed *afterwards* says nothing more: the records of its regions do. So a registration need not take the mark
away, and a mark that comes late holds up nobody. The other way round, and where registrations take marks away (as
those of earlier versions do), a table that is registered between the two looks is in neither list:

    Z lists the tables: t is none | t is registered, its mark goes | Z lists the marks: none | H passes t's commits

A key counts with the greatest watermark of the records that cover it: of its table's present generation, and old
enough that no commit retry of that time can still arrive. A key that no record covers counts 0 (K5).
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
class Sanitised:
    """What was possible. `held_back_by`: table → the watermark that kept H from W, lowest first."""

    watermark: int
    horizon_before: int
    horizon: int
    entries_deleted: int = 0
    held_back_by: dict[str, int] = field(default_factory=dict)
    too_young: dict[str, int] = field(default_factory=dict)
    """Table → how far it was compacted by records that do not count yet: a commit retry of before may still come."""


def forget_superseded_steps(table: TableInfo, records: Sequence[RegionWatermark], *, now_s: float) -> Steps[None]:
    """Records of former regions go, once others say more. Else their number grows with each split for ever."""
    ranges = superseded(records, table.generation, now_s)
    if ranges:
        seen = {record.key_range: record for record in reversed(records)}
        yield DropRegionWatermarks(tuple(seen[each] for each in ranges))


def sanitise_steps(*, now_s: float, retry_bound_s: float) -> Steps[Sanitised]:
    """Moves H as far as compaction allows and deletes the entries below it.

    `now_s`: wall clock, seconds; `retry_bound_s`: the longest time after which any client still sends a commit
    again (10 minutes where Java clients exist). Misuse while a commit stands that named an unregistered table.
    """
    watermark, horizon = yield ReadWatermarks()
    marks, tables = yield from _marks_and_tables_steps()
    unknown = sorted(set(marks) - {table_id(table.name.encode()) for table in tables})
    _demand_confirmed(unknown)
    _demand_registered(unknown)
    result = Sanitised(watermark, horizon, horizon)
    lowest = watermark
    for table in tables:
        records: list[RegionWatermark] = yield ReadRegionWatermarks(table.name)
        counted = [r for r in records if _counts(r, table, now_s - retry_bound_s)]
        covered = covered_watermark(counted)
        if covered < watermark:
            result.held_back_by[table.name] = covered
            cleaned = covered_watermark([r for r in records if r.generation == table.generation])
            if cleaned > covered:
                result.too_young[table.name] = cleaned
        lowest = min(lowest, covered)
        yield from forget_superseded_steps(table, records, now_s=now_s)
    result.held_back_by = dict(sorted(result.held_back_by.items(), key=lambda item: item[1]))
    if _has_work_at(lowest, horizon):
        result.entries_deleted = yield AdvanceHorizon(lowest)
        result.horizon = lowest
    return result


def _marks_and_tables_steps() -> Steps[tuple[dict[int, bytes], list[TableInfo]]]:
    """K6: in this order, or a table that is registered between the two looks is in neither."""
    marks: dict[int, bytes] = yield ReadUnknownTables()
    tables: list[TableInfo] = yield ReadTables()
    return marks, tables


def _demand_confirmed(unknown: Sequence[int]) -> None:
    if TABLES_UNCONFIRMED in unknown:
        raise Misuse(
            "the commit table is not sanitised: a Java TSO led this store, and nobody has said since that every table "
            "it served is registered; `pyomid tables URL discover` lists those that are not, then say so with "
            "`pyomid tables URL confirm`"
        )


def _demand_registered(unknown: Sequence[int]) -> None:
    if unknown:
        raise Misuse(
            f"the commit table is not sanitised: transactions were committed to tables with ids "
            f"{', '.join(map(str, unknown))} that the catalog does not know; `pyomid tables URL discover` finds "
            "their names, register each with `pyomid tables URL register NAME FAMILY`",
            table_ids=unknown,
        )


def _has_work_at(lowest: int, horizon: int) -> bool:
    """Also where H stands there already: the TSO that made it durable may have ended before it deleted."""
    return lowest > 0 and lowest >= horizon


def _counts(record: RegionWatermark, table: TableInfo, recorded_before_s: float) -> bool:
    return record.generation == table.generation and record.recorded_at_s <= recorded_before_s
