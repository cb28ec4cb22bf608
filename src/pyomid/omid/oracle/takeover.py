"""Take over as the TSO, in the only safe order (protocol.md, Leadership).

    0. hold the lease (over HBase: in ZooKeeper)
    1. put the epoch into the leader state by compare-and-set: from here on an earlier TSO's writes to it fail, and
       that TSO exits at its next read
    2. if the ceiling is kept elsewhere, move it by compare-and-set; the epoch is at or above the replaced value.
       pyomid notes each ceiling in the leader state before it moves the ceiling. So a ceiling that is not noted is a
       Java TSO's, and any table may be missing from the catalog (K6): mark that before replacing the note
    3. read W, H, leases and pending records
    4. finish pending large commits: if s committed, put the entries of its branches; otherwise seal s and all its
       branches
    5. W = max(old W, min(epoch, leases − 1, what the retention keeps)); discard leases at or below the old W
    6. announce the address, and answer requests

The leader state must be read after step 1 (T5). Otherwise the old TSO could add a pending record after the read, and
only half of its large commit would be in the commit table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyomid.errors import Deposed
from pyomid.omid.oracle.instructions import (
    LookupEntries,
    MarkUnknownTable,
    MoveCeiling,
    PutBranches,
    ReadCeiling,
    ReadLeaderState,
    SealEntries,
    TakeOverEpoch,
    UpdateLeaderState,
)
from pyomid.protocol.timestamps import kept_start
from pyomid.protocol.wall_clock import check_clock
from pyomid.types import (
    NOT_FOUND,
    SEALED,
    TABLES_UNCONFIRMED,
    TIMESTAMP_STEP,
    LeaderRecord,
    LeaderStateChanges,
    PendingCommit,
    start_of,
)


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The initial state of the new TSO's machine. Every timestamp that earlier TSOs handed out is at or below
    `epoch`."""

    epoch: int
    ceiling: int
    watermark: int
    horizon: int
    leases: frozenset[int]
    finished: tuple[PendingCommit, ...] = ()
    retention_s: float = 0.0
    wall_ns: int = 0
    """Wall-clock time of the takeover, in nanoseconds since 1970; 0 if unknown."""


async def take_leadership(
    *,
    ceiling_step: int,
    ceiling_elsewhere: bool = False,
    retention_s: float | None = None,
    wall_ns: int = 0,
    accept_clock: bool = False,
) -> TakenOver:
    """Take over and return the new TSO's initial state. Raises `Deposed` if another TSO is faster.

    `retention_s` None keeps the retention of the leader state. `wall_ns` is now, in nanoseconds since 1970; raises
    Misuse if `check_clock` finds it wrong.
    """
    epoch_above = partial(_epoch_above, wall_ns, accept_clock)
    if ceiling_elsewhere:
        epoch, ceiling = await _fence_and_move_ceiling(ceiling_step, epoch_above)
    else:
        epoch, ceiling = await _fence(ceiling_step, epoch_above)
    state: LeaderRecord = await ReadLeaderState()
    if state.epoch != epoch:
        raise Deposed(f"epoch {state.epoch} replaced epoch {epoch} during the takeover", epoch=epoch)
    for record in state.pending:
        await finish_pending(record, epoch)
    leases = frozenset(lease for lease in _leases_left(state) if lease > state.watermark)
    retention_ms = state.retention_ms if retention_s is None else round(retention_s * 1000)
    kept = kept_start(wall_ns, retention_ms / 1000) if retention_ms else None
    watermark = watermark_at_start(epoch, leases, state.watermark, kept)
    await UpdateLeaderState(
        epoch,
        LeaderStateChanges(
            watermark=watermark,
            leases_removed=tuple(sorted(state.leases - leases)),
            retention_ms=None if retention_ms == state.retention_ms else retention_ms,
        ),
    )
    return TakenOver(
        epoch,
        ceiling,
        watermark,
        state.horizon,
        leases,
        state.pending,
        retention_s=retention_ms / 1000,
        wall_ns=wall_ns,
    )


def watermark_at_start(epoch: int, leases: frozenset[int], watermark: int, kept: int | None = None) -> int:
    """Return the W of a new TSO. No start at or below its epoch can commit, so only the leases and the history that is
    kept (above `kept`) hold W back. W never falls."""
    held = [lease - 1 for lease in leases] if kept is None else [kept, *(lease - 1 for lease in leases)]
    return max(watermark, min([epoch, *held]))


async def finish_pending(record: PendingCommit, epoch: int) -> None:
    """Finish a pending large commit. Afterwards either all or nothing of it is committed, and its record and lease are
    gone."""
    [found] = await LookupEntries((record.start_ts,))
    if found == NOT_FOUND:
        [outcome] = await SealEntries((record.start_ts,))
        found = SEALED if outcome.placed else outcome.commit_ts
    if found == SEALED:
        await SealEntries(record.branches)
    else:
        await PutBranches(record.branches, found)
    await UpdateLeaderState(
        epoch, LeaderStateChanges(pending_removed=(record.start_ts,), leases_removed=(record.start_ts,))
    )


EpochAbove = Callable[[int, LeaderRecord], int]
"""A function that returns the new epoch, given a ceiling and the leader state."""


def _epoch_above(wall_ns: int, accept_clock: bool, ceiling: int, state: LeaderRecord) -> int:
    """T3: return an epoch at or above the wall clock and every timestamp that an earlier TSO may have handed out."""
    used = max(_aligned(ceiling), _aligned(state.ceiling), state.epoch + TIMESTAMP_STEP)
    if wall_ns:
        check_clock(wall_ns, used if ceiling or state.epoch else 0, accept=accept_clock)
    return max(used, start_of(wall_ns))


async def _fence(ceiling_step: int, epoch_above: EpochAbove) -> tuple[int, int]:
    """Replace epoch and ceiling by one compare-and-set, and return the new ones. The epoch is at or above the replaced
    ceiling."""
    epoch, _ = await _replace_epoch(0, epoch_above, lambda epoch, noted: epoch + ceiling_step)
    return epoch, epoch + ceiling_step


async def _fence_and_move_ceiling(ceiling_step: int, epoch_above: EpochAbove) -> tuple[int, int]:
    """Replace the epoch, then move the ceiling, and return both. Only the compare-and-set that replaces the old TSO's
    ceiling shows its last value."""
    ceiling: int = await ReadCeiling()
    epoch, noted = await _replace_epoch(ceiling, epoch_above, lambda epoch, noted: noted)
    while True:
        ceiling = await ReadCeiling()
        if ceiling not in (0, noted):
            await MarkUnknownTable(TABLES_UNCONFIRMED)
        fence, epoch = epoch, max(epoch, _aligned(ceiling), _aligned(noted))
        if epoch != fence and not (await TakeOverEpoch(fence, epoch, noted)):
            raise Deposed(f"another TSO replaced epoch {fence} first", epoch=fence)
        noted = epoch + ceiling_step
        await UpdateLeaderState(epoch, LeaderStateChanges(ceiling=noted))
        if await MoveCeiling(ceiling, noted):
            return epoch, noted


async def _replace_epoch(
    ceiling: int, epoch_above: EpochAbove, next_ceiling: Callable[[int, int], int]
) -> tuple[int, int]:
    """Replace the epoch. Return the new epoch and the ceiling that the leader state held. `next_ceiling` computes, from
    these two, the ceiling that replaces it.

    The epoch is at or above `ceiling` and the ceiling of the leader state. The compare-and-set also fails if the old
    TSO moved the ceiling after the read (decision 0003). Then it is retried with the new value.
    """
    state: LeaderRecord = await ReadLeaderState()
    while True:
        epoch = epoch_above(ceiling, state)
        if await TakeOverEpoch(state.epoch, epoch, next_ceiling(epoch, state.ceiling)):
            return epoch, state.ceiling
        before = state
        state = await ReadLeaderState()
        if state.epoch != before.epoch or state.ceiling == before.ceiling:
            raise Deposed(f"another TSO replaced epoch {before.epoch} first", epoch=before.epoch)


def _aligned(ceiling: int) -> int:
    """Round the ceiling up to a multiple of 50. The result is at or above every timestamp that was handed out below the
    ceiling."""
    return ceiling + -ceiling % TIMESTAMP_STEP


def _leases_left(state: LeaderRecord) -> frozenset[int]:
    """Return the leases, except those of pending large commits, which the takeover has finished."""
    return state.leases - {record.start_ts for record in state.pending}
