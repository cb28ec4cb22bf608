"""A reader that takes snapshot after snapshot and checks that the totals agree with the flights in each."""

from __future__ import annotations

import threading
from typing import Any

from examples.flights import months
from examples.flights.events import note
from examples.flights.settings import DAILY, DAILY_KEY, FLIGHTS, ROUTES, ROUTES_KEY, url
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import pyomid.spark

LANE = "reader"
PAUSE_S = 0.5
"""Between two snapshots: the pipelines need the cores too."""

_READ = ["year", "month", "day", "origin", "dest", "dep_time", "dep_delay", "distance"]


class SnapshotReader(threading.Thread):
    """Checks until it is told to stop; `torn` counts snapshots that disagreed, which must be none."""

    def __init__(self, spark: Any) -> None:
        super().__init__(name="reader", daemon=True)
        self._spark = spark
        self._ended = threading.Event()
        self.checked = 0
        self.torn = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(PAUSE_S):
                self.check_one()
        except BaseException as error:
            self.error = error
            note(LANE, "failed", error=f"{type(error).__name__}: {error}"[:500])

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def check_one(self) -> None:
        try:
            with pyomid.spark.transaction(self._spark, url()) as tx:
                rows, differences = differences_at(tx)
        except (pyomid.Unavailable, pyomid.ConflictError) as error:
            note(LANE, "interrupted", error=type(error).__name__)
            return
        self.checked += 1
        self.torn += differences > 0
        note(LANE, "torn" if differences else "agreed", rows=rows, start_ts=tx.start_ts)


def differences_at(tx: pyomid.spark.SparkTransaction) -> tuple[int, int]:
    """Flights in this snapshot, and how many rows of the totals disagree with them."""
    flights = tx.read(FLIGHTS, columns=_READ).cache()
    try:
        rows = flights.count()
        daily = different(months.daily_totals(flights), tx.read(DAILY), DAILY_KEY)
        routes = different(months.route_totals(flights), tx.read(ROUTES), ROUTES_KEY)
        return rows, daily + routes
    finally:
        flights.unpersist()


def different(left: DataFrame, right: DataFrame, key: tuple[str, ...]) -> int:
    """Rows whose key or sums the other frame does not have."""
    sums = [name for name in left.columns if name not in key]
    renamed = right.select(*key, *[f.col(name).alias(f"other_{name}") for name in sums])
    joined = left.join(renamed, list(key), "full_outer")
    same = f.lit(True)
    for name in sums:
        same = same & f.col(name).eqNullSafe(f.col(f"other_{name}"))
    return joined.where(~same).count()
