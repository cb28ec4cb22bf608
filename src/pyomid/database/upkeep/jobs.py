"""Upkeep jobs of a database (compact and sanitize), and code that all jobs share: parts of tables, and reports as text
tables. `Database` handles one part after the other; Spark's jobs run a task for each part. A job for all tables skips
tables that are dropped meanwhile. Each job returns a report that prints as a table. The report says what holds the job
back, and when another run can do more.

    db.compact()      writes missing shadow cells, drops orphans and old versions, records watermarks
    db.sanitize()     then deletes commit-table entries below the lowest watermark
    db.verify()       counts stored cells, and reports violated invariants (`verification`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Final

from pyomid.config import Settings
from pyomid.database.driver import Run
from pyomid.database.upkeep.unfinished import finish_changes, unfinished_changes
from pyomid.database.validation import find_table
from pyomid.errors import MisuseType, UnknownTable
from pyomid.ports import Catalog, Deployment, Sleep
from pyomid.protocol.compaction import BATCH_ROWS_MAX, RegionCleaned, compact_region
from pyomid.protocol.expiry import droppable_to
from pyomid.protocol.reading import CommitCache
from pyomid.protocol.sanitize import Sanitized, forget_superseded, sanitize_entries
from pyomid.protocol.timestamps import dated, iso
from pyomid.types import KeyRange, Progress, Status, TableInfo, TableState


@dataclass(frozen=True, slots=True)
class TableCleaned:
    """The result of a table's compaction. Counts are numbers of cells; `watermark` is the lowest watermark that was
    recorded. `cells_above` are the cells above W, which a later run may drop."""

    table: str
    partitions: int
    rows: int
    cells: int
    cells_healed: int
    cells_dropped: int
    orphans_dropped: int
    watermark: int
    cells_above: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """The report of a compaction, returned by `Database.compact`."""

    tables: tuple[TableCleaned, ...]
    seconds: float
    held_back: tuple[str, ...] = ()
    """Sentences that say what holds W back, and for how long; empty if no cell lies above W."""
    unfinished: tuple[str, ...] = ()
    """Sentences about tables and indexes that are being created, or whose creating client died."""

    @property
    def cells(self) -> int:
        return sum(table.cells for table in self.tables)

    @property
    def cells_healed(self) -> int:
        return sum(table.cells_healed for table in self.tables)

    @property
    def cells_dropped(self) -> int:
        """The number of dropped cells, orphans included."""
        return sum(table.cells_dropped for table in self.tables)

    @property
    def orphans_dropped(self) -> int:
        return sum(table.orphans_dropped for table in self.tables)

    @property
    def cells_above(self) -> int:
        return sum(table.cells_above for table in self.tables)

    def __str__(self) -> str:
        headings = ("table", "regions", "rows", "cells", "healed", "dropped", "of them orphans", "above W", "watermark")
        rows = [
            (
                t.table,
                t.partitions,
                t.rows,
                t.cells,
                t.cells_healed,
                t.cells_dropped,
                t.orphans_dropped,
                t.cells_above,
                moment_text(t.watermark),
            )
            for t in self.tables
        ]
        whole = f"{count_text(self.cells, 'cell')} in {number_text(self.seconds)} s"
        return "\n".join([table_text(headings, rows), whole, *self.held_back, *self.unfinished])


@dataclass(slots=True, kw_only=True)
class Sanitising(Sanitized):
    """The report of sanitizing. `held_back` says what holds W back; `unfinished` is as in `Compaction`."""

    entries_left: int
    seconds: float
    held_back: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    def __str__(self) -> str:
        headings = ("watermark", "horizon before", "horizon", "entries deleted", "entries left", "seconds")
        moments = map(moment_text, (self.watermark, self.horizon_before, self.horizon))
        row = (*moments, self.entries_deleted, self.entries_left, self.seconds)
        stays = [] if self.horizon > self.horizon_before else ["the horizon did not move"]
        held = [
            f"held back by {table}: compacted to {dated(watermark)}, W is {dated(self.watermark)}{self._younger(table)}"
            for table, watermark in self.held_back_by.items()
        ]
        return "\n".join([table_text(headings, [row]), *stays, *held, *self.held_back, *self.unfinished])

    def _younger(self, table: str) -> str:
        """Return the remedy for a table that holds sanitizing back, as text. A recent compaction does not count yet,
        because a client may still retry an earlier commit."""
        if table not in self.too_young:
            return "; compact it"
        wait_s = self.counts_in_s.get(table, 0.0)
        return (
            f"; its compaction to {self.too_young[table]} counts only after commitRetrySeconds, so sanitize again in "
            f"{wait_s:.0f} seconds"
        )


def compact(
    deployment: Deployment,
    run: Run,
    cache: CommitCache,
    tables: str | Sequence[str] | None = None,
    *,
    grace_seconds: float = 0.0,
    progress: Progress | None = None,
) -> Compaction:
    """Compact all regions up to the published low watermark W, one after the other, and record W for each region.

    The call writes missing shadow cells, and drops cells that can never commit and versions that no snapshot needs.
    Readers, writers and other compactions may run at the same time. The call is idempotent.

    `grace_seconds` is for stores with Java clients, which do not check W. The call reads W, waits this long (the
    duration of the longest Java transaction), and then cleans up to that W.
    """

    def clean(infos: Sequence[TableInfo], watermark: int | None) -> Iterable[RegionCleaned]:
        for info in infos:
            seen = counting(progress, info.name)
            with unless_dropped(deployment.catalog, info.name, info.generation, tables):
                for partition in partitions_of(deployment, info):
                    yield compact_partition(run, cache, partition, watermark, seen=seen)

    return compacted(deployment, run, tables, clean, grace_seconds=grace_seconds)


def compacted(
    deployment: Deployment,
    run: Run,
    tables: str | Sequence[str] | None,
    clean: Callable[[Sequence[TableInfo], int | None], Iterable[RegionCleaned]],
    *,
    grace_seconds: float,
    sleep: Sleep = time.sleep,
) -> Compaction:
    """`compact` with a callback: `clean` runs `compact_partition` on every part of the tables, with the given
    watermark."""
    began = time.monotonic()
    if tables is None:
        finish_changes(deployment)
    deployment.tso.raise_watermark()
    watermark = None
    if grace_seconds > 0:
        watermark, _ = deployment.leader_state.read_watermarks()
        sleep(grace_seconds)
    by_table: dict[str, list[RegionCleaned]] = {}
    infos = chosen_tables(deployment.catalog, tables)
    for region in clean(infos, watermark):
        by_table.setdefault(region.table, []).append(region)
    cleaned = tuple(_summed(table, by_table[table]) for table in sorted(by_table))
    names = {info.name for info in infos}
    for info in deployment.catalog.tables():  # read the entries again: a table may have been dropped, or created again
        if info.name in names:
            records = deployment.catalog.region_watermarks(info.name)
            run(forget_superseded(info, records, now_s=time.time()))
    held = _holders(deployment) if any(table.cells_above for table in cleaned) else ()
    return Compaction(cleaned, time.monotonic() - began, held, unfinished_changes(deployment))


def compact_partition(
    run: Run,
    cache: CommitCache,
    partition: Partition,
    watermark: int | None = None,
    *,
    rows_max: int = BATCH_ROWS_MAX,
    seen: Callable[[int], object] | None = None,
) -> RegionCleaned:
    steps = compact_region(
        partition.table,
        partition.generation,
        partition.key_range,
        cache,
        now_s=time.time(),
        rows_max=rows_max,
        watermark=watermark,
        expired_to=partition.expired_to,
        seen=seen,
    )
    return run(steps)


def counting(progress: Progress | None, what: str, total: int | None = None) -> Callable[[int], None]:
    """Return a function that takes the amount done since its last call, and calls `progress` with the sum so far."""
    done = 0

    def add(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(what, done, total)

    return add


def sanitize(deployment: Deployment, run: Run) -> Sanitising:
    """Delete commit-table entries that are no longer needed, up to the watermark to which every table was compacted.

    The client reads the catalog, and the TSO deletes the entries. Only compaction records older than
    `commitRetrySeconds` count: this client's setting, or the longest setting that any client announced to the TSO.
    """
    began = time.monotonic()
    finish_changes(deployment)
    bound_s = deployment.settings.commit_retry_seconds
    if deployment.tso.extended:
        bound_s = max(bound_s, deployment.tso.status().longest_retry_s)
    done = run(sanitize_entries(now_s=time.time(), retry_bound_s=bound_s))
    left = deployment.commit_table.count()
    return Sanitising(
        **asdict(done),
        entries_left=left,
        seconds=time.monotonic() - began,
        held_back=_holders(deployment) if left else (),
        unfinished=unfinished_changes(deployment),
    )


def _holders(deployment: Deployment) -> tuple[str, ...]:
    if not deployment.tso.extended:
        return ("W does not move, because Apache Omid's TSO leads and does not publish W",)
    return held_back(deployment.tso.status(), deployment.settings)


def held_back(status: Status, settings: Settings) -> tuple[str, ...]:
    """Return sentences that say what holds W back from the newest start, and until when. `settings` are this client's,
    which may differ from the TSO's."""
    age_s = f"maxTransactionAgeSeconds ({settings.max_transaction_age_seconds:g} s)"
    until = {
        _LARGE_COMMIT: "run again when the TSO has finished it",
        _LEASE: f"run again when that lease has ended: when its owner ends, or {settings.lease_seconds:g} s after its "
        "owner died",
        _RETENTION: "run again later, because W rises as these commits grow older",
        _OPEN: f"run again when they have ended, at the latest {age_s} after they began",
    }
    watermark = dated(status.watermark)
    held = tuple(f"W {watermark} stays below {what} {whose}; {until[what]}" for what, whose in holders(status))
    return held or (
        f"W {watermark} follows the oldest transaction that may be live, and the newest timestamp is "
        f"{dated(status.last_ts)}; run again after at most {age_s}",
    )


def holders(status: Status) -> tuple[tuple[str, str], ...]:
    """Return what holds W back: pairs of its kind and its start or owner. Empty if W follows the newest start."""
    of_starts = tuple(
        (what, f"{dated(min(starts))}{_others(starts)}")
        for what, starts in ((_LARGE_COMMIT, status.pending), (_LEASE, status.leases))
        if starts and min(starts) <= status.low_watermark + 1
    )
    if of_starts:
        return of_starts
    if status.retention_s:
        return ((_RETENTION, f"{duration_text(status.retention_s)} (the retention)"),)
    return ((_OPEN, status.held_back_by),) if status.held_back_by else ()


_LARGE_COMMIT: Final = "the large commit of start timestamp"
_LEASE: Final = "the lease on start timestamp"
_RETENTION: Final = "the commits of the last"
_OPEN: Final = "the transactions open at"


def _others(starts: Sequence[int]) -> str:
    return f" (and {len(starts) - 1} others)" if len(starts) > 1 else ""


def _summed(table: str, regions: Sequence[RegionCleaned]) -> TableCleaned:
    return TableCleaned(
        table,
        len(regions),
        sum(region.rows for region in regions),
        sum(region.cells for region in regions),
        sum(region.cells_healed for region in regions),
        sum(region.cells_dropped for region in regions),
        sum(region.orphans_dropped for region in regions),
        min(region.watermark for region in regions),
        sum(region.cells_above for region in regions),
    )


# Parts


@dataclass(frozen=True, slots=True)
class Partition:
    """A range of one generation of a table."""

    table: str
    generation: int
    key_range: KeyRange
    expired_to: int = field(default=0, compare=False)
    """Values committed up to this timestamp have expired for every snapshot above W (`expiry.droppable_to`)."""


Divide = Callable[[str], Sequence[KeyRange]]
"""A function that divides a table of one region into parts, for concurrent tasks."""


def chosen_tables(catalog: Catalog, tables: str | Sequence[str] | None) -> list[TableInfo]:
    """Return the entries of the named tables (None: of all tables). If a table is missing, `UnknownTable` names it."""
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
    """A context for work on one of `chosen_tables(catalog, tables)`. If the table was dropped meanwhile, the work is
    skipped if all tables were chosen; if the table was chosen by name, `UnknownTable` is raised."""
    try:
        yield
    except UnknownTable:
        found = catalog.entry(table) if tables is None else None
        is_there = found is not None and found.state is TableState.PRESENT and found.info.generation == generation
        if tables is not None or is_there:
            raise


def partitions_of(deployment: Deployment, info: TableInfo, divide: Divide | None = None) -> list[Partition]:
    """Return the parts of a table, which are the store's regions. A single region is divided as in its last compaction,
    so that its records are replaced and do not accumulate. The first time, `divide` divides it."""
    ranges: Sequence[KeyRange] = deployment.store.regions(info.name)
    if len(ranges) == 1:
        ranges = _recorded_tiling(deployment.catalog, info) or (divide(info.name) if divide is not None else ranges)
    expired_to = _droppable_to(deployment, info)
    return [Partition(info.name, info.generation, each, expired_to) for each in ranges]


def _droppable_to(deployment: Deployment, info: TableInfo) -> int:
    """Return the commit up to which values may be dropped as expired. E2: W is read before the entry; otherwise W might
    pass a change of the time to live that the entry lacks."""
    if info.ttl_seconds is None:
        return 0
    watermark, _ = deployment.leader_state.read_watermarks()
    found = find_table(deployment.catalog, info.name)
    return droppable_to(found, watermark) if found.generation == info.generation else 0


def _recorded_tiling(catalog: Catalog, info: TableInfo) -> list[KeyRange]:
    """Return the ranges of the table's records if they cover all keys without overlap; otherwise none."""
    records = [r for r in catalog.region_watermarks(info.name) if r.generation == info.generation]
    ranges = sorted({record.key_range for record in records}, key=lambda each: each.start)
    if not ranges or ranges[0].start != b"" or ranges[-1].stop is not None:
        return []
    return ranges if all(one.stop == other.start for one, other in pairwise(ranges)) else []


# Reports


def table_text(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as text with aligned columns. Numbers are right-aligned, with thousands separated."""
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
    return number_text(value)


def number_text(number: float, *, decimals: int = 1) -> str:
    """Return a count or a measure as text, in the form that all reports and commands use: thousands are separated, and
    a float has so many `decimals`."""
    return (f"{number:,}" if isinstance(number, int) else f"{number:,.{decimals}f}").replace(",", " ")


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun."""
    return f"{number_text(number)} {noun if number == 1 else plural or noun + 's'}"


def duration_text(seconds: float) -> str:
    """Return a duration as the options of a URL are written: 7d, 12h, 30m, 45s."""
    unit = next((name for name, size in _UNITS_S.items() if seconds and seconds % size == 0), "s")
    return f"{seconds / _UNITS_S[unit]:g}{unit}"


_UNITS_S: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def moment_text(timestamp: int) -> str:
    """Return the text of a timestamp in a report: its time, or the number if it is not a time."""
    return iso(timestamp) or number_text(timestamp)
