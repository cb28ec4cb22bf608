"""Tables as they were: read at a version or a time, listed, and put back. How far back is the TSO's retention."""

from __future__ import annotations

import operator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyomid.client.past_snapshot import check_time
from pyomid.protocol.time_points import snapshot_after
from pyomid.spark.databases import connection
from pyomid.spark.errors import original_errors
from pyomid.spark.registration import register
from pyomid.spark.source.datasource import FORMAT
from pyomid.spark.transactions import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, url: str, table: str, *, at: int | datetime | None = None) -> DataFrame:
    """A lazy frame of the table, of one snapshot: of now, or of what was committed at or before a timestamp, or by a
    time (a datetime with its zone). SnapshotTooOld says since when history is kept."""
    if at is not None:
        at = _checked(at)
    register(spark)
    reader = spark.read.format(FORMAT).option("url", url).option("table", table)
    if isinstance(at, datetime):
        reader = reader.option("timestampAsOf", at.isoformat())
    elif at is not None:
        reader = reader.option("versionAsOf", at)
    with original_errors():
        frame: DataFrame = reader.load()
    return frame


def history(spark: SparkSession, url: str, table: str) -> DataFrame:
    """The times at which the table can be read, newest first, as far as they were noted: `version` bigint, for
    `versionAsOf`, and `timestamp`.

    They are of the database, not commits of this table: no list of commits is kept. At each of these times its snapshot
    holds what was committed until then; between two of them a table may have changed often, or not at all.
    """
    register(spark)
    conn = connection(url, create=False)
    info = conn.table(table)
    watermark, _ = conn.deployment.leader_state.read_watermarks()
    rows = [
        (point.start_ts, datetime.fromtimestamp(point.wall_ms / 1000, UTC))
        for point in reversed(conn.deployment.leader_state.time_points())
        if snapshot_after(point.start_ts) > max(watermark, info.generation)
    ]
    return spark.createDataFrame(rows, "version bigint, timestamp timestamp")


def restore(spark: SparkSession, url: str, table: str, at: int | datetime) -> int | None:
    """Writes the table as it was at `at`, in a transaction of its own, and returns its commit timestamp. All rows are
    written anew; what the table's schema does not name is not put back. `ConflictError` where another transaction
    changed the table meanwhile."""
    at = _checked(at)
    with transaction(spark, url) as tx:
        frame = read(spark, url, table, at=at)
        tx.write(frame, table, mode="overwrite", conflict_level="table", stale_read="allow")
    return tx.commit_ts


def _checked(at: int | datetime) -> int | datetime:
    """As the client takes it; a version out of a frame of pandas is a number of numpy's."""
    if hasattr(at, "__index__") and not isinstance(at, bool):
        at = operator.index(at)
    check_time(at)
    return at
