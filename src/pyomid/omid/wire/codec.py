"""Translate between messages and frames. A client encodes requests and decodes answers; a TSO does the reverse.

Fields and requests numbered 64 or up are sent only to a peer that announced pyomid's capabilities.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from pyomid.errors import Misuse, MisuseType, OmidError
from pyomid.omid.wire import omid_pb2 as pb
from pyomid.omid.wire.frames import FRAME_BYTES_MAX, FrameTooLong, ProtocolError, frame, parsed, varint
from pyomid.omid.wire.messages import (
    AdvanceHorizon,
    Answer,
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
    ReportIds,
    ReportOpenStarts,
    Request,
    Seal,
    SealReply,
)
from pyomid.omid.wire.native import plain_frames
from pyomid.types import (
    TIMESTAMP_MAX,
    AbortReason,
    BeginReply,
    CommitReply,
    CommitRequest,
    SealOutcome,
    Status,
    WriteSetLevel,
)

EXTENSIONS_VERSION: Final = 1
"""The version of pyomid's own fields. A peer with another version is treated like a Java peer."""

_ID_BYTES_MAX: Final = 10
"""The length of the longest varint of an int64, that of a negative number."""

_PART_OVERHEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first request on a connection. `compatible` is False if the client sent no capabilities."""

    extensions: int = 0
    """The version of pyomid's extensions that the client supports; 0 for a Java client."""
    token: bytes = b""
    commit_retry_s: float = 0.0
    compatible: bool = True


@dataclass(frozen=True, slots=True)
class CommitPart:
    """A part of the ids of a commit; the commit request itself follows on the same connection."""

    start_ts: int
    cell_ids: tuple[int, ...] = ()
    branches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One decoded request frame. `request_id` is 0 if the client sent none."""

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
    """Return the bytes to send: one frame, or several for a long commit.

    With `extended` False the peer is a Java TSO. A request that it does not support raises `Misuse`, and `not_before`
    is omitted (the caller retries the begin). Raises `FrameTooLong` if the request does not fit a frame and cannot be
    split.
    """
    if isinstance(request, Begin) and not request.not_before and extended:
        payload = _PLAIN_BEGIN + (_REQUEST_ID_TAG + varint(request_id) if request_id else b"")
    elif extended and (plain := _plain_commit(request, request_id)) is not None:
        payload = plain
    else:
        message = pb.Request()
        try:
            _fill_request(message, request, extended)
        except OmidError:
            raise
        except (TypeError, ValueError) as error:  # protobuf rejected arguments of the calling program
            raise MisuseType(f"cannot encode the request {type(request).__name__} for the TSO: {error}") from error
        if extended and request_id:
            message.request_id = request_id
        payload = message.SerializeToString()
    if len(payload) <= frame_bytes_max:
        return frame(payload)
    if not extended or not isinstance(request, CommitRequest):
        raise FrameTooLong.of(len(payload), frame_bytes_max)
    return b"".join(_commit_in_parts(request, request_id, frame_bytes_max))


def _plain_commit(request: Request, request_id: int) -> bytes | None:
    """Return the message of an ordinary commit. Returns None for any other request, and for invalid arguments, which
    protobuf then reports."""
    if not isinstance(request, CommitRequest) or request.branches or request.level is not WriteSetLevel.IDS:
        return None
    try:
        return plain_frames.commit_request(
            request.start_ts, request.is_retry, request.cell_ids, request.table_ids, request_id
        )
    except (TypeError, OverflowError):
        return None


def decode_request(payload: bytes) -> ReceivedRequest:
    """Return the request in one frame. Raises `ProtocolError` if the frame holds no request, several, or an unknown
    kind."""
    message = parsed(pb.Request, payload)
    kinds = [field.name for field, _ in message.ListFields() if field.name in _REQUEST_DECODERS]
    if len(kinds) != 1:
        raise ProtocolError(
            f"a frame must hold exactly one request; this one holds {' and '.join(kinds) or 'no known request'}"
        )
    return ReceivedRequest(message.request_id, _REQUEST_DECODERS[kinds[0]](getattr(message, kinds[0])))


def ids_in_frame_max(frame_bytes_max: int) -> int:
    """Return how many ids fit one frame, whatever their values."""
    return (frame_bytes_max - _PART_OVERHEAD_BYTES) // _ID_BYTES_MAX


def _commit_in_parts(request: CommitRequest, request_id: int, frame_bytes_max: int) -> Iterator[bytes]:
    ids_max = ids_in_frame_max(frame_bytes_max)
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
    rest = replace(request, cell_ids=(), branches=())
    _fill_commit_request(last.commit_request, rest, extended=True)
    if request_id:
        last.request_id = request_id
    yield frame(last.SerializeToString())


def _fill_request(message: pb.Request, request: Request, extended: bool) -> None:
    match request:
        case Begin(not_before):
            message.timestamp_request.SetInParent()
            if extended and not_before:
                message.timestamp_request.not_before = not_before
        case CommitRequest():
            _fill_commit_request(message.commit_request, request, extended)
        case Fence(table_id):
            message.fence_request.table_id = table_id
        case _ if not extended:
            raise Misuse(
                f"this TSO does not support {type(request).__name__}: it does not speak pyomid's protocol extensions "
                "(is it Apache Omid's TSO?)",
                request=type(request).__name__,
            )
        case GrantLease(start_ts, term_s, holder, shared):
            if holder:
                message.lease_request.holder = holder
            _fill_lease_request(message.lease_request, pb.LeaseRequest.GRANT, start_ts, shared)
            if term_s:
                message.lease_request.term_s = term_s
        case RenewLease(start_ts):
            _fill_lease_request(message.lease_request, pb.LeaseRequest.RENEW, start_ts)
        case EndLease(start_ts, shared):
            _fill_lease_request(message.lease_request, pb.LeaseRequest.END, start_ts, shared)
        case Seal(starts):
            message.seal_request.SetInParent()
            message.seal_request.start_timestamp.extend(starts)
        case ReportIds(start_ts, table_id, branch, part, ids):
            message.reported_ids.start_timestamp = start_ts
            message.reported_ids.table_id = table_id
            message.reported_ids.branch = branch
            message.reported_ids.part = part
            message.reported_ids.ids = ids
        case ReportOpenStarts(client, connection, oldest, holder):
            message.open_starts.client = client
            message.open_starts.connection = connection
            message.open_starts.oldest = oldest
            if holder:
                message.open_starts.holder = holder
        case AdvanceHorizon(horizon):
            message.horizon_request.horizon = horizon
        case AskStatus():
            message.status_request.SetInParent()


def _fill_lease_request(
    message: pb.LeaseRequest, action: pb.LeaseRequest.Action, start_ts: int, shared: bool = False
) -> None:
    message.action = action
    message.start_timestamp = start_ts
    if shared:
        message.shared = True


def _fill_commit_request(message: pb.CommitRequest, request: CommitRequest, extended: bool) -> None:
    message.start_timestamp = request.start_ts
    message.is_retry = request.is_retry
    message.cell_id.extend(request.cell_ids)
    message.table_id.extend(request.table_ids)
    if request.branches or request.level is not WriteSetLevel.IDS:
        if not extended:
            raise Misuse(
                "a commit with branches or at table level needs pyomid's TSO; this TSO does not speak pyomid's "
                "protocol extensions",
                start_ts=request.start_ts,
            )
        message.branch.extend(request.branches)
        message.level = int(request.level)
        message.reported_ids = request.reported_ids


_PLAIN_BEGIN: Final = pb.Request(timestamp_request=pb.TimestampRequest()).SerializeToString()
"""The encoded field of a begin without arguments. The field of its request id follows it."""
_REQUEST_ID_TAG: Final = pb.Request(request_id=1).SerializeToString()[:-1]


def _decode_handshake_request(message: pb.HandshakeRequest) -> Handshake:
    if not message.HasField("client_capabilities"):
        return Handshake(compatible=False)
    pyomid = message.client_capabilities.pyomid
    return Handshake(pyomid.version, pyomid.token, pyomid.commit_retry_s)


def _decode_commit_request(message: pb.CommitRequest) -> CommitRequest:
    try:
        level = WriteSetLevel(message.level)
    except ValueError as error:
        raise ProtocolError(f"unknown write-set level {message.level}") from error
    return CommitRequest(
        message.start_timestamp,
        tuple(message.cell_id),
        tuple(message.table_id),
        tuple(message.branch),
        level,
        message.is_retry,
        reported_ids=message.reported_ids,
    )


def _decode_commit_part(message: pb.CommitPart) -> CommitPart:
    return CommitPart(message.start_timestamp, tuple(message.cell_id), tuple(message.branch))


def _decode_lease_request(message: pb.LeaseRequest) -> Request:
    match message.action:
        case pb.LeaseRequest.GRANT:
            return GrantLease(message.start_timestamp, message.term_s, message.holder, message.shared)
        case pb.LeaseRequest.RENEW:
            return RenewLease(message.start_timestamp)
        case pb.LeaseRequest.END:
            return EndLease(message.start_timestamp, message.shared)
        case other:
            raise ProtocolError(f"unknown lease action {other}")


_REQUEST_DECODERS: Final[dict[str, Callable[[Any], Request | Handshake | CommitPart]]] = {
    "timestamp_request": lambda m: Begin(m.not_before),
    "commit_request": _decode_commit_request,
    "handshake_request": _decode_handshake_request,
    "fence_request": lambda m: Fence(m.table_id),
    "commit_part": _decode_commit_part,
    "lease_request": _decode_lease_request,
    "seal_request": lambda m: Seal(tuple(m.start_timestamp)),
    "reported_ids": lambda m: ReportIds(m.start_timestamp, m.table_id, m.branch, m.part, m.ids),
    "open_starts": lambda m: ReportOpenStarts(m.client, m.connection, m.oldest, m.holder),
    "horizon_request": lambda m: AdvanceHorizon(m.horizon),
    "status_request": lambda m: AskStatus(),
}


_PLACED: Final = -1


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """A TSO's first answer on a connection. With `extensions` 0 it is a Java TSO, which does not send its epoch."""

    compatible: bool
    low_latency: bool = False
    extensions: int = 0
    epoch: int = 0
    frame_bytes_max: int = 0
    database_id: bytes = b""
    """The id of the TSO's database (`ports.LeaderState`); empty if the TSO did not send it."""
    write_set_ids_max: int = 0
    """The maximum number of ids that one commit may name; 0 if the TSO did not send it."""
    max_transaction_age_s: float = 0.0
    """Starts older than this no longer hold LWM back. 0 means that the TSO takes no reports of open starts."""


class ReceivedAnswer(NamedTuple):
    """One decoded answer frame. `request_id` is 0 if the TSO echoed none."""

    request_id: int
    body: Answer | HandshakeReply


def encode_answer(answer: Answer | HandshakeReply, *, request_id: int = 0, extended: bool = True) -> bytes | None:
    """Return the frame to send. Returns None if Java's protocol has no such answer; a Java peer then times out and
    retries.

    A malformed commit of a Java peer is answered as aborted.
    """
    message = pb.Response()
    if not extended and isinstance(answer, Refused) and answer.code == Misuse.code and "start_ts" in answer.values:
        answer = CommitReply(answer.values["start_ts"], reason=AbortReason.CONFLICT)
    if not _fill_known(message, answer, extended):
        if not extended:
            return None
        _fill_extension(message, answer)
    if extended and request_id:
        message.request_id = request_id
    return frame(message.SerializeToString())


def decode_answer(payload: bytes) -> ReceivedAnswer:
    """Return the answer in one frame. Raises `ProtocolError` if the frame holds no known answer."""
    if (plain := plain_frames.plain_answer(payload)) is not None:
        kind, request_id, start_ts, number, fenced_ts = plain
        if kind == plain_frames.BEGIN_REPLY:
            return ReceivedAnswer(request_id, BeginReply(start_ts, number, fenced_ts))
        return ReceivedAnswer(request_id, CommitReply(start_ts, number))
    message = parsed(pb.Response, payload)
    if message.HasField("timestamp_response"):
        return ReceivedAnswer(message.request_id, _decode_begin_answer(message.timestamp_response))
    if message.HasField("commit_response"):
        return ReceivedAnswer(message.request_id, _decode_commit_answer(message.commit_response))
    for field, value in message.ListFields():
        decode = _ANSWER_DECODERS.get(field.name)
        if decode is not None:
            return ReceivedAnswer(message.request_id, decode(value))
    raise ProtocolError(f"a frame of {len(payload)} bytes holds no known answer")


def _fill_known(message: pb.Response, answer: Answer | HandshakeReply, extended: bool) -> bool:
    """Fill the fields that Java's protocol has too. Returns False if Java's protocol has no such answer."""
    match answer:
        case BeginReply(start_ts, epoch, fenced_ts):
            message.timestamp_response.start_timestamp = start_ts
            if extended:
                message.timestamp_response.epoch = epoch
                if fenced_ts:
                    message.timestamp_response.fenced_timestamp = fenced_ts
        case CommitReply():
            _fill_commit_answer(message.commit_response, answer, extended)
        case FenceReply(table_id, fence_ts):
            message.fence_response.table_id = table_id
            message.fence_response.fence_id = fence_ts
        case HandshakeReply():
            _fill_handshake_answer(message.handshake_response, answer, extended)
        case _:
            return False
    return True


def _fill_commit_answer(message: pb.CommitResponse, reply: CommitReply, extended: bool) -> None:
    message.aborted = not reply.committed
    message.start_timestamp = reply.start_ts
    message.commit_timestamp = reply.commit_ts
    if extended and reply.reason is not None:
        message.reason = reply.reason.value
        message.conflict_timestamp = reply.conflict_ts


def _fill_handshake_answer(message: pb.HandshakeResponse, reply: HandshakeReply, extended: bool) -> None:
    message.client_compatible = reply.compatible
    message.server_capabilities.SetInParent()
    message.low_latency = reply.low_latency
    if extended and reply.extensions:
        pyomid = message.server_capabilities.pyomid
        pyomid.version = reply.extensions
        pyomid.epoch = reply.epoch
        pyomid.frame_bytes_max = reply.frame_bytes_max
        if reply.database_id:
            pyomid.database_id = reply.database_id
        if reply.write_set_ids_max:
            pyomid.write_set_ids_max = reply.write_set_ids_max
        if reply.max_transaction_age_s:
            pyomid.max_transaction_age_s = reply.max_transaction_age_s


def _fill_extension(message: pb.Response, answer: Any) -> None:
    match answer:
        case Refused(code, text, values):
            message.error_response.code = code
            message.error_response.message = text
            message.error_response.values_json = json.dumps(values, default=str)
        case LeaseReply(start_ts, term_s):
            message.lease_response.start_timestamp = start_ts
            message.lease_response.term_s = term_s
        case SealReply(outcomes):
            message.seal_response.SetInParent()
            message.seal_response.outcome.extend(_PLACED if o.placed else o.commit_ts for o in outcomes)
        case HorizonReply(deleted):
            message.horizon_response.deleted = deleted
        case Done():
            message.done_response.SetInParent()
        case Status():
            _fill_status(message.status_response, answer)


def _fill_status(message: pb.StatusResponse, status: Status) -> None:
    message.epoch = status.epoch
    message.last_timestamp = status.last_ts
    message.low_watermark = status.low_watermark
    message.watermark = status.watermark
    message.horizon = status.horizon
    message.lease.extend(status.leases)
    message.pending.extend(status.pending)
    message.in_flight = status.in_flight
    for name, count in status.counters.items():
        message.counter[name] = count
    if status.held_back_by:
        message.held_back_by = status.held_back_by


def _decode_commit_answer(message: pb.CommitResponse) -> CommitReply:
    if not message.aborted:
        return CommitReply(message.start_timestamp, message.commit_timestamp)
    known = message.reason in AbortReason.__members__.values()
    return CommitReply(
        message.start_timestamp,
        reason=AbortReason(message.reason) if known else AbortReason.CONFLICT,
        conflict_ts=message.conflict_timestamp,
    )


def _decode_begin_answer(message: pb.TimestampResponse) -> BeginReply:
    fenced_ts = message.fenced_timestamp if message.HasField("epoch") else TIMESTAMP_MAX
    return BeginReply(message.start_timestamp, message.epoch, fenced_ts)


def _decode_handshake_answer(message: pb.HandshakeResponse) -> HandshakeReply:
    pyomid = message.server_capabilities.pyomid
    return HandshakeReply(
        message.client_compatible,
        message.low_latency,
        pyomid.version,
        pyomid.epoch,
        pyomid.frame_bytes_max,
        pyomid.database_id,
        pyomid.write_set_ids_max,
        pyomid.max_transaction_age_s,
    )


def _decode_error(message: pb.ErrorResponse) -> Refused:
    try:
        values = json.loads(message.values_json or "{}")
    except ValueError as error:
        raise ProtocolError(f"the values of an error are not JSON: {error}") from error
    return Refused(message.code, message.message, values if isinstance(values, dict) else {})


def _decode_seal(message: pb.SealResponse) -> SealReply:
    return SealReply(tuple(SealOutcome(True) if o == _PLACED else SealOutcome(False, o) for o in message.outcome))


def _decode_status(message: pb.StatusResponse) -> Status:
    return Status(
        epoch=message.epoch,
        last_ts=message.last_timestamp,
        low_watermark=message.low_watermark,
        watermark=message.watermark,
        horizon=message.horizon,
        leases=tuple(message.lease),
        pending=tuple(message.pending),
        in_flight=message.in_flight,
        counters=dict(message.counter),
        held_back_by=message.held_back_by,
    )


_ANSWER_DECODERS: Final[dict[str, Callable[[Any], Answer | HandshakeReply]]] = {
    "timestamp_response": _decode_begin_answer,
    "commit_response": _decode_commit_answer,
    "handshake_response": _decode_handshake_answer,
    "fence_response": lambda m: FenceReply(m.table_id, m.fence_id),
    "error_response": _decode_error,
    "lease_response": lambda m: LeaseReply(m.start_timestamp, m.term_s),
    "seal_response": _decode_seal,
    "horizon_response": lambda m: HorizonReply(m.deleted),
    "status_response": _decode_status,
    "done_response": lambda m: Done(),
}
