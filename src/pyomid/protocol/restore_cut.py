"""Cut the snapshots of a backup to the backup's moment s (decision 0078).

Each region's snapshot was taken at a different time after s was handed out. So it may hold cells of transactions that
committed later or never, and cells without their shadow cells. They are resolved as in compaction, by the copy of the
commit table, which no longer changes:

    shadow cell or entry, commit < s     stays, with its shadow cell
    commit > s; neither; sealed          goes: a reader at s does not see it
    neither, of an earlier TSO           *doubtful*

A commit of the TSO that handed out s was durable before s was handed out. But a flush of an earlier, dead TSO may land
at any time: after the commit table's snapshot, and before or between the data's snapshots. If a reader found that entry
meanwhile, some of the transaction's cells have shadow cells in the snapshots and others have not. So a doubtful start
is committed if any of its cells, in any table, has a shadow cell. When all tables have been cut, the shadow cells of
doubtful starts are searched, and the cut is repeated:

    E1 decides c1 for x and dies     E2 hands out s      commit table: no x     x's late entry lands
    a reader heals x@row 1           snapshot of row 1: with shadow cell         of row 2, earlier: without
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from pyomid.cells import CellBatch
from pyomid.protocol.compaction import BATCH_ROWS_MAX, plan_cleaning
from pyomid.protocol.effects import CleanBatch, ReadRange, Steps
from pyomid.protocol.reading import CommitCache, FetchedBatch, SealRule, resolve_steps, version_bound
from pyomid.types import TIMESTAMP_STEP, BackupManifest, KeyRange


@dataclass(slots=True)
class Cut:
    """The result of cutting regions. `doubtful`: starts whose cells were left unchanged."""

    rows: int = 0
    cells_healed: int = 0
    cells_dropped: int = 0
    doubtful: set[int] = field(default_factory=set)


def cut_region_steps(
    table: str,
    region: KeyRange,
    moment: BackupManifest,
    cut: Cut,
    *,
    expired_to: int = 0,
    is_last: bool = False,
    rows_max: int = BATCH_ROWS_MAX,
) -> Steps[None]:
    """Cut `region`: afterwards each remaining version committed below the moment, and has its shadow cell; except
    versions of doubtful starts, unless this `is_last`. Versions that no snapshot from the moment on sees go as well.

    The driver must answer `LookupThenWatermarks` with the horizon of the moment and the known outcomes of doubtful
    starts, and `SealStarts` with "placed", because the copy has no writer. Idempotent.
    """
    cache = CommitCache()
    start: bytes | None = region.start
    while start is not None:
        batch: CellBatch = yield ReadRange(table, KeyRange(start, region.stop), None, rows_max)
        start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None
        if batch.rows:
            yield from _cut_batch_steps(table, batch, moment, cut, cache, expired_to, is_last)


def explained_steps(table: str, region: KeyRange, doubtful: Collection[int], known: dict[int, int]) -> Steps[None]:
    """Add to `known` the commit timestamps of `doubtful` starts that have shadow cells in `region`."""
    wanted = np.array(sorted(doubtful), np.int64)
    start: bytes | None = region.start
    while start is not None:
        batch: CellBatch = yield ReadRange(table, KeyRange(start, region.stop), None, BATCH_ROWS_MAX)
        start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None
        if batch.rows:
            starts = batch.rec_version - batch.rec_version % TIMESTAMP_STEP
            resolved = np.flatnonzero((batch.rec_commit > 0) & np.isin(starts, wanted))
            known.update(zip(starts[resolved].tolist(), batch.rec_commit[resolved].tolist(), strict=True))


def _cut_batch_steps(
    table: str,
    batch: CellBatch,
    moment: BackupManifest,
    cut: Cut,
    cache: CommitCache,
    expired_to: int,
    is_last: bool,
) -> Steps[None]:
    fetched = FetchedBatch(table, None, version_bound(moment.newest_ts), frozenset(), batch)
    resolution = yield from resolve_steps(fetched, SealRule.of_compactor(), cache)
    batch = fetched.batch
    is_later = batch.rec_commit >= moment.snapshot_ts
    later = batch.rec_version[is_later] - batch.rec_version[is_later] % TIMESTAMP_STEP
    batch.rec_commit[is_later] = 0
    doubtful = set() if is_last else {start for start in resolution.missed if moment.horizon <= start <= moment.epoch}
    cut.doubtful |= doubtful
    gone = np.array(sorted((resolution.missed - doubtful) | set(later.tolist())), np.int64)
    resolved = fetched.resolved[~is_later[fetched.resolved]]
    heals, drops = plan_cleaning(batch, moment.newest_ts, gone, resolved, expired_to)
    cut.rows += batch.rows
    cut.cells_healed += int((batch.rec_cell[heals + 1] - batch.rec_cell[heals]).sum())
    cut.cells_dropped += len(drops)
    if len(heals) or len(drops):
        yield CleanBatch(table, batch, heals, drops)
