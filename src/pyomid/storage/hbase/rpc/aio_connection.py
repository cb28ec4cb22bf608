"""One connection of an event loop. The caller's callback gets a reply in the loop step that received it: a future, and
a task that waits for it, would cost two more loop steps."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import cast

from pyomid.errors import Corruption
from pyomid.storage.hbase.regions.operations import Answer
from pyomid.storage.hbase.rpc.connection import CONNECT_S_MAX, answered_by, assembler_of
from pyomid.storage.hbase.rpc.failures import CallTimedOut, ConnectionLost, connection_lost
from pyomid.storage.hbase.rpc.frames import Address, Call, decode_reply, encode_call
from pyomid.storage.hbase.rpc.handshake import Handshake, HandshakeSteps, whole_steps
from pyomid.storage.hbase.security.sasl import SecurityLayer


class PendingAnswer:
    """A call in flight. Its callback is called once, as soon as the answer arrives."""

    __slots__ = ("_address", "_call_id", "_callback", "_calls", "_timer", "answer")

    def __init__(self, calls: dict[int, PendingAnswer], call_id: int, address: Address) -> None:
        self._calls, self._call_id, self._address = calls, call_id, address
        self._callback: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.answer: Answer | None = None

    def when_answered(self, callback: Callable[[Answer], None], *, timeout_s: float) -> None:
        """Set the callback. Without a reply within `timeout_s` it gets `CallTimedOut`."""
        self._callback = callback
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    async def wait(self, timeout_s: float) -> Answer:
        """Wait for the answer, in a task."""
        if self.answer is None:
            answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

            def resolve(answer: Answer) -> None:
                if not answered.done():  # otherwise the task was cancelled
                    answered.set_result(answer)

            self.when_answered(resolve, timeout_s=timeout_s)
            return await answered
        return self.answer

    def deliver(self, answer: Answer) -> None:
        """Set the call's answer; only the first one counts."""
        if self.answer is not None:
            return
        self.answer = answer
        self._calls.pop(self._call_id, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._callback is not None:
            self._callback(answer)

    def _expire(self) -> None:
        self.deliver(CallTimedOut(f"{self._address} did not answer in time"))


class _Heard:
    """Buffers the server's bytes during the handshake, until `take` returns them."""

    def __init__(self) -> None:
        self.space = memoryview(bytearray(1 << 12))
        self.bytes = bytearray()
        self._came = asyncio.Event()
        self._is_whole = False

    def fill(self, count: int) -> None:
        self.bytes += self.space[:count]
        self._came.set()

    def end(self) -> None:
        self._is_whole = True
        self._came.set()

    async def take(self, most: int) -> bytes:
        """Return at least one byte and at most `most`; none at the end of the stream."""
        while not self.bytes and not self._is_whole:
            self._came.clear()
            await self._came.wait()
        taken = bytes(self.bytes[:most])
        del self.bytes[:most]
        return taken


class AsyncConnection(asyncio.BufferedProtocol):
    """The connection to one service of a server."""

    def __init__(self, address: Address, *, by_tls: bool) -> None:
        self.address = address
        self._is_unheard = not by_tls
        self._layer: SecurityLayer | None = None
        self._assembler = assembler_of(None)
        self._heard: _Heard | None = _Heard()
        self._calls: dict[int, PendingAnswer] = {}
        self._next_id = 0
        self._transport: asyncio.Transport | None = None
        self._lost: ConnectionLost | None = None

    @classmethod
    async def open(
        cls, address: Address, service: str, handshake: Handshake, tls: ssl.SSLContext | None = None
    ) -> AsyncConnection:
        """Connect. `ConnectionLost` if no server answers in time."""
        try:
            async with asyncio.timeout(CONNECT_S_MAX) as limit:
                return await cls._open(address, limit, whole_steps(handshake, service, address.host), tls)
        except (OSError, TimeoutError) as error:
            text = f"no connection to {address}: {error or 'no answer in time'}"
            raise connection_lost(text, address, error) from error

    @classmethod
    async def _open(
        cls, address: Address, limit: asyncio.Timeout, steps: HandshakeSteps, tls: ssl.SSLContext | None
    ) -> AsyncConnection:
        """Connect on the loop, not on a thread: a connecting thread cannot be cancelled."""
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: cls(address, by_tls=tls is not None),
            *address,
            ssl=tls,
            server_hostname=None if tls is None else address.host,
        )
        try:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await connection._introduce(limit, steps)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def start(self, call: Call, *, timeout_s: float) -> PendingAnswer:
        """Send a call."""
        if self._lost is not None or self._transport is None:
            raise ConnectionLost("not connected") if self._lost is None else self._lost.again()
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        head, cells = encode_call(self._next_id, call, max(1, int(timeout_s * 1000)))
        pending = self._calls[self._next_id] = PendingAnswer(self._calls, self._next_id, self.address)
        try:
            for piece in (head, cells) if self._layer is None else (self._layer.wrap(head + cells),):
                if piece:
                    self._transport.write(piece)
        except BaseException as error:
            self._tear(ConnectionLost(f"connection to {self.address} lost while sending: {error!r}"))
            if isinstance(error, OSError):
                raise ConnectionLost(str(error)) from error
            raise
        return pending

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._lose(ConnectionLost("closed"))

    async def _introduce(self, limit: asyncio.Timeout, steps: HandshakeSteps) -> None:
        """Perform the handshake. `limit` bounds the server's part. The KDC has no limit, as in the blocking client: a
        thread that asks it cannot be cancelled, and abandoned threads must not pile up."""
        heard, transport = self._heard, self._transport
        assert heard is not None
        assert transport is not None
        received = b""
        try:
            request = next(steps)
            while True:
                if isinstance(request, bytes):
                    transport.write(request)
                elif isinstance(request, int):
                    received = await heard.take(request)
                else:
                    limit.reschedule(None)
                    received = await asyncio.to_thread(request)
                    limit.reschedule(asyncio.get_running_loop().time() + CONNECT_S_MAX)
                request = steps.send(received)
        except StopIteration as end:
            self._layer = end.value
        except ConnectionResetError as error:
            if self._lost is not None:
                raise self._lost.again() from error
            raise
        if self._lost is not None:
            raise self._lost.again()
        self._assembler = assembler_of(self._layer)
        # Not now: a call that is started at once must be registered before its reply is read.
        asyncio.get_running_loop().call_soon(self._begin_calls, heard)

    def _begin_calls(self, heard: _Heard) -> None:
        """Treat bytes received after the handshake as replies."""
        self._heard = None
        while heard.bytes:
            space = self._assembler.space()
            count = min(len(space), len(heard.bytes))
            space[:count] = heard.bytes[:count]
            del heard.bytes[:count]
            self.buffer_updated(count)

    # ── asyncio.BufferedProtocol ─────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one too, whatever its type

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.space() if self._heard is None else self._heard.space

    def buffer_updated(self, nbytes: int) -> None:
        if self._heard is not None:
            self._heard.fill(nbytes)
            return
        try:
            for frame in self._assembler.filled(nbytes):
                reply = decode_reply(frame)
                self._is_unheard = False
                for pending in answered_by(reply, self._calls):
                    pending.deliver(reply)
        except BaseException as error:
            self._tear(ConnectionLost(str(error) if isinstance(error, Corruption) else repr(error)))
            if not isinstance(error, Corruption):
                raise

    def _tear(self, reason: ConnectionLost) -> None:
        """End the connection after an error inside a frame: the next call would be taken for the frame's rest."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(reason)

    def connection_lost(self, error: Exception | None) -> None:
        error = error or ConnectionResetError("the server closed it")
        text = f"connection to {self.address} lost: {error}"
        self._lose(connection_lost(text, self.address, error, is_unheard=self._is_unheard))

    def _lose(self, reason: ConnectionLost) -> None:
        lost = self._lost = self._lost or reason
        if self._heard is not None:
            self._heard.end()
        for pending in list(self._calls.values()):
            pending.deliver(lost.again())
