"""A TSO's flush to HBase without a thread: begun by its event loop, which is told the end (decision 0045).

Each on both event loops: the service runs on uvloop, where it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uvloop
from held_line import HeldLine
from led_tables import EPOCH, commits_of
from numpy.typing import NDArray

from pyomid.cli.hbase import HBaseServer
from pyomid.errors import Misuse, Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import commit_row
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.loop_client import LoopConnection
from pyomid.omid.hbase.regions.commit_entries import ENTRIES_MAX
from pyomid.omid.hbase.rpc.frames import Address
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.omid.ports import FlushEnd
from pyomid.omid.tso.store_calls import Flushes
from region_admin import OperatorsAdmin

DEADLINE_S = 120.0

Run = Callable[[Coroutine[Any, Any, None]], None]
Result = tuple[list[int], int] | Exception
NO_THREADS: Any = None
"""A flush on the loop asks its loop for nothing."""


@pytest.fixture(
    params=[
        pytest.param(uvloop.new_event_loop, id="uvloop"),
        pytest.param(asyncio.new_event_loop, id="asyncio", marks=pytest.mark.long),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    def work(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(scenario, DEADLINE_S))

    return work


@pytest.fixture
def table(own_cluster: Cluster, row: HBaseLeaderState) -> HBaseCommitTable:
    return HBaseCommitTable(own_cluster, table=commits_of(row), leader_state=row)


def entries_from(start: int, count: int) -> NDArray[np.int64]:
    return np.array([(start + 50 * index, start + 50 * index + 7) for index in range(count)], dtype=np.int64)


def plain(result: FlushEnd | Exception) -> Result:
    """What was refused, and the epoch: no cells go to HBase with a commit."""
    return result if isinstance(result, Exception) else (list(result.refused), result.epoch)


def flush(table: HBaseCommitTable, entries: NDArray[np.int64]) -> Awaitable[Result]:
    """Begun by the time this returns, and not ended."""
    ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    table.submit(entries, lambda result: ended.set_result(plain(result)), NO_THREADS)
    assert not ended.done(), "nobody is told within the call"
    return ended


def check_whole(table: HBaseCommitTable, *flushed: NDArray[np.int64]) -> None:
    for entries in flushed:
        starts = entries[:, 0].tolist()
        assert table.lookup(starts) == [start + 7 for start in starts]


def test_concurrent_flushes_are_complete_and_return_the_epoch(
    table: HBaseCommitTable, row: HBaseLeaderState, run: Run
) -> None:
    """Also one that is too large for one call, whose epoch comes from a call of its own."""
    many = [entries_from(50 + 1_000_000 * index, count) for index, count in enumerate((1, 8, 60, 500, ENTRIES_MAX + 1))]

    async def scenario() -> None:
        assert await asyncio.gather(*(flush(table, entries) for entries in many)) == [([], EPOCH)] * len(many)
        assert row.take_over(expected=EPOCH, epoch=EPOCH + 5000, ceiling=EPOCH + 9000)
        assert await flush(table, many[0]) == ([], EPOCH + 5000), "the epoch is read behind the entries, each time"
        table.leave_loop()

    run(scenario())
    check_whole(table, *many)


def test_a_flush_follows_its_regions(
    table: HBaseCommitTable, own_cluster: Cluster, row: HBaseLeaderState, run: Run
) -> None:
    """Nothing is known yet; one region is believed elsewhere; a region is split behind the client's back."""
    first, second, third = (entries_from(50 + 50_000 * index, 64) for index in range(3))

    async def scenario() -> None:
        assert await flush(table, first) == ([], EPOCH)
        cache, key = own_cluster.operations.cache, commit_row(int(second[3, 0]))
        region = cache.find(commits_of(row), key)
        assert region is not None
        cache.put(commits_of(row), [replace(region, server=Address("127.0.0.1", 1))])
        assert await flush(table, second) == ([], EPOCH)
        await asyncio.to_thread(OperatorsAdmin(own_cluster).split, commits_of(row), commit_row(int(third[32, 0])))
        assert await flush(table, third) == ([], EPOCH)
        table.leave_loop()

    run(scenario())
    check_whole(table, first, second, third)


def through(line: HeldLine, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on what connects to the server's port gets the line."""
    to, connect = line.port, LoopConnection.__init__

    def through_the_line(self: LoopConnection, address: Address, *others: Any, **options: Any) -> None:
        connect(self, address._replace(port=to if address.port == port else address.port), *others, **options)
        self.address = address

    monkeypatch.setattr(LoopConnection, "__init__", through_the_line)


def test_entries_are_put_again_after_a_lost_connection(
    table: HBaseCommitTable, own_cluster: Cluster, row: HBaseLeaderState, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Nobody knows whether the server has it: the same bytes under the same versions go there once more."""
    first, second, third = (entries_from(50 + 50_000 * index, 64) for index in range(3))
    region = own_cluster.operations.cache.find(row.table, b"") or own_cluster.regions(row.table)[0]
    assert region.server is not None

    async def scenario(line: HeldLine) -> None:
        assert await flush(table, first) == ([], EPOCH)
        line.hold()
        begun = [flush(table, second), flush(table, third)]
        await asyncio.to_thread(line.wait_until_held, commit_row(int(third[0, 0])))
        line.release()
        line.cut()
        assert await asyncio.gather(*begun) == [([], EPOCH)] * 2
        table.leave_loop()

    with HeldLine(region.server.port) as line:
        through(line, region.server.port, monkeypatch)
        run(scenario(line))
    check_whole(table, first, second, third)


def test_leaving_the_loop_ends_flushes_with_an_error(table: HBaseCommitTable, run: Run) -> None:
    """What is under way ends with an error of the tree."""

    async def scenario() -> None:
        begun = flush(table, entries_from(50, 64))
        table.leave_loop()
        assert isinstance(await begun, (Misuse, Unavailable))

    run(scenario())


def test_a_flush_without_a_reply_ends_at_its_deadline(
    hbase: HBaseServer, row: HBaseLeaderState, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    hasty = Cluster(ZooKeeper(hbase.quorum), deadline_s=2.0)
    table = HBaseCommitTable(hasty, table=commits_of(row), leader_state=row)
    server = hasty.regions(row.table)[0].server
    assert server is not None

    async def scenario(line: HeldLine) -> None:
        assert await flush(table, entries_from(50, 4)) == ([], EPOCH)
        line.hold()
        assert isinstance(await flush(table, entries_from(5000, 4)), Unavailable)
        table.leave_loop()

    with HeldLine(server.port) as line:
        through(line, server.port, monkeypatch)
        run(scenario(line))
    hasty.close()


def test_a_table_that_checks_for_seals_flushes_on_threads(cluster: Cluster, row: HBaseLeaderState, run: Run) -> None:
    entries = entries_from(50, 64)
    tables = (
        HBaseCommitTable(cluster, table=commits_of(row)),
        HBaseCommitTable(cluster, table=commits_of(row), leader_state=row, others_seal=True),
    )
    assert tables[0].seal(100).placed
    failed: list[Exception] = []

    async def scenario(table: HBaseCommitTable) -> Result:
        flushes = Flushes(table, row, threads_max=1, fail=failed.append)
        ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        table.submit(entries, lambda result: ended.set_result(plain(result)), flushes)
        result = await ended
        flushes.close(wait=True)
        return result

    results: list[Result] = []
    for table in tables:

        async def keep(table: HBaseCommitTable = table) -> None:
            results.append(await scenario(table))

        run(keep())
    assert not failed
    assert results == [([], EPOCH), ([100], EPOCH)]
