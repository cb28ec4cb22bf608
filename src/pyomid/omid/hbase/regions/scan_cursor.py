"""A scan of a range of rows. A cursor moves from region to region and continues after failures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyomid.errors import Misuse
from pyomid.omid.hbase.codec.batches import ScanBlock
from pyomid.omid.hbase.codec.keyvalues import last_row
from pyomid.omid.hbase.regions.calls import (
    Answer,
    Budget,
    Failure,
    SentCall,
    Start,
    answer_to,
    failure_of,
    has_succeeded,
    parsed,
)
from pyomid.omid.hbase.regions.locations import Region
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.rpc.failures import Reaction
from pyomid.omid.hbase.rpc.frames import CLIENT, Call
from pyomid.omid.hbase.rpc.hbase_pb2 import Scan, ScanRequest, ScanResponse
from pyomid.omid.hbase.rpc.requests import Filter, set_filter, set_time_range
from pyomid.types import KeyRange

_ROW_BYTES_MAX: Final = 32_767


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """The parameters of a scan. `columns` are as in `RowGet`."""

    table: str
    key_range: KeyRange
    columns: tuple[tuple[bytes, tuple[bytes, ...]], ...] = ()
    max_versions: int = 1
    rows_per_call: int = 10_000
    bytes_per_call: int = 2 << 20
    read_ahead: bool = True
    """Prefetch: send the next call before the block of the current call is used; for a long scan, send several calls
    (`parallel_scan`)."""
    limit: int = 0
    time_range: tuple[int, int] | None = None
    """A range of versions as in `RowGet`."""
    filters: tuple[Filter, ...] = ()
    is_raw: bool = False
    """Return delete markers too, and the cells that they hide."""
    is_fresh: bool = False
    """Each call opens a new scanner. A scanner that stays open shows the region as it was when the scanner was
    opened."""


class ScanCursor:
    """The position of a scan in its range. After each block the caller sets `received_row`, the block's last complete
    row.

    One call at a time is in flight; `send` sends it before the block is needed. Each call of a fresh scan begins after
    the last row of the preceding block. If a row does not fit into one call, the scan continues with a scanner that
    stays open.
    """

    def __init__(self, operations: RegionOperations, spec: ScanSpec) -> None:
        if spec.rows_per_call < 1:
            raise Misuse(f"rows_per_call {spec.rows_per_call} is less than 1")
        self._operations = operations
        self._spec = spec
        self._start = spec.key_range.start
        self._start_inclusive = True
        self._region: Region | None = None
        self._scanner_id: int | None = None
        self._call_seq = 0
        self._ahead: SentCall | None = None
        stop = spec.key_range.stop
        self._done = stop is not None and stop <= spec.key_range.start
        self._is_fresh = spec.is_fresh
        self._restarted = False
        self._is_inside_row = False
        self._bytes_read = 0
        self._failing: Budget | None = None
        self._failed_at = (b"", False, -1)
        self.received_row: bytes | None = None
        self.was_full = False
        """Whether the last block ended at the size limit of a call, rather than at the end of its region or range."""

    @property
    def start(self) -> bytes:
        """The row at which the unread part begins. After a full call, the unread part begins after this row."""
        return self._start

    @property
    def key_range(self) -> KeyRange:
        return self._spec.key_range

    @property
    def is_done(self) -> bool:
        return self._done and not self._is_inside_row

    @property
    def is_sent(self) -> bool:
        """Whether a call is in flight, or its reply has not been taken yet."""
        return self._ahead is not None

    @property
    def can_be_cut(self) -> bool:
        return self._is_fresh and self._ahead is None and not self._done

    def cut_at(self, key: bytes) -> ScanCursor:
        """End this cursor before `key`, which is between its start and its stop. Returns a cursor for the rest."""
        whole = self._spec.key_range
        self._spec = replace(self._spec, key_range=KeyRange(whole.start, key))
        return ScanCursor(self._operations, replace(self._spec, key_range=KeyRange(key, whole.stop)))

    async def send(self, budget: Budget) -> None:
        """Send the call for the next block, unless it is already in flight."""
        if self._ahead is None and not self._done:
            self._ahead = await self._call(budget)

    async def fetch(self, budget: Budget) -> ScanBlock | None:
        """Return the next block that holds a row or part of one; None at the end of the range.

        The last block never ends inside a row. If the block before it ended inside a row, the last block may have no
        cells: the rest of the row had no wanted cells, or the scan restarted and the row was gone.
        """
        while not self._done:
            sent_call = self._ahead
            self._ahead = None
            if sent_call is None:
                sent_call = await self._call(budget)
            answer = await answer_to(sent_call, budget)
            block = await self._take(answer, budget)
            if block is not None and block.results:
                self._is_inside_row = block.ends_inside_row
                return block
        if self._is_inside_row:
            self._is_inside_row = False
            return ScanBlock(memoryview(b""), 0, ends_inside_row=False, restarted=self._restarted)
        return None

    async def close(self, budget: Budget) -> None:
        """Close the server's scanner without waiting for the reply."""
        region, self._done = self._region, True
        if self._scanner_id is None or region is None or region.server is None:
            return
        request = ScanRequest(scanner_id=self._scanner_id, close_scanner=True, number_of_rows=0)
        self._scanner_id = None
        await Start(((region.server, Call(CLIENT, "Scan", request.SerializeToString())),), budget.call_s)

    async def _call(self, budget: Budget) -> SentCall:
        if self._scanner_id is None:
            region = await self._operations.locate(self._spec.table, self._start, budget)
            self._region = region
            request = self._open_request(region)
        else:
            request = ScanRequest(scanner_id=self._scanner_id, next_call_seq=self._call_seq)
        request.number_of_rows = self._spec.rows_per_call
        request.client_handles_partials = request.client_handles_heartbeats = True
        assert self._region is not None
        assert self._region.server is not None
        call = Call(CLIENT, "Scan", request.SerializeToString())
        (sent_call,) = await Start(((self._region.server, call),), budget.call_s)
        self._call_seq += 1
        return sent_call

    def _open_request(self, region: Region) -> ScanRequest:
        request = ScanRequest(next_call_seq=0, limit_of_rows=self._spec.limit, close_scanner=self._is_fresh)
        request.region.CopyFrom(region.specifier)
        scan = request.scan
        scan.start_row, scan.include_start_row = self._start, self._start_inclusive
        if self._start_inclusive and _is_after_longest(self._start):
            scan.start_row, scan.include_start_row = self._start[:-1], False
        stop = self._spec.key_range.stop
        if stop is not None:
            scan.stop_row = stop
            # HBase uses the Bloom filters of its files only for a scan of one row. An empty stop means the end of the
            # table.
            of_one_row = scan.include_start_row and scan.start_row and stop == scan.start_row + b"\0"
            if _is_after_longest(stop) or of_one_row:
                scan.stop_row, scan.include_stop_row = stop[:-1], True
        scan.max_versions = self._spec.max_versions
        scan.max_result_size, scan.caching = self._spec.bytes_per_call, self._spec.rows_per_call
        if self._spec.is_fresh:
            # By default HBase switches a scanner from positioned reads to a stream after 256 KiB, and returns what it
            # has read so far (StoreScanner, hbase.storescanner.pread). So a scanner that lives for one call would never
            # return more. Inside a large row, the switch reads a block of each file again while the old blocks are
            # still in memory; with cells of 10 MiB, each a block of its own, that killed a region server.
            scan.readType = Scan.PREAD
        for family, qualifiers in self._spec.columns:
            scan.column.add(family=family, qualifier=qualifiers)
        set_filter(scan, self._spec.filters)
        if self._spec.is_raw:
            scan.attribute.add(name="_raw_", value=b"\xff")
        if self._spec.time_range is not None:
            set_time_range(scan, *self._spec.time_range)
        self._call_seq = 0
        return request

    async def _take(self, answer: Answer, budget: Budget) -> ScanBlock | None:
        if not has_succeeded(answer):
            await self._recover(failure_of(answer), budget)
            return None
        response = parsed(ScanResponse, answer)
        if response.HasField("scanner_id") and not self._is_fresh:
            self._scanner_id = response.scanner_id
        partial = bool(response.partial_flag_per_result) and response.partial_flag_per_result[-1]
        block = ScanBlock(answer.cells, len(response.cells_per_result), partial, self._restarted)
        if block.results:
            self._restarted = False
        self.was_full = response.more_results and response.more_results_in_region
        self._bytes_read += len(block.cells)
        if not response.more_results:
            self._done = True
        elif not response.more_results_in_region:
            self._leave_region()
        elif self._is_fresh and block.results:
            self._move_after(block)
        elif self._is_fresh:
            self._is_fresh = False  # the call timed out before it found a row: only an open scanner makes progress
        if self._position > self._failed_at:
            self._failing = None
            budget.tries = 0
        return block

    @property
    def _position(self) -> tuple[bytes, bool, int]:
        """The progress: the row where the scanner began, whether it began after rather than at this row, and how many
        bytes it has read."""
        return self._start, not self._start_inclusive, self._bytes_read

    def _go_to(self, row: bytes, *, inclusive: bool) -> None:
        """Let the next scanner begin at `row` if `inclusive`, otherwise after it."""
        self._start, self._start_inclusive = row, inclusive
        self._bytes_read = 0

    def _move_after(self, block: ScanBlock) -> None:
        """Let the next scanner begin after the block's last row, or at this row if only part of it was received."""
        self._go_to(last_row(block.cells), inclusive=block.ends_inside_row)
        if block.ends_inside_row:
            self._restarted = True
            self._is_fresh = block.results > 1

    def _leave_region(self) -> None:
        """Move on to the next region. The server has closed the scanner at the region's end."""
        assert self._region is not None
        stop, whole = self._region.key_range.stop, self._spec.key_range.stop
        self._scanner_id = None
        if stop is None or (whole is not None and stop >= whole):
            self._done = True
        else:
            self._go_to(stop, inclusive=True)

    async def _recover(self, failure: Failure, budget: Budget) -> None:
        """Prepare another scanner, which begins after the caller's last complete row.

        Each call of a scan has its own budget, but all attempts to get beyond one position share the budget of the
        first (C11). Otherwise a part of a row that fails each time (for example because it kills the server) would be
        retried for ever, because the parts before it succeed each time.
        """
        assert self._region is not None
        reaction = self._operations.react_or_raise(self._region, failure, budget)
        self._scanner_id = None
        self._restarted = True
        is_first = self._failing is None
        self._failing = failing = self._failing or budget
        failing.last = failure
        self._failed_at = max(self._failed_at, self._position)
        row = self.received_row
        if row is not None and row >= self._start:
            self._go_to(row, inclusive=False)
        else:
            self._go_to(self._start, inclusive=self._start_inclusive)
        if reaction is not Reaction.REOPEN or not is_first:
            await failing.pause()


def _is_after_longest(key: bytes) -> bool:
    """Return whether `key` is the least key after a row of maximal length. Such a key is longer than HBase accepts."""
    return len(key) == _ROW_BYTES_MAX + 1 and key.endswith(b"\0")
