"""The wire: every message comes back as it was sent, Omid's field numbers are Omid's, strangers' bytes do no harm."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyomid.errors import Misuse, SnapshotTooOld
from pyomid.omid.wire import omid_pb2 as pb
from pyomid.omid.wire.codec import (
    CommitPart,
    Handshake,
    HandshakeReply,
    ReceivedAnswer,
    ReceivedRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_handshake,
    encode_request,
)
from pyomid.omid.wire.frames import FrameCutter, FrameTooLong, ProtocolError, frame
from pyomid.omid.wire.messages import (
    AdvanceHorizon,
    AskStatus,
    Begin,
    Done,
    EndLease,
    Fence,
    FenceReply,
    GrantLease,
    HorizonReply,
    LeaseReply,
    Refused,
    RenewLease,
    Request,
    Seal,
    SealReply,
)
from pyomid.types import (
    AbortReason,
    BeginReply,
    CommitReply,
    CommitRequest,
    SealOutcome,
    Status,
    WriteSetLevel,
)

pytestmark = pytest.mark.fast

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.lists(int64, max_size=5).map(tuple)
commits = st.builds(CommitRequest, int64, ids, ids, ids, st.sampled_from(list(WriteSetLevel)), st.booleans())
requests = st.one_of(
    st.builds(Begin, int64),
    commits,
    st.builds(Fence, int64),
    st.builds(GrantLease, int64, st.floats(0, 1e6), st.text(max_size=50), st.booleans()),
    st.builds(RenewLease, int64),
    st.builds(EndLease, int64, st.booleans()),
    st.builds(Seal, ids),
    st.builds(AdvanceHorizon, int64),
    st.just(AskStatus()),
)
outcomes = st.one_of(st.just(SealOutcome(True)), st.integers(0, (1 << 63) - 1).map(lambda c: SealOutcome(False, c)))
answers = st.one_of(
    st.builds(BeginReply, int64, int64),
    st.builds(CommitReply, int64, st.integers(1, (1 << 63) - 1)),
    st.builds(CommitReply, int64, st.just(0), st.sampled_from(list(AbortReason)), int64),
    st.builds(FenceReply, int64, int64),
    st.builds(LeaseReply, int64, st.floats(0, 1e6)),
    st.builds(SealReply, st.lists(outcomes, max_size=4).map(tuple)),
    st.builds(HorizonReply, int64),
    st.just(Done()),
    st.builds(Refused, st.just("OMID-MISUSE"), st.text(), st.dictionaries(st.text(), int64, max_size=3)),
    st.builds(Status, int64, int64, int64, int64, int64, ids, ids, int64, st.dictionaries(st.text(), int64)),
)
request_ids = st.integers(0, (1 << 64) - 1)


def one_payload(frames: bytes) -> bytes:
    [payload] = FrameCutter().feed(frames)
    return payload


@given(requests, request_ids)
@example(CommitRequest(50, (-(1 << 63),), (-1,)), 1)
def test_a_request_comes_back_as_it_was_sent(request: Request, request_id: int) -> None:
    assert decode_request(one_payload(encode_request(request, request_id=request_id))) == ReceivedRequest(
        request_id, request
    )


@given(request_ids)
def test_a_plain_begin_has_the_bytes_of_protobuf(request_id: int) -> None:
    message = pb.Request(timestamp_request=pb.TimestampRequest())
    if request_id:
        message.request_id = request_id
    assert encode_request(Begin(), request_id=request_id) == frame(message.SerializeToString())


@given(answers, request_ids)
def test_an_answer_comes_back_as_it_was_sent(answer: object, request_id: int) -> None:
    frames = encode_answer(answer, request_id=request_id)  # type: ignore[arg-type]
    assert frames is not None
    assert decode_answer(one_payload(frames)) == ReceivedAnswer(request_id, answer)  # type: ignore[arg-type]


def test_an_error_crosses_the_wire_as_the_same_error() -> None:
    frames = encode_answer(Refused.of(SnapshotTooOld("start_ts 50 is too old", start_ts=50)))
    assert frames is not None
    refused = decode_answer(one_payload(frames)).body
    assert isinstance(refused, Refused)
    error = refused.as_error()
    assert type(error) is SnapshotTooOld
    assert (error.message, error.values) == ("start_ts 50 is too old", {"start_ts": 50})


@given(st.lists(st.binary(max_size=50), max_size=6), st.data())
def test_frames_are_found_however_the_stream_is_cut(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, payloads))
    cutter, found, at = FrameCutter(), [], 0
    while at < len(stream):
        end = data.draw(st.integers(at + 1, len(stream)))
        found += list(cutter.feed(stream[at:end]))
        at = end
    assert found == payloads
    assert cutter.unfinished_bytes == 0


def test_a_frame_over_the_limit_is_refused_at_its_header_and_the_frames_before_it_are_kept() -> None:
    cutter = FrameCutter(100)
    frames = cutter.feed(frame(b"x" * 100) + (101).to_bytes(4, "big"))
    assert next(frames) == b"x" * 100
    with pytest.raises(FrameTooLong, match=r"101.*100.*commit smaller transactions"):
        next(frames)


@given(commits, st.integers(200, 2000), request_ids)
def test_a_long_commit_goes_in_parts_none_over_the_limit(request: CommitRequest, limit: int, request_id: int) -> None:
    many = CommitRequest(
        request.start_ts,
        request.cell_ids * 50,
        request.table_ids,
        request.branches * 50,
        request.level,
        request.is_retry,
    )
    payloads = list(FrameCutter(limit).feed(encode_request(many, request_id=request_id, frame_bytes_max=limit)))
    *parts, last = [decode_request(payload) for payload in payloads]
    assert isinstance(last.body, CommitRequest)
    assert last.request_id == request_id
    cells, branches = [], []
    for part in parts:
        assert isinstance(part.body, CommitPart)
        assert part.body.start_ts == request.start_ts
        cells += part.body.cell_ids
        branches += part.body.branches
    assert (*cells, *last.body.cell_ids) == many.cell_ids
    assert (*branches, *last.body.branches) == many.branches


@pytest.mark.parametrize(
    ("request_", "payload"),
    [
        (Begin(), "0a00"),
        (CommitRequest(50, (-2,), (7,)), "1213 0832 1000 1a0a feffffffffffffffff01 2201 07"),
        (Fence(7), "2202 0807"),
    ],
)
def test_what_java_knows_has_omids_numbers(request_: Request, payload: str) -> None:
    """interop.md, Wire: requests 1, 2, 4; start 1, isRetry 2, cellId 3, tableId 4."""
    assert one_payload(encode_request(request_, extended=False)) == bytes.fromhex(payload)


def test_the_handshake_has_omids_numbers_and_announces_the_extensions() -> None:
    assert one_payload(encode_handshake(Handshake())) == bytes.fromhex("1a02 0a00")
    assert decode_request(bytes.fromhex("1a020a00")).body == Handshake()
    assert decode_request(bytes.fromhex("1a00")).body == Handshake(compatible=False)
    own = Handshake(1, b"secret", 60.0)
    assert decode_request(one_payload(encode_handshake(own))).body == own


def test_nothing_from_64_up_is_sent_to_a_peer_that_did_not_announce_it() -> None:
    for answer in (BeginReply(50, 7), CommitReply(50, 0, AbortReason.FENCE, 9), CommitReply(50, 100), FenceReply(1, 2)):
        frames = encode_answer(answer, request_id=9, extended=False)
        assert frames is not None
        message = pb.Response.FromString(one_payload(frames))
        assert all(field.number < 64 for field, _ in message.ListFields())
        [(_, inner)] = message.ListFields()
        assert all(field.number < 64 for field, _ in inner.ListFields())
    assert encode_answer(Done(), extended=False) is None


def test_java_is_answered_aborted_where_pyomid_is_told_the_error() -> None:
    frames = encode_answer(Refused.of(Misuse("no start", start_ts=57)), extended=False)
    assert frames is not None
    reply = decode_answer(one_payload(frames)).body
    assert isinstance(reply, CommitReply)
    assert (reply.start_ts, reply.committed) == (57, False)


@pytest.mark.parametrize("request_", [GrantLease(50), Seal((50,)), CommitRequest(50, branches=(100,)), AskStatus()])
def test_what_a_java_tso_cannot_know_is_refused_before_it_is_sent(request_: Request) -> None:
    with pytest.raises(Misuse, match="extensions"):
        encode_request(request_, extended=False)


@pytest.mark.parametrize("number", [1 << 63, "7", 1.5])
def test_what_no_frame_has_room_for_is_refused_before_it_is_sent(number: int) -> None:
    """As the caller's mistake: a connection that is taken for broken is lost to all threads, and tried for a minute."""
    with pytest.raises(Misuse, match="cannot encode the request Begin for the TSO"):
        encode_request(Begin(number), request_id=1)


def test_ids_may_come_unpacked_fields_in_any_order_and_unknown_ones_among_them() -> None:
    unpacked = b"".join(b"\x18" + n for n in (b"\x05", b"\xff" * 9 + b"\x01"))
    inner = (
        b"\x20\x07" + unpacked + b"\xf8\x06\x01" + b"\x08\x32" + b"\x10\x01"
    )  # tableId, cellId, field 111, start, retry
    assert decode_request(b"\x12" + bytes([len(inner)]) + inner).body == CommitRequest(50, (5, -1), (7,), is_retry=True)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0a\x00\x12\x00",  # two requests in one message
        b"\xfa\x07\x00",  # an unknown kind
        b"\x12\x05\x08",  # truncated
        b"\x12\x0c\x08" + b"\xff" * 11,  # a varint of eleven bytes
        b"\x12\x03\x88\x04\x09",  # level 9
    ],
)
def test_a_frame_that_is_no_request_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(payload)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_protocol_error(payload: bytes) -> None:
    for decode in (decode_request, decode_answer):
        try:
            decode(payload)
        except ProtocolError:
            continue


def test_a_handshakes_answer_says_what_the_tso_speaks() -> None:
    own = HandshakeReply(True, extensions=1, epoch=50, frame_bytes_max=1000, write_set_ids_max=262_144)
    frames = encode_answer(own)
    assert frames is not None
    assert decode_answer(one_payload(frames)).body == own
    plain = encode_answer(own, extended=False)
    assert plain is not None
    assert decode_answer(one_payload(plain)).body == HandshakeReply(True)
