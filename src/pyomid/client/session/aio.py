"""The asyncio twin of `session`: the same conversation, the same rules of asking again, on one event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from pyomid.client.session.client_protocol import ClientProtocol
from pyomid.client.session.request_retry import (
    AskTime,
    Attempt,
    ConnectionBroken,
    Pause,
    ask_steps,
    expected,
    this_process,
    with_epoch,
)
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.types import BeginReply, CommitReply, CommitRequest, SealOutcome, Status
from pyomid.wire.messages import (
    AdvanceHorizon,
    Answer,
    AskStatus,
    Begin,
    Complete,
    Done,
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    HorizonReply,
    LeaseReply,
    RenewLease,
    Request,
    Seal,
    SealReply,
)

T = TypeVar("T")

AsyncDial = Callable[[], Awaitable[socket.socket]]
"""A new connection to whoever is the TSO now, as `session.Dial` (which may be run in a thread)."""


class AsyncTsoSession:
    """`ports.Tso` with every method a coroutine. For tasks of one event loop; errors as `TsoSession`'s."""

    def __init__(self, dial: AsyncDial, *, request_s: float = 5.0, retry_s: float = 60.0, token: bytes = b"") -> None:
        self._dial = dial
        self._request_s = request_s
        self._retry_s = retry_s
        self._token = token
        self._epoch = 0
        self._database_id = b""
        self._pid = os.getpid()
        self._connection: _Connection | None = None
        self._dialling = asyncio.Lock()
        self._closed = False

    @property
    def epoch(self) -> int:
        """The newest epoch any answer carried; 0 with a Java TSO, which tells none."""
        return self._epoch

    async def begin(self, *, not_before: int = 0) -> BeginReply:
        reply = await self._ask_for(Begin(not_before), BeginReply)
        self._epoch = max(self._epoch, reply.epoch)
        return with_epoch(reply, self._epoch)

    async def commit(self, request: CommitRequest) -> CommitReply:
        return await self._ask_for(request, CommitReply)

    async def fence(self, table_id: int) -> int:
        return (await self._ask_for(Fence(table_id), FenceReply)).fence_ts

    async def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        return (await self._ask_for(GrantLease(start_ts, term_s or 0.0, this_process()), LeaseReply)).term_s

    async def renew_lease(self, start_ts: int) -> float:
        return (await self._ask_for(RenewLease(start_ts), LeaseReply)).term_s

    async def end_lease(self, start_ts: int) -> None:
        await self._ask_for(EndLease(start_ts), Done)

    async def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        return list((await self._ask_for(Seal(tuple(starts)), SealReply)).outcomes) if starts else []

    async def complete(self, starts: Sequence[int]) -> None:
        """Sent if there is a connection; what is lost the sanitiser deletes."""
        if not starts:
            return
        try:
            (await self._connected(self._request_s)).post(Complete(tuple(starts)))
        except ConnectionBroken:
            return

    async def advance_horizon(self, horizon: int) -> int:
        return (await self._ask_for(AdvanceHorizon(horizon), HorizonReply)).deleted

    async def status(self) -> Status:
        return await self._ask_for(AskStatus(), Status)

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(ConnectionBroken("the session was closed", sent=True))

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _ask_for(self, request: Request, kind: type[T]) -> T:
        return expected(await self._ask(request), kind, request)

    async def _ask(self, request: Request) -> Answer:
        """Drives `ask_steps`: the asyncio driver."""
        steps = ask_steps(request, request_s=self._request_s, retry_s=self._retry_s)
        step = next(steps)
        while True:
            try:
                match step:
                    case AskTime():
                        step = steps.send(asyncio.get_running_loop().time())
                    case Pause(pause_s):
                        await asyncio.sleep(pause_s)
                        step = steps.send(None)
                    case Attempt(asked, timeout_s):
                        try:
                            answer = await (await self._connected(timeout_s)).ask(asked, timeout_s)
                        except OmidError as error:
                            step = steps.throw(error)
                        else:
                            step = steps.send(answer)
            except StopIteration as end:
                return cast(Answer, end.value)

    async def _connected(self, timeout_s: float) -> _Connection:
        if self._closed:
            raise Misuse("the session with the TSO is closed")
        if os.getpid() != self._pid:
            raise Misuse("an asyncio session belongs to the process that made it: connect anew after a fork")
        async with self._dialling:
            if self._connection is None or self._connection.broken:
                self._connection = await self._open(timeout_s)
            return self._connection

    async def _open(self, timeout_s: float) -> _Connection:
        conversation = ClientProtocol(token=self._token, commit_retry_s=self._retry_s, database_id=self._database_id)
        connection = _Connection(conversation)
        try:
            sock = await self._dial()
            sock.setblocking(False)
            if sock.family == socket.AF_UNIX:
                await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=sock)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
            await asyncio.wait_for(connection.greeted, timeout_s)
        except (OmidError, OSError, TimeoutError) as error:
            connection.close(ConnectionBroken("no handshake", sent=False))
            raise ConnectionBroken(f"no TSO to talk to: {error}", sent=False, reason=error) from error
        except BaseException:  # cancelled: a connection that nobody knows would keep the TSO from ever ending (T14)
            connection.close(ConnectionBroken("no handshake", sent=False))
            raise
        server = conversation.server
        self._database_id = conversation.database_id
        self._epoch = max(self._epoch, server.epoch if server is not None else 0)
        return connection


class _Connection(asyncio.Protocol):
    """One transport and the futures of everybody who waits on it."""

    def __init__(self, conversation: ClientProtocol) -> None:
        self.conversation = conversation
        self.broken = False
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        """The answer, or `ConnectionBroken`. A try without an answer in time breaks the connection: its answer would
        come late."""
        key, frames = self.conversation.ask(request)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            self._write(frames)
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            lost = ConnectionBroken("the TSO did not answer in time", sent=True)
            self.close(lost)
            raise lost from None
        finally:
            self._waiting.pop(key, None)

    def post(self, request: Request) -> None:
        """For requests that are not answered."""
        self._write(self.conversation.ask(request)[1])

    def close(self, why: ConnectionBroken) -> None:
        """Everybody who waits is told."""
        self.broken = True
        if not self.greeted.done():
            self.greeted.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(why)
        if self._transport is not None:
            self._transport.abort()

    def _write(self, frames: bytes) -> None:
        if self.broken or self._transport is None:
            raise ConnectionBroken("the connection to the TSO is closed", sent=False)
        self._transport.write(frames)

    # ── asyncio's side ───────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self.conversation.greeting())

    def data_received(self, data: bytes) -> None:
        try:
            for key, answer in self.conversation.feed(data):
                future = self._waiting.get(key)
                if future is not None and not future.done():
                    future.set_result(answer)
        except OmidError as error:
            self._reject(error)
            return
        if self.conversation.server is not None and not self.greeted.done():
            self.greeted.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(Unavailable("the TSO closed the connection before its handshake"))
        self.close(ConnectionBroken(f"the connection to the TSO broke: {exc or 'closed by the TSO'}", sent=True))

    def _reject(self, error: OmidError) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(error)
        self.close(ConnectionBroken(f"the connection to the TSO broke: {error}", sent=True))
