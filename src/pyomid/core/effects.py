"""What the core's generators wait for. A generator yields an effect, a driver performs it and sends the result back.

Three drivers exist: blocking and asyncio (client), and the simulation, which may crash, delay or reorder at every
yield. So a rule is written once and the order of its effects is the order of its laws.

A generator named `…_steps` has type `Steps[T]`: effects out, results in, T returned. Errors of an effect are thrown
into the generator at the yield.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyomid.types import (
    CellVersion,
    Column,
    CommitRequest,
    KeyRange,
    RegionWatermark,
    RowCleaning,
    ShadowWrite,
)

T = TypeVar("T")
Steps = Generator["Effect", Any, T]


class Effect:
    """Base of everything a core generator may yield."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ReadRows(Effect):
    """→ list[list[Cell]], `DataStore.read_rows`: one fresh read."""

    table: str
    rows: Sequence[bytes]
    columns: Sequence[Column] | None = None


@dataclass(frozen=True, slots=True)
class ReadRange(Effect):
    """→ CellBatch of *all* rows in the range, fresh, compaction's or a bulk reader's second look at one batch."""

    table: str
    key_range: KeyRange
    columns: Sequence[Column] | None = None


@dataclass(frozen=True, slots=True)
class LookupCommits(Effect):
    """→ list[int] in the order of `starts`: commit timestamp, NOT_FOUND or SEALED. One fresh multi-get."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadWatermarks(Effect):
    """→ (W, H), fresh."""


@dataclass(frozen=True, slots=True)
class SealStarts(Effect):
    """→ list[SealOutcome] in order; through the TSO for starts of the current epoch, and always in the embedded store."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteShadowCells(Effect):
    """→ None, durable."""

    table: str
    shadows: tuple[ShadowWrite, ...]


@dataclass(frozen=True, slots=True)
class HealBatch(Effect):
    """→ None. Shadow cells for the records of a batch that the commit table explained; may be done later, or never."""

    table: str
    shadows: tuple[ShadowWrite, ...]


@dataclass(frozen=True, slots=True)
class DeleteVersions(Effect):
    """→ None, durable."""

    table: str
    cells: tuple[CellVersion, ...]


@dataclass(frozen=True, slots=True)
class CleanRows(Effect):
    """→ None, durable; each row atomic."""

    table: str
    cleanings: tuple[RowCleaning, ...]


@dataclass(frozen=True, slots=True)
class DeleteCommitEntries(Effect):
    """→ None. Completion; may be done later."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendCommit(Effect):
    """→ CommitReply; throws OutcomeUnknown where the answer was lost."""

    request: CommitRequest


@dataclass(frozen=True, slots=True)
class FlushAndMerge(Effect):
    """→ None: K4."""

    table: str
    region: KeyRange


@dataclass(frozen=True, slots=True)
class RecordWatermark(Effect):
    """→ None, durable: law 6."""

    record: RegionWatermark
