"""`readStream.format("omid")`: a streaming query over the change feed.

    offset   {"table", "generation", "database", "start", "watermark", …}: a `Place`, durable in Spark's checkpoint

    initialOffset  a bookmark: where a new query begins. Spark does not store it and asks again if it redelivers the
                   first batch; so that batch's end offset also holds its beginning
    latestOffset   a new bookmark, leased before it is returned        F4: the changes after a checkpoint are kept …
    reportLatestOffset  the place up to which the last check saw; Spark derives the query's lag from it
    partitions     the changes between two bookmarks; the same whenever Spark asks again
    commit         Spark has recorded the batch as done, so leases below it end    … until the next one is recorded

A query owns leases only on start timestamps ("starts") that it drew itself: a lease has one owner, but a limited batch
ends at a commit, where batches of other queries may end too. For such a place the query keeps the lease on its own
newest start below the place:

    own start 100 ── commit 150, place ── commit 170, place ── own start 200 ── commit 210, place
                     leased: 100          leased: 100                           leased: 200, drawn at the first place

Leases last for `bookmarkSeconds`, the time for which a query may be stopped. While the query runs, the process that
plans its batches renews them, however long a batch takes; tasks renew the leases that they read under. If nothing
changes, the query still moves its bookmark, every quarter of that time but at most after a minute, so that an idle
table does not hold W. Between two such moves it reports at least once that there is no new data, because
`processAllAvailable` waits for that and a check may take long.

The query checks for changes at most once a second; after a check that finds none it waits ten times as long as the
check took. Spark waits meanwhile: each reply comes from a check made after Spark's request.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyomid.crashpoints import crash_point
from pyomid.database.change_feed import ChangeScan, draw_bookmark, in_life
from pyomid.database.lease_keeper import Lease
from pyomid.database.validation import open_table
from pyomid.errors import Misuse
from pyomid.protocol.timestamps import time_of
from pyomid.spark.coded_errors import coded_errors
from pyomid.spark.connections import Connection, connection
from pyomid.spark.frame_schema import arrow_of
from pyomid.spark.held_start import HeldStart
from pyomid.spark.source.change_rows import (
    ChangesPlan,
    base_start,
    read_changes,
    starting_place,
    until_of,
)
from pyomid.spark.source.read_task import divided
from pyomid.types import Bookmark, KeyRange, TableInfo, TableSchema, life_of

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsAvailableNow
except ImportError:  # PySpark 4.1 has no read limits for Python sources

    class SupportsAvailableNow:  # type: ignore[no-redef]
        """Placeholder for PySpark 4.1, which runs the trigger availableNow as one batch."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]

HAS_READ_LIMITS: Final = ReadMaxRows is not None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BOOKMARK_S: Final = 3600.0
POLL_S: Final = 1.0
LOOK_SHARE: Final = 10
REST_S_MAX: Final = 60.0
OFFSET: Final = {"table", "generation", "database", "start", "watermark", "leased", "own"}
FORMER: Final = {"noted", "time"}
"""Keys that earlier versions of pyomid wrote into offsets."""
BEGAN: Final = "began"
"""Key in the end offset of a query's first batch; its value is the place where that batch began."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The options of a stream: the table and columns that it reads, and how it reads them."""

    url: str
    table: str
    database_id: bytes
    schema: TableSchema
    wanted: tuple[str, ...]
    key_range: KeyRange
    partitions: int
    starting: Bookmark | datetime | None
    """The place where a new query begins; None for now."""
    bookmark_s: float
    max_rows: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a query in the change feed."""

    mark: Bookmark
    leased_ts: int
    """The start timestamp that the lease is on: `base_start` of the mark, or an older start timestamp."""
    is_own: bool
    """Whether this query drew `leased_ts` itself. If not, it belongs to the caller's bookmark, and only the caller ends
    its lease."""
    began: Place | None = None
    """The place where the query's first batch began; set only if that batch ends here."""

    @property
    def start_ts(self) -> int:
        return self.mark.start_ts


class Backlog:
    """The number of rows that each commit between one place and `latest` changed. A query with a limit counts them
    once, and reaches `latest` in many batches."""

    def __init__(self, above: int, latest: Bookmark, rows: Mapping[int, int]) -> None:
        """`rows`: commit timestamp → number of rows that the commit changed."""
        self.above = above
        self.latest = latest
        self._commits = sorted(rows)
        self._totals = [0, *accumulate(rows[commit_ts] for commit_ts in self._commits)]

    def place(self, start: Bookmark, rows_max: int) -> Bookmark | None:
        """Return the last commit up to which at most `rows_max` rows changed after `start`, but at least the first
        commit; None if nothing changed after `start`."""
        first = bisect_right(self._commits, start.start_ts)
        if first == len(self._commits):
            return None
        last = max(first, bisect_right(self._totals, self._totals[first] + rows_max) - 2)
        return self.latest if last == len(self._commits) - 1 else Bookmark(self._commits[last], start.watermark)

    def rows_after(self, start_ts: int) -> int:
        """Return how many rows changed after this start timestamp."""
        return self._totals[-1] - self._totals[bisect_right(self._commits, start_ts)]


@dataclass
class ChangesPartition(InputPartition):
    """One task's part of a batch."""

    changes: ChangesPlan
    key_range: KeyRange


class OmidStreamReader(DataSourceStreamReader, SupportsAvailableNow):
    """One query's reader of the change feed. Spark creates one reader that plans, and others that only read."""

    def __init__(self, plan: StreamPlan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema
        self._held: dict[int, Lease] = {}
        """Leases of this query's places, by start timestamp. They are renewed until the query ends them or stops."""
        self._drawn_ts = 0
        """A start timestamp that this query drew; it is leased as soon as a place lies above it."""
        self._latest: Place | None = None
        self._initial: Place | None = None
        self._next_check_s = self._moved_s = 0.0
        self._is_reported = False
        """Whether the query has reported "no new data" since its place last moved."""
        self._backlog: Backlog | None = None
        self._newest: tuple[int, int] | None = None
        """The newest place at which the last check found a change, or the query's own place; and how many rows changed
        after the batch that the check returned."""
        self._last: Bookmark | None = None
        """The place where a query with the trigger availableNow ends."""

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        with coded_errors():
            if self._initial is None:
                self._initial = self._latest = self._first_place(self._connection())
            return self._offset(self._initial)

    def _first_place(self, conn: Connection) -> Place:
        if self._plan.starting is None:
            return self._begun(conn)
        given = starting_place(conn, self._plan.starting)
        given = conn.driver.run(in_life(self._info(conn), given))
        place = Place(given, base_start(given), is_own=False)
        self._keep(conn, place)
        return place

    def latestOffset(self, *given: Any) -> dict[str, Any]:
        """Return the end of the next batch. `given`: (start, limit) from Spark 4.2 on, empty in earlier versions."""
        with coded_errors():
            conn = self._connection()
            start = self._read_offset(conn, given[0]) if given else self._latest
            limit = given[1] if given else None
            if start is None:  # a restarted query: Spark has not passed its position yet
                return self._offset(self._begun(conn))
            return self._offset(self._latest_place(conn, start, limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the place up to which the last check found changes; Spark reports it in the query's progress as
        `latestOffset`. A query that has read all changes is at that place, even on an idle table."""
        if self._newest is None:
            return None
        start_ts, rows = self._newest
        moment = time_of(start_ts)
        time_text = None if moment is None else moment.isoformat()
        return {"table": self._plan.table, "start": start_ts, "time": time_text, "rowsBehind": rows}

    def getDefaultReadLimit(self) -> Any:
        return ReadAllAvailable() if self._plan.max_rows is None else ReadMaxRows(self._plan.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        with coded_errors():
            self._last = self._bookmark(self._connection())

    def _latest_place(self, conn: Connection, start: Place, limit: Any) -> Place:
        """Return the place where the next batch ends; `start` itself if nothing changed."""
        held = self._held.get(start.leased_ts)
        if held is None or held.lost is not None:
            self._keep(conn, start)
        rows = limit.max_rows if HAS_READ_LIMITS and isinstance(limit, ReadMaxRows) else None
        counted = None if rows is None else self._counted(start.mark, rows)
        if counted is not None:
            mark, latest = counted
            self._moved_s = time.monotonic()
            self._note_newest(mark, latest)
            return self._kept_place(conn, mark, start, latest)
        if self._last is None:  # wait instead of reporting no new data: `processAllAvailable` would end too early
            time.sleep(max(0.0, min(self._next_check_s - time.monotonic(), REST_S_MAX)))
        now_s = time.monotonic()
        latest = self._last or self._bookmark(conn, keep=False)
        if latest.start_ts <= start.start_ts:
            self._note_newest(start.mark, start.mark)
            return start
        found = self._place_with(conn, start.mark, latest, rows)
        took_s = time.monotonic() - now_s
        self._next_check_s = time.monotonic() + (POLL_S if found is not None else max(POLL_S, LOOK_SHARE * took_s))
        if found is None:
            rest_s = min(REST_S_MAX, self._plan.bookmark_s / 4)
            if self._last is None and not (self._is_reported and now_s - self._moved_s >= rest_s):
                self._is_reported = True
                self._note_newest(start.mark, start.mark)
                return start
        elif rows is not None:
            self._next_check_s = 0.0
        self._note_newest(found or latest, latest)
        self._moved_s, self._is_reported = now_s, False
        return self._kept_place(conn, found or latest, start, latest)

    def _note_newest(self, mark: Bookmark, latest: Bookmark) -> None:
        """Note the place and the row count to report after a batch that ends at `mark`."""
        backlog = self._backlog
        rows = 0 if backlog is None or mark == latest else backlog.rows_after(mark.start_ts)
        self._newest = (latest.start_ts, rows)

    def _counted(self, start: Bookmark, rows: int) -> tuple[Bookmark, Bookmark] | None:
        """Return the place where the next batch of the backlog ends, and the backlog's end; None if nothing is left."""
        backlog = self._backlog
        if backlog is None or not backlog.above <= start.start_ts or self._last not in (None, backlog.latest):
            return None
        mark = backlog.place(start, rows)
        return None if mark is None else (mark, backlog.latest)

    def _kept_place(self, conn: Connection, mark: Bookmark, start: Place, latest: Bookmark) -> Place:
        place = self._leased_place(conn, mark, start, latest.start_ts)
        self._keep(conn, place)
        is_first = self._initial is not None and start.mark == self._initial.mark
        return replace(place, began=start) if is_first else place

    def _leased_place(self, conn: Connection, mark: Bookmark, start: Place, latest_ts: int) -> Place:
        """Return a place after `start` whose lease holds W below all starts drawn since."""
        if mark.start_ts == latest_ts:
            return Place(mark, latest_ts, is_own=True)
        drawn_ts = self._drawn_ts
        if drawn_ts <= mark.start_ts:
            self._drawn_ts = latest_ts
        if start.leased_ts < drawn_ts <= mark.start_ts:
            return Place(mark, drawn_ts, is_own=True)
        return Place(mark, start.leased_ts, start.is_own)

    def _place_with(self, conn: Connection, start: Bookmark, latest: Bookmark, rows: int | None) -> Bookmark | None:
        """Return where the next batch ends; None if nothing changed. With `rows`, the batch ends at the last commit up
        to which at most `rows` rows changed, but at least at the first commit; without it, at `latest`."""
        info = self._info(conn)
        until = until_of(conn, start, latest)
        start = conn.driver.run(in_life(info, start, until))
        scan = ChangeScan(conn.deployment, info, self._plan.key_range, start, until, conn.cache)
        by_commit: Counter[int] = Counter()
        while (found := conn.driver.run(scan.next_batch())) is not None:
            if found.inserts is not None:
                by_commit.update(found.inserts.commits.tolist())
            for change in found.others:
                by_commit[change.commit_ts] += 1 + bool(change.before and change.after)
            if by_commit and rows is None:
                return latest
        if rows is None:
            return None
        self._backlog = Backlog(start.start_ts, latest, by_commit)
        return self._backlog.place(start, rows)

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with coded_errors():
            crash_point("spark.stream.plan")
            conn = self._connection()
            since, last = self._read_offset(conn, start), self._read_offset(conn, end)
            self._latest = last
            since = last.began or since
            if last.start_ts <= since.start_ts:
                return []
            plan = self._plan
            info = self._info(conn)
            _check_types(info, plan)
            self._keep(conn, since)
            self._keep(conn, last)
            until = until_of(conn, since.mark, last.mark)
            mark = conn.driver.run(in_life(info, since.mark, until))
            held_ts = since.leased_ts if since.is_own else base_start(mark)
            changes = ChangesPlan(
                conn.task_url,
                life_of(info),
                plan.schema,
                plan.wanted,
                mark,
                until,
                HeldStart.position(conn, held_ts, plan.bookmark_s, is_own=since.is_own),
            )
            parts = divided(conn.deployment.store, plan.table, plan.key_range, plan.partitions)
            return [ChangesPartition(changes, part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ChangesPartition)
        with coded_errors():
            crash_point("spark.stream.read")
            changes = partition.changes
            conn = connection(changes.url)
            yield from read_changes(conn, changes, partition.key_range, arrow_of(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """End the leases below the end of a batch that Spark has recorded as done: earlier changes need not be kept
        (F4)."""
        with coded_errors():
            crash_point("spark.stream.done")
            conn = self._connection()
            for start_ts in [start_ts for start_ts in self._held if start_ts < end["leased"]]:
                conn.leases.end(self._held.pop(start_ts))

    def stop(self) -> None:
        """Stop renewing leases. They last until their term ends, so that the query can be restarted."""
        self._held.clear()

    # Bookmarks

    def _bookmark(self, conn: Connection, *, keep: bool = True) -> Bookmark:
        keep_s = self._plan.bookmark_s if keep and conn.has_leases else None
        mark, lease = conn.driver.run(draw_bookmark(conn.leases, keep_s))
        if lease is not None:
            conn.leases.keep(lease)
        return mark

    def _begun(self, conn: Connection) -> Place:
        """Return a new place after everything committed so far."""
        mark = self._bookmark(conn)
        place = Place(mark, mark.start_ts, is_own=True)
        self._keep(conn, place)
        return place

    def _keep(self, conn: Connection, place: Place) -> None:
        """Lease the place while the query runs and for one more term. Raises `SnapshotTooOld` if W has passed it."""
        if conn.has_leases:
            keep = conn.leases.grant_lasting if place.is_own else conn.leases.share
            self._held[place.leased_ts] = lease = keep(place.leased_ts, self._plan.bookmark_s)
            conn.leases.keep(lease)

    def _connection(self) -> Connection:
        return connection(self._plan.url, self._plan.database_id)

    def _info(self, conn: Connection) -> TableInfo:
        return open_table(conn.deployment, self._plan.table, leased=True)

    def _offset(self, place: Place) -> dict[str, Any]:
        conn = self._connection()
        began = {} if place.began is None else {BEGAN: self._offset(place.began)}
        return {
            "table": self._plan.table,
            "generation": self._info(conn).generation,
            "database": conn.database_id.hex(),
            "start": place.start_ts,
            "watermark": place.mark.watermark,
            "leased": place.leased_ts,
            "own": place.is_own,
            **began,
        }

    def _read_offset(self, conn: Connection, offset: dict[str, Any]) -> Place:
        """Return the place of an offset. Raises `Misuse` if the checkpoint belongs to another stream, or if its table
        was dropped."""
        table = self._plan.table
        if set(offset) - {BEGAN, *FORMER} != OFFSET:
            raise Misuse(
                f"the query's checkpoint contains {offset!r}, which is not an offset of a stream of table {table!r}; "
                "give each stream its own checkpoint"
            )
        if offset["table"] != table:
            raise Misuse(
                f"the query's checkpoint belongs to table {offset['table']!r}, not {table!r}; give each stream its own "
                "checkpoint",
                table=table,
            )
        if offset["database"] != conn.database_id.hex():
            raise Misuse(
                f"the query's checkpoint belongs to a database other than the one at {self._plan.url}; give the stream "
                "a new checkpoint",
                table=table,
            )
        if offset["generation"] != self._info(conn).generation:
            raise Misuse(
                f"table {table!r} was dropped and created again since the query's checkpoint was written; begin with "
                "a full read and a new checkpoint",
                table=table,
            )
        mark = Bookmark(int(offset["start"]), int(offset["watermark"]))
        began = self._read_offset(conn, offset[BEGAN]) if BEGAN in offset else None
        return Place(mark, int(offset["leased"]), bool(offset["own"]), began)


def _check_types(info: TableInfo, plan: StreamPlan) -> None:
    """Raise `Misuse` if a column was widened since the query began, because later values may not fit the frame's type.
    Call this after the end of a batch is drawn: any writer below that end that used the new type had read it in the
    catalog before."""
    present = info.schema.columns if info.schema is not None else ()
    now = {column.column: column.spark_type for column in present if column.column is not None}
    for column in plan.schema.columns:
        new = now.get(column.column, column.spark_type) if column.column is not None else column.spark_type
        if column.name in plan.wanted and new != column.spark_type:
            raise Misuse(
                f"table {info.name!r}: column {column.name!r} was widened from {column.spark_type} to {new} while the "
                "query ran, but the query's frame has the former type. Load the stream again and restart the query "
                "with the same checkpoint; the query then continues where it stopped",
                table=info.name,
            )
