"""Sessions of two kinds, told apart in one place: Spark in this process, and Spark Connect, whose Spark is elsewhere.

Over Connect there is no context: what a job is called stays Spark's, what its tasks must know of it goes as a tag.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from pyomid.config import EmbeddedAddress, parse_url
from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

JOB_TAGS: Final = "spark.job.tags"
"""Spark's name for the local property that holds a job's tags, those of Connect with a prefix."""

_DESCRIPTION: Final = "spark.job.description"
_PARALLELISM: Final = "_pyomid_parallelism"


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at a time, as far as Spark knows."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    found: int | None = getattr(spark, _PARALLELISM, None)
    if found is None:  # a range has so many parts, unless it is told
        from pyspark.sql import functions as f

        parts = spark.range(1 << 16).select(f.spark_partition_id().alias("part"))
        (row,) = parts.agg(f.max("part")).collect()
        found = int(row[0]) + 1
        setattr(spark, _PARALLELISM, found)
    return found


def check_same_machine(spark: SparkSession, url: str) -> None:
    """`Misuse` where a folder of this machine is meant, and the session's Spark is seen to be on another one."""
    if not is_connect(spark) or not isinstance(parse_url(url)[0], EmbeddedAddress):
        return
    host = spark.client.host
    if not _is_here(host):
        raise Misuse(
            f"{url} is a folder of this machine, and this session's Spark runs on {host!r}, which does not see it: run "
            "the program there, or keep the database in a cluster (omid+hbase://…)",
            host=host,
        )


def _is_here(host: str) -> bool:
    """Whether one of its addresses is this machine's; True where that cannot be told."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return True
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


# What jobs are told


@contextmanager
def local_property(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Of the jobs that this thread runs inside, of whichever session they are; what the caller set is back behind it.
    Their tasks see it. Over Connect it is a tag `name=value` of this session's jobs."""
    if is_connect(spark):
        tag = f"{name}={value}"
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context: Any = spark.sparkContext
    before = context.getLocalProperty(name)
    context.setLocalProperty(name, value)
    try:
        yield
    finally:
        with suppress(Exception):  # of a context that was stopped: what the block raised is the error
            context.setLocalProperty(name, before)


@contextmanager
def job_named(spark: SparkSession, *words: str) -> Iterator[None]:
    """What Spark's UI and its progress bar call the jobs that this thread runs inside, "omid write flights"; over
    Connect they are Spark's own names."""
    if is_connect(spark):
        yield
        return
    with local_property(spark, _DESCRIPTION, " ".join(("omid", *words))):
        yield


# A task for each


def numbered(spark: SparkSession, items: pa.RecordBatch) -> DataFrame:
    """A frame with a task for each row of `items`, whose work is `of_items(items, …)`."""
    return spark.range(0, items.num_rows, 1, max(1, items.num_rows))


def of_items(
    items: pa.RecordBatch, work: Callable[[Iterator[pa.RecordBatch]], T], batches: Iterator[pa.RecordBatch]
) -> T:
    """In a task over `numbered(items)`: the work, on this task's rows of them."""
    return work(items.take(batch.column(0)) for batch in batches)
