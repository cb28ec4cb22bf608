"""Records of 64-bit fields that Python and compiled code share; `records.pxd` has the same fields in the same order."""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

import numpy as np


class Record(ctypes.Structure):
    """Base of records (decorator `record`). Compiled code takes a record as an array of one."""

    @classmethod
    def array(cls, count: int) -> Any:
        """Return an array of zeroed records."""
        return np.zeros(count, dtype=np.dtype(cls))

    def as_array(self) -> Any:
        """Return this record as an array of one, over the same memory."""
        return np.frombuffer(memoryview(self), dtype=np.dtype(type(self)))


RecordType = TypeVar("RecordType", bound=type[Record])


def record(named: RecordType) -> RecordType:
    """Make a class's annotations its fields."""
    named._fields_ = [(field, ctypes.c_int64) for field in named.__annotations__]
    return named


@record
class OracleState(Record):
    """The state that decides begins and commits, copied in from the machine and back (`compiled_oracle`)."""

    next_ts: int
    ceiling: int
    window_next: int
    window_end: int
    """The window of the oldest unreleased batch."""
    may_widen: int
    """1: that batch is open and empty."""
    low_watermark: int
    newest_start: int
    epoch: int
    window_span: int
    write_set_ids_max: int
    begins_fast: int
    """1: no begin waits for a start."""
    head_is_open: int
    entries: int
    """Filled rows of the open batch's block."""
    entries_max: int
    carried_bytes_left: int
    """Bytes of cells that still fit into the open batch; at 0 it accepts no more commits."""
    one_step_bytes_max: int
    """Bytes of cells that one commit may carry."""
    fenced_ts: int
    """The newest fence, sent with each start."""
    begins: int
    commits: int
    aborts_conflict: int
    aborts_low_watermark: int
    aborts_fence: int
    """The counters from `begins` on grow until they are folded."""
    completed: int
    """Completed starts that the machine does not know yet."""


@record
class Chunk(Record):
    """One call: its input, and how far it was decided."""

    begin: int
    end: int
    extended: int
    ops_max: int
    consumed: int
    """Where the first undecided frame begins."""
    now_bytes: int
    later_bytes: int
    carried: int
    """The number of its commits that carry cells."""


@record
class Op(Record):
    """One parsed request."""

    kind: int
    ts: int
    tag: int
    cell_begin: int
    cell_end: int
    """Its ids, or completed starts, among the chunk's ids."""
    table_begin: int
    table_end: int
    carried_at: int
    """The position and length in the chunk of the cells that it carries."""
    carried_bytes: int
    frame_at: int


@record
class Table(Record):
    """What the oracle remembers of a table; a row of a hash table."""

    table_id: int
    is_used: int
    is_known: int
    """1: the table is decidable."""
    fence_ts: int
    commit_ts: int
    """0: none."""
    conflicts: int
    """Transactions that named it and aborted because of a cell."""
