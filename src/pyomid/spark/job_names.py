"""What Spark's UI and its progress bar call a job of ours: "omid write flights"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION: Final = "spark.job.description"


@contextmanager
def job_named(spark: SparkSession, *words: str) -> Iterator[None]:
    """Names the jobs that this thread runs inside; what the caller named them is back behind it. Without effect where
    the session has no context (Spark Connect)."""
    try:
        context: Any = spark.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
    except Exception:
        yield
        return
    context.setLocalProperty(_DESCRIPTION, " ".join(("omid", *words)))
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)
