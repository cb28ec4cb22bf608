"""What the driver processes of the fault tests do: add to a total, once an id, over two tables.

A driver that is forked attaches itself to the JVM of the test's own session: the transaction lives in the driver's
Python, so killing that is killing the transaction, and a second JVM a kill would cost ten seconds.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyomid import crashpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyomid.spark import SparkTransaction

LEDGER, TOTALS = "ledger", "totals"


@dataclass(frozen=True)
class Run:
    """What one driver process is told."""

    url: str
    run_id: str
    port: int
    secret: str
    crash_at: str
    note: str


def count_once(spark: SparkSession, tx: SparkTransaction, entry: str) -> None:
    """Adds three rows to the ledger and three to the total: whoever is counted twice is seen in both."""
    rows = spark.range(3, numPartitions=2).selectExpr(f"'{entry}' AS entry", "id AS line")
    tx.write(rows, LEDGER, row_key=["entry", "line"])
    more = spark.createDataFrame([("all", 3)], "name string, count long").coalesce(1)
    add_counts(tx, TOTALS, "name", more)


def add_counts(tx: SparkTransaction, table: str, key: str, more: DataFrame) -> None:
    """What the table counts by its key, and `more`, summed."""
    from pyspark.sql import functions as f

    known = tx.read(table, partitions=1).unionByName(more).groupBy(key).agg(f.sum("count").alias("count"))
    tx.write(known.coalesce(1), table)


def run_to_its_end(spark: SparkSession, url: str, run_id: str) -> Any:
    import pyomid.spark

    return pyomid.spark.connect(spark, url).run_once(run_id, lambda tx: count_once(spark, tx, run_id))


def attached_session(port: int, secret: str) -> SparkSession:
    """A session of this process on the JVM of another one."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    jvm: Any = gateway.jvm
    java_session = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get().newSession()
    java_context = jvm.JavaSparkContext(java_session.sparkContext())
    conf = SparkConf(_jvm=jvm, _jconf=java_context.getConf())
    context = SparkContext(conf=conf, gateway=gateway, jsc=java_context)
    return SparkSession(context, java_session)


def run_attached(run: Run) -> None:
    """The life of one forked driver; dies where it is armed. It never stops the JVM, which is another's."""
    try:
        spark = attached_session(run.port, run.secret)
        crashpoints.arm(run.crash_at, note=run.note)
        run_to_its_end(spark, run.url, run.run_id)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def main(url: str, run_id: str) -> None:
    """A driver with a JVM of its own; armed by its environment."""
    from spark_sessions import local_session

    spark = local_session("local[1]")
    run_to_its_end(spark, url, run_id)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
