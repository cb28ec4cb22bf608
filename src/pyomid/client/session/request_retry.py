"""Request retry: which requests are repeated, what a lost answer means, and what a session remembers of its TSO. The
blocking and the asyncio session are shells over it, driven by `client.drive`.

    begin, leases, seals, status …   repeated on a new connection: the first attempt did nothing that hurts
    commit                           repeated as a retry (T7): the first attempt may have been decided
    a retry of a commit is refused   OutcomeUnknown, whatever the error: it says nothing about the first attempt
    no answer for `retry_s`          Unavailable; for a commit that was sent: OutcomeUnknown
    known why there is no TSO        raised at once (no room in the store, a folder that is gone), but for a commit that
                                     was sent: it says nothing about that, so the commit is repeated
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeGuard, TypeVar

from pyomid import platforms
from pyomid.client.drive import Blocking, Pause
from pyomid.errors import Misuse, OmidError, OutcomeUnknown, StoreFull, Unavailable
from pyomid.protocol.effects import Effect, Steps
from pyomid.types import BeginReply, CommitRequest
from pyomid.wire.client_protocol import ClientProtocol
from pyomid.wire.messages import AdvanceHorizon, Answer, Begin, Refused, Request
from pyomid.wire.open_starts import OpenStarts

log = logging.getLogger(__name__)

TELL_AFTER_S: Final = 2.0
"""A request that waits for longer says so in the log."""

PAUSE_S: Final = 0.02
"""Pause before a failed request is repeated. It doubles up to `PAUSE_S_MAX`."""

PAUSE_S_MAX: Final = 0.25
"""As long as a client may come late to a TSO that took over: a look at ZooKeeper or a folder, four times a second."""

LOOK_S: Final = 1.0
"""If a TSO that owes an answer sent nothing for so long, another one may lead. Checked at this interval."""


@dataclass(slots=True)  # not frozen: see `ReadRows`
class Attempt(Effect):
    """→ Answer; or `ConnectionBroken`, or the client's own refusal. Sends the request on the present connection (a new
    one if there is none), and waits for `timeout_s`."""

    request: Request
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadClock(Effect):
    """→ float: the session's clock, in seconds."""


_READ_CLOCK: Final = ReadClock()


class ConnectionBroken(Unavailable):
    """No answer came. `sent`: the TSO may have seen the request. `reason`: why it was not sent."""

    def __init__(self, message: str, *, sent: bool, reason: BaseException | None = None) -> None:
        super().__init__(message, sent=sent)
        self.sent = sent
        self.reason = reason


CONNECT_FAILS: Final = (OmidError, OSError, RuntimeError, MemoryError)
"""Errors of a connection attempt: no TSO, the network, or a system without a thread or memory for it. Nothing was sent;
it is tried again."""


def no_tso(error: Exception) -> ConnectionBroken:
    return ConnectionBroken(f"no TSO to talk to: {error}", sent=False, reason=error)


def others_connect(retry_s: float) -> ConnectionBroken:
    """Each waits for the one that connects, but not without end: a hundred must not wait a hundred times as long for a
    server that takes no connection."""
    return ConnectionBroken(f"others have been looking for a TSO for {retry_s:.1f} s", sent=False)


def is_closed() -> ConnectionBroken:
    return ConnectionBroken("the connection to the TSO is closed", sent=False)


def broke(why: object) -> ConnectionBroken:
    return ConnectionBroken(f"the connection to the TSO broke: {why}", sent=True)


def not_in_time() -> ConnectionBroken:
    """An attempt without an answer in time breaks the connection: a retry must not meet the late answer."""
    return ConnectionBroken("the TSO did not answer in time", sent=True)


T = TypeVar("T")


@dataclass(slots=True)
class KnownDatabase:
    """The database that a client works with, shared by its sessions: a TSO of another one is refused by each."""

    id: bytes = b""
    """Empty until a TSO told it."""


@dataclass(slots=True)
class WaitLog:
    """What a session logs of requests that wait for a TSO, all of its requests together: a line once one has waited for
    `TELL_AFTER_S`, and the next when that wait is five times as long."""

    _quiet_until_s: float = 0.0

    def waits(self, request: Request, lost: ConnectionBroken, waited_s: float, retry_s: float, now_s: float) -> None:
        if waited_s >= TELL_AFTER_S and now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + 4 * waited_s
            name = type(request).__name__
            log.warning("%s: waits for %.0f s, for %g s at most: %s", name, waited_s, retry_s, lost.message)

    def answered(self) -> None:
        """The next wait is another one."""
        self._quiet_until_s = 0.0


@dataclass(slots=True)
class Silence:
    """Of a TSO that is connected and owes answers: a line in the log once it has sent nothing for `TELL_AFTER_S`, and
    the next when that is five times as long. An attempt may wait for longer before it counts as lost."""

    _lasted_s: float = 0.0
    _tell_s: float = TELL_AFTER_S

    def goes_on(self, seconds: float) -> None:
        self._lasted_s += seconds
        if self._lasted_s >= self._tell_s:
            self._tell_s = 5 * self._lasted_s
            log.warning("the TSO is connected and owes an answer, but has sent nothing for %.0f s", self._lasted_s)

    def ends(self) -> None:
        self._lasted_s, self._tell_s = 0.0, TELL_AFTER_S


class AnyConnection(Protocol):
    """A session's connection, as far as `SessionBase` uses it."""

    @property
    def broken(self) -> object: ...

    def tell(self, compose: Callable[[], Request]) -> None:
        """Sends a request without an answer, made when nothing else can leave before it."""

    def close(self, why: ConnectionBroken) -> None: ...


C = TypeVar("C", bound=AnyConnection)


class SessionBase(Generic[C]):
    """What a session remembers of its TSO, and its requests as steps.

    `request_s` bounds one attempt, `retry_s` the whole request: longer than a fail-over.
    `announced_epoch` reads the epoch of a TSO whose answers carry none (Apache Omid's) where that TSO announces it. It
    is read after each begin's answer, so it is never older than the start timestamp that came with it (T6).
    """

    def __init__(
        self,
        *,
        request_s: float,
        retry_s: float,
        token: bytes,
        announced_epoch: Callable[[], int] | None,
        known: KnownDatabase | None = None,
    ) -> None:
        self._request_s = request_s
        self._retry_s = retry_s
        self._token = token
        self._announced_epoch = announced_epoch
        self._closed = False
        self._epoch = 0
        self.known: Final = known or KnownDatabase()
        self._extended: bool | None = None
        self._write_set_ids_max = 0
        self._made_in = platforms.here
        self._connection: C | None = None
        self._open_starts = self._new_open_starts()
        self._wait_log = WaitLog()

    def _new_open_starts(self) -> OpenStarts:
        return OpenStarts(client=os.urandom(12), slack_s=2 * self._retry_s, holder=this_process(), clock=time.monotonic)

    @property
    def epoch(self) -> int:
        """The newest epoch that an answer carried, or that a Java TSO announced."""
        return self._epoch

    def note_ended(self, start_ts: int) -> None:
        self._open_starts.ended(start_ts)

    def tell_open(self) -> bool:
        """Tells the TSO what is open, where that changed and there is a connection. Whether there may be more soon."""
        connection = self._connection
        if connection is None or connection.broken:
            return False
        if not self._open_starts.is_told:
            with contextlib.suppress(OmidError):
                connection.tell(self._open_starts.telling)
        return self._open_starts.holds_any

    def begin_steps(self, not_before: int) -> Steps[BeginReply]:
        if platforms.here is not self._made_in:
            self._after_fork()
        open_starts = self._open_starts
        ticket = open_starts.expect()
        try:
            reply = yield from self.ask_steps(Begin(not_before), BeginReply)
            open_starts.received(reply.start_ts)
        finally:
            open_starts.expect_no_more(ticket)
        if reply.epoch > self._epoch:
            self._epoch = reply.epoch
        if self._announced_epoch is not None and not self._extended:
            self._epoch = max(self._epoch, (yield Blocking(self._announced_epoch)))
        return reply if reply.epoch == self._epoch else with_epoch(reply, self._epoch)

    def ask_steps(self, request: Request, kind: type[T]) -> Steps[T]:
        answer = yield from ask_steps(request, self._wait_log, request_s=self._request_s, retry_s=self._retry_s)
        return answer if isinstance(answer, kind) else expected(answer, kind, request)

    def _new_protocol(self) -> ClientProtocol:
        return ClientProtocol(token=self._token, commit_retry_s=self._retry_s, database_id=self.known.id)

    def _after_fork(self) -> None:
        """This process is a child of the one that made the session."""

    def _keep(self, connection: C, protocol: ClientProtocol) -> C:
        """Keeps the connection after its handshake. If the session was closed meanwhile, closes it and raises `Misuse`:
        either `close` saw no connection, or this method sees that it was called."""
        self._met(protocol)
        if self._open_starts.age_s:
            try:
                connection.tell(self._open_starts.telling)
            except ConnectionBroken as error:
                raise no_tso(error) from error
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
        if server is not None:
            self._epoch = max(self._epoch, server.epoch)
            self._open_starts.connected(server.max_transaction_age_s, server.epoch)
            self._write_set_ids_max = server.write_set_ids_max

    def _check_open(self) -> None:
        if self._closed:
            raise Misuse("the session with the TSO is closed")


def ask_steps(request: Request, wait_log: WaitLog, *, request_s: float, retry_s: float) -> Steps[Answer]:
    """The answer, `Refused` raised as its error."""
    began_s: float = yield _READ_CLOCK
    pause_s = PAUSE_S
    while True:
        try:
            answer: Answer = yield Attempt(request, retry_s if is_long(request) else request_s)
        except ConnectionBroken as lost:
            request = _again(request, lost)
            if _needs_a_person(lost.reason) and not _may_be_decided(request):
                raise lost.reason from lost
            now_s: float = yield ReadClock()
            if now_s - began_s >= retry_s:
                raise _given_up(request, lost, retry_s) from lost
            wait_log.waits(request, lost, now_s - began_s, retry_s, now_s)
            yield Pause(pause_s)
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
        return answer


def is_long(request: Request) -> bool:
    """Whether the work itself may take longer than `request_s`: it writes or deletes many entries."""
    return isinstance(request, AdvanceHorizon) or (isinstance(request, CommitRequest) and bool(request.branches))


def _again(request: Request, lost: ConnectionBroken) -> Request:
    """The request to send next: a commit that may have been decided is a retry from now on."""
    if isinstance(request, CommitRequest) and lost.sent:
        return replace(request, is_retry=True)
    return request


def _needs_a_person(reason: BaseException | None) -> TypeGuard[OmidError]:
    """Whether only a person can help: no other TSO will come by itself."""
    return isinstance(reason, OmidError) and (isinstance(reason, StoreFull) or not isinstance(reason, Unavailable))


def _may_be_decided(request: Request) -> bool:
    return isinstance(request, CommitRequest) and request.is_retry


def _refused(request: Request, error: OmidError) -> OmidError:
    if not _may_be_decided(request) or isinstance(error, OutcomeUnknown):
        return error
    assert isinstance(request, CommitRequest)
    return OutcomeUnknown(
        f"start_ts {request.start_ts}: the commit was sent, its answer was lost, and its retry was refused: "
        f"{error.message}",
        start_ts=request.start_ts,
    )


def _given_up(request: Request, lost: ConnectionBroken, retry_s: float) -> Unavailable | OutcomeUnknown:
    if _may_be_decided(request):
        assert isinstance(request, CommitRequest)
        return OutcomeUnknown(
            f"start_ts {request.start_ts}: the commit was sent, and no TSO told its outcome for {retry_s} s"
            f" ({lost.message})",
            start_ts=request.start_ts,
        )
    return Unavailable(f"{type(request).__name__}: no TSO answered for {retry_s} s ({lost.message})")


def this_process() -> str:
    """The name of this process for people: sent with each request for a lease."""
    return f"process {os.getpid()} on {platform.node()}"


def with_epoch(answer: BeginReply, newest_epoch: int) -> BeginReply:
    """T6: never an epoch older than that of any timestamp this client holds."""
    return answer if answer.epoch >= newest_epoch else replace(answer, epoch=newest_epoch)


def expected(answer: Answer, kind: type[T], request: Request) -> T:
    """`answer`, if it is the kind that the request is answered with."""
    if not isinstance(answer, kind):
        raise Misuse(f"the TSO answered {type(request).__name__} with {type(answer).__name__}")
    return answer
