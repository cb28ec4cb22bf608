"""The commit table in Apache Omid's table and format (`codec/layout`). Java clients too read it and seal starts in it.

The version of every cell is the start. So if a dead process's put arrives late, it either replaces the same cell or is
hidden by the delete marker of that version. Completion deletes exactly this version of `C`; an invalidation marker
stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import DELETE_COLUMN, DELETE_VERSION, KeyValue, decode
from pyomid.omid.hbase.codec.layout import (
    BUCKETS,
    COMMIT_FAMILY,
    COMMIT_QUALIFIER,
    MARK_QUALIFIER,
    MARK_VALUE,
    commit_of_value,
    commit_row,
    commit_value,
    start_of_row,
)
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.loop_client import LoopClient
from pyomid.omid.hbase.regions.bulk_writes import put_commits
from pyomid.omid.hbase.regions.calls import Budget
from pyomid.omid.hbase.regions.commit_entries import CommitCalls
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.requests import (
    INDETERMINATE,
    RowCondition,
    RowGet,
    RowMutation,
    RowResult,
    deletes,
    puts,
)
from pyomid.omid.ports import CommitTable, FlushEnd, FlushEnded, FlushLoop
from pyomid.types import NOT_FOUND, SEALED, KeyRange, SealOutcome

_COLUMNS = ((COMMIT_FAMILY, (COMMIT_QUALIFIER, MARK_QUALIFIER)),)
_ATTEMPTS_MAX = 20
_DELETE_ROWS_MAX = 4000


class HBaseCommitTable(CommitTable):
    """The commit table in HBase (`ports.CommitTable`).

    `table` is the cluster's commit table by default. `others_seal`: whether others may seal starts of the current
    epoch: Java clients that call fence(), or low-latency readers. If so, `put` reads the invalidation markers of its
    rows before it returns (R2). `leader_state` is read by `submit` and `lookup_then_watermarks` after the entries, in
    the same call.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        table: str = "",
        others_seal: bool = False,
        leader_state: HBaseLeaderState | None = None,
    ) -> None:
        self._cluster = cluster
        self._table = table = table or cluster.names.commit_table
        self._leader_state = leader_state
        self._others_seal = others_seal
        self._on_loop: LoopClient | None = None
        self._calls = (
            None
            if leader_state is None
            else CommitCalls(table, _entry_get(0), leader_state.table, leader_state.state_get)
        )

    def lookup(self, starts: Sequence[int]) -> list[int]:
        found = self._rows([_entry_get(start) for start in starts])
        return [_status(start, cells) for start, cells in zip(starts, found, strict=True)]

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int] | None:
        """Return entries and watermarks by one call; None unless one server has both."""
        leader_state = self._leader_state
        if leader_state is None or self._calls is None or not starts:
            return None
        budget = self._cluster.budget(f"looking up {len(starts)} commit entries")
        found = self._cluster.run(self._calls.get(self._cluster.operations, starts, budget))
        if found is None:
            return None
        states, last = found
        watermark, horizon = leader_state.watermarks_of(last)
        return states, watermark, horizon

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        return self.put_block(np.array(entries, dtype=np.int64).reshape(-1, 2)) if entries else []

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        budget = self._cluster.budget(f"putting {len(entries)} commit entries")
        self._cluster.run(_put(self._cluster.operations, self._table, entries, budget))
        if not self._others_seal:
            return []
        starts = entries[:, 0].tolist()
        return [start for start, found in zip(starts, self.lookup(starts), strict=True) if found == SEALED]

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        """Flush on the event loop (decision 0045). If markers must be read afterwards, flush on a thread."""
        leader_state, calls = self._leader_state, self._calls
        if leader_state is None or calls is None or self._others_seal:
            super().submit(entries, ended, loop)
            return
        if self._on_loop is None:
            self._on_loop = LoopClient(self._cluster)
        budget = self._cluster.budget(f"flushing {len(entries)} commit entries")
        steps = _flush(self._cluster.operations, calls, self._table, entries, leader_state, budget)
        self._on_loop.begin(
            steps, lambda result: ended(result if isinstance(result, Exception) else FlushEnd([], result))
        )

    def leave_loop(self) -> None:
        if self._on_loop is not None:
            self._on_loop.close()
            self._on_loop = None

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        no_marker = RowCondition(COMMIT_FAMILY, MARK_QUALIFIER, None)
        request = RowMutation(commit_row(start), (puts([_entry(start, commit_ts)]),), no_marker)
        for _ in range(_ATTEMPTS_MAX):
            (result,) = self._rows([request])
            if result is not INDETERMINATE:
                return bool(result)
            (found,) = self.lookup([start])
            if found != NOT_FOUND:
                return found == commit_ts
        raise Unavailable(
            f"HBase did not reply to the commit decision of transaction {start} in {_ATTEMPTS_MAX} attempts",
            start_ts=start,
        )

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        requests = []
        for branch in branches:
            row = commit_row(branch)
            marker = KeyValue(row, COMMIT_FAMILY, MARK_QUALIFIER, branch, b"", DELETE_COLUMN)
            requests.append(RowMutation(row, (puts([_entry(branch, commit_ts)]), deletes([marker]))))
        self._rows(requests)

    def seal(self, start: int) -> SealOutcome:
        row = commit_row(start)
        no_entry = RowCondition(COMMIT_FAMILY, COMMIT_QUALIFIER, None)
        marker = KeyValue(row, COMMIT_FAMILY, MARK_QUALIFIER, start, MARK_VALUE)
        request = RowMutation(row, (puts([marker]),), no_entry)
        for _ in range(_ATTEMPTS_MAX):
            (result,) = self._rows([request])
            if result is True:
                return SealOutcome(placed=True)
            (found,) = self.lookup([start])
            if found == SEALED:
                return SealOutcome(placed=True)
            if found != NOT_FOUND:
                return SealOutcome(placed=False, commit_ts=found)
        raise Unavailable(
            f"HBase did not reply to the seal of transaction {start} in {_ATTEMPTS_MAX} attempts", start_ts=start
        )

    def delete(self, starts: Sequence[int]) -> None:
        requests = []
        for start in starts:
            row = commit_row(start)
            entry = KeyValue(row, COMMIT_FAMILY, COMMIT_QUALIFIER, start, b"", DELETE_VERSION)
            requests.append(RowMutation(row, (deletes([entry]),)))
        self._rows(requests)

    def delete_below(self, horizon: int) -> int:
        count = 0
        for bucket in range(BUCKETS):
            pending: list[RowMutation] = []
            for start, kinds in self._bucket(bucket, horizon):
                row = commit_row(start)
                gone = [KeyValue(row, COMMIT_FAMILY, kind, start, b"", DELETE_COLUMN) for kind in kinds]
                pending.append(RowMutation(row, (deletes(gone),)))
                if len(pending) == _DELETE_ROWS_MAX:
                    self._rows(pending)
                    count += len(pending)
                    pending = []
            self._rows(pending)
            count += len(pending)
        return count

    def entries(self) -> Iterator[tuple[int, int]]:
        for bucket in range(BUCKETS):
            for start, found in self._bucket(bucket, None):
                marker = found.get(MARK_QUALIFIER)
                yield start, SEALED if marker else commit_of_value(start, found[COMMIT_QUALIFIER])

    def count(self) -> int:
        return sum(1 for _ in self.entries())

    def close(self) -> None:
        pass

    def _bucket(self, bucket: int, horizon: int | None) -> Iterator[tuple[int, dict[bytes, bytes]]]:
        """Yield the starts of one bucket that are below the horizon, each with its values by qualifier."""
        stop = bytes((bucket + 1,)) if horizon is None else bytes((bucket,)) + horizon.to_bytes(8, "big")
        spec = ScanSpec(self._table, KeyRange(bytes((bucket,)), stop), _COLUMNS, max_versions=1)
        row, found = b"", dict[bytes, bytes]()
        with closing(self._cluster.scan(spec)) as scan:
            # A row has at most two cells, but a scan call may end between them.
            while (block := scan.fetch()) is not None:
                if block.restarted:
                    row, found = b"", {}
                for cell in decode(block.cells):
                    if cell.row != row:
                        if found:
                            scan.received(row)
                            yield start_of_row(row), found
                        row, found = cell.row, {}
                    found[cell.qualifier] = cell.value
            if found:
                yield start_of_row(row), found

    def _rows(self, requests: Sequence[RowGet | RowMutation]) -> list[RowResult]:
        return self._cluster.rows(self._table, requests) if requests else []


async def _flush(
    operations: RegionOperations,
    calls: CommitCalls,
    table: str,
    entries: NDArray[np.int64],
    leader_state: HBaseLeaderState,
    budget: Budget,
) -> int:
    """Make all entries durable, then read the epoch and return it; in one call if possible."""
    found = await calls.put_indexed(operations, entries, budget)
    if found is None:
        await _put(operations, table, entries, budget)
        (read,) = await operations.rows(leader_state.table, [leader_state.state_get], budget)
        assert isinstance(read, list)
        found = read
    return leader_state.epoch_of(found)


async def _put(operations: RegionOperations, table: str, entries: NDArray[np.int64], budget: Budget) -> None:
    """Put entries. Failed puts are retried, which is safe: a retry has the same bytes and the same version."""
    outcome = await put_commits(operations, table, entries, budget)
    again = entries[outcome.refused + outcome.indeterminate].tolist()
    if again:
        requests = [RowMutation(commit_row(start), (puts([_entry(start, commit)]),)) for start, commit in again]
        await operations.rows(table, requests, budget)


def _entry(start: int, commit_ts: int) -> KeyValue:
    return KeyValue(commit_row(start), COMMIT_FAMILY, COMMIT_QUALIFIER, start, commit_value(start, commit_ts))


def _entry_get(start: int) -> RowGet:
    return RowGet(commit_row(start), _COLUMNS, max_versions=1)


def _status(start: int, found: RowResult) -> int:
    assert isinstance(found, list)
    values = {cell.qualifier: cell.value for cell in found}
    if MARK_QUALIFIER in values:
        return SEALED
    return commit_of_value(start, values[COMMIT_QUALIFIER]) if COMMIT_QUALIFIER in values else NOT_FOUND
