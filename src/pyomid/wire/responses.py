"""Answers ↔ frames. A TSO encodes, a client decodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyomid.errors import Misuse
from pyomid.types import TIMESTAMP_MAX, AbortReason, BeginReply, CommitReply, SealOutcome, Status
from pyomid.wire import omid_pb2 as pb
from pyomid.wire.frames import ProtocolError, frame, parsed
from pyomid.wire.messages import Answer, Done, FenceReply, HorizonReply, LeaseReply, Refused, SealReply

_PLACED: Final = -1


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """A TSO's first answer. `extensions` 0: a Java TSO, which does not tell its epoch."""

    compatible: bool
    low_latency: bool = False
    extensions: int = 0
    epoch: int = 0
    frame_bytes_max: int = 0
    database_id: bytes = b""
    """The id of the TSO's database (`ports.LeaderState`); empty if it is not told."""
    write_set_ids_max: int = 0
    """The most ids that one commit may name; 0 if it is not told."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One decoded answer. `request_id` is 0 if the TSO echoed none."""

    request_id: int
    body: Answer | HandshakeReply


def encode_answer(answer: Answer | HandshakeReply, *, request_id: int = 0, extended: bool = True) -> bytes | None:
    """The frame to send. None if Java's protocol has no such answer: a Java peer then waits, and asks again.

    To a Java peer a malformed commit is answered as aborted.
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


def decode_answer(payload: bytes) -> Outgoing:
    """The answer in one frame. `ProtocolError` if it holds no known answer."""
    message = parsed(pb.Response, payload)
    for field, value in message.ListFields():
        decode = _DECODERS.get(field.name)
        if decode is not None:
            return Outgoing(message.request_id, decode(value))
    raise ProtocolError(f"a frame of {len(payload)} bytes holds no known answer")


def _fill_known(message: pb.Response, answer: Answer | HandshakeReply, extended: bool) -> bool:
    """Fills the fields that Java knows too. False if Java's protocol has no such answer."""
    match answer:
        case BeginReply(start_ts, epoch, fenced_ts):
            message.timestamp_response.start_timestamp = start_ts
            if extended:
                message.timestamp_response.epoch = epoch
                if fenced_ts:
                    message.timestamp_response.fenced_timestamp = fenced_ts
        case CommitReply():
            _fill_commit(message.commit_response, answer, extended)
        case FenceReply(table_id, fence_ts):
            message.fence_response.table_id = table_id
            message.fence_response.fence_id = fence_ts
        case HandshakeReply():
            _fill_handshake(message.handshake_response, answer, extended)
        case _:
            return False
    return True


def _fill_commit(message: pb.CommitResponse, reply: CommitReply, extended: bool) -> None:
    message.aborted = not reply.committed
    message.start_timestamp = reply.start_ts
    message.commit_timestamp = reply.commit_ts
    if extended and reply.reason is not None:
        message.reason = reply.reason.value
        message.conflict_timestamp = reply.conflict_ts


def _fill_handshake(message: pb.HandshakeResponse, reply: HandshakeReply, extended: bool) -> None:
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


def _decode_commit(message: pb.CommitResponse) -> CommitReply:
    if not message.aborted:
        return CommitReply(message.start_timestamp, message.commit_timestamp)
    known = message.reason in AbortReason.__members__.values()
    return CommitReply(
        message.start_timestamp,
        reason=AbortReason(message.reason) if known else AbortReason.CONFLICT,
        conflict_ts=message.conflict_timestamp,
    )


def _decode_begin(message: pb.TimestampResponse) -> BeginReply:
    fenced_ts = message.fenced_timestamp if message.HasField("epoch") else TIMESTAMP_MAX
    return BeginReply(message.start_timestamp, message.epoch, fenced_ts)


def _decode_handshake(message: pb.HandshakeResponse) -> HandshakeReply:
    pyomid = message.server_capabilities.pyomid
    return HandshakeReply(
        message.client_compatible,
        message.low_latency,
        pyomid.version,
        pyomid.epoch,
        pyomid.frame_bytes_max,
        pyomid.database_id,
        pyomid.write_set_ids_max,
    )


def _decode_error(message: pb.ErrorResponse) -> Refused:
    try:
        values = json.loads(message.values_json or "{}")
    except ValueError as error:
        raise ProtocolError(f"an error's values are no JSON: {error}") from error
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
    )


_DECODERS: Final[dict[str, Callable[[Any], Answer | HandshakeReply]]] = {
    "timestamp_response": _decode_begin,
    "commit_response": _decode_commit,
    "handshake_response": _decode_handshake,
    "fence_response": lambda m: FenceReply(m.table_id, m.fence_id),
    "error_response": _decode_error,
    "lease_response": lambda m: LeaseReply(m.start_timestamp, m.term_s),
    "seal_response": _decode_seal,
    "horizon_response": lambda m: HorizonReply(m.deleted),
    "status_response": _decode_status,
    "done_response": lambda m: Done(),
}
