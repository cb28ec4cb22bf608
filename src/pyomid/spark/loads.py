"""Lazy frames of tables at one snapshot, now or past, in a transaction or outside one; changes, SQL, views, restore.

    db.sql("SELECT dest, count(*) FROM flights JOIN planes USING (tailnum) GROUP BY dest")
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

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyomid.client.change_feed import place
from pyomid.client.past_snapshot import check_time, moment_of
from pyomid.client.upkeep.partitions import chosen_tables
from pyomid.errors import Misuse, MisuseType
from pyomid.protocol.time_points import snapshot_after
from pyomid.row_codec.row_key import key_layout
from pyomid.row_codec.schema import column_mapping, names_text, near, row_key_text, select_columns
from pyomid.spark.coded_errors import original_errors
from pyomid.spark.connections import Connection
from pyomid.spark.expressions import quoted
from pyomid.spark.frame_schema import struct_of
from pyomid.spark.held_start import HeldStart
from pyomid.spark.sessions import any_case, parallelism
from pyomid.spark.source.change_rows import place_text
from pyomid.spark.source.key_ranges import key_range
from pyomid.spark.source.options import FORMAT, names_of
from pyomid.spark.source.read_task import intersection
from pyomid.types import Bookmark, KeyRange, TableInfo
from pyomid.types import Column as StoredColumn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from pyomid.spark.database import SparkDatabase


def read(db: SparkDatabase, table: str, *, at: int | datetime | None = None) -> DataFrame:
    """Return a lazy frame of the table at one snapshot. `at`: None for now; a timestamp for everything committed at or
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
    starting: Bookmark | int,
    ending: Bookmark | int | None = None,
    *,
    columns: str | Sequence[str] | None = None,
) -> DataFrame:
    """Return the changes that commits after `starting`, up to and including `ending` (None: now), made to a table.

    Columns: the table's, then `_change_type` (insert, update_preimage, update_postimage, delete), `_commit_version`
    and `_commit_timestamp`. Both ends are exact, even if transactions ran at that time. `starting` and `ending` are
    bookmarks (`db.bookmark`) or timestamps. `SnapshotTooOld` if the changes are no longer kept.
    """
    reader = _reader(db, table).option("readChangeFeed", "true")
    reader = reader.option("starting", place_text(place(starting, "starting")))
    if ending is not None:
        reader = reader.option("ending", place_text(place(ending, "ending")))
    if columns is not None:
        reader = reader.option("columns", names_text(names_of(columns)))
    return _loaded(reader)


def sql(db: SparkDatabase, statement: str, /, args: Mapping[str, Any] | None = None, **frames: Any) -> Any:
    """Perform one SQL statement, as `SparkTransaction.sql`.

    A query, lazily evaluated, reads all its tables at one snapshot, which is kept for `leaseSeconds` after the call and
    after the last task that read it. A change is a transaction of its own and is performed again on conflict, as by
    `run`.
    """
    from pyomid.spark.statements import Statement

    parsed = Statement(statement, args, frames)
    if parsed.is_change:
        return db.run(parsed.perform)
    reads = _LeasedReads(db)
    try:
        return parsed.answer(reads)
    except BaseException:
        reads.end()
        raise


class Reads(Protocol):
    """Where a query reads its tables: one snapshot of a database, in a session."""

    @property
    def session(self) -> SparkSession: ...

    @property
    def connection(self) -> Connection: ...

    def read(self, table: str, *, where: str | None = None) -> DataFrame: ...


class _LeasedReads:
    """Reads at a start that is leased at the first read."""

    def __init__(self, db: SparkDatabase) -> None:
        self.session = db.spark
        self.connection = db.opened(create=False)
        self._held: HeldStart | None = None

    def read(self, table: str, *, where: str | None = None) -> DataFrame:
        if self._held is None:
            self._held = HeldStart.drawn(self.connection).owned(self.connection)
        at = snapshot_options(self.connection, self._held.start_ts)
        return table_frame(self.session, self.connection.table(table), at, where=where)

    def end(self) -> None:
        if self._held is not None:
            self._held.end(self.connection)


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
            reader = _reader(db, table).option("view", "true").options(**snapshot_options(conn, held.start_ts))
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


# Frames of a snapshot


def snapshot_options(conn: Connection, start_ts: int) -> dict[str, str]:
    """Return the options of a read at a start that is leased already."""
    return {"url": conn.url, "snapshotTimestamp": str(start_ts), "snapshotDatabase": conn.database_id.hex()}


def table_frame(
    spark: SparkSession,
    info: TableInfo,
    at: Mapping[str, str],
    *,
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
    """Return a lazy frame of a table at the snapshot of the options `at`; the others are `SparkTransaction.read`'s."""
    reader = spark.read.format(FORMAT).option("table", info.name).options(**at)
    reader = reader.option("numPartitions", partitions or parallelism(spark))
    if schema is not None:
        reader = reader.schema(schema)
    if row_key is not None:
        reader = reader.option("rowKey", row_key_text(row_key))
    if mapping is not None:
        reader = reader.option("columnMapping", _mapping_text(mapping))
    names = None if columns is None else known_columns(spark, info, names_of(columns))
    by_option = names is not None and where is None and schema is None
    if names is not None and by_option:
        reader = reader.option("columns", names_text(names))
    keys = keys_of(spark, info, start, stop, prefix, where)
    reader = reader.options(**dict(_bounds(keys)))
    frame, what = (
        _loaded(reader).alias(_read_text(info.name, keys, at["snapshotTimestamp"])),
        f"the read of {info.name!r}",
    )
    met = frame if where is None else _meeting(frame, where, what)
    return met if names is None or by_option else columns_of(met, names, what)


def known_columns(spark: SparkSession, info: TableInfo, names: Sequence[str]) -> Sequence[str]:
    """Return the table's columns of these names, with the session's rule for case; the names themselves if the table
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
    if layout is None or info.schema is None or not isinstance(where, str):
        return found
    from pyomid.spark.expressions import range_of

    empty = spark.createDataFrame([], struct_of(info.schema, [each.name for each in info.schema.columns]))
    return intersection(found, range_of(empty, layout, where)) or found


def _read_text(table: str, keys: KeyRange, start_ts: str) -> str:
    """Return the name of a read in `explain(True)`; the physical plan shows only "omid"."""
    bounds = "".join(f" {name}={key}" for name, key in _bounds(keys))
    return f"omid {table}{bounds} snapshotTimestamp={start_ts}"


def _meeting(rows: DataFrame, where: Column | str, what: str) -> DataFrame:
    """Return the rows that meet a condition. `Misuse` if Spark cannot resolve it."""
    from pyomid.spark.expressions import expression, resolved

    condition = expression(where, what)
    (kind,) = resolved(rows, {"its condition": condition}, what)
    if kind.typeName() != "boolean":
        raise MisuseType(f"{what}: its condition has type {kind.simpleString()}, not boolean")
    return rows.where(condition)


def columns_of(frame: DataFrame, names: Sequence[str], what: str) -> DataFrame:
    """Return the frame's columns with exactly these names."""
    every = frame.columns
    for name in names:
        if name not in every:
            raise Misuse(f"{what}: there is no column {name!r}{near(name, every)}", column=name)
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
            raise Misuse(f"columnMapping of {name!r} is {column}, which is not UTF-8: read the table by pyomid.connect")
    return json.dumps(places)


# Time travel


class MomentOf(NamedTuple):
    """A snapshot, by its `version` and its `time`: it holds exactly what was acknowledged at or before that time."""

    version: int
    time: datetime


def moment(db: SparkDatabase, at: datetime) -> MomentOf:
    """Return the snapshot of the first known moment at or after `at`, to read or restore by its version."""
    found = moment_of(db.opened(create=False).deployment, at)
    return MomentOf(found.snapshot_ts - 1, datetime.fromtimestamp(found.wall_ms / 1000, UTC))


class RestoreCommit(int):
    """The commit timestamp of a restore, with the `moment` that it restored; None if `at` was a version."""

    moment: MomentOf | None = None


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


def restore(db: SparkDatabase, table: str, at: int | datetime) -> RestoreCommit | None:
    """Restore the table as of `at` in a separate transaction; return its commit timestamp with the restored `moment`.
    If `at` is a time, that moment is at or after it: nothing acknowledged by then is undone. All rows are rewritten;
    cells that the table's schema does not name are not restored. `ConflictError` if another transaction changed the
    table meanwhile."""
    at = _checked(at)
    found = moment(db, at) if isinstance(at, datetime) else None
    with db.transaction() as tx:
        frame = read(db, table, at=at if found is None else found.version)
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
