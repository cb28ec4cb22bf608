"""Effects: the I/O that operations on the protocol's rules await (`pyomid.coroutines`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.coroutines import Effect
from pyomid.types import (
    BeginReply,
    Cell,
    CellVersion,
    Column,
    CommitReply,
    CommitRequest,
    KeyRange,
    ReadBounds,
    RegionWatermark,
    RowWrite,
    SealOutcome,
    ShadowWrite,
    TableChanges,
    TableInfo,
)


@dataclass(slots=True)  # not frozen: frozen instances take three times as long to create
class ReadRows(Effect[list[list[Cell]]]):
    """`DataStore.read_rows`: one fresh read."""

    table: str
    rows: Sequence[bytes]
    columns: Sequence[Column] | None = None
    bounds: ReadBounds | None = None


@dataclass(slots=True)  # not frozen: as `ReadRows`
class ReadSettled(Effect[tuple[list[dict[Column, bytes] | None], int, int]]):
    """Rows, W and generation, `DataStore.read_settled`: one fresh read of the rows, W and the
    table's entry together."""

    table: str
    rows: Sequence[bytes]
    columns: Sequence[Column] | None
    bounds: ReadBounds
    expired_to: int = 0


@dataclass(frozen=True, slots=True)
class ReadRange(Effect[CellBatch]):
    """The first rows of the range, complete rows, one fresh read: at most `rows_max` rows (fewer if the
    store bounds a batch by bytes; none only if the range has no more rows). `rows_max` None: *all* rows of the range.

    Compaction reads a region with it; a vectorized reader reads a batch again with it.
    """

    table: str
    key_range: KeyRange
    columns: Sequence[Column] | None = None
    rows_max: int | None = None
    bounds: ReadBounds | None = None


@dataclass(slots=True, eq=False)
class NextBatch(Effect[CellBatch | None]):
    """The next batch of `DataStore.scan` with these arguments; None: the range has no more rows.
    The first use begins the scan, later uses of the same object continue it."""

    table: str
    key_range: KeyRange
    columns: Sequence[Column] | None
    rows_max: int
    bounds: ReadBounds
    batches: Iterator[CellBatch] | None = None
    """The scan, once it has begun."""


@dataclass(frozen=True, slots=True)
class StartOfLastRows(Effect[bytes]):
    """`DataStore.start_of_last_rows`."""

    table: str
    key_range: KeyRange
    rows: int


@dataclass(frozen=True, slots=True)
class LookupThenWatermarks(Effect[tuple[list[int], int, int]]):
    """For each of `starts` in order its commit timestamp, NOT_FOUND or SEALED, one fresh
    multi-get; then W and H, fresh, by a read that began after every entry had been read (R4).

    These are two steps, and other processes may act between them. A store that keeps their order may do both in one
    call.
    """

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadWatermarks(Effect[tuple[int, int]]):
    """W and H, fresh."""


@dataclass(frozen=True, slots=True)
class ReadValidity(Effect[tuple[int, int]]):
    """W and generation, fresh: what decides whether a read of the table counts (R7, R10). The generation is that of
    the table in state `PRESENT`; 0: there is none."""

    table: str


@dataclass(frozen=True, slots=True)
class ReadNotedDrop(Effect[int]):
    """`Catalog.noted_drop`, fresh."""

    table: str


@dataclass(frozen=True, slots=True)
class ForgetTable(Effect[None]):
    """What is cached of the table's entry is out of date."""

    table: str


@dataclass(frozen=True, slots=True)
class SealStarts(Effect[list[SealOutcome]]):
    """Outcomes in the order of `starts`. Starts of the current epoch go through the TSO. In a folder, all are
    branches."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteCells(Effect[None]):
    """Durable (law 1): `DataStore.write_cells`."""

    table: str
    version: int
    rows: Sequence[RowWrite]


@dataclass(frozen=True, slots=True, eq=False)
class PackCommit(Effect[bytes]):
    """`DataStore.pack_commit`. Writes no cell."""

    start_ts: int
    branches: tuple[int, ...]
    changes: Sequence[TableChanges]
    claims_all: bool = False
    claims_tables: bool = False


@dataclass(frozen=True, slots=True)
class DrawVersion(Effect[int]):
    """`Tso.version_of`."""

    start_ts: int


@dataclass(frozen=True, slots=True, eq=False)
class BeginWrite(Effect[object]):
    """`DataStore.begin_write`: the write is in flight; nothing is durable yet."""

    table: str
    version: int
    batch: CellBatch


@dataclass(frozen=True, slots=True)
class EndWrites(Effect[None]):
    """All begun writes are durable (law 1). An error is raised after all of them have ended."""

    begun: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class WriteShadowCells(Effect[None]):
    """Durable."""

    table: str
    shadows: tuple[ShadowWrite, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WriteShadowBatches(Effect[None]):
    """Durable: shadow cells of all cells of these batches, which were written under `version`."""

    table: str
    version: int
    batches: Sequence[CellBatch]
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Heal(Effect[None]):
    """Shadow-cell repair of cells that a reader resolved by the commit table. May be done later, or never."""

    table: str
    shadows: tuple[ShadowWrite, ...]


@dataclass(frozen=True, slots=True)
class DeleteOrphans(Effect[None]):
    """Delete versions that can never commit (R8): sealed, then read again. May be done later, or never."""

    table: str
    cells: tuple[CellVersion, ...]


@dataclass(frozen=True, slots=True)
class DeleteVersions(Effect[None]):
    """Durable."""

    table: str
    cells: tuple[CellVersion, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CleanBatch(Effect[None]):
    """Durable; the changes of one row are atomic (K3). `DataStore.clean_batch`.

    `heals`: indices of records whose `rec_commit` is written as shadow cells. `drops`: indices of cells whose exact
    version is deleted.
    """

    table: str
    batch: CellBatch
    heals: NDArray[np.int64]
    drops: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeleteCommitEntries(Effect[None]):
    """The end of completion; may be done later."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin(Effect[BeginReply]):
    """A start above `not_before` (0: any). `is_held`: a transaction uses the start and reports its
    end."""

    not_before: int = 0
    is_held: bool = True


@dataclass(frozen=True, slots=True)
class Reach(Effect[bool]):
    """`Tso.reach`."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class SendCommit(Effect[CommitReply]):
    """The decision. `OutcomeUnknown` if the answer was lost."""

    request: CommitRequest


@dataclass(frozen=True, slots=True)
class FlushAndMerge(Effect[None]):
    """Memory is flushed to files before the region is cleaned (K4)."""

    table: str
    region: KeyRange


@dataclass(frozen=True, slots=True)
class RecordWatermark(Effect[None]):
    """Durable: law 6."""

    record: RegionWatermark


@dataclass(frozen=True, slots=True)
class ReadUnknownTables(Effect[dict[int, bytes]]):
    """`Catalog.unknown_tables`, fresh."""


@dataclass(frozen=True, slots=True)
class ReadTables(Effect[list[TableInfo]]):
    """`Catalog.registered`, fresh."""


@dataclass(frozen=True, slots=True)
class ReadRegionWatermarks(Effect[list[RegionWatermark]]):
    """The records of one table, fresh."""

    table: str


@dataclass(frozen=True, slots=True)
class DropRegionWatermarks(Effect[None]):
    """`Catalog.drop_region_watermarks`."""

    newest: tuple[RegionWatermark, ...]


@dataclass(frozen=True, slots=True)
class AdvanceHorizon(Effect[int]):
    """The number of entries deleted. H is durable before the first of them (law 7)."""

    horizon: int
