"""Answers as bytes, the same that `wire.codec` would write: a begin's, a commit's, an abort's."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pyomid.kernels.compiled import kernel
from pyomid.types import AbortReason

REPLY_BYTES_MAX: Final = 128
"""More than the longest: header 4, lengths, two keys, three varints of 10 bytes, a reason of 13, a tag."""

COMMITTED: Final = 0
CONFLICT: Final = 1
LOW_WATERMARK: Final = 2
FENCE: Final = 3

_REASONS: Final = np.zeros((4, 16), dtype=np.uint8)
_REASON_BYTES: Final = np.zeros(4, dtype=np.int64)
for _code, _reason in (
    (CONFLICT, AbortReason.CONFLICT),
    (LOW_WATERMARK, AbortReason.LOW_WATERMARK),
    (FENCE, AbortReason.FENCE),
):
    _text = np.frombuffer(_reason.value.encode(), dtype=np.uint8)
    _REASONS[_code, : len(_text)] = _text
    _REASON_BYTES[_code] = len(_text)


@kernel("int64(uint8[::1], int64, uint64)", nogil=False, _nrt=False, forceinline=True)
def put_varint(out: Any, at: Any, value: Any) -> Any:
    while value >= np.uint64(0x80):
        out[at] = np.uint8((value & np.uint64(0x7F)) | np.uint64(0x80))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@kernel("int64(uint8[::1], int64, int64, int64)", nogil=False, _nrt=False, forceinline=True)
def put_field(out: Any, at: Any, field: Any, value: Any) -> Any:
    """A varint field; an int64 goes as its 64 bits."""
    at = put_varint(out, at, np.uint64(field << 3))
    return put_varint(out, at, np.uint64(value))


@kernel("int64(uint8[::1], int64, int64, int64, int64, int64)", nogil=False, _nrt=False, forceinline=True)
def end_reply(out: Any, frame_at: Any, at: Any, kind: Any, tag: Any, extended: Any) -> Any:
    """Fills in what could not be known before: the inner length (always below 128), then tag and frame length."""
    out[frame_at + 4] = np.uint8(kind << 3 | 2)
    out[frame_at + 5] = np.uint8(at - frame_at - 6)
    if extended and tag:
        at = put_field(out, at, 64, tag)
    length = at - frame_at - 4
    out[frame_at] = out[frame_at + 1] = out[frame_at + 2] = 0
    out[frame_at + 3] = np.uint8(length)
    return at


@kernel("int64(uint8[::1], int64, int64, int64, int64, int64, int64)", nogil=False, _nrt=False, forceinline=True)
def put_begin(out: Any, frame_at: Any, start_ts: Any, epoch: Any, fenced_ts: Any, tag: Any, extended: Any) -> Any:
    at = put_field(out, frame_at + 6, 1, start_ts)
    if extended:
        at = put_field(out, at, 64, epoch)
        if fenced_ts:
            at = put_field(out, at, 65, fenced_ts)
    return end_reply(out, frame_at, at, 1, tag, extended)


@kernel("int64(uint8[::1], int64, int64, int64, int64, int64, int64, int64)", nogil=False, _nrt=False, forceinline=True)
def put_commit(
    out: Any, frame_at: Any, start_ts: Any, commit_ts: Any, reason: Any, conflict_ts: Any, tag: Any, extended: Any
) -> Any:
    at = put_field(out, frame_at + 6, 1, 1 if reason else 0)
    at = put_field(out, at, 2, start_ts)
    at = put_field(out, at, 3, commit_ts)
    if extended and reason:
        at = put_varint(out, at, np.uint64(64 << 3 | 2))
        length = _REASON_BYTES[reason]
        out[at] = np.uint8(length)
        at += 1
        for index in range(length):
            out[at + index] = _REASONS[reason, index]
        at = put_field(out, at + length, 65, conflict_ts)
    return end_reply(out, frame_at, at, 2, tag, extended)
