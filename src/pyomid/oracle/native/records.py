"""What the compiled oracle works on: records of named fields, and arrays in groups."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pyomid.kernels.compiled import Record, record


@record
class OracleState(Record):
    """What a begin or a commit is decided by; carried in from the machine and back (`compiled_oracle`)."""

    next_ts: int
    ceiling: int
    window_next: int
    window_end: int
    """Of the oldest batch that is not released."""
    may_widen: int
    """That batch is open and empty."""
    low_watermark: int
    newest_start: int
    epoch: int
    window_span: int
    write_set_ids_max: int
    begins_fast: int
    """No begin waits for a start."""
    head_is_open: int
    entries: int
    """Rows of the open batch's block that are filled."""
    entries_max: int
    fenced_ts: int
    """The newest fence: told with each start."""
    begins: int
    commits: int
    aborts_conflict: int
    aborts_low_watermark: int
    aborts_fence: int
    """The counters from `begins` on grow until they are folded."""
    completed: int
    """Starts of complete transactions, not yet given to the machine."""


@record
class Chunk(Record):
    """One call: what to take, and how far it came."""

    begin: int
    end: int
    extended: int
    ops_max: int
    consumed: int
    """Where the first frame begins that was not taken."""
    now_bytes: int
    later_bytes: int


@record
class Op(Record):
    """One parsed request."""

    kind: int
    ts: int
    tag: int
    cell_begin: int
    cell_end: int
    """Its ids among the chunk's, those of completed starts too."""
    table_begin: int
    table_end: int
    frame_at: int


@record
class Table(Record):
    """What is remembered of a table; a row of a hash table."""

    table_id: int
    is_used: int
    is_known: int
    """A commit to it needs no look at the catalog."""
    fence_ts: int
    commit_ts: int
    """0: none."""
    conflicts: int
    """Transactions that named it and were aborted for a cell."""


class Memory(NamedTuple):
    """What commits are compared with."""

    words: Annotated[Any, "uint64[::1]"]
    """The conflict map's (`conflict_map`)."""
    tables: Annotated[Any, "Table[::1]"]
    rare_starts: Annotated[Any, "int64[::1]"]
    """Ascending: their commits are the machine's."""


class Parsed(NamedTuple):
    """Requests of one chunk; their ids lie in two arrays for all of them."""

    ops: Annotated[Any, "Op[::1]"]
    cell_ids: Annotated[Any, "int64[::1]"]
    table_ids: Annotated[Any, "int64[::1]"]


class Decisions(NamedTuple):
    """What was decided since the machine was told."""

    entries: Annotated[Any, "int64[:, ::1]"]
    """(start, commit) rows of the open batch's block."""
    completed: Annotated[Any, "int64[::1]"]


class Replies(NamedTuple):
    """Answers to send now, and those of commits, for when their batch is released."""

    now: Annotated[Any, "uint8[::1]"]
    later: Annotated[Any, "uint8[::1]"]
