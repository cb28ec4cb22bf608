"""The protocol without a connection: with pyomid's TSO by request id, with a Java TSO by Omid's own rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from pyomid.coroutines import Pause
from pyomid.errors import Misuse, OutcomeUnknown, Unavailable
from pyomid.omid.client.request_retry import Attempt, ConnectionBroken, WaitLog, ask_server
from pyomid.omid.wire.client_protocol import ClientProtocol
from pyomid.omid.wire.codec import Handshake, HandshakeReply, decode_request, encode_answer
from pyomid.omid.wire.frames import FrameCutter, FrameTooLong, ProtocolError
from pyomid.omid.wire.messages import Answer, Begin, Fence, FenceReply, GrantLease, Refused, Request, Seal
from pyomid.types import BeginReply, CommitReply, CommitRequest

pytestmark = pytest.mark.fast

OURS = HandshakeReply(True, extensions=1, epoch=50, frame_bytes_max=1000)
JAVA = HandshakeReply(True)


def after_handshake(reply: HandshakeReply) -> ClientProtocol:
    protocol = ClientProtocol(token=b"secret")
    [payload] = FrameCutter().feed(protocol.handshake())
    assert decode_request(payload).body == Handshake(1, b"secret")
    assert feed(protocol, [(0, reply)]) == []
    return protocol


def feed(protocol: ClientProtocol, answers: Iterable[tuple[int, Answer | HandshakeReply]]) -> list[tuple[int, Answer]]:
    """What the protocol makes of these answers, sent with these request ids."""
    data = b"".join(
        encode_answer(answer, request_id=request_id, extended=bool(request_id) or answer is OURS) or b""
        for request_id, answer in answers
    )
    return list(protocol.feed(data))


def test_answers_find_their_requests_by_id_in_any_order() -> None:
    protocol = after_handshake(OURS)
    first, second = protocol.ask(Begin())[0], protocol.ask(Begin())[0]
    late, early = BeginReply(200, 50), BeginReply(100, 50)
    assert feed(protocol, [(second, early), (first, late)]) == [(second, early), (first, late)]


def test_a_client_of_a_database_that_is_gone_is_told_so() -> None:
    """Its caches of commits, its epoch and its rules of tables are of the former one."""
    first = ClientProtocol()
    list(first.feed(encode_answer(replace(OURS, database_id=b"one")) or b""))
    again = ClientProtocol(database_id=first.database_id)
    list(again.feed(encode_answer(replace(OURS, database_id=b"one")) or b""))
    for silent in (JAVA, OURS):
        untold = ClientProtocol(database_id=again.database_id)
        list(untold.feed(encode_answer(silent) or b""))
        assert untold.database_id == b"one"
    with pytest.raises(Misuse, match=r"was dropped and created again.*connect again"):
        list(ClientProtocol(database_id=b"one").feed(encode_answer(replace(OURS, database_id=b"two")) or b""))


def test_a_java_tsos_answers_are_matched_as_java_matches_them() -> None:
    """interop.md: begins in order, commits by start, fences by table."""
    protocol = after_handshake(JAVA)
    assert not protocol.extended
    keys = [protocol.ask(each)[0] for each in (Begin(), CommitRequest(50), CommitRequest(100), Begin(), Fence(7))]
    answers = [
        (0, CommitReply(100, 300)),
        (0, BeginReply(400)),
        (0, FenceReply(7, 500)),
        (0, BeginReply(450)),
        (0, CommitReply(50, 350)),
    ]
    assert [key for key, _ in feed(protocol, answers)] == [keys[2], keys[0], keys[4], keys[3], keys[1]]
    assert feed(protocol, [(0, CommitReply(50, 350))]) == [], "an answer that nobody waits for"


@pytest.mark.parametrize("request_", [GrantLease(50), Seal((50,)), CommitRequest(50, branches=(100,))])
def test_a_java_tso_is_not_asked_what_it_cannot_know(request_: Request) -> None:
    with pytest.raises(Misuse, match="extensions"):
        after_handshake(JAVA).ask(request_)


def test_the_servers_frame_limit_is_kept() -> None:
    protocol = after_handshake(OURS)
    _, frames = protocol.ask(CommitRequest(50, tuple(range(1000))))
    assert len(list(FrameCutter(1000).feed(frames))) > 1
    with pytest.raises(FrameTooLong):
        protocol.ask(Seal(tuple(range(0, 1 << 20, 50))))


def test_a_refusal_that_answers_no_request_ends_the_conversation() -> None:
    protocol = after_handshake(OURS)
    refusal = encode_answer(Refused("OMID-PROTOCOL", "wrong token"))
    assert refusal is not None
    with pytest.raises(ProtocolError, match="wrong token"):
        list(protocol.feed(refusal))


def test_an_answer_before_the_handshake_is_a_protocol_error() -> None:
    data = encode_answer(BeginReply(50))
    assert data is not None
    with pytest.raises(ProtocolError):
        list(ClientProtocol().feed(data))


class Asked:
    """Drives `ask_server` by hand: answers, or `ConnectionBroken`, one a try; time goes by with each pause."""

    def __init__(self, request: Request, *outcomes: Answer | ConnectionBroken) -> None:
        self.tries: list[Request] = []
        self.paused_s = 0.0
        self._steps = ask_server(request, object, WaitLog(), lambda: self.paused_s, request_s=1.0, retry_s=10.0)
        self._outcomes = list(outcomes)

    def run(self) -> Answer:
        step = self._steps.send(None)
        while True:
            try:
                match step:
                    case Pause(pause_s):
                        self.paused_s += pause_s
                        step = self._steps.send(None)
                    case Attempt(request, _):
                        self.tries.append(request)
                        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
                        step = (
                            self._steps.throw(outcome)
                            if isinstance(outcome, ConnectionBroken)
                            else self._steps.send(outcome)
                        )
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


SENT, UNSENT = ConnectionBroken("no answer", sent=True), ConnectionBroken("no connection", sent=False)


def test_a_commit_that_may_have_been_decided_is_repeated_as_a_retry() -> None:
    asked = Asked(CommitRequest(50, (1,)), UNSENT, SENT, UNSENT, CommitReply(50, 100))
    assert asked.run() == CommitReply(50, 100)
    assert [r.is_retry for r in asked.tries] == [False, False, True, True]  # type: ignore[union-attr]


def test_a_commit_whose_answer_never_comes_is_unknown_and_one_never_sent_unavailable() -> None:
    with pytest.raises(OutcomeUnknown) as unknown:
        Asked(CommitRequest(50, (1,)), SENT).run()
    assert unknown.value.values == {"start_ts": 50}
    with pytest.raises(Unavailable):
        Asked(CommitRequest(50, (1,)), UNSENT).run()


def test_a_begin_is_simply_asked_again_and_given_up_in_time() -> None:
    assert Asked(Begin(), SENT, UNSENT, BeginReply(50)).run() == BeginReply(50)
    asked = Asked(Begin(), SENT)
    with pytest.raises(Unavailable):
        asked.run()
    assert 10.0 <= asked.paused_s < 12.0


def test_a_refusal_is_raised_as_the_error_it_names() -> None:
    with pytest.raises(Misuse, match="not so"):
        Asked(Begin(), Refused("OMID-MISUSE", "not so")).run()
