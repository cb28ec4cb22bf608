"""The sockets of many peers, read and written by one compiled call: what comes is decided, what is answered leaves.

    epoll ─► read_ready: recv, decide_chunk ─► answers to send now: each peer's place in `out`
                                          └─► answers of commits: `later`, with a segment a peer
                 place_later: when their batch is released, each segment behind what its peer has in `out`
                 send_ready: one send a peer

Anything out of the ordinary about a peer is handed back, to be done the long way: see the statuses. No call waits.
"""

from __future__ import annotations

import platform
from typing import Any, Final

import numpy as np
from numba import types

from pyomid.compiled import kernel
from pyomid.oracle.native.decide import (
    CONSUMED,
    DONE,
    EXTENDED,
    LATER_BYTES,
    NOW_BYTES,
    OPS_MAX,
    RECORDS,
    decide_chunk,
)
from pyomid.wire.frames import HEADER_BYTES

recv: Any = types.ExternalFunction("recv", types.int64(types.int32, types.int64, types.int64, types.int32))
send: Any = types.ExternalFunction("send", types.int64(types.int32, types.int64, types.int64, types.int32))
epoll_wait: Any = types.ExternalFunction("epoll_wait", types.int32(types.int32, types.int64, types.int32, types.int32))
memcpy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
_NEVER_WAIT: Final = 0x40
_NO_SIGNAL: Final = 0x4000

_EVENT_BYTES: Final = 12 if platform.machine() == "x86_64" else 16
_EVENT_DATA_AT: Final = _EVENT_BYTES - 8

# Words of a peer's slot.
FD, LIVE, IS_EXTENDED, BY_HAND, OUTSTANDING, OUT_BYTES, TAIL_BYTES, TAIL_SINCE_MS, HEARD, IS_DIRTY = range(10)
SLOT_WORDS: Final = 16
# Words of the pump.
(
    EVENTS, NEXT_EVENT, DIRTY, SEGMENTS, LATER_AT, NOW_MS, OUTSTANDING_MAX, DATA_AT, OUT_AT, ALL_BY_HAND,
    # Of the peer that is handed back.
    SLOT, BEGIN, END,
) = range(13)  # fmt: skip
PUMP_WORDS: Final = 16

SEGMENT_WORDS: Final = 4
"""slot, first byte, end, how many answers."""

TAIL_BYTES_MAX: Final = 2048
"""Of an unfinished frame that is kept here."""
OUT_BYTES_MIN: Final = 16 << 10
"""Room for answers without which a peer is not read."""

ALL_READ: Final = 0
READ_BY_HAND: Final = 1
"""SLOT's bytes are for the caller to receive: it was told so, or there is trouble with its socket."""
GO_ON_BY_HAND: Final = 2
"""BEGIN to END of the data are SLOT's, and not all for the kernel."""
CROWDED: Final = 3
"""SLOT has too many requests without an answer."""
NO_ROOM: Final = 4
"""Take the answers of commits, send what is ready, and go on."""


@kernel("int64(int64[::1], int64, int64, int64)", nogil=False, _nrt=False)
def wait_ready(pump: Any, epoll: Any, events_at: Any, events_max: Any) -> Any:
    """How many peers have something to say. Not whether more have than fit: they are there the next time."""
    count = np.int64(epoll_wait(np.int32(epoll), events_at, np.int32(events_max), np.int32(0)))
    pump[EVENTS], pump[NEXT_EVENT] = max(count, 0), 0
    return pump[EVENTS]


@kernel("void(int64[::1], int64[::1], int64[::1], int64, int64)", nogil=False, _nrt=False)
def add_out(pump: Any, row: Any, dirty: Any, slot: Any, count: Any) -> Any:
    """So many bytes were put behind what the peer has in `out`. A slot is in `dirty` once, whoever had or has it."""
    if count and not row[IS_DIRTY]:
        row[IS_DIRTY] = 1
        dirty[pump[DIRTY]] = slot
        pump[DIRTY] += 1
    row[OUT_BYTES] += count


@kernel("int64(uint8[::1], int64, int64)", nogil=False, _nrt=False)
def frame_bytes(data: Any, begin: Any, end: Any) -> Any:
    """Of the unfinished frame that begins there, header and all, as far as it is known."""
    if end - begin < HEADER_BYTES:
        return end - begin
    length = np.int64(0)
    for index in range(HEADER_BYTES):
        length = length << 8 | np.int64(data[begin + index])
    return HEADER_BYTES + length


@kernel(
    "int64(int64[::1], int64[:, ::1], int32[::1], uint8[::1], uint8[::1], uint8[:, ::1], uint8[:, ::1], "
    "uint8[::1], int64[:, ::1], int64[::1], int64[::1], uint64[::1], uint64, int64[:, ::1], int64[::1], int64[:, ::1], "
    "int64[::1], int64[::1], int64[:, ::1], int64[::1])",
    nogil=False,
    _nrt=False,
)
def read_ready(
    pump: Any, slots: Any, slot_of: Any, events: Any, data: Any, tails: Any, out: Any, later: Any, segments: Any,
    dirty: Any, state: Any, words: Any, buckets: Any, tables: Any, rare_starts: Any, ops: Any, cell_ids: Any,
    table_ids: Any, records: Any, completed: Any,
) -> Any:  # fmt: skip
    """One chunk of each peer that is ready, from NEXT_EVENT on."""
    while pump[NEXT_EVENT] < pump[EVENTS]:
        at = pump[NEXT_EVENT] * _EVENT_BYTES + _EVENT_DATA_AT
        slot = np.int64(slot_of[np.int64(events[at]) | np.int64(events[at + 1]) << 8])
        row = slots[slot]
        if not row[LIVE]:
            pump[NEXT_EVENT] += 1
            continue
        if row[BY_HAND] or pump[ALL_BY_HAND]:
            pump[NEXT_EVENT] += 1
            pump[SLOT] = slot
            return READ_BY_HAND
        out_room = out.shape[1] - row[OUT_BYTES]
        if pump[SEGMENTS] >= len(segments) or out_room < OUT_BYTES_MIN or len(later) - pump[LATER_AT] < OUT_BYTES_MIN:
            return NO_ROOM
        pump[NEXT_EVENT] += 1
        pump[SLOT] = slot
        tail = row[TAIL_BYTES]
        for index in range(tail):
            data[index] = tails[slot, index]
        got = recv(np.int32(row[FD]), pump[DATA_AT] + tail, len(data) - tail, np.int32(_NEVER_WAIT))
        if got <= 0:
            return READ_BY_HAND
        end = tail + got
        row[TAIL_BYTES], row[HEARD] = 0, 1
        state[EXTENDED], state[OPS_MAX] = row[IS_EXTENDED], len(ops)
        before = state[RECORDS]
        status = decide_chunk(
            data, 0, end, state, words, buckets, tables, rare_starts, ops, cell_ids, table_ids, records,
            completed, out[slot][row[OUT_BYTES]:], later[pump[LATER_AT]:],
        )  # fmt: skip
        add_out(pump, row, dirty, slot, state[NOW_BYTES])
        committed = state[RECORDS] - before
        if committed:
            segment = segments[pump[SEGMENTS]]
            segment[0], segment[1] = slot, pump[LATER_AT]
            segment[2], segment[3] = pump[LATER_AT] + state[LATER_BYTES], committed
            pump[SEGMENTS] += 1
            pump[LATER_AT] += state[LATER_BYTES]
            row[OUTSTANDING] += committed
        begin = state[CONSUMED]
        if status != DONE or frame_bytes(data, begin, end) > TAIL_BYTES_MAX:
            pump[BEGIN], pump[END] = begin, end
            return GO_ON_BY_HAND
        if begin < end:
            for index in range(begin, end):
                tails[slot, index - begin] = data[index]
            row[TAIL_BYTES] = end - begin
            if tail == 0 or begin > 0:
                row[TAIL_SINCE_MS] = pump[NOW_MS]
        if row[OUTSTANDING] > pump[OUTSTANDING_MAX]:
            return CROWDED
    return ALL_READ


@kernel(
    "int64(int64[::1], int64[:, ::1], uint8[:, ::1], int64[::1], uint8[::1], int64[:, ::1], int64)",
    nogil=False,
    _nrt=False,
)
def place_later(pump: Any, slots: Any, out: Any, dirty: Any, later: Any, segments: Any, first: Any) -> Any:
    """Segments from `first` on to their peers' places. Returns the first that is for the caller: a peer that left, or
    whose place is full."""
    for index in range(first, len(segments)):
        slot, begin, end = segments[index, 0], segments[index, 1], segments[index, 2]
        row = slots[slot]
        if not row[LIVE] or row[OUT_BYTES] + end - begin > out.shape[1]:
            return index
        to = pump[OUT_AT] + slot * out.shape[1] + row[OUT_BYTES]
        memcpy(to, np.int64(later.ctypes.data) + begin, end - begin)
        add_out(pump, row, dirty, slot, end - begin)
        row[OUTSTANDING] -= segments[index, 3]
    return len(segments)


@kernel("int64(int64[::1], int64[:, ::1], uint8[:, ::1], int64[::1])", nogil=False, _nrt=False)
def send_ready(pump: Any, slots: Any, out: Any, dirty: Any) -> Any:
    """Each peer's answers, at once. Returns how many peers did not take all: they are the first of `dirty`, with what
    is left at the beginning of their places."""
    stuck = 0
    for index in range(pump[DIRTY]):
        slot = dirty[index]
        row = slots[slot]
        row[IS_DIRTY] = 0
        count = row[OUT_BYTES]
        if count == 0 or not row[LIVE]:
            continue
        at = pump[OUT_AT] + slot * out.shape[1]
        sent = max(0, send(np.int32(row[FD]), at, count, np.int32(_NEVER_WAIT | _NO_SIGNAL)))
        if sent < count:
            for byte in range(count - sent):
                out[slot, byte] = out[slot, sent + byte]
            dirty[stuck] = slot
            stuck += 1
        row[OUT_BYTES] = count - sent
    pump[DIRTY] = 0
    return stuck
