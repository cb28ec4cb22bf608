"""What has expired: values of a table with a time to live, by a floor that is itself a row of the database (E1, E2).

A value expires when its commit is as old as the table's time to live. Which commits those are is not computed by
readers, whose clocks differ and who come at different times. It is a *floor*, a timestamp in a row of a transactional
system table, moved up now and then by a transaction:

    floor 0     commit 150   point (start 200, 10:00)   commit 230   point (start 300, 10:01)
    an hour later a transaction sees that start 200 was the newest at 10:00, and moves the floor to 200: commit 400
    a snapshot at or below 400 sees both values, every snapshot above it the second only, for all readers

So what has expired for a snapshot is a function of the version's commit and of data that the snapshot sees. It is the
same for all its readers, as all data are, in whatever process and at whatever time; it never depends on the time line
of the TSO, which forgets, nor on the catalog, which is not versioned.

A value at or below the floor reads as a tombstone of its own column: what it hides stays hidden. The floor never goes
down. What a compactor may drop it takes from a floor that was committed at or below its W, which every snapshot above W
sees too, or a higher one.
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
from pyomid.types import Bookmark, Column, ConflictLevel, ReadBounds, TableInfo, TimePoint, start_of

EXPIRY_TABLE: Final = "PYOMID_EXPIRY"
FLOOR_COLUMN: Final = Column(b"e", b"floor")
POINTS_COLUMN: Final = Column(b"e", b"points")
LATEST_COLUMN: Final = Column(b"e", b"latest")
EXPIRY_INFO: Final = TableInfo(EXPIRY_TABLE, (FLOOR_COLUMN.family,), ConflictLevel.CELL)

POINTS_IN_TTL: Final = 100
"""While the floor is moved regularly, a value expires late by at most this share of its time to live."""
INTERVAL_MS_MIN: Final = 1_000
POINTS_MAX: Final = 1_000
"""From so many on every second one goes: what it told expires with the next one, a little later."""

_FLOOR_NAME: Final = b"%b:%b" % FLOOR_COLUMN
_POINTS_NAME: Final = b"%b:%b" % POINTS_COLUMN
_LATEST_NAME: Final = b"%b:%b" % LATEST_COLUMN
_FLOOR_BYTES: Final = 8

Floors = Sequence[tuple[int, int]]
"""(commit, floor): from which snapshots on which floor counts, both ascending."""


def expiry_row(table: str, generation: int) -> bytes:
    """The row that holds a table's floor. A table made anew under the name has another one."""
    return b"%b\0%b" % (table.encode(), generation.to_bytes(_FLOOR_BYTES, "big"))


@dataclass(frozen=True, slots=True)
class Expiry:
    """A table's floor, and which starts above it were the newest at which times of the day, ascending by both."""

    expired_to: int = 0
    points: tuple[TimePoint, ...] = ()
    latest_ms: int = 0
    """The latest time of the day that any mover told: a clock that tells less is late, and notes nothing (E4)."""

    @classmethod
    def of(cls, row: Mapping[bytes, bytes]) -> Expiry:
        """Of the row as `Table.get` returns it."""
        value, points = (
            row.get(_FLOOR_NAME),
            tuple(TimePoint(*each) for each in json.loads(row.get(_POINTS_NAME, b"[]"))),
        )
        return cls(0 if value is None else _floor_of(value), points, json.loads(row.get(_LATEST_NAME, b"0")))

    def moved(self, start_ts: int, wall_ms: int, ttl_ms: int, *, notes: bool | None = None) -> Expiry:
        """As the transaction `start_ts` leaves it, which read the clock after it began: what was committed below its
        start was committed before `wall_ms`. The same object if there is nothing to write. `ttl_ms` 0: nothing expires
        any more, and what clocks told is forgotten. `notes`: whether its start becomes a point; None: if the last one
        is old enough. By a late clock none does: what was committed just now would look old to a clock that is right.
        """
        if not ttl_ms:
            return self if not (self.points or self.latest_ms) else Expiry(self.expired_to)
        newest = newest_at(self.points, wall_ms - ttl_ms)
        floor = self.expired_to if newest is None else max(self.expired_to, newest.start_ts)
        points = tuple(point for point in self.points if point.start_ts > floor)
        if notes is None:
            notes = not points or wall_ms >= points[-1].wall_ms + max(INTERVAL_MS_MIN, ttl_ms // POINTS_IN_TTL)
        notes = notes and wall_ms >= self.latest_ms
        if notes:
            points = (*(points if len(points) < POINTS_MAX else points[1::2]), TimePoint(start_ts, wall_ms))
        return Expiry(floor, points, max(self.latest_ms, wall_ms)) if notes or floor > self.expired_to else self

    def cells(self, before: Expiry) -> dict[bytes, bytes]:
        """What `Table.put` writes over the row that held `before`. The points are always written: of two that move one
        floor at the same time one aborts, so it never goes down."""
        cells = {_POINTS_NAME: json.dumps(self.points).encode(), _LATEST_NAME: b"%d" % self.latest_ms}
        if self.expired_to > before.expired_to:
            cells[_FLOOR_NAME] = self.expired_to.to_bytes(_FLOOR_BYTES, "big")
        return cells


def seen_steps(info: TableInfo, snapshot: Snapshot, cache: CommitCache) -> Steps[Snapshot]:
    """The snapshot with what has expired in this table for it. A read of a row, where the table has, or had, a time to
    live."""
    if info.ttl_seconds is None:
        return snapshot
    key = expiry_row(info.name, info.generation)
    rows = yield from read_rows_steps(EXPIRY_TABLE, [key], (FLOOR_COLUMN,), snapshot, cache)
    value = rows[0].get(FLOOR_COLUMN)
    return snapshot if value is None else replace(snapshot, expired_to=_floor_of(value))


def covered_floor_steps(table: str, generation: int, watermark: int, cache: CommitCache) -> Steps[int]:
    """E2: a floor that every snapshot above `watermark` sees, or a higher one: it was committed at or below that.

    Where W has moved on meanwhile and compaction passed here, an earlier floor is found, or none: less is dropped.
    """
    snapshot = Snapshot(watermark + 1, epoch=0)
    rows, resolution = yield from resolve_rows_steps(
        EXPIRY_TABLE, [expiry_row(table, generation)], snapshot, snapshot.bounds, cache, (FLOOR_COLUMN,)
    )
    row = visibility.visible_point(rows[0], snapshot.start_ts, (), resolution.commits)
    value = row.get(FLOOR_COLUMN)
    return 0 if value is None else _floor_of(value)


def floors_steps(info: TableInfo, since: Bookmark, until: Snapshot, cache: CommitCache) -> Steps[Floors | None]:
    """The floors of all snapshots from `since` to `until`; None where the table never had a time to live. Nothing is
    missing while W is at or below `since`, which the caller looks at later."""
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
    """The floor that a reader at `snapshot_ts` sees."""
    at = bisect_left(floors, (snapshot_ts, 0))
    return floors[at - 1][1] if at else 0


def _floor_of(value: bytes) -> int:
    if len(value) != _FLOOR_BYTES:
        raise Corruption(f"a floor of table {EXPIRY_TABLE} holds {len(value)} bytes, not a timestamp")
    return int.from_bytes(value, "big")
