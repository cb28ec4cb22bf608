"""Find the changes between two positions in the order of commits (A < commit ≤ B), row by row and commit by commit.

The result is exact at both ends (hazards F1–F3):

    at B     every commit below a start is durable once that start is handed out (law 3), and so are its cells (law 1).
             B is at or below such a start, so a read of the versions below B misses nothing
    at A     a commit above A may have a start far below A. Let W_A be published before A was drawn. Starts at or below
             W_A were decided before that (law 4), so their commits lie below A: only versions above W_A matter
    between  compaction keeps each version with commit > W, and the greatest with commit ≤ W (K1). While W ≤ A it keeps
             every version that a reader between A and B sees

Of each row that may hold such a version, all versions that readers from A on see are read, and resolved as for any
reader. The row before a commit is the row that a reader right below the commit sees, and the row after it is the row
that a reader right above sees, both without expired values (E3). If the table had a time to live at the commit or
before it, a commit that wrote a visible value is a change even if the row reads as before (E5).
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
    """The change that one commit made to one row. An insert has an empty `before`, and a delete an empty `after`.

    The branches of a Spark transaction share its commit, so they are one change.
    """

    row: bytes
    commit_ts: int
    before: VisibleRow
    after: VisibleRow


class Inserts(NamedTuple):
    """Rows of a batch that one commit inserted and that did not exist before, such as a load leaves; vectorized."""

    batch: CellBatch
    seen: VisibleCells
    """The visible cells of the inserted rows only."""
    commits: NDArray[np.int64]
    """The commit of each inserted row, in the order of the rows."""


def change_bounds(since: Bookmark, until: Snapshot) -> ChangeBounds:
    """Return bounds of versions; a row without a version in these bounds did not change (F2)."""
    return ChangeBounds(version_bound(since.watermark), until.start_ts, since.start_ts)


def read_bounds(since: Bookmark, until: Snapshot) -> ReadBounds:
    """Return bounds of versions that cover everything that readers between the two positions see in a row."""
    return ReadBounds(below=until.start_ts, committed_below=since.start_ts)


async def read_inserts(
    table: str, batch: CellBatch, since: Bookmark, until: Snapshot, cache: CommitCache
) -> tuple[Inserts, list[bytes]]:
    """Return the inserts among complete rows that were read within `read_bounds`, and the keys of the other rows that
    may have changed. `read_changes`, the reference implementation, reads those. Not for a table with a time to live.

    If a row has one commit between the positions and none at or below `since`, it does not exist before that commit,
    and reads after it as at `until`. As in all vectorized readers, shadow-cell repair is left to compaction. The caller
    ends with `check_kept`.
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
    """Return the changes of these rows by commits above `since` and below `until`, in the order of `rows`, and within a
    row in the order of commits. A commit that leaves a row's visible state the same did not change it, unless it
    renewed an expiring value (E5).

    Every commit below `until` is durable, because `until` was handed out, or lies below a start that was. Raises
    SnapshotTooOld if W has passed `since`, or if the table's life is over. Call it without rows at the end of a search:
    this makes only that check, because compaction or a drop may have removed rows before the search reached them.

    `expires` is the table if it has, or had, a time to live. An expiry is no commit, so it is not reported (E3): the
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
    """F3, R10: raise SnapshotTooOld if W has passed the bookmark, or the table's life is over: then the read may have
    missed versions. Call it after the read."""
    watermark, generation = await ReadValidity(table.name)
    if watermark > since.start_ts:
        raise SnapshotTooOld(
            f"changes since {dated(since.start_ts)} are no longer kept: the published low watermark is "
            f"{dated(watermark)}, and older versions may be gone; start again with a full read, and from then on hold "
            "a lease or set option retention",
            start_ts=since.start_ts,
            watermark=watermark,
        )
    await check_life(table, until, generation)


def is_between(commit_ts: int, above: int, below: int) -> bool:
    """F1: whether the commit lies between the bounds, both excluded. The commit at `above` was reported before, and the
    one at `below` is reported next time."""
    return above < commit_ts < below


def row_changes(
    row: bytes,
    cells: Iterable[Cell],
    commits: Mapping[int, int],
    above: int,
    below: int,
    expires: TableInfo | None = None,
) -> list[Change]:
    """Return a row's changes by the commits with above < commit < below. `commits` resolves the cells that have no
    shadow cell."""
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
    """E5: whether the commit wrote a value (in `written`) that is visible right after it, and so lives longer."""
    greatest = {cell.name for cell in present if cell.value is not None and (cell.family, cell.qualifier) in after}
    return any(cell.value is not None and cell.name in greatest for cell in written)


def _greatest(cells: Iterable[Cell]) -> list[Cell]:
    """Return each column's greatest version and each family's greatest tombstone. Later readers need no others, so the
    cost per version does not grow with the number of versions."""
    greatest: dict[tuple[Column, bool], Cell] = {}
    for cell in cells:
        name = Column(cell.family, cell.qualifier), not cell.qualifier and cell.value is None
        found = greatest.get(name)
        if found is None or cell.version > found.version:
            greatest[name] = cell
    return list(greatest.values())
