"""The peers whose sockets the kernel reads and writes itself: many peers, one call.

    epoll's descriptor is readable ─► `read` ─► the service settles ─► `release`, `send`

A peer is attached while nothing about it is out of the ordinary: a plain socket, its handshake done, its answers
taken as they come. Its transport stays its owner: it is paused, and has nothing to write. Whatever else happens
(the end, an error, answers that the socket does not take, a request that is not the kernel's) detaches it or is done
by its `Connection`, the long way; a peer that was slow once is attached again when it is not.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.oracle.native.decide import decide_chunk
from pyomid.oracle.native.fast_path import CommitReplies, FastPath
from pyomid.server.native import sockets as words

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

_KERNELS: Final = (
    decide_chunk,
    words.wait_ready,
    words.read_ready,
    words.place_later,
    words.send_ready,
    words.add_out,
)


def load_kernels() -> None:
    """All that the TSO calls: now, and not between two steps of its loop."""
    for kernel in _KERNELS:
        kernel.compiled()


def kernels_are_kept() -> bool:
    """Whether they are only to be loaded."""
    return all(kernel.is_kept for kernel in _KERNELS)


class SocketReplies:
    """`oracle.instructions.EncodedReplies` of all peers that one call read."""

    __slots__ = ("count", "peer", "segments", "taken")

    def __init__(self, pump: SocketLoop, taken: Bytes, segments: Int64s, count: int) -> None:
        self.peer = pump
        self.taken = taken
        self.segments = segments
        """Rows of (slot, first byte, end, how many answers)."""
        self.count = count

    @property
    def data(self) -> bytes:
        return self.taken.tobytes()

    def without(self, refused: frozenset[int]) -> SocketReplies:
        """Read back and written again, peer by peer: seldom enough."""
        pieces, segments, at = [], self.segments.copy(), 0
        for index, (slot, begin, end, count) in enumerate(self.segments.tolist()):
            extended = bool(self.peer.slots[slot, words.IS_EXTENDED])
            piece = CommitReplies(self.peer, self.taken[begin:end].tobytes(), count, extended).without(refused).data
            pieces.append(piece)
            segments[index, 1], segments[index, 2] = at, at + len(piece)
            at += len(piece)
        taken = np.frombuffer(b"".join(pieces), dtype=np.uint8).copy()
        return SocketReplies(self.peer, taken, segments, self.count)


class SocketLoop:
    """On the loop's thread only."""

    def __init__(self, fast: FastPath, receive: ReceiveBuffer, *, outstanding_max: int) -> None:
        self._fast = fast
        self._receive = receive
        self._epoll = select.epoll()
        self.slots: Int64s = np.zeros((PEERS_MAX, words.SLOT_WORDS), dtype=np.int64)
        self._peers: list[Connection | None] = [None] * PEERS_MAX
        self._free = list(range(PEERS_MAX))[::-1]
        self._slot_of = np.zeros(DESCRIPTORS_MAX, dtype=np.int32)
        """By descriptor, which is what epoll tells."""
        self._events: Bytes = np.zeros(EVENTS_MAX * 16, dtype=np.uint8)
        self._tails: Bytes = np.zeros((PEERS_MAX, words.TAIL_BYTES_MAX), dtype=np.uint8)
        self._out: Bytes = np.zeros((PEERS_MAX, OUT_BYTES), dtype=np.uint8)
        """Memory is taken as peers fill it."""
        self._later: Bytes = np.zeros(LATER_BYTES, dtype=np.uint8)
        self._segments: Int64s = np.zeros((SEGMENTS_MAX, words.SEGMENT_WORDS), dtype=np.int64)
        self._dirty: Int64s = np.zeros(PEERS_MAX, dtype=np.int64)
        self._words: Int64s = np.zeros(words.PUMP_WORDS, dtype=np.int64)
        self._word = memoryview(self._words)  # type: ignore[arg-type]
        self._word[words.OUTSTANDING_MAX] = outstanding_max
        self._word[words.DATA_AT] = receive.array.ctypes.data
        self._word[words.OUT_AT] = self._out.ctypes.data
        self._events_at = self._events.ctypes.data
        self._wait = words.wait_ready.compiled()
        self._read = words.read_ready.compiled()
        self._place = words.place_later.compiled()
        self._send = words.send_ready.compiled()
        self._add = words.add_out.compiled()

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
        is_dirty = row[words.IS_DIRTY]  # by the peer that had the slot before: it is on the list still
        row[:] = 0
        row[words.FD], row[words.LIVE], row[words.IS_EXTENDED], row[words.IS_DIRTY] = fileno, 1, extended, is_dirty
        self._slot_of[fileno] = slot
        self._peers[slot] = peer
        return slot

    def detach(self, slot: int) -> int:
        """How many requests of it are without an answer: the connection's from now on, with all that `take_out` and
        `take_tail` give.

        Before its descriptor is closed. Answers of its commits that come later go to the connection.
        """
        row = self.slots[slot]
        with suppress(OSError):
            self._epoll.unregister(int(row[words.FD]))
        row[words.LIVE] = row[words.OUT_BYTES] = row[words.TAIL_BYTES] = 0
        outstanding = int(row[words.OUTSTANDING])
        self._free_if_done(slot)
        return outstanding

    def take_out(self, slot: int) -> bytes:
        """Answers that are ready, for the connection to write."""
        row = self.slots[slot]
        out = self._out[slot, : row[words.OUT_BYTES]].tobytes()
        row[words.OUT_BYTES] = 0
        return out

    def put_out(self, slot: int, data: bytes) -> bool:
        """Behind the answers that are ready. False: no room."""
        row = self.slots[slot]
        begin, end = int(row[words.OUT_BYTES]), int(row[words.OUT_BYTES]) + len(data)
        if end > OUT_BYTES:
            return False
        self._out[slot, begin:end] = np.frombuffer(data, dtype=np.uint8)
        self._add(self._words, row, self._dirty, slot, len(data))
        return True

    def take_tail(self, slot: int) -> bytes:
        """The begin of a frame whose rest has not come."""
        row = self.slots[slot]
        tail = self._tails[slot, : row[words.TAIL_BYTES]].tobytes()
        row[words.TAIL_BYTES] = 0
        return tail

    def tail_since_s(self, slot: int) -> float:
        """Since when it waits for its rest; infinitely late where nothing waits."""
        row = self.slots[slot]
        return int(row[words.TAIL_SINCE_MS]) / 1000 if row[words.TAIL_BYTES] else float("inf")

    def heard(self, slot: int) -> bool:
        """Whether anything came since this was asked last."""
        heard = bool(self.slots[slot, words.HEARD])
        self.slots[slot, words.HEARD] = 0
        return heard

    def descriptor(self, slot: int) -> int:
        return int(self.slots[slot, words.FD])

    def outstanding(self, slot: int) -> int:
        return int(self.slots[slot, words.OUTSTANDING])

    def held_bytes(self, slot: int) -> int:
        row = self.slots[slot]
        return int(row[words.OUT_BYTES] + row[words.TAIL_BYTES])

    def read_by_hand(self, slot: int, by_hand: bool) -> None:
        """Whether its connection has to receive what comes."""
        self.slots[slot, words.BY_HAND] = by_hand

    def _free_if_done(self, slot: int) -> None:
        row = self.slots[slot]
        if not row[words.LIVE] and not row[words.OUTSTANDING]:
            self._peers[slot] = None
            self._free.append(slot)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self) -> bool:
        """Whether some peer has something to say."""
        return bool(self._wait(self._words, self._epoll.fileno(), self._events_at, EVENTS_MAX))

    def read(self, now_s: float, *, by_hand: bool) -> int:
        """On from the last peer that was handed back; a status of `pump_kernel`. `by_hand`: the kernel must not."""
        word = self._word
        word[words.NOW_MS], word[words.ALL_BY_HAND] = int(1000 * now_s), by_hand
        status = self._fast.run(
            self._read, self._words, self.slots, self._slot_of, self._events, self._receive.array, self._tails,
            self._out, self._later, self._segments, self._dirty,
        )  # fmt: skip
        if word[words.SEGMENTS]:
            count, later = word[words.SEGMENTS], word[words.LATER_AT]
            taken, segments = self._later[:later].copy(), self._segments[:count].copy()
            self._fast.answer_later(SocketReplies(self, taken, segments, self._fast.committed))
            word[words.SEGMENTS] = word[words.LATER_AT] = 0
        return status

    @property
    def handed_back(self) -> tuple[Connection, int, int]:
        """(peer, begin, end) of the last call."""
        peer = self._peers[self._word[words.SLOT]]
        assert peer is not None
        return peer, self._word[words.BEGIN], self._word[words.END]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_ready(self) -> bool:
        return bool(self._word[words.DIRTY])

    def release(self, replies: SocketReplies) -> None:
        """Their batch is durable: each peer's answers behind what it has ready."""
        at, segments = 0, replies.segments
        while True:
            at = self._place(self._words, self.slots, self._out, self._dirty, replies.taken, segments, at)
            if at == len(segments):
                return
            slot, begin, end, count = segments[at].tolist()
            peer, row = self._peers[slot], self.slots[slot]
            assert peer is not None, "a slot is not given away while an answer is due"
            row[words.OUTSTANDING] -= count
            peer.hold(replies.taken[begin:end].tobytes(), 0 if row[words.LIVE] else count)
            self._free_if_done(slot)
            at += 1

    def send(self) -> list[Connection]:
        """One write a peer. Returns those that did not take all."""
        stuck = self._send(self._words, self.slots, self._out, self._dirty)
        return [peer for slot in self._dirty[:stuck].tolist() if (peer := self._peers[slot]) is not None]
