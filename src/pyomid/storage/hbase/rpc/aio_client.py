"""The asyncio client of one HBase cluster: the operations of `client`, driven by an event loop.

    cluster = AsyncCluster(ZooKeeper("zk1:2181"))
    await cluster.rows("t", [RowGet(b"r")])
    async for block in cluster.scan(spec): ...

It belongs to one event loop. ZooKeeper, which is rarely needed, is read on a thread.
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
        self._openings: dict[tuple[Address, str], asyncio.Task[AsyncConnection]] = {}

    @classmethod
    def sharing(cls, cluster: ClusterClient) -> AsyncCluster:
        """Return a client that shares the region cache of a blocking one in the same process. Its `disconnect` does not
        affect the blocking client."""
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
        """Return each request's result, in order."""
        return await self.run(self.operations.rows_steps(table, requests, self.budget(f"rows of {table}")))

    async def regions(self, table: str) -> list[Region]:
        """Return all regions of the table, read from meta."""
        return await self.run(self.operations.regions_steps(table, self.budget(f"regions of {table}")))

    async def scan(self, spec: ScanSpec) -> AsyncIterator[ScanBlock]:
        """Yield blocks in order. After a failure the scan continues after the last whole row; partial rows are sent
        again."""
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
        """Run an operation to its end."""
        try:
            request = next(steps)
            while True:
                request = steps.send(await self.perform(request))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def begin(self, steps: Steps[T], ended: Callable[[T | Exception], None]) -> None:
        """Start an operation; without a task if connections are open. `ended` is called with the result or error in the
        loop step that received the last reply, never within this call."""
        _Begun(self, steps, ended).go_on(None)

    def started_at_once(self, request: Start) -> list[SentCall] | None:
        """Send the calls; None if a connection must be opened first."""
        open_ones = [self._connections.get((address, call.service)) for address, call in request.sends]
        if any(connection is None or connection.is_lost for connection in open_ones):
            return None
        sends = zip(open_ones, request.sends, strict=True)
        return [_sent_call(cast(AsyncConnection, each), call, request.timeout_s) for each, (_, call) in sends]

    async def close(self) -> None:
        """Close everything. Calls in flight fail. Idempotent."""
        self.disconnect()
        await asyncio.to_thread(self.zookeeper.close)

    def disconnect(self) -> None:
        """Like `close`, but keep ZooKeeper's connection open."""
        self._closed = True
        for opening in list(self._openings.values()):
            opening.cancel()
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    async def perform(self, request: Request) -> Any:
        """Perform one step of an operation."""
        if isinstance(request, Start):
            sends = [self._start(address, call, request.timeout_s) for address, call in request.sends]
            return [await sends[0]] if len(sends) == 1 else list(await asyncio.gather(*sends))
        if isinstance(request, Finish):
            pending: PendingAnswer = request.sent_call.handle
            return await pending.wait(request.timeout_s)
        if isinstance(request, Pause):
            await asyncio.sleep(request.seconds)
            return None
        return await asyncio.to_thread(self._find, request)

    async def _start(self, address: Address, call: Call, timeout_s: float) -> SentCall:
        try:
            connection = await self._connection(address, call.service, timeout_s)
        except ConnectionLost as failure:
            return SentCall(address, failure=failure)
        return _sent_call(connection, call, timeout_s)

    async def _connection(self, address: Address, service: str, timeout_s: float) -> AsyncConnection:
        """Return the open connection, or wait for the one attempt to open it. A cancelled caller ends only its wait."""
        if self._closed:
            raise Misuse("the HBase client is closed")
        key = address, service
        connection = self._connections.get(key)
        if connection is not None and not connection.is_lost:
            return connection
        opening = self._openings.get(key)
        if opening is None:
            opening = self._openings[key] = asyncio.get_running_loop().create_task(self._open(key))
            opening.add_done_callback(lambda ended: self._opened(key, ended))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(opening)
        except TimeoutError:
            raise ConnectionLost(f"no connection to {address} in time") from None
        except ConnectionLost as failure:
            raise failure.again() from failure
        except asyncio.CancelledError:
            if opening.cancelled():  # by `disconnect`
                raise Misuse("the HBase client is closed") from None
            raise

    async def _open(self, key: tuple[Address, str]) -> AsyncConnection:
        connection = self._connections[key] = await AsyncConnection.open(*key, self.handshake, self.tls)
        return connection

    def _opened(self, key: tuple[Address, str], ended: asyncio.Task[AsyncConnection]) -> None:
        self._openings.pop(key, None)
        if not ended.cancelled():
            ended.exception()  # the waiting callers get it; this marks it as retrieved


def _sent_call(connection: AsyncConnection, call: Call, timeout_s: float) -> SentCall:
    try:
        return SentCall(connection.address, connection.start(call, timeout_s=timeout_s))
    except ConnectionLost as failure:
        return SentCall(connection.address, failure=failure)


class _Begun(Generic[T]):
    """An operation that continues when a reply arrives, without a task."""

    def __init__(self, cluster: AsyncCluster, steps: Steps[T], ended: Callable[[T | Exception], None]) -> None:
        self._cluster, self._steps, self._ended = cluster, steps, ended
        self._is_beginning = True
        self._task: asyncio.Task[Any] | None = None

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
                        self._perform_in_task(request)
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

    def _perform_in_task(self, request: Request) -> None:
        """Perform, in a task, a step that waits for more than a reply: a connection, a pause, ZooKeeper."""
        self._task = asyncio.get_running_loop().create_task(self._cluster.perform(request))
        self._task.add_done_callback(self._performed)

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
