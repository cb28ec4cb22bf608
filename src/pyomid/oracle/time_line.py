"""Which snapshot was the newest at which wall-clock time (`protocol.time_points`), and how far back history is kept
(T17). The TSO keeps the last seconds in memory, and notes durable points at intervals and when a client asks.

    batch released ──► a new *period* begins: from now on there is a new newest snapshot
    each interval  ──► the last period is noted as a point, if it is newer than the last point
    FindMoment     ──► the first period or point at or after the requested time; if it is younger than the last point,
                       it is noted before the answer. Many requests at once cost one note
    takeover       ──► the first period begins at the store's last change, if that is known

A period is identified by the start of its snapshot: every commit acknowledged before lies below it, and every commit in
flight above (law 3). Points that no readable snapshot needs are deleted: those below the newest point at or below W.

The monotonic clock measures the age of a point; only an earlier TSO's points have their age from wall-clock time. So a
wall clock that is set back or forward while a TSO serves does not change what it keeps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyomid.errors import Unavailable
from pyomid.oracle.instructions import NoteTime
from pyomid.oracle.outgoing import Procedure
from pyomid.oracle.takeover import TakenOver
from pyomid.protocol.time_points import first_at, snapshot_after
from pyomid.types import TIMESTAMP_STEP, Moment, TimePoint
from pyomid.wire.messages import FindMoment

if TYPE_CHECKING:
    from pyomid.oracle.machine import TsoMachine

PERIODS_MAX: Final = 8192
"""Periods in memory, at most one per millisecond: some seconds under load, hours of a quiet TSO."""
SEEN_AFTER_MS_MAX: Final = 1000
"""The time of a point is at most this long after the begin of its period: the answers of a step are sent sooner than
this after the step read the clock."""
KEPT_MS: Final = 3_600_000
"""Points younger than this are kept below W too: movers of expiry floors date values by them (`protocol.expiry`)."""
REPEATED_AFTER_MS: Final = 1000
"""If a point's snapshot stayed the newest for longer, the point is noted again at the end of its period; otherwise a
time within the period would get the next point."""
LATE_CLOCK_MS: Final = 1000
"""If a client's clock is further behind than this, its times are shifted to the TSO's clock."""

POINTS_IN_RETENTION: Final = 10_000
"""A point per minute for a week: half a megabyte, which a new TSO reads."""
POINTS_MAX: Final = 2 * POINTS_IN_RETENTION
INTERVAL_S_MIN: Final = 1.0
INTERVAL_S: Final = 10.0
"""How often a time point is noted if a start was handed out since. With a retention: a ten-thousandth of the
retention, but at least `INTERVAL_S_MIN`."""


@dataclass(slots=True)
class Period:
    """The snapshot at `snapshot_ts` was the newest from `first_ms` to `last_ms`."""

    snapshot_ts: int
    first_ms: int
    last_ms: int

    def moment(self, at_ms: int) -> Moment:
        return Moment(self.snapshot_ts, min(max(at_ms, self.first_ms), self.last_ms))

    @property
    def point(self) -> TimePoint:
        """The time point to note. Every commit of the snapshot was acknowledged by its time. Its start is above every
        commit of the snapshot, and leaves room for points that repeat it."""
        wall_ms = min(self.first_ms + SEEN_AFTER_MS_MAX, self.last_ms)
        return TimePoint(self.snapshot_ts - TIMESTAMP_STEP + 1, wall_ms)


@dataclass(frozen=True, slots=True)
class _Asked:
    peer: Hashable
    tag: int
    at_ms: int


class TimeLine:
    """The periods and time points of one TSO."""

    def __init__(self, tso: TsoMachine, taken_over: TakenOver) -> None:
        self._tso = tso
        self.retention_s: Final = taken_over.retention_s
        """0: history is kept only while a reader needs it."""
        self._interval_s = INTERVAL_S
        if self.retention_s:
            self._interval_s = max(self.retention_s / POINTS_IN_RETENTION, INTERVAL_S_MIN)
        self._points = list(taken_over.time_points)
        self._young = deque(
            (tso.step.now_s - age_s, point.start_ts)
            for point, age_s in zip(self._points, ages_s(self._points, taken_over.wall_ms), strict=True)
        )
        """(when noted, start) of the points younger than the retention, ascending."""
        self._kept_start = 0
        self._due_s = tso.step.now_s
        self._is_noting = False
        self._watermark = 0
        self._periods: deque[Period] = deque(maxlen=PERIODS_MAX)
        self._seen_seq = -1
        """The newest batch in the last period's snapshot."""
        self._asked: list[_Asked] = []
        if self._is_plausible(taken_over.changed_ms, taken_over.wall_ms):
            self._periods.append(Period(tso.windows.head.next_start, taken_over.changed_ms, taken_over.changed_ms))
            self._seen_seq = tso.windows.released_seq

    def _is_plausible(self, changed_ms: int, wall_ms: int) -> bool:
        """Whether nothing was committed after `changed_ms`: false if a point has a later time."""
        return 0 < changed_ms <= wall_ms and all(point.wall_ms <= changed_ms for point in self._points)

    def kept_start(self) -> int | None:
        """Return the start of the newest point that is as old as the retention: W may not pass it. None: history is not
        kept."""
        if not self.retention_s:
            return None
        while self._young and self._young[0][0] <= self._tso.step.now_s - self.retention_s:
            self._kept_start = self._young.popleft()[1]
        return self._kept_start

    # ── periods ──────────────────────────────────────────────────────────────────────────────────────────────────

    def update_periods(self) -> None:
        """Extend the last period, or begin another. Called at each timer, and at each release of a batch before its
        answers are sent."""
        wall_ms, periods = self._tso.step.wall_ms, self._periods
        if not wall_ms:
            return
        if periods and wall_ms < periods[-1].last_ms:  # the clock was set back: the later start counts
            periods.clear()
        if periods and self._tso.windows.released_seq == self._seen_seq:
            periods[-1].last_ms = wall_ms
            return
        self._seen_seq = self._tso.windows.released_seq
        snapshot_ts = self._tso.windows.head.next_start
        if periods and periods[-1].first_ms == wall_ms:
            periods[-1].snapshot_ts = snapshot_ts
        else:
            periods.append(Period(snapshot_ts, wall_ms, wall_ms))

    # ── points ───────────────────────────────────────────────────────────────────────────────────────────────────

    def note_now(self) -> None:
        """Make the next timer note a point, however young the last one is."""
        self._due_s = self._tso.step.now_s

    def note_if_due(self, watermark: int) -> None:
        self._watermark = watermark
        self.update_periods()
        if self._tso.step.now_s < self._due_s or self._is_noting or not self._periods:
            return
        newest = self._periods[-1]
        if newest.snapshot_ts > self._noted_ts:  # otherwise the last point has the present snapshot already
            self._due_s = self._tso.step.now_s + self._interval_s
            self._note(newest, [])

    @property
    def _noted_ts(self) -> int:
        """The start of the last point's snapshot."""
        return snapshot_after(self._points[-1].start_ts) if self._points else 0

    def _note(self, period: Period, answers: list[tuple[_Asked, Moment]]) -> None:
        self._is_noting = True
        self._tso.store.run(self._note_steps(period.point, answers))

    def _note_steps(self, point: TimePoint, answers: list[tuple[_Asked, Moment]]) -> Procedure:
        """Note a point, delete old ones and send the answers. If the store fails, the next point dates these commits
        too, a little later."""
        kept_from = max((old.start_ts for old in self._points if old.start_ts <= self._watermark), default=0)
        kept_ms = self._tso.step.wall_ms - KEPT_MS
        kept = [old for old in self._points if old.start_ts >= kept_from or old.wall_ms >= kept_ms]
        if len(kept) > POINTS_MAX:
            kept = self._thinned(kept)
        gone = tuple(sorted({old.start_ts for old in self._points} - {old.start_ts for old in kept}))
        repeated = self._repeated()
        try:
            if repeated is not None:
                yield NoteTime(repeated)
                kept.append(repeated)
                self._note_young(repeated)
            yield NoteTime(point, gone)
        except Unavailable as error:
            for asked, _ in answers:
                self._tso.step.refuse(asked.peer, asked.tag, error)
        else:
            self._points = [*kept, point]
            self._note_young(point)
            for asked, moment in answers:
                self._tso.step.reply(asked.peer, asked.tag, moment)
        self._is_noting = False
        self._serve()

    def _note_young(self, point: TimePoint) -> None:
        if self.retention_s:
            self._young.append((self._tso.step.now_s, point.start_ts))

    def _repeated(self) -> TimePoint | None:
        """Return the last point again, with the last time when its snapshot was the newest; None if not needed."""
        if not self._points:
            return None
        last = self._points[-1]
        stood = next((each for each in reversed(self._periods) if each.snapshot_ts <= self._noted_ts), None)
        if stood is None or stood.snapshot_ts != self._noted_ts or stood is self._periods[-1]:
            return None
        again = TimePoint(last.start_ts + 1, stood.last_ms)
        is_same = snapshot_after(again.start_ts) == self._noted_ts
        return again if is_same and stood.last_ms - last.wall_ms > REPEATED_AFTER_MS else None

    # ── the snapshot at a time ───────────────────────────────────────────────────────────────────────────────────

    def ask(self, peer: Hashable, tag: int, request: FindMoment) -> None:
        """Answer with a moment whose snapshot holds every commit acknowledged at or before the requested time."""
        wall_ms = self._tso.step.wall_ms
        if not wall_ms:
            self._tso.step.refuse(peer, tag, Unavailable("the TSO does not know the wall-clock time"))
            return
        behind_ms = wall_ms - request.now_ms
        at_ms = request.at_ms + (behind_ms if behind_ms > LATE_CLOCK_MS else 0)
        self.update_periods()
        self._asked.append(_Asked(peer, tag, at_ms))
        if not self._is_noting:
            self._serve()

    def _serve(self) -> None:
        """Answer the requests that durable points cover, and note one point for all others."""
        asked, self._asked = self._asked, []
        waiting: list[tuple[_Asked, Moment]] = []
        for each in asked:
            moment = self._moment_at(each.at_ms)
            if moment.snapshot_ts > self._noted_ts:
                waiting.append((each, moment))
            else:
                self._tso.step.reply(each.peer, each.tag, moment)
        if waiting:
            newest_ts = max(moment.snapshot_ts for _, moment in waiting)
            self._note(next(each for each in self._periods if each.snapshot_ts >= newest_ts), waiting)

    def _moment_at(self, at_ms: int) -> Moment:
        """Return the first known moment at or after `at_ms`; now if that is in the future; `Moment(0, 0)` if it is
        older than all."""
        is_remembered = self._periods[0].first_ms <= at_ms
        if not is_remembered and not any(point.wall_ms <= at_ms for point in self._points):
            return Moment(0, 0)
        period = next((each for each in self._periods if each.last_ms > at_ms), self._periods[-1])
        point = first_at(self._points, at_ms)
        if point is None or period.snapshot_ts <= snapshot_after(point.start_ts):
            return period.moment(at_ms)
        return Moment(snapshot_after(point.start_ts), point.wall_ms)

    def _thinned(self, points: list[TimePoint]) -> list[TimePoint]:
        """Return the points to keep. Within the retention a point is removed only if its neighbours are no further
        apart than the interval (each new TSO notes a point at once), so times stay as exact as promised. If a lease
        holds W for months, there are points older than the retention: remove every second one of their older half."""
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
    """Return the age of each point at `wall_ms`: none is younger than a later point, and none is negative."""
    newest_first: list[float] = []
    age_s = 0.0
    for point in reversed(points):
        age_s = max(age_s, (wall_ms - point.wall_ms) / 1000)
        newest_first.append(age_s)
    return reversed(newest_first)
