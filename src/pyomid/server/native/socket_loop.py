"""The peers whose sockets compiled code reads and writes: many peers, one call.

    epoll's descriptor is readable ─► `read` ─► the service ends its step ─► `release`, `send`

A peer is attached while nothing about it is out of the ordinary: a plain socket, its handshake done, its answers
taken as they come. Its transport stays its owner: it is paused, and has nothing to write. Whatever else happens
(the end, an error, answers that the socket does not take, a request that is not the kernel's) detaches it or is done
by its `Connection`, the long way; a peer that was slow once is attached again when it is not.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.oracle.chunk_oracle import CommitReplies
from pyomid.oracle.native.compiled_oracle import CompiledOracle
from pyomid.oracle.native.decide import decide_frames
from pyomid.server.native import sockets
from pyomid.server.native.sockets import TAIL_BYTES_MAX, LoopState, Segment, Slot

if TYPE_CHECKING:
    from pyomid.server.peer import Connection, ReceiveBuffer

PEERS_MAX: Final = 1024
"""Those beyond are served the long way."""
DESCRIPTORS_MAX: Final = 1 << 16
EVENTS_MAX: Final = 256
OUT_BYTES: Final = 256 << 10
LATER_BYTES: Final = 1 << 20
SEGMENTS_MAX: Final = 1024

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

KERNELS: Final = (
    decide_frames,
    sockets.wait_ready,
    sockets.read_ready,
    sockets.place_later,
    sockets.send_ready,
    sockets.add_out,
)


def load_kernels() -> None:
    """All that the TSO calls: now, and not between two steps of its loop."""
    for kernel in KERNELS:
        kernel.compiled()


class SocketReplies:
    """`oracle.instructions.EncodedReplies` of all peers that one call read."""

    __slots__ = ("count", "peer", "segments", "taken")

    def __init__(self, socket_loop: SocketLoop, taken: Bytes, segments: NDArray[Any], count: int) -> None:
        self.peer = socket_loop
        self.taken = taken
        self.segments = segments
        """`Segment` records."""
        self.count = count

    @property
    def data(self) -> bytes:
        return self.taken.tobytes()

    def without(self, refused: frozenset[int]) -> SocketReplies:
        """Read back and written again, peer by peer: seldom enough."""
        pieces, segments, at = [], self.segments.copy(), 0
        for index, (slot, begin, end, count) in enumerate(self.segments.tolist()):
            extended = bool(self.peer.slots[slot].is_extended)
            piece = CommitReplies(self.peer, self.taken[begin:end].tobytes(), count, extended).without(refused).data
            pieces.append(piece)
            segments["begin"][index], segments["end"][index] = at, at + len(piece)
            at += len(piece)
        taken = np.frombuffer(b"".join(pieces), dtype=np.uint8).copy()
        return SocketReplies(self.peer, taken, segments, self.count)


class SocketLoop:
    """On the loop's thread only."""

    def __init__(self, fast: CompiledOracle, receive: ReceiveBuffer, *, outstanding_max: int) -> None:
        self._fast = fast
        self._epoll = select.epoll()
        self.slots = (Slot * PEERS_MAX)()
        self._rows: NDArray[Any] = np.frombuffer(memoryview(self.slots), dtype=Slot.dtype())
        """The same, as kernels take them."""
        self._peers: list[Connection | None] = [None] * PEERS_MAX
        self._free = list(range(PEERS_MAX))[::-1]
        self._slot_of = np.zeros(DESCRIPTORS_MAX, dtype=np.int32)
        self._events: Bytes = np.zeros(EVENTS_MAX * 16, dtype=np.uint8)
        self._tails: Bytes = np.zeros((PEERS_MAX, TAIL_BYTES_MAX), dtype=np.uint8)
        self._out: Bytes = np.zeros((PEERS_MAX, OUT_BYTES), dtype=np.uint8)
        """Memory is taken as peers fill it."""
        self._later: Bytes = np.zeros(LATER_BYTES, dtype=np.uint8)
        self._segments = Segment.array(SEGMENTS_MAX)
        self._dirty: Int64s = np.zeros(PEERS_MAX, dtype=np.int64)
        self._buffers = (
            self._slot_of, self._events, receive.array, self._tails, self._out, self._later, self._segments,
            self._dirty,
        )  # fmt: skip
        """`sockets.LoopBuffers`."""
        self._state = LoopState(
            outstanding_max=outstanding_max, data_at=receive.array.ctypes.data, out_at=self._out.ctypes.data
        )
        self._states = self._state.as_array()
        self._events_at = self._events.ctypes.data
        self._wait = sockets.wait_ready.entry()
        self._read = sockets.read_ready.entry()
        self._place = sockets.place_later.entry()
        self._send = sockets.send_ready.entry()
        self._add = sockets.add_out.entry()
        self._open_starts = fast.open_starts
        self._open_starts.gather = self._tell_open

    def fileno(self) -> int:
        """Readable while an attached peer has something to say."""
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()

    # ── peers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, peer: Connection, fileno: int, *, extended: bool) -> int | None:
        """Its slot; its transport must neither read nor write from now on. None where there are too many."""
        if not self._free or fileno >= DESCRIPTORS_MAX:
            return None
        self._epoll.register(fileno, select.EPOLLIN)
        slot = self._free.pop()
        row = self.slots[slot]
        is_dirty = row.is_dirty  # by the peer that had the slot before: it is on the list still
        self.slots[slot] = Slot(fd=fileno, live=1, is_extended=extended, is_dirty=is_dirty)
        self._slot_of[fileno] = slot
        self._peers[slot] = peer
        return slot

    def detach(self, slot: int) -> int:
        """How many requests of it are without an answer: the connection's from now on, with all that `take_out` and
        `take_tail` give.

        Before its descriptor is closed. Answers of its commits that come later go to the connection.
        """
        self._tell_open()
        row = self.slots[slot]
        with suppress(OSError):
            self._epoll.unregister(row.fd)
        row.live = row.out_bytes = row.tail_bytes = 0
        outstanding = row.outstanding
        self._free_if_done(slot)
        return outstanding

    def take_out(self, slot: int) -> bytes:
        """Answers that are ready, for the connection to write."""
        row = self.slots[slot]
        out = self._out[slot, : row.out_bytes].tobytes()
        row.out_bytes = 0
        return out

    def put_out(self, slot: int, data: bytes) -> bool:
        """Appends to the answers that are ready. False: they do not fit."""
        row = self.slots[slot]
        begin, end = row.out_bytes, row.out_bytes + len(data)
        if end > OUT_BYTES:
            return False
        self._out[slot, begin:end] = np.frombuffer(data, dtype=np.uint8)
        self._add(self._states, self._rows, self._dirty, slot, len(data))
        return True

    def take_tail(self, slot: int) -> bytes:
        """The begin of a frame whose rest has not come."""
        row = self.slots[slot]
        tail = self._tails[slot, : row.tail_bytes].tobytes()
        row.tail_bytes = 0
        return tail

    def tail_since_s(self, slot: int) -> float:
        """Since when it waits for its rest; infinitely late where nothing waits."""
        row = self.slots[slot]
        return row.tail_since_ms / 1000 if row.tail_bytes else float("inf")

    def heard(self, slot: int) -> bool:
        """Whether anything came since this was asked last."""
        heard = bool(self.slots[slot].heard)
        self.slots[slot].heard = 0
        return heard

    def descriptor(self, slot: int) -> int:
        return self.slots[slot].fd

    def outstanding(self, slot: int) -> int:
        return self.slots[slot].outstanding

    def held_bytes(self, slot: int) -> int:
        row = self.slots[slot]
        return row.out_bytes + row.tail_bytes

    def use_slow_path(self, slot: int, slow_path: bool) -> None:
        """Whether its connection has to receive what comes."""
        self.slots[slot].slow_path = slow_path

    def _tell_open(self) -> None:
        """The oracle knows of every start that was handed out here (T16)."""
        rows = self._rows
        for slot in np.flatnonzero(rows["open_newest"]).tolist():
            row = self.slots[slot]
            self._open_starts.handed_out(self._peers[slot], row.open_above, row.open_newest)
            row.open_above = row.open_newest = 0

    def _free_if_done(self, slot: int) -> None:
        row = self.slots[slot]
        if not row.live and not row.outstanding:
            self._peers[slot] = None
            self._free.append(slot)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self) -> bool:
        """Whether some peer has something to say."""
        return bool(self._wait(self._states, self._epoll.fileno(), self._events_at, EVENTS_MAX))

    def read(self, now_s: float, *, slow_path: bool) -> int:
        """On from the last peer that was handed back; a status of `server.native.sockets`.
        `slow_path`: compiled code must decide nothing."""
        state = self._state
        state.now_ms, state.all_slow_path = int(1000 * now_s), slow_path
        status = self._fast.run(self._read, self._states, self._rows, self._buffers)
        count = state.segments
        if count:
            taken, segments = self._later[: state.later_at].copy(), self._segments[:count].copy()
            self._fast.answer_later(SocketReplies(self, taken, segments, self._fast.committed))
            state.segments = state.later_at = 0
        return status

    @property
    def handed_back(self) -> tuple[Connection, int, int]:
        """(peer, begin, end) of the last call."""
        state = self._state
        peer = self._peers[state.slot]
        assert peer is not None
        return peer, state.begin, state.end

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_ready(self) -> bool:
        return bool(self._state.dirty)

    def release(self, replies: SocketReplies) -> None:
        """Their batch is durable: appends each peer's answers to what it has ready."""
        at, segments = 0, replies.segments
        while True:
            at = self._place(self._states, self._rows, self._out, self._dirty, replies.taken, segments, at)
            if at == len(segments):
                return
            slot, begin, end, count = segments[at].tolist()
            peer, row = self._peers[slot], self.slots[slot]
            assert peer is not None, "a slot is not given away while an answer is due"
            row.outstanding -= count
            peer.hold(replies.taken[begin:end].tobytes(), 0 if row.live else count)
            self._free_if_done(slot)
            at += 1

    def send(self) -> list[Connection]:
        """One write a peer. Returns those that did not take all."""
        stuck = self._send(self._states, self._rows, self._out, self._dirty)
        return [peer for slot in self._dirty[:stuck].tolist() if (peer := self._peers[slot]) is not None]
