"""Bulk writes: compiled kernels encode rows region by region, and the next call while earlier calls are in flight.

Each call is sent to one server. Only if its reply holds a failure is it examined row by row: a row that the server
refused is reported as refused and may be resent; any other row without a result is indeterminate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch, ColumnNames
from pyomid.omid.hbase.codec.changes import Changes
from pyomid.omid.hbase.codec.layout import commit_row
from pyomid.omid.hbase.codec.native import encode
from pyomid.omid.hbase.regions.calls import (
    Answer,
    Budget,
    Failure,
    SentCall,
    Start,
    answer_to,
    failure_of,
    has_succeeded,
)
from pyomid.omid.hbase.regions.commit_entries import ENTRIES_MAX
from pyomid.omid.hbase.regions.locations import Region
from pyomid.omid.hbase.regions.operations import RegionOperations, is_indeterminate, region_failures
from pyomid.omid.hbase.rpc.failures import Reaction, RemoteFailure
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, Reply, delimited
from pyomid.omid.hbase.rpc.requests import RequestBuffers

CALL_ROWS_MAX: Final = 500
"""The maximum number of rows in one call. A handler of the server serves one call at a time: two handlers write a
thousand rows faster than one."""
CALL_BYTES_MAX: Final = 2 << 20
CALLS_AHEAD: Final = 2
"""The number of calls in flight while another one is encoded."""


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """The rows that did not succeed: the server refused them before it began to write, or the reply was lost."""

    refused: list[int]
    indeterminate: list[int]
    non_retryable: list[RemoteFailure] = field(default_factory=list)
    """Errors that a retry cannot fix. The first is raised after all calls have ended."""


@dataclass(frozen=True, slots=True, eq=False)
class BegunPut:
    """Rows in flight: all calls are sent, and no reply has been read. Call `end_put` once, on any thread."""

    table: str
    version: int
    batch: CellBatch
    sent_calls: list[tuple[_BulkCall, SentCall]]


@dataclass(frozen=True, slots=True)
class _Group:
    """One encoded region action. `rows` holds, for each of its actions, the row's number in the source."""

    region: Region
    rows: Sequence[int]


@dataclass(slots=True)
class _BulkCall:
    """Region actions for one server, in one call."""

    server: Address
    groups: list[_Group] = field(default_factory=list)
    parameters: list[bytes] = field(default_factory=list)
    blocks: list[memoryview] = field(default_factory=list)
    rows: int = 0
    bytes_count: int = 0

    def add(self, region: Region, request: RequestBuffers, rows: Sequence[int]) -> None:
        """Add one region action that contains the encoded actions of these rows."""
        self.parameters.append(b"\x0a" + delimited(region.specifier_field + request.actions()))
        self.blocks.append(request.block())
        self.groups.append(_Group(region, rows))

    def encoded(self) -> Call:
        cells = self.blocks[0] if len(self.blocks) == 1 else b"".join(self.blocks)
        return Call(CLIENT, "Multi", b"".join(self.parameters), cells)


class _Rows(Protocol):
    """Rows in the order of their keys, ready to be encoded."""

    @property
    def count(self) -> int: ...

    @property
    def rows_max(self) -> int:
        """The maximum number of rows allowed in one call."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """For each row, an upper bound of the encoded bytes up to the row's end."""

    def key(self, row: int) -> bytes: ...

    def encode(self, first: int, end: int, region: Region, durability: int, call: _BulkCall) -> None:
        """Add rows of one region to the call."""


async def put_batch(
    operations: RegionOperations, table: str, version: int, batch: CellBatch, budget: Budget
) -> BulkOutcome:
    """Put a batch under `version`. Its rows must be sorted and unique, with one record for each row."""
    (outcome,) = await _send(operations, table, (_BatchRows(version, batch),), budget)
    return outcome


async def begin_put(
    operations: RegionOperations, table: str, version: int, batch: CellBatch, budget: Budget
) -> BegunPut:
    """Like `put_batch`, but only send the calls; `end_put` takes the replies. Raises only if nothing was sent."""
    calls: list[_BulkCall] = await _BulkCalls(operations, table, _BatchRows(version, batch), budget).all()
    sent_calls: list[SentCall] = await Start([(call.server, call.encoded()) for call in calls], budget.call_s)
    return BegunPut(table, version, batch, list(zip(calls, sent_calls, strict=True)))


async def end_put(operations: RegionOperations, begun: BegunPut, budget: Budget) -> BulkOutcome:
    """Take the replies of a put that `begin_put` sent, and return the outcome."""
    outcome = BulkOutcome([], [])
    for call, sent_call in begun.sent_calls:
        await _take_answer(operations, call, sent_call, outcome, budget)
    _raise_non_retryable(outcome, budget)
    return outcome


async def put_changes(
    operations: RegionOperations, table: str, changes: Sequence[Changes], budget: Budget
) -> list[BulkOutcome]:
    """Make changes; those of each row are atomic. Returns one outcome for each of `changes`."""
    outcomes = await _send(operations, table, [_ChangedRows(each) for each in changes], budget)
    return outcomes


async def put_commits(
    operations: RegionOperations, table: str, entries: NDArray[np.int64], budget: Budget
) -> BulkOutcome:
    """Put entries (start, commit) into the commit table."""
    rows = _CommitRows(entries)
    (outcome,) = await _send(operations, table, (rows,), budget)
    return rows.renumbered(outcome)


async def _send(
    operations: RegionOperations, table: str, sources: Sequence[_Rows], budget: Budget
) -> list[BulkOutcome]:
    """Send each call as soon as it is encoded, while up to `CALLS_AHEAD` others are in flight."""
    outcomes = [BulkOutcome([], []) for _ in sources]
    sent_calls: list[tuple[_BulkCall, SentCall, BulkOutcome]] = []
    for rows, outcome in zip(sources, outcomes, strict=True):
        calls = _BulkCalls(operations, table, rows, budget)
        while (call := (await calls.next())) is not None:
            (sent_call,) = await Start(((call.server, call.encoded()),), budget.call_s)
            sent_calls.append((call, sent_call, outcome))
            if len(sent_calls) > CALLS_AHEAD:
                await _take_answer(operations, *sent_calls.pop(0), budget)
    for each in sent_calls:
        await _take_answer(operations, *each, budget)
    for outcome in outcomes:
        _raise_non_retryable(outcome, budget)
    return outcomes


def _raise_non_retryable(outcome: BulkOutcome, budget: Budget) -> None:
    if outcome.non_retryable:
        raise outcome.non_retryable[0].as_error(budget.what)


class _BulkCalls:
    """Divides rows into calls of limited size. Each call has adjacent rows on one server."""

    def __init__(self, operations: RegionOperations, table: str, rows: _Rows, budget: Budget) -> None:
        self._operations = operations
        self._table = table
        self._rows = rows
        self._budget = budget
        self._next = 0

    async def next(self) -> _BulkCall | None:
        call: _BulkCall | None = None
        rows, ends = self._rows, self._rows.ends
        while self._next < rows.count:
            first = self._next
            region = await self._operations.locate(self._table, rows.key(first), self._budget)
            assert region.server is not None
            if call is None:
                call = _BulkCall(region.server)
            elif call.server != region.server:
                break
            before = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, before + CALL_BYTES_MAX - call.bytes_count, side="right"))
            end = min(end, first + rows.rows_max - call.rows, rows.count)
            if end <= first:
                if call.rows:
                    break
                end = first + 1
            end = _end_in_region(rows, first, end, region.key_range.stop)
            rows.encode(first, end, region, self._operations.durability.value, call)
            call.rows += end - first
            call.bytes_count += int(ends[end - 1]) - before
            self._next = end
        return call

    async def all(self) -> list[_BulkCall]:
        calls = []
        while (call := (await self.next())) is not None:
            calls.append(call)
        return calls


def _end_in_region(rows: _Rows, first: int, end: int, stop: bytes | None) -> int:
    """Return the end of the region's rows: the first row after `first` whose key is at or after `stop`, or `end`."""
    if stop is None or rows.key(end - 1) < stop:
        return end
    return bisect_left(range(end), stop, lo=first + 1, hi=end, key=rows.key)


async def _take_answer(
    operations: RegionOperations, call: _BulkCall, sent_call: SentCall, outcome: BulkOutcome, budget: Budget
) -> None:
    """Wait for the reply to the call, and add the rows that failed to the outcome."""
    answer: Answer = await answer_to(sent_call, budget)
    if has_succeeded(answer):
        if encode.all_succeeded(np.frombuffer(answer.message, dtype=np.uint8)):
            return
        failed = _failed_rows(call, answer)
    else:
        failed = [(group, row, failure_of(answer)) for group in call.groups for row in group.rows]
    for group, row, each in failed:
        if operations.react(group.region, each, budget) is Reaction.FAIL:
            assert isinstance(each, RemoteFailure)
            outcome.non_retryable.append(each)
        else:
            (outcome.indeterminate if is_indeterminate(each) else outcome.refused).append(row)


def _failed_rows(call: _BulkCall, answer: Reply) -> list[tuple[_Group, int, Failure]]:
    """Return the failed rows of a call. If a region action failed as a whole, all of its rows count as failed."""
    failed: list[tuple[_Group, int, Failure]] = []
    for number, index, failure in region_failures(answer, len(call.groups)):
        group = call.groups[number]
        failed += [(group, row, failure) for row in (group.rows if index is None else (group.rows[index],))]
    return failed


class _BatchRows:
    """Data cells, without shadow cells."""

    rows_max = CALL_ROWS_MAX

    def __init__(self, version: int, batch: CellBatch) -> None:
        self._version = version
        self._batch = batch
        self._names = ColumnNames.of(batch.columns)
        self.count = batch.rows
        self.ends = self._block_ends()

    def _block_ends(self) -> NDArray[np.int64]:
        batch = self._batch
        value_bytes = np.maximum(batch.cell_len, 0).astype(np.int64)
        name_bytes = np.diff(self._names.begin)[batch.cell_col]
        row_cells = np.diff(batch.rec_cell[batch.row_rec])
        row_of_cell = np.repeat(np.arange(batch.rows), row_cells)
        cell_bytes = value_bytes + name_bytes + encode.CELL_BYTES_MAX + batch.row_len[row_of_cell]
        return np.cumsum(np.bincount(row_of_cell, weights=cell_bytes, minlength=batch.rows).astype(np.int64))

    def key(self, row: int) -> bytes:
        return self._batch.row_key(row)

    def encode(self, first: int, end: int, region: Region, durability: int, call: _BulkCall) -> None:
        batch, names = self._batch, tuple(self._names)
        actions_max = (end - first) * encode.ACTION_BYTES_MAX + int(batch.row_len[first:end].sum(dtype=np.int64))
        request = RequestBuffers(actions_max, _block_bytes(self, first, end))
        encode.encode_puts(batch.arrays(), names, first, end, self._version, durability, request.arrays())
        call.add(region, request, range(first, end))


class _CommitRows:
    """Entries in the order of their rows: by bucket, and within a bucket by start."""

    rows_max = ENTRIES_MAX

    def __init__(self, entries: NDArray[np.int64]) -> None:
        starts = entries[:, 0]
        self._entries = entries
        self._order = np.lexsort((starts, starts & 15))
        self.count = len(entries)
        self.ends = np.arange(1, len(entries) + 1, dtype=np.int64) * encode.COMMIT_CELL_BYTES_MAX

    def key(self, row: int) -> bytes:
        return commit_row(int(self._entries[self._order[row], 0]))

    def encode(self, first: int, end: int, region: Region, durability: int, call: _BulkCall) -> None:
        actions_max = (end - first) * (encode.ACTION_BYTES_MAX + encode.COMMIT_ROW_BYTES)
        request = RequestBuffers(actions_max, _block_bytes(self, first, end))
        encode.encode_commits(self._entries, self._order, first, end, durability, request.arrays())
        call.add(region, request, range(first, end))

    def renumbered(self, outcome: BulkOutcome) -> BulkOutcome:
        """Return the outcome with row numbers in the order in which the entries were given."""
        return BulkOutcome(self._order[outcome.refused].tolist(), self._order[outcome.indeterminate].tolist())


class _ChangedRows:
    """Shadow cells and exact deletes."""

    rows_max = CALL_ROWS_MAX

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.count = changes.rows
        self.ends = changes.block_ends()

    def key(self, row: int) -> bytes:
        return self._changes.key(row)

    def encode(self, first: int, end: int, region: Region, durability: int, call: _BulkCall) -> None:
        self._encode(first, end, region, durability, call, atomic=False)
        self._encode(first, end, region, durability, call, atomic=True)

    def _encode(self, first: int, end: int, region: Region, durability: int, call: _BulkCall, *, atomic: bool) -> None:
        changes = self._changes
        specifier = np.frombuffer(bytearray(region.specifier.SerializeToString()), dtype=np.uint8)
        row_bytes = int(changes.row_bytes[first:end].sum())
        actions_max = 2 * ((end - first) * encode.ACTION_BYTES_MAX + row_bytes) + (end - first) * (len(specifier) + 16)
        request = RequestBuffers(actions_max, _block_bytes(self, first, end))
        encoded = np.empty(end - first, dtype=np.int64)
        encode.encode_changes(tuple(changes), first, end, atomic, specifier, durability, encoded, request.arrays())
        rows = encoded[: request.rows].tolist()
        if atomic and rows:
            call.parameters.append(request.actions())
            call.blocks.append(request.block())
            call.groups += [_Group(region, (row,)) for row in rows]
        elif rows:
            call.add(region, request, rows)


def _block_bytes(rows: _Rows, first: int, end: int) -> int:
    """Return an upper bound for the cell block of these rows."""
    return int(rows.ends[end - 1]) - (int(rows.ends[first - 1]) if first else 0)
