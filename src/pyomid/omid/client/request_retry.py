"""The common part of the blocking and the asyncio session: which requests are retried, what a lost reply means, and
what a session knows of its TSO.

    begin, leases, seals, status …   retried on a new connection: the first attempt did no harm
    commit                           retried with `isRetry` (T7): the first attempt may have been decided
    a retry of a commit is refused   OutcomeUnknown: the error says nothing about the first attempt
    no reply for `retry_s`           Unavailable; for a commit that was sent, OutcomeUnknown
    no TSO, for a known reason       the reason is raised at once (store full, folder gone); but a commit that was sent
                                     is retried, because the reason says nothing about its outcome

A begin's reply carries the newest epoch that the session has received, never an older one (T6).
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypedDict, TypeGuard, TypeVar

from pyomid import system
from pyomid.coroutines import Blocking, Effect, Pause, Routine
from pyomid.errors import Misuse, OmidError, OutcomeUnknown, StoreFull, Unavailable
from pyomid.omid.wire.client_protocol import ClientProtocol, OpenStarts
from pyomid.omid.wire.codec import ids_in_frame_max
from pyomid.omid.wire.frames import FRAME_BYTES_MAX
from pyomid.omid.wire.messages import AdvanceHorizon, Answer, Begin, Refused, ReportIds, Request
from pyomid.ports import Clock
from pyomid.types import BeginReply, CommitRequest

log = logging.getLogger(__name__)

LOG_AFTER_S: Final = 2.0
"""A request that waits for a TSO longer than this is logged."""

PAUSE_S: Final = 0.02
"""The pause before the first retry. It doubles up to `PAUSE_S_MAX`."""

PAUSE_S_MAX: Final = 0.25
"""The longest pause. After a takeover a client may find the new TSO this much later."""

LOOK_S: Final = 1.0
"""How often a client checks whether another TSO leads, while the TSO owes a reply and sends nothing."""


@dataclass(slots=True)  # not frozen: see `ReadRows`
class Attempt(Effect[Answer]):
    """Send the request on the current connection, or a new one, and wait up to `timeout_s`. Result: the answer. Fails
    with `ConnectionBroken`, or with an error of the client itself."""

    request: Request
    timeout_s: float


class ConnectionBroken(Unavailable):
    """No reply came. `sent` is True if the TSO may have received the request; otherwise `reason` may say why it was not
    sent."""

    def __init__(self, message: str, *, sent: bool, reason: BaseException | None = None) -> None:
        super().__init__(message, sent=sent)
        self.sent = sent
        self.reason = reason


CONNECT_FAILS: Final = (OmidError, OSError, RuntimeError, MemoryError)
"""The errors of a connection attempt: no TSO, the network, or no thread or memory. Nothing was sent, so it is
retried."""


def no_tso(error: Exception) -> ConnectionBroken:
    return ConnectionBroken(f"no connection to a TSO: {error}", sent=False, reason=error)


def others_connect(retry_s: float) -> ConnectionBroken:
    """Return the error for a caller that waited too long while other callers tried to connect. Otherwise a hundred
    callers would wait a hundred times as long for a server that accepts no connection."""
    return ConnectionBroken(f"other callers have been connecting to a TSO for {retry_s:.1f} s", sent=False)


def is_closed() -> ConnectionBroken:
    return ConnectionBroken("the connection to the TSO is closed", sent=False)


def broke(why: object) -> ConnectionBroken:
    return ConnectionBroken(f"the connection to the TSO broke: {why}", sent=True)


def not_in_time() -> ConnectionBroken:
    """Return the error of a timeout. The connection breaks with it, so that a retry does not receive the late reply."""
    return ConnectionBroken("the TSO did not reply in time", sent=True)


T = TypeVar("T")


@dataclass(slots=True)
class KnownDatabase:
    """The id of the client's database. All sessions of a client share it, and refuse a TSO of another database."""

    id: bytes = b""
    """The database's id; empty until a TSO has sent it."""


@dataclass(slots=True)
class WaitLog:
    """Logs that a session's requests wait for a TSO: one line for all requests once one has waited `LOG_AFTER_S`, and
    the next line when the wait is five times as long."""

    _quiet_until_s: float = 0.0

    def waits(self, request: Request, lost: ConnectionBroken, waited_s: float, retry_s: float, now_s: float) -> None:
        if waited_s >= LOG_AFTER_S and now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + 4 * waited_s
            name = type(request).__name__
            log.warning(
                "%s has waited %.0f s for a TSO and will wait up to %g s: %s",
                name,
                waited_s,
                retry_s,
                lost.message,
            )

    def answered(self) -> None:
        """Note a reply, which ends the wait."""
        self._quiet_until_s = 0.0


@dataclass(slots=True)
class Silence:
    """Logs that a connected TSO owes replies and sends nothing: one line after `LOG_AFTER_S`, and the next after five
    times as long. An attempt may wait longer before its reply counts as lost."""

    _lasted_s: float = 0.0
    _log_s: float = LOG_AFTER_S

    def goes_on(self, seconds: float) -> None:
        self._lasted_s += seconds
        if self._lasted_s >= self._log_s:
            self._log_s = 5 * self._lasted_s
            log.warning("the TSO is connected, but has not replied for %.0f s", self._lasted_s)

    def ends(self) -> None:
        self._lasted_s, self._log_s = 0.0, LOG_AFTER_S


class AnyConnection(Protocol):
    """What `SessionBase` needs of a session's connection."""

    @property
    def broken(self) -> object: ...

    def send_report(self, compose: Callable[[], Request]) -> None:
        """Send a report, which has no reply. It is composed when no other request can be sent before it."""

    def close(self, why: ConnectionBroken) -> None: ...


C = TypeVar("C", bound=AnyConnection)


class SessionOptions(TypedDict, total=False):
    """The options of every session. `SessionBase` has their defaults."""

    request_s: float
    """The longest time that one attempt waits."""
    retry_s: float
    """The longest time for a whole request with its retries; must exceed a failover."""
    token: bytes
    announced_epoch: Callable[[], int] | None
    """Reads the epoch that Apache Omid's TSO announces elsewhere, because its replies carry none. It is called after
    the reply to each begin, so the epoch is never older than the start timestamp (T6). It may block."""
    has_moved: Callable[[], bool] | None
    """With several TSOs: returns whether another TSO leads than the last connected one. It must return quickly, and
    return False if unknown. It is called every `LOOK_S` while the TSO owes a reply and sends nothing. So a stopped or
    disconnected TSO delays a request only until another one leads."""
    known: KnownDatabase | None


class SessionBase(Generic[C]):
    """The common part of a session: what it knows of its TSO, and how it sends requests."""

    def __init__(
        self,
        *,
        clock: Clock,
        request_s: float = 5.0,
        retry_s: float = 60.0,
        token: bytes = b"",
        announced_epoch: Callable[[], int] | None = None,
        has_moved: Callable[[], bool] | None = None,
        known: KnownDatabase | None = None,
    ) -> None:
        self._request_s = request_s
        self._retry_s = retry_s
        self._token = token
        self._clock = clock
        self._announced_epoch = announced_epoch
        self._has_moved = has_moved
        self._closed = False
        self._epoch = 0
        self.known: Final = known or KnownDatabase()
        self._extended: bool | None = None
        self._write_set_ids_max = 0
        self._made_in = system.here
        self._connection: C | None = None
        self._open_starts = self._new_open_starts()
        self._wait_log = WaitLog()

    def _new_open_starts(self) -> OpenStarts:
        return OpenStarts(client=os.urandom(12), slack_s=2 * self._retry_s, holder=this_process(), clock=time.monotonic)

    @property
    def epoch(self) -> int:
        """The newest epoch that a reply carried or a Java TSO announced."""
        return self._epoch

    @property
    def write_set_ids_max(self) -> int:
        """The most ids that one commit may name (`ports.Tso`); 0 before the first reply."""
        return self._write_set_ids_max

    def report_open_starts(self) -> bool:
        """Report the open starts to the TSO, if they changed and there is a connection. Returns whether any start is
        open."""
        connection = self._connection
        if connection is None or connection.broken:
            return False
        if not self._open_starts.is_reported:
            with contextlib.suppress(OmidError):
                connection.send_report(self._open_starts.next_report)
        return self._open_starts.holds_any

    async def beginning(self, not_before: int) -> BeginReply:
        if system.here is not self._made_in:
            self._after_fork()
        held = self._open_starts.expect()
        try:
            self._report_soon()  # before the request leaves: when its reply comes, the caller may be gone
            reply = await self.asking(Begin(not_before), BeginReply)
            self._open_starts.received(held, reply.start_ts)
            if reply.epoch > self._epoch:
                self._epoch = reply.epoch
            if self._announced_epoch is not None and not self._extended:
                self._epoch = max(self._epoch, (await Blocking(self._announced_epoch)))
            return BeginReply(reply.start_ts, self._epoch, reply.fenced_ts, hold=held)  # T6: no older epoch
        except BaseException:
            held.end()
            raise

    @abstractmethod
    def _report_soon(self) -> None:
        """Schedule `report_open_starts` to run in at most `REPORT_S` seconds, and then repeatedly while a start is
        open."""

    def asking(self, request: Request, kind: type[T]) -> Routine[T]:
        return ask_server(request, kind, self._wait_log, self._clock, request_s=self._request_s, retry_s=self._retry_s)

    def _new_protocol(self) -> ClientProtocol:
        return ClientProtocol(token=self._token, commit_retry_s=self._retry_s, database_id=self.known.id)

    def _after_fork(self) -> None:
        """Prepare a session that was copied into a forked child."""

    def _keep(self, connection: C, protocol: ClientProtocol) -> C:
        """Install a connection after its handshake. If the session was closed meanwhile, close the connection and raise
        `Misuse`: either `close` sees the connection, or this method sees that the session is closed."""
        self._met(protocol)
        if self._open_starts.age_s:
            try:
                connection.send_report(self._open_starts.next_report)
            except ConnectionBroken as error:
                raise no_tso(error) from error
        self._report_soon()
        self._connection = connection
        if self._closed:
            self._connection = None
            connection.close(ConnectionBroken("the session was closed", sent=False))
            self._check_open()
        return connection

    def _met(self, protocol: ClientProtocol) -> None:
        server = protocol.server
        self.known.id = protocol.database_id
        self._extended = protocol.extended
        self._write_set_ids_max = ids_in_frame_max(FRAME_BYTES_MAX) if server is None else server.write_set_ids_max
        if server is not None:
            self._epoch = max(self._epoch, server.epoch)
            self._open_starts.connected(server.max_transaction_age_s, server.epoch)

    def _check_open(self) -> None:
        if self._closed:
            raise Misuse("the session with the TSO is closed")


async def ask_server(
    request: Request, kind: type[T], wait_log: WaitLog, clock: Clock, *, request_s: float, retry_s: float
) -> T:
    """Send a request, with retries, and return its reply, which must be of this kind. If the TSO refuses, raise its
    error."""
    began_s = clock()
    pause_s = PAUSE_S
    while True:
        try:
            answer: Answer = await Attempt(request, retry_s if is_long(request) else request_s)
        except ConnectionBroken as lost:
            request = _again(request, lost)
            if _needs_a_person(lost.reason) and not _may_be_decided(request):
                raise lost.reason from lost
            now_s = clock()
            if now_s - began_s >= retry_s:
                raise _given_up(request, lost, retry_s) from lost
            wait_log.waits(request, lost, now_s - began_s, retry_s, now_s)
            await Pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            continue
        except OmidError as error:
            refused = _refused(request, error)
            if refused is error:
                raise
            raise refused from error
        wait_log.answered()
        if isinstance(answer, Refused):
            raise _refused(request, answer.as_error())
        if not isinstance(answer, kind):
            raise Misuse(f"the TSO replied to {type(request).__name__} with {type(answer).__name__}")
        return answer


def is_long(request: Request) -> bool:
    """Return whether the request may take longer than `request_s`, because it is large, or makes the TSO write or
    delete many entries."""
    is_large = isinstance(request, CommitRequest) and bool(request.branches)
    return is_large or isinstance(request, AdvanceHorizon | ReportIds)


def _again(request: Request, lost: ConnectionBroken) -> Request:
    """Return the request to send next. A commit that may have been decided becomes a retry."""
    if isinstance(request, CommitRequest) and lost.sent:
        return replace(request, is_retry=True)
    return request


def _needs_a_person(reason: BaseException | None) -> TypeGuard[OmidError]:
    """Return whether only an operator can help, because no other TSO will start by itself."""
    return isinstance(reason, OmidError) and (isinstance(reason, StoreFull) or not isinstance(reason, Unavailable))


def _may_be_decided(request: Request) -> bool:
    return isinstance(request, CommitRequest) and request.is_retry


def _refused(request: Request, error: OmidError) -> OmidError:
    if not _may_be_decided(request) or isinstance(error, OutcomeUnknown):
        return error
    assert isinstance(request, CommitRequest)
    return OutcomeUnknown(
        f"start_ts {request.start_ts}: the commit was sent, its reply was lost, and its retry was refused: "
        f"{error.message}",
        start_ts=request.start_ts,
    )


def _given_up(request: Request, lost: ConnectionBroken, retry_s: float) -> Unavailable | OutcomeUnknown:
    if _may_be_decided(request):
        assert isinstance(request, CommitRequest)
        return OutcomeUnknown(
            f"start_ts {request.start_ts}: the commit was sent, but no TSO reported its outcome within {retry_s} s"
            f" ({lost.message})",
            start_ts=request.start_ts,
        )
    return Unavailable(f"no TSO served the request {type(request).__name__} for {retry_s} s ({lost.message})")


def this_process() -> str:
    """Return this process's name for operators. Each request for a lease carries it."""
    return f"process {os.getpid()} on {platform.node()}"
