"""The batch job: Spark reads all accounts at one snapshot, checks their sum, and writes everybody's statement anew in
one transaction. Again and again, until it is ended.

usage: python -m benchmarks.service.batch URL NOTES SECONDS-BETWEEN
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pyomid.spark
from benchmarks.service.bank import ACCOUNTS, TOTAL, note


def main(url: str, notes: Path, between_s: float) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[1]").appName("statements").config("spark.ui.enabled", "false")
    spark = session.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    db = pyomid.spark.connect(spark, url)
    while True:
        began = time.monotonic()

        def state(tx: pyomid.spark.SparkTransaction) -> None:
            accounts = tx.read("accounts")
            [(count, total)] = accounts.agg(F.count("*"), F.sum("balance")).collect()
            if (count, total) != (ACCOUNTS, TOTAL):
                note(notes, "wrong", f"{count} accounts hold {total}")
            made = F.lit(time.strftime("%H:%M:%S"))
            tx.write(accounts.withColumn("made", made), "statements", row_key=["name"])

        db.run(state)
        note(notes, "round", f"{time.monotonic() - began:.3f}")
        time.sleep(between_s)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
