"""Handle commits to tables that are not decidable yet, and fences (K6, T8; `tables`)."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from typing import Final

from pyomid.errors import Misuse, Unavailable
from pyomid.omid.oracle import ceiling, commits
from pyomid.omid.oracle.instructions import MarkUnknownTable, ReadTables, Reply
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.wire.messages import Fence, FenceReply
from pyomid.protocol.timestamps import dated
from pyomid.types import CommitRequest

FENCED_TABLES_MAX: Final = 65_536
"""The maximum number of tables fenced above D. The TSO remembers the fence of each until D has passed it. A drop needs
three fences."""


# ── tables that are not decidable ───────────────────────────────────────────────────────────────────────────


def decide_later(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> None:
    """K6: let a commit wait until each of its tables that the catalog does not list has a durable mark.

    A commit that a fence refuses is aborted at once and leaves no mark. Its mark would come after the drop that sent
    the fence has removed the table's mark.
    """
    conflict = commits.find_conflict(tso, request)
    if conflict is not None:
        commits.abort(tso, peer, tag, request, conflict)
        return
    tso.table_calls.waiting.append((peer, tag, request))
    tso.first_attempts.wait(request)
    if not tso.table_calls.is_looking_up:
        tso.table_calls.is_looking_up = True
        tso.store.run(_look_up(tso))


async def _look_up(tso: TsoState) -> None:
    """Read the catalog once for all waiting commits, and put one mark per missing table. Then the commits are handled
    again."""
    while tso.table_calls.waiting:
        waiting, tso.table_calls.waiting = tso.table_calls.waiting, []
        try:
            await _read(tso)
            waiting = [each for each in waiting if _may_name(tso, *each)]
            for _, _, request in waiting:
                for table_id in request.table_ids:
                    if _needs_mark(tso, table_id, request):
                        await _mark(tso, table_id)
        except Unavailable as error:
            for peer, tag, request in waiting:
                tso.first_attempts.end_wait(request)
                tso.step.refuse(peer, tag, error)
            continue
        for peer, tag, request in waiting:
            tso.first_attempts.end_wait(request)
            tso.again.append((peer, tag, request))
    tso.table_calls.is_looking_up = False


def _needs_mark(tso: TsoState, table_id: int, request: CommitRequest) -> bool:
    """Return whether the commit needs a mark of the table. A commit that a fence refuses needs none, even if the fence
    came while the catalog was read."""
    return table_id not in tso.tables.decidable and commits.find_conflict(tso, request) is None


async def _read(tso: TsoState) -> None:
    call = tso.tables.begin_call()
    try:
        registered: frozenset[int] = await ReadTables()
    except Unavailable:
        tso.tables.end_call(call)
        raise
    tso.tables.end_call(call, registered=registered)


async def _mark(tso: TsoState, table_id: int) -> None:
    """Put a mark. A fence of the same table waits until the mark is put, because the fence's sender removes the mark
    and no mark may be put after that."""
    call = tso.tables.begin_call()
    tso.table_calls.marking = table_id
    marked = None
    try:
        await MarkUnknownTable(table_id)
        marked = table_id
        tso.step.counters["unknown_tables"] += 1
    finally:
        tso.tables.end_call(call, marked=marked)
        tso.table_calls.marking = None
        fences, tso.table_calls.fences_behind_mark = tso.table_calls.fences_behind_mark, []
        for waiting in fences:
            fence(tso, *waiting)


def _may_name(tso: TsoState, peer: Hashable, tag: int, request: CommitRequest) -> bool:
    """Return whether the commit may name its tables. Unregistered tables are limited, so that random ids cannot fill
    the catalog or memory. A commit over the limit is refused here."""
    if tso.tables.name(request.table_ids, tso.settings.unknown_tables_max):
        return True
    tso.first_attempts.end_wait(request)
    tso.step.refuse(peer, tag, _too_many_unregistered(tso, request.start_ts))
    return False


def _too_many_unregistered(tso: TsoState, start_ts: int) -> Misuse:
    return Misuse(
        f"start_ts {start_ts} names tables that are not registered, and the TSO remembers "
        f"{len(tso.tables.unregistered)} such tables already: `pyomid tables URL discover` prints the "
        "commands that register them",
        start_ts=start_ts,
    )


def read_if_due(tso: TsoState) -> None:
    """Read the list of registered tables again if `tables_interval_s` has passed."""
    if tso.step.now_s >= tso.table_calls.read_due_s and not tso.table_calls.is_reading:
        tso.table_calls.is_reading = True
        tso.store.run(_read_again(tso))


async def _read_again(tso: TsoState) -> None:
    with suppress(Unavailable):  # keep the old list; a commit to a table missing from it reads the catalog
        await _read(tso)
    tso.table_calls.is_reading = False
    tso.table_calls.read_due_s = tso.step.now_s + tso.settings.tables_interval_s


# ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────


def fence(tso: TsoState, peer: Hashable, tag: int, table_id: int) -> None:
    """T8: draw a fence as part of the open batch. The oldest batch closes after its fence, so the next window lies
    above the fence.

    Fences that come while their batch waits behind others share that batch, because its window serves no begin yet. The
    TSO forgets the table (K6), because the table may be dropped and its mark removed.
    """
    fenced = tso.oracle.fenced
    if table_id == tso.table_calls.marking:
        tso.table_calls.fences_behind_mark.append((peer, tag, table_id))
        return
    if table_id not in fenced and len(fenced) >= FENCED_TABLES_MAX:
        decided = dated(tso.watermarks.decided)
        tso.step.refuse(peer, tag, Unavailable(
            f"{len(fenced)} tables are fenced above the low watermark {decided}, which is the maximum that the TSO "
            "remembers; try again after the watermark has passed some of the fences"
        ))  # fmt: skip
        return
    fence_ts = tso.windows.clock.take()
    if fence_ts is None:
        ceiling.wait(tso, peer, tag, Fence(table_id))
        return
    tso.oracle.fence(table_id, fence_ts)
    fenced.add(table_id)
    tso.fenced_ts = fence_ts
    tso.tables.forget(table_id)
    tso.step.counters["fences"] += 1
    commits.answer_after_batch(tso, Reply(peer, tag, FenceReply(table_id, fence_ts)))
