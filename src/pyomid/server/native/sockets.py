"""The sockets of many peers, read and written by one compiled call: what comes is decided, what is answered leaves.

    epoll ─► read_ready: recv, decide_chunk ─► answers to send now: each peer's place in `out`
                                          └─► answers of commits: `later`, with a segment a peer
                 place_later: when their batch is released, each segment after what its peer has in `out`
                 send_ready: one send a peer

Anything out of the ordinary about a peer is handed back, to be done the long way: see the statuses. No call waits.
"""

from __future__ import annotations

import platform
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from numba import types

from pyomid.kernels.compiled import Record, Records, kernel, record
from pyomid.oracle.chunk_oracle import DONE
from pyomid.oracle.native.decide import decide_chunk
from pyomid.oracle.native.parse import frame_length
from pyomid.oracle.native.records import Chunk, Decisions, Memory, OracleState, Parsed
from pyomid.wire.frames import HEADER_BYTES

recv: Any = types.ExternalFunction("recv", types.int64(types.int32, types.int64, types.int64, types.int32))
send: Any = types.ExternalFunction("send", types.int64(types.int32, types.int64, types.int64, types.int32))
epoll_wait: Any = types.ExternalFunction("epoll_wait", types.int32(types.int32, types.int64, types.int32, types.int32))
memcpy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
_NEVER_WAIT: Final = 0x40
_NO_SIGNAL: Final = 0x4000

_EVENT_BYTES: Final = 12 if platform.machine() == "x86_64" else 16
_EVENT_DATA_AT: Final = _EVENT_BYTES - 8

TAIL_BYTES_MAX: Final = 2048
"""Of an unfinished frame that is kept here."""
OUT_BYTES_MIN: Final = 16 << 10
"""Room for answers without which a peer is not read."""


@record
class Slot(Record):
    """One peer."""

    fd: int
    live: int
    is_extended: int
    slow_path: int
    """Its connection has to receive what comes."""
    outstanding: int
    out_bytes: int
    """Ready to be sent."""
    tail_bytes: int
    tail_since_ms: int
    heard: int
    is_dirty: int
    open_above: int
    open_newest: int
    """Starts above the one and up to the other were handed out to it since the oracle was told; 0 and 0: none."""


@record
class LoopState(Record):
    """Of all peers."""

    events: int
    next_event: int
    dirty: int
    segments: int
    later_at: int
    now_ms: int
    outstanding_max: int
    data_at: int
    out_at: int
    all_slow_path: int
    slot: int
    begin: int
    end: int
    """Of the peer that is handed back."""


@record
class Segment(Record):
    """Answers of commits of one peer, among those of all."""

    slot: int
    begin: int
    end: int
    answers: int


class LoopBuffers(NamedTuple):
    """Where bytes lie."""

    slot_of: Annotated[Any, "int32[::1]"]
    """By descriptor, which is what epoll tells."""
    events: Annotated[Any, "uint8[::1]"]
    data: Annotated[Any, "uint8[::1]"]
    tails: Annotated[Any, "uint8[:, ::1]"]
    """Unfinished frames, by slot."""
    out: Annotated[Any, "uint8[:, ::1]"]
    """Answers that are ready, by slot."""
    later: Annotated[Any, "uint8[::1]"]
    segments: Annotated[Any, "Segment[::1]"]
    """Of `later`."""
    dirty: Annotated[Any, "int64[::1]"]
    """Slots that have something in `out`."""


ALL_READ: Final = 0
READ_BY_HAND: Final = 1
"""The slot's bytes are for the caller to receive: it was told so, or there is trouble with its socket."""
GO_ON_BY_HAND: Final = 2
"""`begin` to `end` of the data are the slot's, and not all for the kernel."""
CROWDED: Final = 3
"""The slot has too many requests without an answer."""
NO_ROOM: Final = 4
"""Take the answers of commits, send what is ready, and go on."""


@kernel("int64(LoopState[::1], int64, int64, int64)", nogil=False, _nrt=False)
def wait_ready(states: Records[LoopState], epoll: Any, events_at: Any, events_max: Any) -> Any:
    """How many peers have something to say. Not whether more have than fit: they are there the next time."""
    state = states[0]
    count: Any = np.int64(epoll_wait(np.int32(epoll), events_at, np.int32(events_max), np.int32(0)))
    state.events, state.next_event = max(count, 0), 0
    return state.events


@kernel("void(LoopState, Slot, int64[::1], int64, int64)", nogil=False, _nrt=False)
def note_out(state: LoopState, row: Slot, dirty: Any, slot: Any, count: Any) -> Any:
    """Notes that `count` bytes were appended to the peer's `out`. A slot is in `dirty` at most once."""
    if count and not row.is_dirty:
        row.is_dirty = 1
        dirty[state.dirty] = slot
        state.dirty += 1
    row.out_bytes += count


@kernel("void(LoopState[::1], Slot[::1], int64[::1], int64, int64)", nogil=False, _nrt=False)
def add_out(states: Records[LoopState], slots: Records[Slot], dirty: Any, slot: Any, count: Any) -> Any:
    """`note_out`, called from Python."""
    note_out(states[0], slots[slot], dirty, slot, count)


@kernel("int64(uint8[::1], int64, int64)", nogil=False, _nrt=False)
def frame_bytes(data: Any, begin: Any, end: Any) -> Any:
    """Of the unfinished frame that begins there, header and all, as far as it is known."""
    if end - begin < HEADER_BYTES:
        return end - begin
    return HEADER_BYTES + frame_length(data, begin)


@kernel(
    "int64(LoopState[::1], Slot[::1], Fields(LoopBuffers), Chunk[::1], OracleState[::1], Fields(Memory), "
    "Fields(Parsed), Fields(Decisions))",
    nogil=False,
    _nrt=False,
)
def read_ready(
    states: Records[LoopState],
    slots: Records[Slot],
    buffers: Any,
    chunks: Records[Chunk],
    oracle_states: Records[OracleState],
    memory: Any,
    parsed: Any,
    decisions: Any,
) -> Any:
    """One chunk of each peer that is ready, from `next_event` on."""
    state, chunk, oracle_state, buffers = states[0], chunks[0], oracle_states[0], LoopBuffers(*buffers)
    memory, parsed, decisions = Memory(*memory), Parsed(*parsed), Decisions(*decisions)
    events, data, out, later = buffers.events, buffers.data, buffers.out, buffers.later
    while state.next_event < state.events:
        at = state.next_event * _EVENT_BYTES + _EVENT_DATA_AT
        slot: Any = np.int64(buffers.slot_of[np.int64(events[at]) | np.int64(events[at + 1]) << 8])
        row = slots[slot]
        if not row.live:
            state.next_event += 1
            continue
        if row.slow_path or state.all_slow_path:
            state.next_event += 1
            state.slot = slot
            return READ_BY_HAND
        out_room = out.shape[1] - row.out_bytes
        later_room = len(later) - state.later_at
        if state.segments >= len(buffers.segments) or out_room < OUT_BYTES_MIN or later_room < OUT_BYTES_MIN:
            return NO_ROOM
        state.next_event += 1
        state.slot = slot
        tail = row.tail_bytes
        for index in range(tail):
            data[index] = buffers.tails[slot, index]
        got = recv(np.int32(row.fd), state.data_at + tail, len(data) - tail, np.int32(_NEVER_WAIT))
        if got <= 0:
            return READ_BY_HAND
        end = tail + got
        row.tail_bytes, row.heard = 0, 1
        chunk.begin, chunk.end, chunk.extended = 0, end, row.is_extended
        before, newest_start = oracle_state.entries, oracle_state.newest_start
        status = decide_chunk(
            data, chunk, oracle_state, memory, parsed, decisions, out[slot][row.out_bytes :], later[state.later_at :]
        )
        note_out(state, row, buffers.dirty, slot, chunk.now_bytes)
        if oracle_state.newest_start > newest_start:
            if not row.open_newest:
                row.open_above = newest_start
            row.open_newest = oracle_state.newest_start
        committed = oracle_state.entries - before
        if committed:
            segment = buffers.segments[state.segments]
            segment.slot, segment.begin, segment.answers = slot, state.later_at, committed
            state.later_at += chunk.later_bytes
            segment.end = state.later_at
            state.segments += 1
            row.outstanding += committed
        begin = chunk.consumed
        if status != DONE or frame_bytes(data, begin, end) > TAIL_BYTES_MAX:
            state.begin, state.end = begin, end
            return GO_ON_BY_HAND
        if begin < end:
            for index in range(begin, end):
                buffers.tails[slot, index - begin] = data[index]
            row.tail_bytes = end - begin
            if tail == 0 or begin > 0:
                row.tail_since_ms = state.now_ms
        if row.outstanding > state.outstanding_max:
            return CROWDED
    return ALL_READ


@kernel(
    "int64(LoopState[::1], Slot[::1], uint8[:, ::1], int64[::1], uint8[::1], Segment[::1], int64)",
    nogil=False,
    _nrt=False,
)
def place_later(
    states: Records[LoopState],
    slots: Records[Slot],
    out: Any,
    dirty: Any,
    later: Any,
    segments: Records[Segment],
    first: Any,
) -> Any:
    """Segments from `first` on to their peers' places. Returns the first that is for the caller: a peer that left, or
    whose place is full."""
    state = states[0]
    for index in range(first, len(segments)):
        segment = segments[index]
        row, count = slots[segment.slot], segment.end - segment.begin
        if not row.live or row.out_bytes + count > out.shape[1]:
            return index
        to = state.out_at + segment.slot * out.shape[1] + row.out_bytes
        memcpy(to, np.int64(later.ctypes.data) + segment.begin, count)
        note_out(state, row, dirty, segment.slot, count)
        row.outstanding -= segment.answers
    return len(segments)


@kernel("int64(LoopState[::1], Slot[::1], uint8[:, ::1], int64[::1])", nogil=False, _nrt=False)
def send_ready(states: Records[LoopState], slots: Records[Slot], out: Any, dirty: Any) -> Any:
    """Each peer's answers, at once. Returns how many peers did not take all: they are the first of `dirty`, with what
    is left at the beginning of their places."""
    state, stuck = states[0], 0
    for index in range(state.dirty):
        slot = dirty[index]
        row = slots[slot]
        row.is_dirty = 0
        count = row.out_bytes
        if count == 0 or not row.live:
            continue
        at = state.out_at + slot * out.shape[1]
        sent = max(0, send(np.int32(row.fd), at, count, np.int32(_NEVER_WAIT | _NO_SIGNAL)))
        if sent < count:
            for byte in range(count - sent):
                out[slot, byte] = out[slot, sent + byte]
            dirty[stuck] = slot
            stuck += 1
        row.out_bytes = count - sent
    state.dirty = 0
    return stuck
