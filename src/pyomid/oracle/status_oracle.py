"""The status oracle: of two transactions that overlap and write a common cell, at most one commits.

    commit iff   start > LWM
                 no fence of a written table is later than start
                 no cell of the write set was last committed later than start

and at table level, which goes by the published watermark W instead of LWM (its lease holds W back):

    commit iff   start > highest W ever sent, and start > epoch (the tables' history dies with the TSO)
                 no fence and no commit of another transaction on those tables is later than start
    if it also names cells, of tables that it does not claim (an idempotency key): start > LWM, and the cell rule

`check` decides, `record` remembers. This module allocates no timestamps and does not know of batches.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from dataclasses import dataclass

from pyomid.oracle.conflict_map import ConflictMap
from pyomid.types import AbortReason, CommitRequest, WriteSetLevel


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a commit is refused, and the timestamp that caused it: a transaction that begins above it is not refused for
    this cause."""

    reason: AbortReason
    conflict_ts: int


class StatusOracle:
    """Reference implementation. A commit is `check`ed and `record`ed in one step of the machine."""

    def __init__(self, conflict_map: ConflictMap, *, epoch: int) -> None:
        self.epoch = epoch
        self.low_watermark = epoch
        self.conflict_map = conflict_map
        self.fences: MutableMapping[int, int] = {}
        self.table_commits: MutableMapping[int, int] = {}

    def check(self, request: CommitRequest, *, watermark_sent: int) -> Conflict | None:
        """Why the commit is refused; None if it may commit. Changes nothing."""
        start_ts = request.start_ts
        if request.level is WriteSetLevel.TABLE:
            return (
                self._table_history_conflict(start_ts, watermark_sent)
                or self._fence_conflict(start_ts, request.table_ids)
                or self._table_commit_conflict(start_ts, request.table_ids)
                or (self._checked_cells_conflict(start_ts, request.cell_ids) if request.cell_ids else None)
            )
        return (
            self._low_watermark_conflict(start_ts)
            or self._fence_conflict(start_ts, request.table_ids)
            or self._cell_conflict(start_ts, request.cell_ids)
        )

    def _checked_cells_conflict(self, start_ts: int, cell_ids: tuple[int, ...]) -> Conflict | None:
        return self._low_watermark_conflict(start_ts) or self._cell_conflict(start_ts, cell_ids)

    def record(self, request: CommitRequest, commit_ts: int) -> None:
        """Remembers a decided commit: its cells in the conflict map, and the last commit of its tables. An eviction
        raises LWM."""
        for table_id in request.table_ids:
            self.table_commits[table_id] = commit_ts
        if request.level is WriteSetLevel.TABLE:
            for table_id in request.table_ids:
                self.fence(table_id, commit_ts)
        evicted = self.conflict_map.record_all(request.cell_ids, commit_ts)
        if evicted > self.low_watermark:
            self.low_watermark = evicted

    def fence(self, table_id: int, fence_ts: int) -> None:
        """From now on transactions that wrote the table and started before `fence_ts` abort."""
        self.fences[table_id] = max(fence_ts, self.fences.get(table_id, 0))

    def forget_tables(self, table_ids: Collection[int], watermark_sent: int) -> set[int]:
        """Forgets the fences of these tables that W has passed: no start at or below W commits, so they abort no
        transaction. Returns the tables whose fences are kept."""
        left = {table_id for table_id in table_ids if self.fences.get(table_id, 0) > watermark_sent}
        for table_id in set(table_ids) - left:
            self.fences.pop(table_id, None)
            if self.table_commits.get(table_id, 0) <= watermark_sent:
                self.table_commits.pop(table_id, None)
        return left

    def raise_low_watermark(self, low_watermark: int) -> None:
        """LWM rises by age (T15). It never goes back."""
        self.low_watermark = max(self.low_watermark, low_watermark)

    def _low_watermark_conflict(self, start_ts: int) -> Conflict | None:
        if start_ts <= self.low_watermark:
            return Conflict(AbortReason.LOW_WATERMARK, self.low_watermark)
        return None

    def _fence_conflict(self, start_ts: int, table_ids: tuple[int, ...]) -> Conflict | None:
        for table_id in table_ids:
            fence_ts = self.fences.get(table_id, 0)
            if fence_ts > start_ts:
                return Conflict(AbortReason.FENCE, fence_ts)
        return None

    def _cell_conflict(self, start_ts: int, cell_ids: tuple[int, ...]) -> Conflict | None:
        commit_ts = self.conflict_map.first_conflict(cell_ids, start_ts)
        return Conflict(AbortReason.CONFLICT, commit_ts) if commit_ts else None

    def _table_history_conflict(self, start_ts: int, watermark_sent: int) -> Conflict | None:
        if start_ts <= self.epoch:
            return Conflict(AbortReason.TABLE, self.epoch)
        if start_ts <= watermark_sent:
            return Conflict(AbortReason.LEASE_LOST, watermark_sent)
        return None

    def _table_commit_conflict(self, start_ts: int, table_ids: tuple[int, ...]) -> Conflict | None:
        for table_id in table_ids:
            commit_ts = self.table_commits.get(table_id, 0)
            if commit_ts > start_ts:
                return Conflict(AbortReason.TABLE, commit_ts)
        return None
