"""A long list of regions comes in pages of hbase:meta: each region is listed once, even if regions split in between."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from pyomid.coroutines import Pause, Routine
from pyomid.errors import Unavailable, UnknownTable
from pyomid.omid.hbase.codec.keyvalues import KeyValue, encode
from pyomid.omid.hbase.regions import calls as calls_module
from pyomid.omid.hbase.regions import operations as operations_module
from pyomid.omid.hbase.regions.calls import Budget, FindServer, Finish, SentCall, Start
from pyomid.omid.hbase.regions.locations import LocationCache
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.rpc.frames import Address, Reply
from pyomid.omid.hbase.rpc.hbase_pb2 import RegionInfo, ScanRequest, ScanResponse
from pyomid.spark.source.read_task import divided
from pyomid.types import KeyRange

pytestmark = pytest.mark.fast

T = TypeVar("T")
SERVER = Address("somewhere", 1)


class Meta:
    """The rows of hbase:meta about one table. `between`: what happens once, behind the first page."""

    def __init__(self, regions: int, *, page_rows_max: int = 10_000) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.page_rows_max = page_rows_max
        self.between: Callable[[], None] = lambda: None
        self.pages = 0
        self.now_s = 0.0
        for number in range(regions):
            self.put(key(number), key(number + 1) if number + 1 < regions else b"", number + 1)

    def put(self, start: bytes, stop: bytes, region_id: int, *, is_split: bool = False) -> None:
        message = RegionInfo(region_id=region_id, start_key=start, end_key=stop, offline=is_split, split=is_split)
        message.table_name.namespace, message.table_name.qualifier = b"default", b"t"
        self.rows[b"t,%b,%d.h%d." % (start, region_id, region_id)] = b"PBUF" + message.SerializeToString()

    def split(self, number: int) -> None:
        start, stop = key(number), key(number + 1)
        self.put(start, stop, number + 1, is_split=True)
        self.put(start, start + b"m", 50_000 + number)
        self.put(start + b"m", stop, 60_000 + number)

    def drive(self, steps: Routine[T]) -> T:
        answer: Any = None
        try:
            while True:
                match steps.send(answer):
                    case Start(sends):
                        answer = [SentCall(address, call) for address, call in sends]
                    case Finish(sent_call):
                        answer = self._page(ScanRequest.FromString(sent_call.handle.parameter))
                    case FindServer():
                        answer = SERVER
                    case Pause(seconds):
                        self.now_s += seconds
                        answer = None
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _page(self, request: ScanRequest) -> Reply:
        self.pages += 1
        if self.pages == 2:
            self.between()
        keys = sorted(row for row in self.rows if request.scan.start_row <= row < request.scan.stop_row)
        taken = keys[: min(request.number_of_rows, self.page_rows_max)]
        block = b"".join(
            encode(KeyValue(row, b"info", qualifier, 1, value))
            for row in taken
            for qualifier, value in ((b"regioninfo", self.rows[row]), (b"server", b"somewhere:1"))
        )
        is_more = len(taken) < len(keys)
        message = ScanResponse(cells_per_result=[2] * len(taken), more_results=True, more_results_in_region=is_more)
        return Reply(1, None, memoryview(message.SerializeToString()), memoryview(bytearray(block)))


def key(number: int) -> bytes:
    return b"%06d" % number if number else b""


def regions_of(meta: Meta) -> list[KeyRange]:
    operations = RegionOperations(LocationCache())
    found = meta.drive(operations.regions("t", Budget("regions of t", 60.0)))
    return [region.key_range for region in found]


def check_whole(ranges: list[KeyRange]) -> None:
    assert (ranges[0].start, ranges[-1].stop) == (b"", None)
    assert all(one.stop == other.start for one, other in pairwise(ranges))


@pytest.fixture(autouse=True)
def _one_page_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_module, "_META_PAGE_ROWS", 10)


@pytest.mark.parametrize("regions", [1, 9, 10, 11, 25])
def test_a_list_of_many_pages_is_complete(regions: int) -> None:
    meta = Meta(regions)
    assert len(regions_of(meta)) == regions
    assert meta.pages == regions // 10 + 1


def test_a_region_that_splits_between_two_pages_is_listed_once() -> None:
    """It was in the first page, and its daughters are in the second one: a load would bring their rows twice."""
    meta = Meta(15)
    meta.between = lambda: meta.split(9)
    store = cast(Any, SimpleNamespace(regions=lambda table: regions_of(meta), split_points=lambda *_: []))
    parts = [KeyRange(*part) for part in divided(store, "t", KeyRange(), 1)]
    check_whole(parts)
    assert key(9) + b"m" in {part.start for part in parts}


def test_a_short_page_is_followed_by_another_request() -> None:
    meta = Meta(25, page_rows_max=4)
    ranges = regions_of(meta)
    check_whole(ranges)
    assert len(ranges) == 25


@pytest.mark.parametrize("number", [0, 3, 8])
def test_a_gap_between_regions_raises_at_the_deadline(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    meta = Meta(9)
    monkeypatch.setattr(calls_module, "time", SimpleNamespace(monotonic=lambda: meta.now_s))
    del meta.rows[b"t,%b,%d.h%d." % (key(number), number + 1, number + 1)]
    with pytest.raises(Unavailable, match=f"with a gap or an overlap at {key(number)!r}"):
        regions_of(meta)


def test_a_table_without_regions_is_unknown() -> None:
    with pytest.raises(UnknownTable):
        regions_of(Meta(0))
