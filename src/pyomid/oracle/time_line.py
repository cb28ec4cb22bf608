"""Which start was the newest at which time of the day, noted durably every so often (`protocol.time_points`); and how
far back history is kept (T17).

A point's start is one that was handed out, so every commit below it is durable (law 3), and every commit that was
acknowledged before the point is below it. Points that no readable snapshot needs go: those below the newest one at or
below W.

The age of a point is measured by the monotonic clock. Only what an earlier TSO noted is as old as the time of the day
says: a clock that is set back or forward while a TSO serves makes it keep neither more nor less.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

from pyomid.errors import Unavailable
from pyomid.oracle.instructions import NoteTime
from pyomid.oracle.outgoing import Procedure, Step, StoreRequests
from pyomid.oracle.settings import TsoSettings
from pyomid.oracle.takeover import TakenOver
from pyomid.types import TimePoint

POINTS_IN_RETENTION: Final = 10_000
"""A point a minute for a week: half a megabyte, which a new TSO reads."""
POINTS_MAX: Final = 2 * POINTS_IN_RETENTION
INTERVAL_S_MIN: Final = 1.0


class TimeLine:
    def __init__(self, step: Step, store: StoreRequests, settings: TsoSettings, taken_over: TakenOver) -> None:
        self._step = step
        self._store = store
        self.retention_s: Final = taken_over.retention_s
        """0: history is kept no longer than a reader needs it."""
        self._interval_s = settings.time_points_interval_s
        if self.retention_s:
            self._interval_s = max(self.retention_s / POINTS_IN_RETENTION, INTERVAL_S_MIN)
        self._points = list(taken_over.time_points)
        self._young = deque(
            (step.now_s - age_s, point.start_ts)
            for point, age_s in zip(self._points, ages_s(self._points, taken_over.wall_ms), strict=True)
        )
        """(when it was noted, start) of the points that are not as old as the retention, ascending."""
        self._kept_start = 0
        self._due_s = step.now_s
        self._is_noting = False

    def kept_start(self) -> int | None:
        """The newest start that is as old as the retention: W may not pass it. None: history is not kept."""
        if not self.retention_s:
            return None
        while self._young and self._young[0][0] <= self._step.now_s - self.retention_s:
            self._kept_start = self._young.popleft()[1]
        return self._kept_start

    def note_now(self) -> None:
        """The next look notes a point, however young the last one is."""
        self._due_s = self._step.now_s

    def note_if_due(self, draw_newest: Callable[[int], int], watermark: int) -> None:
        """`draw_newest` gets the start that was noted last, and returns the newest one, drawn now if anything was
        committed since."""
        if self._step.now_s < self._due_s or not self._step.wall_ms or self._is_noting:
            return
        noted = self._points[-1].start_ts if self._points else 0
        start_ts = draw_newest(noted)
        if start_ts <= noted:
            return  # nothing was begun since: the snapshot of now is that of the last point
        self._due_s = self._step.now_s + self._interval_s
        self._is_noting = True
        self._store.run(self._note_steps(TimePoint(start_ts, self._step.wall_ms), self._step.now_s, watermark))

    def _note_steps(self, point: TimePoint, now_s: float, watermark: int) -> Procedure:
        """Where the store fails, the next point tells of this one's commits too, a little later."""
        kept_from = max((old.start_ts for old in self._points if old.start_ts <= watermark), default=0)
        kept = [old for old in self._points if old.start_ts >= kept_from]
        if len(kept) > POINTS_MAX:
            kept = self._thinned(kept)
        gone = tuple(sorted({old.start_ts for old in self._points} - {old.start_ts for old in kept}))
        with suppress(Unavailable):
            yield NoteTime(point, gone)
            self._points = [*kept, point]
            if self.retention_s:
                self._young.append((now_s, point.start_ts))
        self._is_noting = False

    def _thinned(self, points: list[TimePoint]) -> list[TimePoint]:
        """Within the retention goes only what lies between two that are no further apart than the interval (each new
        TSO notes one at once), so times stay as exact as promised, and W waits at points that stay. Older points are
        there where a lease holds W for months: its time is told less exactly."""
        kept_start = self.kept_start()
        older = [point for point in points if kept_start is None or point.start_ts < kept_start]
        half = len(older) // 2
        gone = {point.start_ts for point in older[1:half:2]}
        before_s = math.inf  # the first one stays
        for (noted_s, start_ts), (after_s, _) in pairwise(self._young):
            if 0 <= after_s - before_s <= self._interval_s:
                gone.add(start_ts)
            else:
                before_s = noted_s
        self._young = deque(young for young in self._young if young[1] not in gone)
        return [point for point in points if point.start_ts not in gone]


def ages_s(points: Sequence[TimePoint], wall_ms: int) -> Iterator[float]:
    """The age of each point at `wall_ms`: none is younger than a later one, and none was noted after now."""
    newest_first: list[float] = []
    age_s = 0.0
    for point in reversed(points):
        age_s = max(age_s, (wall_ms - point.wall_ms) / 1000)
        newest_first.append(age_s)
    return reversed(newest_first)
