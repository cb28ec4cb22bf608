"""Compaction of a region: write missing shadow cells, drop versions that no snapshot above W needs, then record W.

W is read first and recorded last (laws 4 and 6). In between, every unresolved version ≤ W is looked up, read again,
sealed, and read once more (K2):

    K scans x@100, no shadow cell
                                    T: shadow cell written, commit-table entry deleted
    K looks 100 up: no entry
    K fetches the row again and finds the shadow cell. Deleting x@100 would have lost a commit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyomid.cells import CellBatch
from pyomid.protocol.effects import (
    CleanBatch,
    FlushAndMerge,
    ReadRange,
    ReadWatermarks,
    RecordWatermark,
    Steps,
)
from pyomid.protocol.expiry import covered_floor_steps
from pyomid.protocol.reading import CommitCache, FetchedBatch, SealRule, resolve_steps, version_bound
from pyomid.protocol.version_cleanup import Indices, plan_cleaning
from pyomid.types import KeyRange, RegionWatermark

BATCH_ROWS_MAX = 10_000
"""Rows cleaned by one write: enough for the compiled pass, few enough for short write transactions."""


@dataclass(slots=True)
class RegionCleaned:
    """The result of compacting a region. `watermark` is the W it recorded."""

    table: str
    key_range: KeyRange
    watermark: int
    rows: int = 0
    cells: int = 0
    cells_healed: int = 0
    cells_dropped: int = 0
    orphans_dropped: int = 0
    versions_dropped: int = 0
    """Records that lost all their cells."""
    cells_above: int = 0
    """Cells that cannot be cleaned yet: written or committed above W, or open. A later run takes them up."""


def compact_region_steps(
    table: str,
    generation: int,
    region: KeyRange,
    cache: CommitCache,
    *,
    now_s: float,
    watermark: int | None = None,
    rows_max: int = BATCH_ROWS_MAX,
    expires: bool = False,
) -> Steps[RegionCleaned]:
    """Clean every row of `region` up to W, then record W.

    `generation`: the table's, read before the call: a record of a former generation does not count (K5).
    `watermark`: an older published W to clean by, if Java clients share the store; None: the present W.
    `now_s`: the wall clock before the call, stored with the record. `expires`: the table has, or had, a time to live.
    """
    published, _ = yield ReadWatermarks()
    bound = published if watermark is None else min(watermark, published)
    yield FlushAndMerge(table, region)
    cleaned = RegionCleaned(table, region, bound)
    expired_to = (yield from covered_floor_steps(table, generation, bound, cache)) if expires else 0
    start: bytes | None = region.start
    while start is not None:
        batch: CellBatch = yield ReadRange(table, KeyRange(start, region.stop), None, rows_max)
        start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None
        if batch.rows:
            yield from _clean_batch_steps(table, batch, bound, expired_to, cache, cleaned)
    yield RecordWatermark(RegionWatermark(table, generation, region, bound, now_s))
    return cleaned


def _clean_batch_steps(
    table: str, batch: CellBatch, watermark: int, expired_to: int, cache: CommitCache, cleaned: RegionCleaned
) -> Steps[None]:
    fetched = FetchedBatch(table, None, version_bound(watermark), frozenset(), batch)
    resolution = yield from resolve_steps(fetched, SealRule.of_compactor(), cache)
    batch = fetched.batch
    orphans = np.array(sorted(s for s in resolution.missed if s <= watermark), np.int64)
    heals, drops = plan_cleaning(batch, watermark, orphans, fetched.resolved, expired_to)
    _count(cleaned, batch, heals, drops, bound=watermark)
    if len(heals) or len(drops):
        yield CleanBatch(table, batch, heals, drops)


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
