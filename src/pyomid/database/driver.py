"""The blocking driver of a client's routines. The asyncio driver is `AsyncDriver` (`async_driver`).

A routine awaits an effect (of `protocol.effects`, or a client's effect below), and the handler of the effect's class
performs it. Every error (even Ctrl-C, a cancellation, or a thread that cannot start) is thrown into the routine at that
effect, and the routine decides what to report or undo.

    Transaction.commit()  ──drive──▶  TransactionCore.commit  ◀──adrive──  AsyncTransaction.commit()
                                     │ WriteCells, SendCommit, Blocking …
                          Driver.handlers          AsyncDriver.perform: awaited, or in a thread
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, Final, Protocol, TypeVar

from pyomid.cells import CellBatch, batch_of
from pyomid.coroutines import Blocking, Effect, Handler, Pause, Routine, drive
from pyomid.crashpoints import crash_point
from pyomid.database.background import Background
from pyomid.ports import Deployment, Sleep, Tso
from pyomid.protocol import effects
from pyomid.types import BeginReply, CommitReply

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallProgram(Effect[Any]):
    """Call the program's own function, and return its result, or the result of the coroutine that it returned."""

    call: Callable[[], Any]


# Over a deployment


class Driver:
    """Runs routines in the calling thread. Without `background`, it performs heals and orphan deletes at once."""

    def __init__(
        self, deployment: Deployment, background: Background | None = None, *, sleep: Sleep = time.sleep
    ) -> None:
        self.handlers: Final = port_handlers(deployment)
        self.handlers[Blocking] = self.handlers[CallProgram] = methodcaller("call")
        self.handlers[Pause] = lambda e: sleep(e.pause_s)
        if background is not None:
            self.handlers[effects.Heal] = self.handlers[effects.DeleteOrphans] = background.offer

        self.run: Final[Run] = partial(drive, handlers=self.handlers)

    def perform(self, effect: Effect[T]) -> T:
        return self.handlers[type(effect)](effect)  # type: ignore[no-any-return]


class Run(Protocol):
    """The type of `Driver.run`."""

    def __call__(self, routine: Routine[T], /) -> T: ...


# Effect handlers over the ports


def port_handlers(deployment: Deployment) -> dict[type[Effect[Any]], Handler]:
    """Return handlers of all effects, which perform them at once in the calling thread."""
    return {**store_handlers(deployment), **tso_handlers(deployment)}


def store_handlers(deployment: Deployment) -> dict[type[Effect[Any]], Handler]:
    """Return handlers of the effects on store, commit table, leader state and catalog."""
    store, catalog, leader_state = deployment.store, deployment.catalog, deployment.leader_state
    return {
        effects.ReadRows: lambda e: store.read_rows(e.table, e.rows, e.columns, bounds=e.bounds),
        effects.ReadSettled: lambda e: store.read_settled(e.table, e.rows, e.columns, e.bounds, e.expired_to),
        effects.ReadRange: partial(_read_range, deployment),
        effects.NextBatch: partial(_next_batch, deployment),
        effects.StartOfLastRows: lambda e: store.start_of_last_rows(e.table, e.key_range, e.rows),
        effects.LookupThenWatermarks: partial(_look_up_then_watermarks, deployment),
        effects.ReadWatermarks: lambda e: leader_state.read_watermarks(),
        effects.ReadValidity: partial(_read_validity, deployment),
        effects.ReadNotedDrop: lambda e: catalog.noted_drop(e.table),
        effects.ForgetTable: lambda e: None,
        effects.PackCommit: lambda e: store.pack_commit(
            e.start_ts, e.branches, e.changes, claims_all=e.claims_all, claims_tables=e.claims_tables
        ),
        effects.WriteCells: partial(_write_cells, deployment),
        effects.BeginWrite: partial(_begin_write, deployment),
        effects.EndWrites: partial(_end_writes, deployment),
        effects.WriteShadowBatches: partial(_write_shadow_batches, deployment),
        effects.WriteShadowCells: partial(_write_shadow_cells, deployment),
        effects.Heal: partial(_heal, deployment),
        effects.DeleteOrphans: lambda e: store.delete_versions(e.table, e.cells),
        effects.DeleteVersions: partial(_delete_versions, deployment),
        effects.CleanBatch: lambda e: store.clean_batch(e.table, e.batch, e.heals, e.drops),
        effects.FlushAndMerge: lambda e: store.flush_and_merge(e.table, e.region),
        effects.RecordWatermark: lambda e: catalog.put_region_watermark(e.record),
        effects.ReadUnknownTables: lambda e: catalog.unknown_tables(),
        effects.ReadTables: lambda e: catalog.registered(),
        effects.DropRegionWatermarks: lambda e: catalog.drop_region_watermarks(e.newest),
        effects.ReadRegionWatermarks: lambda e: catalog.region_watermarks(e.table),
    }


def tso_handlers(deployment: Deployment) -> dict[type[Effect[Any]], Handler]:
    """Return handlers of the requests to the TSO."""
    tso = deployment.tso
    return {
        effects.Begin: partial(_begin, tso),
        effects.Reach: lambda e: tso.reach(e.timestamp),
        effects.DrawVersion: lambda e: tso.version_of(e.start_ts),
        effects.SealStarts: lambda e: tso.seal(e.starts),
        effects.SendCommit: partial(_send_commit, deployment),
        effects.DeleteCommitEntries: partial(_complete, deployment),
        effects.AdvanceHorizon: lambda e: tso.advance_horizon(e.horizon),
    }


def _begin(tso: Tso, effect: effects.Begin) -> BeginReply:
    reply = tso.begin(not_before=effect.not_before)
    if not effect.is_held:
        reply.end()
    return reply


def _look_up_then_watermarks(
    deployment: Deployment, effect: effects.LookupThenWatermarks
) -> tuple[list[int], int, int]:
    """Look up entries, then W and H: in one round trip if the commit table can do that, otherwise in two, in this order
    (R4)."""
    both = deployment.commit_table.lookup_then_watermarks(effect.starts)
    if both is not None:
        return both
    states = deployment.commit_table.lookup(effect.starts)
    return states, *deployment.leader_state.read_watermarks()


def _read_range(deployment: Deployment, effect: effects.ReadRange) -> CellBatch:
    rows_max = _ALL_ROWS if effect.rows_max is None else effect.rows_max
    batches = deployment.store.scan(
        effect.table, effect.key_range, effect.columns, batch_rows_max=rows_max, bounds=effect.bounds
    )
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


def _next_batch(deployment: Deployment, effect: effects.NextBatch) -> CellBatch | None:
    if effect.batches is None:
        effect.batches = deployment.store.scan(
            effect.table, effect.key_range, effect.columns, batch_rows_max=effect.rows_max, bounds=effect.bounds
        )
    return next(effect.batches, None)


def _read_validity(deployment: Deployment, effect: effects.ReadValidity) -> tuple[int, int]:
    """Read W and the table's generation: in one round trip if the catalog can do that, otherwise in two, in any
    order."""
    both = deployment.catalog.watermark_and_generation(effect.table)
    if both is not None:
        return both
    watermark, _ = deployment.leader_state.read_watermarks()
    return watermark, deployment.catalog.generation(effect.table)


def _write_cells(deployment: Deployment, effect: effects.WriteCells) -> None:
    crash_point("client.flush.before")
    deployment.store.write_cells(effect.table, effect.version, effect.rows)
    crash_point("client.flush.after")


def _begin_write(deployment: Deployment, effect: effects.BeginWrite) -> object:
    crash_point("client.flush.before")
    return deployment.store.begin_write(effect.table, effect.version, effect.batch)


def _end_writes(deployment: Deployment, effect: effects.EndWrites) -> None:
    deployment.store.end_writes(effect.begun)
    crash_point("client.flush.after")


def _write_shadow_batches(deployment: Deployment, effect: effects.WriteShadowBatches) -> None:
    crash_point("client.complete.shadows_before")
    deployment.store.write_shadow_batches(effect.table, effect.version, effect.batches, effect.commit_ts)
    crash_point("client.complete.shadows_after")


def _send_commit(deployment: Deployment, effect: effects.SendCommit) -> CommitReply:
    crash_point("client.commit.before")
    reply = deployment.tso.commit(effect.request)
    crash_point("client.commit.answered")
    return reply


def _write_shadow_cells(deployment: Deployment, effect: effects.WriteShadowCells) -> None:
    crash_point("client.complete.shadows_before")
    deployment.store.write_shadow_cells(effect.table, effect.shadows)
    crash_point("client.complete.shadows_after")


def _complete(deployment: Deployment, effect: effects.DeleteCommitEntries) -> None:
    crash_point("client.complete.delete_before")
    deployment.commit_table.delete(effect.starts)
    crash_point("client.complete.delete_after")


def _delete_versions(deployment: Deployment, effect: effects.DeleteVersions) -> None:
    crash_point("client.rollback.before")
    deployment.store.delete_versions(effect.table, effect.cells)
    crash_point("client.rollback.after")


def _heal(deployment: Deployment, effect: effects.Heal) -> None:
    crash_point("client.heal.before")
    deployment.store.write_shadow_cells(effect.table, effect.shadows)
