"""Decide by compiled code that works on the TSO's own record, so nothing is copied in or out.

    state.TsoState ─┬─ numbers, windows of the oldest and the open batch, rows of the open batch   the same memory
                    ├─ conflict map, what is remembered of tables                                  the same memory
                    └─ decidable tables, rare starts, limits                 given anew after each step of the machine

Compiled code decides only common begins and commits, and has no clock. Before each chunk the service passes the time to
the machine (`TsoService.may_use_oracle`). Between two steps of the machine, compiled code may decide many chunks.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.oracle.chunk_oracle import DONE, FULL, RARE_FRAME, ChunkOracle, CommitReplies, Decided
from pyomid.omid.oracle.native import decide
from pyomid.omid.oracle.native.memory import CacheLineMap, Chunk, Op, TableColumn, TableRows, moved
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.oracle.status_oracle import BucketMap
from pyomid.omid.oracle.windows import STARTS_AHEAD
from pyomid.omid.wire.codec import ReceivedRequest
from pyomid.omid.wire.frames import HEADER_BYTES
from pyomid.types import TIMESTAMP_STEP, AbortReason, CommitRequest

FRAME_BYTES_MIN: Final = HEADER_BYTES + 2
"""The length of the shortest begin or commit; it bounds the number of requests in a chunk."""

OPS_AFTER_RARE: Final = 64
"""The number of requests parsed in the first call after a rare request. Each call parses four times as many as the one
before, so a chunk of many rare requests is still parsed cheaply."""
REPLY_BYTES: Final = 1 << 20
_TAGS: Final = 1 << 64
"""2⁶⁴. A request id is unsigned on the wire, but compiled code holds its 64 bits as a signed number."""
ROWS_MIN: Final = 1024


class CompiledOracle(ChunkOracle):
    """Decides in compiled code, with the same results as `ReferenceOracle`. Has its own scratch memory; not
    thread-safe."""

    def __init__(self, tso: TsoState, *, chunk_bytes_max: int) -> None:
        self._tso = tso
        self._map = self._take_map()
        self._tables = TableRows()
        self._decidable: frozenset[int] | None = None
        self._take_tables()
        settings = tso.settings
        self._chunk = Chunk(
            epoch=tso.epoch,
            window_span=min(settings.window_starts, STARTS_AHEAD) * TIMESTAMP_STEP,
            write_set_ids_max=settings.write_set_ids_max,
        )
        self._decided = Decided(0, DONE, b"", 0)
        self._batch = tso.windows.open_batch
        """The batch that has taken commits since the last `_prepare`."""
        self._prepared = 0
        """The step of the machine after which `_prepare` was called last; 0 if it must be called first."""
        self._row_count_max = 0
        ops_max = chunk_bytes_max // FRAME_BYTES_MIN + 1
        self._ops_max = self._ops_next = ops_max
        ids, table_ids = (np.zeros(chunk_bytes_max, dtype=np.int64) for _ in range(2))
        now, later = (np.zeros(REPLY_BYTES, dtype=np.uint8) for _ in range(2))
        self._decider = decide.Decider(self._chunk, tso.numbers, (Op.array(ops_max), ids, table_ids), now, later)

    def decide(self, data: NDArray[np.uint8], begin: int, end: int, *, peer: Hashable, extended: bool) -> Decided:
        tso = self._tso
        if self._prepared != tso.step.number:
            self._prepare()
        batch, newest_start = self._batch, tso.numbers.newest_start
        status, consumed, now, later, begins, commits, aborts = self._decider.decide(
            data, begin, end, extended, self._ops_next
        )
        if begins:
            tso.open_starts.handed_out(peer, newest_start, tso.numbers.newest_start)
            tso.step.counters["begins"] += begins
        if aborts:
            self._count_aborts()
        if commits:
            batch.answers.append(CommitReplies(peer, later, commits, extended))
            if tso.oracle.reported.committed:
                tso.oracle.note_low_watermark()
            if batch.row_count >= self._row_count_max:  # as in the reference, the next batch begins at the clock
                tso.windows.close_open_batch()
                self._prepared = 0
        if status == FULL and self._prepared and batch.grow(self._row_count_max):
            self._prepared = 0
        self._ops_next = OPS_AFTER_RARE if status == RARE_FRAME else min(4 * self._ops_next, self._ops_max)
        decided = self._decided
        decided.consumed, decided.status, decided.now, decided.committed = consumed, status, now, commits
        return decided

    def _prepare(self) -> None:
        """Point compiled code at the objects that a step of the machine may have replaced."""
        tso, chunk = self._tso, self._chunk
        self._prepared = tso.step.number
        if tso.tables.decidable is not self._decidable:
            self._decidable = tso.tables.decidable
            self._tables.set_decidable(self._decidable)
        head, batch = tso.windows.head, tso.windows.open_batch
        if batch.rows is None:  # give it more room than the last batch needed, because growing interrupts a chunk
            used = self._batch.rows
            wanted = max(2 * self._batch.row_count, 0 if used is None else len(used) * 3 // 4)
            batch.make_rows(max(ROWS_MIN, min(wanted, tso.settings.batch_entries_max)))
        self._batch = batch
        chunk.may_widen = head is batch and not (batch.entries or batch.answers or batch.fenced)
        chunk.begins_fast = not tso.waiting_begins.are_ready
        chunk.row_count_max = self._row_count_max = tso.settings.batch_entries_max - len(batch.entries)
        chunk.reported_ts = tso.oracle.reported.newest_ts
        self._decider.work_on(head, batch, self._map.words, self._tables.rows, tso.rare_starts.as_array())

    def _count_aborts(self) -> None:
        counters, chunk = self._tso.step.counters, self._chunk
        conflicts = chunk.aborts - chunk.aborts_low_watermark - chunk.aborts_fence
        counters[f"aborts_{AbortReason.CONFLICT.value}"] += conflicts
        counters[f"aborts_{AbortReason.LOW_WATERMARK.value}"] += chunk.aborts_low_watermark
        counters[f"aborts_{AbortReason.FENCE.value}"] += chunk.aborts_fence

    def decode(self, payload: bytes) -> ReceivedRequest:
        return self.parsed(payload) or super().decode(payload)

    @staticmethod
    def parsed(payload: bytes) -> ReceivedRequest | None:
        """Decode a long ordinary commit with its ids as an array, five times as fast as `decode_request`. Returns None
        if the request is of another kind or malformed."""
        framed = np.frombuffer(len(payload).to_bytes(HEADER_BYTES, "big") + payload, dtype=np.uint8).copy()
        cells, tables = (np.empty(len(framed), dtype=np.int64) for _ in range(2))  # untouched memory is never allocated
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

    @property
    def map_words(self) -> NDArray[np.uint64]:
        """The memory of the conflict map."""
        return self._map.words

    def _take_map(self) -> CacheLineMap:
        """Move the oracle's conflict map to memory that compiled code reads. Each entry keeps its slot."""
        reference = self._tso.oracle.conflict_map
        compiled = moved(reference) if isinstance(reference, BucketMap) else reference
        assert isinstance(compiled, CacheLineMap)
        self._tso.oracle.conflict_map = compiled
        return compiled

    def _take_tables(self) -> None:
        """Move what the oracle remembers of each table to memory that compiled code reads."""
        oracle = self._tso.oracle
        for name, column in (
            ("fences", "fence_ts"),
            ("table_commits", "commit_ts"),
            ("table_conflicts", "conflicts"),
        ):
            view = TableColumn(self._tables, column)
            view.update(getattr(oracle, name))
            setattr(oracle, name, view)
