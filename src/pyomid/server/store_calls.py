"""The machine's store operations, performed on the ports. Blocking; a service calls it off its event loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyomid.crashpoints import crash_point
from pyomid.oracle.instructions import (
    DeleteBelow,
    DeleteEntries,
    Flush,
    Flushed,
    LookupEntries,
    MarkUnknownTable,
    MoveCeiling,
    PutBranches,
    PutDecision,
    ReadCeiling,
    ReadEpoch,
    ReadLeaderState,
    ReadTables,
    SealEntries,
    StoreOperation,
    TakeOverEpoch,
    UpdateLeaderState,
)
from pyomid.oracle.takeover import TakenOver, TakeOverSteps
from pyomid.ports import Catalog, CeilingStore, CommitTable, FlushesAtOnce, LeaderState, SealsMany, TakesBlocks
from pyomid.protocol.hashing import table_id


@dataclass(frozen=True, slots=True)
class TsoStores:
    """What a TSO writes to. `ceiling` only where it is kept outside the leader state."""

    commit_table: CommitTable
    leader_state: LeaderState
    catalog: Catalog
    ceiling: CeilingStore | None = None


def perform(stores: TsoStores, operation: StoreOperation) -> object:
    """Returns what the operation's docstring names; raises the ports' errors."""
    table, row = stores.commit_table, stores.leader_state
    match operation:
        case Flush(entries, block) as flush:
            crash_point("tso.flush.before")
            if _offers(type(table), FlushesAtOnce):
                both = cast(FlushesAtOnce, table).flush(rows_of(flush))
            else:
                both = None
            if both is not None:
                crash_point("tso.flush.after")
                return Flushed(frozenset(both[0]), both[1])
            refused = frozenset(table.put(entries)) if entries else frozenset()
            if block is not None and len(block):
                refused |= frozenset(_put_block(table, block))
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
            if isinstance(table, SealsMany):
                return table.seal_many(starts)
            return [table.seal(start_ts) for start_ts in starts]
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
        case MarkUnknownTable(unknown):
            stores.catalog.mark_unknown_table(unknown)
    return None


def take_over(stores: TsoStores, steps: TakeOverSteps) -> TakenOver:
    """Runs a take-over to its end; `Deposed` where another TSO is faster."""
    result: object = None
    try:
        while True:
            result = perform(stores, steps.send(result))
    except StopIteration as end:
        taken_over: TakenOver = end.value
        return taken_over


@cache
def _offers(table_type: type, port: type) -> bool:
    """Asked once: to compare a class with a protocol takes longer than to flush a batch to memory."""
    return issubclass(table_type, port)


def rows_of(flush: Flush) -> NDArray[np.int64]:
    """All its entries, as rows (start, commit)."""
    rows = np.array(flush.entries, dtype=np.int64).reshape(-1, 2)
    if flush.block is None:
        return rows
    return np.concatenate([rows, flush.block]) if len(rows) else flush.block


def _put_block(table: CommitTable, block: NDArray[np.int64]) -> list[int]:
    if _offers(type(table), TakesBlocks):
        return cast(TakesBlocks, table).put_block(block)
    return table.put([(start, commit) for start, commit in block.tolist()])


def _ceiling(stores: TsoStores) -> CeilingStore:
    assert stores.ceiling is not None, "the machine was told that the ceiling is kept elsewhere"
    return stores.ceiling
