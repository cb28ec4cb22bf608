"""Value objects that all packages share. Timestamps are logical: plain ints of 63 bits.

A *version* is the timestamp under which a cell is stored: the start timestamp of the writer, or of its branch, plus its
checkpoint (0 … 49). `start_of(version)` removes the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import groupby
from typing import Final, NamedTuple

TIMESTAMP_STEP: Final = 50
"""Timestamps handed out are multiples of this: MAX_CHECKPOINTS_PER_TXN of Apache Omid (interop.md)."""

TIMESTAMP_MAX: Final = (1 << 63) - 1

NOT_FOUND: Final = 0
"""A commit-table look-up's answer: neither entry nor invalidation marker."""
SEALED: Final = -1
"""A commit-table look-up's answer: an invalidation marker stands (it wins over an entry, R2)."""

TABLES_UNCONFIRMED: Final = 1 << 64
"""No table's id. Its mark says that a TSO led which leaves no marks, so any table may be missing (K6)."""


def start_of(version: int) -> int:
    """The start timestamp of the transaction (or branch) that wrote `version`."""
    return version - version % TIMESTAMP_STEP


SHADOW_SUFFIX: Final = b"\xc2\x80"
"""A qualifier that ends so would be taken for a shadow cell (interop.md, Cells in HBase)."""


class Column(NamedTuple):
    """One column of a table: family and qualifier."""

    family: bytes
    qualifier: bytes

    def __str__(self) -> str:
        return f"{self.family.decode('utf-8', 'backslashreplace')}:{self.qualifier.decode('utf-8', 'backslashreplace')}"


class CellVersion(NamedTuple):
    """The name of one stored cell, without its value: the target of a repair or an exact delete."""

    row: bytes
    family: bytes
    qualifier: bytes
    version: int


class Cell(NamedTuple):
    """One stored version of one column of one row, as a store returns it.

    `value` None is a tombstone of the column; with an empty qualifier it is the family's tombstone.
    `commit_ts` is the shadow cell's content, 0 where there is none.
    """

    row: bytes
    family: bytes
    qualifier: bytes
    version: int
    value: bytes | None
    commit_ts: int = 0

    @property
    def name(self) -> CellVersion:
        return CellVersion(self.row, self.family, self.qualifier, self.version)


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Which stored versions of a row its reader needs: `at_least` <= version < `below`.

    `committed_below`, where given: of each column its versions from the greatest down to the first whose shadow cell
    is below it. Such a *tombstone* without qualifier is the last of its whole family, and no tombstone of a family is
    needed below the last needed version of every other column of it.
    """

    at_least: int = 0
    below: int = TIMESTAMP_MAX
    committed_below: int = 0

    def holds(self, version: int) -> bool:
        return self.at_least <= version < self.below

    def ends_column(self, cell: Cell) -> bool:
        """A reader with these bounds needs no older versions of this cell's column."""
        return 0 < cell.commit_ts < self.committed_below and (bool(cell.qualifier) or cell.value is None)

    def needed(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells of a row that the reader needs, newest version first."""
        newest_first = sorted((cell for cell in cells if self.holds(cell.version)), key=lambda each: -each.version)
        going_on = {Column(cell.family, cell.qualifier) for cell in newest_first}
        with_values = {cell.family for cell in newest_first if not cell.qualifier and cell.value is not None}
        if self.committed_below:
            going_on = _without_idle_families(going_on, with_values)
        needed: list[Cell] = []
        for _, group in groupby(newest_first, key=lambda each: each.version):
            version = [cell for cell in group if Column(cell.family, cell.qualifier) in going_on]
            needed += version
            if ends := [cell for cell in version if self.ends_column(cell)]:
                going_on = {column for column in going_on if not any(_is_ended(column, cell) for cell in ends)}
                going_on = _without_idle_families(going_on, with_values)
        return needed


class ChangeBounds(NamedTuple):
    """Which stored versions can be of a commit after `committed_above`: `at_least` <= version < `below`, without a
    shadow cell or with one above `committed_above`."""

    at_least: int
    below: int
    committed_above: int


class Bookmark(NamedTuple):
    """A place in the order of commits: after those below `start_ts`, before those above it.

    `watermark`: a W that was published before `start_ts` was drawn, so that no commit above `start_ts` has a start at
    or below it. 0: none is known, and what changed since is looked for among all versions.
    """

    start_ts: int
    watermark: int = 0


def _without_idle_families(going_on: set[Column], with_values: set[bytes]) -> set[Column]:
    """Without the tombstones of families of which no other column, and no value without qualifier, goes on."""
    families = with_values.union(column.family for column in going_on if column.qualifier)
    return {column for column in going_on if column.qualifier or column.family in families}


def _is_ended(column: Column, cell: Cell) -> bool:
    return column.family == cell.family and (not cell.qualifier or column.qualifier == cell.qualifier)


class RowWrite(NamedTuple):
    """The cells one transaction writes into one row under one version; None is a tombstone.

    Columns are unique within a write.
    """

    row: bytes
    cells: tuple[tuple[Column, bytes | None], ...]


class VersionedRows(NamedTuple):
    """The rows that one transaction writes, and the version under which it does."""

    version: int
    rows: Sequence[RowWrite]


class ShadowWrite(NamedTuple):
    """A shadow cell to put beside a cell: only where the cell still is, never alone."""

    cell: CellVersion
    commit_ts: int


class KeyRange(NamedTuple):
    """Row keys from `start` (inclusive) to `stop` (exclusive); `stop` None has no end, `start` b"" no begin."""

    start: bytes = b""
    stop: bytes | None = None

    def __contains__(self, row: object) -> bool:
        return isinstance(row, bytes) and self.start <= row and (self.stop is None or row < self.stop)


def prefix_range(prefix: bytes) -> KeyRange:
    """All keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return KeyRange(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None)


def narrowed_range(start: bytes | None, stop: bytes | None, prefix: bytes | None) -> KeyRange | None:
    """The keys from `start` to `stop` that begin with `prefix`. None if the bounds leave nothing of the prefix: such a
    caller mostly takes a bound for the part after the prefix."""
    inside = KeyRange() if prefix is None else prefix_range(prefix)
    stops = [bound for bound in (stop, inside.stop) if bound is not None]
    found = KeyRange(max(start or b"", inside.start), min(stops) if stops else None)
    if prefix and found.stop is not None and found.stop <= found.start:
        return None
    return found


class ConflictLevel(StrEnum):
    """The unit that two transactions must both write to conflict; a property of the table (T9)."""

    CELL = "cell"
    ROW = "row"


class WriteSetLevel(IntEnum):
    """How a commit names what it wrote: by the ids of cells or rows, or by whole tables."""

    IDS = 0
    TABLE = 1


class SealOutcome(NamedTuple):
    """`placed`: the marker stands and the start can never commit. Otherwise `commit_ts` is the commit found."""

    placed: bool
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class BeginReply:
    """A start timestamp, above every acknowledged commit (law 3), and the epoch of the TSO that gave it."""

    start_ts: int
    epoch: int = 0
    fenced_ts: int = 0
    """The newest fence that this TSO drew on any table so far; `TIMESTAMP_MAX` if it does not tell (Apache Omid's):
    then no rules that were read before the start may be used (`protocol.commit.may_go_by`)."""
    read_at: int = 0
    """Set by a client that reads below the present: the snapshot's start, which may be another transaction's; 0: the
    snapshot is that of `start_ts`."""


class AbortReason(StrEnum):
    """Why a commit was refused, as clients and metrics distinguish it."""

    CONFLICT = "conflict"
    LOW_WATERMARK = "low_watermark"
    FENCE = "fence"
    TABLE = "table"
    SEALED = "sealed"
    LEASE_LOST = "lease_lost"
    RETRY_UNKNOWN = "retry_not_found"


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The decision: `commit_ts` > 0 is committed and durable; otherwise aborted, with the cause if it is known."""

    start_ts: int
    commit_ts: int = 0
    reason: AbortReason | None = None
    conflict_ts: int = 0

    @property
    def committed(self) -> bool:
        return self.commit_ts > 0


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Everything the TSO needs to decide one commit. Ids are signed 64 bit (`protocol.hashing`).

    `branches` make it a large commit. `level` TABLE claims `table_ids` as a whole; `cell_ids` are then a few cells of
    other tables, an idempotency key for example, which are checked as ever. `is_plain`: from a peer that knows only the
    level IDS, Apache Omid's client.
    """

    start_ts: int
    cell_ids: tuple[int, ...] = ()
    table_ids: tuple[int, ...] = ()
    branches: tuple[int, ...] = ()
    level: WriteSetLevel = WriteSetLevel.IDS
    is_retry: bool = False
    is_plain: bool = False

    @property
    def is_large(self) -> bool:
        """Made durable by steps of its own, not with its batch."""
        return bool(self.branches) or self.level is WriteSetLevel.TABLE


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A large commit whose branches' entries may not all be durable yet."""

    start_ts: int
    branches: tuple[int, ...]


class TimePoint(NamedTuple):
    """At `wall_ms`, milliseconds since 1970 by the leader's clock, the snapshot of `start_ts` was the newest
    (`protocol.time_points`)."""

    start_ts: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """What the leader state holds. W is `watermark`, H is `horizon` (protocol.md, Words)."""

    epoch: int = 0
    ceiling: int = 0
    watermark: int = 0
    horizon: int = 0
    leases: frozenset[int] = frozenset()
    pending: tuple[PendingCommit, ...] = ()
    retention_ms: int = 0
    """For how long history is kept, as a TSO was told last; 0: no longer than somebody reads it."""


@dataclass(frozen=True, slots=True)
class LeaderStateChanges:
    """One atomic change of the leader state, applied only while the row still holds the writer's epoch."""

    ceiling: int | None = None
    watermark: int | None = None
    horizon: int | None = None
    leases_added: tuple[int, ...] = ()
    leases_removed: tuple[int, ...] = ()
    pending_added: tuple[PendingCommit, ...] = ()
    pending_removed: tuple[int, ...] = ()
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """A Spark column and where its values live. `spark_type` is Spark's own JSON name ("long", "decimal(10,2)")."""

    name: str
    spark_type: str
    column: Column | None
    """Its place, by which the column is known for ever: no other one of the table ever has it (X1). None: the value is
    part of the row key only."""
    earlier_types: tuple[str, ...] = ()
    """Those that it had before it was widened: values of them still stand in the store."""


@dataclass(frozen=True, slots=True)
class RowKeyPart:
    """One column of the row key, in order; the encoding is order-preserving and self-delimiting."""

    name: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class TableSchema:
    """How DataFrame rows lie in a table's cells."""

    columns: tuple[ColumnSchema, ...]
    row_key: tuple[RowKeyPart, ...]
    retired: tuple[Column, ...] = ()
    """Places of dropped columns. Their cells stand, and still make a row exist; no new column gets them (X1)."""
    sentinel_family: bytes = b""
    """Of the sentinel, since columns were first altered: it must not move with them. Empty: that of the first value."""


class IndexState(StrEnum):
    """How far an index is (`client.admin.indexes`). Every writer of the table keeps it all the while."""

    BUILDING = "being built"
    READY = "ready"
    DROPPING = "being dropped"


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A secondary index of a table."""

    name: str
    columns: tuple[Column, ...]
    """The places of the indexed columns."""
    table: str
    """The table that holds its rows."""
    state: IndexState = IndexState.BUILDING
    ready_ts: int = 0
    """Snapshots at or above it see all of its rows, once it is ready."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table's catalog entry."""

    name: str
    families: tuple[bytes, ...]
    conflict_level: ConflictLevel = ConflictLevel.CELL
    generation: int = 1
    """Raised whenever data were replaced from outside (restore, clone, bulk load): K5."""
    schema: TableSchema | None = None
    next_level: ConflictLevel | None = None
    """While the level changes: the one that the table will have. Commits name the ids of both (T9)."""
    is_changing: bool = False
    """While its columns change: clients read the entry in every transaction, and keep nothing of it (X2)."""
    indexes: tuple[IndexInfo, ...] = ()
    ttl_seconds: float | None = None
    """How long a value is seen after its commit (E1). 0: for ever, but what has expired stays so. None: it never had a
    time to live."""

    @property
    def id_levels(self) -> tuple[ConflictLevel, ...]:
        """The levels of whose ids a commit names those of what it wrote."""
        return (self.conflict_level,) if self.next_level is None else (self.conflict_level, self.next_level)


class TableState(StrEnum):
    """How far the creation or the drop of a table has come (protocol.md, Catalog)."""

    CREATING = "creating"
    """Not a table yet: its physical table may be there or not."""
    PRESENT = "present"
    DROPPING = "dropping"
    """Not a table any more: fence, rows and entry go in this order."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The catalog's entry for a table's name."""

    info: TableInfo
    state: TableState
    nonce: str
    """Unique to the write that put the entry: no later entry compares equal. Empty in entries of earlier versions."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a store can hold in one cell. The defaults are HBase's: `Short.MAX_VALUE` for rows,
    `hbase.client.keyvalue.maxsize` for values.
    """

    row_bytes_max: int = 32_767
    qualifier_bytes_max: int = 32_767
    value_bytes_max: int = 10 << 20
    zeros_count_twice: bool = False
    """In a row key."""

    def why_too_long(self, row: bytes) -> str:
        """Why the store takes no row of this key, in words; empty if it does."""
        size = len(row)
        if self.zeros_count_twice and 2 * size > self.row_bytes_max:
            size += row.count(0)
        if size <= self.row_bytes_max:
            return ""
        how = ", of which a zero byte counts twice" if self.zeros_count_twice else ""
        return f"takes {size} bytes{how}, over this store's limit of {self.row_bytes_max}"


@dataclass(frozen=True, slots=True)
class RegionWatermark:
    """The compactor's record: every version ≤ `watermark` in `key_range` was cleaned, durably (law 6)."""

    table: str
    generation: int
    key_range: KeyRange
    watermark: int
    recorded_at_s: float
    """Wall clock of the record, seconds since 1970: sanitizing counts only records older than the longest retry."""


TABLE_CONFLICTS: Final = "conflicts_of_table_"
"""A counter of each table, before its id."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a running TSO, for people: `pyomid status`."""

    epoch: int
    last_ts: int
    low_watermark: int
    watermark: int
    horizon: int
    leases: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    in_flight: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    held_back_by: str = ""
    """Whose open start holds the low watermark back, as text for operators; empty: none (leases are told apart)."""

    @property
    def conflicts_by_table(self) -> dict[int, int]:
        """By table id, of the tables that have most: how many transactions that wrote or claimed the table met a later
        commit, since this TSO leads."""
        shown = self.counters.items()
        return {int(name.removeprefix(TABLE_CONFLICTS)): n for name, n in shown if name.startswith(TABLE_CONFLICTS)}

    @property
    def longest_retry_s(self) -> float:
        """For how long clients announced to repeat commits; 0 if none did."""
        return self.counters.get("commit_retry_ms_max", 0) / 1000

    @property
    def retention_s(self) -> float:
        """For how long history is kept; 0: no longer than a reader needs it."""
        return self.counters.get("retention_ms", 0) / 1000


@dataclass(frozen=True, slots=True)
class BackupMoment:
    """The moment that a back-up is of, held: nothing that it needs is cleaned before the back-up is taken."""

    snapshot_ts: int
    """A start that was handed out: what committed below it is durable."""
    epoch: int = 0
    """Of the TSO that handed it out."""
    tables: tuple[TableInfo, ...] = ()
    """Which tables there are, read after that."""
    expired_to: Mapping[str, int] = field(default_factory=dict)
    """The floors of those with a time to live, as the snapshot sees them."""
    newest_ts: Callable[[], int] = lambda: 0
    """A start that is handed out now. Starts ascend, so no earlier one is greater."""


@dataclass(frozen=True, slots=True)
class TableInBackup:
    """`expired_to`: the table's floor, as the moment's snapshot sees it."""

    info: TableInfo
    snapshot: str
    expired_to: int = 0


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """What makes snapshots of tables one back-up. `snapshot_ts` is the moment: what committed below it is in the
    back-up, and nothing else. `epoch`: of the TSO that handed it out. `horizon`: H between the snapshots of commit
    table and data. `newest_ts`: no version in the snapshots has a later start."""

    name: str
    snapshot_ts: int
    epoch: int
    horizon: int
    newest_ts: int
    taken: str
    database_id: str
    commits: str
    """The snapshot of the commit table."""
    tables: tuple[TableInBackup, ...]


@dataclass(frozen=True, slots=True)
class Backup:
    """A back-up, as `pyomid backup` prints it; that of a folder says it in its file BACKUP."""

    folder: str
    """The folder of the database that it is of; over HBase the quorum and the root znode."""
    database_id: str
    """That database's id. What is restored is another database, with an id of its own."""
    snapshot_ts: int
    """Every commit below it is in the back-up; later ones, until it was taken, may be."""
    taken: str
    """When, in UTC."""
    size_bytes: int
    """0 over HBase, whose snapshots copy no file."""
    since: str | None = None
    """The folder of the back-up that this one goes on from, and is restored with; None: it is whole."""
    tables: tuple[str, ...] = ()
    """Over HBase: the tables in it, or those that were restored."""
    snapshots: tuple[str, ...] = ()
    """Over HBase: of which it is made; they go to another cluster together."""


@dataclass(frozen=True, slots=True)
class TaskToken:
    """What a process of another machine shows a store, in place of what this one has: it stands for `user` until
    `expires_ms`, wall time of the store."""

    user: str
    expires_ms: int
    secret: bytes = field(repr=False)


EpochState = LeaderRecord
"""Former name of `LeaderRecord`, kept for one release."""
EpochChanges = LeaderStateChanges
"""Former name of `LeaderStateChanges`, kept for one release."""
