"""The interfaces between packages (ports), stated as obligations. Every implementation of a port passes the port's
conformance suite.

A *durable* write survives loss of power, and every later lookup and every later conditional write of any process finds
it. A *fresh* read sees everything that was durable before the call began. A port maps all foreign exceptions to
`Unavailable`, `StoreFull`, `Corruption`, `UnknownTable` and `Misuse`. A call that raises `Unavailable` had no effect,
except that part of a write may be stored: its transaction becomes rollback-only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from typing import Any, Final, Protocol

from pyomid import system
from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch, CellNames
from pyomid.config import Settings
from pyomid.errors import Misuse, UnknownTable
from pyomid.types import (
    Backup,
    BackupMoment,
    BeginReply,
    Cell,
    CellVersion,
    ChangeBounds,
    Column,
    CommitReply,
    CommitRequest,
    ConflictLevel,
    KeyRange,
    LeaderRecord,
    ReadBounds,
    RegionWatermark,
    RowWrite,
    SealOutcome,
    ShadowWrite,
    Status,
    StoreLimits,
    TableChanges,
    TableEntry,
    TableInfo,
    TableState,
    TaskToken,
    VersionedRows,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Optional abilities of a store."""

    pipelined_writes: bool = False
    """The store accepts writes while the caller continues; the flush waits for these writes."""
    shared_writes: bool = False
    """A `write_shared` of many small writes costs little more than one small write."""
    packs_commits: bool = False
    """The store's database decides commits in its own write transactions: `pack_commit` packs a request, and a
    transaction draws a version before it writes (folder.md)."""
    settled_reads: bool = False
    """`read_settled` reads rows, W and the table's entry from one state of the database."""


class DataStore(ABC):
    """Versioned cells with their shadow cells. A store does not know transactions.

    A store is thread-safe. A forked child must not use its parent's store (C5): implementations raise `Misuse`.
    """

    capabilities: Capabilities = Capabilities()

    @property
    @abstractmethod
    def limits(self) -> StoreLimits:
        """The limits of one cell. A client checks them when a cell is put, earlier than `write_cells`, which checks
        them at the flush."""

    @abstractmethod
    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        """Write cells under `version`, without shadow cells. The cells are durable when the call returns.

        An existing cell of the same version is replaced, and keeps its shadow cell; other columns of that row and
        version stay. If a row key, value or qualifier is over the store's limit, `Misuse` is raised before anything is
        written.
        """

    def write_shared(self, table: str, writes: Sequence[VersionedRows]) -> list[Exception | None]:
        """Do `write_cells` for several transactions, each under its own version, in any order. Return an error for each
        write, or None if the write is durable."""
        outcomes: list[Exception | None] = []
        for version, rows in writes:
            try:
                self.write_cells(table, version, rows)
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
        return outcomes

    @abstractmethod
    def write_batch(self, table: str, version: int, batch: CellBatch) -> None:
        """Do a vectorized `write_cells`. `batch` has one record per row, and its rows are ascending and unique; its
        versions are ignored.

        The call writes in bounded parts, so that other writers can write in between.
        """

    @abstractmethod
    def read_rows(
        self,
        table: str,
        rows: Sequence[bytes],
        columns: Sequence[Column] | None = None,
        *,
        bounds: ReadBounds | None = None,
    ) -> list[list[Cell]]:
        """Return every stored version of the selected columns of each row, with its shadow cell, from a fresh read.

        The result has one list for each row, in the order of `rows`; the cells in a list are in any order. `columns`
        None selects all columns; otherwise the result includes the tombstones (empty qualifier) of the columns'
        families. A Column with an empty qualifier selects the whole family. Versions that `bounds` does not need may be
        omitted. The cells of one row come from one atomic read, without gaps down to the versions at which its columns
        end.
        """

    def read_settled(
        self, table: str, rows: Sequence[bytes], columns: Sequence[Column] | None, bounds: ReadBounds, expired_to: int
    ) -> tuple[list[dict[Column, bytes] | None], int, int]:
        """Return each row as a reader at the snapshot `bounds.committed_below` sees it, and W and the table's
        `Catalog.generation` from the same state of the database. A row is None if it is not certain without the commit
        table: the caller must read that row by `read_rows`. Values committed at or below `expired_to` have expired.
        Only stores with the capability `settled_reads` have this method.

        The reader's own versions, if it has any, are at or above the snapshot.
        """
        raise NotImplementedError(f"{type(self).__name__} reads rows and W apart")

    @abstractmethod
    def scan(
        self,
        table: str,
        key_range: KeyRange,
        columns: Sequence[Column] | None = None,
        *,
        batch_rows_max: int = 10_000,
        bounds: ReadBounds | None = None,
    ) -> Iterator[CellBatch]:
        """Yield the rows of a key range as batches of whole rows, ascending, with the cells that `read_rows` returns. A
        row without any version that `bounds` needs may be omitted.

        Each batch is fetched fresh by `next`, and may have fewer rows than the maximum. Closing the iterator frees its
        resources; no read transaction outlives a batch.
        """

    def changed_rows(
        self, table: str, key_range: KeyRange, bounds: ChangeBounds, *, batch_rows_max: int = 10_000
    ) -> Iterator[list[bytes]]:
        """Yield lists of row keys, ascending and unique. They contain every row of the range that has a version within
        `bounds`, and perhaps other rows. Each list is fetched fresh by `next`."""
        wanted = ReadBounds(bounds.at_least, bounds.below)
        for batch in self.scan(table, key_range, None, batch_rows_max=batch_rows_max, bounds=wanted):
            version, commit_ts = batch.rec_version, batch.rec_commit
            found = (version >= bounds.at_least) & (version < bounds.below)
            found &= (commit_ts == 0) | (commit_ts > bounds.committed_above)
            rows = np.unique(np.searchsorted(batch.row_rec, np.flatnonzero(found), side="right") - 1)
            if len(rows):
                yield [batch.row_key(row) for row in rows.tolist()]

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        """Return the key at which about the last `rows` rows of the range begin, which a descending scan reads next. If
        the range has no more rows than that, the key is the range's start. The key is below the range's stop, so a
        descending scan ends."""
        return key_range.start

    @abstractmethod
    def write_shadow_cells(self, table: str, shadows: Sequence[ShadowWrite]) -> None:
        """Write shadow cells, durably. The call is idempotent. A cell that no longer exists gets no shadow cell."""

    @abstractmethod
    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        """Delete exactly these versions and their shadow cells, durably. The call is idempotent."""

    @abstractmethod
    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        """Do compaction's writes for a batch that was read earlier, durably. The call is idempotent.

        `heals` are indices of records of `batch`: a record's `rec_commit` becomes the shadow cell of each of its cells
        that still exists and is not dropped. `drops` are indices of cells: exactly these versions are deleted, with
        their shadow cells. All changes of one row are atomic (K3), and cells that were written to the row since the
        batch was read stay. Both index arrays ascend.
        """

    @abstractmethod
    def regions(self, table: str) -> list[KeyRange]:
        """Return the table's current regions in key order; together they cover all keys without overlap."""

    @abstractmethod
    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        """Return up to `partitions` - 1 row keys, ascending and strictly inside the range, which divide it into parts
        of about equal size, so that a Spark read can divide a large region among tasks. The keys are an estimate; a
        small range gets fewer.
        """

    @abstractmethod
    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        """Write data that is only in memory to files, so that compaction's scan sees it (K4). The call may do
        nothing."""

    @abstractmethod
    def create_table(self, info: TableInfo, split_keys: Sequence[bytes] = ()) -> None:
        """Create the physical table, which keeps all versions, but no catalog entry. The call is idempotent.
        `split_keys` are used only in a store with foreign tables; the regions of an existing table stay.

        In a store with foreign tables, the result of an earlier `withdraw_table` no longer identifies an existing table
        afterwards.
        """

    @abstractmethod
    def withdraw_table(self, table: str) -> object | None:
        """Do the first half of a drop: return an object that identifies the physical table to `drop_table`; None if
        there is no table.

        The table may be `Unavailable` until it is dropped or given back.
        """

    @abstractmethod
    def give_back_table(self, table: str) -> None:
        """Undo `withdraw_table`, so that the table serves again."""

    @abstractmethod
    def drop_table(self, table: str, withdrawn: object | None = None) -> bool:
        """Delete the table and its cells. The call is idempotent.

        With `withdrawn`, only that table is deleted; if another table has the name now, the call deletes nothing and
        returns False. Without `withdrawn`, any table of that name is deleted, for tests and tools.
        """

    @abstractmethod
    def close(self) -> None: ...

    def pack_commit(
        self,
        start_ts: int,
        branches: Sequence[int],
        changes: Sequence[TableChanges],
        *,
        claims_all: bool = False,
        claims_tables: bool = False,
        at_once: bool = False,
    ) -> bytes:
        """Return a packed commit request: the writes and claims of the transaction, and the branches under which it
        wrote. The call raises the errors of `write_cells`. With `claims_all`, the claims name every cell of the
        branches that counts, so conflicts found on other cells do not matter. With `claims_tables`, the commit claims
        its tables as a whole. With `at_once`, the call returns b"" where it would have to wait for a write. Only stores
        with the capability `packs_commits` have this method."""
        raise NotImplementedError(f"{type(self).__name__} packs no commits")

    # ── pipelined writes: sent ahead if the store has the capability, otherwise written at once ────────────────────

    def begin_write(self, table: str, version: int, batch: CellBatch) -> object:
        """Send the cells of `write_batch` without waiting for a reply, and return a handle for `end_writes`. An error
        means that nothing was sent. Until `end_writes`, any part may be stored or still arrive, in any order with other
        writes in flight. So the caller must end the write before it writes or reads one of its cells again."""
        self.write_batch(table, version, batch)
        return None

    def end_writes(self, begun: Sequence[Any]) -> None:  # noqa: B027 - nothing is in flight
        """Wait until all these writes are durable. If a write failed, its error (one of `write_batch`) is raised after
        every write has ended. The caller ends each write once, in any thread. A write that is never ended may still
        take effect."""

    def write_shadow_batches(self, table: str, version: int, batches: Sequence[CellBatch], commit_ts: int) -> None:
        """Do `write_shadow_cells` for every cell of batches that were written under `version`."""
        self.write_shadow_cells(table, [ShadowWrite(name, commit_ts) for name in CellNames(batches, version)])

    def check_table(self, table: str, families: Iterable[bytes]) -> object:
        """Raise `UnknownTable` if there is no table, and `Misuse` if one of these families is missing or could lose
        versions that transactions need. The error says which property to alter."""
        return None

    def check_opened(self, table: str, families: Iterable[bytes], *, leased: bool = False) -> None:  # noqa: B027
        """Check a table like `check_table`, but cheaply enough for each transaction: the result may be some seconds
        old. With `leased`, also raise `Misuse` if other programs may drop versions that a lease holds."""


class ForeignTables(ABC):
    """The tables of a store in which other programs also create and write tables: HBase."""

    @abstractmethod
    def foreign_tables(self) -> dict[str, list[str]]:
        """Return every table with its families, except the tables of pyomid and Omid themselves."""

    @abstractmethod
    def holds_shadow_cells(self, table: str, *, rows_max: int) -> bool:
        """Whether transactions wrote the table, judged by the first `rows_max` rows of each region."""

    @abstractmethod
    def check_names(self, table: str, key_range: KeyRange) -> None:
        """Raise `Misuse` if a column in the range has a name reserved for shadow cells."""

    @abstractmethod
    def check_markers(self, table: str, key_range: KeyRange, newest_ts: int, issued: Callable[[], int]) -> None:
        """Raise `Misuse` if a delete marker in the range would hide versions at or above `newest_ts`. `issued` returns
        a bound on the versions that transactions can have deleted by now."""


class Commits(ABC):
    """Maps starts to commits, for clients: a commit table, or the branches of a folder."""

    @abstractmethod
    def lookup(self, starts: Sequence[int]) -> list[int]:
        """Return, for each start, its commit timestamp, `NOT_FOUND` or `SEALED` (the marker wins), all from one fresh
        read."""

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int] | None:
        """Do `lookup`, and return W and H too, which are read *after* all entries, in one round trip.

        Return None if the store cannot do this: the caller must make two calls, in that order.
        """
        return None

    @abstractmethod
    def delete(self, starts: Sequence[int]) -> None:
        """Delete entries, for completion. The call is idempotent. Markers stay."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield all entries and markers (start, commit or SEALED), for status and verification. They are not an atomic
        snapshot."""

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...


class DatabaseState(ABC):
    """The part of a database's state that clients read."""

    @abstractmethod
    def database_id(self) -> bytes:
        """Return a random id, constant for the life of the database: a database created in its place has another id.
        The first call generates the id, which is durable when the call returns."""

    @abstractmethod
    def read(self) -> LeaderRecord:
        """Return the leader record, read fresh. In a folder it lacks the fields that only a leader writes."""

    @abstractmethod
    def read_watermarks(self) -> tuple[int, int]:
        """Return (W, H), read fresh. In some stores this is cheaper than `read`."""


class Catalog(ABC):
    """The tables, marks of unregistered tables, and region watermarks. Each write is durable when its call returns."""

    @abstractmethod
    def entries(self) -> list[TableEntry]:
        """Return the entries in every state, read fresh, sorted by name."""

    @abstractmethod
    def entry(self, name: str) -> TableEntry | None:
        """Return the entry in whatever state, read fresh; None if there is none."""

    @abstractmethod
    def change_entry(self, old: TableEntry | None, new: TableEntry) -> bool:
        """Compare and set: replace `old` by `new`, durably. Return True if and only if that has been done. `old` None
        means that there is no entry.

        `new.nonce` must be new. A change whose reply was lost may take effect later, but only while `old` is still the
        entry. "No entry" can recur, so `old` may be None only if readers ignore the new entry (`TableState.CREATING`).
        """

    @abstractmethod
    def remove_entry(self, old: TableEntry) -> None:
        """Remove `old`, if it is still the entry, together with the table's region watermarks."""

    def tables(self) -> list[TableInfo]:
        """Return the tables in state `PRESENT`, read fresh, sorted by name. Users see these tables, and the TSO decides
        commits to them without a mark (K6)."""
        return [each.info for each in self.entries() if each.state is TableState.PRESENT]

    def registered(self) -> list[TableInfo]:
        """Return the tables that may hold committed cells, including tables that are being dropped; sanitizing uses
        this list. The TSO uses `tables` instead: a commit to a table that is being dropped leaves a mark, because the
        table's records do not count for the next table of that name."""
        return [each.info for each in self.entries() if each.state is not TableState.CREATING]

    def table(self, name: str) -> TableInfo:
        """Return the table in state `PRESENT`. Raise `UnknownTable` if there is none."""
        found = self.entry(name)
        if found is None or found.state is not TableState.PRESENT:
            raise UnknownTable(f"there is no table {name!r} in the catalog", table=name)
        return found.info

    def generation(self, name: str) -> int:
        """Return the generation of the table in state `PRESENT`, read fresh; 0 if there is none."""
        found = self.entry(name)
        return 0 if found is None else found.present_generation

    def watermark_and_generation(self, name: str) -> tuple[int, int] | None:
        """Return W and `generation`, both read fresh, in one round trip. Return None if the catalog cannot do this: the
        caller must make two calls."""
        return None

    @abstractmethod
    def note_drop(self, name: str, fence_ts: int) -> None:
        """Note that snapshots at or below `fence_ts` may know a table of this name that is gone (R10). The greatest
        note of a name stays. Names may share notes, because the number of notes is bounded."""

    @abstractmethod
    def noted_drop(self, name: str) -> int:
        """Return the greatest timestamp noted for the name, or for a name that shares its note, read fresh; 0 if there
        is none."""

    def tables_level(self) -> ConflictLevel | None:
        """Return the level that all tables of this database must have, because clients other than pyomid's name only
        ids of that level. None means that each table has its own level. The level is read fresh."""
        return None

    def set_tables_level(self, level: ConflictLevel | None) -> None:
        """Set the level for all tables. `database.table_admin.choose_tables_level` says when this is allowed. Raise
        `Misuse` in a store that only pyomid uses."""
        raise Misuse(
            "only a database over HBase has one conflict level for all tables; in this database each table has its "
            "own level"
        )

    def change_tables_level(self, old: ConflictLevel, new: ConflictLevel | None) -> bool:
        """Set the level for all tables, like `set_tables_level`, but only if it is `old`; otherwise return False."""
        raise Misuse(
            "only a database over HBase has one conflict level for all tables; in this database each table has its "
            "own level"
        )

    @abstractmethod
    def mark_unknown_table(self, table_id: int) -> None:
        """Note that a commit named this table id (K6); sanitizing refuses to run until the table is registered. Each
        mark has a new nonce and replaces the existing mark: it counts for commits from now on."""

    @abstractmethod
    def unknown_tables(self) -> dict[int, bytes]:
        """Return the table id of every mark, with the mark's nonce, read fresh. The result includes marks of tables
        that were registered since, and may include `TABLES_UNCONFIRMED`."""

    @abstractmethod
    def clear_unknown_table(self, table_id: int, nonce: bytes) -> None:
        """Remove the mark if it still has this nonce. `database.table_admin.forget_dropped` says when this is
        allowed."""

    @abstractmethod
    def put_region_watermark(self, record: RegionWatermark) -> None:
        """Add a record. `protocol.sanitize.kept` decides which records of the same range and generation
        stay."""

    @abstractmethod
    def region_watermarks(self, table: str) -> list[RegionWatermark]:
        """Return a table's records, sorted by first key; the newest record of a range comes first."""

    @abstractmethod
    def drop_region_watermarks(self, newest: Sequence[RegionWatermark]) -> None:
        """Remove all records of each of these ranges whose newest record is still the given one."""


class Tso(ABC):
    """A client's session with the TSO. It is thread-safe: all threads of the process share one connection.

    A request raises `Unavailable` if it certainly had no effect. A commit whose reply was lost is sent again as a
    retry; if the retry gets no reply either, it raises `OutcomeUnknown`.
    """

    @property
    @abstractmethod
    def extended(self) -> bool:
        """Whether the TSO knows leases, branches, seals and table-level commits. Apache Omid's own TSO does not."""

    @property
    def write_set_ids_max(self) -> int:
        """Maximum number of ids in a commit, as the last connected TSO reported it; for a Java TSO, the number that
        fits one frame. 0 means unknown."""
        return 0

    @property
    def packed_bytes_max(self) -> int:
        """Maximum size in bytes of the buffered cells that a commit request may hold (`CommitRequest.packed`). 0 means
        that cells are written before the commit."""
        return 0

    @abstractmethod
    def begin(self, *, not_before: int = 0) -> BeginReply:
        """Return a start timestamp above `not_before` (0: any). It holds W back (T16) until the reply's `end` is
        called, or the reply is garbage."""

    def draw(self) -> int:
        """Return a unique timestamp above every acknowledged commit."""
        begun = self.begin()
        begun.end()
        return begun.start_ts

    def begin_job(self, *, not_before: int = 0) -> BeginReply:
        """Return a start timestamp, like `begin`, for a transaction of many tasks. No other transaction has this start,
        and the tasks may write under it."""
        return self.begin(not_before=not_before)

    def branch(self, start_ts: int) -> int:
        """Return a version above all earlier versions, for a task of the transaction of `start_ts`, whose lease holds
        the version."""
        begun = self.begin(not_before=start_ts)
        begun.end()
        self.report_open_starts()
        return begun.start_ts

    def version_of(self, start_ts: int) -> int:
        """Return the version under which the transaction of this start writes before its commit."""
        return start_ts

    def reach(self, timestamp: int) -> bool:
        """Move timestamps forward to the wall clock, if the clock has passed `timestamp` and the timestamps have not.
        Return False if nothing was done; a TSO moves timestamps by itself."""
        return False

    def report_open_starts(self) -> object:  # noqa: B027 - a TSO without such reports
        """Report the open starts to the TSO now, for a process that may exit abruptly; otherwise they are reported
        periodically."""

    @abstractmethod
    def commit(self, request: CommitRequest) -> CommitReply:
        """Return the decision. If it is committed, it is durable (law 2), including all branches."""

    @abstractmethod
    def fence(self, table_id: int) -> int:
        """Draw a fence on a table and return its timestamp. Transactions that started before it and write the table
        abort."""

    @abstractmethod
    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        """Grant a lease on a start, durably, and return the granted term. Raise `SnapshotTooOld` if W has passed
        `start_ts`."""

    @abstractmethod
    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        """Keep a snapshot whose end is never reported. Return the start of a lease (`start_ts`, or an older start,
        shared with others) and its term from now. The lease is durable when the call returns. Another request prolongs
        the lease, but no request ends it. Within the term, every start at or above the leased start is kept as well.
        Raise `SnapshotTooOld` if W has passed `start_ts`.
        """

    @abstractmethod
    def renew_lease(self, start_ts: int) -> float:
        """Renew a lease for its owner and return its term. Raise `SnapshotTooOld` if the lease is gone, or if its owner
        ended it, even if others share it."""

    @abstractmethod
    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        """End the owner's part of a lease. Others who share the lease keep it, unless `shared` ends it for them too."""

    @abstractmethod
    def report_ids(self, start_ts: int, table_id: int, branch: int, part: int, ids: bytes) -> None:
        """Report ids of the write set of a leased start, or that it claims the table (`omid.wire.messages.ReportIds`).
        The commit of this start states how many ids were reported for its branches. Raise `Unavailable` if the TSO has
        no room for the ids, and `ConflictError` if a commit of the branch would already abort."""

    @abstractmethod
    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        """Place invalidation markers through the TSO. The TSO replies after the batches that may hold these starts, and
        refuses their commits from then on."""

    def raise_watermark(self) -> int:
        """Raise W as far as open starts and leases allow, and return W. 0 means that the TSO raises W by itself."""
        return 0

    @abstractmethod
    def advance_horizon(self, horizon: int) -> int:
        """Make H durable, then delete the entries below H (law 7, second half). Return the number of deleted
        entries."""

    @abstractmethod
    def status(self) -> Status: ...

    @abstractmethod
    def close(self) -> None: ...


class AsyncTso(Protocol):
    """A session with the TSO for one event loop, with the requests that every transaction makes. It raises the errors
    of `Tso`."""

    @property
    def write_set_ids_max(self) -> int: ...

    async def begin(self, *, not_before: int = 0) -> BeginReply: ...

    async def commit(self, request: CommitRequest) -> CommitReply: ...

    async def close(self) -> None: ...


Clock = Callable[[], float]
"""A clock that returns monotonic seconds, which continue during suspension. It is injected everywhere time matters."""

Sleep = Callable[[float], None]


boot_clock: Final[Clock] = system.boot_clock
"""The system's clock, which continues while the machine sleeps (T4)."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One open database: its ports, settings and clock, chosen by `wiring`."""

    store: DataStore
    commit_table: Commits
    leader_state: DatabaseState
    catalog: Catalog
    tso: Tso
    settings: Settings
    clock: Clock = boot_clock
    closers: tuple[Callable[[], None], ...] = ()
    """Functions that `close` calls after the ports are closed."""
    foreign: ForeignTables | None = None
    """Tables of other programs in the same store, which can be imported; None if only pyomid uses the store."""
    is_gone: Callable[[], bool] = lambda: False
    """Whether another database, or none, is now at the place where this one was opened: then only a new connection
    helps."""
    loop_session: Callable[[], AsyncTso] | None = None
    """Opens another session with the same TSO, for the running event loop; the caller closes the session. None if only
    threads can use this TSO."""
    back_up: Callable[[str | PathLike[str], BackupMoment, str | PathLike[str] | None], Backup] | None = None
    """Copies the database as of one moment into a new or empty folder, or to HBase snapshots of that name, durably. The
    copy holds everything committed below the moment. The third argument is the preceding backup, for an incremental
    backup, or None for a full backup. None if the store has no backups."""
    task_token: Callable[[], TaskToken | None] = lambda: None
    """Returns the token with which a process on another machine acts in the name of this one; None if that process
    needs no token, or has its own credentials."""

    def close(self) -> None:
        """Close session, commit table and store, in this order, even if one of them raises."""
        with ExitStack() as last_first:
            for close in reversed((self.tso.close, self.commit_table.close, self.store.close, *self.closers)):
                last_first.callback(close)
