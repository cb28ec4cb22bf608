"""Decide chunks: parse the frames, answer begins and decide commits in order of arrival, encode the answers (`reply`).
`omid.wire.codec` and `omid.oracle.chunk_oracle.ReferenceOracle` are the reference implementations.

Phase 1 parses the begins and commits among a chunk's complete frames into flat arrays. Any other frame is *rare*:
`omid.wire.codec` decodes it. The parser accepts only frames that it understands completely: one timestamp or commit request,
with its fields in any order, ids packed or not, any varint that fits 64 bits. Retries, two requests in one frame,
another wire type, truncation, and every field that the parser does not read make a frame rare. Every read is bounded by
the frame's end, and a frame yields at most one id per byte.

Phase 2 decides. One call takes a chunk to the bytes of its answers, and changes the TSO's own numbers and batches
(`oracle/records.py`). It stops before the first request that is rare or has to wait: the machine takes that request,
and the next call continues after it.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyomid.native.batch cimport TIMESTAMP_STEP
from pyomid.native.numbers cimport BYTES, VARINT, big_endian
from pyomid.native.search cimport lower_bound
from pyomid.native.varints cimport read_short, read_varint
from pyomid.omid.oracle.native.memory cimport (
    BUCKET_WORDS, Chunk, Numbers, Op, Table, Window, first_later, keep_commit, keep_commits, kept_commit, prefetch_commits,
    prefetch_tags,
)
from pyomid.omid.oracle.native.reply cimport (
    COMMITTED, CONFLICT, FENCE, LOW_WATERMARK, REPLY_BYTES_MAX, put_abort, put_begin, put_commit,
)
from pyomid.omid.wire.native.fields cimport (
    COMMIT_REQUEST_CELL_ID, COMMIT_REQUEST_IS_RETRY, COMMIT_REQUEST_START_TIMESTAMP, COMMIT_REQUEST_TABLE_ID,
    REQUEST_COMMIT_REQUEST, REQUEST_REQUEST_ID, REQUEST_TIMESTAMP_REQUEST, TIMESTAMP_REQUEST_NOT_BEFORE,
)

from pyomid.omid.oracle import chunk_oracle
from pyomid.types import AbortReason
from pyomid.omid.wire import messages

cpdef enum:
    RARE = 0
    BEGIN = 1
    COMMIT = 2

cdef enum:
    HEADER_BYTES = 4
    DONE = 0
    RARE_FRAME = 1
    FULL = 2
    TABLE_IDS_MAX = 1024
    TAGS_AHEAD = 32
    COMMITS_AHEAD = 16

assert messages.TABLE_IDS_MAX == TABLE_IDS_MAX
assert (chunk_oracle.DONE, chunk_oracle.RARE_FRAME, chunk_oracle.FULL) == (DONE, RARE_FRAME, FULL)

cdef bytes _CONFLICT = AbortReason.CONFLICT.value.encode()
cdef bytes _LOW_WATERMARK = AbortReason.LOW_WATERMARK.value.encode()
cdef bytes _FENCE = AbortReason.FENCE.value.encode()
cdef const char *REASONS[4]
cdef int64_t REASON_BYTES[4]
REASONS[CONFLICT], REASONS[LOW_WATERMARK], REASONS[FENCE] = _CONFLICT, _LOW_WATERMARK, _FENCE
REASON_BYTES[CONFLICT], REASON_BYTES[LOW_WATERMARK] = len(_CONFLICT), len(_LOW_WATERMARK)
REASON_BYTES[FENCE] = len(_FENCE)


# ── phase 1: parse ───────────────────────────────────────────────────────────────────────────────────────────────────

# The requests of one chunk; all their ids are in two arrays, each with room for one id per byte.
cdef struct Parsed:
    Op *ops
    int64_t ops_max
    int64_t *cell_ids
    int64_t *table_ids


cdef inline int64_t read_key(const uint8_t *data, int64_t at, int64_t end, int64_t *key) noexcept nogil:
    """Return where the key ends, field number and wire type in `key[0]`; -1 for field 0 or more than 32 bits."""
    at = read_short(data, at, end, key)
    return -1 if at < 0 or key[0] < 8 or key[0] >> 32 else at


cdef int64_t parse_begin(const uint8_t *data, int64_t at, int64_t end, Op *op) noexcept nogil:
    """Parse a TimestampRequest: its `not_before`, if any."""
    cdef int64_t key = 0
    op.ts = 0
    while at < end:
        at = read_key(data, at, end, &key)
        if at < 0 or key != (TIMESTAMP_REQUEST_NOT_BEFORE << 3 | VARINT):
            return RARE
        at = read_varint(data, at, end, &op.ts)
        if at < 0:
            return RARE
    return BEGIN


cdef int64_t parse_ids(
    const uint8_t *data, int64_t at, int64_t end, int64_t wire_type, int64_t *ids, int64_t *count
) noexcept nogil:
    """Append ids, one or packed, to `ids` from `count[0]` on. Return where the field ends, or -1."""
    cdef int64_t length = 0, stop
    if wire_type == VARINT:
        at = read_varint(data, at, end, ids + count[0])
        count[0] += 1
        return at
    at = read_short(data, at, end, &length)
    if wire_type != BYTES or at < 0 or length < 0 or length > end - at:
        return -1
    stop = at + length
    while at < stop:
        at = read_varint(data, at, stop, ids + count[0])
        if at < 0:
            return -1
        count[0] += 1
    return at


cdef int64_t parse_commit(
    const uint8_t *data, int64_t at, int64_t end, Op *op, int64_t *cells, int64_t *tables
) noexcept nogil:
    """Parse a CommitRequest that has no rare field."""
    cdef int64_t key = 0, retried = 0
    op.ts = 0
    while at < end:
        at = read_key(data, at, end, &key)
        if at < 0:
            return RARE
        if key >> 3 == COMMIT_REQUEST_CELL_ID:
            at = parse_ids(data, at, end, key & 7, cells, &op.cell_end)
        elif key >> 3 == COMMIT_REQUEST_TABLE_ID:
            at = parse_ids(data, at, end, key & 7, tables, &op.table_end)
        elif key == (COMMIT_REQUEST_START_TIMESTAMP << 3 | VARINT):
            at = read_varint(data, at, end, &op.ts)
        elif key == (COMMIT_REQUEST_IS_RETRY << 3 | VARINT):
            at = read_varint(data, at, end, &retried)
        else:
            return RARE
        if at < 0:
            return RARE
    return RARE if retried else COMMIT


cdef int64_t parse_one(
    const uint8_t *data, int64_t at, int64_t end, Op *op, int64_t *cells, int64_t *tables
) noexcept nogil:
    """Parse one Request into `op`. Return its kind, or RARE. Ids go to `op.cell_begin` and `op.table_begin`."""
    cdef int64_t key = 0, length = 0
    op.tag, op.kind = 0, RARE
    op.cell_end, op.table_end = op.cell_begin, op.table_begin
    while at < end:
        at = read_key(data, at, end, &key)
        if at < 0:
            return RARE
        if key & 7 == BYTES:
            at = read_short(data, at, end, &length)
            if at < 0 or length < 0 or length > end - at or op.kind != RARE:
                return RARE
            if key >> 3 == REQUEST_TIMESTAMP_REQUEST:
                op.kind = parse_begin(data, at, at + length, op)
            elif key >> 3 == REQUEST_COMMIT_REQUEST:
                op.kind = parse_commit(data, at, at + length, op, cells, tables)
            if op.kind == RARE:
                return RARE
            at += length
        elif key == (REQUEST_REQUEST_ID << 3 | VARINT):
            at = read_varint(data, at, end, &op.tag)
        else:
            return RARE
        if at < 0:
            return RARE
    return op.kind


cdef bint holds_frame(const uint8_t *data, int64_t at, int64_t end) noexcept nogil:
    """Whether a complete frame begins at `at`."""
    return end - at >= HEADER_BYTES and big_endian(data + at, 4) <= end - at - HEADER_BYTES


cdef int64_t parse_chunk(const uint8_t *data, int64_t *at, int64_t end, int64_t ops_max, Parsed *parsed) noexcept nogil:
    """Return the number of ops; `at[0]` moves to the first frame that is not among them: rare, incomplete or beyond
    `ops_max`."""
    cdef int64_t count = 0, cell_count = 0, table_count = 0, stop
    cdef Op *op
    while count < ops_max and holds_frame(data, at[0], end):
        stop = at[0] + HEADER_BYTES + big_endian(data + at[0], 4)
        op = parsed.ops + count
        op.cell_begin, op.table_begin, op.frame_at = cell_count, table_count, at[0]
        if parse_one(data, at[0] + HEADER_BYTES, stop, op, parsed.cell_ids, parsed.table_ids) == RARE:
            break
        cell_count, table_count = op.cell_end, op.table_end
        at[0] = stop
        count += 1
    return count


def parse_frame(
    const uint8_t[::1] data, int64_t at, int64_t end, Op[::1] ops, int64_t[::1] cells, int64_t[::1] tables
):
    """Parse one Request into the first of `ops`. Return its kind, or RARE."""
    return parse_one(&data[0], at, end, &ops[0], &cells[0], &tables[0])


def parse_frames(const uint8_t[::1] data, int64_t at, int64_t end, int64_t ops_max, tuple parsed):
    """Return (number of ops, where the first other frame begins). `parsed`: ops, cell ids and table ids."""
    cdef Op[::1] ops = parsed[0]
    cdef int64_t[::1] cells = parsed[1], tables = parsed[2]
    cdef Parsed into = Parsed(&ops[0], ops.shape[0], &cells[0], &tables[0])
    cdef int64_t count = parse_chunk(&data[0], &at, end, ops_max, &into)
    return count, at


# ── phase 2: decide ──────────────────────────────────────────────────────────────────────────────────────────────────

cdef struct Tables:
    Table *rows
    uint64_t mask


cdef inline Table *table_of(Tables tables, int64_t table_id) noexcept nogil:
    """Return the table's row, or the free row where it belongs. At least one row is always free."""
    cdef uint64_t row = (<uint64_t> table_id * 0x9E3779B97F4A7C15u) >> 32 & tables.mask
    while tables.rows[row].is_used and tables.rows[row].table_id != table_id:
        row = (row + 1) & tables.mask
    return tables.rows + row


def find_table(Table[::1] tables, int64_t table_id):
    """Return the number of the table's row, or of the free row where it belongs."""
    return table_of(Tables(&tables[0], tables.shape[0] - 1), table_id) - &tables[0]


# The memory that commits are checked against.
cdef struct Memory:
    uint64_t *words
    uint64_t buckets
    Tables tables
    const int64_t *rare_starts  # ascending: the machine decides their commits
    int64_t rare_starts_count


# The TSO's own record, as `state.TsoState` has it: what is decided changes it at once.
cdef struct State:
    Numbers *numbers
    Window *head  # of the oldest unreleased batch: starts come from it
    Window *open  # of the open batch, often the same: commits go there
    int64_t *rows  # (start, commit), of the open batch
    int64_t rows_max


# The answers: to send now, and to send when the batch is released.
cdef struct Answers:
    uint8_t *now
    int64_t now_room
    uint8_t *later
    int64_t later_room


cdef inline bint is_issued_start(Numbers *numbers, int64_t start_ts) noexcept nogil:
    return 0 < start_ts <= numbers.newest_start and start_ts % TIMESTAMP_STEP == 0


cdef int64_t take_start(State *state, Chunk *chunk, int64_t not_before) noexcept nogil:
    """`begins.take`; 0: the begin must wait."""
    cdef Numbers *numbers = state.numbers
    cdef Window *head = state.head
    cdef int64_t floor = max(not_before, numbers.low_watermark), above, end, start_ts
    above = floor - floor % TIMESTAMP_STEP + TIMESTAMP_STEP
    if max(head.next_start, above) >= head.window_end and chunk.may_widen and not head.row_count:
        end = numbers.next_ts + chunk.window_span
        if end <= numbers.ceiling:
            head.next_start = numbers.next_ts
            head.window_end = numbers.next_ts = end
    start_ts = max(head.next_start, above)
    if start_ts >= head.window_end:
        return 0
    head.next_start = start_ts + TIMESTAMP_STEP
    numbers.newest_start = start_ts
    return start_ts


cdef bint is_rare_commit(Numbers *numbers, Memory *memory, Op *op, Parsed *parsed, Chunk *chunk) noexcept nogil:
    """Whether the machine must answer: malformed, sealed, a retry, an unregistered table, older than reported ids."""
    cdef int64_t index, at
    cdef Table *table
    if not is_issued_start(numbers, op.ts) or op.table_end - op.table_begin > TABLE_IDS_MAX:
        return True
    if numbers.low_watermark < op.ts < chunk.reported_ts:
        return True
    if op.cell_end - op.cell_begin > chunk.write_set_ids_max or numbers.next_ts + TIMESTAMP_STEP > numbers.ceiling:
        return True
    for index in range(op.table_begin, op.table_end):
        table = table_of(memory.tables, parsed.table_ids[index])
        if not table.is_known or not table.is_used:
            return True
    at = lower_bound(memory.rare_starts, memory.rare_starts_count, op.ts)
    return at < memory.rare_starts_count and memory.rare_starts[at] == op.ts


cdef int check_commit(Numbers *numbers, Memory *memory, Op *op, Parsed *parsed, int64_t *cause) noexcept nogil:
    """`StatusOracle.check`: COMMITTED or the abort's reason; the timestamp that caused it in `cause[0]`."""
    cdef int64_t index
    if op.ts <= numbers.low_watermark:
        cause[0] = numbers.low_watermark
        return LOW_WATERMARK
    for index in range(op.table_begin, op.table_end):
        cause[0] = table_of(memory.tables, parsed.table_ids[index]).fence_ts
        if cause[0] > op.ts:
            return FENCE
    cause[0] = <int64_t> first_later(
        memory.words, memory.buckets, parsed.cell_ids + op.cell_begin, op.cell_end - op.cell_begin, <uint64_t> op.ts
    )
    return CONFLICT if cause[0] else COMMITTED


cdef int64_t record_op(Numbers *numbers, Memory *memory, Op *op, Parsed *parsed) noexcept nogil:
    """`StatusOracle.record`: allocates the commit timestamp; an eviction raises LWM."""
    cdef int64_t commit_ts = numbers.next_ts, index, evicted
    numbers.next_ts = commit_ts + TIMESTAMP_STEP
    for index in range(op.table_begin, op.table_end):
        table_of(memory.tables, parsed.table_ids[index]).commit_ts = commit_ts
    evicted = <int64_t> keep_commits(
        memory.words, memory.buckets, parsed.cell_ids + op.cell_begin, op.cell_end - op.cell_begin, <uint64_t> commit_ts
    )
    numbers.low_watermark = max(numbers.low_watermark, evicted)
    return commit_ts


cdef void take_commit(State *state, Op *op, int64_t commit_ts, Chunk *chunk, Answers *answers) noexcept nogil:
    """Write a commit's entry and its answer."""
    cdef int64_t *row = state.rows + 2 * state.open.row_count
    row[0], row[1] = op.ts, commit_ts
    state.open.row_count += 1
    chunk.later_bytes = put_commit(answers.later, chunk.later_bytes, op.ts, commit_ts, op.tag, chunk.extended)


cdef void take_abort(
    Memory *memory, Op *op, Parsed *parsed, int reason, int64_t cause, Chunk *chunk, Answers *answers
) noexcept nogil:
    cdef int64_t index
    chunk.aborts += 1
    if reason == CONFLICT:
        for index in range(op.table_begin, op.table_end):  # `StatusOracle.count_conflict`
            table_of(memory.tables, parsed.table_ids[index]).conflicts += 1
    elif reason == LOW_WATERMARK:
        chunk.aborts_low_watermark += 1
    else:
        chunk.aborts_fence += 1
    chunk.now_bytes = put_abort(
        answers.now, chunk.now_bytes, op.ts, REASONS[reason], REASON_BYTES[reason], cause, op.tag, chunk.extended
    )


cdef int decide_chunk(
    const uint8_t *data, Chunk *chunk, State *state, Memory *memory, Parsed *parsed, Answers *answers
) noexcept nogil:
    """Decide the frames of `data[begin:end]`. Return DONE, RARE_FRAME or FULL."""
    cdef int64_t ops_max = min(chunk.ops_max, parsed.ops_max), parsed_to = chunk.begin, index, start_ts, cause = 0
    cdef int64_t count = parse_chunk(data, &parsed_to, chunk.end, ops_max, parsed)
    cdef int64_t cell_count = parsed.ops[count - 1].cell_end if count else 0, tags_asked = 0, commits_asked = 0
    cdef Numbers *numbers = state.numbers
    cdef Op *op
    cdef int reason
    chunk.now_bytes = chunk.later_bytes = chunk.begins = 0
    chunk.aborts = chunk.aborts_low_watermark = chunk.aborts_fence = 0
    for index in range(count):
        op = parsed.ops + index
        chunk.consumed = op.frame_at
        if (
            chunk.now_bytes + REPLY_BYTES_MAX > answers.now_room
            or chunk.later_bytes + REPLY_BYTES_MAX > answers.later_room
        ):
            return FULL
        if op.kind == BEGIN:
            start_ts = 0
            if chunk.begins_fast and 0 <= op.ts <= numbers.next_ts - TIMESTAMP_STEP:
                start_ts = take_start(state, chunk, op.ts)
            if start_ts == 0:
                return RARE_FRAME
            chunk.now_bytes = put_begin(
                answers.now, chunk.now_bytes, start_ts, chunk.epoch, numbers.fenced_ts, op.tag, chunk.extended
            )
            chunk.begins += 1
            continue
        while tags_asked < min(cell_count, op.cell_end + TAGS_AHEAD):
            prefetch_tags(memory.words, memory.buckets, <uint64_t> parsed.cell_ids[tags_asked])
            tags_asked += 1
        while commits_asked < min(cell_count, op.cell_end + COMMITS_AHEAD):
            prefetch_commits(memory.words, memory.buckets, <uint64_t> parsed.cell_ids[commits_asked])
            commits_asked += 1
        if is_rare_commit(numbers, memory, op, parsed, chunk):
            return RARE_FRAME
        if state.open.row_count >= min(state.rows_max, chunk.row_count_max):
            return FULL
        reason = check_commit(numbers, memory, op, parsed, &cause)
        if reason == COMMITTED:
            take_commit(state, op, record_op(numbers, memory, op, parsed), chunk, answers)
        else:
            take_abort(memory, op, parsed, reason, cause, chunk, answers)
    chunk.consumed = parsed_to
    if count >= ops_max:
        return FULL
    return RARE_FRAME if holds_frame(data, parsed_to, chunk.end) else DONE


cdef class Decider:
    """Decides chunks over arrays whose buffers it keeps from one call to the next: acquiring one takes as long as three
    commits. Keeps the interpreter lock: a chunk takes microseconds, and the event loop waits for it anyway."""

    cdef Chunk *_chunk
    cdef Op[::1] _ops
    cdef int64_t[::1] _cell_ids, _table_ids
    cdef int64_t[:, ::1] _rows
    cdef uint8_t[::1] _now, _later
    cdef uint64_t[::1] _words
    cdef Table[::1] _tables
    cdef const int64_t[::1] _rare_starts
    cdef object _records, _batches, _working_on
    cdef State _state
    cdef Memory _memory
    cdef Parsed _parsed
    cdef Answers _answers

    def __init__(self, chunk, numbers, tuple parsed, now, later):
        """`chunk`, `numbers`: the records `memory.Chunk` and `records.Numbers`. `parsed`: ops, and their ids of cells
        and tables, with room for one id per byte of a chunk."""
        self._records = chunk, numbers
        self._chunk = <Chunk *> <size_t> chunk.address
        self._ops, self._cell_ids, self._table_ids = parsed
        self._now, self._later = now, later
        self._parsed = Parsed(&self._ops[0], self._ops.shape[0], &self._cell_ids[0], &self._table_ids[0])
        self._answers = Answers(&self._now[0], self._now.shape[0], &self._later[0], self._later.shape[0])
        self._state = State(<Numbers *> <size_t> numbers.address, NULL, NULL, NULL, 0)
        self._working_on = (None,) * 4

    def work_on(self, head, open_batch, words, tables, rare_starts):
        """Set the state that the next chunks are decided with: the oldest and the open batch (`windows.Batch`), and
        what commits are checked against. Call again when one is replaced."""
        self._batches = head, open_batch
        self._state.head = <Window *> <size_t> head.address
        self._state.open = <Window *> <size_t> open_batch.address
        rows = open_batch.rows
        if self._working_on[0] is not words:
            self._words = words
            self._memory.words, self._memory.buckets = &self._words[0], self._words.shape[0] // BUCKET_WORDS
        if self._working_on[1] is not tables:
            self._tables = tables
            self._memory.tables = Tables(&self._tables[0], self._tables.shape[0] - 1)
        if self._working_on[2] is not rare_starts:
            self._rare_starts = rare_starts
            self._memory.rare_starts, self._memory.rare_starts_count = &self._rare_starts[0], self._rare_starts.shape[0]
        if self._working_on[3] is not rows:
            self._rows = rows
            self._state.rows, self._state.rows_max = &self._rows[0, 0], self._rows.shape[0]
        self._working_on = words, tables, rare_starts, rows

    def decide(self, const uint8_t[::1] data, int64_t begin, int64_t end, bint extended, int64_t ops_max):
        """Decide the frames of `data[begin:end]`, at most `ops_max` of them.

        Return (DONE, RARE_FRAME or FULL; where it stopped; the answers to send now, and with the batch; the number of
        begins, commits and aborts). One tuple: to read a record's field from Python takes as long as to decide a begin.
        """
        cdef Chunk *chunk = self._chunk
        cdef int64_t rows = self._state.open.row_count
        cdef int status
        chunk.begin, chunk.end, chunk.extended, chunk.ops_max = begin, end, extended, ops_max
        status = decide_chunk(&data[0], chunk, &self._state, &self._memory, &self._parsed, &self._answers)
        now = PyBytes_FromStringAndSize(<const char *> self._answers.now, chunk.now_bytes)
        later = PyBytes_FromStringAndSize(<const char *> self._answers.later, chunk.later_bytes)
        return status, chunk.consumed, now, later, chunk.begins, self._state.open.row_count - rows, chunk.aborts


# ── the conflict map's words, for `memory.CacheLineMap` ──────────────────────────────────────────────────────────────

cdef inline uint64_t buckets_of(uint64_t[::1] words) noexcept nogil:
    return words.shape[0] // BUCKET_WORDS


cdef uint64_t unsigned(cell_id) except? 0:
    """Return the 64 bits of an id, which may be signed."""
    return cell_id & 0xFFFF_FFFF_FFFF_FFFF


def last_commit(uint64_t[::1] words, cell_id):
    """Return the cell's last commit timestamp; 0 if the map has no entry for it."""
    return kept_commit(&words[0], buckets_of(words), unsigned(cell_id))


def record_commit(uint64_t[::1] words, cell_id, uint64_t commit_ts):
    """Put an entry. Return the commit timestamp of the entry evicted for it; 0 if a slot was free."""
    return keep_commit(&words[0], buckets_of(words), unsigned(cell_id), commit_ts)


def first_conflict(uint64_t[::1] words, const int64_t[::1] cell_ids, uint64_t start_ts):
    """Return the last commit of the first of these cells that was committed later than `start_ts`; 0 if none was."""
    return first_later(&words[0], buckets_of(words), &cell_ids[0], cell_ids.shape[0], start_ts)


def record_all(uint64_t[::1] words, const int64_t[::1] cell_ids, uint64_t commit_ts):
    """`record_commit` each cell. Return the greatest commit timestamp that was evicted; 0 if none was."""
    return keep_commits(&words[0], buckets_of(words), &cell_ids[0], cell_ids.shape[0], commit_ts)
