"""A reader that takes snapshots and checks in each that the totals agree with the flights."""

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
"""Time between two snapshots: the pipelines need the cores too."""

_READ = ["year", "month", "day", "origin", "dest", "dep_time", "dep_delay", "distance"]


class SnapshotReader(threading.Thread):
    """Checks snapshots until it is stopped; `torn` counts those that disagreed and must be 0."""

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
            with pyomid.spark.connect(self._spark, url()).begin() as tx:
                rows, differences = differences_at(tx)
        except (pyomid.Unavailable, pyomid.ConflictError) as error:
            note(LANE, "interrupted", error=type(error).__name__)
            return
        self.checked += 1
        self.torn += differences > 0
        note(LANE, "torn" if differences else "agreed", rows=rows, start_ts=tx.start_ts)


def differences_at(tx: pyomid.spark.SparkTransaction) -> tuple[int, int]:
    """Return the number of flights in the snapshot, and the number of totals that disagree with them."""
    flights = tx.read(FLIGHTS, columns=_READ).cache()
    try:
        rows = flights.count()
        daily = different(months.daily_totals(flights), tx.read(DAILY), DAILY_KEY)
        routes = different(months.route_totals(flights), tx.read(ROUTES), ROUTES_KEY)
        return rows, daily + routes
    finally:
        flights.unpersist()


def different(left: DataFrame, right: DataFrame, key: tuple[str, ...]) -> int:
    """Return the number of keys whose sums differ between the frames, or that one frame lacks."""
    sums = [name for name in left.columns if name not in key]
    renamed = right.select(*key, *[f.col(name).alias(f"other_{name}") for name in sums])
    joined = left.join(renamed, list(key), "full_outer")
    same = f.lit(True)
    for name in sums:
        same = same & f.col(name).eqNullSafe(f.col(f"other_{name}"))
    return joined.where(~same).count()
