"""The effects that an operation on HBase awaits, and the time that it may take.

Two drivers perform the effects: `cluster` (blocking) and `loop_client` (for the TSO's flushes). A `Budget` limits the
time of an operation, and sets the pauses between its retries, with back-off and jitter. An operation that has waited
for two seconds logs this.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeGuard, TypeVar

from google.protobuf.message import DecodeError, Message

from pyomid.coroutines import Effect, Pause
from pyomid.errors import Corruption, Unavailable
from pyomid.omid.hbase.rpc.failures import AuthenticationFailed, CallTimedOut, ConnectionLost, RemoteFailure
from pyomid.omid.hbase.rpc.frames import Address, Call, Reply

log = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_PAUSE_S_FIRST: Final = 0.02
_PAUSE_S_MAX: Final = 1.0

_LOG_AFTER_S: Final = 2.0
"""An operation that has waited longer logs this, and logs it again each time its wait is five times as long."""

_REFUSALS_MAX: Final = 3
"""If authentication fails this many times, it is an error. A server may refuse a valid ticket: it mistakes two tickets
of the same microsecond for a replay, or is changing its key just then."""

_CHECK_AFTER_S: Final = 3.0
_CHECK_EVERY_S: Final = 8.0
_CHECK_S_MAX: Final = 3.0
"""After so many seconds of pauses in total, an operation checks whether its table exists and is enabled, and again
after every so many seconds more. The third value is the timeout of a check."""


class Role(Enum):
    """The servers whose addresses are in ZooKeeper."""

    META = "meta-region-server"
    MASTER = "master"


@dataclass(slots=True)
class SentCall:
    """A call in flight: its handle, which only the driver uses, or the failure to send it."""

    address: Address
    handle: Any = None
    failure: ConnectionLost | None = None


@dataclass(frozen=True, slots=True)
class Start(Effect[list[SentCall]]):
    """Send all calls at once. Result: one `SentCall` for each."""

    sends: Sequence[tuple[Address, Call]]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Finish(Effect["Answer"]):
    """Wait for the reply to a call. Result: the reply or a failure."""

    sent_call: SentCall
    timeout_s: float


@dataclass(frozen=True, slots=True)
class FindServer(Effect["Address | Unavailable"]):
    """Read the server's address from ZooKeeper. Result: the address, or `Unavailable` if there is none yet."""

    role: Role


Answer = Reply | ConnectionLost | CallTimedOut
Failure = RemoteFailure | ConnectionLost | CallTimedOut


@dataclass(slots=True)
class Budget:
    """Limits how long an operation may retry its calls. `what` names the operation in errors."""

    what: str
    seconds: float
    call_s_max: float = 20.0
    tries: int = 0
    last: BaseException | None = None
    ends_s: float = field(init=False)
    _log_s: float = field(init=False)
    _paused_s: float = 0.0
    _check_s: float = _CHECK_AFTER_S

    def __post_init__(self) -> None:
        now_s = time.monotonic()
        self.ends_s, self._log_s = now_s + self.seconds, now_s + _LOG_AFTER_S

    @property
    def call_s(self) -> float:
        return max(0.05, min(self.call_s_max, self.ends_s - time.monotonic()))

    def pause(self) -> Pause:
        """Return the pause before the next attempt. Raises the operation's error if its time is up."""
        now_s = time.monotonic()
        if now_s >= self.ends_s or (isinstance(self.last, AuthenticationFailed) and self.tries >= _REFUSALS_MAX):
            raise self.timeout_error()
        if now_s >= self._log_s:
            waited_s = self.seconds - (self.ends_s - now_s)
            log.warning(
                "%s: has waited %.0f s (limit %g s): %s",
                self.what,
                waited_s,
                self.seconds,
                self.last or "it is still in progress",
            )
            self._log_s = now_s + 4 * waited_s
        longest = min(_PAUSE_S_MAX, _PAUSE_S_FIRST * 2.0 ** min(self.tries, 30))
        self.tries += 1
        seconds = min(longest * random.uniform(0.5, 1.0), max(0.0, self.ends_s - time.monotonic()))
        self._paused_s += seconds
        return Pause(seconds)

    def check_budget(self) -> Budget | None:
        """Return the budget of a check of the table; None if no check is due. The length of all pauses decides whether
        one is due."""
        if self._paused_s < self._check_s:
            return None
        self._check_s = self._paused_s + _CHECK_EVERY_S
        return Budget(self.what, max(0.0, min(_CHECK_S_MAX, self.ends_s - time.monotonic())), self.call_s_max)

    def timeout_error(self) -> Unavailable:
        """Return the error of an operation that gives up."""
        if isinstance(self.last, RemoteFailure):
            error = self.last.as_error(self.what)
            if isinstance(error, Unavailable):
                error.args = (f"{error.message} (after {self.seconds:g} s, {self.tries} tries)",)
                error.message = error.args[0]
                return error
        if isinstance(self.last, AuthenticationFailed):
            return Unavailable(f"{self.what}: {self.last}")
        return Unavailable(
            f"{self.what}: no success within {self.seconds:g} s ({self.tries} tries); the last error was: {self.last}"
        )


async def ask_server(address: Address, call: Call, budget: Budget) -> Answer:
    """Send one call and return its reply or failure."""
    (sent_call,) = await Start(((address, call),), budget.call_s)
    answer = await answer_to(sent_call, budget)
    return answer


async def answer_to(sent_call: SentCall, budget: Budget) -> Answer:
    if sent_call.failure is not None:
        return sent_call.failure
    answer = await Finish(sent_call, budget.call_s)
    return answer


def has_succeeded(answer: Answer) -> TypeGuard[Reply]:
    """Return whether the answer is a reply, rather than an exception of the whole call."""
    return isinstance(answer, Reply) and answer.failure is None


def failure_of(answer: Answer) -> Failure:
    """Return why a call that did not succeed failed."""
    failure = answer.failure if isinstance(answer, Reply) else answer
    assert failure is not None
    return failure


async def find_server(role: Role, budget: Budget) -> Address:
    """Return the server's address. Retries while ZooKeeper does not reply, or while HBase is down or starting; raises
    if ZooKeeper refuses this client."""
    while True:
        found = await FindServer(role)
        if not isinstance(found, Unavailable):
            return found
        if not found.values.get("may_pass", True):
            raise found
        budget.last = found
        await budget.pause()


def parsed(kind: type[M], reply: Reply) -> M:
    try:
        return kind.FromString(reply.message)  # type: ignore[arg-type]
    except DecodeError as error:
        raise Corruption(f"a reply's {kind.__name__} is malformed: {error}") from error
