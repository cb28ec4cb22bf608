"""A driver with speculation on a standalone cluster: writes a table whose slow task runs twice.

python speculating_driver.py MASTER URL FOLDER
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from spark_sessions import local_session

import pyomid.spark


def slow_first_attempt(folder: str, rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of partition 0 writes its rows and then hangs, so that Spark starts a second one."""
    for batch in batches:
        (partition,) = batch.column(0).to_pylist()
        attempt = time.time_ns()
        (Path(folder) / f"attempt-{partition}-{attempt}").touch()
        keys = pa.array(range(partition * rows, (partition + 1) * rows), pa.int64())
        yield pa.RecordBatch.from_pydict({"id": keys, "attempt": pa.array([attempt] * rows, pa.int64())})
        if partition == 0 and first_time(Path(folder) / "slow"):
            time.sleep(60)


def first_time(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main(master: str, url: str, folder: str) -> None:
    spark = local_session(
        master,
        **{
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
        },
    )
    numbers = spark.range(0, 3, numPartitions=3)
    task = functools.partial(slow_first_attempt, folder, 500)
    frame = numbers.mapInArrow(task, "id long, attempt long")
    with pyomid.spark.connect(spark, url).begin() as tx:
        print(tx.write(frame, "speculated", row_key=["id"]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
