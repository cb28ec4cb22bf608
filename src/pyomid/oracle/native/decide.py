"""Phase 2: begins answered and commits decided, in the order they came; `oracle.status_oracle` and `oracle.windows`,
compiled.

One call takes a chunk from phase 1 to the bytes of its answers. It stops before the first request that is rare, or
that must wait: the plain machine takes that one, and is asked to go on behind it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pyomid.compiled import kernel
from pyomid.oracle.native.conflict_map import last_commit, prefetch_commits, prefetch_tags, record_commit
from pyomid.oracle.native.parse import (
    BEGIN,
    CELL_BEGIN,
    CELL_END,
    COMPLETE,
    FRAME_AT,
    KIND,
    TABLE_BEGIN,
    TABLE_END,
    TAG,
    TS,
    parse_chunk,
)
from pyomid.oracle.native.reply import (
    COMMITTED,
    CONFLICT,
    FENCE,
    LOW_WATERMARK,
    REPLY_BYTES_MAX,
    put_begin,
    put_commit,
)
from pyomid.types import TIMESTAMP_STEP
from pyomid.wire.messages import TABLE_IDS_MAX

# Words of the state, in and out. In: what the machine knows before the call.
(
    NEXT_TS, CEILING, WINDOW_NEXT, WINDOW_END, WIDENS, LWM, NEWEST_START, EPOCH, WINDOW_SPAN, IDS_MAX, BEGINS_FAST,
    HEAD_IS_OPEN, RECORDS, FENCED,
    # Per call, in.
    EXTENDED, OPS_MAX,
    # Per call, out.
    CONSUMED, NOW_BYTES, LATER_BYTES,
    # Counted up over all calls.
    BEGINS, COMMITS, ABORTS_CONFLICT, ABORTS_LWM, ABORTS_FENCE,
    # Starts of complete transactions that nobody has taken yet.
    COMPLETED,
) = range(25)  # fmt: skip
STATE_WORDS: Final = 32

TABLE_ID, TABLE_USED, TABLE_KNOWN, TABLE_FENCE, TABLE_COMMIT = range(5)
TABLE_WORDS: Final = 5

DONE: Final = 0
"""Every whole frame was taken, up to OPS_MAX of them."""
RARE_FRAME: Final = 1
"""The frame at CONSUMED is for the plain machine."""
FULL: Final = 2
"""Records or answers found no more room: make room and call again."""

TAGS_AHEAD: Final = 32
COMMITS_AHEAD: Final = 16


@kernel("int64(int64[:, ::1], int64)", nogil=False, _nrt=False, forceinline=True)
def find_table(tables: Any, table_id: Any) -> Any:
    """The table's row, or the free row where it would go. At least one row is always free."""
    mask = np.uint64(len(tables) - 1)
    row = np.uint64(table_id) * np.uint64(0x9E37_79B9_7F4A_7C15) >> np.uint64(32) & mask
    while tables[row, TABLE_USED] and tables[row, TABLE_ID] != table_id:
        row = (row + np.uint64(1)) & mask
    return np.int64(row)


@kernel("boolean(int64[::1], int64)", nogil=False, _nrt=False, forceinline=True)
def is_among(sorted_starts: Any, start_ts: Any) -> Any:
    if len(sorted_starts) == 0:
        return False
    at = np.searchsorted(sorted_starts, start_ts)
    return at < len(sorted_starts) and sorted_starts[at] == start_ts


@kernel("int64(int64[::1], int64)", nogil=False, _nrt=False, forceinline=True)
def take_start(state: Any, not_before: Any) -> Any:
    """`BeginWindows.take_start` of the head batch: 0 is wait."""
    floor = max(not_before, state[LWM])
    above = floor - floor % TIMESTAMP_STEP + TIMESTAMP_STEP
    if max(state[WINDOW_NEXT], above) >= state[WINDOW_END] and state[WIDENS]:
        end = state[NEXT_TS] + state[WINDOW_SPAN]
        if end <= state[CEILING]:
            state[WINDOW_NEXT], state[WINDOW_END], state[NEXT_TS] = state[NEXT_TS], end, end
    start_ts = max(state[WINDOW_NEXT], above)
    if start_ts >= state[WINDOW_END]:
        return 0
    state[WINDOW_NEXT] = start_ts + TIMESTAMP_STEP
    state[NEWEST_START] = start_ts
    return start_ts


@kernel(
    "boolean(int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1])", nogil=False, _nrt=False, forceinline=True
)
def is_rare_commit(state: Any, op: Any, table_ids: Any, tables: Any, rare_starts: Any) -> Any:
    """What the machine answers otherwise than by the oracle: malformed, sealed, a retry, an unregistered table."""
    start_ts = op[TS]
    if start_ts <= 0 or start_ts > state[NEWEST_START] or start_ts % TIMESTAMP_STEP != 0:
        return True
    if op[TABLE_END] - op[TABLE_BEGIN] > TABLE_IDS_MAX:
        return True
    if op[CELL_END] - op[CELL_BEGIN] > state[IDS_MAX] or state[NEXT_TS] + TIMESTAMP_STEP > state[CEILING]:
        return True
    for index in range(op[TABLE_BEGIN], op[TABLE_END]):
        row = find_table(tables, table_ids[index])
        if not tables[row, TABLE_KNOWN] or not tables[row, TABLE_USED]:
            return True
    return is_among(rare_starts, start_ts)


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[::1], uint64[::1], int64[::1], int64[:, ::1], uint64[::1], uint64)",
    nogil=False,
    _nrt=False,
    forceinline=True,
)
def check_commit(state: Any, op: Any, cells: Any, table_ids: Any, tables: Any, words: Any, buckets: Any) -> Any:
    """`StatusOracle.check`: (COMMITTED or why not, the timestamp that caused it)."""
    start_ts = op[TS]
    if start_ts <= state[LWM]:
        return LOW_WATERMARK, state[LWM]
    for index in range(op[TABLE_BEGIN], op[TABLE_END]):
        fence = tables[find_table(tables, table_ids[index]), TABLE_FENCE]
        if fence > start_ts:
            return FENCE, fence
    for index in range(op[CELL_BEGIN], op[CELL_END]):
        commit = np.int64(last_commit(words, buckets, cells[index]))
        if commit > start_ts:
            return CONFLICT, commit
    return COMMITTED, np.int64(0)


@kernel(
    "int64(int64[::1], int64[::1], uint64[::1], int64[::1], int64[:, ::1], uint64[::1], uint64)",
    nogil=False,
    _nrt=False,
    forceinline=True,
)
def record_op(state: Any, op: Any, cells: Any, table_ids: Any, tables: Any, words: Any, buckets: Any) -> Any:
    """`StatusOracle.record`: allocates the commit timestamp; an eviction raises LWM."""
    commit_ts = state[NEXT_TS]
    state[NEXT_TS] = commit_ts + TIMESTAMP_STEP
    for index in range(op[TABLE_BEGIN], op[TABLE_END]):
        tables[find_table(tables, table_ids[index]), TABLE_COMMIT] = commit_ts
    for index in range(op[CELL_BEGIN], op[CELL_END]):
        evicted = np.int64(record_commit(words, buckets, cells[index], np.uint64(commit_ts)))
        if evicted > state[LWM]:
            state[LWM] = evicted
    if state[HEAD_IS_OPEN]:
        state[WIDENS] = 0
    return commit_ts


@kernel("boolean(int64[::1], int64[::1], int64[::1], int64[::1])", nogil=False, _nrt=False, forceinline=True)
def take_completion(state: Any, op: Any, starts: Any, completed: Any) -> Any:
    """Its starts behind those that are there. False where there is no room, or one was never handed out."""
    count = op[CELL_END] - op[CELL_BEGIN]
    if state[COMPLETED] + count > len(completed):
        return False
    for index in range(count):
        start_ts = starts[op[CELL_BEGIN] + index]
        if start_ts <= 0 or start_ts > state[NEWEST_START] or start_ts % TIMESTAMP_STEP != 0:
            return False
        completed[state[COMPLETED] + index] = start_ts
    state[COMPLETED] += count
    return True


@kernel(
    "int64(uint8[::1], int64, int64, int64[::1], uint64[::1], uint64, int64[:, ::1], int64[::1], int64[:, ::1], "
    "int64[::1], int64[::1], int64[:, ::1], int64[::1], uint8[::1], uint8[::1])",
    nogil=False,
    _nrt=False,
)
def decide_chunk(
    data: Any, begin: Any, end: Any, state: Any, words: Any, buckets: Any, tables: Any, rare_starts: Any, ops: Any,
    cell_ids: Any, table_ids: Any, records: Any, completed: Any, now: Any, later: Any,
) -> Any:  # fmt: skip
    """The frames of `data[begin:end]`. Answers to send now in `now`, those of decided commits in `later`, the
    (start, commit) pairs behind `state[RECORDS]` in `records`. Returns DONE, RARE_FRAME or FULL."""
    ops_max = min(state[OPS_MAX], len(ops))
    count, parsed_to = parse_chunk(data, begin, end, ops_max, ops, cell_ids, table_ids)
    cells = cell_ids.view(np.uint64)
    cell_count = ops[count - 1, CELL_END] if count else 0
    tags_asked, commits_asked = np.int64(0), np.int64(0)
    state[NOW_BYTES] = state[LATER_BYTES] = 0
    extended, epoch, fenced_ts = state[EXTENDED], state[EPOCH], state[FENCED]
    for index in range(count):
        op = ops[index]
        if state[NOW_BYTES] + REPLY_BYTES_MAX > len(now) or state[LATER_BYTES] + REPLY_BYTES_MAX > len(later):
            state[CONSUMED] = op[FRAME_AT]
            return FULL
        if op[KIND] == BEGIN:
            may = state[BEGINS_FAST] and op[TS] >= 0 and op[TS] <= state[NEXT_TS] - TIMESTAMP_STEP
            start_ts = take_start(state, op[TS]) if may else np.int64(0)
            if start_ts == 0:
                state[CONSUMED] = op[FRAME_AT]
                return RARE_FRAME
            state[NOW_BYTES] = put_begin(now, state[NOW_BYTES], start_ts, epoch, fenced_ts, op[TAG], extended)
            state[BEGINS] += 1
            continue
        if op[KIND] == COMPLETE:
            if not extended or not take_completion(state, op, cell_ids, completed):
                state[CONSUMED] = op[FRAME_AT]
                return RARE_FRAME
            continue
        while tags_asked < min(cell_count, op[CELL_END] + TAGS_AHEAD):
            prefetch_tags(words, buckets, cells[tags_asked])
            tags_asked += 1
        while commits_asked < min(cell_count, op[CELL_END] + COMMITS_AHEAD):
            prefetch_commits(words, buckets, cells[commits_asked])
            commits_asked += 1
        if is_rare_commit(state, op, table_ids, tables, rare_starts):
            state[CONSUMED] = op[FRAME_AT]
            return RARE_FRAME
        if state[RECORDS] >= len(records):
            state[CONSUMED] = op[FRAME_AT]
            return FULL
        reason, cause = check_commit(state, op, cells, table_ids, tables, words, buckets)
        if reason == COMMITTED:
            commit_ts = record_op(state, op, cells, table_ids, tables, words, buckets)
            records[state[RECORDS], 0] = op[TS]
            records[state[RECORDS], 1] = commit_ts
            state[RECORDS] += 1
            state[COMMITS] += 1
            state[LATER_BYTES] = put_commit(later, state[LATER_BYTES], op[TS], commit_ts, 0, 0, op[TAG], extended)
        else:
            state[ABORTS_CONFLICT + reason - CONFLICT] += 1
            state[NOW_BYTES] = put_commit(now, state[NOW_BYTES], op[TS], 0, reason, cause, op[TAG], extended)
    state[CONSUMED] = parsed_to
    if count >= ops_max:
        return FULL
    if end - parsed_to < 4:
        return DONE
    length = (
        np.int64(data[parsed_to]) << 24 | np.int64(data[parsed_to + 1]) << 16
        | np.int64(data[parsed_to + 2]) << 8 | np.int64(data[parsed_to + 3])
    )  # fmt: skip
    return RARE_FRAME if length <= end - parsed_to - 4 else DONE
