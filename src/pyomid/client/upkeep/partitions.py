"""What the upkeep jobs share: parts of tables, one for each task, and reports as text tables."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from pyomid.client.validation import find_table
from pyomid.errors import MisuseType, UnknownTable
from pyomid.ports import Catalog, Deployment
from pyomid.types import KeyRange, TableInfo, TableState


@dataclass(frozen=True, slots=True)
class Partition:
    """A range of one generation of a table."""

    table: str
    generation: int
    key_range: KeyRange
    expires: bool = False
    """Whether the table has, or had, a time to live."""


Divide = Callable[[str], Sequence[KeyRange]]
"""Divides a table of one region into parts, for concurrent tasks."""


def chosen_tables(catalog: Catalog, tables: str | Sequence[str] | None) -> list[TableInfo]:
    """Return the entries of the named tables (None: of all). `UnknownTable` names a missing one."""
    if tables is None:
        return catalog.tables()
    names = [tables] if isinstance(tables, str) else tables
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise MisuseType(f"tables {tables!r} is neither a table name nor a list of names", value=tables)
    return [find_table(catalog, name) for name in names]


@contextmanager
def unless_dropped(
    catalog: Catalog, table: str, generation: int, tables: str | Sequence[str] | None
) -> Generator[None]:
    """Wrap work on one of `chosen_tables(catalog, tables)`. If all tables were chosen, a table that was dropped
    meanwhile is skipped; a table chosen by name raises `UnknownTable`."""
    try:
        yield
    except UnknownTable:
        found = catalog.entry(table) if tables is None else None
        is_there = found is not None and found.state is TableState.PRESENT and found.info.generation == generation
        if tables is not None or is_there:
            raise


def partitions_of(deployment: Deployment, info: TableInfo, divide: Divide | None = None) -> list[Partition]:
    """Return the parts: the store's regions. A single region is divided as in its last compaction, so that its records
    are replaced and do not accumulate; the first time by `divide`."""
    ranges: Sequence[KeyRange] = deployment.store.regions(info.name)
    if len(ranges) == 1:
        ranges = _recorded_tiling(deployment.catalog, info) or (divide(info.name) if divide is not None else ranges)
    return [Partition(info.name, info.generation, each, info.ttl_seconds is not None) for each in ranges]


def _recorded_tiling(catalog: Catalog, info: TableInfo) -> list[KeyRange]:
    """Return the ranges of the table's records if they cover all keys without overlap; otherwise none."""
    records = [r for r in catalog.region_watermarks(info.name) if r.generation == info.generation]
    ranges = sorted({record.key_range for record in records}, key=lambda each: each.start)
    if not ranges or ranges[0].start != b"" or ranges[-1].stop is not None:
        return []
    return ranges if all(one.stop == other.start for one, other in pairwise(ranges)) else []


# Reports


def table_text(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns; numbers are right-aligned, with thousands separated."""
    shown = [[_shown(value) for value in row] for row in rows]
    widths = [max(len(line[index]) for line in (headings, *shown)) for index in range(len(headings))]
    numeric = [all(isinstance(row[index], int | float) for row in rows) for index in range(len(headings))]
    lines = [_line(headings, widths, numeric), "  ".join("-" * width for width in widths)]
    lines += [_line(line, widths, numeric) for line in shown]
    return "\n".join(lines)


def _line(values: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [
        value.rjust(width) if right else value.ljust(width)
        for value, width, right in zip(values, widths, numeric, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:,.2f}".replace(",", " ")
