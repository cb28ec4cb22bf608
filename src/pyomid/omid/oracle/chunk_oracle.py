"""Decide begins and commits in chunks of frames: one interface, `decide`, with two implementations.

    bytes of a peer ──► decide ──► answers to send now (begins, aborts)
                               ├─► entries and answers in the open batch (commits), sent when it is released
                               └─► where it stopped: `machine.handle` takes the frame there

`ReferenceOracle` defines the behaviour: one request at a time, by the machine's own methods. `native.compiled_oracle`
does the same in compiled code. Tests run both over the same chunks and compare answers and state
(`simulation.mirror`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle.commits import flushed_reply
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.wire.codec import CommitPart, Handshake, ReceivedRequest, decode_answer, decode_request, encode_answer
from pyomid.omid.wire.frames import HEADER_BYTES, ProtocolError
from pyomid.omid.wire.messages import Begin, Request
from pyomid.types import TIMESTAMP_STEP, BeginReply, CommitReply, CommitRequest, WriteSetLevel


class Rare(Enum):
    RARE = auto()


RARE: Final = Rare.RARE
"""A request that a chunk oracle does not decide: `TsoMachine.handle` takes it."""

DONE: Final = 0
"""Every complete frame was decided."""
RARE_FRAME: Final = 1
"""The frame at `consumed` is for `machine.handle`."""
FULL: Final = 2
"""No room is left for entries or answers: call again."""


@dataclass(slots=True)
class CommitReplies:
    """`omid.oracle.instructions.EncodedReplies` of one peer."""

    peer: Hashable
    data: bytes
    count: int
    extended: bool

    def without(self, refused: frozenset[int]) -> CommitReplies:
        """See `EncodedReplies`. Decodes and re-encodes; rare, so its speed does not matter."""
        frames: list[bytes] = []
        at = 0
        while at < len(self.data):
            end = at + HEADER_BYTES + int.from_bytes(self.data[at : at + HEADER_BYTES], "big")
            frame: bytes | None = self.data[at:end]
            answered = decode_answer(self.data[at + HEADER_BYTES : end])
            body = answered.body
            if isinstance(body, CommitReply) and (reply := flushed_reply(body, refused)) is not body:
                frame = encode_answer(reply, request_id=answered.request_id, extended=self.extended)
            frames.append(frame or b"")
            at = end
        return CommitReplies(self.peer, b"".join(frames), self.count, self.extended)


@dataclass(slots=True)
class Decided:
    """The result for a chunk: how far it was decided, why no further, and the answers to send now. The next call
    overwrites it."""

    consumed: int
    status: int
    now: bytes
    committed: int
    """The number of further answers, sent when their batch is released."""


class ChunkOracle(ABC):
    """Decides chunks for one machine, which keeps time and every other rule. Call only while
    `machine.may_decide_fast`."""

    def decide(self, data: NDArray[np.uint8], begin: int, end: int, *, peer: Hashable, extended: bool) -> Decided:
        """Decide the frames of `data[begin:end]`, up to the first that is rare."""
        decided = self.decide_more(data, begin, end, peer, extended)
        self.give_back()
        return decided

    @abstractmethod
    def decide_more(self, data: NDArray[np.uint8], begin: int, end: int, peer: Hashable, extended: bool) -> Decided:
        """As `decide`, but use the machine only after `give_back`."""

    @abstractmethod
    def give_back(self) -> None:
        """Bring the machine up to date with all decisions. Call before each of its steps."""

    @abstractmethod
    def fold_counters(self) -> None:
        """Add the oracle's counters to the machine's."""

    def decode(self, payload: bytes) -> ReceivedRequest:
        """Return one request that is too long for a chunk. Raises as `decode_request`."""
        return decode_request(payload)


class ReferenceOracle(ChunkOracle):
    """Decides with the decoder and the machine's own methods."""

    def __init__(self, machine: TsoMachine) -> None:
        self._machine = machine

    def decide_more(self, data: NDArray[np.uint8], begin: int, end: int, peer: Hashable, extended: bool) -> Decided:
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
        """Return the answer, or a commit whose answer is sent with its batch, or None if there is no answer."""
        try:
            incoming = decode_request(payload)
        except ProtocolError:
            return RARE
        body, tag = incoming.body, incoming.request_id
        if isinstance(body, Handshake | CommitPart):
            return RARE
        answer = self._decide(peer, tag, body)
        if answer is None:
            return body if isinstance(body, CommitRequest) else None
        return answer if answer is RARE else encode_answer(answer, request_id=tag, extended=extended)

    def _decide(self, peer: Hashable, tag: int, request: Request) -> BeginReply | CommitReply | Rare | None:
        """Return the answer to one request; None if it is sent with its batch, or never. RARE changes nothing: the
        request has to wait, is refused with an error, or needs the store."""
        machine = self._machine
        match request:
            case Begin(not_before):
                if machine.begins.waiting.are_ready or not 0 <= not_before <= machine.clock.last_issued:
                    return RARE
                return machine.begins.take(peer, not_before) or RARE
            case CommitRequest():
                return RARE if self._is_rare_commit(request) else machine.commits.decide(peer, tag, request)
        return RARE

    def _is_rare_commit(self, request: CommitRequest) -> bool:
        machine = self._machine
        return (
            request.is_retry
            or request.is_large
            or request.level is not WriteSetLevel.IDS
            or len(request.cell_ids) > machine.settings.write_set_ids_max
            or machine.commits.malformed(request) is not None
            or machine.large.knows(request.start_ts)
            or machine.oracle.low_watermark < request.start_ts < machine.oracle.reported.newest_ts
            or request.start_ts in machine.oracle.refused_starts
            or not machine.tables.decidable.issuperset(request.table_ids)
            or machine.clock.next_ts + TIMESTAMP_STEP > machine.clock.ceiling
        )

    def give_back(self) -> None:
        """Nothing to do: this oracle works on the machine itself."""

    def fold_counters(self) -> None:
        """Nothing to do: the counters are the machine's."""
