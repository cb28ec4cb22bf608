"""Compact a region: write missing shadow cells, drop versions that no snapshot above W needs, then record W. A backup's
snapshots are cut to the backup's moment in the same way.

W is read first and recorded last (laws 4 and 6). In between, every unresolved version ≤ W is looked up, read again,
sealed, and read once more (K2):

    K scans x@100, no shadow cell
                                    T: shadow cell written, commit-table entry deleted
    K looks 100 up: no entry
    K fetches the row again and finds the shadow cell. Deleting x@100 would have lost a commit.

Of the versions with start ≤ W, these are dropped (protocol.md, "Compaction"; K1, K3):

    not committed                        is dropped
    commit > W                           stays, with its predecessor: a reader between their commits needs that
    commit ≤ W                           the greatest version stays, the others are dropped
    hidden by a family tombstone         is dropped, if both committed ≤ W: no snapshot above W sees it
    family tombstone                     a later tombstone supersedes it; a later value in its own column does not
    tombstone, itself the greatest ≤ W   is dropped only when nothing that it hides stays in this row
    value committed ≤ `expired_to`       the same: every snapshot above W reads it as a tombstone of its column (E2)

Versions with start > W stay as they are. A rule that compares starts instead of commits would get this history wrong
(K1): v1 (start 10, commit 20), v2 (start 30, commit 100), W = 50. A reader at 60 needs v1. Tests compare the compiled
pass with a reference implementation on random histories.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.coroutines import Routine
from pyomid.protocol.effects import CleanBatch, FlushAndMerge, ReadRange, ReadWatermarks, RecordWatermark
from pyomid.protocol.native import version_cleanup as kernels
from pyomid.protocol.reading import CommitCache, FetchedBatch, SealRule, resolve, version_bound
from pyomid.types import BackupManifest, KeyRange, RegionWatermark

Indices: TypeAlias = "NDArray[np.int64]"

dropped_cells = kernels.dropped_cells


def plan_cleaning(
    batch: CellBatch, watermark: int, orphans: Indices, resolved: Indices, expired_to: int = 0
) -> tuple[Indices, Indices]:
    """Return (heals, drops) for `DataStore.clean_batch`: ascending indices of records, and ascending indices of cells.

    `orphans` are sorted starts ≤ W that were sealed, and whose cells were read again after that. No other unresolved
    cell is dropped. `resolved` are the records whose `rec_commit` came from the commit table; a record gets its shadow
    cell if any of its cells stays. Values up to the commit `expired_to` have expired for every snapshot above
    `watermark`.
    """
    if not batch.rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    family, is_family_tombstone_column = _families(batch)
    starts = np.ascontiguousarray(orphans, dtype=np.int64)
    dropped = dropped_cells(batch.arrays(), family, is_family_tombstone_column, starts, expired_to, watermark)
    return _records_that_stay(batch, resolved, dropped), np.flatnonzero(dropped).astype(np.int64)


def _families(batch: CellBatch) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    numbers: dict[bytes, int] = {}
    family = [numbers.setdefault(column.family, len(numbers)) for column in batch.columns]
    return np.array(family, np.int32), np.array([not c.qualifier for c in batch.columns], np.bool_)


def _records_that_stay(batch: CellBatch, resolved: Indices, dropped: NDArray[np.bool_]) -> Indices:
    if not len(resolved):
        return np.empty(0, np.int64)
    dropped_before = np.zeros(batch.cells + 1, np.int64)
    np.cumsum(dropped, out=dropped_before[1:])
    begin, end = batch.rec_cell[resolved], batch.rec_cell[resolved + 1]
    staying = (end - begin) > (dropped_before[end] - dropped_before[begin])
    return np.sort(resolved[staying]).astype(np.int64)


BATCH_ROWS_MAX = 10_000
"""The rows cleaned by one write: enough for the compiled pass, and few enough for short write transactions."""


@dataclass(slots=True)
class RegionCleaned:
    """The result of compacting a region. `watermark` is the W that was recorded."""

    table: str
    key_range: KeyRange
    watermark: int
    rows: int = 0
    cells: int = 0
    cells_healed: int = 0
    cells_dropped: int = 0
    orphans_dropped: int = 0
    versions_dropped: int = 0
    """The number of records that lost all their cells."""
    cells_above: int = 0
    """The number of cells that cannot be cleaned yet, because they were written or committed above W, or are open. A
    later run cleans them."""


async def compact_region(
    table: str,
    generation: int,
    region: KeyRange,
    cache: CommitCache,
    *,
    now_s: float,
    watermark: int | None = None,
    rows_max: int = BATCH_ROWS_MAX,
    expired_to: int = 0,
    seen: Callable[[int], object] | None = None,
) -> RegionCleaned:
    """Clean every row of `region` up to W, then record W. After each batch, `seen` is called with its number of rows.

    `generation` is the table's, read before the call; a record of a former generation does not count (K5). `watermark`
    is an older published W to clean by, if Java clients share the store; None means the present W. `now_s` is the wall
    clock before the call, stored with the record. `expired_to` comes from `expiry.droppable_to` with an earlier W.
    """
    published, _ = await ReadWatermarks()
    bound = published if watermark is None else min(watermark, published)
    await FlushAndMerge(table, region)
    cleaned = RegionCleaned(table, region, bound)
    clean = partial(_clean_batch, table, bound, expired_to, cache, cleaned, seen)
    await each_batch(table, region, clean, rows_max)
    await RecordWatermark(RegionWatermark(table, generation, region, bound, now_s))
    return cleaned


async def each_batch(
    table: str, key_range: KeyRange, take: Callable[[CellBatch], Awaitable[None]], rows_max: int = BATCH_ROWS_MAX
) -> None:
    """Read the range, and await `take` for each batch that has rows."""
    start: bytes | None = key_range.start
    while start is not None:
        batch: CellBatch = await ReadRange(table, KeyRange(start, key_range.stop), None, rows_max)
        start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None
        if batch.rows:
            await take(batch)


async def _clean_batch(
    table: str,
    watermark: int,
    expired_to: int,
    cache: CommitCache,
    cleaned: RegionCleaned,
    seen: Callable[[int], object] | None,
    batch: CellBatch,
) -> None:
    fetched = FetchedBatch(table, None, version_bound(watermark), frozenset(), batch)
    resolution = await resolve(fetched, SealRule.of_compactor(), cache)
    batch = fetched.batch
    orphans = np.array(sorted(s for s in resolution.missed if s <= watermark), np.int64)
    heals, drops = plan_cleaning(batch, watermark, orphans, fetched.resolved, expired_to)
    _count(cleaned, batch, heals, drops, bound=watermark)
    if len(heals) or len(drops):
        await CleanBatch(table, batch, heals, drops)
    if seen is not None:
        seen(batch.rows)


def _count(cleaned: RegionCleaned, batch: CellBatch, heals: Indices, drops: Indices, *, bound: int) -> None:
    cleaned.rows += batch.rows
    cleaned.cells += batch.cells
    cleaned.cells_healed += int((batch.rec_cell[heals + 1] - batch.rec_cell[heals]).sum())
    cleaned.cells_dropped += len(drops)
    if len(drops):
        records = np.searchsorted(batch.rec_cell, drops, side="right") - 1
        cleaned.orphans_dropped += int((batch.rec_commit[records] == 0).sum())
        places, dropped = np.unique(records, return_counts=True)
        cleaned.versions_dropped += int((dropped == np.diff(batch.rec_cell)[places]).sum())
    is_above = (batch.rec_version >= version_bound(bound)) | (batch.rec_commit > bound)
    cleaned.cells_above += int(np.diff(batch.rec_cell)[is_above].sum())


# The cut of a backup's snapshots to the backup's moment s (decision 0078).
#
# Each region's snapshot was taken at a different time after s was handed out. So it may hold cells of transactions that
# committed later or never, and cells without their shadow cells. Cells are resolved as in compaction, but by the copy
# of the commit table, which no longer changes:
#
#     shadow cell or entry, commit < s     stays, with its shadow cell
#     commit > s; neither; sealed          goes: a reader at s does not see it
#     neither, of an earlier TSO           *doubtful*
#
# A commit of the TSO that handed out s was durable before s was handed out. But a flush of an earlier, dead TSO may
# land at any time: after the commit table's snapshot, and before or between the data's snapshots. If a reader found
# that entry meanwhile, some of the transaction's cells have shadow cells in the snapshots and others have not. So a
# doubtful start is committed if any of its cells, in any table, has a shadow cell. When all tables have been cut, the
# shadow cells of doubtful starts are searched, and the cut is repeated:
#
#     E1 decides c1 for x and dies     E2 hands out s      commit table: no x     x's late entry lands
#     a reader heals x@row 1           snapshot of row 1: with shadow cell         of row 2, earlier: without


@dataclass(slots=True)
class Cut:
    """The result of cutting regions. `doubtful` holds the starts whose cells were left unchanged."""

    rows: int = 0
    cells_healed: int = 0
    cells_dropped: int = 0
    doubtful: set[int] = field(default_factory=set)


def cut_region(
    table: str,
    region: KeyRange,
    moment: BackupManifest,
    cut: Cut,
    *,
    expired_to: int = 0,
    is_last: bool = False,
) -> Routine[None]:
    """Cut `region` to the backup's moment. Afterwards each remaining version was committed below the moment and has its
    shadow cell. Versions that no snapshot from the moment on sees are dropped too. Versions of doubtful starts stay,
    unless this `is_last`.

    The driver must answer `LookupThenWatermarks` with the horizon of the moment and the known outcomes of doubtful
    starts, and `SealStarts` with "placed", because the copy has no writer. Idempotent.
    """
    cut_batch = partial(_cut_batch, table, moment, cut, CommitCache(), expired_to, is_last)
    return each_batch(table, region, cut_batch)


def explained_batch(table: str, region: KeyRange, doubtful: Collection[int], known: dict[int, int]) -> Routine[None]:
    """B7: add to `known` the commit timestamp of each of the `doubtful` starts that has a shadow cell in `region`."""
    wanted = np.array(sorted(doubtful), np.int64)

    async def explain(batch: CellBatch) -> None:
        starts = batch.rec_start
        resolved = np.flatnonzero((batch.rec_commit > 0) & np.isin(starts, wanted))
        known.update(zip(starts[resolved].tolist(), batch.rec_commit[resolved].tolist(), strict=True))

    return each_batch(table, region, explain)


async def _cut_batch(
    table: str,
    moment: BackupManifest,
    cut: Cut,
    cache: CommitCache,
    expired_to: int,
    is_last: bool,
    batch: CellBatch,
) -> None:
    fetched = FetchedBatch(table, None, version_bound(moment.newest_ts), frozenset(), batch)
    resolution = await resolve(fetched, SealRule.of_compactor(), cache)
    batch = fetched.batch
    is_later = batch.rec_commit >= moment.snapshot_ts
    later = batch.rec_start[is_later]
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
        await CleanBatch(table, batch, heals, drops)
