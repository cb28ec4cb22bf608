"""The two kinds of sessions: classic, with Spark in this process, and Spark Connect, with Spark in another process.

Over Connect there is no SparkContext: jobs keep Spark's own names, and properties for their tasks are sent as tags.
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
"""Local property in which Spark keeps a job's tags; tags set over Connect have a prefix there."""

_DESCRIPTION: Final = "spark.job.description"
_PARALLELISM: Final = "_pyomid_parallelism"


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def any_case(spark: SparkSession) -> bool:
    """Whether the session ignores case in column names."""
    return spark.conf.get("spark.sql.caseSensitive", "false") != "true"


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks the session runs at a time, as far as Spark knows."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    found: int | None = getattr(spark, _PARALLELISM, None)
    if found is None:  # Connect does not report it; a range has this many partitions by default
        from pyspark.sql import functions as f

        parts = spark.range(1 << 16).select(f.spark_partition_id().alias("part"))
        (row,) = parts.agg(f.max("part")).collect()
        found = int(row[0]) + 1
        setattr(spark, _PARALLELISM, found)
    return found


def check_same_machine(spark: SparkSession, url: str) -> None:
    """`Misuse` if `url` is a folder and the session's Spark is known to run on another machine."""
    if not is_connect(spark) or not isinstance(parse_url(url)[0], EmbeddedAddress):
        return
    host = spark.client.host
    if not _is_here(host):
        raise Misuse(
            f"{url} is a folder of this machine, but this session's Spark runs on {host!r} and cannot read it: run the "
            "program there, or keep the database in a cluster (omid+hbase://…)",
            host=host,
        )


def _is_here(host: str) -> bool:
    """Whether one of the host's addresses is this machine's; True if that is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return True
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


# Properties of jobs


@contextmanager
def local_property(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a local property for the jobs, of any session, that this thread runs inside the block, and restore the
    caller's value after it. Tasks can read it. Over Connect it is a tag `name=value` of this session's jobs."""
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
        with suppress(Exception):  # the context may be stopped; the block's own exception is the error
            context.setLocalProperty(name, before)


@contextmanager
def job_named(spark: SparkSession, *words: str) -> Iterator[None]:
    """Set the name that Spark's UI and progress bar show for jobs inside the block, such as "omid write flights".
    Over Connect jobs keep Spark's own names."""
    if is_connect(spark):
        yield
        return
    with local_property(spark, _DESCRIPTION, " ".join(("omid", *words))):
        yield


# One task per item


def numbered(spark: SparkSession, items: pa.RecordBatch) -> DataFrame:
    """Return a frame with one task for each row of `items`; the task runs `of_items(items, …)`."""
    return spark.range(0, items.num_rows, 1, max(1, items.num_rows))


def of_items(
    items: pa.RecordBatch, work: Callable[[Iterator[pa.RecordBatch]], T], batches: Iterator[pa.RecordBatch]
) -> T:
    """In a task over `numbered(items)`, apply `work` to this task's rows of `items`."""
    return work(items.take(batch.column(0)) for batch in batches)
