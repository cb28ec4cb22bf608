"""Compiled decisions for the machine: its state is copied in before a call, and what was decided is copied out.

    machine (Python objects) ──► state ──► decide_chunk ──► state ──► machine
                                                     │
                              answers to send now ◄──┴──► entries in the open batch's block, answers for its release

The machine owns every rule that is not a plain begin or commit, and all time: the service calls `machine.handle` before
a chunk whenever its clock has moved (`TsoService.may_decide`). Between two steps of the machine the kernel may take
many chunks: what it decided stays in the state until `give_back`, because carrying it over costs as much as deciding
some ten commits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from pyomid.oracle.chunk_oracle import DONE, FULL, RARE_FRAME, ChunkOracle, CommitReplies, Decided
from pyomid.oracle.instructions import EncodedReplies
from pyomid.oracle.machine import TsoMachine
from pyomid.oracle.native.conflict_map import CacheLineMap, moved
from pyomid.oracle.native.decide import decide_frames
from pyomid.oracle.native.parse import COMMIT, COMPLETE, parse_frames
from pyomid.oracle.native.records import Chunk, Op, OracleState
from pyomid.oracle.native.tables import TableRows, fences, table_commits, table_conflicts
from pyomid.oracle.open_starts import OpenStarts
from pyomid.oracle.status_oracle import BucketMap
from pyomid.oracle.windows import BatchState, EntryBlock
from pyomid.types import TIMESTAMP_STEP, AbortReason, CommitRequest
from pyomid.wire.codec import Incoming
from pyomid.wire.frames import HEADER_BYTES
from pyomid.wire.messages import Complete

FRAME_BYTES_MIN: Final = HEADER_BYTES + 2
"""No begin and no commit is shorter: what bounds the requests of a chunk by its bytes."""
Arrays = tuple[NDArray[Any], ...]

OPS_AFTER_RARE: Final = 64
"""Requests parsed in the first call after a rare one; grows fourfold, so that many rare ones stay cheap."""
REPLY_BYTES: Final = 1 << 20
_TAGS: Final = 1 << 64
"""A request id is unsigned on the wire; kernels hold its 64 bits as a signed number."""
ROWS_MIN: Final = 1024
COMPLETED_MAX: Final = 1 << 16
"""Starts of complete transactions between two steps of the machine."""
_CARRIED_IN: Final = struct.Struct("=15q")
"""`OracleState` from its first field up to `fenced_ts`: field by field takes 2 µs longer."""


class CompiledOracle(ChunkOracle):
    """`ReferenceOracle`, compiled, with the scratch it works in. Not thread-safe."""

    def __init__(self, machine: TsoMachine, *, chunk_bytes_max: int) -> None:
        self._machine = machine
        self._map = self._take_map()
        self._tables = TableRows()
        self._decidable: frozenset[int] | None = None
        self._rare_starts = np.zeros(0, dtype=np.int64)
        self._take_tables()
        self._decide_frames = decide_frames.entry()
        self._state, self._chunk = OracleState(), Chunk()
        self._states, self._chunks = self._state.as_array(), self._chunk.as_array()
        """The same, as kernels take them."""
        self._decided = Decided(0, DONE, b"", 0)
        self.committed = 0
        """By the last `run`."""
        self._newest = EntryBlock(ROWS_MIN)
        self._taken: EntryBlock | None = None
        """The open batch's block, while the state is ahead of the machine."""
        ops_max = chunk_bytes_max // FRAME_BYTES_MIN + 1
        self._ops_max = self._ops_next = ops_max
        self._parsed = (
            Op.array(ops_max), np.zeros(chunk_bytes_max, dtype=np.int64), np.zeros(chunk_bytes_max, dtype=np.int64)
        )  # fmt: skip
        self._completed = np.zeros(COMPLETED_MAX, dtype=np.int64)
        self._now = np.zeros(REPLY_BYTES, dtype=np.uint8)
        self._later = np.zeros(REPLY_BYTES, dtype=np.uint8)
        self._replies = (self._now, self._later)
        self._now_view = memoryview(self._now)  # type: ignore[arg-type]
        self._later_view = memoryview(self._later)  # type: ignore[arg-type]

    def decide_more(self, data: NDArray[np.uint8], begin: int, end: int, peer: Hashable, extended: bool) -> Decided:
        block = self._taken or self._take()
        before, chunk, newest_start = block.count, self._chunk, self._state.newest_start
        chunk.begin, chunk.end, chunk.extended, chunk.ops_max = begin, end, extended, self._ops_next
        status = self._decide_frames(data, self._chunks, self._states, *self._working_on(block), self._replies)
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

    def decode(self, payload: bytes) -> Incoming:
        return self.parsed(payload) or super().decode(payload)

    @staticmethod
    def parsed(payload: bytes) -> Incoming | None:
        """A long plain commit or completion, its ids an array: what `decode_request` gives, in a fifth of the time.
        None where it is for the decoder."""
        framed = np.frombuffer(len(payload).to_bytes(HEADER_BYTES, "big") + payload, dtype=np.uint8).copy()
        cells, tables = (np.empty(len(framed), dtype=np.int64) for _ in range(2))  # memory is taken as it is filled
        ops = Op.array(1)
        count, _ = parse_frames(framed, 0, len(framed), 1, (ops, cells, tables))
        if not count:
            return None
        op = ops[0]
        ids = cast("tuple[int, ...]", cells[: op["cell_end"]].copy())
        start_ts, tag = int(op["ts"]), int(op["tag"]) % _TAGS
        if op["kind"] == COMPLETE:
            return Incoming(tag, Complete(ids))
        if op["kind"] == COMMIT:
            named = tuple(tables[: op["table_end"]].tolist())
            return Incoming(tag, CommitRequest(start_ts, ids, named))
        return None

    def run(self, kernel: Callable[..., int], *arguments: Any) -> int:
        """`kernel` with these arguments and all that `decide_chunk` works on. As `decide_more`, but for the answers of
        what it committed: `answer_later`."""
        block = self._taken or self._take()
        before = block.count
        self._chunk.ops_max = self._ops_max
        status = kernel(*arguments, self._chunks, self._states, *self._working_on(block))
        block.count = self._state.entries
        self.committed = block.count - before
        return status

    def answer_later(self, replies: EncodedReplies) -> None:
        """When the open batch is released. After each `run` that committed."""
        self._machine.windows.open_batch.answers.append(replies)
        self._close_if_full()

    def give_back(self) -> None:
        """Timestamps, windows and low watermark go back to the machine. Before each of its steps."""
        if self._taken is None:
            return
        self._taken = None
        machine, state = self._machine, self._state
        machine.clock.next_ts = state.next_ts
        head = machine.windows.head
        head.next_start, head.window_end = state.window_next, state.window_end
        count, state.completed = state.completed, 0
        machine.absorb(
            newest_start=state.newest_start,
            low_watermark=state.low_watermark,
            completed=self._completed[:count].copy() if count else None,
        )

    def fold_counters(self) -> None:
        """Counts of begins and aborts, kept in the state between two folds."""
        counters, state = self._machine.step.counters, self._state
        counters["begins"] += state.begins
        counters[f"aborts_{AbortReason.CONFLICT.value}"] += state.aborts_conflict
        counters[f"aborts_{AbortReason.LOW_WATERMARK.value}"] += state.aborts_low_watermark
        counters[f"aborts_{AbortReason.FENCE.value}"] += state.aborts_fence
        state.begins = state.aborts_conflict = state.aborts_low_watermark = state.aborts_fence = 0

    @property
    def open_starts(self) -> OpenStarts:
        return self._machine.open_starts

    @property
    def map_words(self) -> NDArray[np.uint64]:
        """The memory of the conflict map."""
        return self._map.words

    def _take_map(self) -> CacheLineMap:
        """The machine's conflict map lies where compiled code reads it from now on: each entry at the same place."""
        reference = self._machine.oracle.conflict_map
        compiled = moved(reference) if isinstance(reference, BucketMap) else reference
        assert isinstance(compiled, CacheLineMap)
        self._machine.oracle.conflict_map = compiled
        return compiled

    def _take_tables(self) -> None:
        """From now on the oracle's memory of tables lies where the kernel reads it."""
        oracle = self._machine.oracle
        for mapping, view in (
            (oracle.fences, fences(self._tables)),
            (oracle.table_commits, table_commits(self._tables)),
            (oracle.table_conflicts, table_conflicts(self._tables)),
        ):
            view.update(mapping)
        oracle.fences = fences(self._tables)
        oracle.table_commits = table_commits(self._tables)
        oracle.table_conflicts = table_conflicts(self._tables)

    def _take(self) -> EntryBlock:
        """The machine's timestamps, windows and rules into the state, until `give_back`."""
        machine = self._machine
        if machine.tables.decidable is not self._decidable:
            self._decidable = machine.tables.decidable
            self._tables.set_decidable(self._decidable)
        self._rare_starts = machine.rare_starts.as_array()
        batch = machine.windows.open_batch
        if batch.block is None:  # with more room than those before needed: to grow is to stop amid a chunk
            wanted = max(2 * self._newest.count, len(self._newest.rows) * 3 // 4)
            batch.block = EntryBlock(max(ROWS_MIN, min(wanted, machine.settings.batch_entries_max)))
        block = self._taken = self._newest = batch.block
        head, settings = machine.windows.head, machine.settings
        is_open = head.state is BatchState.OPEN
        _CARRIED_IN.pack_into(
            self._state, 0,
            machine.clock.next_ts,
            machine.clock.ceiling,
            head.next_start,
            head.window_end,
            is_open and head.is_empty,
            machine.oracle.low_watermark,
            machine.begins.newest_start,
            machine.epoch,
            settings.window_starts * TIMESTAMP_STEP,
            settings.write_set_ids_max,
            not machine.begins.waiting.are_ready,
            is_open,
            block.count,
            settings.batch_entries_max - len(batch.entries),
            machine.begins.fenced_ts,
        )  # fmt: skip
        return block

    def _working_on(self, block: EntryBlock) -> tuple[Arrays, Arrays, Arrays]:
        """`Memory`, `Parsed` and `Decisions`, as kernels take them from Python."""
        memory = (self._map.words, self._tables.rows, self._rare_starts)
        return memory, self._parsed, (block.rows, self._completed)

    def _close_if_full(self) -> None:
        """As the reference, before anything else happens: the next batch begins at the clock."""
        if self._state.entries >= self._state.entries_max and self._taken is not None:
            self.give_back()
            self._machine.windows.close_open_batch()
