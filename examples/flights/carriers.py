"""Totals by carrier, maintained by a stream of the changes to flights: each batch is a merge, in one transaction.

    python -m examples.flights.carriers START:WATERMARK

The pipelines and the service do not know of the stream. It starts at a bookmark drawn before their first write. When
the file `ALL_IN` exists, it processes everything committed so far and ends. A changed row arrives with its old and its
new values: the old ones are subtracted from the totals, the new ones added.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from examples.flights.again import again
from examples.flights.events import Event, note
from examples.flights.sessions import session
from examples.flights.settings import (
    ALL_IN,
    CARRIERS,
    CARRIERS_KEY,
    CHECKPOINT,
    CONFLICT_LEVEL,
    FLIGHTS,
    LEASE_SECONDS,
    url,
)
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import pyomid
import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from pyomid.spark import MergeResult, SparkTransaction

LANE = "carriers"

LOOK_S = 0.5
"""Time between checks for the file `ALL_IN`."""


def carrier_totals(flights: DataFrame) -> DataFrame:
    """Return, by carrier: flights, cancelled ones, minutes of departure delay."""
    return _totals(flights, f.lit(1))


def change_totals(changes: DataFrame) -> DataFrame:
    """Return what the changes add to the totals of their carriers."""
    return _totals(changes, f.when(f.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1))


def _totals(rows: DataFrame, sign: Column) -> DataFrame:
    cancelled = f.when(f.col("dep_time").isNull(), sign).otherwise(0)
    return rows.groupBy("carrier").agg(
        f.sum(sign).cast("long").alias("flights"),
        f.sum(cancelled).cast("long").alias("cancelled"),
        f.coalesce(f.sum(sign * f.col("dep_delay")), f.lit(0)).cast("long").alias("dep_delay"),
    )


def add(tx: SparkTransaction, changes: DataFrame) -> MergeResult:
    sums = {name: f"target.{name} + source.{name}" for name in ("flights", "cancelled", "dep_delay")}
    merge = tx.merge(change_totals(changes), CARRIERS, on=CARRIERS_KEY)
    return merge.whenMatched().update(sums).whenNotMatched().insertAll().merge()


def started(spark: SparkSession, since: str) -> StreamingQuery:
    """Start the query, from its checkpoint if there is one. If a batch had committed when its driver died, it is found
    by its id, and the function is not called again."""
    begun: list[int] = []

    def count(tx: SparkTransaction, changes: DataFrame) -> None:
        begun.append(tx.start_ts)
        note(LANE, "begun", batch=numbers[-1], start_ts=tx.start_ts)
        done = add(tx, changes)
        note(LANE, "written", start_ts=tx.start_ts, branches=tx.branches, rows=[done.updated, done.inserted])

    sink = pyomid.spark.connect(spark, url()).stream_sink(count, conflict_level=CONFLICT_LEVEL)
    numbers: list[int] = []

    def noted(changes: DataFrame, number: int) -> None:
        begun.clear()
        numbers.append(number)
        again(partial(sink, changes, number), lambda error: note(LANE, "interrupted", error=type(error).__name__))
        note(LANE, "committed" if begun else "already", batch=number, start_ts=begun[-1] if begun else 0)

    options = {"readChangeFeed": "true", "startingBookmark": since, "bookmarkSeconds": str(LEASE_SECONDS)}
    columns = "carrier,dep_time,dep_delay"
    changes = spark.readStream.format("omid").options(url=url(), table=FLIGHTS, columns=columns, **options).load()
    return changes.writeStream.foreachBatch(noted).option("checkpointLocation", str(CHECKPOINT)).start()


def follow(query: StreamingQuery) -> None:
    """Run the query until all data have been ingested and processed."""
    while not ALL_IN.exists():
        query.awaitTermination(LOOK_S)
    query.processAllAvailable()
    query.stop()


def followed(spark: SparkSession, since: str) -> bool:
    """Run the query; False if it must be restarted: the database was unavailable for too long, or Spark's source was
    slow to start."""
    try:
        follow(started(spark, since))
    except StreamingQueryException as error:
        is_away = isinstance(pyomid.spark.original_error(error), pyomid.Unavailable)
        if not is_away and "failed to connect back" not in str(error):
            raise
        note(LANE, "interrupted", error=str(error).partition("\n")[0][:200])
        return False
    return True


def merged_batches(events: Iterable[Event]) -> set[int]:
    """Return the batches that changed a total. The others only moved the query's place, while nothing changed."""
    of_stream = [event.values for event in events if event.lane == LANE]
    changed = {values["start_ts"] for values in of_stream if any(values.get("rows", ()))}
    return {values["batch"] for values in of_stream if "batch" in values and values["start_ts"] in changed}


def main(since: str) -> None:
    spark = session("carriers", master="local[1,4]")
    note(LANE, "started")
    while not followed(spark, since):
        """Start again; the demo kills this process if that goes on for too long."""
    note(LANE, "finished")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
