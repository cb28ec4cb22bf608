"""Decide begins and commits in chunks of frames: one interface, `decide`, with two implementations.

    bytes of a peer ──► decide ──► answers to send now (begins, aborts)
                               ├─► entries and answers in the open batch (commits), sent when it is released
                               └─► where it stopped: `machine.handle` takes the frame there

Both read and write the same record, `state.TsoState`. `ReferenceOracle` defines the behaviour: it decides one request
at a time, by the functions that the machine calls too. `native.compiled_oracle` does the same in compiled code. Tests
run both over the same chunks and compare answers and state (`simulation.mirror`).

A common begin or commit reads and writes the numbers (`records.Numbers`), the window of the oldest batch, the conflict
map, the fence and last commit of its tables, and the entries and answers of the open batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle import begins, commits, large_commits
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.wire.codec import CommitPart, Handshake, ReceivedRequest, decode_answer, decode_request, encode_answer
from pyomid.omid.wire.frames import HEADER_BYTES, ProtocolError
from pyomid.omid.wire.messages import Begin, Request
from pyomid.types import TIMESTAMP_STEP, BeginReply, CommitReply, CommitRequest, WriteSetLevel


class Rare(Enum):
    RARE = auto()


RARE: Final = Rare.RARE
"""Marks a request that a chunk oracle does not decide; `TsoMachine.handle` takes it."""

DONE: Final = 0
"""Every complete frame was decided."""
RARE_FRAME: Final = 1
"""The chunk oracle stopped at the frame at `consumed`; pass that frame to `machine.handle`."""
FULL: Final = 2
"""No room is left for entries or answers: call `decide` again."""


@dataclass(slots=True)
class CommitReplies:
    """The encoded answers to one peer's commits (an `omid.oracle.instructions.EncodedReplies`)."""

    peer: Hashable
    data: bytes
    count: int
    extended: bool

    def without(self, refused: frozenset[int]) -> CommitReplies:
        """Return the same answers, with "aborted" for the refused starts. Decodes and re-encodes all answers; this is
        rare, so its speed does not matter."""
        frames: list[bytes] = []
        at = 0
        while at < len(self.data):
            end = at + HEADER_BYTES + int.from_bytes(self.data[at : at + HEADER_BYTES], "big")
            frame: bytes | None = self.data[at:end]
            answered = decode_answer(self.data[at + HEADER_BYTES : end])
            body = answered.body
            if isinstance(body, CommitReply) and (reply := commits.flushed_reply(body, refused)) is not body:
                frame = encode_answer(reply, request_id=answered.request_id, extended=self.extended)
            frames.append(frame or b"")
            at = end
        return CommitReplies(self.peer, b"".join(frames), self.count, self.extended)


@dataclass(slots=True)
class Decided:
    """The result of `decide`: where it stopped in the chunk, why it stopped there, and the answers to send now. The
    next call of `decide` overwrites it."""

    consumed: int
    status: int
    now: bytes
    committed: int
    """The number of further answers, which are sent when their batch is released."""


class ChunkOracle(ABC):
    """Decides chunks over the state of one TSO; the state is up to date after each chunk. Call it only while
    `machine.may_decide_fast` is true, and call `machine.handle` soon after, which flushes the commits."""

    @abstractmethod
    def decide(self, data: NDArray[np.uint8], begin: int, end: int, *, peer: Hashable, extended: bool) -> Decided:
        """Decide the frames of `data[begin:end]` in order, and stop at the first rare one."""

    def decode(self, payload: bytes) -> ReceivedRequest:
        """Decode and return one request that is too long for a chunk. Raises the errors of `decode_request`."""
        return decode_request(payload)


class ReferenceOracle(ChunkOracle):
    """Decides with the decoder of the wire protocol and the functions of `begins` and `commits`."""

    def __init__(self, tso: TsoState) -> None:
        self._tso = tso

    def decide(self, data: NDArray[np.uint8], begin: int, end: int, *, peer: Hashable, extended: bool) -> Decided:
        chunk, at, status = data[:end].tobytes(), begin, DONE
        answers: list[bytes] = []
        committed = 0
        while end - at >= HEADER_BYTES and status == DONE:
            stop = at + HEADER_BYTES + int.from_bytes(chunk[at : at + HEADER_BYTES], "big")
            if stop > end:
                break
            answer = self._decide_frame(chunk[at + HEADER_BYTES : stop], peer, extended)
            if answer is RARE:
                status = RARE_FRAME
                continue
            if isinstance(answer, CommitRequest):
                committed += 1
            elif answer is not None:
                answers.append(answer)
            at = stop
        return Decided(at, status, b"".join(answers), committed)

    def _decide_frame(self, payload: bytes, peer: Hashable, extended: bool) -> bytes | CommitRequest | Rare | None:
        """Return the answer to send now; a commit whose answer is sent with its batch; or None if there is no
        answer."""
        try:
            incoming = decode_request(payload)
        except ProtocolError:
            return RARE
        body, tag = incoming.body, incoming.request_id
        if isinstance(body, Handshake | CommitPart):
            return RARE
        answer = decide_common(self._tso, peer, tag, body)
        if answer is None:
            return body if isinstance(body, CommitRequest) else None
        return answer if answer is RARE else encode_answer(answer, request_id=tag, extended=extended)


def decide_common(tso: TsoState, peer: Hashable, tag: int, request: Request) -> BeginReply | CommitReply | Rare | None:
    """Decide one begin or commit and return its answer. None means that the answer is sent with its batch, or never.
    `RARE` means that nothing changed: the request has to wait, is refused with an error, or needs the store."""
    match request:
        case Begin(not_before):
            if tso.waiting_begins.are_ready or not 0 <= not_before <= tso.clock.last_issued:
                return RARE
            return begins.take(tso, peer, not_before) or RARE
        case CommitRequest():
            return RARE if _is_rare_commit(tso, request) else commits.decide(tso, peer, tag, request)
    return RARE


def _is_rare_commit(tso: TsoState, request: CommitRequest) -> bool:
    return (
        request.is_retry
        or request.is_large
        or request.level is not WriteSetLevel.IDS
        or len(request.cell_ids) > tso.settings.write_set_ids_max
        or commits.malformed(tso, request) is not None
        or large_commits.knows(tso, request.start_ts)
        or tso.oracle.low_watermark < request.start_ts < tso.oracle.reported.newest_ts
        or request.start_ts in tso.oracle.refused_starts
        or not tso.tables.decidable.issuperset(request.table_ids)
        or tso.clock.next_ts + TIMESTAMP_STEP > tso.clock.ceiling
    )
