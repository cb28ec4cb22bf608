"""Answer begin requests: at once from the oldest window, or later, when another window can serve them (`windows`).

    Begin ─► a window serves it ─► BeginReply
          └► it waits (`WaitingBegins`) ─► a batch is released ─► BeginReply

Start timestamps are handed out in ascending order.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Misuse
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.oracle.waiting import WaitingBegin
from pyomid.protocol.timestamps import dated
from pyomid.types import TIMESTAMP_STEP, BeginReply

BEGINS_A_STEP: Final = 256
"""The maximum number of waiting begins that one step answers: a few milliseconds of work."""


def ask(tso: TsoState, peer: Hashable, tag: int, not_before: int) -> None:
    last_issued = tso.windows.clock.last_issued
    if not_before > last_issued:
        tso.step.refuse(peer, tag, Misuse(
            f"not_before {not_before} is above every timestamp issued so far (the newest is {last_issued})",
            not_before=not_before,
            last_issued=last_issued,
        ))  # fmt: skip
    elif tso.waiting_begins.are_ready or not _answer(tso, peer, tag, not_before):
        tso.waiting_begins.add(WaitingBegin(peer, tag, not_before), is_ready=tso.windows.reaches(not_before))
        tso.step.counters["begin_waits"] += 1


def _answer(tso: TsoState, peer: Hashable, tag: int, not_before: int) -> bool:
    answer = take(tso, peer, not_before)
    if answer is not None:
        tso.step.reply(peer, tag, answer)
    return answer is not None


def take(tso: TsoState, peer: Hashable, not_before: int) -> BeginReply | None:
    """Return a new start timestamp above LWM and `not_before`, or None if no window can serve one yet. The start counts
    as open from now on (T16)."""
    start_ts = tso.windows.take_start(max(not_before, tso.oracle.low_watermark))
    if start_ts is None:
        return None
    tso.open_starts.handed_out(peer, tso.newest_start, start_ts)
    tso.newest_start = start_ts
    tso.step.counters["begins"] += 1
    return BeginReply(start_ts, tso.oracle.epoch, tso.fenced_ts)


def draw_start(tso: TsoState) -> int | None:
    """Return a start timestamp for the machine's own use, or None if no window can serve one."""
    start_ts = tso.windows.take_start(tso.oracle.low_watermark)
    if start_ts is not None:
        tso.newest_start = start_ts
    return start_ts


def answer_waiting(tso: TsoState) -> None:
    """Answer waiting begins, one per peer in turn. A begin whose `not_before` is not reached delays no other. A step
    answers at most `BEGINS_A_STEP` begins, so that other requests do not wait for all of them."""
    waiting = tso.waiting_begins
    tso.step.has_more_begins = False
    if not waiting:
        return
    waiting.line_up(tso.windows.reaches)
    for _ in range(BEGINS_A_STEP):
        begin = waiting.first()
        if begin is None or not _answer(tso, begin.peer, begin.tag, begin.not_before):
            return
        waiting.pop_first()
    tso.step.has_more_begins = waiting.are_ready


# ── valid starts ─────────────────────────────────────────────────────────────────────────────────────────────


def is_issued(tso: TsoState, start_ts: int) -> bool:
    return 0 < start_ts <= tso.newest_start and start_ts % TIMESTAMP_STEP == 0


def are_issued(tso: TsoState, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, for each of `starts`, whether this timestamp can be a start that was handed out (`is_issued`)."""
    found: NDArray[np.bool_] = (starts > 0) & (starts <= tso.newest_start) & (starts % TIMESTAMP_STEP == 0)
    return found


def not_a_start(tso: TsoState, start_ts: int) -> Misuse:
    return Misuse(
        f"start_ts {start_ts} was never handed out: start timestamps are multiples of {TIMESTAMP_STEP}, and the "
        f"newest is {dated(tso.newest_start)}",
        start_ts=start_ts,
    )
