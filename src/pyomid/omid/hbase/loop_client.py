"""Runs operations of a `cluster.Cluster` on an event loop, without a task or a future for each (decision 0045).

    client = LoopClient(cluster)
    client.begin(routine, ended)      `ended` gets the result in the loop step that received the last reply

The loop never waits for a socket. Only a step that needs a new connection, a pause or ZooKeeper runs as a task. Other
threads open the connections and read ZooKeeper.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pyomid.coroutines import Effect, Pause, Routine
from pyomid.errors import Corruption, Misuse
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.regions.calls import Answer, FindServer, Finish, SentCall, Start
from pyomid.omid.hbase.rpc.connection import CONNECT_S_MAX, ServerConnection
from pyomid.omid.hbase.rpc.failures import ConnectionLost
from pyomid.omid.hbase.rpc.frames import Address, Call, encode_call
from pyomid.system import NO_SIGNAL

T = TypeVar("T")


class PendingAnswer:
    """A call in flight. Its callback gets the answer (reply or failure) once, as soon as it arrives."""

    __slots__ = ("_callback", "_connection", "_timer", "answer", "call_id")

    def __init__(self, connection: LoopConnection, call_id: int) -> None:
        self._connection = connection
        self.call_id = call_id
        self._callback: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.answer: Answer | None = None

    def when_answered(self, callback: Callable[[Answer], None], *, timeout_s: float) -> None:
        """Set the callback. If no reply arrives within `timeout_s`, it gets `CallTimedOut`."""
        self._callback = callback
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._connection.give_up, self)

    def deliver(self, answer: Answer) -> None:
        """Set the call's answer; only the first one counts."""
        if self.answer is not None:
            return
        self.answer = answer
        if self._timer is not None:
            self._timer.cancel()
        if self._callback is not None:
            self._callback(answer)


class LoopConnection(ServerConnection[PendingAnswer]):
    """A connection of one event loop. Open it on another thread; use it on the loop's thread only."""

    def _prepare_socket(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent: deque[memoryview] = deque()
        self._socket.settimeout(0.0)

    def start(self, call: Call, *, timeout_s: float) -> PendingAnswer:
        """Send a call. Bytes that the socket does not accept at once are sent later, before those of any other call."""
        if self._lost is not None:
            raise self._lost.again()
        call_id = self._new_id()
        frame = encode_call(call_id, call, max(1, int(timeout_s * 1000)))
        pending = self._calls[call_id] = PendingAnswer(self, call_id)
        try:
            if self._loop is None:
                self._begin_reading()
            is_free = not self._unsent
            self._unsent += [memoryview(piece) for piece in self._pieces(*frame)]
            if is_free:
                self._send()
        except BaseException as error:
            failure = self._failure(f"connection to {self.address} lost while sending: {error!r}", error)
            self._lose(failure)
            if isinstance(error, OSError):
                raise failure.again() from error
            raise
        return pending

    def give_up(self, pending: PendingAnswer) -> None:
        self._deliver(pending, self._timed_out())

    def _deliver(self, pending: PendingAnswer, answer: Answer) -> None:
        self._calls.pop(pending.call_id, None)
        pending.deliver(answer)

    def _begin_reading(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)
        if self._has_buffered():
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        try:
            while self._lost is None:
                for reply in self._receive():
                    for pending in self._answered_by(reply):
                        self._deliver(pending, reply)
                if not self._has_buffered():
                    return
        except BlockingIOError:
            pass
        except BaseException as error:
            self._lose(self._failure(f"connection to {self.address} lost: {error!r}", error))
            if not isinstance(error, (OSError, Corruption)):
                raise

    def _send(self) -> None:
        """Send as much as the socket accepts now."""
        assert self._loop is not None
        unsent = self._unsent
        try:
            while unsent:
                rest = unsent[0][self._socket.send(unsent[0], NO_SIGNAL) :]
                if rest:
                    unsent[0] = rest
                else:
                    unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._send_rest)

    def _send_rest(self) -> None:
        assert self._loop is not None
        try:
            self._loop.remove_writer(self._socket.fileno())
            self._send()
        except BaseException as error:
            self._lose(self._failure(f"connection to {self.address} lost while sending: {error!r}", error))
            if not isinstance(error, OSError):
                raise

    def _lose(self, reason: ConnectionLost) -> None:
        lost = self._lost = self._lost or reason
        if (descriptor := self._socket.fileno()) >= 0:
            if self._loop is not None:
                self._loop.remove_reader(descriptor)
                self._loop.remove_writer(descriptor)
            self._socket.close()
        for pending in list(self._calls.values()):
            self._deliver(pending, lost.again())


class LoopClient:
    """The connections of an event loop to the servers of a cluster. Uses the cluster's options and its cache of
    regions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connections: dict[tuple[Address, str], LoopConnection] = {}
        self._openings: dict[tuple[Address, str], asyncio.Future[LoopConnection | Exception]] = {}
        self._closed = False

    def begin(self, routine: Routine[T], ended: Callable[[T | Exception], None]) -> None:
        """Start an operation. It needs no task if its connections are open. `ended` gets the result or error in the
        loop step that received the last reply, never within this call."""
        _Operation(self, routine, ended).resume(None)

    def close(self) -> None:
        """Close all connections; operations in progress fail. Idempotent."""
        self._closed = True
        for opening in self._openings.values():
            if not opening.done():
                opening.set_result(_closed())
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    def start_at_once(self, request: Start) -> list[SentCall] | None:
        """Send the calls. Returns None, and sends nothing, if a connection must be opened first."""
        sent = []
        for address, call in request.sends:
            connection = self._connections.get((address, call.service))
            if connection is None or connection.is_lost:
                return None
            sent.append((connection, call))
        return [_sent_call(connection, call, request.timeout_s) for connection, call in sent]

    async def perform(self, request: Effect[Any]) -> Any:
        """Return the result of a step that waits: for a connection, a pause or ZooKeeper."""
        if isinstance(request, Start):
            return await asyncio.gather(*(self._start(*send, request.timeout_s) for send in request.sends))
        if isinstance(request, Pause):
            return await asyncio.sleep(request.pause_s)
        assert isinstance(request, FindServer)
        return await asyncio.to_thread(self._cluster.find_server, request)

    async def _start(self, address: Address, call: Call, timeout_s: float) -> SentCall:
        try:
            connection = await self._connection(address, call.service, timeout_s)
        except ConnectionLost as failure:
            return SentCall(address, failure=failure)
        return _sent_call(connection, call, timeout_s)

    async def _connection(self, address: Address, service: str, timeout_s: float) -> LoopConnection:
        """Return the open connection, or wait for the one attempt to open it."""
        if self._closed:
            raise _closed()
        key = address, service
        connection = self._connections.get(key)
        if connection is not None and not connection.is_lost:
            return connection
        opening = self._openings.get(key) or self._begin_opening(key)
        await asyncio.wait((opening,), timeout=timeout_s)
        outcome = opening.result() if opening.done() else ConnectionLost(f"no connection to {address} in time")
        if isinstance(outcome, ConnectionLost):
            raise outcome.again()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _begin_opening(self, key: tuple[Address, str]) -> asyncio.Future[LoopConnection | Exception]:
        """Connect on a daemon thread, so that neither the loop nor the end of the process waits for it."""
        loop, cluster = asyncio.get_running_loop(), self._cluster
        opening: asyncio.Future[LoopConnection | Exception] = loop.create_future()

        def open_connection() -> None:
            outcome: LoopConnection | Exception
            try:
                outcome = LoopConnection(*key, cluster.handshake, connect_timeout_s=CONNECT_S_MAX, tls=cluster.tls)
            except Exception as error:
                outcome = error
            try:
                loop.call_soon_threadsafe(self._end_opening, key, outcome)
            except RuntimeError:  # the loop is closed
                if isinstance(outcome, LoopConnection):
                    outcome.close()

        threading.Thread(target=open_connection, name="hbase-connect", daemon=True).start()
        self._openings[key] = opening
        return opening

    def _end_opening(self, key: tuple[Address, str], outcome: LoopConnection | Exception) -> None:
        opening = self._openings.pop(key)
        if not opening.done():
            opening.set_result(outcome)
            if isinstance(outcome, LoopConnection):
                self._connections[key] = outcome
        elif isinstance(outcome, LoopConnection):
            outcome.close()


def _closed() -> Misuse:
    return Misuse("the HBase client is closed")


def _sent_call(connection: LoopConnection, call: Call, timeout_s: float) -> SentCall:
    try:
        return SentCall(connection.address, connection.start(call, timeout_s=timeout_s))
    except ConnectionLost as failure:
        return SentCall(connection.address, failure=failure)


class _Operation(Generic[T]):
    """An operation that continues when a reply arrives, without a task."""

    def __init__(self, client: LoopClient, routine: Routine[T], ended: Callable[[T | Exception], None]) -> None:
        self._client, self._routine, self._ended = client, routine, ended
        self._is_beginning = True
        self._task: asyncio.Task[Any] | None = None

    def resume(self, result: Any) -> None:
        outcome: T | Exception
        try:
            while True:
                request = self._routine.send(result)
                if isinstance(request, Finish):
                    result = self._answer(request.sent_call.handle, request.timeout_s)
                else:
                    result = self._client.start_at_once(request) if isinstance(request, Start) else None
                    if result is None:
                        self._start_task(request)
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
            pending.when_answered(self.resume, timeout_s=timeout_s)
        return pending.answer

    def _start_task(self, request: Effect[Any]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._client.perform(request))
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        failure = task.exception()
        if isinstance(failure, Exception):
            self._routine.close()
            self._end(failure)
        else:
            self.resume(task.result())

    def _end(self, outcome: T | Exception) -> None:
        if self._is_beginning:
            asyncio.get_running_loop().call_soon(self._ended, outcome)
        else:
            self._ended(outcome)
