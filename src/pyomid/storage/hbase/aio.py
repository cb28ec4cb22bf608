"""The asyncio twin of `cluster` and `connection`: the same operations, driven by an event loop.

    cluster = AsyncCluster(ZooKeeper("zk1:2181"))
    await cluster.rows("t", [RowGet(b"r")])
    async for block in cluster.scan(spec): ...

Of one event loop. ZooKeeper, which is asked seldom, is asked on a thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from pyomid.errors import Corruption, Misuse
from pyomid.storage.hbase.clients import CONNECT_S_MAX, ClusterClient
from pyomid.storage.hbase.failures import CallTimedOut, ConnectionLost
from pyomid.storage.hbase.frames import Address, Call, FrameAssembler, Reply, decode_reply, encode_call
from pyomid.storage.hbase.handshake import Handshake, HandshakeSteps
from pyomid.storage.hbase.keyvalues import last_row
from pyomid.storage.hbase.lanes import ScanLanes
from pyomid.storage.hbase.locations import Region
from pyomid.storage.hbase.requests import Durability, RowRequest, RowResult
from pyomid.storage.hbase.steps import (
    Answer,
    Finish,
    Flight,
    Pause,
    Request,
    ScanBlock,
    ScanSpec,
    Start,
    Steps,
)
from pyomid.storage.hbase.zookeeper import ZooKeeper

T = TypeVar("T")


class AsyncConnection(asyncio.BufferedProtocol):
    """A service of one server; replies are futures by call id."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._assembler = FrameAssembler()
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._next_id = 0
        self._transport: asyncio.Transport | None = None
        self._lost: str | None = None

    @classmethod
    async def open(cls, address: Address, service: str, handshake: Handshake) -> AsyncConnection:
        """`ConnectionLost` where nobody listens in time."""
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                return await cls._open(address, handshake.steps(service))
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"no connection to {address}: {error}") from error

    @classmethod
    async def _open(cls, address: Address, steps: HandshakeSteps) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        opened = await asyncio.to_thread(socket.create_connection, address, CONNECT_S_MAX)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await _introduce(loop, opened, steps)
            _, connection = await loop.create_connection(lambda: cls(address), sock=opened)
        except BaseException:
            opened.close()
            raise
        return connection

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def start(self, call: Call, *, timeout_s: float) -> asyncio.Future[Reply]:
        """Sends the call; the future has its reply, or `ConnectionLost`."""
        if self._lost is not None or self._transport is None:
            raise ConnectionLost(self._lost or "not connected")
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        head, cells = encode_call(self._next_id, call, max(1, int(timeout_s * 1000)))
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(lambda _, call_id=self._next_id: self._calls.pop(call_id, None))  # type: ignore[misc]
        self._calls[self._next_id] = reply
        self._transport.write(head)
        if cells:
            self._transport.write(cells)
        return reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._lose("closed")

    # ── asyncio.BufferedProtocol ─────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._assembler.filled(nbytes):
                reply = decode_reply(frame)
                waiting = self._calls.get(reply.call_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except Corruption as error:
            self._lose(str(error))
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(f"connection to {self.address} lost: {error or 'the server closed it'}")

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        for waiting in list(self._calls.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionLost(self._lost))


async def _introduce(loop: asyncio.AbstractEventLoop, opened: socket.socket, steps: HandshakeSteps) -> None:
    """Not a byte more is read than the handshake wants: what follows belongs to the calls."""
    request: bytes | int | None = next(steps, None)
    while request is not None:
        received = b""
        if isinstance(request, bytes):
            await loop.sock_sendall(opened, request)
        else:
            while len(received) < request:
                piece = await loop.sock_recv(opened, request - len(received))
                if not piece:
                    raise ConnectionResetError("the server closed it during the handshake")
                received += piece
        try:
            request = steps.send(received)
        except StopIteration:
            request = None


class AsyncCluster(ClusterClient):
    """See the module's essay."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        *,
        user: str | None = None,
        handshake: Handshake | None = None,
        deadline_s: float = 60.0,
        call_s_max: float = 20.0,
        durability: Durability = Durability.TABLE,
    ) -> None:
        super().__init__(
            zookeeper,
            user=user,
            handshake=handshake,
            deadline_s=deadline_s,
            call_s_max=call_s_max,
            durability=durability,
        )
        self._connections: dict[tuple[Address, str], AsyncConnection] = {}
        self._connecting = asyncio.Lock()
        self._closed = False

    async def rows(self, table: str, requests: Sequence[RowRequest]) -> list[RowResult]:
        """Each request's result, in order."""
        return await self.run(self.operations.rows_steps(table, requests, self.budget(f"rows of {table}")))

    async def regions(self, table: str) -> list[Region]:
        """As meta says now."""
        return await self.run(self.operations.regions_steps(table, self.budget(f"regions of {table}")))

    async def scan(self, spec: ScanSpec) -> AsyncIterator[ScanBlock]:
        """Blocks in order; a broken scan goes on behind the last whole row (rows begun then come again)."""
        lanes = ScanLanes(self.operations, spec)
        try:
            while True:
                block = await self.run(lanes.fetch_steps(self.budget(f"scan of {spec.table}")))
                if block is None:
                    return
                if not block.ends_inside_row:
                    lanes.settled(last_row(block.cells))
                yield block
        finally:
            await self.run(lanes.close_steps(self.budget("closing a scan")))

    async def run(self, steps: Steps[T]) -> T:
        """Drives an operation to its end."""
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._perform(request))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Idempotent. Calls on their way fail."""
        self._closed = True
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        await asyncio.to_thread(self.zookeeper.close)

    async def _perform(self, request: Request) -> Any:
        if isinstance(request, Start):
            return [await self._start(address, call, request.timeout_s) for address, call in request.sends]
        if isinstance(request, Finish):
            return await self._finish(request.flight, request.timeout_s)
        if isinstance(request, Pause):
            await asyncio.sleep(request.seconds)
            return None
        return await asyncio.to_thread(self._find, request)

    async def _start(self, address: Address, call: Call, timeout_s: float) -> Flight:
        try:
            connection = await self._connection(address, call.service)
            return Flight(address, connection.start(call, timeout_s=timeout_s))
        except ConnectionLost as failure:
            return Flight(address, failure=failure)

    @staticmethod
    async def _finish(flight: Flight, timeout_s: float) -> Answer:
        try:
            reply: Reply = await asyncio.wait_for(flight.handle, timeout_s)
        except ConnectionLost as failure:
            return failure
        except TimeoutError:
            return CallTimedOut(f"{flight.address} did not answer in time")
        return reply

    async def _connection(self, address: Address, service: str) -> AsyncConnection:
        async with self._connecting:
            if self._closed:
                raise Misuse("the HBase client is closed")
            connection = self._connections.get((address, service))
            if connection is None or connection.is_lost:
                connection = await AsyncConnection.open(address, service, self._handshake)
                self._connections[(address, service)] = connection
            return connection
