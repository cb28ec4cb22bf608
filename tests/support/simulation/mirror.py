"""The reference oracle and the compiled one over the same chunks: a difference in answers or in state raises.

Each decides for a machine of its own. What is no chunk (time, store calls that ended, requests that neither takes) goes
to both machines too, and their instructions are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle.chunk_oracle import FULL, RARE_FRAME, ChunkOracle, Decided, ReferenceOracle
from pyomid.omid.oracle.instructions import Event, Flush, Instruction, Reply, RequestCame, SendEncoded, StoreCall
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native.memory import CacheLineMap, moved
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.tso.service import switch_to_native
from pyomid.omid.wire.codec import decode_request, encode_answer
from pyomid.omid.wire.frames import HEADER_BYTES

CHUNK_BYTES_MAX: Final = 1 << 16


class MirrorOracle(ChunkOracle):
    """`twin`: a machine that has taken no step yet, over the reference's conflict map. It goes over to compiled code;
    `machine`, its copy, is decided for by the reference."""

    def __init__(self, twin: TsoMachine, is_extended: Callable[[Hashable], bool]) -> None:
        self.machine, self.twin = copy.deepcopy(twin), twin
        self._handle_twin = twin.handle
        self.reference = ReferenceOracle(self.machine.state)
        self.compiled = switch_to_native(twin, chunk_bytes_max=CHUNK_BYTES_MAX, wait_for_memory=True)
        self._is_extended = is_extended
        self.sent: list[tuple[Hashable, bytes]] = []
        """Frames that left, as the reference sent them."""
        self.by_chunk = self.by_handle = 0
        """Frames that went each way."""

    def decide(self, data: NDArray[np.uint8], begin: int, end: int, *, peer: Hashable, extended: bool) -> Decided:
        one = self.reference.decide(data, begin, end, peer=peer, extended=extended)
        two = self.compiled.decide(data, begin, end, peer=peer, extended=extended)
        at, now, committed = two.consumed, two.now, two.committed
        while two.status == FULL:
            two = self.compiled.decide(data, at, end, peer=peer, extended=extended)
            at, now, committed = two.consumed, now + two.now, committed + two.committed
        assert (at, two.status, now, committed) == (one.consumed, one.status, one.now, one.committed)
        self._compare()
        self._compare_maps()
        return one

    def take(self, peer: Hashable, data: bytes, now_s: float) -> list[Instruction]:
        """Whole frames of a peer, by chunks, and what is rare by `handle`; then what is due. The store's calls."""
        chunk, at, calls = np.frombuffer(bytearray(data), dtype=np.uint8), 0, []
        extended = self._is_extended(peer)
        while at < len(data):
            if not self.machine.may_decide_fast:
                stop = self._end_of(data, at)
            else:
                before = at
                decided = self.decide(chunk, at, len(data), peer=peer, extended=extended)
                self._send(peer, decided.now)
                at = decided.consumed
                self.by_chunk += at > before
                if decided.status != RARE_FRAME:
                    break
                stop = self._end_of(data, at)
            incoming = decode_request(data[at + HEADER_BYTES : stop])
            self.by_handle += 1
            calls += self.handle([RequestCame(peer, incoming.request_id, incoming.body)], now_s)  # type: ignore[arg-type]
            at = stop
        return calls + self.handle([], now_s)

    def handle(self, events: Sequence[Event], now_s: float) -> list[Instruction]:
        """By both machines; what is not sent to a peer is returned."""
        others, _ = self._split(self.handle_by_both(events, now_s))
        return others

    def handle_by_both(self, events: Sequence[Event], now_s: float, wall_ns: int = 0) -> list[Instruction]:
        """As `TsoMachine.handle`, of the twin."""
        one, sent = self._split(self.machine.handle(events, now_s, wall_ns))
        instructions = self._handle_twin(events, now_s, wall_ns)
        two, twins = self._split(instructions)
        assert [*map(_plain, one)] == [*map(_plain, two)]
        assert sent == twins
        self.sent += sent
        if not self.twin.dead:
            self._compare()
        return instructions

    def _split(self, instructions: Iterable[Instruction]) -> tuple[list[Instruction], list[tuple[Hashable, bytes]]]:
        others: list[Instruction] = []
        sent: list[tuple[Hashable, bytes]] = []
        for each in instructions:
            match each:
                case Reply(peer, tag, answer):  # a Java client has no bytes for some
                    encoded = encode_answer(answer, request_id=tag, extended=self._is_extended(peer))
                    sent += [(peer, encoded)] if encoded else []
                case SendEncoded(replies):
                    sent += [(replies.peer, frame) for frame in _frames(replies.data)]
                case _:
                    others.append(each)
        return others, sent

    def _send(self, peer: Hashable, data: bytes) -> None:
        self.sent += [(peer, frame) for frame in _frames(data)]

    @staticmethod
    def _end_of(data: bytes, at: int) -> int:
        return at + HEADER_BYTES + int.from_bytes(data[at : at + HEADER_BYTES], "big")

    def _compare(self) -> None:
        self.machine.validate()
        self.twin.validate()
        one, two = _facts(self.machine), _facts(self.twin)
        assert one == two, {name: (one[name], two[name]) for name in one if one[name] != two[name]}

    def _compare_maps(self) -> None:
        reference, compiled = self.machine.state.oracle.conflict_map, self.twin.state.oracle.conflict_map
        assert isinstance(reference, BucketMap)
        assert isinstance(compiled, CacheLineMap)
        assert np.array_equal(moved(reference).words, compiled.words), "the maps hold the same entries"


def _frames(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        stop = at + HEADER_BYTES + int.from_bytes(data[at : at + HEADER_BYTES], "big")
        found.append(data[at:stop])
        at = stop
    return found


def _plain(instruction: Instruction) -> object:
    """A flush as the entries of it, wherever they lay."""
    if isinstance(instruction, StoreCall) and isinstance(instruction.operation, Flush):
        block = instruction.operation.block
        rows = [] if block is None else [(start, commit) for start, commit in block.tolist()]
        operation = instruction.operation
        return instruction.token, sorted([*operation.entries, *rows]), instruction.delay_s
    return instruction


def _facts(machine: TsoMachine) -> dict[str, Any]:
    tso = machine.state
    windows = tso.windows
    return {
        "low watermark": tso.oracle.low_watermark,
        "W": tso.watermarks.published, "W sent": tso.watermarks.sent, "D": tso.watermarks.decided,
        "clock": (tso.clock.next_ts, tso.clock.ceiling), "newest start": tso.newest_start,
        "windows": [(each.seq, each.state, each.next_start, each.window_end, each.size, each.fenced, each.large)
                    for each in windows.batches],
        "entries": [each.all_entries() for each in windows.batches],
        "fences": dict(tso.oracle.fences), "table commits": dict(tso.oracle.table_commits),
        "table conflicts": dict(tso.oracle.table_conflicts),
        "refused": set(tso.oracle.refused_starts),
        "reported ids": (tso.oracle.reported.count, tso.oracle.reported.newest_ts),
        "leases": tso.leases.starts, "large": set(tso.pending),
        "fenced": tso.fenced_ts,
        "counters": {name: count for name, count in tso.step.counters.items() if count},
        "open starts": tso.open_starts.held(),
        "next step": (tso.waiting_begins.are_ready, machine.may_decide_fast),
    }  # fmt: skip
