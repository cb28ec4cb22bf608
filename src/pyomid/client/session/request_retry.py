"""Asking a TSO until it answers: what may be asked again, and what a lost answer means. Blocking and asyncio sessions
drive the same generator.

    begin, leases, seals, status …   asked again on a new connection: the first try did nothing that hurts
    commit                           asked again as a retry (T7): the first try may have been decided
    a retry of a commit is refused   OutcomeUnknown, whatever the error: it says nothing about the first try
    nobody answers for `retry_s`     Unavailable; for a commit that was sent: OutcomeUnknown
    why there is no TSO is known     said at once (no room in the store, a folder that is gone); of a commit that was
                                     sent it says nothing, so that is asked on
"""

from __future__ import annotations

import os
import platform
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final, TypeGuard, TypeVar

from pyomid.errors import Misuse, OmidError, OutcomeUnknown, StoreFull, Unavailable
from pyomid.types import BeginReply, CommitRequest
from pyomid.wire.messages import AdvanceHorizon, Answer, Refused, Request

PAUSE_S: Final = 0.02
"""Before a failed request is repeated; doubles up to `PAUSE_S_MAX`."""

PAUSE_S_MAX: Final = 1.0

LOOK_S: Final = 1.0
"""A TSO that owes an answer and sent nothing for so long: another one may lead. Looked at again as often."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """→ Answer, or `ConnectionBroken`, or what the client itself refuses: ask this on the present connection (a new
    one where there is none), for `timeout_s`."""

    request: Request
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """→ None, after `pause_s`."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class AskTime:
    """→ float, the clock."""


class ConnectionBroken(Unavailable):
    """No answer came. `sent` says whether the TSO may have seen the request; `reason` what kept it from being sent."""

    def __init__(self, message: str, *, sent: bool, reason: BaseException | None = None) -> None:
        super().__init__(message, sent=sent)
        self.sent = sent
        self.reason = reason


AskSteps = Generator["Attempt | Pause | AskTime", "Answer | float | None", Answer]

T = TypeVar("T")


def ask_steps(request: Request, *, request_s: float, retry_s: float) -> AskSteps:
    """The answer, `Refused` raised as its error."""
    deadline_s = _number((yield AskTime())) + retry_s
    pause_s = PAUSE_S
    while True:
        try:
            answer = yield Attempt(request, retry_s if is_long(request) else request_s)
        except ConnectionBroken as lost:
            request = _again(request, lost)
            if _is_plain(lost.reason) and not _may_be_decided(request):
                raise lost.reason from lost
            if _number((yield AskTime())) >= deadline_s:
                raise _given_up(request, lost, retry_s) from lost
            yield Pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            continue
        except OmidError as error:
            refused = _refused(request, error)
            if refused is error:
                raise
            raise refused from error
        if isinstance(answer, Refused):
            raise _refused(request, answer.as_error())
        assert answer is not None
        assert not isinstance(answer, float)
        return answer


def is_long(request: Request) -> bool:
    """Whether the work itself may take longer than one try's patience: many entries written or deleted."""
    return isinstance(request, AdvanceHorizon) or (isinstance(request, CommitRequest) and bool(request.branches))


def _again(request: Request, lost: ConnectionBroken) -> Request:
    """A commit that may have been decided is a retry from now on. `not_before` names a TSO that may be gone."""
    if isinstance(request, CommitRequest) and lost.sent:
        return replace(request, is_retry=True)
    return request


def _is_plain(reason: BaseException | None) -> TypeGuard[OmidError]:
    """Whether waiting for another TSO would be waiting for a person."""
    return isinstance(reason, OmidError) and (isinstance(reason, StoreFull) or not isinstance(reason, Unavailable))


def _may_be_decided(request: Request) -> bool:
    return isinstance(request, CommitRequest) and request.is_retry


def _refused(request: Request, error: OmidError) -> OmidError:
    if not _may_be_decided(request) or isinstance(error, OutcomeUnknown):
        return error
    assert isinstance(request, CommitRequest)
    return OutcomeUnknown(
        f"start_ts {request.start_ts}: the commit was sent, its answer was lost, and when it was asked for again "
        f"it was refused: {error.message}",
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


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def this_process() -> str:
    """What a person needs to find it: told to a TSO with each lease that is asked for."""
    return f"process {os.getpid()} on {platform.node()}"


def with_epoch(answer: BeginReply, newest_epoch: int) -> BeginReply:
    """T6: never an epoch older than that of any timestamp this client holds."""
    return answer if answer.epoch >= newest_epoch else replace(answer, epoch=newest_epoch)


def expected(answer: Answer, kind: type[T], request: Request) -> T:
    """`answer`, if it is the kind that the request is answered with."""
    if not isinstance(answer, kind):
        raise Misuse(f"the TSO answered {type(request).__name__} with {type(answer).__name__}")
    return answer
