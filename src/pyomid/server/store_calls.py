"""Performs the machine's store operations on the ports, except a service's flushes (`server.flush`). Blocking: call it
on a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyomid.crashpoints import crash_point
from pyomid.oracle.instructions import (
    DeleteBelow,
    DeleteEntries,
    Flush,
    Flushed,
    LookupEntries,
    MarkUnknownTable,
    MoveCeiling,
    NoteTime,
    PutBranches,
    PutDecision,
    ReadCeiling,
    ReadEpoch,
    ReadLeaderState,
    ReadTables,
    ReadTimePoints,
    SealEntries,
    StoreOperation,
    TakeOverEpoch,
    UpdateLeaderState,
)
from pyomid.oracle.settings import TsoSettings
from pyomid.oracle.takeover import TakenOver, take_over_steps
from pyomid.ports import Catalog, CeilingStore, CommitTable, LeaderState
from pyomid.protocol.hashing import table_id
from pyomid.server.flush import rows_of


@dataclass(frozen=True, slots=True)
class TsoStores:
    """The stores of a TSO. `ceiling` is None if the leader state holds the ceiling. `check` raises `Unavailable` while
    the store does not answer, and `UnknownTable` if the database was never created."""

    commit_table: CommitTable
    leader_state: LeaderState
    catalog: Catalog
    ceiling: CeilingStore | None = None
    check: Callable[[], None] = lambda: None
    changed_ms: int = 0
    """See `oracle.takeover.TakenOver`."""


def perform(stores: TsoStores, operation: StoreOperation) -> object:
    """Perform the operation and return its result, as its docstring describes. Raises the ports' errors."""
    table, row = stores.commit_table, stores.leader_state
    match operation:
        case Flush(entries, block, cells, epoch):
            crash_point("tso.flush.before")
            if cells:
                end = table.put_with_cells(rows_of(operation), cells, epoch)
                crash_point("tso.flush.after")
                return Flushed(frozenset(end.refused), end.epoch, end.failed)
            refused = frozenset(table.put(entries)) if entries else frozenset()
            if block is not None and len(block):
                refused |= frozenset(table.put_block(block))
            crash_point("tso.flush.after")
            return Flushed(refused, row.read().epoch)
        case PutDecision(start_ts, commit_ts):
            crash_point("tso.decision.before")
            placed = table.put_unless_sealed(start_ts, commit_ts)
            crash_point("tso.decision.after")
            return Flushed(frozenset() if placed else frozenset((start_ts,)), row.read().epoch)
        case PutBranches(branches, commit_ts):
            crash_point("tso.branches.before")
            table.put_branches(branches, commit_ts)
            crash_point("tso.branches.after")
            return row.read().epoch
        case LookupEntries(starts):
            return table.lookup(starts)
        case SealEntries(starts):
            return table.seal_many(starts)
        case DeleteEntries(starts):
            table.delete(starts)
        case DeleteBelow(horizon):
            return table.delete_below(horizon)
        case ReadEpoch():
            return row.read().epoch
        case ReadLeaderState():
            return row.read()
        case TakeOverEpoch(expected, epoch, ceiling):
            return row.take_over(expected=expected, epoch=epoch, ceiling=ceiling)
        case UpdateLeaderState(epoch, changes):
            if changes.leases_added:
                crash_point("tso.lease.before")
            if changes.pending_added:
                crash_point("tso.pending.before")
            crash_point("tso.leader_state.before")
            row.update(epoch, changes)
            crash_point("tso.leader_state.after")
        case ReadCeiling():
            return _ceiling(stores).read()
        case MoveCeiling(expected, ceiling):
            crash_point("tso.ceiling.before")
            return _ceiling(stores).compare_and_set(expected, ceiling)
        case ReadTables():
            return frozenset(table_id(info.name.encode()) for info in stores.catalog.tables())
        case ReadTimePoints():
            return row.time_points()
        case NoteTime(point, gone):
            row.note_time(point, gone)
        case MarkUnknownTable(unknown):
            stores.catalog.mark_unknown_table(unknown)
    return None


def take_over(stores: TsoStores, settings: TsoSettings, *, wall_ms: int) -> TakenOver:
    """Take over as the leader of the stores and return what the machine needs; `Deposed` if another TSO is faster."""
    steps = take_over_steps(
        ceiling_step=settings.ceiling_step,
        ceiling_elsewhere=settings.ceiling_elsewhere,
        retention_s=settings.retention_s,
        wall_ms=wall_ms,
        changed_ms=stores.changed_ms,
    )
    result: object = None
    try:
        while True:
            result = perform(stores, steps.send(result))
    except StopIteration as end:
        taken_over: TakenOver = end.value
        return taken_over


def _ceiling(stores: TsoStores) -> CeilingStore:
    assert stores.ceiling is not None, "the machine's settings say that the ceiling is kept elsewhere"
    return stores.ceiling
