"""Phase 2: begins answered and commits decided, in the order they came; `oracle.status_oracle` and `oracle.windows`,
compiled.

One call takes a chunk from phase 1 to the bytes of its answers. It stops before the first request that is rare, or
that must wait: the machine itself takes that one, and decides again after it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pyomid.kernels.compiled import Records, kernel
from pyomid.oracle.chunk_oracle import DONE, FULL, RARE_FRAME
from pyomid.oracle.native.conflict_map import BUCKET_WORDS, last_commit, prefetch_commits, prefetch_tags, record_commit
from pyomid.oracle.native.parse import BEGIN, COMPLETE, holds_frame, parse_chunk
from pyomid.oracle.native.records import Chunk, Decisions, Memory, Op, OracleState, Parsed, Replies
from pyomid.oracle.native.reply import (
    COMMITTED,
    CONFLICT,
    FENCE,
    LOW_WATERMARK,
    REPLY_BYTES_MAX,
    put_begin,
    put_commit,
)
from pyomid.oracle.native.tables import find_table
from pyomid.types import TIMESTAMP_STEP
from pyomid.wire.messages import TABLE_IDS_MAX

TAGS_AHEAD: Final = 32
COMMITS_AHEAD: Final = 16


@kernel("uint64(uint64[::1])", nogil=False, _nrt=False, forceinline=True)
def map_buckets(words: Any) -> Any:
    return np.uint64(len(words) // BUCKET_WORDS)


@kernel("boolean(int64[::1], int64)", nogil=False, _nrt=False, forceinline=True)
def is_among(sorted_starts: Any, start_ts: Any) -> Any:
    if len(sorted_starts) == 0:
        return False
    at = np.searchsorted(sorted_starts, start_ts)
    return at < len(sorted_starts) and sorted_starts[at] == start_ts


@kernel("boolean(OracleState, int64)", nogil=False, _nrt=False, forceinline=True)
def is_issued_start(state: OracleState, start_ts: Any) -> Any:
    return start_ts > 0 and start_ts <= state.newest_start and start_ts % TIMESTAMP_STEP == 0


@kernel("int64(OracleState, int64)", nogil=False, _nrt=False, forceinline=True)
def take_start(state: OracleState, not_before: Any) -> Any:
    """`BeginWindows.take_start` of the head batch: 0 is wait."""
    floor = max(not_before, state.low_watermark)
    above = floor - floor % TIMESTAMP_STEP + TIMESTAMP_STEP
    if max(state.window_next, above) >= state.window_end and state.may_widen:
        end = state.next_ts + state.window_span
        if end <= state.ceiling:
            state.window_next = state.next_ts
            state.window_end = state.next_ts = end
    start_ts = max(state.window_next, above)
    if start_ts >= state.window_end:
        return 0
    state.window_next = start_ts + TIMESTAMP_STEP
    state.newest_start = start_ts
    return start_ts


@kernel("boolean(OracleState, Memory, Op, int64[::1])", nogil=False, _nrt=False, forceinline=True)
def is_rare_commit(state: OracleState, memory: Memory, op: Op, table_ids: Any) -> Any:
    """What the machine answers otherwise than by the oracle: malformed, sealed, a retry, an unregistered table."""
    if not is_issued_start(state, op.ts) or op.table_end - op.table_begin > TABLE_IDS_MAX:
        return True
    if op.cell_end - op.cell_begin > state.write_set_ids_max or state.next_ts + TIMESTAMP_STEP > state.ceiling:
        return True
    for index in range(op.table_begin, op.table_end):
        table = memory.tables[find_table(memory.tables, table_ids[index])]
        if not table.is_known or not table.is_used:
            return True
    return is_among(memory.rare_starts, op.ts)


@kernel("UniTuple(int64, 2)(OracleState, Memory, Op, Parsed)", nogil=False, _nrt=False, forceinline=True)
def check_commit(state: OracleState, memory: Memory, op: Op, parsed: Parsed) -> Any:
    """`StatusOracle.check`: (COMMITTED or why not, the timestamp that caused it)."""
    if op.ts <= state.low_watermark:
        return LOW_WATERMARK, state.low_watermark
    for index in range(op.table_begin, op.table_end):
        fence_ts = memory.tables[find_table(memory.tables, parsed.table_ids[index])].fence_ts
        if fence_ts > op.ts:
            return FENCE, fence_ts
    cells, buckets = parsed.cell_ids.view(np.uint64), map_buckets(memory.words)
    for index in range(op.cell_begin, op.cell_end):
        commit_ts = np.int64(last_commit(memory.words, buckets, cells[index]))
        if commit_ts > op.ts:
            return CONFLICT, commit_ts
    return COMMITTED, np.int64(0)


@kernel("int64(OracleState, Memory, Op, Parsed)", nogil=False, _nrt=False, forceinline=True)
def record_op(state: OracleState, memory: Memory, op: Op, parsed: Parsed) -> Any:
    """`StatusOracle.record`: allocates the commit timestamp; an eviction raises LWM."""
    commit_ts = state.next_ts
    state.next_ts = commit_ts + TIMESTAMP_STEP
    for index in range(op.table_begin, op.table_end):
        memory.tables[find_table(memory.tables, parsed.table_ids[index])].commit_ts = commit_ts
    cells, buckets = parsed.cell_ids.view(np.uint64), map_buckets(memory.words)
    for index in range(op.cell_begin, op.cell_end):
        evicted: Any = np.int64(record_commit(memory.words, buckets, cells[index], np.uint64(commit_ts)))
        if evicted > state.low_watermark:
            state.low_watermark = evicted
    if state.head_is_open:
        state.may_widen = 0
    return commit_ts


@kernel("void(Memory, Op, Parsed)", nogil=False, _nrt=False, forceinline=True)
def count_conflict(memory: Memory, op: Op, parsed: Parsed) -> None:
    """`StatusOracle.count_conflict`."""
    for index in range(op.table_begin, op.table_end):
        memory.tables[find_table(memory.tables, parsed.table_ids[index])].conflicts += 1


@kernel("boolean(OracleState, Op, int64[::1], int64[::1])", nogil=False, _nrt=False, forceinline=True)
def take_completion(state: OracleState, op: Op, starts: Any, completed: Any) -> Any:
    """Appends its starts. False if there is no room, or one of them was never handed out."""
    count = op.cell_end - op.cell_begin
    if state.completed + count > len(completed):
        return False
    for index in range(count):
        start_ts = starts[op.cell_begin + index]
        if not is_issued_start(state, start_ts):
            return False
        completed[state.completed + index] = start_ts
    state.completed += count
    return True


@kernel(
    "int64(uint8[::1], Chunk, OracleState, Memory, Parsed, Decisions, uint8[::1], uint8[::1])", nogil=False, _nrt=False
)
def decide_chunk(
    data: Any, chunk: Chunk, state: OracleState, memory: Memory, parsed: Parsed, decisions: Decisions, now: Any,
    later: Any,
) -> Any:  # fmt: skip
    """The frames of `data[begin:end]`. Answers to send now in `now`, those of decided commits in `later`, entries and
    completed starts at their end. Returns DONE, RARE_FRAME or FULL."""
    ops, entries = parsed.ops, decisions.entries
    ops_max = min(chunk.ops_max, len(ops))
    count, parsed_to = parse_chunk(data, chunk.begin, chunk.end, ops_max, parsed)
    words, cells, buckets = memory.words, parsed.cell_ids.view(np.uint64), map_buckets(memory.words)
    cell_count = ops[count - 1].cell_end if count else np.int64(0)
    tags_asked, commits_asked = np.int64(0), np.int64(0)
    chunk.now_bytes = chunk.later_bytes = 0
    extended, epoch, fenced_ts = chunk.extended, state.epoch, state.fenced_ts
    for index in range(count):
        op = ops[index]
        chunk.consumed = op.frame_at
        if chunk.now_bytes + REPLY_BYTES_MAX > len(now) or chunk.later_bytes + REPLY_BYTES_MAX > len(later):
            return FULL
        if op.kind == BEGIN:
            may = state.begins_fast and op.ts >= 0 and op.ts <= state.next_ts - TIMESTAMP_STEP
            start_ts = take_start(state, op.ts) if may else np.int64(0)
            if start_ts == 0:
                return RARE_FRAME
            chunk.now_bytes = put_begin(now, chunk.now_bytes, start_ts, epoch, fenced_ts, op.tag, extended)
            state.begins += 1
            continue
        if op.kind == COMPLETE:
            if not extended or not take_completion(state, op, parsed.cell_ids, decisions.completed):
                return RARE_FRAME
            continue
        while tags_asked < min(cell_count, op.cell_end + TAGS_AHEAD):
            prefetch_tags(words, buckets, cells[tags_asked])
            tags_asked += 1
        while commits_asked < min(cell_count, op.cell_end + COMMITS_AHEAD):
            prefetch_commits(words, buckets, cells[commits_asked])
            commits_asked += 1
        if is_rare_commit(state, memory, op, parsed.table_ids):
            return RARE_FRAME
        if state.entries >= min(len(entries), state.entries_max):
            return FULL
        reason, cause = check_commit(state, memory, op, parsed)
        if reason == COMMITTED:
            commit_ts = record_op(state, memory, op, parsed)
            entries[state.entries, 0] = op.ts
            entries[state.entries, 1] = commit_ts
            state.entries += 1
            state.commits += 1
            chunk.later_bytes = put_commit(later, chunk.later_bytes, op.ts, commit_ts, 0, 0, op.tag, extended)
        else:
            if reason == CONFLICT:
                state.aborts_conflict += 1
                count_conflict(memory, op, parsed)
            elif reason == LOW_WATERMARK:
                state.aborts_low_watermark += 1
            else:
                state.aborts_fence += 1
            chunk.now_bytes = put_commit(now, chunk.now_bytes, op.ts, 0, reason, cause, op.tag, extended)
    chunk.consumed = parsed_to
    if count >= ops_max:
        return FULL
    return RARE_FRAME if holds_frame(data, parsed_to, chunk.end) else DONE


@kernel(
    "int64(uint8[::1], Chunk[::1], OracleState[::1], Fields(Memory), Fields(Parsed), Fields(Decisions), "
    "Fields(Replies))",
    nogil=False,
    _nrt=False,
)
def decide_frames(
    data: Any,
    chunks: Records[Chunk],
    states: Records[OracleState],
    memory: Any,
    parsed: Any,
    decisions: Any,
    replies: Any,
) -> Any:
    """`decide_chunk`, called from Python."""
    now, later = Replies(*replies)
    memory, parsed, decisions = Memory(*memory), Parsed(*parsed), Decisions(*decisions)
    return decide_chunk(data, chunks[0], states[0], memory, parsed, decisions, now, later)
