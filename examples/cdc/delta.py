"""The same events into four Delta tables, one table after the other, and how often a reader beside it sees a torn shop.

    python -m examples.cdc.delta FOLDER JARS SECONDS

Needs an environment with Delta Lake; the demo makes it. This is Delta at its best: one stream for all topics, and only
milliseconds between the commits of the four tables of a batch. Delta commits each table by itself, and its stream has
no memory of events that wait for others.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.cdc.invariants import broken
from examples.cdc.topics import COLUMNS, KEYS, RECORD, TABLES, topic_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAUSE_S = 1.0


def main(folder: Path, jars: str, seconds: float) -> None:
    spark = session(folder, jars)
    for table, columns in COLUMNS.items():
        spark.createDataFrame([], f"{columns}, lsn bigint").write.format("delta").save(f"{folder}/delta/{table}")
    reader = Reader(spark, folder)
    reader.start()
    lines = spark.readStream.schema(RECORD).option("maxFilesPerTrigger", 30)
    arrived = lines.json(f"{folder}/topics/*/*")
    writer = arrived.writeStream.foreachBatch(lambda batch, _: land(spark, folder, batch))
    query = writer.option("checkpointLocation", f"{folder}/delta/checkpoint").start()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        query.awaitTermination(1)
    query.processAllAvailable()
    reader.stop()
    query.stop()
    at_the_end = broken(snapshot(spark, folder))
    print("measured", json.dumps({"checked": reader.checked, "torn": reader.torn, "at_the_end": at_the_end}))


def session(folder: Path, jars: str) -> SparkSession:
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{folder}/delta/warehouse",
        "spark.databricks.delta.schema.autoMerge.enabled": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def land(spark: SparkSession, folder: Path, batch: DataFrame) -> None:
    from delta import DeltaTable  # type: ignore[import-not-found,unused-ignore]

    value = "op string, before string, after string, source struct<lsn bigint>"
    events = batch.where("value is not null").withColumn("v", f.from_json("value", value)).persist()
    for table in TABLES:
        of_table = events.where(f.col("topic") == topic_of(table))
        row = f.from_json(f.coalesce("v.after", "v.before"), COLUMNS[table])
        rows = of_table.select(row.alias("row"), "v.op", f.col("v.source.lsn").alias("lsn")).select(
            "row.*", "op", "lsn"
        )
        latest = rows.groupBy(*KEYS[table]).agg(f.max_by(f.struct("*"), "lsn").alias("last")).select("last.*")
        columns = {name: f"source.{name}" for name in rows.columns if name != "op"}
        target = DeltaTable.forPath(spark, f"{folder}/delta/{table}").alias("target")
        merge = target.merge(latest.alias("source"), " and ".join(f"source.{k} = target.{k}" for k in KEYS[table]))
        merge = merge.whenMatchedDelete("source.op = 'd'").whenMatchedUpdate(set=columns)
        merge.whenNotMatchedInsert("source.op <> 'd'", columns).execute()
    events.unpersist()


def snapshot(spark: SparkSession, folder: Path) -> dict[str, Any]:
    return {table: spark.read.format("delta").load(f"{folder}/delta/{table}").toArrow() for table in TABLES}


class Reader(threading.Thread):
    """Reads the four tables, each at its newest version, and counts how often they disagree."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(daemon=True)
        self._spark = spark
        self._folder = folder
        self._ended = threading.Event()
        self.checked = 0
        self.torn = 0

    def run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            self.torn += broken(snapshot(self._spark, self._folder)) > 0
            self.checked += 1

    def stop(self) -> None:
        self._ended.set()
        self.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
