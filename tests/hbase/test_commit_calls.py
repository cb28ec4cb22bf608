"""Calls for commit entries: the compiled kernels equal a reference in Python, for the same regions and replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portions import examples
from pyomid.coroutines import Routine
from pyomid.errors import Corruption
from pyomid.omid.hbase.codec.keyvalues import KeyValue, decode, encode
from pyomid.omid.hbase.codec.layout import COMMIT_FAMILY, MARK_QUALIFIER, MARK_VALUE, commit_row, commit_table_splits
from pyomid.omid.hbase.commit_table import _entry, _entry_get, _status
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.regions.calls import Answer, Budget, SentCall, Start, ask_server
from pyomid.omid.hbase.regions.commit_entries import ENTRIES_MAX, CommitCalls
from pyomid.omid.hbase.regions.locations import LocationCache, Region
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.rpc.frames import Address, Call, Reply
from pyomid.omid.hbase.rpc.hbase_pb2 import MultiRequest, MultiResponse
from pyomid.omid.hbase.rpc.requests import Durability, RowGet
from pyomid.types import NOT_FOUND, SEALED, KeyRange

T = TypeVar("T")

COMMITS, META = "commits", "meta"
SERVER, ELSEWHERE = Address("here", 1), Address("elsewhere", 1)
ROW = HBaseLeaderState(None, table=META, commit_table=COMMITS)  # type: ignore[arg-type]
STATE = KeyValue(b"epoch", b"M", b"state", 3, b"the state")
MARKED_ONLY, MARKED_TOO = -1, -2

starts_of_cells = st.integers(0, (1 << 63) - 1) | st.integers(0, 400)
distinct_starts = st.lists(starts_of_cells, min_size=1, max_size=40, unique=True)
borders = st.lists(
    st.binary(min_size=1, max_size=12) | starts_of_cells.map(commit_row) | st.sampled_from(commit_table_splits()),
    max_size=20,
    unique=True,
)
commits = st.sampled_from([NOT_FOUND, MARKED_ONLY, MARKED_TOO]) | st.integers(1, 1 << 40)
"""By how much a commit timestamp is above its start, or what else is there."""


def regions_of(keys: list[bytes], *, missing: Callable[[int], bool] = lambda _: False) -> list[Region]:
    edges: list[bytes | None] = [b"", *sorted(keys), None]
    return [
        Region(b"%s,%b,%d." % (COMMITS.encode(), begin or b"", index), COMMITS, KeyRange(begin or b"", end), 1, SERVER)
        for index, (begin, end) in enumerate(pairwise(edges))
        if not missing(index)
    ]


def operations_of(regions: list[Region], *, durability: Durability = Durability.TABLE) -> RegionOperations:
    cache = LocationCache()
    cache.replace(COMMITS, regions)
    cache.put(META, [Region(b"meta,,1.", META, KeyRange(), 1, SERVER)])
    return RegionOperations(cache, durability=durability)


def calls() -> CommitCalls:
    return CommitCalls(COMMITS, _entry_get(0), META, ROW.state_get)


def asked_and_told(steps: Routine[T], answer: Callable[[Call], Answer]) -> tuple[Call | None, T]:
    """The one call that is made, and what comes of its answer."""
    call: Call | None = None
    result: Any = None
    try:
        while True:
            request = steps.send(result)
            if call is None:
                assert isinstance(request, Start)
                ((address, call),) = request.sends
                assert address == SERVER
                result = [SentCall(address, object())]
            else:
                result = answer(call)
    except StopIteration as end:
        return call, end.value


def silence(call: Call) -> Answer:
    """Every action succeeded, and nothing was found."""
    return Reply(1, None, memoryview(bytearray(response_of(call, {}).SerializeToString())), memoryview(bytearray()))


def response_of(call: Call, cells: dict[bytes, int]) -> MultiResponse:
    """With so many cells of each row that is got."""
    response = MultiResponse()
    for action in MultiRequest.FromString(call.parameter).regionAction:
        result = response.regionActionResult.add()
        for each in action.action:
            found = result.resultOrException.add(index=each.index)
            found.result.associated_cell_count = cells.get(each.get.row, 0)
    return response


def cells_of(start: int, commit: int) -> list[KeyValue]:
    mark = KeyValue(commit_row(start), COMMIT_FAMILY, MARK_QUALIFIER, start, MARK_VALUE)
    if commit == NOT_FOUND:
        return []
    if commit == MARKED_ONLY:
        return [mark]
    return [_entry(start, start + 3), mark] if commit == MARKED_TOO else [_entry(start, start + commit)]


def answer_of(call: Call, commits: dict[int, int]) -> tuple[bytes, bytes]:
    """Message and cells of a server that has these entries, and the leader state's state."""
    rows = {commit_row(start): cells_of(start, commit) for start, commit in commits.items()} | {b"epoch": [STATE]}
    response = response_of(call, {row: len(cells) for row, cells in rows.items()})
    wanted = [each.get.row for action in MultiRequest.FromString(call.parameter).regionAction for each in action.action]
    return response.SerializeToString(), b"".join(encode(cell) for row in wanted for cell in rows[row])


def reply_of(message: bytes, cells: bytes) -> Reply:
    return Reply(1, None, memoryview(bytearray(message)), memoryview(bytearray(cells)))


def budget() -> Budget:
    return Budget("a test", 60.0)


@given(distinct_starts, borders, st.sampled_from(Durability))
@settings(max_examples=examples(300), deadline=None)
def test_each_put_is_in_the_action_of_its_region(starts: list[int], keys: list[bytes], durability: Durability) -> None:
    operations = operations_of(regions_of(keys), durability=durability)
    pairs = [(start, min(start + 7 * index, (1 << 63) - 1)) for index, start in enumerate(starts, 1)]
    entries = np.array(pairs, dtype=np.int64)
    call, found = asked_and_told(calls().put_indexed(operations, entries, budget()), silence)
    assert found == []
    assert call is not None
    *puts, behind = MultiRequest.FromString(call.parameter).regionAction
    assert (behind.region.value, [each.get for each in behind.action]) == (b"meta,,1.", [ROW.state_get.message()])
    cells = decode(call.cells)
    seen = []
    for action in puts:
        for number, each in enumerate(action.action):
            assert each.index == number
            assert (each.mutation.mutate_type, each.mutation.associated_cell_count) == (2, 1)
            assert each.mutation.durability == durability.value
            region = operations.cache.find(COMMITS, each.mutation.row)
            assert region is not None
            assert region.name == action.region.value
            seen.append((each.mutation.row, next(cells)))
    assert list(cells) == []
    assert len({action.region.value for action in puts}) == len(puts), "one action a region"
    assert sorted(seen) == sorted((commit_row(start), _entry(start, commit)) for start, commit in entries.tolist())


@given(distinct_starts, borders, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_gets_and_their_results_equal_the_reference(starts: list[int], keys: list[bytes], data: st.DataObject) -> None:
    operations = operations_of(regions_of(keys))
    there = {start: min(data.draw(commits), (1 << 63) - 1 - start) for start in starts}
    asked, found = asked_and_told(
        calls().get(operations, starts, budget()), lambda call: reply_of(*answer_of(call, there))
    )
    asked_plainly, expected = asked_and_told(
        plain_get(operations, COMMITS, starts, ROW, budget()), lambda call: reply_of(*answer_of(call, there))
    )
    assert asked is not None
    assert asked_plainly is not None
    assert actions_of(asked) == actions_of(asked_plainly)
    assert found == expected
    assert found is not None
    assert found[1] == [STATE]
    for start, state in zip(starts, found[0], strict=True):
        assert (state == SEALED) == (there[start] < 0)


async def plain_get(
    operations: RegionOperations, table: str, starts: Sequence[int], row: HBaseLeaderState, budget: Budget
) -> tuple[list[int], list[KeyValue]] | None:
    """Reference implementation of `CommitCalls.get`."""
    gets = [_entry_get(start) for start in starts]
    found = await gets_then_get(operations, table, gets, row.table, row.state_get, budget)
    if found is None:
        return None
    last = found.pop()
    return [_status(start, cells) for start, cells in zip(starts, found, strict=True)], last


async def gets_then_get(
    operations: RegionOperations, table: str, gets: Sequence[RowGet], last_table: str, last: RowGet, budget: Budget
) -> list[list[KeyValue]] | None:
    """The cells of each of `gets`, then those of `last`, which is read after all others: in one call, or None.

    None if the rows are on several servers, are too many for a call, or anything failed. A server performs the
    region actions of a call one after the other, in their order (RSRpcServices.multi; decision 0027).
    """
    region = await operations.locate(last_table, last.row, budget)
    batches = await operations._batches(table, gets, range(len(gets)), budget)
    if len(batches) != 1 or batches[0].server != region.server:
        return None
    (batch,) = batches
    batch._by_region[b"the last"] = region, [(len(gets), last)]  # a region action of its own, behind the others
    answer: Answer = await ask_server(batch.server, batch.call(operations.durability), budget)
    found: list[list[KeyValue]] = [[]] * (len(gets) + 1)
    has_failed = False
    for outcome in batch.outcomes(answer):
        if isinstance(outcome.result, Exception):
            operations.react(outcome.region, outcome.result, budget)
            has_failed = True
        else:
            assert isinstance(outcome.result, list)
            found[outcome.index] = outcome.result
    return None if has_failed else found


def actions_of(call: Call) -> list[tuple[bytes, list[bytes]]]:
    """Of a region the gets, in any order; the last region's behind them."""
    *gets, behind = MultiRequest.FromString(call.parameter).regionAction
    named = [(each.region.value, sorted(action.SerializeToString() for action in each.action)) for each in gets]
    return [*sorted(named), (behind.region.value, [action.SerializeToString() for action in behind.action])]


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=6, unique=True),
    st.lists(st.tuples(st.booleans(), st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3),
    st.floats(0, 1),
    st.data(),
)
@settings(max_examples=examples(500), deadline=None)
def test_a_damaged_reply_gives_none_or_the_reference_result(
    starts: list[int], flips: list[tuple[bool, float, int]], cut: float, data: st.DataObject
) -> None:
    operations = operations_of(regions_of(commit_table_splits()))
    starts.sort(key=commit_row)  # so that both ask in the same order
    there = {start: data.draw(commits) for start in starts}

    def damaged(call: Call) -> Reply:
        message, cells = (bytearray(each) for each in answer_of(call, there))
        for in_message, place, by in flips:
            flipped = message if in_message else cells
            flipped[int(place * len(flipped))] ^= by
        return reply_of(bytes(message), bytes(cells[: round(cut * 2 * len(cells))]))

    try:
        _, found = asked_and_told(calls().get(operations, starts, budget()), damaged)
    except Corruption:
        return
    if found is not None:
        _, expected = asked_and_told(plain_get(operations, COMMITS, starts, ROW, budget()), damaged)
        assert found == expected


def test_a_field_numbered_zero_is_malformed() -> None:
    """Protocol Buffers has no field 0: an answer with one is damaged, whatever the rest says."""
    operations = operations_of(regions_of([]))

    def damaged(call: Call) -> Reply:
        message, cells = answer_of(call, {4: 7})
        return reply_of(message + b"\x00\x00", cells)

    for steps in (
        calls().get(operations, [4], budget()),
        plain_get(operations, COMMITS, [4], ROW, budget()),
    ):
        with pytest.raises(Corruption, match="MultiResponse is malformed"):
            asked_and_told(steps, damaged)


@given(distinct_starts, borders, st.integers(0, 7))
@settings(max_examples=examples(200), deadline=None)
def test_regions_that_are_not_known_are_looked_up(starts: list[int], keys: list[bytes], gaps: int) -> None:
    """Each row's region, as the cache has it; the first row that it has none for is asked about."""
    regions = regions_of(keys, missing=lambda index: bool(gaps >> index % 3 & 1))
    operations = operations_of(regions)
    unknown = [start for start in starts if operations.cache.find(COMMITS, commit_row(start)) is None]
    wanted: list[bytes] = []

    async def look_up(table: str, row: bytes, _: Budget) -> Region:
        if table == COMMITS:
            wanted.append(row)
            operations.cache.replace(COMMITS, regions_of(keys))
        found = operations.cache.find(table, row)
        assert found is not None
        return found

    operations.locate = look_up  # type: ignore[method-assign, assignment]
    call, found = asked_and_told(calls().get(operations, starts, budget()), silence)
    assert wanted == [commit_row(start) for start in unknown[:1]]
    assert call is not None
    assert found == ([NOT_FOUND] * len(starts), [])


@pytest.mark.parametrize("elsewhere", [COMMITS, META])
def test_rows_of_several_servers_are_not_one_call(elsewhere: str) -> None:
    operations = operations_of(regions_of([commit_row(4)]))
    region = operations.cache.find(elsewhere, commit_row(50))
    assert region is not None
    operations.cache.put(elsewhere, [Region(region.name, elsewhere, region.key_range, 1, ELSEWHERE)])
    entries = np.array([(0, 7), (50, 57)], dtype=np.int64)
    assert asked_and_told(calls().put_indexed(operations, entries, budget()), silence) == (None, None)
    assert asked_and_told(calls().get(operations, [0, 50], budget()), silence) == (None, None)


@pytest.mark.parametrize("count", [0, ENTRIES_MAX + 1])
def test_no_rows_and_too_many_are_not_one_call(count: int) -> None:
    operations = operations_of(regions_of([]))
    entries = np.arange(2 * count, dtype=np.int64).reshape(-1, 2)
    assert asked_and_told(calls().put_indexed(operations, entries, budget()), silence) == (None, None)
    assert asked_and_told(calls().get(operations, range(count), budget()), silence) == (None, None)


@pytest.mark.parametrize("what", ["puts", "gets"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("failing", [0, 2, -1])
def test_a_region_that_its_server_does_not_serve_leaves_the_cache(what: str, whole: bool, failing: int) -> None:
    """And nothing is said about the entries."""
    operations = operations_of(regions_of(commit_table_splits()))
    starts = [start << 1 for start in range(8)]
    asked: list[bytes] = []

    def answer(call: Call) -> Reply:
        response = response_of(call, {})
        actions = MultiRequest.FromString(call.parameter).regionAction
        asked.extend(action.region.value for action in actions)
        result = response.regionActionResult[failing]
        exception = result.exception if whole else result.resultOrException[0].exception
        if whole:
            del result.resultOrException[:]
        exception.name = "org.apache.hadoop.hbase.NotServingRegionException"
        return reply_of(response.SerializeToString(), b"")

    entries = np.array([(start, start + 7) for start in starts], dtype=np.int64)
    of = calls()
    steps: Any = of.put_indexed if what == "puts" else of.get
    _, found = asked_and_told(steps(operations, entries if what == "puts" else starts, budget()), answer)
    assert found is None
    known = [region.name for table in (COMMITS, META) for region in operations.cache.known(table)]
    assert [name for name in asked if name not in known] == [asked[failing]]


def test_an_answer_for_other_regions_is_corruption() -> None:
    operations = operations_of(regions_of(commit_table_splits()))

    def answer(call: Call) -> Reply:
        response = response_of(call, {})
        del response.regionActionResult[0]
        return reply_of(response.SerializeToString(), b"")

    with pytest.raises(Corruption, match="2 results for 3 region actions"):
        asked_and_told(calls().get(operations, [0, 2], budget()), answer)
