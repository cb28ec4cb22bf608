"""Regions without a server: answers the scan calls of `steps` from a dictionary, and fails as region servers do."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from pyomid.coroutines import Pause, Routine
from pyomid.errors import Unavailable
from pyomid.omid.hbase.codec.batches import BatchDecoder
from pyomid.omid.hbase.codec.keyvalues import KeyValue, encode
from pyomid.omid.hbase.regions.calls import Budget, FindServer, Finish, SentCall, Start
from pyomid.omid.hbase.regions.locations import LocationCache, Region
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.parallel_scan import ParallelScan
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.failures import CallTimedOut, ConnectionLost, RemoteFailure
from pyomid.omid.hbase.rpc.frames import Address, Reply
from pyomid.omid.hbase.rpc.hbase_pb2 import ScanRequest, ScanResponse
from pyomid.types import KeyRange

T = TypeVar("T")

TABLE = "t"
SERVER = Address("somewhere", 1)


@dataclass
class ImitatedRegions:
    """One cell a row. Borders may be changed between two calls; a call to a region that is gone fails."""

    rows: dict[bytes, bytes]
    borders: list[bytes] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    failures: float = 0.0
    """The share of calls that fail by themselves."""
    on_their_way: int = 0
    on_their_way_max: int = 0
    calls: int = 0
    failed: int = 0

    def regions(self) -> list[Region]:
        """Named by both borders: no two of different ranges ever share a name."""
        edges: list[bytes | None] = [b"", *self.borders, None]
        return [
            Region(b"%s,%b,1.%b." % (TABLE.encode(), start or b"", repr(stop).encode()), TABLE,
                   KeyRange(start or b"", stop), 1, SERVER)
            for start, stop in pairwise(edges)
        ]  # fmt: skip

    def operations(self) -> RegionOperations:
        """These know where the regions are."""
        operations = RegionOperations(LocationCache())
        operations.cache.replace(TABLE, self.regions())
        return operations

    def scan(self, operations: RegionOperations, spec: ScanSpec) -> dict[bytes, int]:
        """The number of cells of each row found."""
        lanes, decoder, found = ParallelScan(operations, spec), BatchDecoder(), dict[bytes, int]()
        while (block := self.drive(operations, lanes.fetch(Budget("scan", 60.0)))) is not None:
            batch, received = decoder.decode(block)
            if received is not None:
                lanes.received(received)
            for row in range(0 if batch is None else batch.rows):
                assert batch is not None
                assert found.setdefault(batch.row_key(row), len(list(batch.row_cells(row))))
        return found

    def drive(self, operations: RegionOperations, steps: Routine[T]) -> T:
        """A driver: calls are answered when they are waited for, by what the regions are then."""
        answer: Any = None
        unknown: Unavailable | None = None
        try:
            while True:
                request = steps.send(answer) if unknown is None else steps.throw(unknown)
                unknown = None
                match request:
                    case Start(sends):
                        self.on_their_way += len(sends)
                        self.on_their_way_max = max(self.on_their_way_max, self.on_their_way)
                        answer = [SentCall(address, call) for address, call in sends]
                    case Finish(sent_call):
                        self.on_their_way -= 1
                        answer = self._answer(sent_call.handle.parameter)
                    case Pause():
                        operations.cache.replace(TABLE, self.regions())
                        answer = None
                    case FindServer():
                        unknown = Unavailable("nobody tells where meta is")  # so nothing is known of the table's state
                    case _:
                        raise AssertionError(f"{request} was not expected")
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _answer(self, parameter: bytes) -> Reply | ConnectionLost | CallTimedOut:
        self.calls += 1
        request = ScanRequest.FromString(parameter)
        region = next((each for each in self.regions() if each.name == request.region.value), None)
        if self.chance.random() < self.failures:
            self.failed += 1
            return self.chance.choice((ConnectionLost("lost"), CallTimedOut("late"), failure("RegionTooBusyException")))
        if region is None:
            self.failed += 1
            return failure("NotServingRegionException")
        return self._found(request, region)

    def _found(self, request: ScanRequest, region: Region) -> Reply:
        keys = sorted(self.rows)
        start = max(request.scan.start_row, region.key_range.start)
        begin = bisect_left(keys, start)
        if not request.scan.include_start_row and begin < len(keys) and keys[begin] == start:
            begin += 1
        stop_row = request.scan.stop_row + (b"\0" if request.scan.include_stop_row else b"")
        stops = [stop for stop in (stop_row, region.key_range.stop) if stop]
        end = bisect_left(keys, min(stops)) if stops else len(keys)
        block, taken = b"", 0
        for key in keys[begin:end]:
            if taken == request.number_of_rows or len(block) >= request.scan.max_result_size:
                break
            block += encode(KeyValue(key, b"f", b"q", 50, self.rows[key]))
            taken += 1
        at_end = taken == max(0, end - begin)
        stop_inside = bool(stop_row) and stop_row in region.key_range
        message = ScanResponse(
            cells_per_result=[1] * taken,
            more_results=not (at_end and (stop_inside or region.key_range.stop is None)),
            more_results_in_region=not at_end,
        )
        return Reply(1, None, memoryview(message.SerializeToString()), memoryview(bytearray(block)))


def failure(name: str) -> Reply:
    found = RemoteFailure(f"org.apache.hadoop.hbase.{name}", "why")
    return Reply(1, found, memoryview(b""), memoryview(b""))


@dataclass
class ImitatedRows(ImitatedRegions):
    """Rows of many cells, in the order of HBase. An answer ends behind the cell that fills it, a scanner shows what was
    there when it was opened, and is gone when its region is. Before each call `happens` may change anything."""

    cells: dict[bytes, list[KeyValue]] = field(default_factory=dict)
    happens: Callable[[], None] = lambda: None
    counts_unwanted: bool = False
    """Of each row there are more cells, which were not asked for: an answer that ends behind a row's last one says that
    the row goes on."""
    answered_bytes_max: int = 0
    _scanners: dict[int, tuple[bytes, list[KeyValue], ScanRequest]] = field(default_factory=dict)

    def _answer(self, parameter: bytes) -> Reply | ConnectionLost | CallTimedOut:
        self.happens()
        request = ScanRequest.FromString(parameter)
        if not request.HasField("scanner_id"):
            return super()._answer(parameter)
        self.calls += 1
        found = self._scanners.get(request.scanner_id)
        if found is None or self.chance.random() < self.failures:
            self.failed += 1
            return self.chance.choice((ConnectionLost("lost"), failure("UnknownScannerException")))
        name, left, opened = found
        if name not in {region.name for region in self.regions()}:
            self.failed += 1
            return failure("NotServingRegionException")
        return self._page(request.scanner_id, name, left, opened)

    def _found(self, request: ScanRequest, region: Region) -> Reply:
        stop = request.scan.stop_row + (b"\0" if request.scan.include_stop_row else b"")
        start = request.scan.start_row if request.scan.include_start_row else request.scan.start_row + b"\0"
        most = request.scan.max_versions
        left = [
            _answered(cell, request)
            for row in sorted(self.cells)
            if start <= row and (not stop or row < stop) and row in region.key_range
            for cell in _versions([one for one in self.cells[row] if _is_wanted(one, request)], most)
        ]
        number = self.calls
        return self._page(number, region.name, left, request)

    def _page(self, number: int, name: bytes, left: list[KeyValue], opened: ScanRequest) -> Reply:
        block, counts, taken = b"", [], 0
        for at, cell in enumerate(left):
            is_new = not at or cell.row != left[at - 1].row
            if len(block) >= opened.scan.max_result_size or (is_new and len(counts) == opened.number_of_rows):
                break
            if is_new:
                counts.append(0)
            counts[-1] += 1
            block += encode(cell)
            taken += 1
        self.answered_bytes_max = max(self.answered_bytes_max, len(block))
        is_partial = 0 < taken < len(left) and left[taken].row == left[taken - 1].row
        is_partial = is_partial or (self.counts_unwanted and len(block) >= opened.scan.max_result_size)
        goes_on = taken < len(left) or is_partial
        region = next(each for each in self.regions() if each.name == name)
        stop = opened.scan.stop_row + (b"\0" if opened.scan.include_stop_row else b"")
        is_last = region.key_range.stop is None or (bool(stop) and stop <= region.key_range.stop)
        self._scanners.pop(number, None)
        if not opened.close_scanner and goes_on:
            self._scanners[number] = (name, left[taken:], opened)
        message = ScanResponse(
            scanner_id=number,
            cells_per_result=counts,
            partial_flag_per_result=[False] * (len(counts) - 1) + [is_partial] if counts else [],
            more_results=goes_on or not is_last,
            more_results_in_region=goes_on,
        )
        return Reply(1, None, memoryview(message.SerializeToString()), memoryview(bytearray(block)))


def _versions(cells: list[KeyValue], most: int) -> list[KeyValue]:
    taken: dict[bytes, int] = {}
    found = []
    for cell in cells:
        taken[cell.qualifier] = taken.get(cell.qualifier, 0) + 1
        if taken[cell.qualifier] <= most:
            found.append(cell)
    return found


def _is_wanted(cell: KeyValue, request: ScanRequest) -> bool:
    columns = request.scan.column
    asked = not columns or any(each.family == cell.family and cell.qualifier in each.qualifier for each in columns)
    time_range = request.scan.time_range
    begin = getattr(time_range, "from")
    return asked and (not time_range.to or begin <= cell.timestamp < time_range.to)


def _answered(cell: KeyValue, request: ScanRequest) -> KeyValue:
    """KeyOnlyFilter leaves the value's length in its place, or nothing."""
    if not request.scan.filter.name.endswith("KeyOnlyFilter"):
        return cell
    with_length = request.scan.filter.serialized_filter.endswith(b"\x01")
    return cell._replace(value=len(cell.value).to_bytes(4) if with_length else b"")
