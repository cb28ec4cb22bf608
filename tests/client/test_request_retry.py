"""What a request without an answer ends with, and when."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

import pytest

from pyomid.coroutines import Pause
from pyomid.errors import Misuse, OmidError, OutcomeUnknown, StoreFull, Unavailable
from pyomid.omid.client.request_retry import Attempt, ConnectionBroken, WaitLog, ask_server
from pyomid.omid.wire.messages import AskStatus, Refused, Request
from pyomid.types import CommitRequest

pytestmark = pytest.mark.fast


def drive(
    request: Request, losses: Sequence[OmidError | Refused], retry_s: float = 60.0, wait_log: WaitLog | None = None
) -> int:
    """Each attempt is lost, or refused, as `losses` has it, the last one for ever; a second passes at each look.
    Returns how many were made."""
    clock = partial(next, count(1.0))
    steps = ask_server(request, object, wait_log or WaitLog(), clock, request_s=1.0, retry_s=retry_s)
    step, tries = steps.send(None), 0
    try:
        while True:
            match step:
                case Pause():
                    step = steps.send(None)
                case Attempt():
                    tries += 1
                    said = losses[min(tries, len(losses)) - 1]
                    step = steps.send(said) if isinstance(said, Refused) else steps.throw(said)
    except OmidError as error:
        error.values["tries"] = tries
        raise


def lost(reason: BaseException | None = None, *, sent: bool = False) -> ConnectionBroken:
    return ConnectionBroken(f"no TSO to talk to: {reason}", sent=sent, reason=reason)


@pytest.mark.parametrize("reason", [StoreFull("no room"), Misuse("no folder")])
@pytest.mark.parametrize("request_", [AskStatus(), CommitRequest(50, (1,))])
def test_a_known_reason_is_said_at_once(request_: Request, reason: OmidError) -> None:
    with pytest.raises(type(reason)) as raised:
        drive(request_, [lost(Unavailable("starting")), lost(reason)])
    assert raised.value.values["tries"] == 2


@pytest.mark.parametrize("reason", [StoreFull("no room"), Misuse("no folder")])
def test_a_known_reason_says_nothing_of_a_commit_that_was_sent(reason: OmidError) -> None:
    """It may have been decided: "nothing was committed" would be a guess."""
    with pytest.raises(OutcomeUnknown, match=reason.message):
        drive(CommitRequest(50, (1,)), [lost(sent=True), lost(reason)])


@pytest.mark.parametrize("reason", [None, Unavailable("busy"), ConnectionRefusedError()])
def test_what_may_pass_is_waited_for(reason: BaseException | None) -> None:
    with pytest.raises(Unavailable, match="no TSO served the request AskStatus") as raised:
        drive(AskStatus(), [lost(reason)])
    assert raised.value.values["tries"] > 10


@pytest.mark.parametrize("error", [Misuse("never handed out"), Unavailable("no room"), Misuse("the session is closed")])
def test_a_refused_retry_says_nothing_of_the_first_try(error: OmidError) -> None:
    """Told "not committed", the client would delete the cells of a commit that may stand (C3)."""
    for refusal in (Refused.of(error), error):
        with pytest.raises(OutcomeUnknown, match=error.message):
            drive(CommitRequest(50, (1,)), [lost(sent=True), refusal])
        with pytest.raises(type(error)):
            drive(CommitRequest(50, (1,)), [lost(), refusal])


def test_who_waits_for_a_tso_says_so_soon_and_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """A service never stands still for a minute without a word, and its requests do not all say the same."""
    wait_log = WaitLog()
    for _ in range(3):
        with pytest.raises(Unavailable):
            drive(AskStatus(), [lost(Unavailable("no TSO has announced itself"))], wait_log=wait_log)
    told = [record.getMessage() for record in caplog.records]
    assert (
        told[0]
        == "AskStatus has waited 2 s for a TSO and will wait up to 60 s: no TSO to talk to: no TSO has announced itself"
    )
    assert [text.split()[3] for text in told] == ["2", "10", "50"]
