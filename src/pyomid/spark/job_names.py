"""Local properties: what this thread says of the jobs that it starts, of whichever session they are. Their tasks see
them. What Spark's UI and its progress bar call a job of ours, "omid write flights", is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION: Final = "spark.job.description"


@contextmanager
def local_property(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Of the jobs that this thread runs inside; what the caller set is back behind it. Without effect where the
    session has no context (Spark Connect)."""
    try:
        context: Any = spark.sparkContext
        before = context.getLocalProperty(name)
    except Exception:
        yield
        return
    context.setLocalProperty(name, value)
    try:
        yield
    finally:
        with suppress(Exception):  # of a context that was stopped: what the block raised is the error
            context.setLocalProperty(name, before)


@contextmanager
def job_named(spark: SparkSession, *words: str) -> Iterator[None]:
    """Names the jobs that this thread runs inside."""
    with local_property(spark, _DESCRIPTION, " ".join(("omid", *words))):
        yield
