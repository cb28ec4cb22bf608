"""Frames of tables outside a transaction: at one snapshot, now or past; what changed; views for SQL.

    db.read("flights", at=version_or_datetime)
    db.changes("flights", bookmark)
    db.views()
    spark.sql("SELECT dest, count(*) FROM flights JOIN planes USING (tailnum) GROUP BY dest")
    spark.sql("INSERT INTO totals VALUES ('2013-01-01', 842)")

The TSO's retention says how far back past snapshots reach. Spark plans a view's source once, so a view has one
snapshot; all views of one call share it. An INSERT is a separate transaction; the views do not show it until they are
made again.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pyomid.client.changes import place
from pyomid.client.past_snapshot import check_time, moment_of
from pyomid.client.upkeep.partitions import chosen_tables
from pyomid.errors import Misuse, MisuseType
from pyomid.protocol.time_points import snapshot_after
from pyomid.row_codec.schema import names_text, schema_of
from pyomid.spark.coded_errors import original_errors
from pyomid.spark.frames.expressions import quoted
from pyomid.spark.held_start import HeldStart
from pyomid.spark.source.options import FORMAT, names_of
from pyomid.types import Bookmark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader

    from pyomid.spark.database import SparkDatabase
    from pyomid.spark.transactions import SparkTransaction


def read(db: SparkDatabase, table: str, *, at: int | datetime | None = None) -> DataFrame:
    """Return a lazy frame of the table at one snapshot. `at`: None for now; a version for everything committed at or
    before it; a timezone-aware datetime for the first known moment at or after it (`moment`). SnapshotTooOld says
    since when history is kept."""
    if at is not None:
        at = _checked(at)
    reader = _reader(db, table)
    if isinstance(at, datetime):
        reader = reader.option("timestampAsOf", at.isoformat())
    elif at is not None:
        reader = reader.option("versionAsOf", at)
    return _loaded(reader)


def changes(
    db: SparkDatabase,
    table: str,
    starting: Bookmark | int | datetime,
    ending: Bookmark | int | datetime | None = None,
    *,
    columns: str | Sequence[str] | None = None,
) -> DataFrame:
    """Return the changes that commits from `starting` to `ending` (None: now) made to a table.

    Columns: the table's, then `_change_type` (insert, update_preimage, update_postimage, delete), `_commit_version`
    and `_commit_timestamp`. Both ends are bookmarks (`db.bookmark`), which are exact even if transactions ran at that
    time; versions, whose commits are included, as in Delta; or timezone-aware datetimes. From a datetime on, some
    commits up to seconds older may be included. `SnapshotTooOld` if the changes are no longer kept.
    """
    reader = _end(_reader(db, table).option("readChangeFeed", "true"), "starting", starting)
    if ending is not None:
        reader = _end(reader, "ending", ending)
    if columns is not None:
        reader = reader.option("columns", names_text(names_of(columns)))
    return _loaded(reader)


def _end(reader: DataFrameReader, name: str, given: Bookmark | int | datetime) -> DataFrameReader:
    """Set where the changes begin or end."""
    if isinstance(given, Bookmark):
        return reader.option(f"{name}Bookmark", str(place(given, name)))
    if isinstance(given, datetime):
        return reader.option(f"{name}Timestamp", given.isoformat())
    return reader.option(f"{name}Version", _version(name, given))


def views(db: SparkDatabase, tables: str | Sequence[str] | None = None, *, prefix: str = "") -> list[str]:
    """Create or replace a temporary view for each of these tables (None: every table with a schema). Return the
    views' names: `prefix` and the table's name.

    Their snapshot is kept for `leaseSeconds` after the call and after the last task that read one of them; then they
    raise `SnapshotTooOld`: call `views` again.
    """
    conn = db.opened(create=False)
    infos = chosen_tables(conn.deployment.catalog, tables)
    names = {info.name: prefix + info.name for info in infos if tables is not None or info.schema is not None}
    _check_distinct(list(names.values()))
    held = HeldStart.drawn(conn).owned(conn)  # before the loads: they run in other processes, and may start late
    try:
        for table, view in names.items():
            reader = _reader(db, table).option("_view", "true")
            reader = reader.option("_snapshotVersion", str(held.start_ts))
            reader = reader.option("_snapshotDatabase", conn.database_id.hex())
            _loaded(reader).createOrReplaceTempView(quoted(view))
    except BaseException:
        held.end(conn)
        raise
    return list(names.values())


def _check_distinct(views: Sequence[str]) -> None:
    """`Misuse` if two views differ only by case: Spark ignores case in names of views."""
    known: dict[str, str] = {}
    for view in views:
        other = known.setdefault(view.lower(), view)
        if other != view:
            raise Misuse(
                f"views {other!r} and {view!r} differ only by case, and Spark ignores case: choose tables by tables=[…]"
            )


def _reader(db: SparkDatabase, table: str) -> DataFrameReader:
    return db.spark.read.format(FORMAT).option("url", db.url).option("table", table)


def _loaded(reader: DataFrameReader) -> DataFrame:
    with original_errors():
        frame: DataFrame = reader.load()
    return frame


# Time travel


class MomentOf(NamedTuple):
    """A snapshot, by its `version` and its `timestamp`: it holds exactly what was acknowledged at or before that
    time."""

    version: int
    timestamp: datetime


def moment(db: SparkDatabase, at: datetime) -> MomentOf:
    """Return the snapshot of the first known moment at or after `at`, to read or restore by its version."""
    found = moment_of(db.opened(create=False).deployment, at)
    return MomentOf(found.snapshot_ts - 1, datetime.fromtimestamp(found.wall_ms / 1000, UTC))


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What one `restore` did. `commit_version`: None if the table had no other rows than at that time. `moment`: the
    restored snapshot, if a time was given."""

    commit_version: int | None
    moment: MomentOf | None
    rows_written: int
    rows_deleted: int


def history(db: SparkDatabase, table: str) -> DataFrame:
    """Return the recorded time points at which the table can be read, newest first: `version` (bigint, for
    `versionAsOf`) and `timestamp`.

    Time points belong to the database and are not commits of this table: no list of commits is kept. Between two of
    them the table may have changed often, or not at all.
    """
    conn = db.opened(create=False)
    info = conn.table(table)
    watermark, _ = conn.deployment.leader_state.read_watermarks()
    rows = [
        (point.start_ts, datetime.fromtimestamp(point.wall_ms / 1000, UTC))
        for point in reversed(conn.deployment.leader_state.time_points())
        if snapshot_after(point.start_ts) > max(watermark, info.generation)
    ]
    return db.spark.createDataFrame(rows, "version bigint, timestamp timestamp")


def restore(db: SparkDatabase, table: str, at: int | datetime) -> RestoreResult:
    """Restore the table as of `at` in a separate transaction. For a time the restored `moment` is at or after it:
    nothing acknowledged by that time is undone. Only rows that changed since then are written or deleted; if values
    expire (`ttl_seconds`), all rows. Cells that the table's schema does not name are not restored. `ConflictError` if
    another transaction changed the table meanwhile."""
    at = _checked(at)
    found = moment(db, at) if isinstance(at, datetime) else None
    version = at if isinstance(at, int) else found.version  # type: ignore[union-attr]  # a time has a moment
    past = read(db, table, at=version)
    with db.transaction(conflict_level="table") as tx:
        info = tx.writable(table)
        if info.ttl_seconds is not None:  # the change feed does not report what expired
            written = tx.write(past, table, mode="overwrite", stale_read="allow").rows
            deleted = 0
        else:
            key = [part.name for part in schema_of(info).row_key]
            since = snapshot_after(version)
            changed = changes(db, table, since, tx.start_ts, columns=key).select(*map(quoted, key)).distinct()
            written, deleted = _restore_rows(tx, table, past, changed.persist())
    return RestoreResult(tx.commit_ts, found, written, deleted)


def _restore_rows(tx: SparkTransaction, table: str, past: DataFrame, keys: DataFrame) -> tuple[int, int]:
    """Write the past rows with these keys, and delete the keys without one. Return the number of both."""
    from pyspark.sql import functions as f

    names, key = past.columns, keys.columns
    rows = past.toDF(*(f"c{place}" for place in range(len(names))))
    wanted = keys.toDF(*(f"k{place}" for place in range(len(key))))
    same = [f.col(f"c{names.index(name)}") == f.col(f"k{place}") for place, name in enumerate(key)]
    try:
        written = tx.write(rows.join(wanted, same, "left_semi").toDF(*names), table, stale_read="allow")
        deleted = tx.delete(wanted.join(rows, same, "left_anti").toDF(*key), table, stale_read="allow")
    finally:
        keys.unpersist()
    return written.rows, deleted.rows


def _checked(at: int | datetime) -> int | datetime:
    if isinstance(at, datetime):
        check_time(at)
        return at
    return _version("at", at)


def _version(name: str, given: object) -> int:
    """Return a version, checked; one from a pandas frame, a numpy integer, becomes an int."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise MisuseType(
            f"{name}={given!r} is {type(given).__name__}, not a version (int) or a datetime with a time zone"
        )
    version = operator.index(given)
    if version <= 0:
        raise Misuse(f"{name}={version} is not a valid version: versions are above 0", value=version)
    return version
