"""One peer of the service: its bytes cut into requests, its answers put on the wire. No peer's mistake is another's.

Limits are per peer: frame size, unanswered requests (reading pauses), unread answers (the peer is cut off), time
until the handshake and time that half a frame may take (slow-loris).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pyomid.core.instructions import Event, RequestCame
from pyomid.core.requests import Answer, Complete, Refused
from pyomid.types import CommitRequest
from pyomid.wire.frames import FRAME_BYTES_MAX, FrameCutter, FrameTooLong, ProtocolError
from pyomid.wire.requests import EXTENSIONS_VERSION, CommitPart, Handshake, decode_request
from pyomid.wire.responses import HandshakeReply, encode_answer

if TYPE_CHECKING:
    from pyomid.tso.service import TsoService

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """What one peer may ask of the service."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    requests_outstanding_max: int = 65_536
    """Beyond it the service stops reading from this peer until it has answered half of them."""
    unread_bytes_max: int = 64 << 20
    """Answers that the peer does not read; beyond it the peer is cut off."""
    parts_bytes_max: int = 256 << 20
    """Ids of commits sent in several frames and not yet complete."""
    handshake_s_max: float = 10.0
    frame_s_max: float = 30.0
    """How long half a frame may wait for its rest."""


class Connection(asyncio.Protocol):
    """Lives as long as its transport."""

    def __init__(self, service: TsoService, limits: PeerLimits) -> None:
        self._service = service
        self._limits = limits
        self._cutter = FrameCutter(limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._parts = CommitParts(limits.parts_bytes_max)
        self._outstanding = 0
        self._paused = False
        self._greeted = False
        self._since_s = service.now_s()
        self.extended = False
        self.name = "?"

    # ── asyncio's side ───────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.unread_bytes_max)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.name = str(transport.get_extra_info("peername") or "unix")
        if not self._service.connected(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        events: list[Event] = []
        try:
            for payload in self._cutter.feed(data):
                self._read(payload, events)
        except ProtocolError as error:
            self._service.feed(events)
            self._refuse(error)
            return
        if self._cutter.unfinished_bytes and events:
            self._since_s = self._service.now_s()
        self._service.feed(events)
        self._pause_if_full()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._service.disconnected(self)

    def pause_writing(self) -> None:
        """The peer does not read: nobody else waits for it."""
        log.warning("cut off a slow reader", extra={"peer": self.name})
        self._service.machine.counters["slow_readers"] += 1
        self.abort()

    # ── the service's side ───────────────────────────────────────────────────────────────────────────────────────

    def send(self, answers: list[tuple[int, Answer]]) -> None:
        """All answers of one step in one write; a peer that is gone takes nothing else with it."""
        self._outstanding -= len(answers)
        if self._transport is None:
            return
        frames = [encode_answer(answer, request_id=tag, extended=self.extended) for tag, answer in answers]
        self._transport.write(b"".join(frame for frame in frames if frame is not None))
        if self._paused and self._outstanding <= self._limits.requests_outstanding_max // 2:
            self._paused = False
            self._transport.resume_reading()

    def is_overdue(self, now_s: float) -> bool:
        """Whether it owes a handshake, or the rest of a frame, for too long."""
        if not self._greeted:
            return now_s - self._since_s > self._limits.handshake_s_max
        return self._cutter.unfinished_bytes > 0 and now_s - self._since_s > self._limits.frame_s_max

    def stop_reading(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def close(self) -> None:
        """After what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, payload: bytes, events: list[Event]) -> None:
        incoming = decode_request(payload)
        body = incoming.body
        self._since_s = self._service.now_s()
        if isinstance(body, Handshake):
            self._greet(body)
            return
        if not self._greeted:
            raise ProtocolError(f"{type(body).__name__} before the handshake")
        if isinstance(body, CommitPart):
            self._parts.add(body)
            return
        if isinstance(body, CommitRequest):
            body = self._parts.completed(body)
        if not isinstance(body, Complete):
            self._outstanding += 1
        events.append(RequestCame(self, incoming.request_id, body))

    def _greet(self, handshake: Handshake) -> None:
        if self._greeted:
            raise ProtocolError("a second handshake on one connection")
        self._check_token(handshake)
        self._greeted = True
        self.extended = handshake.extensions == EXTENSIONS_VERSION
        reply = HandshakeReply(
            handshake.compatible,
            extensions=EXTENSIONS_VERSION,
            epoch=self._service.machine.epoch,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        frame = encode_answer(reply, extended=self.extended)
        if self._transport is not None and frame is not None:
            self._transport.write(frame)
        if not handshake.compatible:
            raise ProtocolError("a handshake without capabilities")

    def _check_token(self, handshake: Handshake) -> None:
        token = self._service.token
        if token and not hmac.compare_digest(token, handshake.token):
            self.extended = handshake.extensions > 0
            raise ProtocolError("the handshake's token is not this TSO's: set the client's token option")

    def _refuse(self, error: ProtocolError) -> None:
        log.warning("refused a peer: %s", error, extra={"peer": self.name, "code": error.code})
        self._service.machine.counters["protocol_errors"] += 1
        if self._transport is not None:
            frame = encode_answer(Refused.of(error), extended=self.extended)
            if frame is not None:
                self._transport.write(frame)
            self._transport.close()

    def _pause_if_full(self) -> None:
        if self._outstanding > self._limits.requests_outstanding_max:
            self.stop_reading()


class CommitParts:
    """Ids of commits that come in several frames, by start; bounded in bytes."""

    _ID_BYTES: Final = 40

    def __init__(self, bytes_max: int) -> None:
        self._ids_max = bytes_max // self._ID_BYTES
        self._ids = 0
        self._parts: dict[int, list[CommitPart]] = {}

    def add(self, part: CommitPart) -> None:
        self._ids += len(part.cell_ids) + len(part.branches)
        if self._ids > self._ids_max:
            raise FrameTooLong(
                f"the parts of unfinished commits hold more than {self._ids_max} ids: commit at table level",
                ids_max=self._ids_max,
            )
        self._parts.setdefault(part.start_ts, []).append(part)

    def completed(self, last: CommitRequest) -> CommitRequest:
        """The commit with everything that came before it."""
        parts = self._parts.pop(last.start_ts, ())
        if not parts:
            return last
        cell_ids = [cell_id for part in parts for cell_id in part.cell_ids]
        branches = [branch for part in parts for branch in part.branches]
        self._ids -= len(cell_ids) + len(branches)
        return CommitRequest(
            last.start_ts,
            (*cell_ids, *last.cell_ids),
            last.table_ids,
            (*branches, *last.branches),
            last.level,
            last.is_retry,
        )
