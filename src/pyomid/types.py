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
"""Timestamps from this number on (September 2001) are nanoseconds since 1970 (`protocol.timestamps`); smaller
timestamps are not times. The compiled modules have the same number (`batch.pxd`)."""

NOT_FOUND: Final = 0
"""Result of a commit-table lookup: there is neither an entry nor an invalidation marker."""
SEALED: Final = -1
"""Result of a commit-table lookup: there is an invalidation marker, which wins over an entry (R2)."""

TABLES_UNCONFIRMED: Final = 1 << 64
"""An id that no table has. A mark with this id means that a TSO that leaves no marks has led, so any table may be
unregistered (K6)."""


def start_of(version: int) -> int:
    """Return the start timestamp of the transaction (or branch) that wrote `version`."""
    return version - version % TIMESTAMP_STEP


SHADOW_SUFFIX: Final = b"\xc2\x80"
"""The end of a shadow cell's qualifier. No column's qualifier may end with it (interop.md, Cells in HBase)."""


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

    If `value` is None, the cell is a tombstone of the column, or, with an empty qualifier, of the whole family.
    `commit_ts` is the content of the shadow cell, 0 if there is no shadow cell.
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

    If `committed_below` is not 0, the reader needs fewer versions: in each column, it needs the versions from the
    greatest down to the first version whose shadow cell is below `committed_below`. A *tombstone* without qualifier
    with such a shadow cell ends its whole family. Tombstones of a family are not needed below the last needed version
    of all its other columns.
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
    """The stored versions whose commit may be after `committed_above`: `at_least` <= version < `below`, and the version
    has no shadow cell, or its shadow cell is above `committed_above`."""

    at_least: int
    below: int
    committed_above: int


class Bookmark(NamedTuple):
    """A position in the order of commits. Commits with timestamps below `start_ts` lie before the bookmark; commits
    with timestamps above `start_ts` lie after it.

    `watermark` is a value of the low watermark W that was published before `start_ts` was handed out. Every transaction
    that commits above `start_ts` started above `watermark`, so a search for changes skips versions at or below
    `watermark`. If `watermark` is 0 (unknown), the search reads all versions.
    """

    start_ts: int
    watermark: int = 0

    def __str__(self) -> str:
        return f"{self.start_ts}:{self.watermark}"

    @classmethod
    def of_text(cls, text: str) -> Bookmark | None:
        """Return the bookmark with this `str`; None if the text is not the `str` of a bookmark."""
        parts = text.strip().split(":")
        return cls(*map(int, parts)) if len(parts) == 2 and all(map(str.isdecimal, parts)) else None


At: TypeAlias = int | Bookmark | datetime | str
"""Selects a past snapshot (`at=`): a timestamp, a bookmark, a datetime with a time zone, or one of these as text.
"""


def _without_idle_families(going_on: set[Column], with_values: set[bytes]) -> set[Column]:
    """Return the columns without the tombstones of families that continue in no other column and in no value without
    qualifier."""
    families = with_values.union(column.family for column in going_on if column.qualifier)
    return {column for column in going_on if column.qualifier or column.family in families}


def _is_ended(column: Column, cell: Cell) -> bool:
    return column.family == cell.family and (not cell.qualifier or column.qualifier == cell.qualifier)


class RowWrite(NamedTuple):
    """The cells that one transaction writes to one row under one version. The value None is a tombstone.

    Columns are unique within a write.
    """

    row: bytes
    cells: tuple[tuple[Column, bytes | None], ...]


class VersionedRows(NamedTuple):
    """Rows that one transaction writes under one version."""

    version: int
    rows: Sequence[RowWrite]


class ShadowWrite(NamedTuple):
    """A shadow cell for `cell`, which is written only if the cell still exists."""

    cell: CellVersion
    commit_ts: int


class KeyRange(NamedTuple):
    """Row keys from `start` (inclusive) to `stop` (exclusive). `start` b"" and `stop` None mean no bound."""

    start: bytes = b""
    stop: bytes | None = None

    def __contains__(self, row: object) -> bool:
        return isinstance(row, bytes) and self.start <= row and (self.stop is None or row < self.stop)


NO_KEYS: Final = KeyRange(b"\0", b"\0")
"""A range that contains no keys."""


def prefix_range(prefix: bytes) -> KeyRange:
    """Return the range of all keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return KeyRange(prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None)


def narrowed_range(start: bytes | None, stop: bytes | None, prefix: bytes | None) -> KeyRange | None:
    """Return the range of keys from `start` to `stop` that begin with `prefix`. Return None if the bounds exclude the
    whole prefix: the caller probably omitted the prefix from a bound."""
    inside = KeyRange() if prefix is None else prefix_range(prefix)
    stops = [bound for bound in (stop, inside.stop) if bound is not None]
    found = KeyRange(max(start or b"", inside.start), min(stops) if stops else None)
    if prefix and found.stop is not None and found.stop <= found.start:
        return None
    return found


class ConflictLevel(StrEnum):
    """The level at which a table detects conflicts. Two overlapping transactions conflict if both write the same cell
    (`CELL`) or the same row (`ROW`) (T9)."""

    CELL = "cell"
    ROW = "row"


class WriteSetLevel(IntEnum):
    """How a commit names its writes: by ids of cells or rows, or by whole tables."""

    IDS = 0
    TABLE = 1


class SealOutcome(NamedTuple):
    """The outcome of sealing a start. If `placed`, the marker exists, so the start can never commit. Otherwise
    `commit_ts` is the commit that was found."""

    placed: bool
    commit_ts: int = 0


@dataclass(frozen=True, slots=True)
class BeginReply:
    """A start timestamp, above every acknowledged commit (law 3), and the epoch of its TSO."""

    start_ts: int
    epoch: int = 0
    fenced_ts: int = 0
    """The newest fence that this TSO has drawn on any table; `TIMESTAMP_MAX` if the TSO does not report fences (Apache
    Omid's). In that case, table rules that were read before the start are not valid
    (`protocol.commit.may_use_rules`)."""
    read_at: int = 0
    """A client sets this for a past snapshot: the snapshot's start, which may be another transaction's. 0 means the
    snapshot of `start_ts`."""
    is_by_time: bool = False
    """True, with `read_at`, if the snapshot was requested by a wall-clock time."""
    hold: OpenStart | None = field(default=None, compare=False, repr=False)
    """Holds W back while the caller has this reply (T16). None if the client does not report the start as open."""

    def end(self) -> None:
        """Note that the start is no longer in use."""
        if self.hold is not None:
            self.hold.end()


class OpenStart:
    """A start timestamp that a session holds open until `end`, or until this object is garbage.

    The session has a weak reference without a callback, and checks it when it reports the open starts to the TSO. So a
    start ends even if its caller was interrupted at any point. No code runs in a destructor, where Python would swallow
    a signal handler's exception.
    """

    __slots__ = ("__weakref__", "_held", "_number", "at_least", "until_s")

    def __init__(self, held: dict[int, ReferenceType[OpenStart]], number: int, at_least: int, until_s: float) -> None:
        self._held, self._number = held, number
        self.at_least = at_least
        """The start; or, while its begin is in flight, one above the newest start known when the begin was
        requested."""
        self.until_s = until_s
        held[number] = ref(self)

    def end(self) -> None:
        """Close the start. Any thread may call it; further calls do nothing."""
        self._held.pop(self._number, None)

    @property
    def is_open(self) -> bool:
        return self._number in self._held

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Unpickle as None in another process: only this process's session holds the start."""
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
    """The decision on a commit. If `commit_ts` > 0, the transaction is committed and durable; if 0, it is aborted, with
    the cause if known."""

    start_ts: int
    commit_ts: int = 0
    reason: AbortReason | None = None
    conflict_ts: int = 0

    @property
    def committed(self) -> bool:
        return self.commit_ts > 0


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Everything that the TSO needs to decide one commit. Ids are signed 64-bit numbers (`protocol.hashing`).

    With `branches`, the commit is large. With `level` TABLE, the request claims `table_ids` as a whole; `cell_ids` are
    then a few cells of other tables, such as an idempotency key, and are checked as usual. `from_java_peer` is True if
    the request is from a peer without pyomid's extensions, such as Apache Omid's client; then `level` is IDS. `packed`
    is the whole request, with its cells, in a database that decides commits itself (`DataStore.pack_commit`); then
    `start_ts` is the only other field that is set, and no TSO gets the request. `reported_ids` is the number of ids
    that were reported for `branches` (`Tso.report_ids`), which are part of the write set.
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
        """Whether the commit becomes durable in separate steps instead of with its batch."""
        return bool(self.branches) or self.level is WriteSetLevel.TABLE


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The writes and claims of a commit in one table. `rows` maps keys to columns to values; the value None deletes the
    cell. `claims` are rows, each with a column or None. `free` are the written cells that take part in no conflict."""

    name: str
    levels: tuple[ConflictLevel, ...]
    rows: Mapping[bytes, Mapping[Column, bytes | None]] = field(default_factory=dict)
    claims: Collection[tuple[bytes, Column | None]] = ()
    free: Collection[tuple[bytes, Column]] = ()

    def columns(self) -> list[Column]:
        """Return the written and claimed columns, each once, in the order of their first cell."""
        written = (column for cells in self.rows.values() for column in cells)
        return list(dict.fromkeys((*written, *(column for _, column in self.claims if column is not None))))

    def row_writes(self) -> list[RowWrite]:
        """Return the row writes, ascending by key."""
        return [RowWrite(row, tuple(self.rows[row].items())) for row in sorted(self.rows)]


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A large commit whose branches' entries may not all be durable yet."""

    start_ts: int
    branches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The contents of the leader state. `watermark` is W, and `horizon` is H (protocol.md, Words)."""

    epoch: int = 0
    ceiling: int = 0
    watermark: int = 0
    horizon: int = 0
    leases: frozenset[int] = frozenset()
    pending: tuple[PendingCommit, ...] = ()
    retention_ms: int = 0
    """How long history is kept, as last set for a TSO; 0 means only as long as a reader needs it."""


@dataclass(frozen=True, slots=True)
class LeaderStateChanges:
    """One atomic change of the leader state, which is applied only while the row still holds the writer's epoch."""

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
    """Family and qualifier of the column's cells. They identify the column for ever: no other column of the table ever
    has them (X1). None if the value is only in the row key."""
    earlier_types: tuple[str, ...] = ()
    """Types before the column was widened; the store may still hold values of these types."""


@dataclass(frozen=True, slots=True)
class RowKeyPart:
    """One column of the row key. Its encoding is order-preserving and self-delimiting."""

    name: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The mapping of DataFrame rows to a table's cells."""

    columns: tuple[ColumnSchema, ...]
    row_key: tuple[RowKeyPart, ...]
    retired: tuple[Column, ...] = ()
    """Family and qualifier of each dropped column. The column's cells stay, and still make a row exist; no new column
    may use these names (X1)."""
    sentinel_family: bytes = b""
    """Family of the sentinel, recorded when columns are first altered, because the sentinel must not move with them.
    Empty means the family of the first value column."""


class IndexState(StrEnum):
    """The state of an index (`database.tables.indexes`). Writers of the table maintain the index from BUILDING until
    DROPPING."""

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
    """The time to live of a table from the fence `since_ts` on (`protocol.expiry`). `ttl_seconds` 0 means for ever.
    Values committed up to `expired_to` had expired at the fence, and stay expired. Every transaction that begins above
    `known_ts` knows the change."""

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
    """A timestamp that distinguishes this table from earlier tables of the same name. It is raised whenever data is
    replaced from outside (restore, clone, bulk load): K5."""
    schema: TableSchema | None = None
    next_level: ConflictLevel | None = None
    """The new conflict level while the level is being changed; commits then name the ids of both levels (T9)."""
    is_changing: bool = False
    """True while columns are being changed: clients then read the entry in every transaction and do not cache it
    (X2)."""
    indexes: tuple[IndexInfo, ...] = ()
    ttl_seconds: float | None = None
    """How long a value is visible after its commit (E1). 0 means for ever, but expired values stay expired. None means
    that the table never had a time to live."""
    ttl_changes: tuple[TtlChange, ...] = ()
    """Changes of the time to live; empty if it is still the one given at the table's creation."""

    @property
    def id_levels(self) -> tuple[ConflictLevel, ...]:
        """The conflict levels for which a commit sends the ids of written and claimed cells or rows. While the level is
        being changed, a commit sends ids for both the old and the new level."""
        return (self.conflict_level,) if self.next_level is None else (self.conflict_level, self.next_level)


class TableLife(Protocol):
    """Identifies the table of a read: its name, and its generation among the tables that have this name one after the
    other (R10). A `TableInfo` is a `TableLife`."""

    @property
    def name(self) -> str: ...

    @property
    def generation(self) -> int: ...


class LifeOf(NamedTuple):
    """The name and generation of a table, without its entry."""

    name: str
    generation: int = 0
    """0 for a system table, which is never dropped."""


def life_of(table: TableLife) -> LifeOf:
    """Return the name and generation of a table, without its entry."""
    return LifeOf(table.name, table.generation)


Progress = Callable[[str, int, int | None], object]
"""A function that a long call calls while it works. The arguments are the name of the table or file, the rows (or bytes
of a file) done so far, and their total, or None if the total is not known. It must return quickly."""


class TableState(StrEnum):
    """Progress of a table's creation or drop (protocol.md, Catalog)."""

    CREATING = "creating"
    """The name is not a table yet; the physical table may or may not exist."""
    PRESENT = "present"
    DROPPING = "dropping"
    """The name is no longer a table. The fence, the removal of the rows and the removal of the entry follow in this
    order."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The catalog entry of a table name."""

    info: TableInfo
    state: TableState
    nonce: str
    """Unique to each write of the entry, so no later entry compares equal. Empty in entries that earlier versions of
    pyomid wrote."""

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
    """Whether each zero byte of a row key counts twice."""

    def why_too_long(self, row: bytes) -> str:
        """Return, as text, why the key is too long for the store; empty if the key is not too long."""
        size = len(row)
        if self.zeros_count_twice and 2 * size > self.row_bytes_max:
            size += row.count(0)
        if size <= self.row_bytes_max:
            return ""
        how = " (a zero byte counts twice)" if self.zeros_count_twice else ""
        return f"takes {size} bytes{how}, over this store's limit of {self.row_bytes_max}"


@dataclass(frozen=True, slots=True)
class RegionWatermark:
    """The compactor's record that every version ≤ `watermark` in `key_range` is cleaned, durably (law 6)."""

    table: str
    generation: int
    key_range: KeyRange
    watermark: int
    recorded_at_s: float
    """Wall-clock time of the record, in seconds since 1970. Sanitizing counts only records older than the longest
    retry."""


TABLE_CONFLICTS: Final = "conflicts_of_table_"
"""Prefix of the name of a table's conflict counter; the table's id follows."""
UNCHECKED: Final = "records_unchecked"
"""Name of a folder's counter of the records that no pass of upkeep has checked yet."""


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
    """The client whose open start holds the low watermark back, as text for operators; empty if there is none. Leases
    are listed in `leases`."""
    processes: tuple[int, ...] = ()
    """The processes that have a folder open; empty if a TSO leads."""

    @property
    def conflicts_by_table(self) -> dict[int, int]:
        """The number of conflicts by table id since this TSO began to lead, for the tables with the most conflicts. A
        conflict is a transaction that wrote or claimed the table and aborted because of a later commit."""
        shown = self.counters.items()
        return {int(name.removeprefix(TABLE_CONFLICTS)): n for name, n in shown if name.startswith(TABLE_CONFLICTS)}

    @property
    def longest_retry_s(self) -> float:
        """The longest time, in seconds, for which any client reported that it retries a commit; 0 if no client reported
        it."""
        return self.counters.get("commit_retry_ms_max", 0) / 1000

    @property
    def retention_s(self) -> float:
        """How long history is kept, in seconds; 0 means only as long as a reader needs it."""
        return self.counters.get("retention_ms", 0) / 1000


@dataclass(frozen=True, slots=True)
class BackupMoment:
    """The moment of a backup. Until the backup is taken, compaction removes nothing that it needs."""

    snapshot_ts: int
    """A start that the TSO handed out. Every commit below it is durable."""
    epoch: int = 0
    """Epoch of the TSO that handed out `snapshot_ts`."""
    tables: tuple[TableInfo, ...] = ()
    """The existing tables, read after `snapshot_ts` was handed out."""
    newest_ts: Callable[[], int] = lambda: 0
    """Draws a new start, which is above every earlier start."""


@dataclass(frozen=True, slots=True)
class TableInBackup:
    """A table in a backup."""

    info: TableInfo
    snapshot: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The data that a restore needs besides the snapshots of the tables. The backup holds exactly the commits below
    `snapshot_ts`. `epoch` is the epoch of the TSO that handed out `snapshot_ts`. `horizon` is H, read between the
    snapshots of the commit table and of the data. No version in the snapshots has a start above `newest_ts`."""

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
    """The description of a backup, as printed by `pyomid backup`. A backup of a folder stores this description in its
    file BACKUP."""

    folder: str
    """Folder of the original database; over HBase, the quorum and the root znode."""
    database_id: str
    """The original database's id. A restored database has another id."""
    snapshot_ts: int
    """Every commit below it is in the backup. Later commits, until the backup was taken, may be in it too."""
    taken: str
    """When the backup was taken, in UTC."""
    size_bytes: int
    """Size of the backup in bytes; 0 over HBase, whose snapshots copy no files."""
    since: str | None = None
    """Folder of the preceding backup, which a restore needs too; None if this is a full backup."""
    tables: tuple[str, ...] = ()
    """Over HBase, the tables in the backup, or the restored tables."""
    snapshots: tuple[str, ...] = ()
    """Over HBase, the snapshots of the backup; copy all of them to move the backup to another cluster."""


@dataclass(frozen=True, slots=True)
class TaskToken:
    """A delegation token, with which a process on another machine acts as `user` until `expires_ms`, in wall-clock time
    of the store."""

    user: str
    expires_ms: int
    secret: bytes = field(repr=False)


def python_scalar(value: Any) -> Any:
    """Return a numpy scalar as a Python value, whichever module imported numpy. Return every other value unchanged,
    including numpy's dates and times."""
    is_scalar = is_loaded_instance(value, "numpy", "generic") and value.dtype.kind not in "mM"
    return value.item() if is_scalar else value


def is_loaded_instance(value: object, module: str, name: str) -> bool:
    """Whether a value is an instance of this class of a module, which need not be imported.

    While another thread imports the module, `sys.modules` holds the module without its classes.
    """
    return isinstance(value, getattr(sys.modules.get(module), name, ()))
