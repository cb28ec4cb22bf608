"""Read at a snapshot: find out which stored versions are visible, in the only safe order.

A fetched cell without a shadow cell is no evidence by itself: its transaction may be running, dead, or just
committed. These rules (protocol.md, "Reading a cell"; hazards R1–R8) serve row-at-a-time and vectorized readers:

    fetch F1
    look up the unresolved starts           hit, and start ≥ H read after it   → committed, for ever (cached)
    every other start was *missed*
    fetch F2 of the same rows               a shadow cell now                  → it decides
                                            gone                               → read F2 from its greatest version
                                            there, without shadow cell         → the status of this cell of F2:
        sealed, or below H                  → not visible
        of an earlier epoch (T6), or ≤ W    → seal; placed → fetch F3, not visible; refused → look up again
        else                                → not committed for this snapshot

Why a miss decides only about a *later* fetch (R1):

    R fetches x@100, no shadow cell
                                T writes x's shadow cell, deletes its commit-table entry
    R looks 100 up: no entry
    if R decided about the old fetch now, it would skip a committed version

A miss decides only about the cells of the next fetch, and is forgotten when this read ends (R6). After the last fetch
the snapshot must still be above W; otherwise the read fails with `SnapshotTooOld` (R7).

Stores know a table by its name, which several tables may have one after the other. So a read gets a `TableLife`, and
checks it together with W (R10). Every read that returns rows passes through `check_snapshot` or `read_settled`.

    R scans t: 10 rows
                                t is dropped and created again; its new rows lie above R's snapshot
    R scans on: no more rows
    the entry is of another generation: R fails instead of ending after 10 rows
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.coroutines import Effect, Routine
from pyomid.errors import OmidError, SnapshotTooOld
from pyomid.protocol import visibility
from pyomid.protocol.effects import (
    DeleteOrphans,
    ForgetTable,
    Heal,
    LookupThenWatermarks,
    NextBatch,
    ReadNotedDrop,
    ReadRange,
    ReadRows,
    ReadSettled,
    ReadValidity,
    ReadWatermarks,
    SealStarts,
    StartOfLastRows,
)
from pyomid.protocol.timestamps import dated
from pyomid.protocol.visibility import VisibleCells
from pyomid.types import (
    SEALED,
    TIMESTAMP_MAX,
    TIMESTAMP_STEP,
    Cell,
    CellVersion,
    Column,
    KeyRange,
    ReadBounds,
    ShadowWrite,
    TableLife,
    start_of,
)

T = TypeVar("T")


@dataclass(slots=True)  # not frozen: see `ReadRows`
class Snapshot:
    """The versions that a reader may see: everything committed before `start_ts`, and its own writes.

    `epoch` is the epoch of the TSO that handed out `start_ts`, or a later one, never an earlier one (T6). `own` holds
    the start timestamps of the reader's own versions: its start and its finished branches.
    """

    start_ts: int
    epoch: int
    own: frozenset[int] = frozenset()
    expired_to: int = 0
    """Values of the table being read have expired if they committed at or below this (`protocol.expiry`)."""
    _bounds: ReadBounds | None = field(default=None, init=False, repr=False, compare=False)

    def own_too(self, start: int) -> None:
        """Make the versions of this start visible as the reader's own."""
        self.own |= {start}
        self._bounds = None

    @property
    def bounds(self) -> ReadBounds:
        """Bounds of the versions of a row that a reader at the snapshot needs. A commit below the snapshot has a start
        below it, but own versions may lie above it."""
        bounds = self._bounds
        if bounds is None:
            below = max(self.start_ts, 0)
            for start in self.own:
                below = max(below, start + TIMESTAMP_STEP)
            self._bounds = bounds = ReadBounds(below=min(below, TIMESTAMP_MAX), committed_below=self.start_ts)
        return bounds


VisibleRow = dict[Column, bytes]
"""The values of one row that a reader sees. If it is empty, the row does not exist."""


ROWS_AT_ONCE: Final = 2_000
"""The maximum number of rows per multi-get; bounded, because their cells become Python objects. Reading this many rows
takes far longer than a round trip."""


def read_rows(
    table: TableLife,
    rows: Sequence[bytes],
    columns: Sequence[Column] | None,
    snapshot: Snapshot,
    cache: CommitCache,
) -> Routine[list[VisibleRow]]:
    """Return the visible state of each row, in the order of `rows`. Raises SnapshotTooOld if W has passed the snapshot,
    or if the table's life is over."""
    read = _read_some_rows if len(rows) <= ROWS_AT_ONCE else _read_many_rows
    return within_life(table, snapshot, read(table, rows, columns, snapshot, cache))


async def read_settled(
    table: TableLife,
    rows: Sequence[bytes],
    columns: Sequence[Column] | None,
    snapshot: Snapshot,
    cache: CommitCache,
) -> list[VisibleRow]:
    """Like `read_rows`, for a store that reads rows, W and the table's entry from one state of the database.

    If in that state W is below the snapshot and the table lives, no version that the snapshot needs is missing (R7,
    R10). So that state decides each row in which every version that may be visible has its shadow cell. The other rows
    are read again by `read_rows`. The snapshot's own versions must be at or above its start.
    """
    found: tuple[list[VisibleRow | None], int, int]
    try:
        found = await ReadSettled(table.name, rows, columns, snapshot.bounds, snapshot.expired_to)
    except OmidError as error:
        await _check_after_error(table, snapshot, error)
        raise
    settled, watermark, generation = found
    check_watermark(snapshot, watermark)
    if generation != table.generation or generation >= snapshot.start_ts:
        await check_life(table, snapshot, generation)
    if None not in settled:
        return settled  # type: ignore[return-value]
    left = [row for row, seen in zip(rows, settled, strict=True) if seen is None]
    others = iter(await read_rows(table, left, columns, snapshot, cache))
    return [next(others) if seen is None else seen for seen in settled]


async def _read_many_rows(
    table: TableLife,
    rows: Sequence[bytes],
    columns: Sequence[Column] | None,
    snapshot: Snapshot,
    cache: CommitCache,
) -> list[VisibleRow]:
    found: list[VisibleRow] = []
    for first in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[first : first + ROWS_AT_ONCE]
        found += await _read_some_rows(table, some, columns, snapshot, cache)
    return found


async def _read_some_rows(
    table: TableLife,
    rows: Sequence[bytes],
    columns: Sequence[Column] | None,
    snapshot: Snapshot,
    cache: CommitCache,
) -> list[VisibleRow]:
    rows_read, resolution = await resolve_rows(table.name, rows, snapshot, snapshot.bounds, cache, columns)
    await check_snapshot(table, snapshot, resolution.watermark)
    if resolution is not NOTHING_UNRESOLVED:
        await heal_cells(table.name, rows_read, resolution)
    seen = (snapshot.start_ts, snapshot.own, resolution.commits, snapshot.expired_to)
    return [visibility.visible_point(cells, *seen) for cells in rows_read]


async def resolve_rows(
    table: str,
    rows: Sequence[bytes],
    snapshot: Snapshot,
    bounds: ReadBounds,
    cache: CommitCache,
    columns: Sequence[Column] | None = None,
) -> tuple[list[list[Cell]], Resolution]:
    """Return the cells of each row within `bounds`, and the resolution of those cells that the snapshot may see. The
    caller must check afterwards that the fetches were complete."""
    fetch = ReadRows(table, rows, columns, bounds)
    fetched = _FetchedRows(fetch, snapshot)
    fetched.take(await fetch)
    if not fetched.unresolved_starts():
        return fetched.rows, NOTHING_UNRESOLVED  # the common case; the loop would give the same result
    resolution = await resolve(fetched, SealRule.of_reader(snapshot), cache)
    return fetched.rows, resolution


async def heal_cells(table: str, rows: Iterable[Sequence[Cell]], resolution: Resolution) -> None:
    """Repair the cells that a reader fetched: write missing shadow cells, and delete versions that can never commit."""
    if resolution.commits and (shadows := tuple(_healed(rows, resolution.commits))):
        await Heal(table, shadows)
    if resolution.orphans and (orphans := tuple(_orphaned(rows, resolution.orphans))):
        await DeleteOrphans(table, orphans)


class SnapshotScan:
    """A scan that returns the rows of a range, batch by batch, as a snapshot sees them."""

    def __init__(
        self,
        table: TableLife,
        key_range: KeyRange,
        columns: Sequence[Column] | None,
        snapshot: Snapshot,
        cache: CommitCache,
        *,
        rows_max: int,
    ) -> None:
        self._table, self._columns, self._snapshot, self._cache = table, columns, snapshot, cache
        self._fetch = NextBatch(table.name, key_range, columns, rows_max, snapshot.bounds)
        self.reached: bytes | None = key_range.start
        """All rows before this key were returned; None means all rows of the range."""

    def next(self) -> Routine[tuple[CellBatch, VisibleCells] | None]:
        """Return the next batch, with its cells that the snapshot sees (perhaps none); at the end make a last check and
        return None. After an error the scan cannot continue."""
        return within_life(self._table, self._snapshot, self._next())

    async def _next(self) -> tuple[CellBatch, VisibleCells] | None:
        batch: CellBatch | None = await self._fetch
        while batch is not None and not batch.rows:
            batch = await self._fetch
        found = await read_batch(self._table, batch, self._columns, self._snapshot, self._cache)
        self.reached = None if batch is None else batch.row_key(batch.rows - 1) + b"\0"
        return found


def start_of_last_rows(table: TableLife, key_range: KeyRange, rows: int, snapshot: Snapshot) -> Routine[bytes]:
    """Return the key at which about the last `rows` rows of the range begin. A scan from that key on then checks what
    both fetched."""
    return within_life(table, snapshot, _fetched(StartOfLastRows(table.name, key_range, rows)))


async def _fetched(effect: Effect[Any]) -> Any:
    return await effect


async def read_batch(
    table: TableLife,
    batch: CellBatch | None,
    columns: Sequence[Column] | None,
    snapshot: Snapshot,
    cache: CommitCache,
) -> tuple[CellBatch, VisibleCells] | None:
    """Return the cells that the snapshot sees in the next batch of a scan. Raises SnapshotTooOld if W has passed the
    snapshot, or if the table's life is over.

    The returned batch may be a later fetch of the same rows. Vectorized readers leave shadow-cell repair to compaction,
    because they look up a start once per scan, not once per cell. `batch` None marks the end of the scan, and the
    result is None. Then W and the table are checked once more: compaction or a drop may have removed rows after the
    last batch, or of a range that looked empty (R7, R10).
    """
    if batch is None:
        await check_snapshot(table, snapshot)
        return None
    fetched = FetchedBatch(table.name, columns, snapshot.start_ts, snapshot.own, batch, snapshot.bounds)
    resolution = await resolve(fetched, SealRule.of_reader(snapshot), cache)
    await check_snapshot(table, snapshot, resolution.watermark)
    seen = visibility.visible_cells(fetched.batch, snapshot.start_ts, snapshot.own, snapshot.expired_to)
    return fetched.batch, seen


# --- whether a read counts ----------------------------------------------------------------------------------


async def check_snapshot(table: TableLife, snapshot: Snapshot, watermark: int | None = None) -> None:
    """Check, after the last fetch of a read, that the read was complete (R7, R10). `watermark` is W if a lookup read W
    after the last fetch (R4)."""
    if not table.generation:
        if watermark is None:
            watermark, _ = await _READ_WATERMARKS
        check_watermark(snapshot, watermark)
        return
    watermark, generation = await ReadValidity(table.name)
    check_watermark(snapshot, watermark)
    await check_life(table, snapshot, generation)


def check_watermark(snapshot: Snapshot, watermark: int) -> None:
    """R7: raise SnapshotTooOld unless W is still below the snapshot. Otherwise the read may have missed versions."""
    if snapshot.start_ts <= watermark:
        raise SnapshotTooOld(
            f"snapshot {dated(snapshot.start_ts)} is at or below the published low watermark {dated(watermark)}, so "
            "versions that it needs may be gone; begin a new transaction, or hold a lease for long reads",
            start_ts=snapshot.start_ts,
            watermark=watermark,
        )


async def check_life(table: TableLife, snapshot: Snapshot, generation: int) -> None:
    """R10: raise SnapshotTooOld unless the table with this name, after the last fetch, is the one that the reader
    opened; otherwise rows may be missing. `generation` is that table's, or 0. If the table is younger than the
    snapshot, it must be the first of its name that the snapshot may know."""
    if not table.generation:
        return
    if generation != table.generation:
        await ForgetTable(table.name)
        raise SnapshotTooOld(
            f"snapshot {dated(snapshot.start_ts)} cannot read table {table.name!r} any more, because the table was "
            "dropped, and perhaps created again; begin a new transaction",
            start_ts=snapshot.start_ts,
            table=table.name,
            generation=table.generation,
        )
    if generation < snapshot.start_ts:
        return
    dropped_ts: int = await ReadNotedDrop(table.name)
    if dropped_ts >= snapshot.start_ts:
        raise SnapshotTooOld(
            f"snapshot {dated(snapshot.start_ts)} cannot read table {table.name!r}, which was created at "
            f"{dated(generation)}: a former table with the same name may be in the snapshot, and its rows are gone; "
            "begin a new transaction",
            start_ts=snapshot.start_ts,
            table=table.name,
            generation=generation,
        )


async def within_life(table: TableLife, snapshot: Snapshot, routine: Routine[T]) -> T:
    """Run a read and return its result. If the read fails because the table's life is over, raise `SnapshotTooOld`
    (R10). In that case the store has no such table or family, or a table that it is about to drop does not answer."""
    try:
        return await routine
    except SnapshotTooOld:
        raise
    except OmidError as error:
        await _check_after_error(table, snapshot, error)
        raise


async def _check_after_error(table: TableLife, snapshot: Snapshot, error: OmidError) -> None:
    if not table.generation:
        return
    try:
        _, generation = await ReadValidity(table.name)
    except OmidError:
        return  # the first error says more
    try:
        await check_life(table, snapshot, generation)
    except SnapshotTooOld as gone:
        raise gone from error


# --- the resolution that readers and the compactor share ----------------------------------------------------


class Fetched(Protocol):
    """Rows that one fresh read returned, with the effect that reads them again."""

    def again(self) -> Effect[Any]: ...

    def take(self, result: object) -> None: ...

    def unresolved_starts(self) -> set[int]:
        """Return the distinct starts of the cells that the reader may see and that have no shadow cell, without its own
        starts."""

    def apply(self, commits: Mapping[int, int]) -> None:
        """Set the commit timestamps found in the commit table in the cells of the last fetch."""


@dataclass(frozen=True, slots=True)
class SealRule:
    """The rule which missed starts must be sealed before their status counts."""

    epoch: int
    seal_all: bool = False

    @classmethod
    def of_reader(cls, snapshot: Snapshot) -> SealRule:
        return cls(snapshot.epoch)

    @classmethod
    def of_compactor(cls) -> SealRule:
        """K2: return the compactor's rule: seal all, because it deletes only versions that were sealed before."""
        return cls(epoch=0, seal_all=True)


@dataclass(slots=True)
class Resolution:
    """What a reader knows of the starts of unresolved cells. `commits` are hits in the commit table. `orphans` can
    never commit; their cells without a shadow cell in the last fetch may be deleted (R8). `missed` are all starts that
    are not committed for this reader. `watermark` is W if a lookup read W after the last fetch."""

    commits: dict[int, int] = field(default_factory=dict)
    orphans: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)
    watermark: int | None = None


NOTHING_UNRESOLVED: Final = Resolution()
"""The resolution of a fetch in which every cell that the reader may see has its shadow cell."""

_READ_WATERMARKS: Final = ReadWatermarks()

_NEVER: Final = "sealed, or below H"
_OPEN: Final = "neither entry nor marker"


async def resolve(fetched: Fetched, seal_rule: SealRule, cache: CommitCache) -> Resolution:
    """Look up, fetch again and seal until every unresolved cell of the last fetch has a status; return the
    resolution."""
    resolution = Resolution()
    statuses: dict[int, str] = {}
    final: set[int] = set()
    watermark = 0
    while True:
        unresolved = fetched.unresolved_starts() - resolution.commits.keys()
        _take_hits(unresolved, cache, resolution)
        asked = tuple(sorted(unresolved - statuses.keys() - resolution.commits.keys()))
        if asked:
            watermark_before = watermark
            states, watermark, horizon = await look_up(asked)
            resolution.watermark = watermark
            final |= _final_starts(asked, states, horizon, watermark_before)
            statuses.update(_note_states(asked, states, horizon, cache, resolution))
            if any(start in statuses for start in asked):
                resolution.watermark = None
                await _refetch_missed(fetched)
                continue
        present = unresolved & statuses.keys()
        to_seal = tuple(sorted(s for s in present if _needs_seal(s, statuses[s], seal_rule, watermark)))
        if not to_seal:
            break
        for start, outcome in zip(to_seal, (await SealStarts(to_seal)), strict=True):
            if outcome.placed:
                statuses[start] = _NEVER
                if start <= watermark:
                    final.add(start)
            else:
                del statuses[start]
        resolution.watermark = None
        await _refetch_sealed(fetched)
    fetched.apply(resolution.commits)
    resolution.missed = set(present)
    resolution.orphans = present & final
    return resolution


async def look_up(starts: Sequence[int]) -> tuple[Sequence[int], int, int]:
    """R4: look up the starts; return their states, W and H. W and H are read after the entries, because H may pass an
    entry."""
    found: tuple[Sequence[int], int, int] = await LookupThenWatermarks(tuple(starts))
    return found


async def _refetch_missed(fetched: Fetched) -> None:
    """R1: fetch again, because a miss decides only about a fetch that began after the lookup."""
    fetched.take(await fetched.again())


async def _refetch_sealed(fetched: Fetched) -> None:
    """R3, K2: fetch again, because a shadow cell that was written before the seal decides."""
    fetched.take(await fetched.again())


def _take_hits(unresolved: Iterable[int], cache: CommitCache, resolution: Resolution) -> None:
    for start in unresolved:
        commit_ts = cache.get(start)
        if commit_ts:
            resolution.commits[start] = commit_ts


def _note_states(
    asked: Sequence[int],
    states: Sequence[int],
    horizon: int,
    cache: CommitCache,
    resolution: Resolution,
) -> dict[int, str]:
    """Return the statuses of the missed starts, and cache the hits for ever. Below H neither a hit nor a miss counts
    (R4); only the shadow cell decides."""
    statuses: dict[int, str] = {}
    for start, state in zip(asked, states, strict=True):
        if start < horizon:
            statuses[start] = _NEVER
        elif state > 0:
            cache.put(start, state)
            resolution.commits[start] = state
        else:
            statuses[start] = _NEVER if state == SEALED else _OPEN
    return statuses


def _final_starts(asked: Sequence[int], states: Sequence[int], horizon: int, watermark_before: int) -> set[int]:
    """R8: return the starts that no commit can name any more. Each is below H; or it is sealed, and at or below a W
    that was read *before* the lookup. Until W has passed a branch, its entry may replace an invalidation marker (T13).

    R looks b up: sealed, by a Java fence()
                                              the job commits: b's entry replaces the marker; W passes b
    R reads W: b is below it. Deleting b's cells now would lose a commit
    """
    return {
        start
        for start, state in zip(asked, states, strict=True)
        if start < horizon or (state == SEALED and start <= watermark_before)
    }


def _needs_seal(start: int, status: str, seal_rule: SealRule, watermark: int) -> bool:
    if status == _NEVER:
        return False
    return seal_rule.seal_all or start <= seal_rule.epoch or start <= watermark


# --- row at a time, and vectorized --------------------------------------------------------------------------


class _FetchedRows:
    """A few rows as lists of cells (row at a time). Commits stay in the resolution; the cells do not change."""

    __slots__ = ("_fetch", "_snapshot", "rows")

    def __init__(self, fetch: ReadRows, snapshot: Snapshot) -> None:
        self._fetch = fetch
        self._snapshot = snapshot
        self.rows: list[list[Cell]] = []

    def again(self) -> Effect[Any]:
        return self._fetch

    def take(self, result: object) -> None:
        assert isinstance(result, list)
        self.rows = result

    def unresolved_starts(self) -> set[int]:
        snapshot, rows = self._snapshot, self.rows
        cells = rows[0] if len(rows) == 1 else chain.from_iterable(rows)
        return set(visibility.unresolved_point(cells, snapshot.start_ts, snapshot.own))

    def apply(self, commits: Mapping[int, int]) -> None:
        pass


class FetchedBatch:
    """One cell batch (vectorized). Versions at or above `bound` are ignored. `bounds` describes the versions of a row
    that the reader needs; None, for the compactor, means all."""

    def __init__(
        self,
        table: str,
        columns: Sequence[Column] | None,
        bound: int,
        own: frozenset[int],
        batch: CellBatch,
        bounds: ReadBounds | None = None,
    ) -> None:
        self._bounds = bounds
        self._table, self._columns, self._bound, self._own = table, columns, bound, own
        self._range = KeyRange(batch.row_key(0), batch.row_key(batch.rows - 1) + b"\0") if batch.rows else None
        self.batch = batch
        self.resolved: NDArray[np.int64] = np.empty(0, np.int64)
        """The records of `batch` that the commit table resolved."""

    def again(self) -> Effect[Any]:
        assert self._range is not None, "an empty batch has nothing unresolved"
        return ReadRange(self._table, self._range, self._columns, bounds=self._bounds)

    def take(self, result: object) -> None:
        assert isinstance(result, CellBatch)
        self.batch = result

    def unresolved_starts(self) -> set[int]:
        if not self.batch.rows:
            return set()
        return set(visibility.unresolved_starts(self.batch, self._bound, self._own).tolist())

    def apply(self, commits: Mapping[int, int]) -> None:
        if commits and self.batch.rows:
            starts = np.array(sorted(commits), np.int64)
            found = np.array([commits[start] for start in starts.tolist()], np.int64)
            self.resolved = visibility.apply_commits(self.batch, starts, found)


def version_bound(watermark: int) -> int:
    """Return the bound such that versions below it belong to starts ≤ `watermark`."""
    return start_of(watermark) + TIMESTAMP_STEP


def _healed(rows: Iterable[Iterable[Cell]], commits: Mapping[int, int]) -> Iterable[ShadowWrite]:
    for cells in rows:
        for cell in cells:
            commit_ts = 0 if cell.commit_ts else commits.get(start_of(cell.version), 0)
            if commit_ts:
                yield ShadowWrite(cell.name, commit_ts)


def _orphaned(rows: Iterable[Iterable[Cell]], orphans: Collection[int]) -> Iterable[CellVersion]:
    for cells in rows:
        for cell in cells:
            if not cell.commit_ts and start_of(cell.version) in orphans:
                yield cell.name


# --- known commits ------------------------------------------------------------------------------------------

CACHE_ENTRIES_MAX: Final = 100_000
"""This takes about 10 MB of Python ints. A scan usually has fewer starts to resolve."""


class CommitCache:
    """A cache of start → commit timestamp, which all readers of a process share. A commit never changes, so no entry
    becomes invalid. A miss is never cached (R6): a later snapshot that must see the commit would read "not committed".

    The cache is bounded: when its newer half is full, the older half is dropped, and the newer one becomes the older.
    Threads of CPython may share it, because it uses only single dict operations; a lost entry costs one lookup.
    """

    def __init__(self, entries_max: int = CACHE_ENTRIES_MAX) -> None:
        self._half_max = max(1, entries_max // 2)
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def get(self, start: int) -> int:
        """Return the start's commit timestamp, or 0 if it is not cached."""
        return self._newer.get(start) or self._older.get(start, 0)

    def put(self, start: int, commit_ts: int) -> None:
        if len(self._newer) >= self._half_max:
            self._older, self._newer = self._newer, {}
        self._newer[start] = commit_ts

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)
