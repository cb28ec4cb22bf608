"""Regions without a server: answers the scan calls of `steps` from a dictionary, and fails as region servers do."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from pyomid.storage.hbase.failures import CallTimedOut, ConnectionLost, RemoteFailure
from pyomid.storage.hbase.frames import Address, Reply
from pyomid.storage.hbase.hbase_pb2 import ScanRequest, ScanResponse
from pyomid.storage.hbase.keyvalues import KeyValue, encode
from pyomid.storage.hbase.locations import Region
from pyomid.storage.hbase.steps import Finish, Flight, Pause, RegionOperations, Start, Steps
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
        edges: list[bytes | None] = [b"", *self.borders, None]
        return [
            Region(b"%s,%b,1.%x." % (TABLE.encode(), start or b"", hash((start, stop)) & 0xFFFF), TABLE,
                   KeyRange(start or b"", stop), 1, SERVER)
            for start, stop in pairwise(edges)
        ]  # fmt: skip

    def drive(self, operations: RegionOperations, steps: Steps[T]) -> T:
        """A driver: calls are answered when they are waited for, by what the regions are then."""
        answer: Any = None
        try:
            while True:
                request = steps.send(answer)
                match request:
                    case Start(sends):
                        self.on_their_way += len(sends)
                        self.on_their_way_max = max(self.on_their_way_max, self.on_their_way)
                        answer = [Flight(address, call) for address, call in sends]
                    case Finish(flight):
                        self.on_their_way -= 1
                        answer = self._answer(flight.handle.parameter)
                    case Pause():
                        operations.cache.replace(TABLE, self.regions())
                        answer = None
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
        stops = [stop for stop in (request.scan.stop_row, region.key_range.stop) if stop]
        end = bisect_left(keys, min(stops)) if stops else len(keys)
        block, taken = b"", 0
        for key in keys[begin:end]:
            if taken == request.number_of_rows or len(block) >= request.scan.max_result_size:
                break
            block += encode(KeyValue(key, b"f", b"q", 50, self.rows[key]))
            taken += 1
        at_end = taken == max(0, end - begin)
        stop_inside = bool(request.scan.stop_row) and request.scan.stop_row in region.key_range
        message = ScanResponse(
            cells_per_result=[1] * taken,
            more_results=not (at_end and (stop_inside or region.key_range.stop is None)),
            more_results_in_region=not at_end,
        )
        return Reply(1, None, memoryview(message.SerializeToString()), memoryview(bytearray(block)))


def failure(name: str) -> Reply:
    found = RemoteFailure(f"org.apache.hadoop.hbase.{name}", "why")
    return Reply(1, found, memoryview(b""), memoryview(b""))
