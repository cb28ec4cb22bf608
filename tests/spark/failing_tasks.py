"""A source that runs in Spark's workers: one of its tasks is slow, so that it runs twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


def slow_first_attempt(folder: str, rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of partition 0 writes its rows and then hangs, so that Spark starts a second one."""
    for batch in batches:
        (partition,) = batch.column(0).to_pylist()
        attempt = time.time_ns()
        (Path(folder) / f"attempt-{partition}-{attempt}").touch()
        yield rows_of(partition, attempt, rows)
        if partition == 0 and first_time(Path(folder) / "slow"):
            time.sleep(60)


def rows_of(partition: int, attempt: int, rows: int) -> pa.RecordBatch:
    keys = [partition * rows + row for row in range(rows)]
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(keys, pa.int64()), "attempt": pa.array([attempt] * rows, pa.int64())}
    )


def first_time(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
