"""A pipeline: a separate driver process that ingests months, each under its idempotency key.

python -m examples.flights.pipeline A 1,3,5
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from examples.flights import data, months
from examples.flights.again import again
from examples.flights.events import note
from examples.flights.sessions import session
from examples.flights.settings import CONFLICT_LEVEL, run_id, url

import pyomid.spark
from pyomid.spark import SparkTransaction


def main(name: str, wanted: list[int]) -> None:
    spark = session(f"pipeline {name}", master="local[1,4]", **worker_environment())
    note(name, "started")
    for month in wanted:
        ingest_month(spark, name, month)
    note(name, "finished")
    spark.stop()


def ingest_month(spark: Any, name: str, month: int) -> None:
    """Ingest the month once: retried on conflict or interruption, skipped if a run under its id has committed."""
    frame = data.flights(spark, month).cache()

    def ingest(tx: SparkTransaction) -> list[int]:
        note(name, "begun", month=month, start_ts=tx.start_ts)
        rows = months.ingest(tx, frame)
        note(name, "written", month=month, start_ts=tx.start_ts, rows=rows, branches=tx.branches)
        return rows

    run = partial(
        pyomid.spark.connect(spark, url()).run_once,
        run_id(month),
        ingest,
        conflict_level=CONFLICT_LEVEL,
        on_conflict=lambda error: note(name, "conflict", month=month, **_timestamps(error)),
    )
    result = again(run, lambda error: note(name, "interrupted", month=month, error=type(error).__name__))
    if isinstance(result, list):
        note(name, "committed", month=month, rows=result)
    else:
        note(name, "already", month=month, start_ts=result.start_ts)
    frame.unpersist()


def worker_environment() -> dict[str, str]:
    """Return Spark settings that set a crash point in the environment of the Python workers only."""
    prefix = "DEMO_WORKER_"
    return {
        f"spark.executorEnv.{name.removeprefix(prefix)}": value
        for name, value in os.environ.items()
        if name.startswith(prefix)
    }


def _timestamps(error: pyomid.ConflictError) -> dict[str, int]:
    return {name: error.values[name] for name in ("start_ts", "commit_ts") if name in error.values}


if __name__ == "__main__":
    main(sys.argv[1], [int(month) for month in sys.argv[2].split(",")])
