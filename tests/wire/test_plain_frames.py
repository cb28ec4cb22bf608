"""Messages of compiled code are those of the protobuf runtime, and what it reads is what protobuf reads."""

from __future__ import annotations

import random

import pytest

from pyomid.errors import MisuseType
from pyomid.omid.wire import omid_pb2 as pb
from pyomid.omid.wire.codec import ReceivedAnswer, decode_answer, encode_answer, encode_request
from pyomid.omid.wire.frames import FRAME_BYTES_MAX, FrameCutter, ProtocolError
from pyomid.omid.wire.native import plain_frames
from pyomid.protocol.native import hashing
from pyomid.types import BeginReply, Column, CommitReply, CommitRequest, WriteSetLevel

pytestmark = pytest.mark.fast

INT64_MAX, INT64_MIN = (1 << 63) - 1, -1 << 63
EDGES = (0, 1, 50, 127, 128, 16383, 16384, 1 << 35, INT64_MAX, INT64_MIN, -1)


def number(rng: random.Random) -> int:
    return rng.choice(EDGES) if rng.random() < 0.5 else rng.getrandbits(63) - rng.getrandbits(63)


def protobuf_request(request: CommitRequest, request_id: int) -> bytes:
    message = pb.Request()
    message.commit_request.start_timestamp = request.start_ts
    message.commit_request.is_retry = request.is_retry
    message.commit_request.cell_id.extend(request.cell_ids)
    message.commit_request.table_id.extend(request.table_ids)
    if request_id:
        message.request_id = request_id
    return message.SerializeToString()


@pytest.mark.parametrize("seed", range(200))
def test_a_commit_is_written_as_protobuf_writes_it(seed: int) -> None:
    rng = random.Random(seed)
    request = CommitRequest(
        number(rng),
        tuple(number(rng) for _ in range(rng.choice((0, 1, 2, 40)))),
        tuple(number(rng) for _ in range(rng.choice((0, 1, 3)))),
        is_retry=rng.random() < 0.5,
    )
    request_id = rng.choice((0, 1, 127, 128, 1 << 40, (1 << 64) - 1))
    expected = protobuf_request(request, request_id)
    of = request.start_ts, request.is_retry, request.cell_ids, request.table_ids, request_id
    assert plain_frames.commit_request(*of) == expected
    assert encode_request(request, request_id=request_id).endswith(expected)


def test_what_protobuf_rejects_is_rejected() -> None:
    for request in (
        CommitRequest(1 << 63),
        CommitRequest(50, cell_ids=(1 << 63,)),
        CommitRequest(50, cell_ids=("x",)),  # type: ignore[arg-type]
        CommitRequest("50"),  # type: ignore[arg-type]
    ):
        with pytest.raises(MisuseType, match="cannot encode the request CommitRequest for the TSO"):
            encode_request(request)
    assert encode_request(CommitRequest(50, branches=(100,), level=WriteSetLevel.TABLE), request_id=1)


def by_protobuf(payload: bytes) -> ReceivedAnswer | None:
    """The answer that protobuf reads, of a begin or a commit that is not aborted; None for everything else."""
    message = pb.Response()
    try:
        message.ParseFromString(payload)
    except Exception:
        return None
    if message.HasField("timestamp_response"):
        begun = message.timestamp_response
        return ReceivedAnswer(
            message.request_id, BeginReply(begun.start_timestamp, begun.epoch, begun.fenced_timestamp)
        )
    if message.HasField("commit_response") and not message.commit_response.aborted:
        reply = message.commit_response
        return ReceivedAnswer(message.request_id, CommitReply(reply.start_timestamp, reply.commit_timestamp))
    return None


def damaged(rng: random.Random, payload: bytes) -> bytes:
    out = bytearray(payload)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        piece = rng.choice(
            (rng.randbytes(1), b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x0a", b"\x12", b"\x80\x04", b"\x01")
        )
        out[at : at + rng.choice((0, len(piece)))] = piece
    return bytes(out[: rng.randrange(len(out) + 1)] if rng.random() < 0.2 else out)


@pytest.mark.parametrize("seed", range(100))
def test_an_answer_is_read_as_protobuf_reads_it(seed: int) -> None:
    """Of hostile bytes too: a length that lies leads no further than the end."""
    rng, read = random.Random(seed), 0
    for _ in range(200):
        positive = abs(number(rng)) & INT64_MAX
        answer = rng.choice((BeginReply(positive, 50, rng.choice((0, 7))), CommitReply(positive, rng.choice((0, 160)))))
        encoded = encode_answer(answer, request_id=rng.choice((0, 1, 300)), extended=rng.random() < 0.9)
        assert encoded is not None
        [whole] = FrameCutter(FRAME_BYTES_MAX).feed(encoded)
        payload = damaged(rng, bytes(whole))
        found = plain_frames.plain_answer(payload)
        if found is None:
            continue
        read += 1
        kind, request_id, start_ts, second, third = found
        body = (
            BeginReply(start_ts, second, third) if kind == plain_frames.BEGIN_REPLY else CommitReply(start_ts, second)
        )
        assert by_protobuf(payload) == ReceivedAnswer(request_id, body), payload
        assert decode_answer(payload) == ReceivedAnswer(request_id, body)
    assert read > 5


@pytest.mark.parametrize("padding", range(9))
def test_a_padded_tag_or_length_is_read_as_protobuf_reads_it(padding: int) -> None:
    """Protobuf refuses tags and lengths of more than five bytes; numbers may have ten."""
    pieces = [b"\x0a", b"\x05", b"\x08", b"\x64", b"\x80\x04", b"\x32", b"\x80\x04", b"\x07"]
    for place, piece in enumerate(pieces):
        padded = piece[:-1] + bytes([piece[-1] | 0x80]) + b"\x80" * padding + b"\x00"
        parts = [*pieces[:place], padded, *pieces[place + 1 :]]
        parts[1] = parts[1].replace(b"\x05", bytes([sum(map(len, parts[2:6]))]))
        payload = b"".join(parts)
        expected = by_protobuf(payload)
        try:
            found = decode_answer(payload)
        except ProtocolError:
            found = None
        assert found == expected, payload


def test_an_answer_of_another_kind_is_left_to_protobuf() -> None:
    for payload in (
        b"",
        b"\x0a",
        b"\x0a\x05\x08",
        b"\x12\x02\x08\x01",
        b"\x12\x00",
        b"\x0a\x00",
        b"\x0a\x04\x08\x32\x08\x32",
    ):
        assert plain_frames.plain_answer(payload) is None
    with pytest.raises(ProtocolError):
        decode_answer(b"\x0a\xff")


@pytest.mark.parametrize("seed", range(30))
def test_ids_of_buffered_rows_are_those_of_their_names(seed: int) -> None:
    rng = random.Random(seed)
    columns = [Column(b"f", b"a"), Column(b"f", b"ab"), Column(b"fa", b"b")]
    keys = [rng.choice((b"", b"x")) + b"%d" % rng.randrange(20) for _ in range(9)]
    rows = {key: dict.fromkeys(rng.sample(columns, rng.randint(1, 3))) for key in keys}
    names = dict.fromkeys(row + c.family + c.qualifier for row, cells in rows.items() for c in cells)
    assert hashing.ids_of_rows(b"t", rows, True) == hashing.name_ids(b"t", names)
    assert hashing.ids_of_rows(b"t", rows, False) == hashing.name_ids(b"t", rows)
