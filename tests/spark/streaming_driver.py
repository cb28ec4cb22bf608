"""Streaming drivers: the lines of a folder's files, a file a batch, counted into two tables by `stream_sink` or written
into one by `writeStream.format("omid")`; a table's changes, written into another table."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from spark_drivers import add_counts

import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

SEEN, COUNTED, ACCOUNTS, MIRROR = "seen", "counted", "accounts", "mirror"
LINES_A_FILE = 3


def make_tables(spark: SparkSession, url: str) -> None:
    """Empty."""
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(spark.createDataFrame([], "line string, count long"), SEEN, row_key=["line"], mode="overwrite")
        tx.write(spark.createDataFrame([], "name string, count long"), COUNTED, row_key=["name"], mode="overwrite")


def put_files(folder: Path, *, batches: int) -> list[str]:
    """A file a batch, in the order of their ages; all their lines."""
    (folder / "in").mkdir(parents=True)
    oldest_s = time.time() - 1000
    lines = [f"line-{number}" for number in range(batches * LINES_A_FILE)]
    for number in range(batches):
        of_file = lines[number * LINES_A_FILE : (number + 1) * LINES_A_FILE]
        file = folder / "in" / f"{number}.txt"
        file.write_text("".join(f"{line}\n" for line in of_file))
        os.utime(file, (oldest_s + number, oldest_s + number))
    return lines


def count(tx: pyomid.spark.SparkTransaction, batch: DataFrame) -> None:
    """Whoever is counted twice is seen in both tables: each line has a count, and they have a total."""
    spark = batch.sparkSession
    lines = [row["line"] for row in batch.collect()]
    add_counts(tx, SEEN, "line", spark.createDataFrame([(line, 1) for line in lines], "line string, count long"))
    add_counts(tx, COUNTED, "name", spark.createDataFrame([("all", len(lines))], "name string, count long"))


def stream(spark: SparkSession, folder: Path, sink: Callable[[DataFrame, int], None]) -> StreamingQuery:
    """Everything that is there now, a file a batch."""
    return _started(_lines(spark, folder).writeStream.foreachBatch(sink), folder)


def copy(spark: SparkSession, url: str, folder: Path, **options: str) -> StreamingQuery:
    """Everything that is there now, a file a batch, appended to a table."""
    rows = _lines(spark, folder).selectExpr("line", "1L AS count")
    return _started(rows.writeStream.format("omid").options(url=url, table=SEEN, rowKey="line", **options), folder)


def mirror(spark: SparkSession, url: str, folder: Path, starting: str) -> StreamingQuery:
    """The changes there are now, two rows a batch, each with an id that it has by this delivery alone."""
    options = {
        "readChangeFeed": "true",
        "bookmarkSeconds": "600",
        "maxRowsPerTrigger": "2",
        "startingBookmark": starting,
    }
    changes = spark.readStream.format("omid").options(url=url, table=ACCOUNTS, **options).load()
    told = changes.selectExpr("name", "balance", "_change_type AS kind", "_commit_version AS version", "uuid() AS id")
    return _started(told.writeStream.format("omid").options(url=url, table=MIRROR, rowKey="name,version,kind"), folder)


def patiently(started: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The query, once it has ended. Spark gives a stream's source ten seconds to start its process, and has done
    nothing yet where that takes longer. A busy machine gets more."""
    for attempt in range(6):
        try:
            query = started()
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or attempt == 5:
                raise
        else:
            assert not query.isActive
            return query
    raise AssertionError


def _lines(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("line string").option("maxFilesPerTrigger", 1).text(str(folder / "in"))


def _started(writer: DataStreamWriter, folder: Path) -> StreamingQuery:
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def main(url: str, folder: str, how: str = "sink", starting: str = "") -> None:
    """A driver with a JVM of its own; armed by its environment. Prints how many batches it was handed."""
    from spark_sessions import local_session

    spark = local_session("local[1]")
    if how == "mirror":
        patiently(lambda: mirror(spark, url, Path(folder), starting))
        spark.stop()
        return
    sink = pyomid.spark.connect(spark, url).stream_sink(count)
    handed_out: list[int] = []

    def noted(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        handed_out.append(batch_id)

    stream(spark, Path(folder), noted).awaitTermination()
    spark.stop()
    print(json.dumps({"batches": len(handed_out)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
