"""Upkeep (`client/upkeep/jobs.py`) as Spark jobs: one task for each part of a table.

print(pyomid.spark.compact(spark, url))      # write shadow cells, drop orphans and old versions, record watermarks
print(pyomid.spark.sanitize(spark, url))     # then delete commit-table entries below the lowest watermark
print(pyomid.spark.verify(spark, url))       # count what is stored, and what breaks an invariant
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyomid.client.upkeep import jobs as upkeep
from pyomid.client.upkeep.jobs import Compaction, Sanitising, TableCleaned, Verification
from pyomid.client.upkeep.partitions import Partition, chosen_tables
from pyomid.client.upkeep.verification import Seen, look, verified
from pyomid.protocol.compaction import RegionCleaned
from pyomid.spark.databases import connection
from pyomid.spark.jobs.partitions import partitions_for, run_partitions
from pyomid.spark.registration import opened
from pyomid.spark.sessions import parallelism
from pyomid.types import TableInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Compaction", "Sanitising", "TableCleaned", "Verification", "compact", "sanitize", "verify"]


def compact(
    spark: SparkSession, url: str, tables: str | Sequence[str] | None = None, *, grace_seconds: float = 0.0
) -> Compaction:
    """Compact tables as `Database.compact`, with one task for each region."""
    conn = opened(spark, url, create=False)

    def clean(infos: Sequence[TableInfo], watermark: int | None) -> Iterator[RegionCleaned]:
        partitions = partitions_for(conn, infos, tables, parallelism(spark))
        task = partial(_compact_partition, watermark)
        yield from run_partitions(spark, "compact", url, partitions, tables, task)

    return upkeep.compacted(
        conn.deployment, conn.driver.run, tables, clean, grace_seconds=grace_seconds, sleep=time.sleep
    )


def sanitize(spark: SparkSession, url: str) -> Sanitising:
    """Sanitize as `Database.sanitize`, in the driver alone; `spark` is a parameter so that all three jobs take it."""
    conn = opened(spark, url, create=False)
    return upkeep.sanitize(conn.deployment, conn.driver.run)


def verify(spark: SparkSession, url: str, tables: str | Sequence[str] | None = None) -> Verification:
    """Verify tables as `Database.verify`, with one task for each region."""
    conn = opened(spark, url, create=False)
    infos = chosen_tables(conn.deployment.catalog, tables)
    partitions = partitions_for(conn, infos, tables, parallelism(spark))
    return verified(
        conn.deployment,
        infos,
        lambda: run_partitions(spark, "verify", url, partitions, tables, _look),
    )


def _compact_partition(watermark: int | None, url: str, partition: Partition) -> RegionCleaned:
    conn = connection(url)
    return upkeep.compact_partition(conn.driver.run, conn.cache, partition, watermark)


def _look(url: str, partition: Partition) -> Seen:
    return look(connection(url).deployment, partition)
