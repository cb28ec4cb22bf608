"""Requests ↔ frames. A client encodes, a TSO decodes; both directions of a message stand side by side here.

Fields and requests numbered 64 or up are sent only to a peer that announced pyomid's capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyomid.errors import Misuse
from pyomid.types import CommitRequest, WriteSetLevel
from pyomid.wire import omid_pb2 as pb
from pyomid.wire.frames import FRAME_BYTES_MAX, FrameTooLong, ProtocolError, frame, parsed
from pyomid.wire.messages import (
    AdvanceHorizon,
    AskStatus,
    Begin,
    Complete,
    EndLease,
    Fence,
    GrantLease,
    RenewLease,
    Request,
    Seal,
)

EXTENSIONS_VERSION: Final = 1
"""The version of pyomid's own fields. A peer of another version is treated as a Java peer."""

_ID_BYTES_MAX: Final = 10
"""An int64 as a varint has up to 10 bytes, as negative numbers do."""

_PART_OVERHEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first request on a connection. `compatible` is false if the capabilities are missing."""

    extensions: int = 0
    """The version of pyomid's extensions that the client speaks, 0 for a Java client."""
    token: bytes = b""
    commit_retry_s: float = 0.0
    compatible: bool = True


@dataclass(frozen=True, slots=True)
class CommitPart:
    """A part of the ids of a commit that follows on the same connection."""

    start_ts: int
    cell_ids: tuple[int, ...] = ()
    branches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Incoming:
    """One decoded frame. `request_id` is 0 if the client gave none."""

    request_id: int
    body: Request | Handshake | CommitPart


def encode_handshake(handshake: Handshake) -> bytes:
    message = pb.Request()
    capabilities = message.handshake_request.client_capabilities
    capabilities.SetInParent()
    if handshake.extensions:
        capabilities.pyomid.version = handshake.extensions
        capabilities.pyomid.commit_retry_s = handshake.commit_retry_s
        if handshake.token:
            capabilities.pyomid.token = handshake.token
    return frame(message.SerializeToString())


def encode_request(
    request: Request, *, request_id: int = 0, extended: bool = True, frame_bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """The bytes to send: one frame, or several for a long commit.

    `extended` False: the peer is a Java TSO. Requests that it does not support raise `Misuse`; `not_before` is left out
    (the caller begins again). `FrameTooLong` if the request does not fit and cannot be divided.
    """
    message = pb.Request()
    _fill(message, request, extended)
    if extended and request_id:
        message.request_id = request_id
    payload = message.SerializeToString()
    if len(payload) <= frame_bytes_max:
        return frame(payload)
    if not extended or not isinstance(request, CommitRequest):
        raise FrameTooLong.of(len(payload), frame_bytes_max)
    return b"".join(_commit_in_parts(request, request_id, frame_bytes_max))


def decode_request(payload: bytes) -> Incoming:
    """The request in one frame. `ProtocolError` if it holds none, several, or an unknown kind."""
    message = parsed(pb.Request, payload)
    kinds = [field.name for field, _ in message.ListFields() if field.name in _DECODERS]
    if len(kinds) != 1:
        raise ProtocolError(
            f"a frame holds exactly one request, this one {' and '.join(kinds) or 'none that is known'}"
        )
    return Incoming(message.request_id, _DECODERS[kinds[0]](getattr(message, kinds[0])))


def _commit_in_parts(request: CommitRequest, request_id: int, frame_bytes_max: int) -> Iterator[bytes]:
    ids_max = (frame_bytes_max - _PART_OVERHEAD_BYTES) // _ID_BYTES_MAX
    if ids_max < 1 or len(request.table_ids) > ids_max:
        raise FrameTooLong.of(len(request.table_ids) * _ID_BYTES_MAX, frame_bytes_max)
    for at in range(0, len(request.cell_ids), ids_max):
        part = pb.Request()
        part.commit_part.start_timestamp = request.start_ts
        part.commit_part.cell_id.extend(request.cell_ids[at : at + ids_max])
        yield frame(part.SerializeToString())
    for at in range(0, len(request.branches), ids_max):
        part = pb.Request()
        part.commit_part.start_timestamp = request.start_ts
        part.commit_part.branch.extend(request.branches[at : at + ids_max])
        yield frame(part.SerializeToString())
    last = pb.Request()
    rest = CommitRequest(request.start_ts, table_ids=request.table_ids, level=request.level, is_retry=request.is_retry)
    _fill_commit(last.commit_request, rest, extended=True)
    if request_id:
        last.request_id = request_id
    yield frame(last.SerializeToString())


def _fill(message: pb.Request, request: Request, extended: bool) -> None:
    match request:
        case Begin(not_before):
            message.timestamp_request.SetInParent()
            if extended and not_before:
                message.timestamp_request.not_before = not_before
        case CommitRequest():
            _fill_commit(message.commit_request, request, extended)
        case Fence(table_id):
            message.fence_request.table_id = table_id
        case _ if not extended:
            raise Misuse(
                f"the TSO does not speak pyomid's extensions (is it Apache Omid's?): no {type(request).__name__}",
                request=type(request).__name__,
            )
        case GrantLease(start_ts, term_s, holder, shared):
            if holder:
                message.lease_request.holder = holder
            _fill_lease(message.lease_request, pb.LeaseRequest.GRANT, start_ts, shared)
            if term_s:
                message.lease_request.term_s = term_s
        case RenewLease(start_ts):
            _fill_lease(message.lease_request, pb.LeaseRequest.RENEW, start_ts)
        case EndLease(start_ts, shared):
            _fill_lease(message.lease_request, pb.LeaseRequest.END, start_ts, shared)
        case Seal(starts):
            message.seal_request.SetInParent()
            message.seal_request.start_timestamp.extend(starts)
        case Complete(starts):
            message.complete_request.SetInParent()
            message.complete_request.start_timestamp.extend(starts)
        case AdvanceHorizon(horizon):
            message.horizon_request.horizon = horizon
        case AskStatus():
            message.status_request.SetInParent()


def _fill_lease(message: pb.LeaseRequest, action: pb.LeaseRequest.Action, start_ts: int, shared: bool = False) -> None:
    message.action = action
    message.start_timestamp = start_ts
    if shared:
        message.shared = True


def _fill_commit(message: pb.CommitRequest, request: CommitRequest, extended: bool) -> None:
    message.start_timestamp = request.start_ts
    message.is_retry = request.is_retry
    message.cell_id.extend(request.cell_ids)
    message.table_id.extend(request.table_ids)
    if request.branches or request.level is not WriteSetLevel.IDS:
        if not extended:
            raise Misuse(
                "a commit with branches or at table level needs pyomid's TSO: this one does not speak its extensions",
                start_ts=request.start_ts,
            )
        message.branch.extend(request.branches)
        message.level = int(request.level)


def _decode_handshake(message: pb.HandshakeRequest) -> Handshake:
    if not message.HasField("client_capabilities"):
        return Handshake(compatible=False)
    pyomid = message.client_capabilities.pyomid
    return Handshake(pyomid.version, pyomid.token, pyomid.commit_retry_s)


def _decode_commit(message: pb.CommitRequest) -> CommitRequest:
    try:
        level = WriteSetLevel(message.level)
    except ValueError as error:
        raise ProtocolError(f"{message.level} is not a level of a write set") from error
    return CommitRequest(
        message.start_timestamp,
        tuple(message.cell_id),
        tuple(message.table_id),
        tuple(message.branch),
        level,
        message.is_retry,
    )


def _decode_commit_part(message: pb.CommitPart) -> CommitPart:
    return CommitPart(message.start_timestamp, tuple(message.cell_id), tuple(message.branch))


def _decode_lease(message: pb.LeaseRequest) -> Request:
    match message.action:
        case pb.LeaseRequest.GRANT:
            return GrantLease(message.start_timestamp, message.term_s, message.holder, message.shared)
        case pb.LeaseRequest.RENEW:
            return RenewLease(message.start_timestamp)
        case pb.LeaseRequest.END:
            return EndLease(message.start_timestamp, message.shared)
        case other:
            raise ProtocolError(f"{other} is not an action on a lease")


_DECODERS: Final[dict[str, Callable[[Any], Request | Handshake | CommitPart]]] = {
    "timestamp_request": lambda m: Begin(m.not_before),
    "commit_request": _decode_commit,
    "handshake_request": _decode_handshake,
    "fence_request": lambda m: Fence(m.table_id),
    "commit_part": _decode_commit_part,
    "lease_request": _decode_lease,
    "seal_request": lambda m: Seal(tuple(m.start_timestamp)),
    "complete_request": lambda m: Complete(tuple(m.start_timestamp)),
    "horizon_request": lambda m: AdvanceHorizon(m.horizon),
    "status_request": lambda m: AskStatus(),
}
