"""Spark jobs: their names and properties, one task per item, and what tasks return.

Tasks return any objects, pickled, one in a row. Executors already run the driver's pickled functions, so unpickling
their results needs no more trust. Over Spark Connect jobs keep Spark's own names, and properties for tasks are sent as
tags.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from pyomid.row_codec.arrow_arrays import binary_array_of
from pyomid.spark.coded_errors import coded_errors, original_errors
from pyomid.spark.sessions import is_connect
from pyomid.spark.source.read_task import WRITES, write_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
T = TypeVar("T")

_DESCRIPTION: Final = "spark.job.description"
_RESULT: Final = "result"


@contextmanager
def local_property(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a local property for the jobs, of any session, that this thread runs inside the block, and restore the
    caller's value after it. Tasks can read it. Over Connect it is a tag `name=value` of this session's jobs."""
    if is_connect(spark):
        tag = f"{name}={value}"
        if tag in spark.getTags():  # an outer block has set it, and needs it after this block
            yield
            return
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
    """Name the block's jobs in Spark's UI and progress bar, for example "omid write flights", and raise the pyomid
    errors that Spark reports as text."""
    with original_errors():
        if is_connect(spark):
            yield
            return
        with local_property(spark, _DESCRIPTION, " ".join(("omid", *words))):
            yield


@contextmanager
def writes_by(spark: SparkSession, start_ts: int, database_id: bytes, table: str, stale_read: str) -> Iterator[None]:
    """Mark the jobs of this block as writes of the transaction `start_ts` to the table, unless `stale_read` is
    "allow"."""
    if stale_read == "allow":
        yield
        return
    with local_property(spark, WRITES, write_text(start_ts, database_id, table)):
        yield


def task_results(frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterable[T]]) -> list[T]:
    """Run `work` on each partition of the frame, one task for each. Return the results of all tasks, in no order.
    Tasks encode pyomid's errors (`pyomid.spark.coded_errors`)."""
    rows = frame.mapInArrow(partial(_pickled, work), f"{_RESULT} binary").collect()
    return [pickle.loads(row[0]) for row in rows]


def item_results(spark: SparkSession, items: Sequence[Item], work: Callable[[Item], T | None]) -> list[T]:
    """Run `work` on each item, one task for each. Return the results, without None, in no order."""
    return task_results(spark.range(0, len(items), 1, len(items)), partial(_of_items, items, work)) if items else []


def _of_items(
    items: Sequence[Item], work: Callable[[Item], T | None], batches: Iterator[pa.RecordBatch]
) -> Iterator[T]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = work(items[number])
            if result is not None:
                yield result


def _pickled(
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with coded_errors():
        for result in work(batches):
            yield pa.RecordBatch.from_arrays([binary_array_of([pickle.dumps(result)])], names=[_RESULT])
