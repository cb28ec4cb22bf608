"""What tasks return to the driver: any objects, pickled, one a row. Spark's executors already run the driver's pickled
functions, so neither side trusts the other more by this.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from pyomid.row_codec.arrow_arrays import binary_array_of
from pyomid.spark.errors import coded_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_DDL: Final = "result binary"


def task_results(frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterable[T]]) -> list[T]:
    """Run `work` on each partition of the frame, one task for each. Return the results of all tasks, in no order.
    Errors are coded (`pyomid.spark.errors`)."""
    rows = frame.mapInArrow(partial(_pickled, work), _DDL).collect()
    return [pickle.loads(row[0]) for row in rows]


def _pickled(
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with coded_errors():
        for result in work(batches):
            yield pa.RecordBatch.from_arrays([binary_array_of([pickle.dumps(result)])], names=["result"])
