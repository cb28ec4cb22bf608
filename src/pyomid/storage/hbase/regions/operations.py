"""Each operation on regions once, as a generator: it yields what it waits for, and a driver performs that.

    Start(sends)     → list of flights: calls sent, all at once          Finish(flight) → Reply, or the failure
    Pause(seconds)   → None                                              FindServer(which) → Address

There are two drivers: `rpc/client` (blocking) and `rpc/aio_client`. A call that did not take effect, or may be repeated
without harm, is sent again until the budget's deadline, with back-off and jitter. A mutation that must not be repeated
and whose answer was lost is indeterminate: `UNSURE` to its caller.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from pyomid.errors import Corruption, Misuse, Unavailable, UnknownTable
from pyomid.storage.hbase.codec.keyvalues import KeyValue, decode, last_row
from pyomid.storage.hbase.regions.locations import META_TABLE, LocationCache, Region, meta_region, parse_region
from pyomid.storage.hbase.rpc.failures import CallTimedOut, ConnectionLost, Reaction, RemoteFailure
from pyomid.storage.hbase.rpc.frames import CLIENT, Address, Call, Reply
from pyomid.storage.hbase.rpc.hbase_pb2 import (
    MultiRequest,
    MultiResponse,
    RegionSpecifier,
    Scan,
    ScanRequest,
    ScanResponse,
)
from pyomid.storage.hbase.rpc.requests import (
    UNSURE,
    Durability,
    Filter,
    RowGet,
    RowMutation,
    RowRequest,
    RowResult,
    mutation_message,
    set_filter,
    set_time_range,
)
from pyomid.types import KeyRange

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_META_PAGE_ROWS: Final = 1000
_ROW_BYTES_MAX: Final = 32_767
_LAST_REGION_ID: Final = b"99999999999999"
"""Sorts behind every region id: HConstants.NINES."""

_PAUSE_S_FIRST: Final = 0.02
_PAUSE_S_MAX: Final = 1.0

MULTI_BYTES_MAX: Final = 4 << 20
MULTI_ROWS_MAX: Final = 4000
"""One Multi occupies a handler of the region server while it runs. Bounded, so that others get their turn."""


class Role(Enum):
    """Servers that ZooKeeper names."""

    META = "meta-region-server"
    MASTER = "master"


@dataclass(slots=True)
class Flight:
    """A call under way: the driver's own handle, or the failure to send it."""

    address: Address
    handle: Any = None
    failure: ConnectionLost | None = None


@dataclass(frozen=True, slots=True)
class Start:
    sends: Sequence[tuple[Address, Call]]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    flight: Flight
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class FindServer:
    role: Role


Request = Start | Finish | Pause | FindServer
Answer = Reply | ConnectionLost | CallTimedOut
Steps = Generator[Request, Any, T]


@dataclass(slots=True)
class Budget:
    """How long an operation may repeat its calls. `what` names it in errors."""

    what: str
    seconds: float
    call_s_max: float = 20.0
    tries: int = 0
    last: BaseException | None = None
    ends_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.ends_s = time.monotonic() + self.seconds

    @property
    def call_s(self) -> float:
        return max(0.05, min(self.call_s_max, self.ends_s - time.monotonic()))

    def pause(self) -> Pause:
        """Pauses before the next attempt; raises the caller's error when the time is up."""
        if time.monotonic() >= self.ends_s:
            raise self.spent()
        longest = min(_PAUSE_S_MAX, _PAUSE_S_FIRST * 2.0**self.tries)
        self.tries += 1
        return Pause(min(longest * random.uniform(0.5, 1.0), max(0.0, self.ends_s - time.monotonic())))

    def spent(self) -> Unavailable:
        if isinstance(self.last, RemoteFailure):
            error = self.last.as_error(self.what)
            if isinstance(error, Unavailable):
                error.args = (f"{error.message} (after {self.seconds:g} s, {self.tries} tries)",)
                error.message = error.args[0]
                return error
        return Unavailable(f"{self.what}: no success within {self.seconds:g} s, {self.tries} tries; last: {self.last}")


def ask_steps(address: Address, call: Call, budget: Budget) -> Steps[Answer]:
    """One call, one answer."""
    (flight,) = yield Start(((address, call),), budget.call_s)
    answer = yield from finish_steps(flight, budget)
    return answer


def finish_steps(flight: Flight, budget: Budget) -> Steps[Answer]:
    if flight.failure is not None:
        return flight.failure
    answer: Answer = yield Finish(flight, budget.call_s)
    return answer


class RegionOperations:
    """Reads and writes of rows, by region. Its only state is the cache, so threads and tasks share one object."""

    def __init__(self, cache: LocationCache, *, durability: Durability = Durability.TABLE) -> None:
        self.cache = cache
        self.durability = durability

    # ---- where ------------------------------------------------------------------------------------------------

    def locate_steps(self, table: str, row: bytes, budget: Budget) -> Steps[Region]:
        """The region that holds `row` and is served. Waits for a region that moves between two servers."""
        while True:
            region = self.cache.find(table, row)
            if region is None:
                yield from self._look_up_steps(table, row, budget)
                region = self.cache.find(table, row)
            if region is not None and region.server is not None:
                return region
            if region is not None:
                self.cache.forget_region(region)
            budget.last = RemoteFailure("RegionOffline", f"no server serves the region of row {row[:60]!r} of {table}")
            yield budget.pause()

    def regions_steps(self, table: str, budget: Budget) -> Steps[list[Region]]:
        """All regions of the table in key order, as meta says now. `UnknownTable` if there are none."""
        start = table.encode() + b",,"
        stop = table.encode() + b"-"  # the character after the comma
        regions: list[Region] = []
        while True:
            rows = yield from self._scan_meta_steps(start, stop, budget, reverse=False, limit=_META_PAGE_ROWS)
            regions += [region for row in rows if (region := _region_of(row)) is not None]
            if len(rows) < _META_PAGE_ROWS:
                break
            start = rows[-1][0].row + b"\0"
        if not regions:
            raise UnknownTable(f"HBase has no table {table!r}", table=table)
        regions.sort(key=lambda region: (region.key_range.start, region.region_id))
        return regions

    def _look_up_steps(self, table: str, row: bytes, budget: Budget) -> Steps[None]:
        if table == META_TABLE:
            server = yield FindServer(Role.META)
            self.cache.put(META_TABLE, [meta_region(server)])
        elif not self.cache.knows(table):
            regions = yield from self.regions_steps(table, budget)
            self.cache.replace(table, regions)
        else:
            start = b",".join((table.encode(), row, _LAST_REGION_ID))
            stop = table.encode() + b",,"
            rows = yield from self._scan_meta_steps(start, stop, budget, reverse=True, limit=2)
            found = [region for each in rows if (region := _region_of(each)) is not None]
            if not found:
                self.cache.forget_table(table)
            self.cache.put(table, found[:1])

    def _scan_meta_steps(
        self, start: bytes, stop: bytes, budget: Budget, *, reverse: bool, limit: int
    ) -> Steps[list[list[KeyValue]]]:
        """Rows of meta, in one call."""
        request = ScanRequest(number_of_rows=limit, limit_of_rows=limit, close_scanner=True)
        request.scan.start_row, request.scan.stop_row = start, stop
        request.scan.include_stop_row = reverse
        request.scan.reversed = reverse
        request.scan.caching = limit
        request.scan.column.add(family=b"info", qualifier=[b"regioninfo", b"server"])
        while True:
            region = yield from self.locate_steps(META_TABLE, b"", budget)
            request.region.CopyFrom(region.specifier)
            answer = yield from self._ask_region_steps(region, "Scan", request, budget)
            if isinstance(answer, Reply):
                response = parsed(ScanResponse, answer)
                cells = decode(answer.cells)
                return [_taken(cells, count) for count in response.cells_per_result]
            yield budget.pause()

    # ---- one row or many --------------------------------------------------------------------------------------

    def rows_steps(self, table: str, requests: Sequence[RowRequest], budget: Budget) -> Steps[list[RowResult]]:
        """Each request's result, in order. If one can never work, raises once all others have ended."""
        results = yield from self.settle_rows_steps(table, requests, budget)
        settled: list[RowResult] = []
        for result in results:
            if isinstance(result, RemoteFailure):
                raise result.as_error(budget.what)
            settled.append(result)
        return settled

    def settle_rows_steps(
        self, table: str, requests: Sequence[RowRequest], budget: Budget
    ) -> Steps[list[RowResult | RemoteFailure]]:
        """The same, with the failure in place of the result of a request that can never work."""
        results: list[RowResult | RemoteFailure] = [None] * len(requests)
        open_requests = list(range(len(requests)))
        while open_requests:
            batches = yield from self._batches_steps(table, requests, open_requests, budget)
            sends = [(batch.server, batch.call(self.durability)) for batch in batches]
            flights = yield Start(sends, budget.call_s)
            open_requests = []
            pause = False
            for batch, flight in zip(batches, flights, strict=True):
                answer = yield from finish_steps(flight, budget)
                for outcome in batch.outcomes(answer):
                    if not isinstance(outcome.result, Exception):
                        results[outcome.index] = outcome.result
                        continue
                    reaction = self.react(outcome.region, outcome.result, budget)
                    if reaction is Reaction.FAIL:
                        assert isinstance(outcome.result, RemoteFailure)
                        results[outcome.index] = outcome.result
                    elif is_unsure(outcome.result) and not _is_repeatable(requests[outcome.index]):
                        results[outcome.index] = UNSURE
                    else:
                        open_requests.append(outcome.index)
                        pause |= reaction is not Reaction.SHRINK
            if open_requests and pause:
                yield budget.pause()
        return results

    def gets_then_get_steps(
        self, table: str, gets: Sequence[RowGet], last_table: str, last: RowGet, budget: Budget
    ) -> Steps[list[list[KeyValue]] | None]:
        """The cells of each of `gets`, then those of `last`, which is read after all others: in one call, or None.

        None if the rows are on several servers, are too many for a call, or anything failed. A server performs the
        region actions of a call one after the other, in their order (RSRpcServices.multi; decisions 0022 and 0027).
        """
        region = yield from self.locate_steps(last_table, last.row, budget)
        batches = yield from self._batches_steps(table, gets, range(len(gets)), budget)
        if len(batches) != 1 or batches[0].server != region.server:
            return None
        (batch,) = batches
        batch.add_behind(region, len(gets), last)
        answer: Answer = yield from ask_steps(batch.server, batch.call(self.durability), budget)
        found: list[list[KeyValue]] = [[]] * (len(gets) + 1)
        has_failed = False
        for outcome in batch.outcomes(answer):
            if isinstance(outcome.result, Exception):
                self.react(outcome.region, outcome.result, budget)
                has_failed = True
            else:
                assert isinstance(outcome.result, list)
                found[outcome.index] = outcome.result
        return None if has_failed else found

    def _batches_steps(
        self, table: str, requests: Sequence[RowRequest], indices: Iterable[int], budget: Budget
    ) -> Steps[list[_Batch]]:
        """Requests by server, bounded in size, in the order of the rows' regions."""
        open_batches: dict[Address, _Batch] = {}
        batches: list[_Batch] = []
        for index in indices:
            request = requests[index]
            region = yield from self.locate_steps(table, request.row, budget)
            assert region.server is not None
            batch = open_batches.get(region.server)
            if batch is None or batch.is_full:
                batch = open_batches[region.server] = _Batch(region.server)
                batches.append(batch)
            batch.add(region, index, request)
        return batches

    def _ask_region_steps(self, region: Region, method: str, message: Message, budget: Budget) -> Steps[Answer | None]:
        """One call to a region's server: its reply, or None after a failure that was handled."""
        assert region.server is not None
        call = Call(CLIENT, method, message.SerializeToString())
        answer = yield from ask_steps(region.server, call, budget)
        if isinstance(answer, Reply) and answer.failure is None:
            return answer
        failure = answer.failure if isinstance(answer, Reply) else answer
        assert failure is not None
        if self.react(region, failure, budget) is Reaction.FAIL:
            assert isinstance(failure, RemoteFailure)
            raise failure.as_error(budget.what)
        return None

    def react(self, region: Region, failure: Exception, budget: Budget) -> Reaction:
        """How to react to a failure. The cache forgets what the failure disproves."""
        budget.last = failure
        if isinstance(failure, RemoteFailure):
            if failure.reaction is Reaction.LOCATE:
                self.cache.forget_region(region)
            return failure.reaction
        if region.server is not None and isinstance(failure, ConnectionLost):
            self.cache.forget_server(region.server)
        else:
            self.cache.forget_region(region)
        return Reaction.LOCATE


@dataclass(frozen=True, slots=True)
class _Outcome:
    region: Region
    index: int
    result: RowResult | Exception


class _Batch:
    """Requests to one server in one call."""

    def __init__(self, server: Address) -> None:
        self.server = server
        self._by_region: dict[bytes, tuple[Region, list[tuple[int, RowRequest]]]] = {}
        self._behind: list[tuple[Region, list[tuple[int, RowRequest]]]] = []
        self._rows = 0
        self._bytes = 0
        self._order: list[tuple[Region, tuple[int, ...]]] = []

    @property
    def is_full(self) -> bool:
        return self._rows >= MULTI_ROWS_MAX or self._bytes >= MULTI_BYTES_MAX

    def add(self, region: Region, index: int, request: RowRequest) -> None:
        self._by_region.setdefault(region.name, (region, []))[1].append((index, request))
        self._rows += 1
        if isinstance(request, RowMutation):
            self._bytes += request.bytes_count

    def add_behind(self, region: Region, index: int, request: RowGet) -> None:
        """Adds a read that takes place after all that was added before: a region action of its own, the last one."""
        self._behind.append((region, [(index, request)]))

    def call(self, durability: Durability) -> Call:
        """One region action for all simple requests of a region, and one for each request that must be alone."""
        message = MultiRequest()
        blocks: list[bytes] = []
        for region, requests in (*self._by_region.values(), *self._behind):
            simple = [each for each in requests if isinstance(each[1], RowGet) or each[1].is_simple]
            if simple:
                action = message.regionAction.add()
                action.region.type, action.region.value = RegionSpecifier.REGION_NAME, region.name
                for index, request in simple:
                    self._add_action(action, index, request, durability, blocks)
                self._order.append((region, tuple(index for index, _ in simple)))
            for index, request in requests:
                if isinstance(request, RowMutation) and not request.is_simple:
                    action = message.regionAction.add(atomic=True)
                    action.region.type, action.region.value = RegionSpecifier.REGION_NAME, region.name
                    if request.condition is not None:
                        action.condition.CopyFrom(request.condition.message(request.row))
                    self._add_action(action, index, request, durability, blocks)
                    self._order.append((region, (index,)))
        return Call(CLIENT, "Multi", message.SerializeToString(), b"".join(blocks))

    @staticmethod
    def _add_action(action: Any, index: int, request: RowRequest, durability: Durability, blocks: list[bytes]) -> None:
        if isinstance(request, RowGet):
            action.action.add(index=index, get=request.message())
            return
        for mutation in request.mutations:
            action.action.add(index=index, mutation=mutation_message(request.row, mutation, durability))
            blocks.append(mutation.block)

    def outcomes(self, answer: Answer) -> list[_Outcome]:
        if not isinstance(answer, Reply):
            return self._all(answer)
        if answer.failure is not None:
            return self._all(answer.failure)
        response = parsed(MultiResponse, answer)
        if len(response.regionActionResult) != len(self._order):
            raise Corruption(f"{len(response.regionActionResult)} results for {len(self._order)} actions on regions")
        cells = decode(answer.cells)
        found: list[_Outcome] = []
        for (region, indices), result in zip(self._order, response.regionActionResult, strict=True):
            if result.HasField("exception"):
                failure = RemoteFailure.of_pair(result.exception.name, result.exception.value)
                found += [_Outcome(region, index, failure) for index in indices]
            elif result.HasField("processed"):
                found += [_Outcome(region, index, result.processed) for index in indices]
            else:
                found += self._results(region, indices, result.resultOrException, cells)
        return found

    @staticmethod
    def _results(region: Region, indices: tuple[int, ...], results: Any, cells: Any) -> list[_Outcome]:
        answered: dict[int, _Outcome] = {}
        for each in results:
            if each.HasField("exception"):
                failure = RemoteFailure.of_pair(each.exception.name, each.exception.value)
                answered[each.index] = _Outcome(region, each.index, failure)
            elif each.index not in answered:
                taken = _taken(cells, each.result.associated_cell_count)
                answered[each.index] = _Outcome(region, each.index, taken)
        # An atomic group answers with fewer results than it has actions: it holds as a whole.
        return [answered.get(index) or _Outcome(region, index, None) for index in indices]

    def _all(self, failure: Exception) -> list[_Outcome]:
        return [_Outcome(region, index, failure) for region, indices in self._order for index in indices]


def parsed(kind: type[M], reply: Reply) -> M:
    try:
        return kind.FromString(reply.message)  # type: ignore[arg-type]
    except DecodeError as error:
        raise Corruption(f"a reply's message is no {kind.__name__}: {error}") from error


def _taken(cells: Iterator[KeyValue], count: int) -> list[KeyValue]:
    """The next `count` cells of a reply's block."""
    found = list(islice(cells, max(0, count)))
    if len(found) < count:
        raise Corruption(f"a reply announces {count} cells of a row and holds {len(found)}")
    return found


_REFUSALS: Final = frozenset(
    (
        "NotServingRegionException",
        "RegionMovedException",
        "RegionOpeningException",
        "RegionTooBusyException",
        "RegionServerStoppedException",
        "RegionServerAbortedException",
        "ServerNotRunningYetException",
        "WrongRegionException",
        "CallQueueTooBigException",
        "CallDroppedException",
        "RpcThrottlingException",
    )
)
"""Raised before a mutation is begun: nothing of it took effect."""


def is_unsure(failure: Exception) -> bool:
    """It may have taken effect, or may still do so."""
    return not isinstance(failure, RemoteFailure) or failure.simple_name not in _REFUSALS


def _is_repeatable(request: RowRequest) -> bool:
    return isinstance(request, RowGet) or (request.condition is None and request.repeatable)


def _region_of(row: list[KeyValue]) -> Region | None:
    values = {cell.qualifier: cell.value for cell in row}
    if b"regioninfo" not in values:
        return None
    return parse_region(row[0].row, values[b"regioninfo"], values.get(b"server", b""))


def _is_behind_longest(key: bytes) -> bool:
    """The least key after a row of the greatest length is longer than HBase accepts."""
    return len(key) == _ROW_BYTES_MAX + 1 and key.endswith(b"\0")


@dataclass(frozen=True, slots=True)
class ScanBlock:
    """The result of one scan call. `restarted`: rows that began in earlier blocks come again from their beginning."""

    cells: memoryview
    results: int
    ends_inside_row: bool
    restarted: bool


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """What a scan reads. Columns as in `RowGet`."""

    table: str
    key_range: KeyRange
    columns: tuple[tuple[bytes, tuple[bytes, ...]], ...] = ()
    max_versions: int = 1
    rows_per_call: int = 10_000
    bytes_per_call: int = 2 << 20
    read_ahead: bool = True
    """The next call is sent before this one's block is used; several calls for a long scan (`parallel_scan`)."""
    limit: int = 0
    time_range: tuple[int, int] | None = None
    """As in `RowGet`."""
    filters: tuple[Filter, ...] = ()
    is_fresh: bool = False
    """Each call opens a scanner of its own: a scanner that stays open shows the region as it was at its opening."""


class ScanCursor:
    """The position of a scan in its range. After each block the caller says by `settled_row` the last row it has whole.

    One call at a time is under way; `send_steps` sends it before the block is wanted. A fresh scan goes on after the
    last row of the block before. A row that does not fit into one call is read to its end by a scanner that stays open
    from then on.
    """

    def __init__(self, operations: RegionOperations, spec: ScanSpec) -> None:
        if spec.rows_per_call < 1:
            raise Misuse(f"a scan of {spec.rows_per_call} rows a call brings nothing")
        self._operations = operations
        self._spec = spec
        self._start = spec.key_range.start
        self._start_inclusive = True
        self._region: Region | None = None
        self._scanner_id: int | None = None
        self._call_seq = 0
        self._ahead: Flight | None = None
        stop = spec.key_range.stop
        self._done = stop is not None and stop <= spec.key_range.start
        self._is_fresh = spec.is_fresh
        self._restarted = False
        self._is_inside_row = False
        self.settled_row: bytes | None = None
        self.was_full = False
        """The last block ended by the bounds of a call, not because its region or range ended."""

    @property
    def start(self) -> bytes:
        """What was not read yet begins here, or after this row: the last row of a call that was full."""
        return self._start

    @property
    def key_range(self) -> KeyRange:
        return self._spec.key_range

    @property
    def is_done(self) -> bool:
        return self._done and not self._is_inside_row

    @property
    def is_sent(self) -> bool:
        """A call is under way, or its answer waits to be taken."""
        return self._ahead is not None

    @property
    def can_be_cut(self) -> bool:
        return self._is_fresh and self._ahead is None and not self._done

    def cut_at(self, key: bytes) -> ScanCursor:
        """Ends this cursor before `key`, which lies between its start and its stop; returns a cursor of the rest."""
        whole = self._spec.key_range
        self._spec = replace(self._spec, key_range=KeyRange(whole.start, key))
        return ScanCursor(self._operations, replace(self._spec, key_range=KeyRange(key, whole.stop)))

    def send_steps(self, budget: Budget) -> Steps[None]:
        """Sends the call for the next block, unless it is under way already."""
        if self._ahead is None and not self._done:
            self._ahead = yield from self._call_steps(budget)

    def fetch_steps(self, budget: Budget) -> Steps[ScanBlock | None]:
        """The next block that holds a row or part of one; None when the range is done.

        The last block never ends inside a row. A block without cells may follow one that did: the server had counted
        cells that were not wanted; or, restarted, the row is gone.
        """
        while not self._done:
            flight = self._ahead
            self._ahead = None
            if flight is None:
                flight = yield from self._call_steps(budget)
            answer = yield from finish_steps(flight, budget)
            block = yield from self._take_steps(answer, budget)
            if block is not None and block.results:
                self._is_inside_row = block.ends_inside_row
                return block
        if self._is_inside_row:
            self._is_inside_row = False
            return ScanBlock(memoryview(b""), 0, ends_inside_row=False, restarted=self._restarted)
        return None

    def close_steps(self, budget: Budget) -> Steps[None]:
        """Closes the server's scanner without waiting for the answer."""
        region, self._done = self._region, True
        if self._scanner_id is None or region is None or region.server is None:
            return
        request = ScanRequest(scanner_id=self._scanner_id, close_scanner=True, number_of_rows=0)
        self._scanner_id = None
        yield Start(((region.server, Call(CLIENT, "Scan", request.SerializeToString())),), budget.call_s)

    def _call_steps(self, budget: Budget) -> Steps[Flight]:
        if self._scanner_id is None:
            region = yield from self._operations.locate_steps(self._spec.table, self._start, budget)
            self._region = region
            request = self._open_request(region)
        else:
            request = ScanRequest(scanner_id=self._scanner_id, next_call_seq=self._call_seq)
        request.number_of_rows = self._spec.rows_per_call
        request.client_handles_partials = request.client_handles_heartbeats = True
        assert self._region is not None
        assert self._region.server is not None
        call = Call(CLIENT, "Scan", request.SerializeToString())
        (flight,) = yield Start(((self._region.server, call),), budget.call_s)
        self._call_seq += 1
        return flight  # type: ignore[no-any-return]

    def _open_request(self, region: Region) -> ScanRequest:
        request = ScanRequest(next_call_seq=0, limit_of_rows=self._spec.limit, close_scanner=self._is_fresh)
        request.region.CopyFrom(region.specifier)
        scan = request.scan
        scan.start_row, scan.include_start_row = self._start, self._start_inclusive
        if self._start_inclusive and _is_behind_longest(self._start):
            scan.start_row, scan.include_start_row = self._start[:-1], False
        stop = self._spec.key_range.stop
        if stop is not None:
            scan.stop_row = stop
            # HBase asks its files' filters first where a scan is of one row. An empty stop means: to the end.
            of_one_row = scan.include_start_row and scan.start_row and stop == scan.start_row + b"\0"
            if _is_behind_longest(stop) or of_one_row:
                scan.stop_row, scan.include_stop_row = stop[:-1], True
        scan.max_versions = self._spec.max_versions
        scan.max_result_size, scan.caching = self._spec.bytes_per_call, self._spec.rows_per_call
        if self._spec.is_fresh:
            # Left to itself a scanner turns from positioned reads to a stream after 256 KiB, and returns what it has at
            # that moment: one that lives for one call would never bring more (StoreScanner, hbase.storescanner.pread).
            # One that stays open inside a large row would read a block of each file anew, beside those that it holds:
            # a cell of 10 MiB is a block of its own, and twice those of all files ended a region server.
            scan.readType = Scan.PREAD
        for family, qualifiers in self._spec.columns:
            scan.column.add(family=family, qualifier=qualifiers)
        set_filter(scan, self._spec.filters)
        if self._spec.time_range is not None:
            set_time_range(scan, *self._spec.time_range)
        self._call_seq = 0
        return request

    def _take_steps(self, answer: Answer, budget: Budget) -> Steps[ScanBlock | None]:
        failure = answer.failure if isinstance(answer, Reply) else answer
        if failure is not None or not isinstance(answer, Reply):
            assert failure is not None
            yield from self._recover_steps(failure, budget)
            return None
        response = parsed(ScanResponse, answer)
        budget.tries = 0
        if response.HasField("scanner_id") and not self._is_fresh:
            self._scanner_id = response.scanner_id
        partial = bool(response.partial_flag_per_result) and response.partial_flag_per_result[-1]
        block = ScanBlock(answer.cells, len(response.cells_per_result), partial, self._restarted)
        if block.results:
            self._restarted = False
        self.was_full = response.more_results and response.more_results_in_region
        if not response.more_results:
            self._done = True
        elif not response.more_results_in_region:
            self._leave_region()
        elif self._is_fresh and block.results:
            self._move_behind(block)
        elif self._is_fresh:
            self._is_fresh = False  # the time was up before it found anything: a scanner that stays open gets on
        return block

    def _move_behind(self, block: ScanBlock) -> None:
        """The next scanner begins after the last whole row; at the last row again if only part of it came."""
        self._start, self._start_inclusive = last_row(block.cells), block.ends_inside_row
        if block.ends_inside_row:
            self._restarted = True
            self._is_fresh = block.results > 1

    def _leave_region(self) -> None:
        """The server closed the scanner at the region's end by itself."""
        assert self._region is not None
        stop, whole = self._region.key_range.stop, self._spec.key_range.stop
        self._scanner_id = None
        if stop is None or (whole is not None and stop >= whole):
            self._done = True
        else:
            self._start, self._start_inclusive = stop, True

    def _recover_steps(self, failure: Exception, budget: Budget) -> Steps[None]:
        """Another scanner, from after the last row that the caller has whole."""
        assert self._region is not None
        reaction = self._operations.react(self._region, failure, budget)
        if reaction is Reaction.FAIL:
            assert isinstance(failure, RemoteFailure)
            raise failure.as_error(budget.what)
        self._scanner_id = None
        self._restarted = True
        if self.settled_row is not None and self.settled_row >= self._start:
            self._start, self._start_inclusive = self.settled_row, False
        if reaction is not Reaction.REOPEN or budget.tries:
            yield budget.pause()
