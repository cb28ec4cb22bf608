"""Compiled decisions for the machine: its state is copied in before a call, and the decisions are copied out.

    machine (Python objects) ──► state ──► decide_chunk ──► state ──► machine
                                                     │
                              answers to send now ◄──┴──► entries in the open batch's block, answers for its release

Compiled code decides only common begins and commits, and has no clock: the service calls `machine.handle` before a
chunk whenever its own clock has moved (`TsoService.may_decide`). Between two steps of the machine it may decide many
chunks. Its decisions stay in the state until `give_back`, because copying them out costs as much as deciding some ten
commits.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle.begins import STARTS_AHEAD, BatchState, EntryBlock
from pyomid.omid.oracle.chunk_oracle import DONE, FULL, RARE_FRAME, ChunkOracle, CommitReplies, Decided
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native import decide
from pyomid.omid.oracle.native.memory import CacheLineMap, Chunk, Op, OracleState, TableColumn, TableRows, moved
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.wire.codec import ReceivedRequest
from pyomid.omid.wire.frames import HEADER_BYTES
from pyomid.types import TIMESTAMP_STEP, AbortReason, CommitRequest

FRAME_BYTES_MIN: Final = HEADER_BYTES + 2
"""The shortest begin or commit: bounds the number of requests in a chunk."""

OPS_AFTER_RARE: Final = 64
"""Requests parsed in the first call after a rare request; grows fourfold, so that many rare requests stay cheap."""
REPLY_BYTES: Final = 1 << 20
_TAGS: Final = 1 << 64
"""A request id is unsigned on the wire; compiled code holds its 64 bits as a signed number."""
ROWS_MIN: Final = 1024
_COPIED_IN: Final = struct.Struct("=16q")
"""`OracleState` from its first field up to `reported_ts`: packing at once saves 2 µs over field by field."""


class CompiledOracle(ChunkOracle):
    """Decides as `ReferenceOracle`, in compiled code with its own scratch memory. Not thread-safe."""

    def __init__(self, machine: TsoMachine, *, chunk_bytes_max: int) -> None:
        self._machine = machine
        self._map = self._take_map()
        self._tables = TableRows()
        self._decidable: frozenset[int] | None = None
        self._rare_starts = np.zeros(0, dtype=np.int64)
        self._take_tables()
        self._state, self._chunk = OracleState(), Chunk()
        self._decided = Decided(0, DONE, b"", 0)
        self._newest = EntryBlock(ROWS_MIN)
        self._taken: EntryBlock | None = None
        """The open batch's block, while the state is ahead of the machine."""
        ops_max = chunk_bytes_max // FRAME_BYTES_MIN + 1
        self._ops_max = self._ops_next = ops_max
        ids, table_ids = (np.zeros(chunk_bytes_max, dtype=np.int64) for _ in range(2))
        now, later = (np.zeros(REPLY_BYTES, dtype=np.uint8) for _ in range(2))
        self._now_view, self._later_view = now.data, later.data
        self._decider = decide.Decider(
            self._chunk.as_array(), self._state.as_array(), (Op.array(ops_max), ids, table_ids), now, later
        )

    def decide_more(self, data: NDArray[np.uint8], begin: int, end: int, peer: Hashable, extended: bool) -> Decided:
        block = self._taken or self._take()
        before, chunk, newest_start = block.count, self._chunk, self._state.newest_start
        chunk.begin, chunk.end, chunk.extended, chunk.ops_max = begin, end, extended, self._ops_next
        self._decider.work_on(self._map.words, self._tables.rows, self._rare_starts, block.rows)
        status = self._decider.decide(data)
        block.count = self._state.entries
        if self._state.newest_start > newest_start:
            self._machine.open_starts.handed_out(peer, newest_start, self._state.newest_start)
        committed = block.count - before
        if committed:
            later = bytes(self._later_view[: chunk.later_bytes])
            self._machine.windows.open_batch.answers.append(CommitReplies(peer, later, committed, extended))
        now_bytes = chunk.now_bytes
        decided = self._decided
        decided.consumed, decided.status, decided.committed = chunk.consumed, status, committed
        decided.now = bytes(self._now_view[:now_bytes]) if now_bytes else b""
        self._ops_next = OPS_AFTER_RARE if status == RARE_FRAME else min(4 * self._ops_next, self._ops_max)
        self._close_if_full()
        if status == FULL and self._taken is not None and block.count == len(block.rows):
            block.grow(self._machine.settings.batch_entries_max)
        return decided

    def decode(self, payload: bytes) -> ReceivedRequest:
        return self.parsed(payload) or super().decode(payload)

    @staticmethod
    def parsed(payload: bytes) -> ReceivedRequest | None:
        """Return a long ordinary commit, its ids as an array: as `decode_request`, but five times as fast. None if the
        request is of another kind, or malformed."""
        framed = np.frombuffer(len(payload).to_bytes(HEADER_BYTES, "big") + payload, dtype=np.uint8).copy()
        cells, tables = (np.empty(len(framed), dtype=np.int64) for _ in range(2))  # memory is allocated when touched
        ops = Op.array(1)
        count, _ = decide.parse_frames(framed, 0, len(framed), 1, (ops, cells, tables))
        if not count:
            return None
        op = ops[0]
        ids = cast("tuple[int, ...]", cells[: op["cell_end"]].copy())
        start_ts, tag = int(op["ts"]), int(op["tag"]) % _TAGS
        if op["kind"] != decide.COMMIT:
            return None
        return ReceivedRequest(tag, CommitRequest(start_ts, ids, tuple(tables[: op["table_end"]].tolist())))

    def give_back(self) -> None:
        """Copy timestamps, windows and LWM back to the machine. Call before each of its steps."""
        if self._taken is None:
            return
        self._taken = None
        machine, state = self._machine, self._state
        machine.clock.next_ts = state.next_ts
        head = machine.windows.head
        head.next_start, head.window_end = state.window_next, state.window_end
        machine.absorb(newest_start=state.newest_start, low_watermark=state.low_watermark)

    def fold_counters(self) -> None:
        """Add the counts of begins and aborts to the machine's counters, and reset them."""
        counters, state = self._machine.step.counters, self._state
        counters["begins"] += state.begins
        counters[f"aborts_{AbortReason.CONFLICT.value}"] += state.aborts_conflict
        counters[f"aborts_{AbortReason.LOW_WATERMARK.value}"] += state.aborts_low_watermark
        counters[f"aborts_{AbortReason.FENCE.value}"] += state.aborts_fence
        state.begins = state.aborts_conflict = state.aborts_low_watermark = state.aborts_fence = 0

    @property
    def map_words(self) -> NDArray[np.uint64]:
        """The memory of the conflict map."""
        return self._map.words

    def _take_map(self) -> CacheLineMap:
        """Move the machine's conflict map to memory that compiled code reads, each entry to the same slot."""
        reference = self._machine.oracle.conflict_map
        compiled = moved(reference) if isinstance(reference, BucketMap) else reference
        assert isinstance(compiled, CacheLineMap)
        self._machine.oracle.conflict_map = compiled
        return compiled

    def _take_tables(self) -> None:
        """Move what the oracle remembers of tables to memory that the kernel reads."""
        oracle = self._machine.oracle
        for name, column in (
            ("fences", "fence_ts"),
            ("table_commits", "commit_ts"),
            ("table_conflicts", "conflicts"),
        ):
            view = TableColumn(self._tables, column)
            view.update(getattr(oracle, name))
            setattr(oracle, name, view)

    def _take(self) -> EntryBlock:
        """Copy the machine's timestamps, windows and limits into the state, until `give_back`."""
        machine = self._machine
        if machine.tables.decidable is not self._decidable:
            self._decidable = machine.tables.decidable
            self._tables.set_decidable(self._decidable)
        self._rare_starts = machine.rare_starts.as_array()
        batch = machine.windows.open_batch
        if batch.block is None:  # with more room than the last blocks needed: growing interrupts a chunk
            wanted = max(2 * self._newest.count, len(self._newest.rows) * 3 // 4)
            batch.block = EntryBlock(max(ROWS_MIN, min(wanted, machine.settings.batch_entries_max)))
        block = self._taken = self._newest = batch.block
        head, settings = machine.windows.head, machine.settings
        is_open = head.state is BatchState.OPEN
        _COPIED_IN.pack_into(
            self._state, 0,
            machine.clock.next_ts,
            machine.clock.ceiling,
            head.next_start,
            head.window_end,
            is_open and head.is_empty,
            machine.oracle.low_watermark,
            machine.begins.newest_start,
            machine.epoch,
            min(settings.window_starts, STARTS_AHEAD) * TIMESTAMP_STEP,
            settings.write_set_ids_max,
            not machine.begins.waiting.are_ready,
            is_open,
            block.count,
            settings.batch_entries_max - len(batch.entries),
            machine.begins.fenced_ts,
            machine.oracle.reported.newest_ts,
        )  # fmt: skip
        return block

    def _close_if_full(self) -> None:
        """Close a full batch at once, as the reference implementation does: the next batch begins at the clock."""
        state = self._state
        if state.entries >= state.entries_max and self._taken is not None:
            self.give_back()
            self._machine.windows.close_open_batch()
