"""Records of 64-bit fields in memory that Python and compiled code share: each is read and written in one place only.

`native/memory.pxd` has the same records, with the same fields in the same order.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

import numpy as np


class Record(ctypes.Structure):
    """Base of records (decorator `record`)."""

    @classmethod
    def array(cls, count: int) -> Any:
        """Return an array of zeroed records."""
        return np.zeros(count, dtype=np.dtype(cls))

    @property
    def address(self) -> int:
        """Where the record lies. Compiled code that takes it needs the record to stay alive."""
        return ctypes.addressof(self)


RecordType = TypeVar("RecordType", bound=type[Record])


def record(named: RecordType) -> RecordType:
    """Make a class's annotations its fields."""
    named._fields_ = [(field, ctypes.c_int64) for field in named.__annotations__]
    return named


@record
class Numbers(Record):
    """The timestamps of a TSO that common begins and commits read and change."""

    next_ts: int
    """The next timestamp to be handed out."""
    ceiling: int
    """Durable; every timestamp handed out lies below it (law 8)."""
    low_watermark: int
    """LWM: no transaction that started at or below it can commit by ids. It never falls."""
    newest_start: int
    """The newest start handed out; starts leave in ascending order."""
    fenced_ts: int
    """The newest fence that was requested; each later start carries it (`protocol.commit.may_use_rules`)."""


@record
class Window(Record):
    """The starts reserved below a batch, and how many entries compiled code decided in it."""

    next_start: int
    window_end: int
    row_count: int
    """The filled rows of `windows.Batch.rows`."""
