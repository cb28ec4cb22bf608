"""The kernel beside the machine: what it may know copied in before a call, what it decided copied out behind it.

    machine (Python objects) ──► state words ──► decide_chunk ──► state words ──► machine
                                                     │
                              answers to send now ◄──┴──► entries in the open batch's block, answers for its release

The machine stays the one owner of every rule that is not a plain begin or commit, and of all time: the service calls
`machine.handle` before a chunk whenever its clock has moved (`TsoService.may_decide`). Between two steps of the
machine the kernel may take many chunks: what it decided stays in the state words until `give_back`, because carrying
it over costs as much as deciding some ten commits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from pyomid.oracle.instructions import EncodedReplies
from pyomid.oracle.machine import TsoMachine
from pyomid.oracle.native import decide as words
from pyomid.oracle.native import parse
from pyomid.oracle.native.conflict_map import CacheLineMap
from pyomid.oracle.native.tables import TableRows, fences, table_commits
from pyomid.oracle.windows import BatchState, EntryBlock
from pyomid.types import TIMESTAMP_STEP, AbortReason, CommitReply, CommitRequest
from pyomid.wire.frames import HEADER_BYTES
from pyomid.wire.messages import Complete
from pyomid.wire.requests import Incoming
from pyomid.wire.responses import decode_answer, encode_answer

FRAME_BYTES_MIN: Final = HEADER_BYTES + 2
"""No begin and no commit is shorter: what bounds the requests of a chunk by its bytes."""
OPS_AFTER_RARE: Final = 64
"""Requests parsed in the first call behind a rare one; grows fourfold, so that many rare ones stay cheap."""
REPLY_BYTES: Final = 1 << 20
ROWS_MIN: Final = 1024
COMPLETED_MAX: Final = 1 << 16
"""Starts of complete transactions between two steps of the machine."""
_CARRIED_IN: Final = struct.Struct(f"={words.EXTENDED}q")
"""The state words from NEXT_TS up to EXTENDED: an array takes three times as long to fill."""


@dataclass(slots=True)
class CommitReplies:
    """`oracle.instructions.EncodedReplies` of one peer."""

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


@dataclass(slots=True)
class Decided:
    """What became of a chunk: how far it was taken, why no further, and what to send at once. Until the next one."""

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
        self._settled: frozenset[int] | None = None
        self._rare_starts = np.zeros(0, dtype=np.int64)
        self._adopt_tables()
        self._decide_chunk = words.decide_chunk.compiled()
        self._state = np.zeros(words.STATE_WORDS, dtype=np.int64)
        self._word = memoryview(self._state)  # type: ignore[arg-type]
        """The same, a word at a time: an array's own way there is five times as long."""
        self._decided = Decided(0, words.DONE, b"", 0)
        self.committed = 0
        """By the last `run`."""
        self._newest = EntryBlock(ROWS_MIN)
        self._taken: EntryBlock | None = None
        """The open batch's block, while the state words are ahead of the machine."""
        ops_max = chunk_bytes_max // FRAME_BYTES_MIN + 1
        self._ops = np.zeros((ops_max, parse.OP_WORDS), dtype=np.int64)
        self._ops_next = ops_max
        self._cells = np.zeros(chunk_bytes_max, dtype=np.int64)
        self._table_ids = np.zeros(chunk_bytes_max, dtype=np.int64)
        self._completed = np.zeros(COMPLETED_MAX, dtype=np.int64)
        self._now = np.zeros(REPLY_BYTES, dtype=np.uint8)
        self._later = np.zeros(REPLY_BYTES, dtype=np.uint8)
        self._now_view = memoryview(self._now)  # type: ignore[arg-type]
        self._later_view = memoryview(self._later)  # type: ignore[arg-type]

    def decide(self, data: NDArray[np.uint8], begin: int, end: int, *, peer: Hashable, extended: bool) -> Decided:
        """`decide_more`, and the machine knows of it at once."""
        decided = self.decide_more(data, begin, end, peer, extended)
        self.give_back()
        return decided

    def decide_more(self, data: NDArray[np.uint8], begin: int, end: int, peer: Hashable, extended: bool) -> Decided:
        """The frames of `data[begin:end]`, up to the first that is not the kernel's. Only while `may_decide_fast`.

        The machine must not be asked for anything before `give_back`.
        """
        block = self._taken or self._take()
        word = self._word
        before = block.count
        word[words.EXTENDED], word[words.OPS_MAX] = extended, self._ops_next
        status = self._decide_chunk(
            data, begin, end, self._state, self._map.words, self._buckets, self._tables.rows, self._rare_starts,
            self._ops, self._cells, self._table_ids, block.rows, self._completed, self._now, self._later,
        )  # fmt: skip
        block.count = word[words.RECORDS]
        committed = block.count - before
        if committed:
            later = bytes(self._later_view[: word[words.LATER_BYTES]])
            self._machine.windows.open_batch.answers.append(CommitReplies(peer, later, committed, extended))
        now_bytes = word[words.NOW_BYTES]
        decided = self._decided
        decided.consumed, decided.status, decided.committed = word[words.CONSUMED], status, committed
        decided.now = bytes(self._now_view[:now_bytes]) if now_bytes else b""
        self._ops_next = OPS_AFTER_RARE if status == words.RARE_FRAME else min(4 * self._ops_next, len(self._ops))
        if status == words.FULL and block.count == len(block.rows):
            self.give_back()
            self._make_room(block)
        return decided

    @staticmethod
    def parsed(payload: bytes) -> Incoming | None:
        """A long plain commit or completion, its ids an array: what `decode_request` gives, in a fifth of the time.
        None where it is for the decoder."""
        framed = np.frombuffer(len(payload).to_bytes(HEADER_BYTES, "big") + payload, dtype=np.uint8).copy()
        ops = np.zeros((1, parse.OP_WORDS), dtype=np.int64)
        cells, tables = (np.empty(len(framed), dtype=np.int64) for _ in range(2))  # memory is taken as it is filled
        count, _ = parse.parse_chunk(framed, 0, len(framed), 1, ops, cells, tables)
        if not count:
            return None
        op = ops[0]
        ids = cast("tuple[int, ...]", cells[: op[parse.CELL_END]].copy())
        start_ts, tag = int(op[parse.TS]), int(op[parse.TAG])
        if op[parse.KIND] == parse.COMPLETE:
            return Incoming(tag, Complete(ids))
        if op[parse.KIND] == parse.COMMIT:
            named = tuple(tables[: op[parse.TABLE_END]].tolist())
            return Incoming(tag, CommitRequest(start_ts, ids, named))
        return None

    def run(self, kernel: Callable[..., int], *arguments: Any) -> int:
        """`kernel` with these arguments and all that `decide_chunk` works on. As `decide_more`, but for the answers of
        what it committed: `answer_later`."""
        block = self._taken or self._take()
        before = block.count
        status = kernel(
            *arguments, self._state, self._map.words, self._buckets, self._tables.rows, self._rare_starts, self._ops,
            self._cells, self._table_ids, block.rows, self._completed,
        )  # fmt: skip
        block.count = self._word[words.RECORDS]
        self.committed = block.count - before
        return status

    def answer_later(self, replies: EncodedReplies) -> None:
        """When the open batch is released."""
        self._machine.windows.open_batch.answers.append(replies)

    def give_back(self) -> None:
        """Timestamps, windows and low watermark go back to the machine. Before each of its steps."""
        if self._taken is None:
            return
        self._taken = None
        machine, word = self._machine, self._word
        machine.clock.next_ts = word[words.NEXT_TS]
        head = machine.windows.head
        head.next_start, head.window_end = word[words.WINDOW_NEXT], word[words.WINDOW_END]
        count, word[words.COMPLETED] = word[words.COMPLETED], 0
        machine.absorb(
            newest_start=word[words.NEWEST_START],
            low_watermark=word[words.LWM],
            replies=None,
            completed=self._completed[:count].copy() if count else None,
        )

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

    def _take(self) -> EntryBlock:
        """The machine's timestamps, windows and rules into the state words, until `give_back`."""
        machine, word = self._machine, self._word
        if machine.tables.settled is not self._settled:
            self._settled = machine.tables.settled
            self._tables.set_settled(self._settled)
        self._rare_starts = machine.rare_starts.as_array()
        batch = machine.windows.open_batch
        if batch.block is None:  # with more room than those before needed: to grow is to stop amid a chunk
            wanted = max(2 * self._newest.count, len(self._newest.rows) * 3 // 4)
            batch.block = EntryBlock(max(ROWS_MIN, min(wanted, machine.settings.batch_entries_max)))
        block = self._taken = self._newest = batch.block
        windows, settings = machine.windows, machine.settings
        head = windows.head
        is_open = head.state is BatchState.OPEN
        _CARRIED_IN.pack_into(
            word, 0,
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
            machine.fenced_ts,
        )  # fmt: skip
        return block

    def _make_room(self, block: EntryBlock) -> None:
        rows_max = self._machine.settings.batch_entries_max
        if not block.grow(rows_max):
            self._machine.windows.close_open_batch()
