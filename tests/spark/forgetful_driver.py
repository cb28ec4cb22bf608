"""A program that makes its session without `use_this_python`, and comes to pyomid by three ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

URL = "omid-memory:forgetful"


def ways(spark: SparkSession) -> list[Callable[[], object]]:
    return [
        lambda: pyomid.spark.register(spark),
        lambda: pyomid.spark.transaction(spark, URL),
        lambda: pyomid.spark.compact(spark, URL),
    ]


def main() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    for way in ways(spark):
        try:
            way()
        except Exception as error:
            print(f"{type(error).__name__}: {error}".splitlines()[0], flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
