"""How the jobs divide a database: parts of tables, one for each task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyomid.client.validation import find_table
from pyomid.spark.databases import Connection
from pyomid.spark.errors import coded_errors, original_errors
from pyomid.spark.options import names_of
from pyomid.spark.read_task import divided
from pyomid.spark.registration import register
from pyomid.types import KeyRange, TableInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Partition:
    """A range of one generation of a table."""

    table: str
    generation: int
    key_range: KeyRange


PartitionTask = Callable[[str, Partition], dict[str, Any]]
"""A task: (url, partition) → one row of the job's result schema."""


def chosen_tables(conn: Connection, tables: str | Sequence[str] | None) -> list[TableInfo]:
    """These tables, or the one of that name, or all of the catalog. `UnknownTable` names one that does not exist."""
    if tables is None:
        return conn.deployment.catalog.tables()
    return [find_table(conn.deployment.catalog, name) for name in names_of(tables)]


def partitions_of(conn: Connection, info: TableInfo, parallelism: int) -> list[Partition]:
    """The store's regions. A single region is divided as its last compaction divided it, so that its records are
    replaced and do not pile up; the first time it is divided by size."""
    ranges = conn.deployment.store.regions(info.name)
    if len(ranges) == 1:
        ranges = _recorded_tiling(conn, info) or divided(conn.deployment.store, info.name, KeyRange(), parallelism)
    return [Partition(info.name, info.generation, each) for each in ranges]


def run_partitions(
    spark: SparkSession, url: str, partitions: Sequence[Partition], task: PartitionTask, ddl: str, schema: pa.Schema
) -> list[dict[str, Any]]:
    """Runs one Spark task for each part. Returns the rows of all tasks, in no order."""
    register(spark)
    if not partitions:
        return []
    rows = [
        (each.table, each.generation, bytearray(each.key_range.start), _optional(each.key_range.stop))
        for each in partitions
    ]
    numbered = spark.sparkContext.parallelize(rows, len(rows))
    frame = spark.createDataFrame(numbered, "table string, generation long, start binary, stop binary")
    with original_errors():
        collected = frame.mapInArrow(partial(_run_task, url, task, schema), ddl).collect()
    return [row.asDict() for row in collected]


def _run_task(
    url: str, task: PartitionTask, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with coded_errors():
        for batch in batches:
            for row in batch.to_pylist():
                partition = Partition(row["table"], row["generation"], KeyRange(row["start"], row["stop"]))
                yield pa.RecordBatch.from_pylist([task(url, partition)], schema=schema)


def _recorded_tiling(conn: Connection, info: TableInfo) -> list[KeyRange]:
    """The ranges of the table's records if they cover all keys without overlap; otherwise none."""
    records = [r for r in conn.deployment.catalog.region_watermarks(info.name) if r.generation == info.generation]
    ranges = sorted({record.key_range for record in records}, key=lambda each: each.start)
    if not ranges or ranges[0].start != b"" or ranges[-1].stop is not None:
        return []
    return ranges if all(one.stop == other.start for one, other in pairwise(ranges)) else []


def _optional(stop: bytes | None) -> bytearray | None:
    return None if stop is None else bytearray(stop)
