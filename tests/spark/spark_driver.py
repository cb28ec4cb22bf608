"""A driver that a test kills: adds a number to a total under a durable id.

python spark_driver.py URL ID NUMBER
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as f
from spark_sessions import local_session

import pyomid.spark


def main(url: str, transaction_id: str, number: int) -> None:
    spark = local_session("local[1]")

    def add(tx: pyomid.spark.SparkTransaction) -> None:
        total = tx.read("totals").withColumn("total", f.col("total") + number)
        tx.write(total, "totals")
        tx.write(spark.createDataFrame([(transaction_id, number)], "run string, number long"), "runs")

    result = pyomid.spark.run(spark, url, add, transaction_id=transaction_id)
    print("already done" if result is not None else "added")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
