"""RPC frames: any division of the stream gives the frames that were sent; malformed ones raise `Corruption`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyomid.errors import Corruption
from pyomid.omid.hbase.rpc.failures import Reaction, RemoteFailure
from pyomid.omid.hbase.rpc.frames import (
    CLIENT,
    Call,
    FrameAssembler,
    decode_reply,
    encode_call,
    preamble,
    read_varint,
)
from pyomid.omid.hbase.rpc.hbase_pb2 import ConnectionHeader, RequestHeader, ResponseHeader
from pyomid.omid.wire.frames import varint


def reply_frame(call_id: int, message: bytes = b"", cells: bytes = b"", failure: str = "") -> bytes:
    header = ResponseHeader(call_id=call_id)
    if cells:
        header.cell_block_meta.length = len(cells)
    if failure:
        header.exception.exception_class_name = failure
        header.exception.stack_trace = f"{failure}: why\n\tat somewhere"
    encoded = header.SerializeToString()
    body = varint(len(encoded)) + encoded + (b"" if failure else varint(len(message)) + message) + cells
    return len(body).to_bytes(4, "big") + body


@given(
    st.lists(
        st.integers(0, 200_000).flatmap(lambda size: st.tuples(st.just(size), st.binary(max_size=40))), max_size=6
    ),
    st.integers(1, 70_000),
)
def test_frames_survive_any_division_of_the_stream(replies: list[tuple[int, bytes]], chunk: int) -> None:
    frames = [reply_frame(index, message, bytes(size)) for index, (size, message) in enumerate(replies)]
    stream, position = b"".join(frames), 0
    assembler = FrameAssembler()
    found = []
    while position < len(stream):
        space = assembler.space()
        count = min(len(space), chunk, len(stream) - position)
        assert count > 0
        space[:count] = stream[position : position + count]
        position += count
        found += [bytes(frame) for frame in assembler.filled(count)]
    assert found == [frame[4:] for frame in frames]


def test_a_reply_has_its_message_and_cells() -> None:
    reply = decode_reply(memoryview(bytearray(reply_frame(7, b"message", b"cells")[4:])))
    assert (reply.call_id, bytes(reply.message), bytes(reply.cells), reply.failure) == (7, b"message", b"cells", None)


def test_a_remote_exception_keeps_its_class_and_its_first_line() -> None:
    name = "org.apache.hadoop.hbase.NotServingRegionException"
    failure = decode_reply(memoryview(reply_frame(7, failure=name)[4:])).failure
    assert failure is not None
    assert (failure.class_name, failure.message, failure.reaction) == (name, "why", Reaction.LOCATE)


@pytest.mark.parametrize(
    ("name", "do_not_retry", "reaction"),
    [
        ("org.apache.hadoop.hbase.RegionTooBusyException", False, Reaction.WAIT),
        ("org.apache.hadoop.hbase.UnknownScannerException", True, Reaction.REOPEN),
        ("org.apache.hadoop.hbase.exceptions.RegionMovedException", False, Reaction.LOCATE),
        ("org.apache.hadoop.hbase.DoNotRetryIOException", False, Reaction.FAIL),
        ("java.io.IOException", False, Reaction.WAIT),
        ("java.lang.Anything", True, Reaction.FAIL),
    ],
)
def test_each_failure_has_its_reaction(name: str, do_not_retry: bool, reaction: Reaction) -> None:
    assert RemoteFailure(name, "", do_not_retry=do_not_retry).reaction is reaction


@pytest.mark.parametrize("size", [5, 1 << 20])
def test_a_call_is_length_header_parameter_and_cells(size: int) -> None:
    """In one piece where that is small: who writes it can be stopped before it or behind it, not in between."""
    block = b"c" * size
    head, cells = encode_call(5, Call(CLIENT, "Multi", b"parameter", memoryview(block)), 1000)
    assert bool(cells) == (size > 5)
    frame = head + bytes(cells)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    length, position = read_varint(frame, 4)
    header = RequestHeader.FromString(frame[position : position + length])
    assert (header.call_id, header.method_name, header.cell_block_meta.length) == (5, "Multi", size)
    assert frame[position + length :] == varint(9) + b"parameter" + block


def test_the_preamble_names_user_and_service() -> None:
    sent = preamble("ClientService", "someone")
    assert sent[:6] == b"HBas\x00\x50"
    header = ConnectionHeader.FromString(sent[10:])
    assert int.from_bytes(sent[6:10], "big") == len(sent) - 10
    assert (header.service_name, header.user_info.effective_user) == ("ClientService", "someone")


def test_a_frame_over_the_limit_is_refused() -> None:
    assembler = FrameAssembler()
    assembler.space()[:4] = b"\xff\xff\xff\xff"
    with pytest.raises(Corruption, match="exceeds the maximum"):
        list(assembler.filled(4))


@given(st.integers(0, (1 << 64) - 1))
def test_varints_round_trip(value: int) -> None:
    assert read_varint(varint(value), 0) == (value, len(varint(value)))
