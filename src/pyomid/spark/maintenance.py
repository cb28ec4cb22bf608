"""Maintenance as Spark jobs, with one task for each part of a table: upkeep (`database/upkeep/jobs.py`) and import.

print(db.compact())                   # write shadow cells, drop orphans and old versions, record watermarks
print(db.sanitize())                  # then delete commit-table entries below the lowest watermark
print(db.verify())                    # count stored records and violated invariants
print(db.adopt("events", ["f"]))      # make an existing HBase table transactional
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyomid.crashpoints import crash_point
from pyomid.database.foreign_tables import import_refusals, imported
from pyomid.database.upkeep import jobs as upkeep
from pyomid.database.upkeep.jobs import (
    Compaction,
    Partition,
    Sanitising,
    TableCleaned,
    chosen_tables,
    partitions_of,
    table_text,
    unless_dropped,
)
from pyomid.database.upkeep.verification import Seen, Verification, look, verified
from pyomid.errors import Misuse
from pyomid.protocol.compaction import RegionCleaned
from pyomid.protocol.import_table import RangeImported, import_range
from pyomid.spark.connections import Connection, connection
from pyomid.spark.sessions import item_results, job_named, parallelism
from pyomid.spark.source.read_task import divided
from pyomid.types import KeyRange, TableInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyomid.spark.database import SparkDatabase

__all__ = [
    "Adoption",
    "Compaction",
    "Sanitising",
    "TableCleaned",
    "Verification",
    "adopt",
    "compact",
    "sanitize",
    "verify",
]

T = TypeVar("T")
Tables = str | Sequence[str] | None
"""The tables that a caller chose: one name, several, or None for all."""


def compact(db: SparkDatabase, tables: Tables = None, *, grace_seconds: float = 0.0) -> Compaction:
    """Compact tables as `Database.compact` does, with one Spark task for each region, and return the counts. The call
    does not run `Database.expire`."""
    conn = db.opened(create=False)

    def clean(infos: Sequence[TableInfo], watermark: int | None) -> list[RegionCleaned]:
        partitions = partitions_for(conn, infos, tables, parallelism(db.spark))
        return _results(db.spark, "compact", conn, partitions, tables, partial(_compact_partition, watermark))

    return upkeep.compacted(
        conn.deployment, conn.driver.run, tables, clean, grace_seconds=grace_seconds, sleep=time.sleep
    )


def sanitize(db: SparkDatabase) -> Sanitising:
    """Sanitize the database as `Database.sanitize` does, without Spark tasks, and return the counts."""
    conn = db.opened(create=False)
    return upkeep.sanitize(conn.deployment, conn.driver.run)


def verify(db: SparkDatabase, tables: Tables = None) -> Verification:
    """Verify tables as `Database.verify` does, with one Spark task for each region, and return the findings."""
    conn = db.opened(create=False)
    infos = chosen_tables(conn.deployment.catalog, tables)
    partitions = partitions_for(conn, infos, tables, parallelism(db.spark))
    return verified(conn.deployment, infos, lambda: _results(db.spark, "verify", conn, partitions, tables, _look))


def partitions_for(conn: Connection, infos: Sequence[TableInfo], tables: Tables, parallelism: int) -> list[Partition]:
    """Return the partitions of `chosen_tables(…, tables)`, one per task. A table with one region that was never
    compacted is divided by size."""
    store, found = conn.deployment.store, list[Partition]()
    for info in infos:
        with unless_dropped(conn.deployment.catalog, info.name, info.generation, tables):
            found += partitions_of(conn.deployment, info, lambda table: divided(store, table, KeyRange(), parallelism))
    return found


def _compact_partition(watermark: int | None, conn: Connection, partition: Partition) -> RegionCleaned:
    return upkeep.compact_partition(conn.driver.run, conn.cache, partition, watermark)


def _look(conn: Connection, partition: Partition) -> Seen:
    return look(conn.deployment, partition)


# Import


@dataclass(frozen=True, slots=True)
class Adoption:
    """Result of an import. `records`: row versions that were read; `adopted`: row versions that had no shadow cell."""

    table: str
    partitions: int
    rows: int
    records: int
    adopted: int
    seconds: float

    def __str__(self) -> str:
        if not self.partitions:
            return f"{self.table} is already transactional; nothing was changed"
        headings = ("table", "partitions", "rows", "records", "of them adopted", "seconds")
        row = (self.table, self.partitions, self.rows, self.records, self.adopted, round(self.seconds, 1))
        return table_text(headings, [row])


def adopt(db: SparkDatabase, table: str, families: Sequence[str], *, conflict_level: str | None = None) -> Adoption:
    """Make an existing HBase table transactional, with one Spark task for each region or part of a large region. Stop
    all writers of the table first. The call is idempotent; rerun it after a crash.

    `families` names the column families that transactions will use; each of these families must keep every version. A
    first Spark job only reads the table. If anything must be fixed, `adopt` changes nothing and raises `Misuse`, which
    lists all problems. A problem is a family that keeps too few versions, a cell newer than the TSO's timestamps, a
    cell that a transaction wrote, or an empty value, which a transaction would read as a deletion. The table becomes
    transactional when the driver writes the table's catalog entry, after all tasks have finished.
    """
    conn = db.opened()
    began = time.monotonic()
    partitions: list[Partition] = []

    def check(newest_ts: int) -> list[dict[str, Misuse]]:
        ranges = divided(conn.deployment.store, table, KeyRange(), parallelism(db.spark))
        partitions.extend(Partition(table, 0, each) for each in ranges)
        return _results(db.spark, "check", conn, partitions, table, partial(_check_partition, newest_ts))

    def load(newest_ts: int) -> list[RangeImported]:
        parts = _results(db.spark, "adopt", conn, partitions, table, partial(_adopt_partition, newest_ts))
        crash_point("spark.adopt.before_register")
        return parts

    done = imported(conn.deployment, table, families, conflict_level, check, load) or RangeImported()
    return Adoption(table, len(partitions), done.rows, done.records, done.imported, time.monotonic() - began)


def _check_partition(newest_ts: int, conn: Connection, partition: Partition) -> dict[str, Misuse]:
    return import_refusals(conn.deployment, conn.driver, partition.table, partition.key_range, newest_ts)


def _adopt_partition(newest_ts: int, conn: Connection, partition: Partition) -> RangeImported:
    done = conn.driver.run(import_range(partition.table, partition.key_range, newest_ts))
    crash_point("spark.adopt.piece_done")
    return done


# One task for each partition


def _results(
    spark: SparkSession,
    job: str,
    conn: Connection,
    partitions: Sequence[Partition],
    tables: Tables,
    work: Callable[[Connection, Partition], T],
) -> list[T]:
    """Run `work(connection, partition)` in one task for each partition of `chosen_tables(…, tables)`. Return the
    results, in no particular order."""
    names = dict.fromkeys(each.table for each in partitions)
    with job_named(spark, job, *names):
        return item_results(spark, partitions, partial(_result, conn.task_url, tables, work))


def _result(url: str, tables: Tables, work: Callable[[Connection, Partition], T], partition: Partition) -> T | None:
    """Return the result of one partition; None if its table was dropped."""
    conn = connection(url)
    with unless_dropped(conn.deployment.catalog, partition.table, partition.generation, tables):
        return work(conn, partition)
    return None
