"""Records of 64-bit fields in memory that Python and compiled code share, so that neither keeps a copy.

`native/memory.pxd` has the same records with the same fields in the same order.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

import numpy as np


class Record(ctypes.Structure):
    """Base class of records; decorate each record class with `record`."""

    @classmethod
    def array(cls, count: int) -> Any:
        """Return a numpy array of zeroed records."""
        return np.zeros(count, dtype=np.dtype(cls))

    @property
    def address(self) -> int:
        """The address of the record. Keep the record alive as long as compiled code uses the address."""
        return ctypes.addressof(self)


RecordType = TypeVar("RecordType", bound=type[Record])


def record(named: RecordType) -> RecordType:
    """Make the annotations of a class its fields, and return the class."""
    named._fields_ = [(field, ctypes.c_int64) for field in named.__annotations__]
    return named


@record
class Numbers(Record):
    """The timestamps of a TSO that common begins and commits read and change."""

    next_ts: int
    """The next timestamp to be handed out."""
    ceiling: int
    """The durable ceiling. Every timestamp handed out lies below it (law 8)."""
    low_watermark: int
    """LWM, which never falls. No transaction that started at or below it can commit by ids."""
    newest_start: int
    """The newest start handed out. Starts are handed out in ascending order."""
    fenced_ts: int
    """The newest fence that a client requested. The reply to each later begin carries it
    (`protocol.commit.may_use_rules`)."""


@record
class Window(Record):
    """The window of starts reserved below a batch, and the number of the batch's entries that compiled code decided."""

    next_start: int
    window_end: int
    row_count: int
    """The number of filled rows in `windows.Batch.rows`."""
