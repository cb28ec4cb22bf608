"""The status oracle decides commits: of two overlapping transactions that write a common cell, at most one commits.

    commit iff   the start was neither sealed through this TSO nor named by a retry
                 start > LWM
                 no fence of a written table is later than start
                 no cell of the write set was last committed later than start
                 the TSO holds exactly as many ids of its branches as the commit says were reported (T20, `ReportedIds`)

A commit at table level is checked against D instead of LWM:

    commit iff   start > D, and start > epoch (a TSO does not know the table commits of earlier TSOs)
                 no fence and no commit of another transaction on those tables is later than start
    if it also names cells, of tables that it does not claim (an idempotency key): start > LWM, and the cell rule

A commit with reported ids and start ≤ LWM is checked by the rules of table level, but it fences no table.

`check` decides, and `record` remembers. This module allocates no timestamps and knows no batches.

The conflict map maps each cell id to its last commit timestamp. It has a fixed number of slots, so the TSO's memory is
bounded. Slots are grouped in buckets. An id belongs to one bucket, given by the high half of a 64 × 64 bit product of
*unsigned* numbers (T10: the most negative 64-bit id is valid). If a bucket is full, the entry with the oldest commit
timestamp is evicted. LWM rises to that timestamp, so that no transaction commits that might conflict with a forgotten
entry. Source: "A Critique of Snapshot Isolation" and the Omid papers, with buckets in place of one hash slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.native import search
from pyomid.omid.oracle.records import Numbers
from pyomid.types import AbortReason, CommitRequest, WriteSetLevel

BUCKET_SLOTS: Final = 28
"""The number of slots in a bucket: as many (id, commit timestamp) as fit into seven cache lines. The compiled map has
one more line, for tags."""

Ids = NDArray[np.int64]
"""Ids in ascending order."""

PART_COST: Final = 64
"""The memory that a reported part takes in addition to its ids, counted in ids."""

PARTS_COMPARED_MAX: Final = 16
"""If a commit has more parts than this, they are merged before they are compared. Comparing each of some hundred parts
with each of some hundred others would stop the TSO for a minute."""

_WORD: Final = (1 << 64) - 1

LOOKUP_COST: Final = 8
"""Looking up one id in the map takes as long as scanning this many of its entries."""

FIRST_SLOTS_MAX: Final = 100_000

_NEWS_MAX: Final = 4096
"""The maximum number of starts added since the last `as_array`. Beyond this all starts are read again, so memory stays
bounded even if nobody calls `as_array`."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a commit is refused, and the timestamp that caused the refusal. A later start is not refused for this
    reason."""

    reason: AbortReason
    conflict_ts: int


class StatusOracle:
    """The reference implementation of the commit rules. A machine's step calls `check` and then `record` for one
    commit."""

    def __init__(
        self, conflict_map: ConflictMap, *, epoch: int, reported_ids_max: int = 0, numbers: Numbers | None = None
    ) -> None:
        self.epoch = epoch
        self.numbers = numbers or Numbers()
        self.numbers.low_watermark = epoch
        self.conflict_map = conflict_map
        self.reported = ReportedIds(reported_ids_max)
        self.fences: MutableMapping[int, int] = {}
        self.table_commits: MutableMapping[int, int] = {}
        self.table_conflicts: MutableMapping[int, int] = {}
        """table id → the number of transactions that named the table and aborted because of a later commit to one of
        their cells."""
        self.fenced: set[int] = set()
        """The tables that a client fenced above D."""
        self.refused_starts: set[int] = set()
        """Starts above D that were sealed or named by a retry, so they must never commit. Starts at or below D cannot
        commit anyway."""

    @property
    def low_watermark(self) -> int:
        return self.numbers.low_watermark

    @low_watermark.setter
    def low_watermark(self, low_watermark: int) -> None:
        self.numbers.low_watermark = low_watermark

    def check(self, request: CommitRequest, *, decided: int) -> Conflict | None:
        """Return why the commit is refused, or None if it may commit. Changes nothing."""
        start_ts = request.start_ts
        if start_ts in self.refused_starts:
            return Conflict(AbortReason.SEALED, 0)
        parts = self.reported.parts_of(request)
        if sum(map(len, parts)) != request.reported_ids:
            return self._low_watermark_conflict(start_ts) or Conflict(AbortReason.LEASE_LOST, 0)
        if request.level is WriteSetLevel.TABLE or (parts and start_ts <= self.low_watermark):
            return (
                self._table_history_conflict(start_ts, decided)
                or self._fence_conflict(start_ts, request.table_ids)
                or self._table_commit_conflict(start_ts, request.table_ids)
                or (self._checked_cells_conflict(start_ts, request.cell_ids) if request.cell_ids else None)
            )
        return (
            self._low_watermark_conflict(start_ts)
            or self._fence_conflict(start_ts, request.table_ids)
            or self._cell_conflict(start_ts, request.cell_ids)
            or (self._reported_conflict(start_ts, parts) if parts else None)
        )

    def _checked_cells_conflict(self, start_ts: int, cell_ids: tuple[int, ...]) -> Conflict | None:
        return self._low_watermark_conflict(start_ts) or self._cell_conflict(start_ts, cell_ids)

    def record(self, request: CommitRequest, commit_ts: int) -> None:
        """Remember a decided commit: its cells in the conflict map, and its timestamp as the last commit of its tables.
        An eviction from the map raises LWM."""
        for table_id in request.table_ids:
            self.table_commits[table_id] = commit_ts
        if request.level is WriteSetLevel.TABLE:
            for table_id in request.table_ids:
                self.fence(table_id, commit_ts)
        if request.reported_ids:
            self.reported.commit(request, commit_ts)
        self.raise_low_watermark(self.conflict_map.record_all(request.cell_ids, commit_ts))

    def report(self, start_ts: int, branch: int, part: int, ids: Ids) -> bool:
        """Keep a part of the ids reported for a branch. Returns False if there is no room for it. From then on the
        start's later parts are refused, and its other parts are dropped when their room is needed."""
        if self.reported.is_refused(start_ts):
            return False
        self.reported.drop(start_ts, branch, part)
        if not self.make_room(len(ids)):
            self.reported.refuse(start_ts)
            return False
        self.reported.add(start_ts, branch, part, ids)
        return True

    def make_room(self, count: int) -> bool:
        """Make room for a part of `count` ids; return False, and drop nothing, if that is impossible. Drops the ids of
        refused starts first, then those of the oldest commits. As with an eviction from the conflict map, LWM rises to
        those commits."""
        reported = self.reported
        if not reported.has_room(count - reported.droppable):
            return False
        while not reported.has_room(count):
            if not reported.drop_refused():
                self.raise_low_watermark(reported.committed[0][0])
        return True

    def count_conflict(self, table_ids: Iterable[int]) -> None:
        """Count a transaction that aborted because of a cell, for each of its tables: the cell's id does not say which
        table the cell belongs to."""
        for table_id in table_ids:
            self.table_conflicts[table_id] = self.table_conflicts.get(table_id, 0) + 1

    def fence(self, table_id: int, fence_ts: int) -> None:
        """Abort, from now on, each transaction that wrote the table and started before `fence_ts`."""
        self.fences[table_id] = max(fence_ts, self.fences.get(table_id, 0))

    def forget_up_to(self, decided: int) -> None:
        """Forget the refused starts at or below D, and the clients' fences at or below D (`omid.oracle.watermarks`)."""
        self.refused_starts = {start for start in self.refused_starts if start > decided}
        self.fenced = self.forget_tables(self.fenced, decided)

    def forget_tables(self, table_ids: Collection[int], decided: int) -> set[int]:
        """Forget the fences of these tables at or below D, and return the tables whose fences are kept. No start below
        such a fence can commit, so the fence aborts nothing."""
        left = {table_id for table_id in table_ids if self.fences.get(table_id, 0) > decided}
        for table_id in set(table_ids) - left:
            self.fences.pop(table_id, None)
            if self.table_commits.get(table_id, 0) <= decided:
                self.table_commits.pop(table_id, None)
        return left

    def raise_low_watermark(self, low_watermark: int) -> None:
        """Raise LWM to this value, unless it is higher already."""
        if low_watermark > self.low_watermark:
            self.low_watermark = low_watermark
            self.note_low_watermark()

    def note_low_watermark(self) -> None:
        """Drop the reported ids of commits at or below LWM, which has risen. No start below those commits can commit by
        ids."""
        self.reported.forget_committed(self.low_watermark)

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
        if not commit_ts and self.reported.newest_ts > start_ts:
            commit_ts = self.reported.first_conflict([np.sort(np.array(cell_ids, dtype=np.int64))], start_ts)
        return Conflict(AbortReason.CONFLICT, commit_ts) if commit_ts else None

    def _reported_conflict(self, start_ts: int, parts: list[Ids]) -> Conflict | None:
        commit_ts = self._conflict_in_map(start_ts, parts) or self.reported.first_conflict(parts, start_ts)
        return Conflict(AbortReason.CONFLICT, commit_ts) if commit_ts else None

    def _conflict_in_map(self, start_ts: int, parts: list[Ids]) -> int:
        """Return a commit in the map that is later than `start_ts` and has one of these ids, or 0. If there are many
        ids, compare them with all later ids of the map instead of looking up each."""
        conflict_map = self.conflict_map
        if sum(map(len, parts)) < conflict_map.entries_max // LOOKUP_COST:
            return next((found for part in parts if (found := conflict_map.first_conflict(part, start_ts))), 0)
        later = np.sort(conflict_map.ids_after(start_ts))
        common = (search.first_common(part, later) for part in parts)
        return next((conflict_map.last_commit(cell_id) for cell_id in common if cell_id is not None), 0)

    def _table_history_conflict(self, start_ts: int, decided: int) -> Conflict | None:
        if start_ts <= self.epoch:
            return Conflict(AbortReason.TABLE, self.epoch)
        if start_ts <= decided:
            return Conflict(AbortReason.LEASE_LOST, decided)
        return None

    def _table_commit_conflict(self, start_ts: int, table_ids: tuple[int, ...]) -> Conflict | None:
        for table_id in table_ids:
            commit_ts = self.table_commits.get(table_id, 0)
            if commit_ts > start_ts:
                return Conflict(AbortReason.TABLE, commit_ts)
        return None


class ReportedIds:
    """The ids that tasks reported for branches of large transactions, in memory beside the conflict map.

    undecided   ids by start, kept until the start's lease is gone (`large_commits.forget_unleased`)
    committed   ids of the branches that a commit named, kept until LWM reaches the commit: then no start below the
                commit can commit by ids
    """

    def __init__(self, ids_max: int) -> None:
        self.count = 0
        """The number of ids kept, plus `PART_COST` for each part."""
        self.undecided: dict[int, dict[tuple[int, int], Ids]] = {}
        """start → (branch, part) → ids."""
        self._refused: set[int] = set()
        """Undecided starts with a part that was refused."""
        self.committed: deque[tuple[int, list[Ids]]] = deque()
        """Pairs (commit timestamp, its ids in at most one array), in ascending order."""
        self._ids_max = ids_max
        self._merged: tuple[CommitRequest, list[Ids]] | None = None
        """The last merged result of `parts_of`, kept so that deciding a commit merges only once."""

    @property
    def newest_ts(self) -> int:
        """The newest commit with reported ids, or 0. A start above it conflicts with no reported ids."""
        return self.committed[-1][0] if self.committed else 0

    @property
    def droppable(self) -> int:
        """How much of `count` could be dropped to make room."""
        refused = (self.undecided[start].values() for start in self._refused)
        return sum(map(_cost, (*refused, *(parts for _, parts in self.committed))))

    def has_room(self, count: int) -> bool:
        return self.count + count + PART_COST <= self._ids_max

    def drop(self, start_ts: int, branch: int, part: int) -> None:
        """Drop the old ids of a part that is reported again, so that both do not need room at once."""
        self._merged = None
        parts = self.undecided.get(start_ts, {})
        self.count -= _cost([parts.pop((branch, part))] if (branch, part) in parts else [])

    def add(self, start_ts: int, branch: int, part: int, ids: Ids) -> None:
        """Keep the ids of a part that is not kept yet."""
        self.count += _cost([ids])
        self.undecided.setdefault(start_ts, {})[branch, part] = ids

    def refuse(self, start_ts: int) -> None:
        """Refuse the start's later parts. The parts kept so far still count if the commit does not name the refused
        branch."""
        self._refused.add(start_ts)
        self.undecided.setdefault(start_ts, {})

    def is_refused(self, start_ts: int) -> bool:
        return start_ts in self._refused

    def drop_refused(self) -> bool:
        """Drop the ids of one refused start. Returns False if no refused start has ids."""
        start_ts = next((start for start in self._refused if self.undecided[start]), 0)
        self.count -= _cost(self.undecided.get(start_ts, {}).values())
        self.undecided.get(start_ts, {}).clear()
        self._merged = None
        return bool(start_ts)

    def forget(self, start_ts: int) -> None:
        self.count -= _cost(self.undecided.pop(start_ts, {}).values())
        self._refused.discard(start_ts)
        self._merged = None

    def count_of(self, start_ts: int, branch: int) -> int:
        """Return the number of undecided ids that are kept for a branch."""
        parts = self.undecided.get(start_ts, {})
        return sum(len(ids) for (of, _), ids in parts.items() if of == branch)

    def parts_of(self, request: CommitRequest) -> list[Ids]:
        """Return the reported ids of the branches that the commit names, part by part, or merged if there are many
        parts."""
        if not request.reported_ids:
            return []
        if self._merged is not None and self._merged[0] is request:
            return self._merged[1]
        branches = frozenset(request.branches)
        reported = self.undecided.get(request.start_ts, {})
        parts = [ids for (branch, _), ids in reported.items() if branch in branches]
        if len(parts) <= PARTS_COMPARED_MAX:
            return parts
        self._merged = request, _merged(parts)
        return self._merged[1]

    def commit(self, request: CommitRequest, commit_ts: int) -> None:
        """Keep the ids of the branches that the commit names, and drop the ids of the start's other branches."""
        parts = _merged(self.parts_of(request))
        self.forget(request.start_ts)
        self.count += _cost(parts)
        self.committed.append((commit_ts, parts))

    def forget_committed(self, low_watermark: int) -> None:
        while self.committed and self.committed[0][0] <= low_watermark:
            self.count -= _cost(self.committed.popleft()[1])

    def first_conflict(self, parts: list[Ids], start_ts: int) -> int:
        """Return the newest commit that is later than `start_ts` and has one of these ids, or 0."""
        for commit_ts, committed in reversed(self.committed):
            if commit_ts <= start_ts:
                break
            if any(search.first_common(ids, part) is not None for ids in committed for part in parts):
                return commit_ts
        return 0


def _merged(parts: list[Ids]) -> list[Ids]:
    return parts if len(parts) < 2 else [np.sort(np.concatenate(parts))]


def _cost(parts: Iterable[Ids]) -> int:
    return sum(len(part) + PART_COST for part in parts)


class ConflictMap(Protocol):
    """The interface of the oracle's conflict map. Eviction policies may differ, but every eviction must be reported."""

    @property
    def entries_max(self) -> int: ...

    @property
    def entries(self) -> int:
        """The number of slots in use. A slot in use is never freed."""

    def last_commit(self, cell_id: int) -> int:
        """Return the cell's last commit timestamp, or 0 if the map holds none."""

    def record(self, cell_id: int, commit_ts: int) -> int:
        """Keep the entry. Return the commit timestamp of the entry that it evicted, or 0 if a slot was free."""

    def ids_after(self, start_ts: int) -> Ids:
        """Return the cells whose last commit is later than `start_ts`, in any order."""

    def first_conflict(self, cell_ids: Sequence[int] | Ids, start_ts: int) -> int:
        """Return the last commit of the first of these cells that was committed later than `start_ts`, or 0."""

    def record_all(self, cell_ids: Sequence[int], commit_ts: int) -> int:
        """Call `record` for each cell. Return the greatest commit timestamp that was evicted, or 0."""


class BucketMap:
    """The reference conflict map: exact but slow. The system allocates its memory page by page as buckets fill."""

    def __init__(self, entries_max: int, bucket_slots: int = BUCKET_SLOTS) -> None:
        self.bucket_slots = bucket_slots
        self.buckets = max(1, -(-entries_max // bucket_slots))
        self.ids = np.zeros(self.entries_max, dtype=np.int64)
        self.commits = np.zeros(self.entries_max, dtype=np.int64)
        self.entries = 0
        self.first_slots: list[int] = []
        """The slots of the first `FIRST_SLOTS_MAX` entries, so that a nearly empty map can be copied without reading
        all of it."""

    @property
    def entries_max(self) -> int:
        return self.buckets * self.bucket_slots

    def bucket_of(self, cell_id: int) -> int:
        return (cell_id & _WORD) * self.buckets >> 64

    def last_commit(self, cell_id: int) -> int:
        first, slot = self._find(cell_id)
        return 0 if slot < 0 else int(self.commits[first + slot])

    def record(self, cell_id: int, commit_ts: int) -> int:
        first, slot = self._find(cell_id)
        evicted = 0
        if slot < 0:
            commits = self.commits[first : first + self.bucket_slots].tolist()
            evicted = min(commits)
            slot = commits.index(evicted)
            if not evicted:
                self.entries += 1
                if self.entries <= FIRST_SLOTS_MAX:
                    self.first_slots.append(first + slot)
        self.ids[first + slot] = cell_id
        self.commits[first + slot] = commit_ts
        return evicted

    def ids_after(self, start_ts: int) -> Ids:
        return self.ids[self.commits > start_ts]

    def first_conflict(self, cell_ids: Sequence[int] | Ids, start_ts: int) -> int:
        return next((found for each in cell_ids if (found := self.last_commit(int(each))) > start_ts), 0)

    def record_all(self, cell_ids: Sequence[int], commit_ts: int) -> int:
        return max((self.record(each, commit_ts) for each in cell_ids), default=0)

    def _find(self, cell_id: int) -> tuple[int, int]:
        """Return the bucket's first slot, and the id's index in the bucket or -1. A slot whose commit is 0 is empty."""
        first = self.bucket_of(cell_id) * self.bucket_slots
        ids = self.ids[first : first + self.bucket_slots].tolist()
        if cell_id not in ids:
            return first, -1
        if cell_id:
            return first, ids.index(cell_id)
        for slot, found in enumerate(ids):
            if found == 0 and self.commits[first + slot]:
                return first, slot
        return first, -1


class RareStarts:
    """The starts whose commits compiled code must not decide, sorted so that compiled code can search them.

    Every seal, retry or large commit adds a few starts, so adding must be cheaper than sorting all. They are removed
    rarely, and many at once. `read_all` returns all starts, in any order. A start may be listed twice, or longer than
    needed.
    """

    def __init__(self, read_all: Callable[[], Iterable[int]]) -> None:
        self._read_all = read_all
        self._sorted: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._news: list[int] = []
        self._is_stale = True

    def add(self, starts: Collection[int]) -> None:
        """Add starts that `read_all` returns from now on."""
        if self._is_stale:
            return
        self._news += starts
        if len(self._news) > _NEWS_MAX:
            self.forget_some()

    def forget_some(self) -> None:
        """Read all starts again at the next `as_array`, because `read_all` no longer returns some of them."""
        self._news.clear()
        self._is_stale = True

    def as_array(self) -> NDArray[np.int64]:
        """Return all starts in ascending order; the same array as before if nothing changed."""
        if self._is_stale:
            self._sorted = np.fromiter(self._read_all(), dtype=np.int64)
            self._sorted.sort()
            self._is_stale = False
        elif self._news:
            news = np.array(sorted(self._news), dtype=np.int64)
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, news), news)
            self._news.clear()
        return self._sorted
