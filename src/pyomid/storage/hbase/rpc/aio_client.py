"""The asyncio client of one HBase cluster: the operations of `client`, driven by an event loop.

    cluster = AsyncCluster(ZooKeeper("zk1:2181"))
    await cluster.rows("t", [RowGet(b"r")])
    async for block in cluster.scan(spec): ...

It belongs to one event loop. ZooKeeper, which is needed seldom, is asked on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar, Unpack, cast

from pyomid.errors import Misuse
from pyomid.storage.hbase.codec.keyvalues import last_row
from pyomid.storage.hbase.regions.locations import Region
from pyomid.storage.hbase.regions.operations import Answer, Finish, Pause, Request, SentCall, Start, Steps
from pyomid.storage.hbase.regions.parallel_scan import ParallelScan
from pyomid.storage.hbase.regions.scan_cursor import ScanBlock, ScanSpec
from pyomid.storage.hbase.rpc.aio_connection import AsyncConnection, PendingAnswer
from pyomid.storage.hbase.rpc.client import ClusterClient, ClusterOptions
from pyomid.storage.hbase.rpc.failures import ConnectionLost
from pyomid.storage.hbase.rpc.frames import Address, Call
from pyomid.storage.hbase.rpc.requests import RowRequest, RowResult
from pyomid.storage.hbase.zookeeper import ZooKeeper

T = TypeVar("T")


class AsyncCluster(ClusterClient):
    """A client for one event loop."""

    def __init__(self, zookeeper: ZooKeeper, **options: Unpack[ClusterOptions]) -> None:
        super().__init__(zookeeper, **options)
        self._connections: dict[tuple[Address, str], AsyncConnection] = {}
        self._connecting = asyncio.Lock()

    @classmethod
    def beside(cls, cluster: ClusterClient) -> AsyncCluster:
        """A client beside a blocking one of the same process, whose cache of regions it shares. Its `disconnect` does
        not touch the blocking client."""
        own = cls(
            cluster.zookeeper,
            handshake=cluster.handshake,
            deadline_s=cluster.deadline_s,
            call_s_max=cluster.call_s_max,
            tls=cluster.tls,
        )
        own.operations = cluster.operations
        return own

    async def rows(self, table: str, requests: Sequence[RowRequest]) -> list[RowResult]:
        """Each request's result, in order."""
        return await self.run(self.operations.rows_steps(table, requests, self.budget(f"rows of {table}")))

    async def regions(self, table: str) -> list[Region]:
        """As meta says now."""
        return await self.run(self.operations.regions_steps(table, self.budget(f"regions of {table}")))

    async def scan(self, spec: ScanSpec) -> AsyncIterator[ScanBlock]:
        """Blocks in order. A scan that broke goes on after the last whole row; rows that had begun then come again."""
        streams = ParallelScan(self.operations, spec)
        try:
            while True:
                block = await self.run(streams.fetch_steps(self.budget(f"scan of {spec.table}")))
                if block is None:
                    return
                if block.results and not block.ends_inside_row:
                    streams.received(last_row(block.cells))
                yield block
        finally:
            await self.run(streams.close_steps(self.budget("closing a scan")))

    async def run(self, steps: Steps[T]) -> T:
        """Drives an operation to its end."""
        try:
            request = next(steps)
            while True:
                request = steps.send(await self.perform(request))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def begin(self, steps: Steps[T], ended: Callable[[T | Exception], None]) -> None:
        """`run` without a task, if connections are open: `ended` is called with the result, or the error, within the
        step of the loop that brought the last answer; never within this call."""
        _Begun(self, steps, ended).go_on(None)

    def started_at_once(self, request: Start) -> list[SentCall] | None:
        """Sends its calls; None if a connection would have to be opened first."""
        open_ones = [self._connections.get((address, call.service)) for address, call in request.sends]
        if any(connection is None or connection.is_lost for connection in open_ones):
            return None
        sends = zip(open_ones, request.sends, strict=True)
        return [_sent_call(cast(AsyncConnection, each), call, request.timeout_s) for each, (_, call) in sends]

    async def close(self) -> None:
        """Closes everything. Calls under way fail. Idempotent."""
        self.disconnect()
        await asyncio.to_thread(self.zookeeper.close)

    def disconnect(self) -> None:
        """As `close`, but ZooKeeper's connection stays open."""
        self._closed = True
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    async def perform(self, request: Request) -> Any:
        """Performs one step of an operation."""
        if isinstance(request, Start):
            return [await self._start(address, call, request.timeout_s) for address, call in request.sends]
        if isinstance(request, Finish):
            pending: PendingAnswer = request.sent_call.handle
            return await pending.wait(request.timeout_s)
        if isinstance(request, Pause):
            await asyncio.sleep(request.seconds)
            return None
        return await asyncio.to_thread(self._find, request)

    async def _start(self, address: Address, call: Call, timeout_s: float) -> SentCall:
        try:
            connection = await self._connection(address, call.service)
        except ConnectionLost as failure:
            return SentCall(address, failure=failure)
        return _sent_call(connection, call, timeout_s)

    async def _connection(self, address: Address, service: str) -> AsyncConnection:
        async with self._connecting:
            if self._closed:
                raise Misuse("the HBase client is closed")
            connection = self._connections.get((address, service))
            if connection is None or connection.is_lost:
                connection = await AsyncConnection.open(address, service, self.handshake, self.tls)
                if self._closed:
                    connection.close()
                self._connections[(address, service)] = connection
            return connection


def _sent_call(connection: AsyncConnection, call: Call, timeout_s: float) -> SentCall:
    try:
        return SentCall(connection.address, connection.start(call, timeout_s=timeout_s))
    except ConnectionLost as failure:
        return SentCall(connection.address, failure=failure)


class _Begun(Generic[T]):
    """An operation that goes on with each answer."""

    def __init__(self, cluster: AsyncCluster, steps: Steps[T], ended: Callable[[T | Exception], None]) -> None:
        self._cluster, self._steps, self._ended = cluster, steps, ended
        self._is_beginning = True
        self._beside: asyncio.Task[Any] | None = None

    def go_on(self, result: Any) -> None:
        outcome: T | Exception
        try:
            while True:
                request = self._steps.send(result)
                if isinstance(request, Finish):
                    result = self._answer(request.sent_call.handle, request.timeout_s)
                else:
                    result = self._cluster.started_at_once(request) if isinstance(request, Start) else None
                    if result is None:
                        self._perform_beside(request)
                if result is None:
                    self._is_beginning = False
                    return
        except StopIteration as end:
            outcome = end.value
        except Exception as error:
            outcome = error
        self._end(outcome)

    def _answer(self, pending: PendingAnswer, timeout_s: float) -> Answer | None:
        if pending.answer is None:
            pending.when_answered(self.go_on, timeout_s=timeout_s)
        return pending.answer

    def _perform_beside(self, request: Request) -> None:
        """Goes on after more than an answer: a connection, a pause, ZooKeeper."""
        self._beside = asyncio.get_running_loop().create_task(self._cluster.perform(request))
        self._beside.add_done_callback(self._performed)

    def _performed(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        failure = task.exception()
        if isinstance(failure, Exception):
            self._steps.close()
            self._end(failure)
        else:
            self.go_on(task.result())

    def _end(self, outcome: T | Exception) -> None:
        if self._is_beginning:
            asyncio.get_running_loop().call_soon(self._ended, outcome)
        else:
            self._ended(outcome)
