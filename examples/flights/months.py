"""Ingest of one month in one transaction over three tables: the flights, and two totals, which are read and updated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.flights.carriers import carrier_totals
from examples.flights.settings import (
    CARRIERS,
    CARRIERS_KEY,
    DAILY,
    DAILY_KEY,
    FLIGHTS,
    FLIGHTS_KEY,
    ROUTES,
    ROUTES_KEY,
)
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyomid.spark import SparkTransaction


def create_tables(tx: SparkTransaction, flights: DataFrame) -> None:
    """Create the tables that are written later."""
    nothing = flights.limit(0)
    tx.write(nothing, FLIGHTS, row_key=FLIGHTS_KEY)
    tx.write(daily_totals(nothing), DAILY, row_key=DAILY_KEY)
    tx.write(route_totals(nothing), ROUTES, row_key=ROUTES_KEY)
    tx.write(carrier_totals(nothing), CARRIERS, row_key=CARRIERS_KEY)


def ingest(tx: SparkTransaction, flights: DataFrame) -> list[int]:
    """Add the flights and their totals; return the number of rows written to each table."""
    return [
        tx.write(flights, FLIGHTS).rows,
        tx.write(_added(tx, DAILY, daily_totals(flights), DAILY_KEY), DAILY).rows,
        tx.write(_added(tx, ROUTES, route_totals(flights), ROUTES_KEY), ROUTES).rows,
    ]


def daily_totals(flights: DataFrame) -> DataFrame:
    """Return, by day and origin: flights, cancelled ones, minutes of departure delay."""
    return flights.groupBy(f.make_date("year", "month", "day").alias("day"), "origin").agg(
        f.count(f.lit(1)).alias("flights"),
        f.count_if(f.col("dep_time").isNull()).alias("cancelled"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).cast("long").alias("dep_delay"),
    )


def route_totals(flights: DataFrame) -> DataFrame:
    """Return, by origin and destination: flights, and miles flown (none for a cancelled flight)."""
    flown = f.when(f.col("dep_time").isNotNull(), f.col("distance")).otherwise(0)
    return flights.groupBy("origin", "dest").agg(
        f.count(f.lit(1)).alias("flights"), f.sum(flown).cast("long").alias("distance")
    )


def _added(tx: SparkTransaction, table: str, new: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return the new totals plus the table's totals for the same keys."""
    sums = [name for name in new.columns if name not in key]
    stored = tx.read(table).select(*key, *[f.col(name).alias(f"stored_{name}") for name in sums])
    both = new.join(stored, list(key), "left")
    return both.select(
        *key, *[(f.col(name) + f.coalesce(f.col(f"stored_{name}"), f.lit(0))).alias(name) for name in sums]
    )
