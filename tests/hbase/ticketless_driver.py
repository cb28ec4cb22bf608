"""A driver with a ticket, whose Spark has none on its workers: all that pyomid does from there, told as JSON.

python ticketless_driver.py MASTER URL SERVER FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as f
from spark_sessions import local_session

import pyomid
import pyomid.spark
from pyomid.spark.connections import connection
from pyomid.types import TaskToken

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from pyomid.spark import SparkTransaction


def main(master: str, url: str, server: str, folder: str) -> None:
    spark = local_session(
        master,
        **{
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{folder}",
            "spark.log.level": "INFO",
        },
    )
    conn = connection(url)
    first = newest(url)
    told: dict[str, Any] = {"tickets": tickets(spark, server)}
    told["transaction"] = in_a_transaction(spark, url)
    told["source"], plan, since = by_the_source(spark, url)
    told["streams"] = by_streams(spark, url, folder, since)
    told["upkeep"] = upkeep(spark, url)
    writes, tokens = 0, {first, newest(url)}
    while time.time() * 1000 < first.expires_ms or writes < 2:
        with pyomid.spark.connect(spark, url).begin() as tx:
            tx.write(spark.range(writes, writes + 1), "long", row_key=["id"])
        writes += 1
        tokens.add(newest(url))
    with pyomid.spark.connect(spark, url).begin() as tx:
        told["long"] = [writes, tx.read("long").count()]
    told["user"], told["database"] = first.user, conn.database_id.hex()
    Path(folder, "tokens").write_text("\n".join(token.secret.hex() for token in tokens))
    Path(folder, "plan").write_text(plan)
    Path(folder, "told").write_text(json.dumps(told))
    spark.stop()


def newest(url: str) -> TaskToken:
    token = connection(url).deployment.task_token()
    assert token is not None
    return token


def tickets(spark: SparkSession, server: str) -> list[str]:
    """What a worker is told that asks for a ticket."""

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyomid.omid.hbase.kerberos import Kerberos, KerberosFailed, KerberosOptions

        for _ in batches:
            try:
                Kerberos(KerberosOptions()).context(server, "localhost").begin()
                said = "a ticket"
            except KerberosFailed:
                said = "none"
            yield pa.RecordBatch.from_pydict({"said": [said]})

    return sorted(row["said"] for row in spark.range(0, 2, 1, 2).mapInArrow(ask, "said string").collect())


def in_a_transaction(spark: SparkSession, url: str) -> list[Any]:
    """Each kind of write, and reads amid and behind them."""
    db = pyomid.spark.connect(spark, url)
    rows = spark.range(0, 200, 1, 4).select("id", (f.col("id") * 2).alias("twice"))
    with db.begin(run_id="first") as tx:
        tx.write(rows, "t", row_key=["id"])
        amid = tx.read("t").count()

    def change(tx: SparkTransaction) -> None:
        tx.delete("t", where="id >= 190")
        tx.update("t", "id < 5", {"twice": 0})
        tx.merge(
            spark.createDataFrame([(5, 5), (200, 5)], "id long, twice long"), "t", on=["id"]
        ).whenMatched().updateAll().whenNotMatched().insertAll().merge()
        tx.write(rows.where("id < 3"), "u", row_key=["id"], mode="overwrite")

    db.run(change)
    with db.begin() as tx:
        return [amid, tx.read("t").count(), tx.read("t", where="twice = 5").count(), tx.read("u").count()]


def by_the_source(spark: SparkSession, url: str) -> tuple[list[Any], str, str]:
    """`df.write` and `spark.read`, the text of a plan, and the place before the overwrite."""

    db = pyomid.spark.connect(spark, url)

    def load(**options: str) -> Any:
        return spark.read.format("omid").options(url=url, table="s", **options).load()

    def write(text: str, mode: str) -> None:
        rows = spark.range(0, 50, 1, 2).select("id", f.lit(text).alias("text"))
        rows.write.format("omid").options(url=url, table="s", rowKey="id").mode(mode).save()

    write("x", "append")
    with pyomid.connect(url) as database:
        since = database.bookmark(keep_seconds=600)
    write("y", "overwrite")
    changes = db.changes("s", starting=since)
    db.views(prefix="v_")
    frame = load().where("id < 20")
    plan = frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().executedPlan().treeString()
    counts = [
        frame.count(),
        changes.count(),
        spark.sql("SELECT count(*) FROM v_s").head()[0],
        load(where="id=1").count(),
    ]
    return counts, plan, str(since)


def by_streams(spark: SparkSession, url: str, folder: str, since: str) -> list[Any]:
    """From a table into a table, and by `stream_sink`; each query ends when it has read what was there."""
    db = pyomid.spark.connect(spark, url)
    changes = (
        spark.readStream.format("omid")
        .options(url=url, table="s", readChangeFeed="true", startingBookmark=since)
        .load()
    )
    rows = changes.where("_change_type = 'update_postimage'").select("id", "text")

    def finished(query: StreamingQuery) -> None:
        assert query.awaitTermination(240)

    into = rows.writeStream.format("omid").options(url=url, table="copied", rowKey="id")
    finished(into.option("checkpointLocation", f"{folder}/one").trigger(availableNow=True).start())
    sink = db.stream_sink(lambda tx, batch: tx.write(batch, "sunk", row_key=["id"]))
    sunk = rows.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/two")
    finished(sunk.trigger(availableNow=True).start())
    with db.begin() as tx:
        return [tx.read("copied").count(), tx.read("sunk").count()]


def upkeep(spark: SparkSession, url: str) -> list[Any]:
    db = pyomid.spark.connect(spark, url)
    cleaned = db.compact("t")
    return [cleaned.tables[0].table, db.verify("t").ok]


if __name__ == "__main__":
    main(*sys.argv[1:])
