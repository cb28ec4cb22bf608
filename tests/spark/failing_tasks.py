"""Functions that run in Spark's workers, for sources that fail or differ from attempt to attempt."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


def random_rows(folder: str, rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Other values at every attempt; the first attempt of partition 0 fails behind its rows."""
    for batch in batches:
        (partition,) = batch.column(0).to_pylist()
        attempt = random.Random(os.urandom(8)).randrange(1 << 40)
        yield rows_of(partition, attempt, rows)
        if partition == 0 and first_time(Path(folder) / "failed"):
            raise RuntimeError("this attempt fails behind its rows")


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
