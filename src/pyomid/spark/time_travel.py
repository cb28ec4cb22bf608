"""Past snapshots of tables: read, listed and restored. The TSO's retention says how far back they reach."""

from __future__ import annotations

import operator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pyomid.client.past_snapshot import check_time, moment_of
from pyomid.protocol.time_points import snapshot_after
from pyomid.spark.errors import original_errors
from pyomid.spark.registration import opened, reader_of
from pyomid.spark.transactions import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, url: str, table: str, *, at: int | datetime | None = None) -> DataFrame:
    """Return a lazy frame of the table at one snapshot. `at`: None for now; a timestamp for everything committed at or
    before it; a timezone-aware datetime for the first known moment at or after it (`moment`). SnapshotTooOld says
    since when history is kept."""
    if at is not None:
        at = _checked(at)
    reader = reader_of(spark, url, table)
    if isinstance(at, datetime):
        reader = reader.option("timestampAsOf", at.isoformat())
    elif at is not None:
        reader = reader.option("versionAsOf", at)
    with original_errors():
        frame: DataFrame = reader.load()
    return frame


class MomentOf(NamedTuple):
    """A snapshot, by its `version` and its `time`: it holds exactly what was acknowledged at or before that time."""

    version: int
    time: datetime


def moment(spark: SparkSession, url: str, at: datetime) -> MomentOf:
    """Return the snapshot of the first known moment at or after `at`, to read or restore by its version."""
    found = moment_of(opened(spark, url, create=False).deployment, at)
    return MomentOf(found.snapshot_ts - 1, datetime.fromtimestamp(found.wall_ms / 1000, UTC))


class RestoreCommit(int):
    """The commit timestamp of a restore, with the `moment` that it restored; None if `at` was a version."""

    moment: MomentOf | None = None


def history(spark: SparkSession, url: str, table: str) -> DataFrame:
    """Return the recorded time points at which the table can be read, newest first: `version` (bigint, for
    `versionAsOf`) and `timestamp`.

    Time points belong to the database and are not commits of this table: no list of commits is kept. Between two of
    them the table may have changed often, or not at all.
    """
    conn = opened(spark, url, create=False)
    info = conn.table(table)
    watermark, _ = conn.deployment.leader_state.read_watermarks()
    rows = [
        (point.start_ts, datetime.fromtimestamp(point.wall_ms / 1000, UTC))
        for point in reversed(conn.deployment.leader_state.time_points())
        if snapshot_after(point.start_ts) > max(watermark, info.generation)
    ]
    return spark.createDataFrame(rows, "version bigint, timestamp timestamp")


def restore(spark: SparkSession, url: str, table: str, at: int | datetime) -> RestoreCommit | None:
    """Restore the table as of `at` in a separate transaction; return its commit timestamp with the restored `moment`.
    For a time that moment is at or after it: nothing acknowledged by that time is undone. All rows are rewritten;
    cells that the table's schema does not name are not restored. `ConflictError` if another transaction changed the
    table meanwhile."""
    at = _checked(at)
    found = moment(spark, url, at) if isinstance(at, datetime) else None
    with transaction(spark, url) as tx:
        frame = read(spark, url, table, at=at if found is None else found.version)
        tx.write(frame, table, mode="overwrite", conflict_level="table", stale_read="allow")
    if tx.commit_ts is None:
        return None
    commit = RestoreCommit(tx.commit_ts)
    commit.moment = found
    return commit


def _checked(at: int | datetime) -> int | datetime:
    """Return `at` checked; a version from a pandas frame, a numpy integer, becomes an int."""
    if hasattr(at, "__index__") and not isinstance(at, bool):
        at = operator.index(at)
    check_time(at)
    return at
