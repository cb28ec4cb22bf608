"""A local Spark session whose JVM is configured for a fast start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.flights.settings import FOLDER, url

import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(name: str, *, master: str = "local[2,4]", database: str | None = None, **settings: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(FOLDER / "warehouse"))
    )
    for key, value in settings.items():
        builder = builder.config(key.replace("__", "."), value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # from here on workers run this Python, and `format("omid")` is known
    pyomid.spark.connect(spark, database or url())
    return spark
