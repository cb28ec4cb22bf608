"""Expiry of values in a table with a time to live, by a floor that is itself a row of the database (E1, E2).

A value expires when its commit is as old as the table's time to live. Readers do not compute that, because their clocks
differ and they read at different times. They compare the commit with the *expiry floor*, a timestamp in a row of a
transactional system table, which a transaction raises at intervals:

    floor 0     commit 150   point (start 200, 10:00)   commit 230   point (start 300, 10:01)
    an hour later a transaction sees that start 200 was the newest at 10:00, and moves the floor to 200: commit 400
    a snapshot at or below 400 sees both values, every snapshot above it the second only, for all readers

So expiry at a snapshot depends only on the version's commit and on data that the snapshot sees. It is the same for all
readers of the snapshot, in any process and at any time. It depends neither on the TSO's time line, which forgets, nor
on the catalog, which is not versioned.

A value at or below the floor reads as a tombstone of its own column: what it hides stays hidden. The floor never goes
down. A compactor uses a floor that was committed at or below its W: every snapshot above W sees that floor or a higher
one.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyomid.errors import Corruption
from pyomid.protocol import visibility
from pyomid.protocol.effects import Steps
from pyomid.protocol.reading import CommitCache, Snapshot, read_rows_steps, resolve_rows_steps
from pyomid.protocol.time_points import newest_at
from pyomid.types import Bookmark, Column, ConflictLevel, LifeOf, ReadBounds, TableInfo, TimePoint, start_of

EXPIRY_TABLE: Final = "PYOMID_EXPIRY"
FLOOR_COLUMN: Final = Column(b"e", b"floor")
POINTS_COLUMN: Final = Column(b"e", b"points")
LATEST_COLUMN: Final = Column(b"e", b"latest")
EXPIRY_INFO: Final = TableInfo(EXPIRY_TABLE, (FLOOR_COLUMN.family,), ConflictLevel.CELL)

POINTS_IN_TTL: Final = 100
"""If the floor moves regularly, a value expires at most a hundredth of its time to live late."""
INTERVAL_MS_MIN: Final = 1_000
POINTS_MAX: Final = 1_000
"""Beyond this every second point goes: values dated by it expire with the next point, a little later."""

_FLOOR_NAME: Final = b"%b:%b" % FLOOR_COLUMN
_POINTS_NAME: Final = b"%b:%b" % POINTS_COLUMN
_LATEST_NAME: Final = b"%b:%b" % LATEST_COLUMN
_FLOOR_BYTES: Final = 8

Floors = Sequence[tuple[int, int]]
"""(commit, floor): snapshots above the commit see the floor. Both ascend."""


def expiry_row(table: str, generation: int) -> bytes:
    """Return the key of the row that holds a table's floor. A table created again under the name has another row."""
    return b"%b\0%b" % (table.encode(), generation.to_bytes(_FLOOR_BYTES, "big"))


@dataclass(frozen=True, slots=True)
class Expiry:
    """A table's floor, and time points above it: which start was the newest at which wall-clock time. Both ascend."""

    expired_to: int = 0
    points: tuple[TimePoint, ...] = ()
    latest_ms: int = 0
    """The latest wall-clock time of any mover: a mover with an earlier clock is late, and notes nothing (E4)."""

    @classmethod
    def of(cls, row: Mapping[bytes, bytes]) -> Expiry:
        """Decode the row as `Table.get` returns it."""
        value, points = (
            row.get(_FLOOR_NAME),
            tuple(TimePoint(*each) for each in json.loads(row.get(_POINTS_NAME, b"[]"))),
        )
        return cls(0 if value is None else _floor_of(value), points, json.loads(row.get(_LATEST_NAME, b"0")))

    def moved(
        self,
        start_ts: int,
        wall_ms: int,
        ttl_ms: int,
        *,
        notes: bool | None = None,
        noted: Sequence[TimePoint] = (),
        since_ts: int = 0,
    ) -> Expiry:
        """Return the state that the transaction `start_ts` writes; the same object if there is nothing to write.

        The transaction read its clock, `wall_ms`, after it began, so commits below its start are older. `ttl_ms` 0:
        nothing expires any more, and points and clock times are forgotten. `notes`: whether its start becomes a point;
        None: if the last point is old enough. A transaction with a late clock adds no point: a correct clock would take
        recent commits for old ones. `noted`: the TSO's time points; with its own point the transaction adds those above
        `since_ts` that date commits more exactly (E6).
        """
        if not ttl_ms:
            return self if not (self.points or self.latest_ms) else Expiry(self.expired_to)
        interval_ms, points = max(INTERVAL_MS_MIN, ttl_ms // POINTS_IN_TTL), self.points
        if notes is None:
            notes = not points or wall_ms >= points[-1].wall_ms + interval_ms
        notes = notes and wall_ms >= self.latest_ms
        if notes:
            added = self._points_to_add(noted, start_ts, wall_ms, since_ts)
            points = (*points, *_far_apart(points, added, wall_ms, interval_ms), TimePoint(start_ts, wall_ms))
        newest = newest_at(points, wall_ms - ttl_ms)
        floor = self.expired_to if newest is None else max(self.expired_to, newest.start_ts)
        points = tuple(point for point in points if point.start_ts > floor)
        while len(points) > POINTS_MAX:
            points = (*points[1:-1:2], points[-1])
        return Expiry(floor, points, max(self.latest_ms, wall_ms)) if notes or floor > self.expired_to else self

    def _points_to_add(self, noted: Sequence[TimePoint], start_ts: int, wall_ms: int, since_ts: int) -> list[TimePoint]:
        """Return the TSO's points after all known ones, ascending by time too; without those of a clock that was late
        or is ahead (E4)."""
        known_ts = max([since_ts, self.expired_to, *(point.start_ts for point in self.points)])
        added, latest_ms = [], self.latest_ms
        for point in noted:
            if latest_ms <= point.wall_ms <= wall_ms and point.start_ts <= start_ts:
                latest_ms = point.wall_ms
                if point.start_ts > known_ts:
                    added.append(point)
        return added

    def cells(self, before: Expiry) -> dict[bytes, bytes]:
        """Return the columns that `Table.put` writes over the row that held `before`. The points are always written, so
        that of two transactions that move one floor at the same time one aborts: the floor never goes down."""
        cells = {_POINTS_NAME: json.dumps(self.points).encode(), _LATEST_NAME: b"%d" % self.latest_ms}
        if self.expired_to > before.expired_to:
            cells[_FLOOR_NAME] = self.expired_to.to_bytes(_FLOOR_BYTES, "big")
        return cells


def _far_apart(
    before: Sequence[TimePoint], added: Sequence[TimePoint], wall_ms: int, interval_ms: int
) -> list[TimePoint]:
    """Return the points of `added` that are needed to keep the times between the last of `before` and `wall_ms` no
    further apart than the interval."""
    kept: list[TimePoint] = []
    last_ms = before[-1].wall_ms if before else -interval_ms
    for place, point in enumerate(added):
        next_ms = added[place + 1].wall_ms if place + 1 < len(added) else wall_ms
        if next_ms - last_ms > interval_ms:
            kept.append(point)
            last_ms = point.wall_ms
    return kept


def seen_steps(info: TableInfo, snapshot: Snapshot, cache: CommitCache) -> Steps[Snapshot]:
    """Return the snapshot with this table's floor. Reads a row if the table has, or had, a time to live."""
    if info.ttl_seconds is None:
        return snapshot
    key = expiry_row(info.name, info.generation)
    rows = yield from read_rows_steps(LifeOf(EXPIRY_TABLE), [key], (FLOOR_COLUMN,), snapshot, cache)
    value = rows[0].get(FLOOR_COLUMN)
    return snapshot if value is None else replace(snapshot, expired_to=_floor_of(value))


def covered_floor_steps(table: str, generation: int, watermark: int, cache: CommitCache) -> Steps[int]:
    """E2: return a floor that was committed at or below `watermark`: every snapshot above sees it, or a higher one.

    If W has risen meanwhile and compaction cleaned the row, the result is an earlier floor, or 0: less is dropped.
    """
    snapshot = Snapshot(watermark + 1, epoch=0)
    rows, resolution = yield from resolve_rows_steps(
        EXPIRY_TABLE, [expiry_row(table, generation)], snapshot, snapshot.bounds, cache, (FLOOR_COLUMN,)
    )
    row = visibility.visible_point(rows[0], snapshot.start_ts, (), resolution.commits)
    value = row.get(FLOOR_COLUMN)
    return 0 if value is None else _floor_of(value)


def floors_steps(info: TableInfo, since: Bookmark, until: Snapshot, cache: CommitCache) -> Steps[Floors | None]:
    """Return the floors of all snapshots from `since` to `until`; None if the table never had a time to live. Complete
    while W is at or below `since`, which the caller checks later."""
    if info.ttl_seconds is None:
        return None
    bounds = ReadBounds(below=until.start_ts, committed_below=since.start_ts)
    key = expiry_row(info.name, info.generation)
    rows, resolution = yield from resolve_rows_steps(EXPIRY_TABLE, [key], until, bounds, cache, (FLOOR_COLUMN,))
    found = []
    for cell in rows[0]:
        commit_ts = cell.commit_ts or resolution.commits.get(start_of(cell.version), 0)
        if 0 < commit_ts < until.start_ts and cell.value is not None:
            found.append((commit_ts, _floor_of(cell.value)))
    return sorted(found)


def floor_at(floors: Floors, snapshot_ts: int) -> int:
    """Return the floor that a reader at `snapshot_ts` sees."""
    at = bisect_left(floors, (snapshot_ts, 0))
    return floors[at - 1][1] if at else 0


def _floor_of(value: bytes) -> int:
    if len(value) != _FLOOR_BYTES:
        raise Corruption(f"an expiry floor in table {EXPIRY_TABLE} has {len(value)} bytes, not {_FLOOR_BYTES}")
    return int.from_bytes(value, "big")
