"""The starts that a session holds open, and what it tells the TSO of them (T16; protocol.md, Open starts).

    begin is asked ─► `expect` ─► answer ─► `received` ─► the transaction ends ─► `ended`
                         └── counts as open: from `newest` on ──┘

A start whose end is not noted is open until it is as old as the TSO lets any start become. No method waits or locks:
a transaction may be forgotten, and so ended, in any thread and amid anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from pyomid.ports import Clock
from pyomid.wire.messages import TellOpen

TELL_S: Final = 2.0
"""A session tells at most this often, and only what changed."""


class OpenStarts:
    """`client`: a random id of this process, not of a forked child. `slack_s`: how long a begin may be under way."""

    def __init__(self, *, client: bytes, slack_s: float, holder: str, clock: Clock) -> None:
        self.age_s = 0.0
        """For how long the TSO keeps a start that is open; 0: it is told of none."""
        self._slack_s = slack_s
        self._holder = holder
        self._clock = clock
        self._client = client
        self._connections = 0
        self._newest = 0
        self._open: dict[int, float] = {}
        """By start: until when it counts."""
        self._expected: dict[int, tuple[int, float]] = {}
        """By ticket: what it brings is above this start; until when it counts."""
        self._tickets = itertools.count(1)
        self._begins = 0
        self._told = (-1, 0)
        """What was told last, after how many begins."""

    # ── what is open ─────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self) -> int:
        """A begin is about to be asked. Its ticket, for `received` and `expect_no_more`."""
        ticket = next(self._tickets)
        self._begins += 1
        self._expected[ticket] = (self._newest, self._clock() + self.age_s + self._slack_s)
        return ticket

    def received(self, start_ts: int) -> None:
        if self.age_s:
            self._open[start_ts] = self._clock() + self.age_s
        self._newest = max(self._newest, start_ts)

    def expect_no_more(self, ticket: int) -> None:
        """The begin is answered, and `received` was called; or its caller no longer waits."""
        self._expected.pop(ticket, None)

    def ended(self, start_ts: int) -> None:
        self._open.pop(start_ts, None)

    # ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────

    def connected(self, age_s: float, epoch: int) -> None:
        """A new connection; the former one is of no use any more. `TellOpen` is to be the first request on it.
        `epoch`: the TSO's, which all that it hands out is above."""
        self._connections += 1
        self.age_s = age_s
        self._newest = max(self._newest, epoch)
        self._told = (-1, 0)

    @property
    def is_told(self) -> bool:
        """The TSO knows all that there is to know."""
        return not self.age_s or self._told == (self._oldest(), self._begins)

    @property
    def holds_any(self) -> bool:
        return bool(self._open or self._expected)

    def telling(self) -> TellOpen:
        """What to tell now. No begin may leave between this call and the sending (`told_in_order` of the model)."""
        begins, oldest = self._begins, self._oldest()
        is_first = self._told[0] < 0
        self._told = (oldest, begins)
        return TellOpen(self._client, self._connections, oldest, self._holder if is_first else "")

    def _oldest(self) -> int:
        """All that is open, or may become so, is at or above it; 0: nothing is."""
        now_s = self._clock()
        expected = self._expected.copy()  # first: what it brings is in `_open` before it is no more expected
        still_open = self._open.copy()
        for start_ts, until_s in still_open.items():
            if until_s <= now_s:
                self._open.pop(start_ts, None)
        for ticket, (_, until_s) in expected.items():
            if until_s <= now_s:
                self._expected.pop(ticket, None)
        starts = [start_ts for start_ts, until_s in still_open.items() if until_s > now_s]
        starts += [above + 1 for above, until_s in expected.values() if until_s > now_s]
        return min(starts, default=0)


class OpenStart:
    """A start that a transaction holds open, until `end` or until the transaction is forgotten."""

    __slots__ = ("_note_ended", "start_ts")

    def __init__(self, start_ts: int, note_ended: Callable[[int], None]) -> None:
        self.start_ts = start_ts
        self._note_ended = note_ended

    def end(self) -> None:
        self._note_ended(self.start_ts)

    __del__ = end
