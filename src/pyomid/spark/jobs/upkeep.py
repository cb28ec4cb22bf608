"""Compaction, sanitizing and verification as Spark jobs. Each returns a report that prints as a table.

print(pyomid.spark.compact(spark, url))      # write shadow cells, drop orphans and old versions, record watermarks
print(pyomid.spark.sanitize(spark, url))     # then delete commit-table entries below the lowest watermark
print(pyomid.spark.verify(spark, url))       # count what is stored, and what breaks an invariant
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pyomid.protocol.compaction import compact_region_steps
from pyomid.protocol.sanitize import forget_superseded_steps, sanitize_steps
from pyomid.spark.databases import connection
from pyomid.spark.jobs.partitions import Partition, chosen_tables, partitions_of, run_partitions
from pyomid.spark.jobs.report import table_text
from pyomid.spark.jobs.verification import Verification, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Compaction", "Sanitising", "TableCleaned", "Verification", "compact", "sanitize", "verify"]


@dataclass(frozen=True, slots=True)
class TableCleaned:
    """What compaction did to one table. Counts are cells; `watermark` is the lowest that it recorded."""

    table: str
    partitions: int
    rows: int
    cells: int
    cells_healed: int
    cells_dropped: int
    orphans_dropped: int
    watermark: int

    @property
    def pieces(self) -> int:
        """Former name of `partitions`, for one release."""
        return self.partitions


@dataclass(frozen=True, slots=True)
class Compaction:
    tables: tuple[TableCleaned, ...]
    seconds: float

    @property
    def cells(self) -> int:
        return sum(table.cells for table in self.tables)

    @property
    def cells_healed(self) -> int:
        return sum(table.cells_healed for table in self.tables)

    @property
    def cells_dropped(self) -> int:
        """Orphans included."""
        return sum(table.cells_dropped for table in self.tables)

    @property
    def orphans_dropped(self) -> int:
        return sum(table.orphans_dropped for table in self.tables)

    def __str__(self) -> str:
        headings = ("table", "regions", "rows", "cells", "healed", "dropped", "of them orphans", "watermark")
        rows = [
            (t.table, t.partitions, t.rows, t.cells, t.cells_healed, t.cells_dropped, t.orphans_dropped, t.watermark)
            for t in self.tables
        ]
        return f"{table_text(headings, rows)}\n{self.cells} cells in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Sanitising:
    """What sanitizing did. `held_back_by`: table → the watermark that kept the horizon from moving further.
    `too_young`: table → how far it was compacted less than `commitRetrySeconds` ago, if that is further."""

    watermark: int
    horizon_before: int
    horizon: int
    entries_deleted: int
    entries_left: int
    held_back_by: dict[str, int]
    seconds: float
    too_young: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        headings = ("watermark", "horizon before", "horizon", "entries deleted", "entries left", "seconds")
        row = (
            self.watermark,
            self.horizon_before,
            self.horizon,
            self.entries_deleted,
            self.entries_left,
            self.seconds,
        )
        held = "".join(
            f"\nheld back by {table}: cleaned to {mark}{self._younger(table)}"
            for table, mark in self.held_back_by.items()
        )
        stays = "" if self.horizon > self.horizon_before else "\nthe horizon did not move"
        return table_text(headings, [row]) + stays + held

    def _younger(self, table: str) -> str:
        """What was compacted just now does not count yet: a client may still repeat an earlier commit."""
        if table not in self.too_young:
            return ""
        return f", and to {self.too_young[table]} less than commitRetrySeconds ago: sanitize again after these"


def compact(
    spark: SparkSession, url: str, tables: str | Sequence[str] | None = None, *, grace_seconds: float = 0.0
) -> Compaction:
    """Cleans every region up to the published low watermark and records that: one task for each region.

    It writes missing shadow cells, and drops cells that can never commit and versions that no snapshot needs. It may
    run beside readers and writers; a second run changes nothing more.

    `grace_seconds`: for stores that Java clients share, which never look at the watermark. The watermark is read first;
    then the job waits for so long, the length of Java's longest transaction, and cleans by no newer one.
    """
    conn = connection(url)
    began = time.monotonic()
    watermark = None
    if grace_seconds > 0:
        watermark, _ = conn.deployment.leader_state.read_watermarks()
        time.sleep(grace_seconds)
    parallelism = spark.sparkContext.defaultParallelism
    partitions = [
        partition for info in chosen_tables(conn, tables) for partition in partitions_of(conn, info, parallelism)
    ]
    rows = run_partitions(spark, url, partitions, partial(_compact_partition, watermark), _CLEANED_DDL, _CLEANED)
    by_table: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_table.setdefault(row["table"], []).append(row)
    cleaned = tuple(_summed(table, by_table[table]) for table in sorted(by_table))
    for info in chosen_tables(conn, tables):
        records = conn.deployment.catalog.region_watermarks(info.name)
        conn.driver.run(forget_superseded_steps(info, records, now_s=time.time()))
    return Compaction(cleaned, time.monotonic() - began)


def sanitize(spark: SparkSession, url: str) -> Sanitising:
    """Deletes commit-table entries that are not needed any more, as far as every table was compacted.

    The driver does it alone: it reads the catalog, and the TSO deletes. `spark` is an argument so that the three jobs
    are called alike. Only watermarks older than `commitRetrySeconds` count.
    """
    conn = connection(url)
    began = time.monotonic()
    bound_s = conn.deployment.settings.commit_retry_seconds
    done = conn.driver.run(sanitize_steps(now_s=time.time(), retry_bound_s=bound_s))
    left = conn.deployment.commit_table.count()
    return Sanitising(
        done.watermark,
        done.horizon_before,
        done.horizon,
        done.entries_deleted,
        left,
        done.held_back_by,
        time.monotonic() - began,
        done.too_young,
    )


_CLEANED: Final = pa.schema(
    [
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("cells", pa.int64()),
        ("cells_healed", pa.int64()),
        ("cells_dropped", pa.int64()),
        ("orphans_dropped", pa.int64()),
        ("watermark", pa.int64()),
    ]
)
_CLEANED_DDL: Final = (
    "table string, rows long, cells long, cells_healed long, cells_dropped long, orphans_dropped long, watermark long"
)


def _compact_partition(watermark: int | None, url: str, partition: Partition) -> dict[str, Any]:
    conn = connection(url)
    steps = compact_region_steps(
        partition.table, partition.generation, partition.key_range, conn.cache, now_s=time.time(), watermark=watermark
    )
    cleaned = conn.driver.run(steps)
    return {name: getattr(cleaned, name) for name in _CLEANED.names}


def _summed(table: str, rows: list[dict[str, Any]]) -> TableCleaned:
    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    return TableCleaned(
        table,
        len(rows),
        total("rows"),
        total("cells"),
        total("cells_healed"),
        total("cells_dropped"),
        total("orphans_dropped"),
        min(row["watermark"] for row in rows),
    )
