"""What each effect of the protocol does to the ports: one table, used by every driver of real parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyomid.cells import CellBatch, batch_of
from pyomid.client.deployment import Deployment
from pyomid.crashpoints import crash_point
from pyomid.ports import LooksUpAtOnce, PipelinedWrites
from pyomid.protocol import effects
from pyomid.types import CommitReply

Perform = Callable[[Any], Any]
"""Performs one effect and returns its result; takes the effect class it is registered for."""


def port_performers(parts: Deployment) -> dict[type[effects.Effect], Perform]:
    """Every effect, performed at once and in this thread."""
    return {**store_performers(parts), **tso_performers(parts)}


def store_performers(parts: Deployment) -> dict[type[effects.Effect], Perform]:
    """The effects that touch the store, the commit table, the leader state or the catalog."""
    store, catalog, leader_state = parts.store, parts.catalog, parts.leader_state
    return {
        **_ahead_performers(parts),
        effects.ReadRows: lambda e: store.read_rows(e.table, e.rows, e.columns, bounds=e.bounds),
        effects.ReadRange: lambda e: _read_range(parts, e),
        effects.LookupThenWatermarks: _look_up_then_watermarks(parts),
        effects.ReadWatermarks: lambda e: leader_state.read_watermarks(),
        effects.WriteCells: lambda e: _write_cells(parts, e),
        effects.WriteShadowCells: lambda e: _write_shadow_cells(parts, e),
        effects.Heal: lambda e: _heal(parts, e),
        effects.DeleteOrphans: lambda e: store.delete_versions(e.table, e.cells),
        effects.DeleteVersions: lambda e: _delete_versions(parts, e),
        effects.CleanBatch: lambda e: store.clean_batch(e.table, e.batch, e.heals, e.drops),
        effects.FlushAndMerge: lambda e: store.flush_and_merge(e.table, e.region),
        effects.RecordWatermark: lambda e: catalog.put_region_watermark(e.record),
        effects.ReadUnknownTables: lambda e: catalog.unknown_tables(),
        effects.ReadTables: lambda e: catalog.registered(),
        effects.DropRegionWatermarks: lambda e: catalog.drop_region_watermarks(e.newest),
        effects.ReadRegionWatermarks: lambda e: catalog.region_watermarks(e.table),
    }


def _ahead_performers(parts: Deployment) -> dict[type[effects.Effect], Perform]:
    store = parts.store
    if not isinstance(store, PipelinedWrites):
        return {}
    return {
        effects.BeginWrite: lambda e: _begin_write(store, e),
        effects.EndWrites: lambda e: _end_writes(store, e),
        effects.WriteShadowBatches: lambda e: _write_shadow_batches(store, e),
    }


def tso_performers(parts: Deployment) -> dict[type[effects.Effect], Perform]:
    """The effects that ask the TSO."""
    tso = parts.tso
    return {
        effects.SealStarts: lambda e: tso.seal(e.starts),
        effects.SendCommit: lambda e: _send_commit(parts, e),
        effects.DeleteCommitEntries: lambda e: _complete(parts, e),
        effects.AdvanceHorizon: lambda e: tso.advance_horizon(e.horizon),
    }


def perform(performers: Mapping[type[effects.Effect], Perform], effect: effects.Effect) -> Any:
    return performers[type(effect)](effect)


def _look_up_then_watermarks(parts: Deployment) -> Perform:
    """In one round trip where the commit table can; else, and where that failed, in two, in this order (R4)."""
    commit_table, leader_state = parts.commit_table, parts.leader_state
    at_once = commit_table.lookup_then_watermarks if isinstance(commit_table, LooksUpAtOnce) else None

    def perform_both(effect: effects.LookupThenWatermarks) -> tuple[list[int], int, int]:
        both = at_once(effect.starts) if at_once is not None else None
        if both is not None:
            return both
        states = commit_table.lookup(effect.starts)
        return states, *leader_state.read_watermarks()

    return perform_both


def _read_range(parts: Deployment, effect: effects.ReadRange) -> CellBatch:
    rows_max = _ALL_ROWS if effect.rows_max is None else effect.rows_max
    batches = parts.store.scan(effect.table, effect.key_range, effect.columns, batch_rows_max=rows_max)
    first = next(batches, None)
    if first is None:
        return batch_of([])
    if effect.rows_max is not None:
        return first
    others = list(batches)
    if not others:
        return first
    return batch_of([list(batch.row_cells(row)) for batch in (first, *others) for row in range(batch.rows)])


_ALL_ROWS = 1 << 30


def _write_cells(parts: Deployment, effect: effects.WriteCells) -> None:
    crash_point("client.flush.before")
    parts.store.write_cells(effect.table, effect.version, effect.rows)
    crash_point("client.flush.after")


def _begin_write(store: PipelinedWrites, effect: effects.BeginWrite) -> object:
    crash_point("client.flush.before")
    return store.begin_write(effect.table, effect.version, effect.batch)


def _end_writes(store: PipelinedWrites, effect: effects.EndWrites) -> None:
    store.end_writes(effect.begun)
    crash_point("client.flush.after")


def _write_shadow_batches(store: PipelinedWrites, effect: effects.WriteShadowBatches) -> None:
    crash_point("client.complete.shadows_before")
    store.write_shadow_batches(effect.table, effect.version, effect.batches, effect.commit_ts)
    crash_point("client.complete.shadows_after")


def _send_commit(parts: Deployment, effect: effects.SendCommit) -> CommitReply:
    crash_point("client.commit.before")
    reply = parts.tso.commit(effect.request)
    crash_point("client.commit.answered")
    return reply


def _write_shadow_cells(parts: Deployment, effect: effects.WriteShadowCells) -> None:
    crash_point("client.complete.shadows_before")
    parts.store.write_shadow_cells(effect.table, effect.shadows)
    crash_point("client.complete.shadows_after")


def _complete(parts: Deployment, effect: effects.DeleteCommitEntries) -> None:
    crash_point("client.complete.delete_before")
    parts.tso.complete(effect.starts)
    crash_point("client.complete.delete_after")


def _delete_versions(parts: Deployment, effect: effects.DeleteVersions) -> None:
    crash_point("client.rollback.before")
    parts.store.delete_versions(effect.table, effect.cells)
    crash_point("client.rollback.after")


def _heal(parts: Deployment, effect: effects.Heal) -> None:
    crash_point("client.heal.before")
    parts.store.write_shadow_cells(effect.table, effect.shadows)
