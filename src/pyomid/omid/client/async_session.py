"""The asyncio session with a TSO. It has the protocol and retries of the blocking session, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, Unpack, cast

from pyomid import system
from pyomid.coroutines import Blocking, Effect, Pause, adrive
from pyomid.daemon_threads import in_daemon_thread
from pyomid.errors import OmidError, Unavailable
from pyomid.omid.client.request_retry import (
    CONNECT_FAILS,
    LOOK_S,
    Attempt,
    ConnectionBroken,
    SessionBase,
    SessionOptions,
    Silence,
    broke,
    is_closed,
    no_tso,
    not_in_time,
    others_connect,
)
from pyomid.omid.wire.client_protocol import REPORT_S, ClientProtocol
from pyomid.omid.wire.messages import Answer, Request
from pyomid.tls import untrusted
from pyomid.types import BeginReply, CommitReply, CommitRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectedSocket:
    """A connected socket and its TLS context, if any. With TLS, the TSO's certificate must name `host`."""

    sock: socket.socket
    tls: ssl.SSLContext | None = None
    host: str = ""


AsyncConnect = Callable[[], Awaitable[ConnectedSocket]]
"""A function that returns a new connection to the current TSO (compare `blocking.Connect`)."""


class AsyncTsoSession(SessionBase["_Connection"]):
    """A `TsoSession` for the tasks of one event loop: `begin`, `commit`, and `ask` for all other requests. Options that
    may block run in a thread."""

    def __init__(self, connect: AsyncConnect, **options: Unpack[SessionOptions]) -> None:
        super().__init__(clock=lambda: asyncio.get_running_loop().time(), **options)
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first request. All connections belong to it."""
        self._report_timer: asyncio.TimerHandle | None = None
        """The timer of the next report of open starts. None if the last report is up to date and no begin came after
        it."""

    async def begin(self, *, not_before: int = 0) -> BeginReply:
        return await adrive(self.beginning(not_before), self._perform)

    async def commit(self, request: CommitRequest) -> CommitReply:
        return await self.ask(request, CommitReply)

    async def ask(self, request: Request, kind: type[T]) -> T:
        """Send the request and return the reply, which is of this kind. If the TSO refuses, raise its error."""
        return await adrive(self.asking(request, kind), self._perform)

    def _report_soon(self) -> None:
        if self._report_timer is not None:
            return
        session = weakref.ref(self)

        def tell() -> None:
            this = session()
            if this is not None:
                this._report_timer = None
                if this.report_open_starts():
                    this._report_soon()

        self._report_timer = asyncio.get_running_loop().call_later(REPORT_S, tell)

    async def close(self) -> None:
        """Close the session; callable from anywhere. The loop is not used if it belongs to another process (a forked
        child inherits its parent's) or does not run."""
        self._closed = True
        loop = self._loop
        if system.here is not self._made_in or loop is None or not loop.is_running():
            if self._connection is not None:
                self._connection.forget()
            self._connection = None
        elif loop is asyncio.get_running_loop():
            await self._close()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), loop))

    async def _close(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
        if self._connection is not None:
            self.report_open_starts()
            await asyncio.sleep(0)  # uvloop writes at the end of a loop iteration
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(ConnectionBroken("the session was closed", sent=True))

    async def _perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case Attempt(request, timeout_s):
                return await (await self._connected(timeout_s)).ask(request, timeout_s)
            case Pause(pause_s):
                return await asyncio.sleep(pause_s)
            case Blocking(call):
                return await in_daemon_thread(call)
        raise AssertionError(f"no session performs {effect}")

    async def _connected(self, timeout_s: float) -> _Connection:
        self._check_open()
        loop = asyncio.get_running_loop()
        system.check_loop(self._made_in, self._loop, loop)
        self._loop = loop
        connection = self._connection
        if connection is not None and not connection.broken:
            return connection
        try:
            async with asyncio.timeout(self._retry_s):
                await self._connecting.acquire()
        except TimeoutError:
            raise others_connect(self._retry_s) from None
        try:
            connection = self._connection
            if connection is None or connection.broken:
                connection = await self._open(timeout_s)
            return connection
        finally:
            self._connecting.release()

    async def _open(self, timeout_s: float) -> _Connection:
        protocol = self._new_protocol()
        connection = _Connection(protocol, self._has_moved)
        try:
            await _attach(connection, await self._connect(), timeout_s)
            async with asyncio.timeout(timeout_s):  # in Python 3.11, wait_for can swallow a cancellation
                await connection.ready
        except CONNECT_FAILS as error:
            connection.close(ConnectionBroken("no handshake", sent=False))
            raise no_tso(error) from error
        except BaseException:  # on cancellation nobody else would close the connection
            connection.close(ConnectionBroken("no handshake", sent=False))
            raise
        return self._keep(connection, protocol)


async def _attach(connection: _Connection, connected: ConnectedSocket, timeout_s: float) -> None:
    sock, loop = system.QuietSocket.of(connected.sock), asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        system.block_sigpipe()  # uvloop itself calls send, on this thread
    system.keep_from_children(sock)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if connected.tls is None:
        await loop.create_connection(lambda: connection, sock=sock)
        return
    try:
        await loop.create_connection(
            lambda: connection,
            sock=sock,
            ssl=connected.tls,
            server_hostname=connected.host,
            ssl_handshake_timeout=timeout_s,
        )
    except ssl.SSLCertVerificationError as error:
        raise untrusted(connected.host, error) from error


_NOBODY: Final = (None, 0.0)


class _Connection(asyncio.Protocol):
    """One transport and the futures of all tasks that wait on it."""

    def __init__(self, protocol: ClientProtocol, has_moved: Callable[[], bool] | None) -> None:
        self.protocol = protocol
        self.broken = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        """Requests by key, each with the future of its reply and its deadline."""
        self._deadline: asyncio.TimerHandle | None = None
        """One timer for all tasks, at or before the earliest deadline."""
        self._unsent: list[bytes] = []
        """The requests that all tasks sent in one loop iteration. They leave at its end, in one call and one packet."""
        self._is_silent = False
        self._watch = asyncio.create_task(self._leave_where_moved(has_moved)) if has_moved is not None else None

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        """Send the request and return the reply, or raise `ConnectionBroken`."""
        if self.broken or self._transport is None:
            raise is_closed()
        key, frames = self.protocol.ask(request)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if not self._unsent:
            loop.call_soon(self._send)
        self._unsent.append(frames)
        deadline_s = loop.time() + timeout_s
        if self._deadline is None or self._deadline.when() > deadline_s:
            self._look_at(deadline_s)
        self._waiting[key] = future, deadline_s
        try:
            return await future
        finally:
            self._waiting.pop(key, None)

    def send_report(self, compose: Callable[[], Request]) -> None:
        """Send a report, which has no reply."""
        if self.broken or self._transport is None:
            raise is_closed()
        _, frames = self.protocol.ask(compose())
        self._unsent.append(frames)
        self._send()

    def _send(self) -> None:
        frames, self._unsent = b"".join(self._unsent), []
        if not frames or self.broken or self._transport is None:
            return
        try:
            self._transport.write(frames)
        except Exception as error:
            # A Java TSO's replies are matched by order, so no reply may be expected for a request that was not sent.
            self.close(ConnectionBroken(f"sending to the TSO failed: {error!r}", sent=True))

    def _look_at(self, deadline_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_at(deadline_s, self._look)

    def _look(self) -> None:
        """Close the connection if a task has waited too long."""
        self._deadline = None
        if self._waiting and not self.broken:
            first_s = min(deadline_s for _, deadline_s in self._waiting.values())
            if first_s <= asyncio.get_running_loop().time():
                self.close(not_in_time())
            else:
                self._look_at(first_s)

    def close(self, why: ConnectionBroken) -> None:
        """Close the connection and fail every waiting task with `why`."""
        self.broken = True
        if self._watch is not None and self._watch is not asyncio.current_task():
            self._watch.cancel()
        if not self.ready.done():
            self.ready.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(why)
        if self._transport is not None:
            self._transport.abort()

    def forget(self) -> None:
        """Drop the connection after its loop has ended. No task is notified; the socket is closed together with its
        transport."""
        self.broken = True
        self._transport = None

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self.protocol.handshake())

    def data_received(self, data: bytes) -> None:
        self._is_silent = False
        try:
            for key, answer in self.protocol.feed(data):
                future, _ = self._waiting.get(key, _NOBODY)
                if future is not None and not future.done():
                    future.set_result(answer)
        except OmidError as error:
            self._reject(error)
            return
        if self.protocol.server is not None and not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(Unavailable("the TSO closed the connection before its handshake"))
        self.close(broke(exc or "closed by the TSO"))

    async def _leave_where_moved(self, has_moved: Callable[[], bool]) -> None:
        """While the TSO owes a reply and sends nothing, check every `LOOK_S` whether another TSO leads, and then break
        the connection. So a stopped or disconnected TSO delays a task only until another one leads."""
        silence = Silence()
        while not self.broken:
            self._is_silent = bool(self._waiting) or not self.ready.done()
            await asyncio.sleep(LOOK_S)
            if not (self._is_silent and (self._waiting or not self.ready.done())):
                silence.ends()
            else:
                silence.goes_on(LOOK_S)
                with contextlib.suppress(RuntimeError, MemoryError):  # if there is no thread for it, check again later
                    if await in_daemon_thread(has_moved):
                        self._reject(ConnectionAbortedError("no reply, and another TSO leads"))

    def _reject(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        self.close(broke(error))
