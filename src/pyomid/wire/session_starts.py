"""Open starts, the client's side: those of a session, and its reports to the TSO (T16; protocol.md, Open starts). The
TSO's side is `oracle.watermarks`.

    begin requested ─► `expect` ─► answer ─► `received` ─► the transaction ends ─► `OpenStart.end`
                          └────────────────── counts as open ──────────────────────────┘

The `OpenStart` is created before the request is sent, and the reply refers to it. The start counts as open until its
`end` is called, its `OpenStart` is garbage, or the TSO's maximum age is over. No method blocks or locks, because a
start may end in any thread and at any point.
"""

from __future__ import annotations

import itertools
from typing import Final
from weakref import ReferenceType

from pyomid.ports import Clock
from pyomid.types import OpenStart
from pyomid.wire.messages import ReportOpenStarts

REPORT_S: Final = 2.0
"""A session reports at most this often, and only if something changed."""


class OpenStarts:
    """The open starts of one session. `client`: its random id; a forked child has another. `slack_s`: how long a begin
    may be in flight."""

    def __init__(self, *, client: bytes, slack_s: float, holder: str, clock: Clock) -> None:
        self.age_s = 0.0
        """How long the TSO keeps an open start; 0: it takes no reports."""
        self._slack_s = slack_s
        self._holder = holder
        self._clock = clock
        self._client = client
        self._connections = 0
        self._newest = 0
        self._held: dict[int, ReferenceType[OpenStart]] = {}
        """number → start, in the order of the begins."""
        self._numbers = itertools.count(1)
        self._begins = 0
        self._reported = (-1, 0)
        """(oldest start, number of begins) of the last report."""

    # ── open starts ──────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self) -> OpenStart:
        """Count a begin that is about to be requested. Pass the result to `received`, or end it if the begin fails."""
        until_s = self._clock() + self.age_s + self._slack_s
        self._begins += 1
        return OpenStart(self._held, next(self._numbers), self._newest + 1, until_s)

    def received(self, held: OpenStart, start_ts: int) -> None:
        """The begin is answered: the reply must carry `held`."""
        if self.age_s:
            held.until_s = self._clock() + self.age_s
            held.at_least = start_ts
        else:
            held.end()
        self._newest = max(self._newest, start_ts)

    # ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────

    def connected(self, age_s: float, epoch: int) -> None:
        """A new connection replaces the former one. Its first request must be a report. `epoch`: the TSO's; all its
        starts are above it."""
        self._connections += 1
        self.age_s = age_s
        self._newest = max(self._newest, epoch)
        self._reported = (-1, 0)

    @property
    def is_reported(self) -> bool:
        """Whether there is nothing to report."""
        return not self.age_s or self._reported == (self._oldest(), self._begins)

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    def next_report(self) -> ReportOpenStarts:
        """Return the report to send now. No begin may leave between this call and the sending (`told_in_order` of the
        model)."""
        begins, oldest = self._begins, self._oldest()
        is_first = self._reported[0] < 0
        self._reported = (oldest, begins)
        return ReportOpenStarts(self._client, self._connections, oldest, self._holder if is_first else "")

    def _oldest(self) -> int:
        """Return a lower bound of all starts that are open or in flight; 0 if there are none."""
        now_s = self._clock()
        oldest = 0
        for number, reference in self._held.copy().items():
            held = reference()
            if held is None or held.until_s <= now_s:
                self._held.pop(number, None)
            else:
                oldest = min(oldest or held.at_least, held.at_least)
        return oldest
