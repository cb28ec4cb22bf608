"""Reads and writes of rows, wherever their regions are. Each operation is written once, as a coroutine (`calls`).

Until its budget's deadline, an operation retries a call that did not take effect or that is safe to repeat. If the
reply to a mutation was lost that must not be retried, its result is `INDETERMINATE`. After three seconds of pauses an
operation checks its table, and raises if the table is missing or disabled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from google.protobuf.message import Message

from pyomid.errors import Corruption, Unavailable, UnknownTable
from pyomid.omid.hbase.codec.keyvalues import KeyValue, decode
from pyomid.omid.hbase.codec.layout import SystemNames
from pyomid.omid.hbase.regions.calls import (
    Answer,
    Budget,
    Failure,
    Role,
    Start,
    answer_to,
    ask_server,
    failure_of,
    find_server,
    has_succeeded,
    parsed,
)
from pyomid.omid.hbase.regions.locations import META_TABLE, LocationCache, Region, meta_region, parse_region
from pyomid.omid.hbase.rpc.failures import (
    ConnectionLost,
    Reaction,
    RemoteFailure,
)
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, Reply
from pyomid.omid.hbase.rpc.hbase_pb2 import (
    MultiRequest,
    MultiResponse,
    RegionSpecifier,
    ScanRequest,
    ScanResponse,
)
from pyomid.omid.hbase.rpc.requests import (
    FIRST_CELL_OF_ROW,
    INDETERMINATE,
    NAMES_ONLY,
    Durability,
    RowGet,
    RowMutation,
    RowRequest,
    RowResult,
    mutation_message,
    set_filter,
)
from pyomid.types import KeyRange

_META_PAGE_ROWS: Final = 1000
_LAST_REGION_ID: Final = b"99999999999999"
"""HConstants.NINES: it sorts after every region id."""

_TABLE_STATE: Final = ((b"table", (b"state",)),)
_DISABLED: Final = (b"\x08\x01", b"\x08\x02")
"""Values of `TableState` in meta: the table is disabled, or about to be."""

MULTI_BYTES_MAX: Final = 4 << 20
MULTI_ROWS_MAX: Final = 4000
"""The maximum numbers of bytes and rows in one Multi, which occupies a handler of the region server while it runs."""


class RegionOperations:
    """Reads and writes rows, by region. It has no state but the cache, so any number of threads may share it."""

    def __init__(
        self,
        cache: LocationCache,
        *,
        durability: Durability = Durability.TABLE,
        names: SystemNames = SystemNames(),  # noqa: B008 - immutable
    ) -> None:
        self.cache = cache
        self.names = names
        self.durability = durability

    # ---- locating regions -------------------------------------------------------------------------------------

    async def locate(self, table: str, row: bytes, budget: Budget) -> Region:
        """Return the region that holds `row`. Waits while no server serves it, for instance during a move."""
        while True:
            await self._check_served(table, budget)
            region = self.cache.find(table, row)
            if region is None:
                await self._look_up(table, row, budget)
                region = self.cache.find(table, row)
            if region is not None and region.server is not None:
                return region
            name = f"row {row[:60]!r}"
            if region is not None:
                self.cache.forget_region(region)
                name = region.name.decode(errors="backslashreplace")
            budget.last = RemoteFailure("RegionOffline", f"{name} of table {table}")
            await budget.pause()

    async def _check_served(self, table: str, budget: Budget) -> None:
        """If a check is due, raise `UnknownTable` if the table is missing, or `Unavailable` if it is disabled, because
        retrying cannot help. If meta does not reply, do nothing."""
        check = budget.check_budget()
        if check is None or table == META_TABLE:
            return
        try:
            (state,) = await self.table_states([table], check)
        except Unavailable:
            return
        if state is None:
            self.cache.forget_table(table)
            raise UnknownTable(f"HBase has no table {table!r}", table=table)
        if state in _DISABLED:
            raise Unavailable(f"{check.what}: table {table} is disabled: enable it", table=table)

    async def table_states(self, tables: Sequence[str], budget: Budget) -> list[bytes | None]:
        """Return the bytes of each table's `TableState` in meta; None for a missing table. Does not need the master."""
        gets = [RowGet(self.names.physical(table).encode(), _TABLE_STATE, max_versions=1) for table in tables]
        found = await self.rows(META_TABLE, gets, budget)
        return [cells[0].value if isinstance(cells, list) and cells else None for cells in found]

    async def regions(self, table: str, budget: Budget) -> list[Region]:
        """Return all regions of the table in key order, read from meta, without gap or overlap. Raises `UnknownTable`
        if there are none.

        A long list is read in pages. If a region splits between two pages, one page may have the parent and the next
        the daughters: then all regions are listed again.
        """
        while True:
            regions = await self._list(table, budget)
            key = _gap_or_overlap(regions)
            if key is None:
                return regions
            budget.last = Unavailable(f"meta lists regions of {table!r} with a gap or an overlap at {key[:60]!r}")
            await budget.pause()

    async def _list(self, table: str, budget: Budget) -> list[Region]:
        """Return the regions as listed. There are gaps or overlaps if regions changed between two pages of meta."""
        physical = self.names.physical(table).encode()
        start = physical + b",,"
        stop = physical + b"-"  # the character after the comma
        regions: list[Region] = []
        has_more = True
        while has_more:
            rows, has_more = await self._scan_meta(start, stop, budget, reverse=False, limit=_META_PAGE_ROWS)
            regions += [region for row in rows if (region := _region_of(table, row)) is not None]
            if rows:
                start = rows[-1][0].row + b"\0"
            elif has_more:
                await budget.pause()
        if not regions:
            raise UnknownTable(f"HBase has no table {table!r}", table=table)
        regions.sort(key=lambda region: (region.key_range.start, region.region_id))
        return regions

    async def _look_up(self, table: str, row: bytes, budget: Budget) -> None:
        if table == META_TABLE:
            server = await find_server(Role.META, budget)
            self.cache.put(META_TABLE, [meta_region(server)])
        elif not self.cache.knows(table):
            regions = await self._list(table, budget)  # gaps and overlaps are harmless in a cache
            self.cache.replace(table, regions)
        else:
            physical = self.names.physical(table).encode()
            start = b",".join((physical, row, _LAST_REGION_ID))
            stop = physical + b",,"
            rows, _ = await self._scan_meta(start, stop, budget, reverse=True, limit=2)
            found = [region for each in rows if (region := _region_of(table, each)) is not None]
            if not found:
                self.cache.forget_table(table)
            self.cache.put(table, found[:1])

    async def _scan_meta(
        self, start: bytes, stop: bytes, budget: Budget, *, reverse: bool, limit: int
    ) -> tuple[list[list[KeyValue]], bool]:
        """Return rows of meta, from one call, and whether there may be more: a server may return fewer than `limit`."""
        request = ScanRequest(number_of_rows=limit, limit_of_rows=limit, close_scanner=True)
        request.scan.start_row, request.scan.stop_row = start, stop
        request.scan.include_stop_row = reverse
        request.scan.reversed = reverse
        request.scan.caching = limit
        request.scan.column.add(family=b"info", qualifier=[b"regioninfo", b"server"])
        while True:
            region = await self.locate(META_TABLE, b"", budget)
            request.region.CopyFrom(region.specifier)
            answer = await self.ask_region(region, "Scan", request, budget)
            if isinstance(answer, Reply):
                response = parsed(ScanResponse, answer)
                cells = decode(answer.cells)
                rows = [_next_cells(cells, count) for count in response.cells_per_result]
                if not all(rows):
                    raise Corruption("a reply lists a row of meta without cells")
                if next(cells, None) is not None:
                    raise Corruption("a reply of meta holds cells that belong to no row")
                return rows, len(rows) == limit or (response.more_results and response.more_results_in_region)
            await budget.pause()

    # ---- the end of a range -----------------------------------------------------------------------------------

    async def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int, budget: Budget) -> bytes:
        """Return the key of the first of the range's last `rows` rows, by one call to the range's last region. If that
        region holds fewer rows of the range, return the key at which the region begins, or the range if it begins
        later."""
        while True:
            await self._check_served(table, budget)
            regions = await self.regions(table, budget)
            stop = key_range.stop
            region = [each for each in regions if stop is None or each.key_range.start < stop][-1]
            least = max(region.key_range.start, key_range.start)
            request = ScanRequest(number_of_rows=rows, limit_of_rows=rows, close_scanner=True)
            request.region.CopyFrom(region.specifier)
            request.scan.reversed, request.scan.caching = True, rows
            ends_inside = stop is not None and (region.key_range.stop is None or stop < region.key_range.stop)
            request.scan.start_row = stop if ends_inside and stop is not None else b""
            request.scan.include_start_row = False
            request.scan.stop_row, request.scan.include_stop_row = least, True
            set_filter(request.scan, (FIRST_CELL_OF_ROW, NAMES_ONLY))
            if region.server is not None:
                answer = await self.ask_region(region, "Scan", request, budget)
                if isinstance(answer, Reply):
                    response = parsed(ScanResponse, answer)
                    cells = list(decode(answer.cells))
                    has_more = response.more_results and response.more_results_in_region
                    return cells[-1].row if cells and (len(cells) >= rows or has_more) else least
            await budget.pause()

    # ---- rows -------------------------------------------------------------------------------------------------

    async def rows(self, table: str, requests: Sequence[RowRequest], budget: Budget) -> list[RowResult]:
        """Return the result of each request, in order. If a request cannot succeed, raise its error after all others
        have ended."""
        results = await self.outcomes(table, requests, budget)
        found: list[RowResult] = []
        for result in results:
            if isinstance(result, RemoteFailure):
                raise result.as_error(budget.what)
            found.append(result)
        return found

    async def outcomes(
        self, table: str, requests: Sequence[RowRequest], budget: Budget
    ) -> list[RowResult | RemoteFailure]:
        """Like `rows`, but the result of a request that cannot succeed is its failure."""
        results: list[RowResult | RemoteFailure] = [None] * len(requests)
        open_requests = list(range(len(requests)))
        while open_requests:
            batches = await self._batches(table, requests, open_requests, budget)
            sends = [(batch.server, batch.call(self.durability)) for batch in batches]
            sent_calls = await Start(sends, budget.call_s)
            open_requests = []
            pause = False
            for batch, sent_call in zip(batches, sent_calls, strict=True):
                answer = await answer_to(sent_call, budget)
                for outcome in batch.outcomes(answer):
                    if not isinstance(outcome.result, Exception):
                        results[outcome.index] = outcome.result
                        continue
                    reaction = self.react(outcome.region, outcome.result, budget)
                    if reaction is Reaction.FAIL:
                        assert isinstance(outcome.result, RemoteFailure)
                        results[outcome.index] = outcome.result
                    elif is_indeterminate(outcome.result) and not _is_repeatable(requests[outcome.index]):
                        results[outcome.index] = INDETERMINATE
                    else:
                        open_requests.append(outcome.index)
                        pause |= reaction is not Reaction.SHRINK
            if open_requests and pause:
                await budget.pause()
        return results

    async def _batches(
        self, table: str, requests: Sequence[RowRequest], indices: Iterable[int], budget: Budget
    ) -> list[_Batch]:
        """Group requests by server into calls of limited size, in the order of the requests."""
        open_batches: dict[Address, _Batch] = {}
        batches: list[_Batch] = []
        for index in indices:
            request = requests[index]
            region = await self.locate(table, request.row, budget)
            assert region.server is not None
            batch = open_batches.get(region.server)
            if batch is None or batch.is_full:
                batch = open_batches[region.server] = _Batch(region.server)
                batches.append(batch)
            batch.add(region, index, request)
        return batches

    async def ask_region(self, region: Region, method: str, message: Message, budget: Budget) -> Answer | None:
        """Send one call to a region's server. Returns the reply, or None if the caller should locate the region again
        and retry. Raises if the request cannot succeed."""
        assert region.server is not None
        call = Call(CLIENT, method, message.SerializeToString())
        answer = await ask_server(region.server, call, budget)
        if has_succeeded(answer):
            return answer
        self.react_or_raise(region, failure_of(answer), budget)
        return None

    def react_or_raise(self, region: Region, failure: Failure, budget: Budget) -> Reaction:
        """Like `react`, but raises the caller's error if the request cannot succeed."""
        reaction = self.react(region, failure, budget)
        if reaction is Reaction.FAIL:
            assert isinstance(failure, RemoteFailure)
            raise failure.as_error(budget.what)
        return reaction

    def react(self, region: Region, failure: Exception, budget: Budget) -> Reaction:
        """Return the reaction to a failure. Locations that the failure proves wrong are dropped from the cache."""
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

    def call(self, durability: Durability) -> Call:
        """Return a call with one region action for all simple requests of a region, and one for each atomic request."""
        message = MultiRequest()
        blocks: list[bytes] = []
        for region, requests in self._by_region.values():
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
        if not has_succeeded(answer):
            return self._all(failure_of(answer))
        cells = decode(answer.cells)
        found: list[_Outcome] = []
        for (region, indices), result in zip(self._order, region_results(answer, len(self._order)), strict=True):
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
                taken = _next_cells(cells, each.result.associated_cell_count)
                answered[each.index] = _Outcome(region, each.index, taken)
        # For an atomic region action that succeeded as a whole, HBase may return fewer results than actions.
        return [answered.get(index) or _Outcome(region, index, None) for index in indices]

    def _all(self, failure: Exception) -> list[_Outcome]:
        return [_Outcome(region, index, failure) for region, indices in self._order for index in indices]


def region_results(answer: Reply, count: int) -> Sequence[Any]:
    """Return the results of a Multi, one for each of its `count` region actions."""
    results = parsed(MultiResponse, answer).regionActionResult
    if len(results) != count:
        raise Corruption(f"a reply has {len(results)} results for {count} region actions")
    return results


def region_failures(answer: Reply, count: int) -> Iterator[tuple[int, int | None, RemoteFailure]]:
    """Yield the failures of a Multi as tuples: number of the region action, index of the action in it (None: all of
    them), failure."""
    for number, result in enumerate(region_results(answer, count)):
        if result.HasField("exception"):
            yield number, None, RemoteFailure.of_pair(result.exception.name, result.exception.value)
            continue
        for each in result.resultOrException:
            if each.HasField("exception"):
                yield number, each.index, RemoteFailure.of_pair(each.exception.name, each.exception.value)


def _next_cells(cells: Iterator[KeyValue], count: int) -> list[KeyValue]:
    """Return the next `count` cells of a reply's block."""
    found = list(islice(cells, max(0, count)))
    if len(found) < count:
        raise Corruption(f"a reply announces {count} cells of a row but holds only {len(found)}")
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
"""The exceptions that a server raises before it begins a mutation, so that nothing took effect."""


def is_indeterminate(failure: Exception) -> bool:
    """Return whether the failed request may have taken effect or may still take effect."""
    return not isinstance(failure, RemoteFailure) or failure.simple_name not in _REFUSALS


def _is_repeatable(request: RowRequest) -> bool:
    return isinstance(request, RowGet) or (request.condition is None and request.repeatable)


def _region_of(table: str, row: list[KeyValue]) -> Region | None:
    values = {cell.qualifier: cell.value for cell in row}
    if b"regioninfo" not in values:
        return None
    return parse_region(table, row[0].row, values[b"regioninfo"], values.get(b"server", b""))


def _gap_or_overlap(regions: Sequence[Region]) -> bytes | None:
    """Return the first key that no region holds, or more than one; None if there is no such key. `regions` are in key
    order."""
    reached: bytes | None = b""
    for region in regions:
        if reached is None or region.key_range.start != reached:
            return min(region.key_range.start, region.key_range.start if reached is None else reached)
        reached = region.key_range.stop
    return reached
