"""What the snapshots of a back-up hold, cut to the back-up's moment s (decision 0078).

Each region was taken at a moment of its own, some time after s was handed out. So there are cells of transactions that
committed later, and of some that never did; and there are cells without their shadow cells. They are told apart as a
compactor tells them, by the copy of the commit table, which nobody changes any more:

    shadow cell or entry, commit < s     stays, with its shadow cell
    commit > s; neither; sealed          goes: a reader at s does not see it
    neither, of an earlier TSO           *doubtful*

A commit of the TSO that handed out s was durable before s was. A flush of an earlier TSO, which died, may land at any
time: behind the commit table's snapshot, and before or between those of the data. Where somebody met that entry
meanwhile, some of the transaction's cells have shadow cells in the snapshots and others have not. So a doubtful start
is committed if any of its cells, in any table, has a shadow cell. That is looked for when all tables have been cut, and
then the cut is repeated:

    E1 decides c1 for x and dies     E2 hands out s      commit table: no x     x's late entry lands
    a reader heals x@row 1           snapshot of row 1: with shadow cell         of row 2, earlier: without
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pyomid.arrays import np
from pyomid.cells import CellBatch
from pyomid.protocol.compaction import BATCH_ROWS_MAX
from pyomid.protocol.effects import CleanBatch, ReadRange, Steps
from pyomid.protocol.reading import CommitCache, FetchedBatch, SealRule, resolve_steps, version_bound
from pyomid.protocol.version_cleanup import plan_cleaning
from pyomid.types import TIMESTAMP_STEP, BackupManifest, KeyRange


@dataclass(slots=True)
class Cut:
    """What was done to some regions. `doubtful`: starts whose cells were left as they are."""

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
    """Afterwards each version in `region` that is left committed below the moment, and has its shadow cell; except
    those of doubtful starts, unless this `is_last`. What no snapshot from the moment on sees goes as well.

    `LookupThenWatermarks` is to be answered with the horizon of the moment, and with what is known of doubtful starts;
    `SealStarts` with "placed": the copy has no writer. Repeatable.
    """
    cache = CommitCache()
    start: bytes | None = region.start
    while start is not None:
        batch: CellBatch = yield ReadRange(table, KeyRange(start, region.stop), None, rows_max)
        start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None
        if batch.rows:
            yield from _cut_batch_steps(table, batch, moment, cut, cache, expired_to, is_last)


def explained_steps(table: str, region: KeyRange, doubtful: Collection[int], known: dict[int, int]) -> Steps[None]:
    """Adds to `known` the commit timestamps that shadow cells in `region` tell of `doubtful` starts."""
    wanted = np.array(sorted(doubtful), np.int64)
    start: bytes | None = region.start
    while start is not None:
        batch: CellBatch = yield ReadRange(table, KeyRange(start, region.stop), None, BATCH_ROWS_MAX)
        start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None
        if batch.rows:
            starts = batch.rec_version - batch.rec_version % TIMESTAMP_STEP
            told = np.flatnonzero((batch.rec_commit > 0) & np.isin(starts, wanted))
            known.update(zip(starts[told].tolist(), batch.rec_commit[told].tolist(), strict=True))


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
