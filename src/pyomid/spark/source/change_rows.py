"""The change feed as rows of a frame, which has a table's columns and the three columns of Delta's change feed.

    _change_type         insert, update_preimage, update_postimage or delete
    _commit_version      the commit's timestamp
    _commit_timestamp    the time when the commit was decided: its version as a time

`protocol.changes` defines the changes; a batch read and a stream plan the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyomid.cells import batch_of_records
from pyomid.database.change_feed import ChangeScan, check_order, end_of, in_life, place
from pyomid.database.open_database import LATE_UNSURE_NS, check_times, clock_late_ns, snapshot_of
from pyomid.errors import Misuse
from pyomid.protocol.changes import Change, check_kept
from pyomid.protocol.reading import Snapshot, VisibleRow
from pyomid.protocol.timestamps import NS_PER_US, ns_of
from pyomid.rows.decode import RowDecoder
from pyomid.spark.connections import Connection, TaskUrl
from pyomid.spark.frame_schema import struct_of_types
from pyomid.spark.held_start import HeldStart
from pyomid.spark.source.options import ENDING, STARTING, Options
from pyomid.spark.source.read_task import decoded_batch
from pyomid.types import (
    TIMESTAMP_MAX,
    TIMESTAMP_STEP,
    Bookmark,
    KeyRange,
    LifeOf,
    TableInfo,
    TableSchema,
    life_of,
    start_of,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CHANGE_COLUMNS: Final = {"_change_type": "string", "_commit_version": "long", "_commit_timestamp": "timestamp"}


@dataclass(frozen=True, slots=True)
class ChangesPlan:
    """The part of a plan to read changes that all its tasks share."""

    url: TaskUrl
    table: LifeOf
    schema: TableSchema
    wanted: tuple[str, ...]
    since: Bookmark
    until: Snapshot
    held: HeldStart
    """`base_start` of `since` or an older start timestamp; tasks renew its lease."""


def starting_of(options: Options) -> Bookmark | datetime | None:
    """Return where the options let changes begin: after a position, or at a time (`starting_place`)."""
    name = options.only_one(*STARTING)
    if name == "startingVersion":
        return Bookmark((options.whole(name, least=1) or 1) - 1)
    return options.time(name) if name == "startingTimestamp" else _bookmark(options, name)


def starting_place(conn: Connection, starting: Bookmark | datetime, latest: int = TIMESTAMP_MAX) -> Bookmark:
    """Return the position after which changes begin. If `starting` is a time, every commit whose `_commit_timestamp` is
    at or after it follows the position, by the TSO's clock (`clock_late_ns`). A time in the future counts as now, or as
    `latest`, a start timestamp that was drawn before."""
    if isinstance(starting, Bookmark):
        return starting
    with conn.begun(at=starting) as newest:
        check_times(conn.deployment, newest.start_ts, starting, "startingTimestamp")
        late_ns = clock_late_ns(starting, newest.start_ts, "startingTimestamp")
        since_ns = ns_of(starting) + max(0, late_ns - LATE_UNSURE_NS)
        return Bookmark(min(since_ns, newest.start_ts, latest) - 1)


def base_start(since: Bookmark) -> int:
    """Return the start timestamp whose snapshot is the state before the changes; a lease on it keeps the changes."""
    return start_of(since.start_ts + TIMESTAMP_STEP - 1)


def ending_of(conn: Connection, options: Options) -> Bookmark | None:
    """Return the position at which the options let changes end; None if they give no end."""
    name = options.only_one(*ENDING)
    if name == "endingVersion":
        return Bookmark(options.whole(name, least=1) or 1)
    at = options.time("endingTimestamp")
    if at is None:
        return _bookmark(options, name)
    with conn.begun(at=at) as newest:
        return Bookmark(snapshot_of(conn.deployment, at, newest.start_ts, "endingTimestamp") - 1)


def _bookmark(options: Options, name: str | None) -> Bookmark | None:
    text = None if name is None else options.text(name)
    if text is None:
        return None
    found = Bookmark.of_text(text)
    if found is None:
        raise Misuse(f"option {name}={text!r} is not a bookmark; give str(db.bookmark(…))", option=name)
    return place(found, f"option {name}")


def with_change_columns(info: TableInfo, struct: StructType) -> StructType:
    """Return the schema with the feed's own columns. Raises `Misuse` if the table has a column with one of their
    names."""
    from pyspark.sql.types import StructType

    for name in struct.names:
        if name.lower() in CHANGE_COLUMNS:
            raise Misuse(
                f"table {info.name!r} has a column {name!r}, but the change feed reserves this name; rename the column"
            )
    return StructType([*struct.fields, *struct_of_types(CHANGE_COLUMNS).fields])


def table_columns(struct: StructType) -> StructType:
    """Return a reader's schema without the change feed's own columns."""
    from pyspark.sql.types import StructType

    return StructType([field for field in struct.fields if field.name not in CHANGE_COLUMNS])


def change_ends(conn: Connection, info: TableInfo, options: Options, latest_ts: int) -> tuple[Bookmark, Snapshot]:
    """Return the position after which the options let changes of the table begin, and the snapshot that ends them.
    `latest_ts`: a start timestamp that was drawn before; without an end, changes end there. Raises `Misuse` if the
    table has no such changes, and `SnapshotTooOld` if they are no longer kept."""
    starting = starting_of(options)
    if starting is None:
        raise Misuse(f"a read of changes needs a starting point; give one of the options {', '.join(STARTING)}")
    since = starting_place(conn, starting, latest_ts)
    until = until_of(conn, since, ending_of(conn, options) or latest_ts, options)
    since = conn.driver.run(in_life(info, since, until, options.shown(*STARTING)))
    conn.driver.run(check_kept(life_of(info), since, until))
    return since, until


def until_of(conn: Connection, since: Bookmark, ending: Bookmark | int, options: Options | None = None) -> Snapshot:
    """Return the snapshot that ends a read of changes after `since`. `options`: where the two ends come from, for the
    error."""
    until = conn.driver.run(end_of(ending))
    given = ("", "") if options is None else (options.shown(*STARTING), options.shown(*ENDING))
    check_order(since, until, *given)
    return until


def read_changes(
    conn: Connection, plan: ChangesPlan, key_range: KeyRange, arrow: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a range, in no particular order."""
    of_table = pa.schema([field for field in arrow if field.name not in CHANGE_COLUMNS])
    decoder = RowDecoder(plan.table.name, plan.schema, plan.wanted, of_table)
    plan.held.renew(conn)
    scan = ChangeScan(conn.deployment, plan.table, key_range, plan.since, plan.until, conn.cache)
    while (found := conn.driver.run(scan.next_batch())) is not None:
        plan.held.renew(conn)
        if found.inserts is not None and len(found.inserts.commits):
            decoded = decoder.decode(found.inserts.batch, found.inserts.seen)
            kinds = pa.repeat("insert", len(found.inserts.commits))
            yield _with_commits(decoded, kinds, found.inserts.commits, arrow)
        if found.others:
            yield _with_commits(*_decoded(decoder, found.others), arrow)


def _decoded(decoder: RowDecoder, changes: Sequence[Change]) -> tuple[pa.RecordBatch, pa.Array, NDArray[np.int64]]:
    """Return the changes as rows, with the change type and the commit of each row."""
    kinds: list[str] = []
    commits: list[int] = []
    keys: list[bytes] = []
    cells: list[VisibleRow] = []
    for change in changes:
        for kind, row in _images(change):
            kinds.append(kind)
            commits.append(change.commit_ts)
            keys.append(change.row)
            # if no wanted column has a cell, keep all cells: one of them shows that the row exists
            cells.append({column: row[column] for column in row.keys() & decoder.columns} or row)
    rows = decoded_batch(decoder, batch_of_records(keys, cells))
    return rows, pa.array(kinds, pa.string()), np.array(commits, np.int64)


def _with_commits(
    rows: pa.RecordBatch, kinds: pa.Array, commits: NDArray[np.int64], arrow: pa.Schema
) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns["_change_type"] = kinds
    columns["_commit_version"] = pa.array(commits, pa.int64())
    columns["_commit_timestamp"] = pa.array(commits // NS_PER_US, pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays(
        [columns[name].cast(arrow.field(name).type) for name in arrow.names], schema=arrow
    )


def _images(change: Change) -> Iterator[tuple[str, VisibleRow]]:
    if not change.before:
        yield "insert", change.after
    elif not change.after:
        yield "delete", change.before
    else:
        yield "update_preimage", change.before
        yield "update_postimage", change.after
