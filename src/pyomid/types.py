"""Value objects that all packages share. Timestamps are logical: ints of 63 bits.

A *version* is the timestamp under which a cell is stored: the writer's start timestamp (or its branch's), plus the
checkpoint (0 … 49). `start_of(version)` removes the checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from weakref import ReferenceType, ref

TIMESTAMP_STEP: Final = 50
"""The TSO hands out multiples of this: MAX_CHECKPOINTS_PER_TXN of Apache Omid (interop.md)."""

TIMESTAMP_MAX: Final = (1 << 63) - 1

FIRST_TIME: Final = 10**18
"""Timestamps from here on, September 2001, are nanoseconds since 1970 (`protocol.timestamps`); smaller ones are no
times. The compiled modules have the same number (`batch.pxd`)."""

NOT_FOUND: Final = 0
"""Result of a commit-table lookup: neither entry nor invalidation marker."""
SEALED: Final = -1
"""Result of a commit-table lookup: an invalidation marker (it wins over an entry, R2)."""

TABLES_UNCONFIRMED: Final = 1 << 64
"""No table has this id. A mark with it: a TSO that leaves no marks has led, so any table may be unregistered (K6)."""


def start_of(version: int) -> int:
    """The start timestamp of the transaction (or branch) that wrote `version`."""
    return version - version % TIMESTAMP_STEP


SHADOW_SUFFIX: Final = b"\xc2\x80"
"""End of a shadow cell's qualifier; no column may end so (interop.md, Cells in HBase)."""


class Column(NamedTuple):
    """One column of a table: family and qualifier."""

    family: bytes
    qualifier: bytes

    def __str__(self) -> str:
        return f"{self.family.decode('utf-8', 'backslashreplace')}:{self.qualifier.decode('utf-8', 'backslashreplace')}"


class CellVersion(NamedTuple):
    """The identity of a stored cell, without its value: the target of a repair or an exact delete."""

    row: bytes
    family: bytes
    qualifier: bytes
    version: int


class Cell(NamedTuple):
    """One stored version of one column of one row, as a store returns it.

    `value` None is a tombstone of the column; with an empty qualifier it is the family's tombstone.
    `commit_ts` is the shadow cell's content, 0 if there is none.
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
    """The stored versions of a row that its reader needs: `at_least` <= version < `below`.

    `committed_below`, if not 0, needs less: in each column the versions from the greatest down to the first whose
    shadow cell is below it. A *tombstone* without qualifier with such a shadow cell ends its whole family. Tombstones
    of a family are not needed below the last needed version of all its other columns.
    """

    at_least: int = 0
    below: int = TIMESTAMP_MAX
    committed_below: int = 0

    def holds(self, version: int) -> bool:
        return self.at_least <= version < self.below

    def ends_column(self, cell: Cell) -> bool:
        """Whether a reader with these bounds needs no older versions of this cell's column."""
        return 0 < cell.commit_ts < self.committed_below and (bool(cell.qualifier) or cell.value is None)

    def needed(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells of a row that the reader needs, newest version first."""
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
    """The stored versions whose commit may be after `committed_above`: `at_least` <= version < `below`, without a
    shadow cell or with one above `committed_above`."""

    at_least: int
    below: int
    committed_above: int


class Bookmark(NamedTuple):
    """A position in the order of commits: the commits below `start_ts` are before it, those above after it.

    `watermark`: a W that was published before `start_ts` was drawn. No commit above `start_ts` has a start at or below
    it, so a search for changes skips older versions. 0: unknown; the search reads all versions.
    """

    start_ts: int
    watermark: int = 0

    def __str__(self) -> str:
        return f"{self.start_ts}:{self.watermark}"

    @classmethod
    def of_text(cls, text: str) -> Bookmark | None:
        """Return the bookmark whose `str` this is; None if it is of none."""
        parts = text.strip().split(":")
        return cls(*map(int, parts)) if len(parts) == 2 and all(map(str.isdecimal, parts)) else None


At: TypeAlias = int | Bookmark | datetime | str
"""What names a past snapshot (`at=`): a timestamp, a bookmark, a wall-clock time with a zone, or one of these as text.
"""


def _without_idle_families(going_on: set[Column], with_values: set[bytes]) -> set[Column]:
    """Remove the tombstones of families that continue in no other column and in no value without qualifier."""
    families = with_values.union(column.family for column in going_on if column.qualifier)
    return {column for column in going_on if column.qualifier or column.family in families}


def _is_ended(column: Column, cell: Cell) -> bool:
    return column.family == cell.family and (not cell.qualifier or column.qualifier == cell.qualifier)


class RowWrite(NamedTuple):
    """The cells that one transaction writes to one row under one version; None is a tombstone.

    Columns are unique within a write.
    """

    row: bytes
    cells: tuple[tuple[Column, bytes | None], ...]


class VersionedRows(NamedTuple):
    """Rows that one transaction writes under one version."""

    version: int
    rows: Sequence[RowWrite]


class ShadowWrite(NamedTuple):
    """A shadow cell for a cell; written only if the cell still exists."""

    cell: CellVersion
    commit_ts: int


class KeyRange(NamedTuple):
    """Row keys from `start` (inclusive) to `stop` (exclusive). `start` b"" and `stop` None are unbounded."""

    start: bytes = b""
    stop: bytes | None = None

    def __contains__(self, row: object) -> bool:
        return isinstance(row, bytes) and self.start <= row and (self.stop is None or row < self.stop)


NO_KEYS: Final = KeyRange(b"\0", b"\0")
"""The range without keys."""


def prefix_range(prefix: bytes) -> KeyRange:
    """Return the range of all keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return KeyRange(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None)


def narrowed_range(start: bytes | None, stop: bytes | None, prefix: bytes | None) -> KeyRange | None:
    """Return the keys from `start` to `stop` that begin with `prefix`. None if the bounds exclude the whole prefix: the
    caller probably omitted the prefix from a bound."""
    inside = KeyRange() if prefix is None else prefix_range(prefix)
    stops = [bound for bound in (stop, inside.stop) if bound is not None]
    found = KeyRange(max(start or b"", inside.start), min(stops) if stops else None)
    if prefix and found.stop is not None and found.stop <= found.start:
        return None
    return found


class ConflictLevel(StrEnum):
    """Two transactions conflict if both write the same one of these; a property of the table (T9)."""

    CELL = "cell"
    ROW = "row"


class WriteSetLevel(IntEnum):
    """Whether a commit names its writes by ids of cells or rows, or by whole tables."""

    IDS = 0
    TABLE = 1


class SealOutcome(NamedTuple):
    """`placed`: the marker exists, so the start can never commit. Otherwise `commit_ts` is the commit found."""

    placed: bool
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class BeginReply:
    """A start timestamp, above every acknowledged commit (law 3), and the epoch of its TSO."""

    start_ts: int
    epoch: int = 0
    fenced_ts: int = 0
    """The newest fence that this TSO has drawn on any table; `TIMESTAMP_MAX` if it does not report fences (Apache
    Omid's): then table rules that were read before the start are not valid (`protocol.commit.may_use_rules`)."""
    read_at: int = 0
    """Set by a client for a past snapshot: the snapshot's start, possibly another transaction's. 0: the snapshot of
    `start_ts`."""
    is_by_time: bool = False
    """Set with `read_at` if the snapshot was requested by a wall-clock time."""
    hold: OpenStart | None = field(default=None, compare=False, repr=False)
    """Holds W back while the caller has this reply (T16); None: the client does not report the start as open."""

    def end(self) -> None:
        """Note that the start is no longer in use."""
        if self.hold is not None:
            self.hold.end()


class OpenStart:
    """A start that a session holds open until `end`, or until this object is garbage.

    The session has a weak reference without a callback, and checks it when it reports the open starts to the TSO. So a
    start ends even if its caller was interrupted, wherever that happened. No code runs in a destructor, where Python
    would swallow a signal handler's exception.
    """

    __slots__ = ("__weakref__", "_held", "_number", "at_least", "until_s")

    def __init__(self, held: dict[int, ReferenceType[OpenStart]], number: int, at_least: int, until_s: float) -> None:
        self._held, self._number = held, number
        self.at_least = at_least
        """The start; while its begin is in flight, one above the newest start known when the begin was requested."""
        self.until_s = until_s
        held[number] = ref(self)

    def end(self) -> None:
        """Close the start. Any thread may call it; further calls do nothing."""
        self._held.pop(self._number, None)

    @property
    def is_open(self) -> bool:
        return self._number in self._held

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """None in another process: only this process's session holds the start."""
        return type(None), ()


class AbortReason(StrEnum):
    """Why a commit was refused."""

    CONFLICT = "conflict"
    LOW_WATERMARK = "low_watermark"
    FENCE = "fence"
    TABLE = "table"
    SEALED = "sealed"
    LEASE_LOST = "lease_lost"
    RETRY_UNKNOWN = "retry_not_found"


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The decision: `commit_ts` > 0 is committed and durable; 0 is aborted, with the cause if known."""

    start_ts: int
    commit_ts: int = 0
    reason: AbortReason | None = None
    conflict_ts: int = 0

    @property
    def committed(self) -> bool:
        return self.commit_ts > 0


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Everything that the TSO needs to decide one commit. Ids are signed 64-bit (`protocol.hashing`).

    `branches` make it a large commit. `level` TABLE claims `table_ids` as a whole; `cell_ids` are then a few cells of
    other tables, such as an idempotency key, and are checked as usual. `from_java_peer`: from a peer without pyomid's
    extensions, such as Apache Omid's client, so `level` is IDS. `packed`: the whole request, with its cells, of a
    database that decides commits itself (`DataStore.pack_commit`); it has no other field but `start_ts`, and no TSO
    gets it. `reported_ids`: how many ids were reported for `branches` (`Tso.report_ids`); they are part of the write
    set.
    """

    start_ts: int
    cell_ids: tuple[int, ...] = ()
    table_ids: tuple[int, ...] = ()
    branches: tuple[int, ...] = ()
    level: WriteSetLevel = WriteSetLevel.IDS
    is_retry: bool = False
    from_java_peer: bool = False
    packed: bytes = b""
    reported_ids: int = 0

    @property
    def is_large(self) -> bool:
        """Whether the commit becomes durable by steps of its own instead of with its batch."""
        return bool(self.branches) or self.level is WriteSetLevel.TABLE


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What a commit writes and claims in one table. `rows`: key → column → value, None to delete the cell. `claims`:
    rows, with a column or None. `free`: the written cells that conflict with nobody."""

    name: str
    levels: tuple[ConflictLevel, ...]
    rows: Mapping[bytes, Mapping[Column, bytes | None]] = field(default_factory=dict)
    claims: Collection[tuple[bytes, Column | None]] = ()
    free: Collection[tuple[bytes, Column]] = ()

    def columns(self) -> list[Column]:
        """Return the columns, each once, in the order of their first cell."""
        written = (column for cells in self.rows.values() for column in cells)
        return list(dict.fromkeys((*written, *(column for _, column in self.claims if column is not None))))

    def row_writes(self) -> list[RowWrite]:
        """Return the rows, ascending."""
        return [RowWrite(row, tuple(self.rows[row].items())) for row in sorted(self.rows)]


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A large commit whose branches' entries may not all be durable yet."""

    start_ts: int
    branches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The contents of the leader state. W is `watermark`, H is `horizon` (protocol.md, Words)."""

    epoch: int = 0
    ceiling: int = 0
    watermark: int = 0
    horizon: int = 0
    leases: frozenset[int] = frozenset()
    pending: tuple[PendingCommit, ...] = ()
    retention_ms: int = 0
    """How long history is kept, as last set for a TSO; 0: only as long as a reader needs it."""


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
    """A Spark column and where its values are stored. `spark_type` is Spark's JSON name ("long", "decimal(10,2)")."""

    name: str
    spark_type: str
    column: Column | None
    """Family and qualifier of its cells. They identify the column for ever: no other column of the table ever has them
    (X1). None: the value is in the row key only."""
    earlier_types: tuple[str, ...] = ()
    """Types before the column was widened; the store may still hold values of these types."""


@dataclass(frozen=True, slots=True)
class RowKeyPart:
    """One column of the row key; the encoding is order-preserving and self-delimiting."""

    name: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The mapping of DataFrame rows to a table's cells."""

    columns: tuple[ColumnSchema, ...]
    row_key: tuple[RowKeyPart, ...]
    retired: tuple[Column, ...] = ()
    """Family and qualifier of each dropped column. Its cells stay, and still make a row exist; no new column may use
    them (X1)."""
    sentinel_family: bytes = b""
    """Family of the sentinel, recorded when columns are first altered, because it must not move with them. Empty: the
    family of the first value column."""


class IndexState(StrEnum):
    """State of an index (`database.tables.indexes`). Writers of the table maintain it from BUILDING until DROPPING."""

    PLANNED = "being made"
    BUILDING = "being built"
    READY = "ready"
    DROPPING = "being dropped"


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A secondary index of a table."""

    name: str
    columns: tuple[Column, ...]
    """Family and qualifier of each indexed column."""
    table: str
    """Name of the table that holds the index rows."""
    state: IndexState = IndexState.PLANNED
    ready_ts: int = 0
    """Once the index is ready, snapshots at or above this see all its rows."""


class TtlChange(NamedTuple):
    """The time to live of a table from a fence on (`protocol.expiry`). `ttl_seconds` 0: for ever. `expired_to`: values
    committed up to here had expired by then, and stay expired. Every transaction that begins above `known_ts` knows
    the change."""

    since_ts: int
    ttl_seconds: float
    expired_to: int
    known_ts: int = TIMESTAMP_MAX


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table's catalog entry."""

    name: str
    families: tuple[bytes, ...]
    conflict_level: ConflictLevel = ConflictLevel.CELL
    generation: int = 1
    """Raised whenever data is replaced from outside (restore, clone, bulk load): K5."""
    schema: TableSchema | None = None
    next_level: ConflictLevel | None = None
    """While the conflict level changes: the new level. Commits name the ids of both levels (T9)."""
    is_changing: bool = False
    """While columns change: clients read the entry in every transaction and do not cache it (X2)."""
    indexes: tuple[IndexInfo, ...] = ()
    ttl_seconds: float | None = None
    """How long a value is visible after its commit (E1). 0: for ever, but expired values stay expired. None: the table
    never had a time to live."""
    ttl_changes: tuple[TtlChange, ...] = ()
    """Empty if the time to live is that of the table's creation."""

    @property
    def id_levels(self) -> tuple[ConflictLevel, ...]:
        """The conflict levels for which a commit sends ids: both while the level is being changed."""
        return (self.conflict_level,) if self.next_level is None else (self.conflict_level, self.next_level)


class TableLife(Protocol):
    """What a read knows of its table: the name, and which of the tables that have the name one after the other (R10).
    A `TableInfo` is one."""

    @property
    def name(self) -> str: ...

    @property
    def generation(self) -> int: ...


class LifeOf(NamedTuple):
    """A table's life without its entry."""

    name: str
    generation: int = 0
    """0: the table is never dropped (a system table)."""


def life_of(table: TableLife) -> LifeOf:
    """Return the life of a table, without its entry."""
    return LifeOf(table.name, table.generation)


Progress = Callable[[str, int, int | None], object]
"""Is called while a long call works: with what it works on, a table or a file; how much of that is done by now, in rows
or, of a file, bytes; and how much there is, None if that is not known. It must return quickly."""


class TableState(StrEnum):
    """Progress of a table's creation or drop (protocol.md, Catalog)."""

    CREATING = "creating"
    """Not a table yet; the physical table may or may not exist."""
    PRESENT = "present"
    DROPPING = "dropping"
    """No longer a table; fence, removal of rows and removal of the entry follow in this order."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The catalog entry of a table name."""

    info: TableInfo
    state: TableState
    nonce: str
    """Unique to each write of the entry, so no later entry compares equal. Empty in entries of earlier versions."""

    @property
    def present_generation(self) -> int:
        """The generation of a table in state `PRESENT`; 0 in the other states (R10)."""
        return self.info.generation if self.state is TableState.PRESENT else 0


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The limits of a store for one cell. The defaults are HBase's: `Short.MAX_VALUE` for rows,
    `hbase.client.keyvalue.maxsize` for values.
    """

    row_bytes_max: int = 32_767
    qualifier_bytes_max: int = 32_767
    value_bytes_max: int = 10 << 20
    zeros_count_twice: bool = False
    """In a row key each zero byte counts twice."""

    def why_too_long(self, row: bytes) -> str:
        """Return why the key is too long for the store, as text; empty if it is not."""
        size = len(row)
        if self.zeros_count_twice and 2 * size > self.row_bytes_max:
            size += row.count(0)
        if size <= self.row_bytes_max:
            return ""
        how = " (a zero byte counts twice)" if self.zeros_count_twice else ""
        return f"takes {size} bytes{how}, over this store's limit of {self.row_bytes_max}"


@dataclass(frozen=True, slots=True)
class RegionWatermark:
    """The compactor's record: every version ≤ `watermark` in `key_range` is cleaned, durably (law 6)."""

    table: str
    generation: int
    key_range: KeyRange
    watermark: int
    recorded_at_s: float
    """Wall-clock time of the record, seconds since 1970: sanitizing counts only records older than the longest
    retry."""


TABLE_CONFLICTS: Final = "conflicts_of_table_"
"""Prefix of a table's counter; the table's id follows."""
UNCHECKED: Final = "records_unchecked"
"""A folder's counter: records that no pass of upkeep has checked yet."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a running TSO, as `pyomid status` prints it."""

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
    """The client whose open start holds the low watermark back, as text for operators; empty: none (leases are listed
    in `leases`)."""
    processes: tuple[int, ...] = ()
    """The processes that have a folder open; empty if a TSO leads."""

    @property
    def conflicts_by_table(self) -> dict[int, int]:
        """Conflicts by table id since this TSO began to lead, for the tables with the most: transactions that wrote or
        claimed the table and met a later commit."""
        shown = self.counters.items()
        return {int(name.removeprefix(TABLE_CONFLICTS)): n for name, n in shown if name.startswith(TABLE_CONFLICTS)}

    @property
    def longest_retry_s(self) -> float:
        """The longest time for which a client said it retries a commit, in seconds; 0 if none did."""
        return self.counters.get("commit_retry_ms_max", 0) / 1000

    @property
    def retention_s(self) -> float:
        """How long history is kept; 0: only as long as a reader needs it."""
        return self.counters.get("retention_ms", 0) / 1000


@dataclass(frozen=True, slots=True)
class BackupMoment:
    """The moment of a backup. Until the backup is taken, compaction removes nothing that it needs."""

    snapshot_ts: int
    """A start that the TSO handed out: every commit below it is durable."""
    epoch: int = 0
    """Epoch of the TSO that handed it out."""
    tables: tuple[TableInfo, ...] = ()
    """The existing tables, read after that."""
    newest_ts: Callable[[], int] = lambda: 0
    """Draws a start now. Starts ascend, so it is above every earlier start."""


@dataclass(frozen=True, slots=True)
class TableInBackup:
    """A table in a backup."""

    info: TableInfo
    snapshot: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """What a restore needs besides the snapshots of the tables. `snapshot_ts` is the moment: the backup holds exactly
    the commits below it. `epoch`: of the TSO that handed it out. `horizon`: H, read between the snapshots of the commit
    table and of the data. `newest_ts`: no version in the snapshots has a later start."""

    name: str
    snapshot_ts: int
    epoch: int
    horizon: int
    newest_ts: int
    taken: str
    database_id: str
    commits: str
    """Name of the commit table's snapshot."""
    tables: tuple[TableInBackup, ...]


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup, as `pyomid backup` prints it; a folder's backup has this in its file BACKUP."""

    folder: str
    """Folder of the original database; over HBase quorum and root znode."""
    database_id: str
    """The original database's id. A restored database has an id of its own."""
    snapshot_ts: int
    """Every commit below it is in the backup; later commits, until the backup was taken, may be."""
    taken: str
    """When it was taken, in UTC."""
    size_bytes: int
    """0 over HBase, whose snapshots copy no file."""
    since: str | None = None
    """Folder of the preceding backup, with which this one is restored; None: this is a full backup."""
    tables: tuple[str, ...] = ()
    """Over HBase: the tables in the backup, or the restored tables."""
    snapshots: tuple[str, ...] = ()
    """Over HBase: the snapshots of the backup; copy all of them to move it to another cluster."""


@dataclass(frozen=True, slots=True)
class TaskToken:
    """A delegation token, with which a process on another machine acts as `user` until `expires_ms`, wall-clock time of
    the store."""

    user: str
    expires_ms: int
    secret: bytes = field(repr=False)


def python_scalar(value: Any) -> Any:
    """Return the plain Python value of a numpy scalar, whichever module imported numpy; return every other value,
    numpy's dates and times included, as it is."""
    is_scalar = is_loaded_instance(value, "numpy", "generic") and value.dtype.kind not in "mM"
    return value.item() if is_scalar else value


def is_loaded_instance(value: object, module: str, name: str) -> bool:
    """Whether a value is an instance of a class of a module that need not be imported.

    While another thread imports the module, `sys.modules` holds the module without its classes.
    """
    return isinstance(value, getattr(sys.modules.get(module), name, ()))
