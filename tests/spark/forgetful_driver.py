"""A program that chooses no Python for its session's workers: it writes a row, counts it, and
reads once more after it stopped the session."""

from __future__ import annotations

import os
import sys

import pyomid.spark
from pyomid.spark.connections import close_connections


def main(url: str) -> None:
    from pyspark.sql import SparkSession

    if not os.environ["PYSPARK_PYTHON"]:
        del os.environ["PYSPARK_PYTHON"]
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        db = pyomid.spark.connect(spark, url)
        rows = spark.range(1)
        with db.begin() as tx:
            tx.write(rows.mapInArrow(lambda batches: batches, rows.schema), "t", row_key="id")
            print(tx.read("t", partitions=1).count(), "row")
        spark.stop()
        db.read("t")
    except Exception as error:
        print(f"{type(error).__name__}: {error}".splitlines()[0], flush=True)
    close_connections()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
