"""The stream's driver: lands the events that arrive, one transaction a batch, until all are in.

    python -m examples.cdc.land FOLDER URL [--park]

A restarted driver continues where the last commit left off, whatever killed the one before. It warns of a transaction
that stays incomplete.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import asdict, dataclass
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


WAIT_S_MAX: Final = 60.0
"""The driver warns of a transaction that is incomplete for longer. Debezium's topics are rarely seconds apart."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Wait:
    """What the stream waits for; since when: the time of the last batch that landed a transaction; the last report."""

    what: str = ""
    since_s: float = 0.0
    reported_s: float = 0.0

    def note(self, landed: cut.Landed, now_s: float) -> None:
        if landed.transactions or not self.what:
            self.since_s = self.reported_s = now_s
        self.what = landed.waits_for

    def report(self, now_s: float, wait_s_max: float = WAIT_S_MAX) -> None:
        """Warn if the wait is too long, and again each time it has become so much longer."""
        if self.what and now_s - self.reported_s >= wait_s_max:
            self.reported_s = now_s
            log.warning(
                "nothing has landed for %.0f s: %s; check that the stream gets every topic of the connector",
                *(now_s - self.since_s, self.what),
            )


def started(db: SparkDatabase, folder: Path, wait: Wait, *, park: bool = False) -> StreamingQuery:
    """Start the query over the topics' files, from its checkpoint if there is one."""

    def land(tx: pyomid.spark.SparkTransaction, arrived: DataFrame) -> None:
        began_s = time.monotonic()
        landed = cut.land(tx, arrived, park=park)
        note(folder, "landed", seconds=time.monotonic() - began_s, start_ts=tx.start_ts, **asdict(landed))
        wait.note(landed, time.monotonic())

    lines = db.spark.readStream.schema(RECORD).option("maxFilesPerTrigger", FILES_A_BATCH)
    arrived = lines.json(str(folder / "topics" / "*" / "*"), mode="FAILFAST")
    sink = db.stream_sink(land)
    writer = arrived.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.start()


def main(folder: Path, url: str, *, park: bool = False) -> None:
    spark = session("cdc", database=url, **SETTINGS)
    db = pyomid.spark.connect(spark, url)
    with db.begin() as tx:
        cut.create_tables(tx)
    note(folder, "driver started")
    wait = Wait()
    query = started(db, folder, wait, park=park)
    while not (folder / "all-in").exists():
        query.awaitTermination(0.5)
        wait.report(time.monotonic())
    query.processAllAvailable()
    query.stop()
    wait.report(time.monotonic(), 0.0)
    note(folder, "driver finished")
    db.spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], park="--park" in sys.argv)
