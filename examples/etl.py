"""Load a CSV file into two tables in one transaction; a second run changes nothing.

Run: python examples/etl.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import pyomid.spark
from pyomid import AlreadyDone
from pyomid.spark import SparkTransaction

FLIGHTS = """\
day,origin,flight,delay
2013-01-01,EWR,1545,2
2013-01-01, lga ,1714,4
2013-01-01,JFK,1141,2
2013-01-01,JFK,1141,2
2013-01-01,EWR,1696,NA
2013-01-02,EWR,1545,-5
2013-01-02,LGA,1714,31
2013-01-02,,461,12
"""


def extract(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.csv(str(path), header=True, schema="day date, origin string, flight int, delay string")


def clean(rows: DataFrame) -> DataFrame:
    origin, delay = f.upper(f.trim("origin")), f.expr("try_cast(delay AS int)")  # NA becomes null
    rows = rows.withColumns({"origin": origin, "delay": delay}).where("origin IS NOT NULL")
    return rows.dropDuplicates(["day", "origin", "flight"])  # a write refuses two rows with one key


def load(tx: SparkTransaction, flights: DataFrame) -> str:
    """Upsert the rows, and the totals of all flights, these included."""
    written = tx.write(flights, "flights", row_key=["day", "origin", "flight"])
    by_origin = tx.read("flights").groupBy("origin")  # sees the write above
    totals = by_origin.agg(f.count("*").alias("flights"), f.round(f.avg("delay"), 1).alias("delay"))
    tx.write(totals, "airports", row_key=["origin"])
    return f"{written.rows} flights written"


def main(folder: Path) -> None:
    path = folder / "flights-2013-01.csv"
    path.write_text(FLIGHTS, encoding="utf-8")
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    db = pyomid.spark.connect(spark, f"omid://{folder}/db")
    for _ in range(2):
        done = db.run_once(path.name, lambda tx: load(tx, clean(extract(spark, path))))
        print(f"{path.name} has been loaded before" if isinstance(done, AlreadyDone) else done)
    db.read("airports").orderBy("origin").show()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="etl-")))
