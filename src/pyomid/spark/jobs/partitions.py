"""Upkeep as Spark jobs: one task for each part of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from pyomid.client.upkeep.partitions import Partition, partitions_of, unless_dropped
from pyomid.spark.databases import Connection, connection
from pyomid.spark.errors import original_errors
from pyomid.spark.registration import register
from pyomid.spark.sessions import job_named, numbered, of_items
from pyomid.spark.source.read_task import divided
from pyomid.spark.task_results import task_results
from pyomid.types import KeyRange, TableInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_PARTITION: Final = pa.schema(
    [
        ("table", pa.string()),
        ("generation", pa.int64()),
        ("start", pa.binary()),
        ("stop", pa.binary()),
        ("expires", pa.bool_()),
    ]
)


def partitions_for(
    conn: Connection, infos: Sequence[TableInfo], tables: str | Sequence[str] | None, parallelism: int
) -> list[Partition]:
    """Return the partitions of `chosen_tables(…, tables)`, one per task; a table of one region that was never compacted
    is divided by size."""
    store, found = conn.deployment.store, list[Partition]()
    for info in infos:
        with unless_dropped(conn.deployment.catalog, info.name, info.generation, tables):
            found += partitions_of(conn.deployment, info, lambda table: divided(store, table, KeyRange(), parallelism))
    return found


def run_partitions(
    spark: SparkSession,
    job: str,
    url: str,
    partitions: Sequence[Partition],
    tables: str | Sequence[str] | None,
    task: Callable[[str, Partition], T],
) -> list[T]:
    """Run a Spark task, `task(url, partition)`, for each partition of `chosen_tables(…, tables)`, under this job name.
    Return their results, in no order."""
    register(spark)
    if not partitions:
        return []
    rows = [(each.table, each.generation, *each.key_range, each.expires) for each in partitions]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), _PARTITION.types, strict=True)]
    items = pa.RecordBatch.from_arrays(columns, schema=_PARTITION)
    names = dict.fromkeys(each.table for each in partitions)
    task_url = connection(url).task_url
    work = partial(of_items, items, partial(_run_task, task_url, tables, task))
    with job_named(spark, job, *names), original_errors():
        return task_results(numbered(spark, items), work)


def _run_task(
    url: str, tables: str | Sequence[str] | None, task: Callable[[str, Partition], T], batches: Iterator[pa.RecordBatch]
) -> Iterator[T]:
    for batch in batches:
        for row in batch.to_pylist():
            partition = Partition(row["table"], row["generation"], KeyRange(row["start"], row["stop"]), row["expires"])
            with unless_dropped(connection(url).deployment.catalog, partition.table, partition.generation, tables):
                yield task(url, partition)
