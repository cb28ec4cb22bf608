"""One peer of the service: splits the peer's bytes into requests and writes its replies. A peer's error ends only its
own connection.

    received bytes ─┬─► the chunk oracle (compiled) decides ordinary begins and commits: the fast path
                    └─► all other frames are decoded one by one and fed to the machine: the slow path

Limits per peer: frame size, unanswered requests (reading pauses), unread replies (the peer is cut off), time until the
handshake, time until a partial frame is complete, even if bytes keep arriving (slow-loris), time without a request. The
service limits the memory of all peers together.

Fair shares: a request on the slow path costs a thousand times as much as one on the fast path. So a peer may use one
quantum of slow-path work per turn. Its other bytes wait here, undecoded, until its next turn (decision 0040). A request
that exceeds a quantum, because it has many ids, is performed at once; then its peer skips turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Unavailable
from pyomid.omid.oracle.chunk_oracle import DONE, RARE_FRAME, ChunkOracle
from pyomid.omid.oracle.instructions import EncodedReplies, Event, RequestCame
from pyomid.omid.wire.codec import (
    EXTENSIONS_VERSION,
    CommitPart,
    Handshake,
    HandshakeReply,
    decode_request,
    encode_answer,
)
from pyomid.omid.wire.frames import FRAME_BYTES_MAX, HEADER_BYTES, FrameCutter, FrameTooLong, ProtocolError
from pyomid.omid.wire.messages import Answer, AskStatus, Refused, Seal, is_answered
from pyomid.types import CommitRequest

if TYPE_CHECKING:
    from pyomid.omid.tso.service import TsoService


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """The limits that apply to one peer."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_outstanding_max: int = 65_536
    """At more unanswered requests the service stops reading from this peer until it has answered half of them."""
    unread_bytes_max: int = 64 << 20
    """The most bytes of replies that the peer has not read. A peer over this limit is cut off."""
    parts_bytes_max: int = 256 << 20
    """The most memory for the ids of commits that arrive in several frames and are not yet complete."""
    handshake_s_max: float = 10.0
    frame_s_max: float = 30.0
    """How long a partial frame may wait for its rest."""
    idle_s_max: float = float("inf")
    """How long a peer that waits for no reply may be silent."""
    keepalive_s: float = 60.0
    """A vanished peer, which did not close its connection, is detected after about this time."""


QUANTUM: Final = 32
"""The work of one turn, counted in requests on the slow path: about a millisecond."""

WORK_BYTES: Final = 256
"""Each further such number of bytes in a request (some thirty ids) counts as one more request."""

STATUS_WORK: Final = 8
"""A status request counts as this many additional requests."""

SEALS_WORK: Final = 8
"""Each such number of starts to seal counts as one more request."""

LONG_BYTES: Final = 64 << 10
"""On the slow path, compiled code parses requests longer than this, because their frames may be too long for a
chunk."""

SLOW_OUTSTANDING_MAX: Final = 256
"""The most unanswered slow-path requests of one peer (begins without a window, fences, seals, …). At this number the
service stops reading from the peer. The replies cost as much as the requests, and all may be due at once."""

HANDSHAKE_BYTES_MAX: Final = 16 << 10
"""The longest first frame, which has capabilities and a token. A longer one is refused before it is buffered."""


class Connection(asyncio.BufferedProtocol):
    """The connection of one peer. It receives into the service's buffer, and keeps a partial frame between two
    chunks."""

    def __init__(self, service: TsoService, limits: PeerLimits, address: str = "unix") -> None:
        self._service = service
        self._limits = limits
        self.address = address
        self.connecting: asyncio.Task[None] | None = None
        """The task of the TLS handshake, until the connection has a transport."""
        self.is_connected = False
        self._cutter = FrameCutter(min(HANDSHAKE_BYTES_MAX, limits.frame_bytes_max))
        self._tail = b""
        """The partial frame that ended the last chunk on the fast path."""
        self._transport: asyncio.Transport | None = None
        self._replies: list[bytes] = []
        """Encoded replies of this loop step. They leave at its end in one write."""
        self._parts = CommitParts(limits.parts_bytes_max)
        self._outstanding = 0
        self._slow_outstanding = 0
        """The number of unanswered requests that took the slow path."""
        self._spent = 0
        """Slow-path work since the last turn. If it exceeds a quantum, the peer skips turns."""
        self._slow_frames = 1
        """How many frames take the slow path in one step once one frame must. It doubles while slow frames follow each
        other."""
        self._unread = b""
        """The bytes of a chunk that the last turn left for the next one."""
        self._is_cut_short = False
        """Whether the cutter holds whole frames that wait for the next turn."""
        self._is_in_turn = False
        """Whether the connection is in the service's queue of turns."""
        self._paused = False
        self._has_handshake = False
        self._may_use_native = False
        """Whether the next bytes may take the fast path, because the slow path holds no earlier bytes."""
        self._is_ending = False
        self._since_s = self._heard_s = service.now_s()
        """`_since_s`: when the peer began to owe its handshake or the rest of a frame. `_heard_s`: when its last bytes
        arrived."""
        self.extended = False
        self.name = "?"

    # ── called by asyncio ────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_connected = True
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.unread_bytes_max)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock, self._limits.keepalive_s)
        self.name = str(transport.get_extra_info("peername") or "unix")
        if self._is_ending:
            self._transport.abort()

    def failed_to_connect(self) -> None:
        """End the connection after its TLS handshake failed or took too long."""
        self._is_ending = True
        self._service.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        tail = self._tail
        view = self._service.receive.view
        if not tail:
            return view
        view[: len(tail)] = tail
        return view[len(tail) :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._heard_s = self._service.machine.step.now_s
            self._spent = 0
            end = len(self._tail) + nbytes
            self._take(end)
            self._pause_if_due()
            if end == self._service.receive.bytes_max and not self._is_ending:
                self._yield_to_others()
        except Exception as error:
            self._service.fail(error)

    def _yield_to_others(self) -> None:
        """Wait for a turn after a chunk that filled the buffer. Otherwise libuv would receive up to 32 such chunks
        before it reads from other peers."""
        self.stop_reading()
        self._wait_for_turn()

    def _take(self, end: int) -> None:
        """Process the first `end` bytes of the receive buffer, as far as this turn allows."""
        service, begin = self._service, 0
        if self._may_use_native and service.chunk_oracle is not None:
            begin = self._decide(service.chunk_oracle, end)
        else:
            self._tail = b""
        if begin < end:
            self._decode_requests(bytes(service.receive.view[begin:end]))

    def _decide(self, oracle: ChunkOracle, end: int) -> int:
        """Let the chunk oracle decide frames. Frames that it does not decide take the slow path here. Return the
        position of the first byte that is left for the slow path alone; `end` if no byte is left."""
        service, begin = self._service, 0
        is_continued = bool(self._tail)
        self._tail = b""
        while begin < end and self._may_use_native and service.may_use_oracle():
            decided = oracle.decide(service.receive.array, begin, end, peer=self, extended=self.extended)
            self._slow_frames = 1 if decided.consumed > begin else min(2 * self._slow_frames, QUANTUM)
            begin = decided.consumed
            self._outstanding += decided.committed
            if decided.now:
                self._add_reply(decided.now)
            service.finish_step_soon()
            if decided.status == DONE:
                return end if begin == end else self._keep_tail(begin, end, is_older=is_continued and begin == 0)
            if decided.status == RARE_FRAME:
                if self._is_spent:
                    self._unread = bytes(service.receive.view[begin:end])
                    return end
                stop = self._end_of_slow_frames(begin, end)
                self._decode_requests(bytes(service.receive.view[begin:stop]))
                begin = stop
                if self._is_ending:
                    return end
        return begin

    def _end_of_slow_frames(self, begin: int, end: int) -> int:
        """Return the end of the rare frame at `begin` and of up to `_slow_frames` - 1 whole frames after it. One
        machine step for all of them costs little more than for one."""
        receive, count = self._service.receive, max(1, min(self._slow_frames, QUANTUM - self._spent))
        stop = begin + HEADER_BYTES + receive.frame_bytes(begin)
        while count > 1 and end - stop >= HEADER_BYTES:
            following = stop + HEADER_BYTES + receive.frame_bytes(stop)
            if following > end:
                break
            stop = following
            count -= 1
        return stop

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_spent(self) -> bool:
        return self._spent >= QUANTUM or self._slow_outstanding >= SLOW_OUTSTANDING_MAX

    @property
    def _has_unread(self) -> bool:
        """Whether received bytes wait for this peer's next turn."""
        return bool(self._unread) or self._is_cut_short

    def _pause_if_due(self) -> None:
        """Stop reading if received bytes wait for a turn, the work exceeds the quantum, or too many replies are
        outstanding."""
        if self._is_ending:
            return
        if self._has_unread or self._spent >= QUANTUM:
            self.stop_reading()
            self._wait_for_turn()
        elif self._awaits_too_much:
            self.stop_reading()

    @property
    def _awaits_too_much(self) -> bool:
        """Whether the service must answer this peer before it reads more from it."""
        return (
            self._outstanding > self._limits.requests_outstanding_max or self._slow_outstanding >= SLOW_OUTSTANDING_MAX
        )

    def _wait_for_turn(self) -> None:
        if not self._is_in_turn and not self._is_ending and self._slow_outstanding < SLOW_OUTSTANDING_MAX:
            self._is_in_turn = True
            self._service.wait_for_turn(self)

    @property
    def owes_work(self) -> bool:
        """Whether the peer must skip its next turn because of the work of earlier turns."""
        return self._spent >= 2 * QUANTUM

    def take_turn(self) -> bool:
        """Continue where the last turn ended. Return whether the peer needs another turn."""
        self._spent = max(0, self._spent - QUANTUM)
        if self._transport is None or self._is_ending or self._slow_outstanding >= SLOW_OUTSTANDING_MAX:
            self._is_in_turn = False  # a peer with too many unanswered requests continues after their replies
            return False
        if self._spent < QUANTUM and self._has_unread:
            self._continue()
        self._is_in_turn = (
            self._has_unread or self._spent >= QUANTUM
        ) and self._slow_outstanding < SLOW_OUTSTANDING_MAX
        if not self._is_in_turn:
            self._resume_if_drained()
        return self._is_in_turn

    def _continue(self) -> None:
        if self._unread:
            unread, self._unread = self._unread, b""
            self._service.receive.view[: len(unread)] = unread
            self._take(len(unread))
        else:
            self._decode_requests(b"")
        if not self._has_unread:
            self._since_s = self._service.now_s()  # until now the service was late, not the peer

    def _add_reply(self, data: bytes) -> None:
        if not self._replies:
            self._service.peers_with_replies.append(self)
        self._replies.append(data)

    def _keep_tail(self, begin: int, end: int, *, is_older: bool) -> int:
        """Keep a partial frame until its rest arrives, and return `end`. A frame that is too long for the buffer is not
        kept; then return `begin`, so that the slow path collects or refuses it.

        `is_older` means that the frame began in an earlier chunk, so that this chunk does not extend its time.
        """
        receive = self._service.receive
        longest = min(receive.bytes_max // 2, self._limits.frame_bytes_max)
        if end - begin >= HEADER_BYTES and receive.frame_bytes(begin) > longest:
            return begin
        self._tail = bytes(receive.view[begin:end])
        if self._tail and not is_older:
            self._since_s = self._service.now_s()
        return end

    # ── the slow path ────────────────────────────────────────────────────────────────────────────────────────────

    def _decode_requests(self, data: bytes) -> None:
        """Decode requests one by one and feed them to the machine. Bytes left in the cutter come before all later
        ones."""
        try:
            self._read_events(data)
        finally:
            self._may_use_native = self._has_handshake and not self._cutter.unfinished_bytes and not self._parts.pending

    def _read_events(self, data: bytes) -> None:
        events: list[Event] = []
        is_continued = self._cutter.unfinished_bytes > 0
        self._is_cut_short = False
        try:
            with contextlib.closing(self._cutter.feed(data)) as payloads:
                for payload in payloads:
                    is_continued = False
                    self._spent += 1 + len(payload) // WORK_BYTES
                    self._read(payload, events)
                    if self._is_spent:
                        break
        except (ProtocolError, Unavailable) as error:
            self._service.feed(events)
            self._refuse(error)
            return
        except Exception as error:  # T11: only this peer's bytes were decoded, so no other peer is affected
            self._service.feed(events)
            text = "".join(traceback.format_exception(error))
            self._service.peer_log.warning("unforeseen", f"cut off a peer: {text}", peer=self.name)
            self.abort()
            return
        self._is_cut_short = self._is_spent and self._cutter.holds_frame
        if self._cutter.unfinished_bytes and self._has_handshake and not is_continued:
            self._since_s = self._service.now_s()
        self._service.feed(events)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        try:
            self._unread = b""
            self._service.disconnected(self)
        except Exception as error:
            self._service.fail(error)

    def pause_writing(self) -> None:
        """Cut off a peer that does not read its replies; asyncio calls this when the write buffer is full."""
        self._service.peer_log.warning("slow reader", "cut off a slow reader", peer=self.name)
        self._service.machine.count("slow_readers")
        self.abort()

    # ── called by the service ────────────────────────────────────────────────────────────────────────────────────

    def send(self, answers: list[tuple[int, Answer]]) -> None:
        """Send all replies of one step in one write. Does nothing if the peer is gone."""
        self._outstanding -= len(answers)
        self._slow_outstanding -= len(answers)
        if self._transport is None:
            return
        frames = [encode_answer(answer, request_id=tag, extended=self.extended) for tag, answer in answers]
        for _, answer in answers:
            if isinstance(answer, Refused):
                self._service.peer_log.warning(answer.code, f"refused a request: {answer.message}", peer=self.name)
        self._write(b"".join(frame for frame in frames if frame is not None))
        self._resume_if_drained()

    def add_replies(self, replies: EncodedReplies) -> None:
        """Add the encoded replies to commits that are durable. They are written at the end of this step."""
        self._outstanding -= replies.count
        self._add_reply(replies.data)
        if self._paused:
            self._resume_if_drained()

    def write_replies(self) -> None:
        """Write the encoded replies of this loop step, unless `send` has written them already."""
        if self._replies:
            self._write(b"")

    def _write(self, data: bytes) -> None:
        """Write the encoded replies, then `data`, in one write. Does nothing if the peer is gone."""
        if self._replies:
            self._replies.append(data)
            data = b"".join(self._replies)
            self._replies.clear()
        if self._transport is None:
            return
        self._transport.write(data)

    def overdue(self, now_s: float) -> str:
        """Return, as text, what the peer has failed to send in time: its handshake, the rest of a frame, or any
        request. Empty if the peer is not late."""
        if self._is_ending:
            return ""
        waited_s = now_s - self._since_s
        if self._has_unread:
            return ""
        if not self._has_handshake:
            return f"sent no handshake for {waited_s:.1f} s" if waited_s > self._limits.handshake_s_max else ""
        if (self._cutter.unfinished_bytes or self._tail) and waited_s > self._limits.frame_s_max:
            return f"left half a frame unfinished for {waited_s:.1f} s"
        silent_s = now_s - self._heard_s
        if silent_s > self._limits.idle_s_max and self._outstanding <= 0:
            return f"was silent for {silent_s:.1f} s"
        return ""

    @property
    def held_bytes(self) -> int:
        """The memory that this peer occupies with unfinished requests and unread replies."""
        unread = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return len(self._tail) + len(self._unread) + self._cutter.unfinished_bytes + self._parts.bytes_held + unread

    def stop_reading(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def close(self) -> None:
        """Close the connection after all written bytes have been sent."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, payload: bytes, events: list[Event]) -> None:
        oracle = self._service.chunk_oracle
        is_long = len(payload) > LONG_BYTES
        incoming = oracle.decode(payload) if oracle is not None and is_long else decode_request(payload)
        body = incoming.body
        self._since_s = self._service.now_s()
        if isinstance(body, Handshake):
            self._accept_handshake(body)
            return
        if not self._has_handshake:
            raise ProtocolError(f"the peer sent a {type(body).__name__} before the handshake")
        if isinstance(body, CommitPart):
            self._parts.add(body)
            return
        if isinstance(body, CommitRequest):
            body = self._parts.completed(body)
        if is_answered(body):
            self._outstanding += 1
            self._slow_outstanding += 1
        if isinstance(body, Seal):
            self._spent += len(body.starts) // SEALS_WORK
        if isinstance(body, AskStatus):
            self._spent += STATUS_WORK + self._service.machine.report().leases // WORK_BYTES
        if isinstance(body, CommitRequest) and not self.extended:
            body = replace(body, from_java_peer=True)
        events.append(RequestCame(self, incoming.request_id, body))

    def _accept_handshake(self, handshake: Handshake) -> None:
        if self._has_handshake:
            raise ProtocolError("a second handshake on one connection")
        self._check_token(handshake)
        self.extended = handshake.extensions == EXTENSIONS_VERSION
        self._service.check_capacity()
        self._has_handshake = True
        self._service.handshake_done(self)
        self._cutter.frame_bytes_max = self._limits.frame_bytes_max
        self._service.note_commit_retry(handshake.commit_retry_s)
        reply = HandshakeReply(
            handshake.compatible,
            extensions=EXTENSIONS_VERSION,
            epoch=self._service.machine.epoch,
            frame_bytes_max=self._limits.frame_bytes_max,
            database_id=self._service.machine.database_id,
            write_set_ids_max=self._service.machine.settings.write_set_ids_max,
            max_transaction_age_s=self._service.machine.settings.max_transaction_age_s,
        )
        frame = encode_answer(reply, extended=self.extended)
        if self._transport is not None and frame is not None:
            self._write(frame)
        if not handshake.compatible:
            raise ProtocolError("a handshake without capabilities")

    def _check_token(self, handshake: Handshake) -> None:
        token = self._service.token
        if token and not hmac.compare_digest(token, handshake.token):
            self.extended = handshake.extensions > 0
            raise ProtocolError("the handshake's token is not this TSO's: set the client's option tokenFile")

    def _refuse(self, error: ProtocolError | Unavailable) -> None:
        """Send the error, and close the connection. The error is a protocol error, or `Unavailable` if there are too
        many peers."""
        self._is_ending = True
        self._service.peer_log.warning(error.code, f"refused a peer: {error}", peer=self.name)
        self._service.machine.count("protocol_errors" if isinstance(error, ProtocolError) else "refused_connections")
        if self._service.machine.step.in_doubt:
            self._replies.clear()  # while in doubt about its leadership, the TSO answers no begin
        if self._transport is not None:
            frame = encode_answer(Refused.of(error), extended=self.extended)
            self._write(frame or b"")
            self._transport.close()

    def _resume_if_drained(self) -> None:
        """After replies were sent, continue with the bytes that wait for a turn, or read from the peer again."""
        if self._slow_outstanding > SLOW_OUTSTANDING_MAX // 2 or self._is_ending:
            return
        if self._has_unread or self._spent >= QUANTUM:
            self._wait_for_turn()
            return
        is_drained = self._outstanding <= self._limits.requests_outstanding_max // 2
        if self._awaits_too_much:
            return
        if self._paused and is_drained and self._transport is not None and not self._is_in_turn:
            self._paused = False
            self._transport.resume_reading()


def _keep_alive(sock: socket.socket, keepalive_s: float) -> None:
    """Make the system detect a vanished peer within `keepalive_s`. The first probe comes after half of that time, and
    two more follow. Sent data may stay unacknowledged for the whole time."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, int(keepalive_s / 2))),
        ("TCP_KEEPINTVL", max(1, int(keepalive_s / 6))),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", max(1, int(keepalive_s * 1000))),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class ReceiveBuffer:
    """The buffer into which all peers receive in turn. One peer's bytes are processed before the next peer is read."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.array: NDArray[np.uint8] = np.zeros(bytes_max, dtype=np.uint8)
        self.view = self.array.data

    def frame_bytes(self, at: int) -> int:
        """Return the length that the frame header at `at` states."""
        return int.from_bytes(self.view[at : at + HEADER_BYTES], "big")


class CommitParts:
    """The ids of commits that arrive in several frames, by start. Their number is limited."""

    _ID_BYTES: Final = 40
    _PART_COST: Final = 8
    """The memory that a part takes in addition to its ids, counted in ids."""

    def __init__(self, bytes_max: int) -> None:
        self._ids_max = bytes_max // self._ID_BYTES
        self._ids = 0
        """The number of ids kept, plus `_PART_COST` for each part."""
        self._parts: dict[int, list[CommitPart]] = {}

    @property
    def bytes_held(self) -> int:
        return self._ids * self._ID_BYTES

    @property
    def pending(self) -> bool:
        """Whether only a part of some commit has arrived."""
        return bool(self._parts)

    def add(self, part: CommitPart) -> None:
        self._ids += self._PART_COST + len(part.cell_ids) + len(part.branches)
        if self._ids > self._ids_max:
            raise FrameTooLong(
                f"the incomplete commits of a connection have over {self._ids_max} ids: commit smaller transactions",
                ids_max=self._ids_max,
            )
        self._parts.setdefault(part.start_ts, []).append(part)

    def completed(self, last: CommitRequest) -> CommitRequest:
        """Return the commit with the ids of all earlier parts."""
        parts = self._parts.pop(last.start_ts, ())
        if not parts:
            return last
        cell_ids = [cell_id for part in parts for cell_id in part.cell_ids]
        branches = [branch for part in parts for branch in part.branches]
        self._ids -= self._PART_COST * len(parts) + len(cell_ids) + len(branches)
        return replace(last, cell_ids=(*cell_ids, *last.cell_ids), branches=(*branches, *last.branches))
