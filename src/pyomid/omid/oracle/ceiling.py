"""Law 8: move the durable ceiling ahead before timestamps run out.

request ─► no timestamp below the ceiling ─► request waits ─► a higher ceiling is durable ─► request is handled again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from pyomid.omid.oracle import watermarks
from pyomid.omid.oracle.instructions import MoveCeiling
from pyomid.omid.oracle.outgoing import Death, EpochWrite
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.wire.messages import Request
from pyomid.types import TIMESTAMP_MAX, LeaderStateChanges


def wait(tso: TsoState, peer: Hashable, tag: int, request: Request) -> None:
    """Handle the request again when the ceiling has moved."""
    tso.ceiling.waiting.append((peer, tag, request))
    tso.first_attempts.wait(request)


def forget(tso: TsoState, peer: Hashable) -> None:
    """Drop the waiting requests of a peer that disconnected."""
    waiting, tso.ceiling.waiting = tso.ceiling.waiting, deque()
    for entry in waiting:
        if entry[0] == peer:
            tso.first_attempts.end_wait(entry[2])
        else:
            tso.ceiling.waiting.append(entry)


def renew(tso: TsoState) -> None:
    """Move the ceiling if few timestamps remain below it. An idle TSO does not move it; the next request waits for the
    move."""
    wanted = tso.clock.wanted_ceiling(tso.step.wall_ns)
    if wanted > tso.numbers.ceiling and not tso.ceiling.is_moving and _is_used(tso):
        if wanted > TIMESTAMP_MAX:
            raise Death(f"timestamps are used up: {wanted} does not fit 63 bits")
        tso.ceiling.is_moving, tso.ceiling.moved_for = True, _used(tso)
        tso.store.run(_move(tso, wanted))


def _used(tso: TsoState) -> tuple[int, int]:
    return tso.newest_start, tso.windows.closed_ts


def _is_used(tso: TsoState) -> bool:
    """Return whether a timestamp was handed out since the last move of the ceiling, or a request waits for one."""
    waits = bool(tso.ceiling.waiting) or len(tso.waiting_begins) > 0 or tso.watermarks.needs_start
    return waits or _used(tso) != tso.ceiling.moved_for or not tso.windows.open_batch.is_empty


async def _move(tso: TsoState, ceiling: int) -> None:
    await EpochWrite(LeaderStateChanges(ceiling=ceiling))
    if tso.settings.ceiling_elsewhere:  # the leader state notes it first (`takeover`)
        moved: bool = await MoveCeiling(tso.clock.ceiling, ceiling)
        if not moved:
            raise Death("another TSO moved the timestamp ceiling")
    tso.clock.ceiling = ceiling
    tso.ceiling.is_moving = False
    # If the store was slow, the wall clock may have passed the new ceiling too. Then the waiting requests get the
    # timestamps that `is_moving` keeps back.
    tso.windows.follow(tso.step.wall_ns, is_moving=True)
    if tso.watermarks.needs_start:
        watermarks.draw_if_quiet(tso)
    waited, tso.ceiling.waiting = tso.ceiling.waiting, deque()
    for peer, tag, request in waited:
        tso.first_attempts.end_wait(request)
        tso.again.append((peer, tag, request))
