"""A write of few rows, from Spark's bare job to the whole: the first thing in a session, and when all is warm.

    python -m benchmarks.spark.first_write [rounds=3]

Each step is the first thing in a Spark session of its own, in a process of its own, and then done again; the sessions'
start is no part of it. Steps take turns; figures are medians, in seconds.

    bare        20 rows made and collected: Spark's first job
    worker      the same through an identity by `mapInArrow`: Spark's first Python worker
    libraries   the worker imports what a writing task imports
    folder      before that, a database is made, and a transaction begins and commits: no rows
    write       20 rows are written to a new table by a transaction, then upserted
    arrow       the same rows as Arrow data, which the driver writes itself
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from benchmarks._report import Report
from benchmarks.spark._setting import PARTS

import pyomid.spark
from pyomid.spark.connections import close_connections
from pyomid.spark.sessions import register

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 20
WARM_UP: Final = 5
AGAIN: Final = 20
DDL: Final = "id long, name string, value double"


def bare(rows: DataFrame, _url: str) -> None:
    rows.collect()


def worker(rows: DataFrame, _url: str) -> None:
    rows.mapInArrow(_same, DDL).collect()


def libraries(rows: DataFrame, _url: str) -> None:
    rows.mapInArrow(_same_with_libraries, DDL).collect()


def folder(rows: DataFrame, url: str) -> None:
    with pyomid.spark.connect(rows.sparkSession, url).begin():
        pass
    rows.mapInArrow(_same_with_libraries, DDL).collect()


def write(rows: DataFrame, url: str) -> None:
    with pyomid.spark.connect(rows.sparkSession, url).begin() as tx:
        tx.write(rows, "first", row_key=["id"])


def arrow(rows: DataFrame, url: str) -> None:
    with pyomid.spark.connect(rows.sparkSession, url).begin() as tx:
        tx.write(rows.toArrow(), "first", row_key=["id"])


STEPS: Final[dict[str, Callable[[DataFrame, str], None]]] = {
    each.__name__: each for each in (bare, worker, libraries, folder, write, arrow)
}


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _same_with_libraries(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyomid.spark.source.write_task  # noqa: F401

    return batches


def main() -> int:
    asked = dict(text.split("=", 1) for text in sys.argv[1:])
    if "step" in asked:
        print(json.dumps(taken_s(asked["step"])))
        return 0
    report = Report(f"Spark: a write of {ROWS} rows, local[{PARTS}]")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in STEPS}
    for _ in range(int(asked.get("rounds", "3"))):
        for name, taken in seconds.items():
            command = [sys.executable, "-m", "benchmarks.spark.first_write", f"step={name}"]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            taken.append(json.loads(said.stdout.splitlines()[-1]))
    print(f"| {'step':<10} | first | then |\n| --- | --- | --- |")
    for name, taken in seconds.items():
        first, then = map(statistics.median, zip(*taken, strict=True))
        print(f"| {name:<10} | {first:.2f} | {then:.3f} |")
    return report.finish()


def taken_s(step: str) -> tuple[float, float]:
    """Of one step, in this process's only session: the first time, and the median of later ones."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = _session()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        rows = spark.createDataFrame([(number, f"name {number}", number / 2) for number in range(ROWS)], DDL)
        taken = []
        for _ in range(1 + WARM_UP + AGAIN):
            began = time.perf_counter()
            STEPS[step](rows, f"omid://{name}/db")
            taken.append(time.perf_counter() - began)
        close_connections()
        spark.stop()
    return taken[0], statistics.median(taken[1 + WARM_UP :])


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{PARTS}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    register(spark)
    return spark


if __name__ == "__main__":
    sys.exit(main())
