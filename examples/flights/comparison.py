"""Comparison of the final tables with the same aggregates, computed by Spark from the source alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from examples.flights import carriers, data, months
from examples.flights.settings import (
    CARRIERS,
    CARRIERS_KEY,
    CLEARED,
    DAILY,
    DAILY_KEY,
    FLIGHTS,
    FLIGHTS_KEY,
    MONTHS,
    ROUTES,
    ROUTES_KEY,
    url,
)
from examples.flights.snapshots import different
from pyspark.sql import functions as f

import pyomid
import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyomid.spark import SparkTransaction


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure, from the source and from the database."""

    what: str
    source: Any
    database: Any

    @property
    def equal(self) -> bool:
        return bool(self.source == self.database)


def expected_flights(spark: SparkSession, corrections: list[list[Any]]) -> DataFrame:
    """Return the source with the corrected flights cancelled."""
    cancelled = spark.createDataFrame(
        [(origin, time_hour, carrier, flight) for origin, time_hour, carrier, flight in corrections],
        "origin string, time_hour string, carrier string, flight int",
    ).select(
        "origin", f.to_timestamp("time_hour").alias("time_hour"), "carrier", "flight", f.lit(True).alias("cancelled")
    )
    joined = data.flights(spark).join(f.broadcast(cancelled), list(FLIGHTS_KEY), "left")
    names = [column for column in joined.columns if column != "cancelled"]
    return joined.select(
        *[
            (f.when(f.col("cancelled").isNull(), f.col(name)) if name in CLEARED else f.col(name)).alias(name)
            for name in names
        ]
    )


def compare(spark: SparkSession, tx: SparkTransaction, corrections: list[list[Any]]) -> list[Comparison]:
    expected = expected_flights(spark, corrections).cache()
    results = [Comparison(f"rows in {name}", data.ROWS[name], tx.read(name).count()) for name in data.SMALL_TABLES]
    in_source = {row["origin"]: row["count"] for row in expected.groupBy("origin").count().collect()}
    if MONTHS == 12:
        assert in_source == data.FLIGHTS_BY_ORIGIN, f"unexpected source data: {in_source}"
    results.append(Comparison("rows in flights", sum(in_source.values()), tx.read(FLIGHTS).count()))
    by_origin = {row["origin"]: row["flights"] for row in _by_origin(tx.read(DAILY)).collect()}
    for origin, flights in sorted(in_source.items()):
        results.append(Comparison(f"flights from {origin}", flights, by_origin.get(origin)))
    for what, left, right, key in (
        ("flights", expected, tx.read(FLIGHTS), FLIGHTS_KEY),
        ("daily", months.daily_totals(expected), tx.read(DAILY), DAILY_KEY),
        ("routes", months.route_totals(expected), tx.read(ROUTES), ROUTES_KEY),
        ("carriers", carriers.carrier_totals(expected), tx.read(CARRIERS), CARRIERS_KEY),
    ):
        results.append(Comparison(f"rows of {what} that differ", 0, different(left, right, key)))
    expected.unpersist()
    return results


def compare_changes(spark: SparkSession, since: pyomid.Bookmark, corrections: list[list[Any]]) -> list[Comparison]:
    """Compare the change feed of flights: it must have each insert once, and each correction with both images."""
    changes = pyomid.spark.connect(spark, url()).changes(FLIGHTS, since)
    counted = changes.groupBy("_change_type").agg(
        f.count(f.lit(1)).alias("rows"), f.count("dep_time").alias("departed"), f.countDistinct("_commit_version")
    )
    found = {row[0]: tuple(row[1:]) for row in counted.collect()}
    flights, number = data.flights(spark), len(corrections)
    source = (flights.count(), flights.where("dep_time is not null").count(), MONTHS)
    return [
        Comparison("changes: flights inserted, departed ones, commits", source, found.pop("insert", None)),
        Comparison("changes: flights before a correction", (number,) * 3, found.pop("update_preimage", None)),
        Comparison("changes: flights after it", (number, 0, number), found.pop("update_postimage", None)),
        Comparison("changes of other kinds", {}, found),
    ]


def _by_origin(daily: DataFrame) -> DataFrame:
    return daily.groupBy("origin").agg(f.sum("flights").alias("flights"))
