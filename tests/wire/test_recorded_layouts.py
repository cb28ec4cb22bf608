"""Compiled code reads the common messages among the bytes that Apache Omid sent, and as protobuf reads them.

Random and damaged messages are compared in `test_plain_frames` (answers, and commits as a client writes them) and in
`tests/tso/test_kernel.py` (requests, and answers as the TSO writes them).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pyomid.omid.oracle.native.decide import BEGIN, COMMIT, RARE, parse_frame
from pyomid.omid.oracle.native.memory import Op
from pyomid.omid.wire import omid_pb2 as pb
from pyomid.omid.wire.native import plain_frames

pytestmark = pytest.mark.fast

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "java" / "wire.json").read_text(encoding="utf-8"))[
    "wire"
]
FRAMES = [(each["from"], bytes.fromhex(each["payload"])) for frames in RECORDED.values() for each in frames]
REQUESTS = [payload for side, payload in FRAMES if side == "client"]
ANSWERS = [payload for side, payload in FRAMES if side == "tso"]


def test_requests_that_java_sent() -> None:
    seen = set()
    for payload in REQUESTS:
        message = pb.Request.FromString(payload)
        ops = Op.array(1)
        cells, tables = (np.zeros(len(payload) + 1, dtype=np.int64) for _ in range(2))
        data = np.frombuffer(bytearray(payload), dtype=np.uint8)
        kind = parse_frame(data, 0, len(payload), ops, cells, tables)
        seen.add(kind)
        op = ops[0]
        begun, commit = message.timestamp_request, message.commit_request
        is_common_commit = message.HasField("commit_request") and not commit.is_retry
        expected = BEGIN if message.HasField("timestamp_request") else COMMIT if is_common_commit else RARE
        assert kind == expected, payload.hex()
        if kind == BEGIN:
            assert op["ts"] == begun.not_before
        if kind == COMMIT:
            assert op["ts"] == commit.start_timestamp
            assert cells[: op["cell_end"]].tolist() == list(commit.cell_id)
            assert tables[: op["table_end"]].tolist() == list(commit.table_id)
    assert seen == {BEGIN, COMMIT, RARE}, "the recording has all three"


def test_answers_that_java_sent() -> None:
    seen = set()
    for payload in ANSWERS:
        message, found = pb.Response.FromString(payload), plain_frames.plain_answer(payload)
        seen.add(found and found[0])
        if found is None:
            continue
        kind, request_id, start_ts, second, third = found
        assert request_id == message.request_id
        if kind == plain_frames.BEGIN_REPLY:
            begun = message.timestamp_response
            assert (start_ts, second, third) == (begun.start_timestamp, begun.epoch, begun.fenced_timestamp)
        else:
            reply = message.commit_response
            assert (start_ts, second, reply.aborted) == (reply.start_timestamp, reply.commit_timestamp, False)
    assert seen >= {plain_frames.COMMIT_REPLY, None}, "the recording has common answers and others"
