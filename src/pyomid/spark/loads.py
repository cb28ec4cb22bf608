"""Lazy frames of tables at one snapshot, present or past, in a transaction or outside; changes, SQL, views, restore.

    db.sql("SELECT dest, count(*) FROM flights JOIN planes USING (tailnum) GROUP BY dest")
    db.read("flights", at=timestamp_or_datetime)
    db.changes("flights", bookmark)
    db.views()
    spark.sql("SELECT dest, count(*) FROM flights JOIN planes USING (tailnum) GROUP BY dest")
    spark.sql("INSERT INTO totals VALUES ('2013-01-01', 842)")

The TSO's retention limits how far back past snapshots reach. Spark plans a view's source once, so a view has one
snapshot, which all views of one call share. An INSERT is a separate transaction; the views do not show its rows until
they are created again.
"""

from __future__ import annotations

import json
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as f

from pyomid.database.change_feed import place
from pyomid.database.open_database import checked_at, snapshot_of
from pyomid.database.upkeep.jobs import chosen_tables
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld
from pyomid.protocol.timestamps import snapshot_after, time_of
from pyomid.rows.row_key import key_layout
from pyomid.rows.schema import column_mapping, names_text, near, row_key_text, schema_of, select_columns
from pyomid.spark.coded_errors import original_errors
from pyomid.spark.connections import Connection
from pyomid.spark.expressions import condition_of, quoted, range_of
from pyomid.spark.frame_schema import struct_of
from pyomid.spark.held_start import HeldStart
from pyomid.spark.sessions import any_case, check_running, parallelism
from pyomid.spark.source.change_rows import base_start, change_ends
from pyomid.spark.source.key_ranges import key_range
from pyomid.spark.source.options import FORMAT, Options, names_of
from pyomid.spark.source.read_task import intersection
from pyomid.types import NO_KEYS, At, Bookmark, KeyRange, TableInfo
from pyomid.types import Column as StoredColumn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from pyomid.spark.database import SparkDatabase
    from pyomid.spark.transactions import SparkTransaction


def read(db: SparkDatabase, table: str, *, at: At | None = None) -> DataFrame:
    """Return a lazy frame of the table at one snapshot. If `at` is None, the frame shows the current rows. A version (a
    timestamp) or a bookmark selects everything committed at or before that position. A timezone-aware datetime selects
    everything acknowledged by then, as in `Database.begin`. Raises `SnapshotTooOld` if the database no longer keeps the
    history since `at`."""
    reader = _reader(db.spark, db.url, table)
    return _loaded(reader if at is None else reader.option("at", _at_text(at)))


def _at_text(at: At) -> str:
    """Return the text of the option `at`. The value is checked here, because an option has no type."""
    found = checked_at(at)
    return found.isoformat() if isinstance(found, datetime) else str(found)


def changes(
    db: SparkDatabase,
    table: str,
    starting: Bookmark | int | datetime,
    ending: Bookmark | int | datetime | None = None,
    *,
    columns: str | Sequence[str] | None = None,
) -> DataFrame:
    """Return the changes that commits made to a table between `starting` and `ending`. If `ending` is None, the range
    ends at the call.

    The frame has the table's columns, then `_change_type` (insert, update_preimage, update_postimage, delete),
    `_commit_version` and `_commit_timestamp`. `starting` and `ending` may each be a bookmark (`db.bookmark`), a version
    or a timezone-aware datetime. A bookmark is exact even if transactions ran while the bookmark was made. If
    `starting` or `ending` is a version, the commit with this version is included, as in Delta. The call fixes the
    range, so commits after the call are not in the frame. Raises `Misuse` if `starting` and `ending` are not a valid
    range for the table, for example because `starting` is after `ending`. Raises `SnapshotTooOld` if the database no
    longer keeps the changes.
    """
    given = _end("starting", starting)
    if ending is not None:
        given |= _end("ending", ending)
    options = {} if columns is None else {"columns": names_text(names_of(columns))}
    conn = db.opened(create=False)
    since, until = _kept_ends(conn, conn.table(table), Options(given))
    options |= {"readChangeFeed": "true", "startingBookmark": str(since), "endingBookmark": str(until)}
    return _loaded(_reader(db.spark, db.url, table).options(**options))


def _kept_ends(conn: Connection, info: TableInfo, options: Options) -> tuple[Bookmark, Bookmark]:
    """Return the positions that these options name now, and keep the changes between them from now on. Raise the errors
    of planning the changes here, because Spark would report them as Java exceptions.

    Spark plans the frame later, perhaps several times: a time that is still in the future would then be another "now".
    """
    with conn.begun() as newest:
        since, until = change_ends(conn, info, options, newest.start_ts)
        HeldStart.position(conn, base_start(since), None).renew(conn)
    return since, Bookmark(until.start_ts - 1)


def _end(name: str, given: Bookmark | int | datetime) -> dict[str, str]:
    """Return the data source option that says where the changes begin or end."""
    if isinstance(given, Bookmark):
        return {f"{name}Bookmark": str(place(given, name))}
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise Misuse(
                f"{name}={given} has no time zone; give a datetime with a time zone (.astimezone() adds the local "
                "zone), a version or a bookmark",
                value=given,
            )
        return {f"{name}Timestamp": given.isoformat()}
    return {f"{name}Version": str(_version(name, given))}


def sql(db: SparkDatabase, statement: str, /, args: Mapping[str, Any] | None = None, **frames: Any) -> Any:
    """Perform one SQL statement and return the result, as `SparkTransaction.sql` does.

    A query returns a lazy frame. The query reads all its tables at one snapshot. After the call, and after each task
    that reads the snapshot, the snapshot stays readable for at least two thirds of `leaseSeconds`. A statement that
    changes data or tables runs in a separate transaction, which is rerun on a conflict, as in `run`.
    """
    from pyomid.spark.sql.statements import Statement

    parsed = Statement(db.spark, statement, args, frames)
    if parsed.is_change:
        return db.run(parsed.perform)
    reads = _LeasedReads(db)
    try:
        return parsed.answer(reads)
    except BaseException:
        reads.end()
        raise


class Reads(ABC):
    """Reads tables at one snapshot of a database, in a Spark session."""

    session: SparkSession
    connection: Connection

    @abstractmethod
    def entered(self, table: str, at: At | None = None) -> tuple[TableInfo, Mapping[str, str]]:
        """Return the table's catalog entry and the options of a read. The options select the snapshot of `at` or, if
        `at` is None, the transaction's snapshot."""

    def read(
        self,
        table: str,
        *,
        at: At | None = None,
        where: Column | str | None = None,
        columns: str | Sequence[str] | None = None,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        schema: StructType | None = None,
        row_key: Sequence[str] | str | None = None,
        mapping: Mapping[str, str | bytes | StoredColumn] | None = None,
        partitions: int | None = None,
    ) -> DataFrame:
        """Return a lazy frame of the table at this transaction's snapshot, including the transaction's own writes to
        the table so far.

        `at` selects another snapshot, as in `SparkDatabase.read`. The frame then lacks the transaction's own writes,
        and stays readable as long as a frame that `SparkDatabase.read` returns.
        `where` is a condition, which Spark applies. If a SQL text compares leading key columns, as in "origin = 'EWR'
        and hour >= 7", the comparisons also limit the range of keys that Spark reads.
        `start` (inclusive), `stop` (exclusive) and `prefix` are values of leading key columns, or raw bytes. A naive
        datetime is interpreted in the session's time zone (`pyomid.spark.source.key_ranges`). Use `schema`, `row_key`
        and `mapping` to read a table without a schema in the catalog. Use the frame before the transaction ends.
        """
        spark, (info, options) = self.session, self.entered(table, at)
        reader = self._reader(info, options, partitions)
        if schema is not None:
            reader = reader.schema(schema)
        if row_key is not None:
            reader = reader.option("rowKey", row_key_text(row_key))
        if mapping is not None:
            reader = reader.option("mapping", _mapping_text(mapping))
        names = None if columns is None else known_columns(spark, info, names_of(columns))
        by_option = names is not None and where is None and schema is None
        if names is not None and by_option:
            reader = reader.option("columns", names_text(names))
        frame = _of_range(reader, info, options, keys_of(spark, info, start, stop, prefix, where))
        what = f"the read of {info.name!r}"
        met = frame if where is None else frame.where(condition_of(frame, where, what, "its condition"))
        return met if names is None or by_option else columns_of(met, names, what)

    # For pyomid's own use

    def read_bounded(self, table: str, where: str | None, name: str | None = None) -> DataFrame:
        """Return the rows of the key range that a condition allows, without applying the condition. `name` is the
        frame's alias; the condition may qualify columns with it."""
        info, options = self.entered(table)
        keys = allowed_keys(self.session, info, where, name)[0]
        frame = _of_range(self._reader(info, options, None), info, options, keys)
        return frame if name is None else frame.alias(name)

    def read_named(self, table: str, name: str | None, where: Column | str | None) -> DataFrame:
        """Return the rows that meet the condition. `name` is the frame's alias; the condition
        and later expressions may qualify columns with it."""
        if name is None or not isinstance(where, str | None):
            return self.read(table, where=where)
        frame = self.read_bounded(table, where, name)
        if where is None:
            return frame
        return frame.where(condition_of(frame, where, f"the read of {table!r}", "its condition"))

    def _reader(self, info: TableInfo, options: Mapping[str, str], partitions: int | None) -> DataFrameReader:
        reader = self.session.read.format(FORMAT).option("table", info.name).options(**options)
        return reader.option("numPartitions", partitions or parallelism(self.session))


class _LeasedReads(Reads):
    """Reads at a start timestamp that is drawn and leased at the first read."""

    def __init__(self, db: SparkDatabase) -> None:
        self.session = db.spark
        self.connection = db.opened(create=False)
        self._held: HeldStart | None = None

    def entered(self, table: str, at: At | None = None) -> tuple[TableInfo, Mapping[str, str]]:
        if at is not None:
            return self.connection.table(table), past_options(self.connection, at)
        if self._held is None:
            self._held = HeldStart.drawn(self.connection).owned(self.connection)
        return self.connection.table(table), snapshot_options(self.connection, self._held.start_ts)

    def end(self) -> None:
        if self._held is not None:
            self._held.end(self.connection)


def views(db: SparkDatabase, tables: str | Sequence[str] | None = None, *, prefix: str = "") -> list[str]:
    """Create or replace a temporary view for each table in `tables`. If `tables` is None, every table with a schema
    gets a view. Return the names of the views; each name is `prefix` followed by the table's name.

    All views read the same snapshot. After the call, and after each task that reads a view, the snapshot stays readable
    for at least two thirds of `leaseSeconds`. Reads after this time raise `SnapshotTooOld`; then call `views` again.
    """
    conn = db.opened(create=False)
    infos = chosen_tables(conn.deployment.catalog, tables)
    names = {info.name: prefix + info.name for info in infos if tables is not None or info.schema is not None}
    _check_distinct(list(names.values()))
    held = HeldStart.drawn(conn).owned(conn)  # leased before the loads, which run in other processes and may start late
    try:
        for table, view in names.items():
            # Spark fills the columns that an INSERT does not name with nulls: a null keeps the stored value, as in
            # `SparkDatabase.sql`.
            reader = (
                _reader(db.spark, db.url, table)
                .options(_view="true", nulls="keep")
                .options(**snapshot_options(conn, held.start_ts))
            )
            _loaded(reader).createOrReplaceTempView(quoted(view))
    except BaseException:
        held.end(conn)
        raise
    return list(names.values())


def _check_distinct(views: Sequence[str]) -> None:
    """Raise `Misuse` if the names of two views differ only by case, because Spark ignores case in them."""
    known: dict[str, str] = {}
    for view in views:
        other = known.setdefault(view.lower(), view)
        if other != view:
            raise Misuse(
                f"the names of views {other!r} and {view!r} differ only by case, which Spark ignores; name only one of "
                "the tables in tables=[…]"
            )


def _reader(spark: SparkSession, url: str, table: str) -> DataFrameReader:
    check_running(spark)
    return spark.read.format(FORMAT).option("url", url).option("table", table)


def _of_range(reader: DataFrameReader, info: TableInfo, options: Mapping[str, str], keys: KeyRange) -> DataFrame:
    frame = _loaded(reader.options(**dict(_bounds(keys))))
    return frame.alias(_read_text(info.name, keys, options))


def _loaded(reader: DataFrameReader) -> DataFrame:
    with original_errors():
        frame: DataFrame = reader.load()
    return frame


# Frames of a snapshot


def snapshot_options(conn: Connection, start_ts: int) -> dict[str, str]:
    """Return the options of a read at a start timestamp that is leased already."""
    return {"url": conn.url, "_snapshotVersion": str(start_ts), "_snapshotDatabase": conn.database_id.hex()}


def past_options(conn: Connection, at: At) -> dict[str, str]:
    """Return the options of a read at the snapshot of `at`, which the load leases."""
    return {"url": conn.url, "at": _at_text(at), "_snapshotDatabase": conn.database_id.hex()}


def known_columns(spark: SparkSession, info: TableInfo, names: Sequence[str]) -> Sequence[str]:
    """Return the table's columns with these names, under the session's rule for case; the names unchanged if the table
    has no schema."""
    if info.schema is None:
        return names
    return select_columns(info.name, info.schema, names, any_case=any_case(spark))


def keys_of(
    spark: SparkSession, info: TableInfo, start: Any, stop: Any, prefix: Any, where: Column | str | None = None
) -> KeyRange:
    """Return the range of keys that the bounds and the condition of a read allow."""
    layout, found = None if info.schema is None else key_layout(info.schema), KeyRange()
    if not (start is None and stop is None and prefix is None):
        zone = spark.conf.get("spark.sql.session.timeZone")
        found = key_range(layout, start, stop, prefix, session_zone=zone)
    return intersection(found, allowed_keys(spark, info, where)[0]) or NO_KEYS


def allowed_keys(
    spark: SparkSession, info: TableInfo, where: Column | str | None, name: str | None = None
) -> tuple[KeyRange, bool]:
    """Return a key range with all rows that may meet the condition, and whether every row in the range meets it.
    `name`: the alias that may qualify columns in the condition."""
    if info.schema is None or not isinstance(where, str):
        return KeyRange(), where is None
    empty = spark.createDataFrame([], struct_of(info.schema, [each.name for each in info.schema.columns]))
    return range_of(empty if name is None else empty.alias(name), key_layout(info.schema), where, name)


def _read_text(table: str, keys: KeyRange, options: Mapping[str, str]) -> str:
    """Return the name that `explain(True)` shows for a read; the physical plan shows only "omid"."""
    bounds = "".join(f" {name}={key}" for name, key in _bounds(keys))
    snapshot = f"at={options['at']}" if "at" in options else f"version={options['_snapshotVersion']}"
    return f"omid {table}{bounds} {snapshot}"


def columns_of(frame: DataFrame, names: Sequence[str], what: str) -> DataFrame:
    """Return the frame's columns with exactly these names."""
    every = frame.columns
    for name in names:
        if name not in every:
            raise Misuse(f"{what}: the table has no column {name!r}{near(name, every)}", column=name)
    return placed(frame, len(every), [every.index(name) for name in names]).toDF(*names)


def placed(frame: DataFrame, width: int, places: Sequence[int]) -> DataFrame:
    """Return the columns at these positions of the frame's `width`, as c0, c1, …. Spark cannot resolve a name with
    a dot, or one of two names that differ only by case."""
    numbered = frame.toDF(*(f"c{place}" for place in range(width)))
    return numbered.select(*(f"c{place}" for place in places))


def _bounds(keys: KeyRange) -> Iterator[tuple[str, str]]:
    if keys.start:
        yield "rowStart", f"0x{keys.start.hex()}"
    if keys.stop is not None:
        yield "rowStop", f"0x{keys.stop.hex()}"


def _mapping_text(mapping: Mapping[str, str | bytes | StoredColumn]) -> str:
    given = column_mapping(mapping)
    places = {name: str(column) for name, column in given.items()}
    read_back = column_mapping(places)
    for name, column in given.items():
        if read_back[name] != column:
            raise Misuse(
                f"column {name!r} is mapped to {column}, which is not UTF-8; read the table with pyomid.connect"
            )
    return json.dumps(places)


# Time travel


class MomentOf(NamedTuple):
    """The `version` and `timestamp` of a snapshot. The snapshot holds exactly the commits that were acknowledged at or
    before `timestamp`."""

    version: int
    timestamp: datetime


def moment(db: SparkDatabase, at: At) -> MomentOf:
    """Return the version and time of the snapshot that `at` selects; `read` and `restore` accept this version. A time
    in the future counts as now."""
    conn, past = db.opened(create=False), checked_at(at)
    with conn.begun(at=past) as newest:
        version = snapshot_of(conn.deployment, past, newest.start_ts) - 1
    return MomentOf(version, time_of(version))


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of one `restore`. `commit_version` is None if the restore wrote nothing. `moment` is the restored snapshot
    if the caller gave a time, and otherwise None."""

    commit_version: int | None
    moment: MomentOf | None
    rows_written: int
    rows_deleted: int


def history(db: SparkDatabase, table: str) -> DataFrame:
    """Return the commits that changed rows of the table, newest first. Each row of the frame has the `version` and
    `timestamp` of one commit, and the numbers of rows that the commit `inserted`, `updated` and `deleted`.

    The frame goes back to the table's creation, or as far back as `retention` keeps history. Without `retention`, the
    database keeps only some seconds of history. The frame is lazy and reads the table's changes. To read the table as
    it was right after a commit, call `db.read(table, at=version)`.
    """
    conn = db.opened(create=False)
    info = conn.table(table)
    key = [part.name for part in schema_of(info).row_key]
    made = changes(db, table, _oldest_place(conn, info), columns=key)

    def count(kind: str) -> Column:
        return f.count_if(f.col("_change_type") == kind)

    by_commit = made.groupBy(f.col("_commit_version").alias("version"), f.col("_commit_timestamp").alias("timestamp"))
    counted = by_commit.agg(
        count("insert").alias("inserted"), count("update_postimage").alias("updated"), count("delete").alias("deleted")
    )
    return counted.orderBy(f.desc("version"))


def _oldest_place(conn: Connection, info: TableInfo) -> Bookmark:
    """Return the position before the oldest kept changes of the table, under a lease that loads share."""
    while True:
        watermark, _ = conn.deployment.leader_state.read_watermarks()
        place = Bookmark(max(base_start(Bookmark(watermark + 1)) - 1, info.generation))
        try:
            if conn.has_leases:
                conn.share_lease(base_start(place), None)
        except SnapshotTooOld:  # W has moved since it was read
            continue
        return place


SENT_KEYS_MAX: Final = 500_000
"""If at most this many rows changed, a restore sends their keys to every task; else Spark shuffles the table by key."""


def restore(db: SparkDatabase, table: str, at: At) -> RestoreResult:
    """Restore the table to its state as of `at`, in a separate transaction. If `at` is a time, the restored snapshot
    contains every commit that was acknowledged by then. The restore rewrites only rows that changed after `at`, or
    every row if the table has a time to live. Cells in columns outside the table's schema are not restored. Raises
    `ConflictError` if another transaction changed the table during the restore."""
    past = checked_at(at)
    found = moment(db, past) if isinstance(past, datetime) else None
    version = past if isinstance(past, int) else found.version  # type: ignore[union-attr]  # a time has a moment
    before = read(db, table, at=version)
    with db.begin(conflict_level="table") as tx:
        info = tx.writable(table)
        if info.ttl_seconds is not None:  # the change feed does not report expired values
            written = tx.write(before, table, mode="overwrite", stale_read="allow").rows
            deleted = 0
        else:
            key = [part.name for part in schema_of(info).row_key]
            since = snapshot_after(version)
            changed = changes(db, table, since, tx.start_ts, columns=key).select(*map(quoted, key)).distinct()
            written, deleted = _restore_rows(tx, table, before, changed.persist())
    return RestoreResult(tx.commit_ts, found, written, deleted)


def _restore_rows(tx: SparkTransaction, table: str, past: DataFrame, keys: DataFrame) -> tuple[int, int]:
    """Write the past rows with these keys, and delete the rows whose keys have no past row. Return the numbers of
    written and of deleted rows. `keys` must be persisted."""
    names, key = past.columns, keys.columns
    wanted = keys.toDF(*(f"k{place}" for place in range(len(key))))
    same = [f.col(f"c{names.index(name)}") == f.col(f"k{place}") for place, name in enumerate(key)]
    try:
        count = keys.count()
        if not count:
            return 0, 0
        sent = f.broadcast(wanted) if count <= SENT_KEYS_MAX else wanted
        rows = past.toDF(*(f"c{place}" for place in range(len(names)))).join(sent, same, "left_semi")
        gone = wanted.join(rows.select(*(f"c{names.index(name)}" for name in key)), same, "left_anti")
        written = tx.write(rows.toDF(*names), table, stale_read="allow")
        deleted = tx.delete(gone.toDF(*key), table, stale_read="allow")
    finally:
        keys.unpersist()
    return written.rows, deleted.rows


def _version(name: str, given: object) -> int:
    """Validate a version and return it as an int (pandas hands over numpy integers)."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise MisuseType(
            f"{name}={given!r} has type {type(given).__name__}; give a bookmark, a version (int) or a datetime with a "
            "time zone"
        )
    version = operator.index(given)
    if version <= 0:
        raise Misuse(f"{name}={version} is not a valid version; versions are above 0", value=version)
    return version
