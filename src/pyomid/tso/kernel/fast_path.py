"""The kernel beside the machine: what it may know copied in before a call, what it decided copied out behind it.

    machine (Python objects) ──► state words ──► decide_chunk ──► state words ──► machine
                                                     │
                              answers to send now ◄──┴──► entries in the open batch's block, answers for its release

The machine stays the one owner of every rule that is not a plain begin or commit, and of all time: the service calls
`machine.handle` before a chunk whenever its clock has moved (`TsoService.decide`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.core.tso_machine import TsoMachine
from pyomid.core.windows import BatchState, EntryBlock
from pyomid.tso.kernel import decide_kernel as words
from pyomid.tso.kernel import parse_kernel
from pyomid.tso.kernel.map_kernel import CacheLineMap
from pyomid.tso.kernel.tables import TableRows, fences, table_commits
from pyomid.types import TIMESTAMP_STEP, AbortReason, CommitReply
from pyomid.wire.frames import HEADER_BYTES
from pyomid.wire.responses import decode_answer, encode_answer

FRAME_BYTES_MIN: Final = HEADER_BYTES + 2
"""No begin and no commit is shorter: what bounds the requests of a chunk by its bytes."""
OPS_AFTER_RARE: Final = 64
"""Requests parsed in the first call behind a rare one; grows fourfold, so that many rare ones stay cheap."""
REPLY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CommitReplies:
    """`core.instructions.EncodedReplies` of one peer."""

    peer: Hashable
    data: bytes
    count: int
    extended: bool

    def without(self, refused: frozenset[int]) -> CommitReplies:
        """Read back and written again: seldom enough."""
        frames: list[bytes] = []
        at = 0
        while at < len(self.data):
            end = at + HEADER_BYTES + int.from_bytes(self.data[at : at + HEADER_BYTES], "big")
            frame: bytes | None = self.data[at:end]
            answered = decode_answer(self.data[at + HEADER_BYTES : end])
            if isinstance(answered.body, CommitReply) and answered.body.start_ts in refused:
                aborted = CommitReply(answered.body.start_ts, 0, AbortReason.SEALED)
                frame = encode_answer(aborted, request_id=answered.request_id, extended=self.extended)
            frames.append(frame or b"")
            at = end
        return CommitReplies(self.peer, b"".join(frames), self.count, self.extended)


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a chunk: how far it was taken, why no further, and what to send at once."""

    consumed: int
    status: int
    now: bytes
    committed: int
    """How many more will come when their batch is released."""


class FastPath:
    """One machine's kernel, with the scratch it works in. Not thread-safe."""

    def __init__(self, machine: TsoMachine, *, chunk_bytes_max: int) -> None:
        assert isinstance(machine.oracle.conflict_map, CacheLineMap), "the machine was not made for the kernel"
        self._machine = machine
        self._map: CacheLineMap = machine.oracle.conflict_map
        self._buckets = np.uint64(self._map.buckets)
        self._tables = TableRows()
        self._known: frozenset[int] | None = None
        self._rare_starts = np.zeros(0, dtype=np.int64)
        self._rare_version = -1
        self._adopt_tables()
        self._decide_chunk = words.decide_chunk.compiled()
        self._state = np.zeros(words.STATE_WORDS, dtype=np.int64)
        ops_max = chunk_bytes_max // FRAME_BYTES_MIN + 1
        self._ops = np.zeros((ops_max, parse_kernel.OP_WORDS), dtype=np.int64)
        self._ops_next = ops_max
        self._cells = np.zeros(chunk_bytes_max, dtype=np.int64)
        self._table_ids = np.zeros(chunk_bytes_max, dtype=np.int64)
        self._now = np.zeros(REPLY_BYTES, dtype=np.uint8)
        self._later = np.zeros(REPLY_BYTES, dtype=np.uint8)
        self._now_view = memoryview(self._now)  # type: ignore[arg-type]
        self._later_view = memoryview(self._later)  # type: ignore[arg-type]

    def decide(self, data: NDArray[np.uint8], begin: int, end: int, *, peer: Hashable, extended: bool) -> Decided:
        """The frames of `data[begin:end]`, up to the first that is not the kernel's. Only while `may_decide_fast`."""
        machine = self._machine
        if machine.known_tables is not self._known:
            self._known = machine.known_tables
            self._tables.set_known(self._known)
        if machine.rare_version != self._rare_version:
            self._rare_version = machine.rare_version
            self._rare_starts = np.array(machine.rare_starts(), dtype=np.int64)
        block = self._block()
        state = self._state
        self._copy_in(state, block, extended)
        status = self._decide_chunk(
            data, begin, end, state, self._map.words, self._buckets, self._tables.rows, self._rare_starts,
            self._ops, self._cells, self._table_ids, block.rows, self._now, self._later,
        )  # fmt: skip
        decided = self._copy_out(state.tolist(), block, int(status), peer, extended)
        if status == words.FULL and block.count == len(block.rows):
            self._make_room(block)
        self._ops_next = OPS_AFTER_RARE if status == words.RARE_FRAME else min(4 * self._ops_next, len(self._ops))
        return decided

    def fold_counters(self) -> None:
        """Counts of begins and aborts, kept in the state between two folds."""
        counters, state = self._machine.counters, self._state
        counters["begins"] += int(state[words.BEGINS])
        for word, reason in (
            (words.ABORTS_CONFLICT, AbortReason.CONFLICT),
            (words.ABORTS_LWM, AbortReason.LOW_WATERMARK),
            (words.ABORTS_FENCE, AbortReason.FENCE),
        ):
            counters[f"aborts_{reason.value}"] += int(state[word])
            state[word] = 0
        state[words.BEGINS] = 0

    def _adopt_tables(self) -> None:
        """From now on the oracle's memory of tables lies where the kernel reads it."""
        oracle = self._machine.oracle
        for mapping, view in (
            (oracle.fences, fences(self._tables)),
            (oracle.table_commits, table_commits(self._tables)),
        ):
            view.update(mapping)
        oracle.fences = fences(self._tables)
        oracle.table_commits = table_commits(self._tables)

    def _block(self) -> EntryBlock:
        batch = self._machine.windows.open_batch
        if batch.block is None:
            batch.block = EntryBlock()
        return batch.block

    def _copy_in(self, state: NDArray[np.int64], block: EntryBlock, extended: bool) -> None:
        machine, windows, settings = self._machine, self._machine.windows, self._machine.settings
        head = windows.head
        is_open = head.state is BatchState.OPEN
        state[: words.BEGINS] = (
            machine.clock.next_ts,
            machine.clock.ceiling,
            head.next_start,
            head.window_end,
            is_open and head.is_empty,
            machine.oracle.low_watermark,
            machine.newest_start,
            machine.epoch,
            settings.window_starts * TIMESTAMP_STEP,
            settings.write_set_ids_max,
            not machine.begins_wait,
            is_open,
            block.count,
            extended,
            self._ops_next,
            0,
            0,
            0,
        )

    def _copy_out(self, state: list[int], block: EntryBlock, status: int, peer: Hashable, extended: bool) -> Decided:
        machine = self._machine
        machine.clock.next_ts = state[words.NEXT_TS]
        head = machine.windows.head
        head.next_start, head.window_end = state[words.WINDOW_NEXT], state[words.WINDOW_END]
        committed = state[words.RECORDS] - block.count
        block.count = state[words.RECORDS]
        later = bytes(self._later_view[: state[words.LATER_BYTES]])
        machine.absorb(
            newest_start=state[words.NEWEST_START],
            low_watermark=state[words.LWM],
            replies=CommitReplies(peer, later, committed, extended) if committed else None,
        )
        now = bytes(self._now_view[: state[words.NOW_BYTES]])
        return Decided(state[words.CONSUMED], status, now, committed)

    def _make_room(self, block: EntryBlock) -> None:
        rows_max = self._machine.settings.batch_entries_max
        if not block.grow(rows_max):
            self._machine.windows.close_open_batch()
