"""The stream's driver: lands the events that arrive, one transaction a batch, until all are in.

    python -m examples.cdc.land FOLDER URL [--park]

A restarted driver continues where the last commit left off, whatever killed the one before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.cdc import cut
from examples.cdc.events import note
from examples.cdc.topics import RECORD
from examples.flights.sessions import session

import pyomid
import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from pyomid.spark import SparkDatabase

FILES_A_BATCH = 150

SETTINGS: Final = {
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__inMemoryColumnarStorage__compressed": "false",  # a batch's events are cached for seconds
    # Each batch runs the same 120 generated classes; of the 100 that Spark keeps by default none is found again.
    "spark__sql__codegen__cache__maxEntries": "1000",
    "spark__driver__extraJavaOptions": "-XX:+UseSerialGC",  # with C2: a stream lives long enough for it
}


def started(db: SparkDatabase, folder: Path, *, park: bool = False) -> StreamingQuery:
    """Start the query over the topics' files, from its checkpoint if there is one."""

    def land(tx: pyomid.spark.SparkTransaction, arrived: DataFrame) -> None:
        began_s = time.monotonic()
        landed = cut.land(tx, arrived, park=park)
        note(folder, "landed", seconds=time.monotonic() - began_s, start_ts=tx.start_ts, **vars_of(landed))

    lines = db.spark.readStream.schema(RECORD).option("maxFilesPerTrigger", FILES_A_BATCH)
    arrived = lines.json(str(folder / "topics" / "*" / "*"), mode="FAILFAST")
    sink = db.stream_sink(land)
    writer = arrived.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.start()


def vars_of(landed: cut.Landed) -> dict[str, int]:
    return {name: getattr(landed, name) for name in ("transactions", "events", "waiting", "bad")}


def main(folder: Path, url: str, *, park: bool = False) -> None:
    spark = session("cdc", database=url, **SETTINGS)
    db = pyomid.spark.connect(spark, url)
    with db.transaction() as tx:
        cut.create_tables(tx)
    note(folder, "driver started")
    query = started(db, folder, park=park)
    while not (folder / "all-in").exists():
        query.awaitTermination(0.5)
    query.processAllAvailable()
    query.stop()
    note(folder, "driver finished")
    db.spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], park="--park" in sys.argv)
