"""Changes between two positions in the order of commits: A < commit ≤ B, row by row and commit by commit.

Exact at both ends (hazards F1–F3):

    at B     every commit below a start is durable once that start is handed out (law 3), and so are its cells (law 1).
             B is at or below such a start, so a read of the versions below B misses nothing
    at A     a commit above A may have a start far below A. Let W_A be published before A was drawn: starts at or below
             W_A were decided before (law 4), so their commits lie below A. So only versions above W_A matter
    between  compaction keeps each version with commit > W, and the greatest with commit ≤ W (K1). While W ≤ A it keeps
             every version that a reader between A and B sees

Each row that may hold such a version is read as far as readers from A on see it; versions are resolved as for any
reader. A row before a commit, and after it, is the row that readers right below and right above the commit see, without
what has expired for them (E3). If the table had a time to live at the commit or before it, a commit that wrote a
visible value is a change even if the row reads as before (E5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.errors import SnapshotTooOld
from pyomid.protocol import visibility
from pyomid.protocol.effects import ReadValidity
from pyomid.protocol.expiry import expired_to, had_ttl
from pyomid.protocol.reading import (
    CommitCache,
    FetchedBatch,
    SealRule,
    Snapshot,
    VisibleRow,
    check_life,
    heal_cells,
    resolve,
    resolve_rows,
    version_bound,
)
from pyomid.protocol.timestamps import dated
from pyomid.protocol.visibility import VisibleCells
from pyomid.types import TIMESTAMP_MAX, Bookmark, Cell, ChangeBounds, Column, ReadBounds, TableInfo, TableLife, start_of


class Change(NamedTuple):
    """One commit's change of one row. `before` empty: it inserted the row; `after` empty: it deleted the row.

    Branches of a Spark transaction share its commit, so they are one change.
    """

    row: bytes
    commit_ts: int
    before: VisibleRow
    after: VisibleRow


class Inserts(NamedTuple):
    """Rows of a batch that did not exist before and were inserted by one commit, as a load leaves them. Vectorized."""

    batch: CellBatch
    seen: VisibleCells
    """The visible cells of these rows alone."""
    commits: NDArray[np.int64]
    """The commit of each row, in their order."""


def change_bounds(since: Bookmark, until: Snapshot) -> ChangeBounds:
    """Return the bounds of versions that find the rows that may have changed (F2)."""
    return ChangeBounds(version_bound(since.watermark), until.start_ts, since.start_ts)


def read_bounds(since: Bookmark, until: Snapshot) -> ReadBounds:
    """Return the bounds of the versions that readers between the two positions see in a row."""
    return ReadBounds(below=until.start_ts, committed_below=since.start_ts)


async def read_inserts(
    table: str, batch: CellBatch, since: Bookmark, until: Snapshot, cache: CommitCache
) -> tuple[Inserts, list[bytes]]:
    """Return the inserts among complete rows that were read within `read_bounds`, and the keys of the other rows that
    may have changed, for `read_changes`, which is the reference implementation. Not for a table with a time to live.

    A row with one commit between the positions and none at or below `since` does not exist before that commit, and
    reads after it as at `until`. Shadow-cell repair is left to compaction, as in vectorized readers. The caller ends
    with `check_kept`.
    """
    fetched = FetchedBatch(table, None, until.start_ts, until.own, batch, read_bounds(since, until))
    await resolve(fetched, SealRule.of_reader(until), cache)
    batch = fetched.batch
    commits = batch.rec_commit
    row_of = np.repeat(np.arange(batch.rows), np.diff(batch.row_rec))
    is_new = (commits > since.start_ts) & (commits < until.start_ts)
    first, last = np.full(batch.rows, TIMESTAMP_MAX, np.int64), np.zeros(batch.rows, np.int64)
    np.minimum.at(first, row_of[is_new], commits[is_new])
    np.maximum.at(last, row_of[is_new], commits[is_new])
    was_there = np.zeros(batch.rows, bool)
    was_there[row_of[(commits > 0) & (commits <= since.start_ts)]] = True
    is_insert = (first == last) & ~was_there
    others = [batch.row_key(row) for row in np.flatnonzero((last > 0) & ~is_insert).tolist()]
    seen = visibility.visible_cells(batch, until.start_ts, until.own)
    cells = np.diff(seen.row_cell)
    chosen = seen.cells[np.repeat(is_insert, cells)]
    border = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(is_insert, cells, 0))])
    return Inserts(batch, VisibleCells(chosen, border), last[is_insert & (cells > 0)]), others


async def read_changes(
    table: TableLife,
    rows: Sequence[bytes],
    since: Bookmark,
    until: Snapshot,
    cache: CommitCache,
    expires: TableInfo | None = None,
) -> list[Change]:
    """Return the changes of these rows by commits above `since` and below `until`: in the order of `rows`, and within a
    row in the order of commits. A commit that leaves a row's visible state the same did not change it, unless it
    renewed an expiring value (E5).

    Every commit below `until` is durable: its start was handed out, or lies below one that was. SnapshotTooOld if W has
    passed `since`, or if the table's life is over. Without rows only that is checked: at the end of a search, because
    compaction or a drop may have removed rows before the search reached them.

    `expires`: the table, if it has, or had, a time to live. An expiry is no commit, so it is not reported (E3): the
    next commit finds the row without the value.
    """
    changes: list[Change] = []
    if rows:
        found = await resolve_rows(table.name, rows, until, read_bounds(since, until), cache)
        cells_of, resolution = found
        await heal_cells(table.name, cells_of, resolution)
        for row, cells in zip(rows, cells_of, strict=True):
            changes += row_changes(row, cells, resolution.commits, since.start_ts, until.start_ts, expires)
    await check_kept(table, since, until)
    return changes


async def check_kept(table: TableLife, since: Bookmark, until: Snapshot) -> None:
    """F3, R10: check W and the table after the read. If W has passed the bookmark, or the table's life is over, the
    read may have missed versions."""
    watermark, generation = await ReadValidity(table.name)
    if watermark > since.start_ts:
        raise SnapshotTooOld(
            f"changes since {dated(since.start_ts)} are no longer kept: the published low watermark is "
            f"{dated(watermark)}, and older versions may be gone; start again with a full read, and hold a lease or "
            "retention from then on",
            start_ts=since.start_ts,
            watermark=watermark,
        )
    await check_life(table, until, generation)


def is_between(commit_ts: int, above: int, below: int) -> bool:
    """F1: both bounds are excluded: the commit at `above` was reported before, the one at `below` comes next time."""
    return above < commit_ts < below


def row_changes(
    row: bytes,
    cells: Iterable[Cell],
    commits: Mapping[int, int],
    above: int,
    below: int,
    expires: TableInfo | None = None,
) -> list[Change]:
    """Return a row's changes by the commits with above < commit < below. `commits` resolves cells without a shadow
    cell."""
    by_commit: dict[int, list[Cell]] = {}
    present: list[Cell] = []
    for cell in cells:
        commit_ts = cell.commit_ts or commits.get(start_of(cell.version), 0)
        if is_between(commit_ts, above, below):
            by_commit.setdefault(commit_ts, []).append(cell)
        elif 0 < commit_ts <= above:
            present.append(cell)
    if not by_commit:
        return []
    changes = []
    last, expired = max(by_commit), 0
    before = visibility.visible_point(present, below, (), commits)
    for commit_ts in sorted(by_commit):
        if expires is not None:
            expired = expired_to(expires, commit_ts)
            before = visibility.visible_point(present, below, (), commits, expired)
        present = [*present, *by_commit[commit_ts]]
        if expires is not None or commit_ts != last:
            present = _greatest(present)
        after = visibility.visible_point(present, below, (), commits, expired)
        may_renew = expires is not None and had_ttl(expires, commit_ts)
        if after != before or (may_renew and _has_visible_value(by_commit[commit_ts], present, after)):
            changes.append(Change(row, commit_ts, before, after))
        before = after
    return changes


def _has_visible_value(written: Iterable[Cell], present: Iterable[Cell], after: VisibleRow) -> bool:
    """E5: whether the commit that wrote `written` wrote a value that is visible right after it, and so lives longer."""
    greatest = {cell.name for cell in present if cell.value is not None and (cell.family, cell.qualifier) in after}
    return any(cell.value is not None and cell.name in greatest for cell in written)


def _greatest(cells: Iterable[Cell]) -> list[Cell]:
    """Return each column's greatest version and each family's greatest tombstone: later readers need no others. So the
    cost per version does not grow with their number."""
    greatest: dict[tuple[Column, bool], Cell] = {}
    for cell in cells:
        name = Column(cell.family, cell.qualifier), not cell.qualifier and cell.value is None
        found = greatest.get(name)
        if found is None or cell.version > found.version:
            greatest[name] = cell
    return list(greatest.values())
