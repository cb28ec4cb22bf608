"""Hand out start timestamps: at once from the begin windows, or from the next window.

    Begin ─► `Begins`: a window serves it ─► BeginReply
                     └► it waits (`WaitingBegins`) ─► a batch is released ─► BeginReply

`Ceiling` moves the durable ceiling ahead of the clock. A request that needs a timestamp above the ceiling waits there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Misuse
from pyomid.oracle.instructions import MoveCeiling
from pyomid.oracle.outgoing import Death, EpochWrite, Procedure
from pyomid.types import TIMESTAMP_MAX, TIMESTAMP_STEP, BeginReply, LeaderStateChanges
from pyomid.wire.messages import Request

if TYPE_CHECKING:
    from pyomid.oracle.machine import TsoMachine

BEGINS_A_STEP: Final = 256
"""Waiting begins answered per step: a few milliseconds of work."""


class Begins:
    """Hands out starts. They leave in ascending order."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso
        self.newest_start = tso.epoch
        """The newest start handed out."""
        self.fenced_ts = 0
        """The newest fence that was requested; each later start carries it (`protocol.commit.may_use_rules`)."""
        self.waiting = WaitingBegins()

    def ask(self, peer: Hashable, tag: int, not_before: int) -> None:
        last_issued = self._tso.windows.clock.last_issued
        if not_before > last_issued:
            self._tso.step.refuse(peer, tag, Misuse(
                f"not_before {not_before} is above every timestamp issued ({last_issued})",
                not_before=not_before,
                last_issued=last_issued,
            ))  # fmt: skip
        elif self.waiting.are_ready or not self._answer(peer, tag, not_before):
            self.waiting.add(WaitingBegin(peer, tag, not_before), is_ready=self._tso.windows.reaches(not_before))
            self._tso.step.counters["begin_waits"] += 1

    def _answer(self, peer: Hashable, tag: int, not_before: int) -> bool:
        answer = self.take(peer, not_before)
        if answer is not None:
            self._tso.step.reply(peer, tag, answer)
        return answer is not None

    def take(self, peer: Hashable, not_before: int) -> BeginReply | None:
        """Hand out a start above LWM, so that the transaction can commit, and above `not_before`. It is open from now
        on (T16)."""
        start_ts = self._tso.windows.take_start(max(not_before, self._tso.oracle.low_watermark))
        if start_ts is None:
            return None
        self._tso.open_starts.handed_out(peer, self.newest_start, start_ts)
        self.newest_start = start_ts
        self._tso.step.counters["begins"] += 1
        return BeginReply(start_ts, self._tso.oracle.epoch, self.fenced_ts)

    def draw_start(self) -> int | None:
        """Return a start for the machine's own use; None if no window has one."""
        start_ts = self._tso.windows.take_start(self._tso.oracle.low_watermark)
        if start_ts is not None:
            self.newest_start = start_ts
        return start_ts

    def answer_waiting(self) -> None:
        """Answer waiting begins, one per peer in turn. A begin whose `not_before` is not reached delays no other. A
        step answers at most `BEGINS_A_STEP`, so that other requests do not wait for all of them."""
        waiting = self.waiting
        self._tso.step.has_more_begins = False
        if not len(waiting):
            return
        waiting.line_up(self._tso.windows.reaches)
        for _ in range(BEGINS_A_STEP):
            begin = waiting.first()
            if begin is None or not self._answer(begin.peer, begin.tag, begin.not_before):
                return
            waiting.pop_first()
        self._tso.step.has_more_begins = waiting.are_ready

    # ── valid starts ─────────────────────────────────────────────────────────────────────────────────────────────

    def is_issued(self, start_ts: int) -> bool:
        return 0 < start_ts <= self.newest_start and start_ts % TIMESTAMP_STEP == 0

    def are_issued(self, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`is_issued` of each."""
        found: NDArray[np.bool_] = (starts > 0) & (starts <= self.newest_start) & (starts % TIMESTAMP_STEP == 0)
        return found

    def not_a_start(self, start_ts: int) -> Misuse:
        return Misuse(
            f"start_ts {start_ts} was never handed out: starts are multiples of {TIMESTAMP_STEP}, "
            f"the newest is {self.newest_start}",
            start_ts=start_ts,
        )


class Ceiling:
    """Law 8: moves the durable ceiling ahead before timestamps run out. A request that waits for it is then handled
    anew."""

    def __init__(self, tso: TsoMachine) -> None:
        self._tso = tso
        self._is_moving = False
        self.waiting: deque[tuple[Hashable, int, Request]] = deque()

    def wait(self, peer: Hashable, tag: int, request: Request) -> None:
        self.waiting.append((peer, tag, request))

    def forget(self, peer: Hashable) -> None:
        """The peer disconnected: drop its requests."""
        if self.waiting:
            self.waiting = deque(entry for entry in self.waiting if entry[0] != peer)

    def renew(self) -> None:
        wall_ms = self._tso.step.wall_ms if self._tso.settings.world_time else 0
        wanted = self._tso.clock.wanted_ceiling(wall_ms)
        if wanted > self._tso.clock.ceiling and not self._is_moving:
            if wanted > TIMESTAMP_MAX:
                raise Death(f"timestamps are used up: {wanted} does not fit 63 bits")
            self._is_moving = True
            self._tso.store.run(self._move_steps(wanted))

    def _move_steps(self, ceiling: int) -> Procedure:
        yield EpochWrite(LeaderStateChanges(ceiling=ceiling))
        if self._tso.settings.ceiling_elsewhere:  # noted first, so that the next TSO knows it for pyomid's (`takeover`)
            moved: bool = yield MoveCeiling(self._tso.clock.ceiling, ceiling)
            if not moved:
                raise Death("another TSO moved the timestamp ceiling")
        self._tso.clock.ceiling = ceiling
        self._is_moving = False
        waited, self.waiting = self.waiting, deque()
        for peer, tag, request in waited:
            self._tso.take_request(peer, tag, request)


@dataclass(slots=True)
class WaitingBegin:
    peer: Hashable
    tag: int
    not_before: int
    is_awaited: bool = True


class WaitingBegins:
    """Begins for which there is no window yet. Each peer's begins keep their order, and peers take turns.

    The cost of one begin does not grow with the number that waits. A begin whose `not_before` no window has reached
    waits in a heap and delays no other. Windows ascend, so once its `not_before` is reached it stays ready.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[WaitingBegin]] = {}
        self._turns: deque[Hashable] = deque()
        """Peers with ready begins, each once."""
        self._unreached: list[tuple[int, int, WaitingBegin]] = []
        """A heap by `not_before` and arrival. `_gone` of its begins belong to disconnected peers."""
        self._unreached_of: dict[Hashable, dict[int, WaitingBegin]] = {}
        self._arrivals = 0
        self._gone = 0
        self._ready = 0

    def __len__(self) -> int:
        return self._ready + len(self._unreached) - self._gone

    @property
    def are_ready(self) -> bool:
        return self._ready > 0

    def add(self, begin: WaitingBegin, *, is_ready: bool) -> None:
        if is_ready:
            self._line_up(begin)
            return
        self._arrivals += 1
        self._unreached_of.setdefault(begin.peer, {})[self._arrivals] = begin
        heapq.heappush(self._unreached, (begin.not_before, self._arrivals, begin))

    def line_up(self, reaches: Callable[[int], bool]) -> None:
        """Make the begins ready whose `not_before` is reached."""
        while self._unreached and reaches(self._unreached[0][0]):
            _, arrival, begin = heapq.heappop(self._unreached)
            if not begin.is_awaited:
                self._gone -= 1
                continue
            of_peer = self._unreached_of[begin.peer]
            del of_peer[arrival]
            if not of_peer:
                del self._unreached_of[begin.peer]
            self._line_up(begin)

    def first(self) -> WaitingBegin | None:
        """The next begin to answer."""
        return self._lines[self._turns[0]][0] if self._turns else None

    def pop_first(self) -> None:
        """Remove `first`, and continue with the next peer."""
        peer = self._turns.popleft()
        line = self._lines[peer]
        line.popleft()
        self._ready -= 1
        if line:
            self._turns.append(peer)
        else:
            del self._lines[peer]

    def forget(self, peer: Hashable) -> None:
        """The peer disconnected: drop its begins."""
        line = self._lines.pop(peer, None)
        if line is not None:
            self._ready -= len(line)
            self._turns.remove(peer)
        for begin in self._unreached_of.pop(peer, {}).values():
            begin.is_awaited = False
            self._gone += 1
        if 2 * self._gone > len(self._unreached):
            self._unreached = [entry for entry in self._unreached if entry[2].is_awaited]
            heapq.heapify(self._unreached)
            self._gone = 0

    def _line_up(self, begin: WaitingBegin) -> None:
        line = self._lines.get(begin.peer)
        if line is None:
            line = self._lines[begin.peer] = deque()
            self._turns.append(begin.peer)
        line.append(begin)
        self._ready += 1
