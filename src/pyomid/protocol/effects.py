"""Effects: the I/O operations that routines of the protocol await (`pyomid.coroutines`)."""

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
    """Read the rows once, fresh (`DataStore.read_rows`)."""

    table: str
    rows: Sequence[bytes]
    columns: Sequence[Column] | None = None
    bounds: ReadBounds | None = None


@dataclass(slots=True)  # not frozen: see `ReadRows`
class ReadSettled(Effect[tuple[list[dict[Column, bytes] | None], int, int]]):
    """Read the rows, W and the table's entry together, once, fresh (`DataStore.read_settled`). Result: rows, W,
    generation."""

    table: str
    rows: Sequence[bytes]
    columns: Sequence[Column] | None
    bounds: ReadBounds
    expired_to: int = 0


@dataclass(frozen=True, slots=True)
class ReadRange(Effect[CellBatch]):
    """Read the first rows of the range once, fresh: at most `rows_max` complete rows. A store that bounds a batch by
    bytes may return fewer, but none only if the range has no more rows. With `rows_max` None, read *all* rows of the
    range.

    Compaction uses it to read a region; a vectorized reader uses it to read a batch again.
    """

    table: str
    key_range: KeyRange
    columns: Sequence[Column] | None = None
    rows_max: int | None = None
    bounds: ReadBounds | None = None


@dataclass(slots=True, eq=False)
class NextBatch(Effect[CellBatch | None]):
    """Read the next batch of `DataStore.scan` with these arguments. Result: None if the range has no more rows. The
    first use begins the scan; later uses of the same object continue it."""

    table: str
    key_range: KeyRange
    columns: Sequence[Column] | None
    rows_max: int
    bounds: ReadBounds
    batches: Iterator[CellBatch] | None = None
    """The scan, if it has begun."""


@dataclass(frozen=True, slots=True)
class StartOfLastRows(Effect[bytes]):
    """Find the key at which the last `rows` rows of the range begin (`DataStore.start_of_last_rows`)."""

    table: str
    key_range: KeyRange
    rows: int


@dataclass(frozen=True, slots=True)
class LookupThenWatermarks(Effect[tuple[list[int], int, int]]):
    """Look up `starts` by one fresh multi-get, then read W and H by a read that begins after all entries have been read
    (R4). Result: for each start, in order, its commit timestamp, NOT_FOUND or SEALED; then W and H.

    These are two steps, and other processes may act between them. A store that keeps their order may do both in one
    call.
    """

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadWatermarks(Effect[tuple[int, int]]):
    """Read W and H, fresh."""


@dataclass(frozen=True, slots=True)
class ReadValidity(Effect[tuple[int, int]]):
    """Read W and the table's generation, fresh; they decide whether a read of the table counts (R7, R10). The
    generation is 0 if no table of this name is `PRESENT`."""

    table: str


@dataclass(frozen=True, slots=True)
class ReadNotedDrop(Effect[int]):
    """Read the newest noted drop of this name, fresh (`Catalog.noted_drop`)."""

    table: str


@dataclass(frozen=True, slots=True)
class ForgetTable(Effect[None]):
    """Drop what is cached of the table's entry, because it is out of date."""

    table: str


@dataclass(frozen=True, slots=True)
class SealStarts(Effect[list[SealOutcome]]):
    """Seal `starts`. Result: the outcomes in the same order. Starts of the current epoch go through the TSO. In a
    folder, all are branches."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteCells(Effect[None]):
    """Write cells, durably (law 1; `DataStore.write_cells`)."""

    table: str
    version: int
    rows: Sequence[RowWrite]


@dataclass(frozen=True, slots=True, eq=False)
class PackCommit(Effect[bytes]):
    """Pack a commit's changes for the commit request (`DataStore.pack_commit`). Writes no cell."""

    start_ts: int
    branches: tuple[int, ...]
    changes: Sequence[TableChanges]
    claims_all: bool = False
    claims_tables: bool = False


@dataclass(frozen=True, slots=True)
class DrawVersion(Effect[int]):
    """Draw the version under which a transaction writes (`Tso.version_of`)."""

    start_ts: int


@dataclass(frozen=True, slots=True, eq=False)
class BeginWrite(Effect[object]):
    """Begin a write (`DataStore.begin_write`). It is in flight then; nothing is durable yet."""

    table: str
    version: int
    batch: CellBatch


@dataclass(frozen=True, slots=True)
class EndWrites(Effect[None]):
    """Wait until all begun writes are durable (law 1). An error is raised only after all of them have ended."""

    begun: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class WriteShadowCells(Effect[None]):
    """Write shadow cells, durably."""

    table: str
    shadows: tuple[ShadowWrite, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WriteShadowBatches(Effect[None]):
    """Write the shadow cells of all cells of these batches, which were written under `version`, durably."""

    table: str
    version: int
    batches: Sequence[CellBatch]
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Heal(Effect[None]):
    """Write the shadow cells of cells that a reader resolved by the commit table. This may happen later, or never."""

    table: str
    shadows: tuple[ShadowWrite, ...]


@dataclass(frozen=True, slots=True)
class DeleteOrphans(Effect[None]):
    """Delete versions that can never commit (R8): they were sealed, then read again. This may happen later, or
    never."""

    table: str
    cells: tuple[CellVersion, ...]


@dataclass(frozen=True, slots=True)
class DeleteVersions(Effect[None]):
    """Delete exact versions, durably."""

    table: str
    cells: tuple[CellVersion, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CleanBatch(Effect[None]):
    """Clean a batch, durably; the changes of one row are atomic (K3; `DataStore.clean_batch`).

    `heals` are indices of records whose `rec_commit` is written as shadow cells. `drops` are indices of cells whose
    exact version is deleted.
    """

    table: str
    batch: CellBatch
    heals: NDArray[np.int64]
    drops: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeleteCommitEntries(Effect[None]):
    """Delete commit-table entries, as the last step of completion. This may happen later."""

    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin(Effect[BeginReply]):
    """Draw a start above `not_before`; 0 accepts any. `is_held` means that a transaction uses the start and reports its
    end."""

    not_before: int = 0
    is_held: bool = True


@dataclass(frozen=True, slots=True)
class Reach(Effect[bool]):
    """Move timestamps to the wall clock, if that has passed `timestamp` (`Tso.reach`). Result: whether they moved."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class SendCommit(Effect[CommitReply]):
    """Send the commit request and wait for the decision. Fails with `OutcomeUnknown` if the answer was lost."""

    request: CommitRequest


@dataclass(frozen=True, slots=True)
class FlushAndMerge(Effect[None]):
    """Flush the region's memory to files, before the region is cleaned (K4)."""

    table: str
    region: KeyRange


@dataclass(frozen=True, slots=True)
class RecordWatermark(Effect[None]):
    """Record a region's watermark, durably (law 6)."""

    record: RegionWatermark


@dataclass(frozen=True, slots=True)
class ReadUnknownTables(Effect[dict[int, bytes]]):
    """Read the marks of unregistered tables, fresh (`Catalog.unknown_tables`)."""


@dataclass(frozen=True, slots=True)
class ReadTables(Effect[list[TableInfo]]):
    """Read the registered tables, fresh (`Catalog.registered`)."""


@dataclass(frozen=True, slots=True)
class ReadRegionWatermarks(Effect[list[RegionWatermark]]):
    """Read the region watermarks of one table, fresh."""

    table: str


@dataclass(frozen=True, slots=True)
class DropRegionWatermarks(Effect[None]):
    """Remove region watermarks (`Catalog.drop_region_watermarks`)."""

    newest: tuple[RegionWatermark, ...]


@dataclass(frozen=True, slots=True)
class AdvanceHorizon(Effect[int]):
    """Make H durable, then delete the entries below it (law 7). Result: the number of entries deleted."""

    horizon: int
