"""Import of an existing HBase table as a Spark job: one task for each region; large regions are divided.

print(pyomid.spark.adopt(spark, url, "events", ["f"]))

After a crash, run the job again: it only reads cells that already have shadow cells. The table becomes transactional
by its catalog entry, which the driver writes after all tasks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyomid.client.admin.import_table import add_refusals, import_refusals, import_timestamp, refuse, register_imported
from pyomid.client.admin.table_admin import new_level
from pyomid.client.upkeep.partitions import Partition
from pyomid.client.upkeep.table_text import table_text
from pyomid.client.validation import check_families
from pyomid.crashpoints import crash_point
from pyomid.errors import Misuse
from pyomid.protocol.import_table import RangeImported, import_range_steps
from pyomid.spark.databases import connection
from pyomid.spark.jobs.partitions import run_partitions
from pyomid.spark.registration import opened
from pyomid.spark.sessions import parallelism
from pyomid.spark.source.read_task import divided
from pyomid.types import KeyRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Adoption:
    """Result of an import. `records`: versions of rows that were read; `adopted`: those that had no shadow cell."""

    table: str
    partitions: int
    rows: int
    records: int
    adopted: int
    seconds: float

    def __str__(self) -> str:
        if not self.partitions:
            return f"{self.table} is already transactional: nothing to do"
        headings = ("table", "partitions", "rows", "records", "of them adopted", "seconds")
        row = (self.table, self.partitions, self.rows, self.records, self.adopted, round(self.seconds, 1))
        return table_text(headings, [row])


def adopt(
    spark: SparkSession, url: str, table: str, families: Sequence[str], *, conflict_level: str | None = None
) -> Adoption:
    """Make an existing HBase table, whose writers have stopped, transactional. Idempotent.

    `families`: those that transactions will use; all must keep every version. A first job only reads. Before anything
    is changed it raises `Misuse` with everything that must be fixed: a family that keeps too few versions, a cell newer
    than the TSO's timestamps, transactions that pyomid does not know, an empty value (to a transaction, a deletion).
    """
    conn = opened(spark, url)
    began = time.monotonic()
    level = new_level(conn.deployment, table, conflict_level)
    newest_ts, found = import_timestamp(conn.deployment, table, check_families(families))
    if not newest_ts:
        return Adoption(table, 0, 0, 0, 0, time.monotonic() - began)
    ranges = divided(conn.deployment.store, table, KeyRange(), parallelism(spark))
    partitions = [Partition(table, 0, each) for each in ranges]
    for refused in run_partitions(spark, "check", url, partitions, table, partial(_check_partition, newest_ts)):
        add_refusals(found, refused)
    refuse(table, found)
    done = run_partitions(spark, "adopt", url, partitions, table, partial(_adopt_partition, newest_ts))
    crash_point("spark.adopt.before_register")
    register_imported(conn.deployment, table, families, level)
    seen, records, adopted = (sum(getattr(each, name) for each in done) for name in ("rows", "records", "imported"))
    return Adoption(table, len(partitions), seen, records, adopted, time.monotonic() - began)


def _check_partition(newest_ts: int, url: str, partition: Partition) -> dict[str, Misuse]:
    conn = connection(url)
    return import_refusals(conn.deployment, conn.driver, partition.table, partition.key_range, newest_ts)


def _adopt_partition(newest_ts: int, url: str, partition: Partition) -> RangeImported:
    done = connection(url).driver.run(import_range_steps(partition.table, partition.key_range, newest_ts))
    crash_point("spark.adopt.piece_done")
    return done
