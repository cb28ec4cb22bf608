"""The interfaces between packages, stated as obligations. Every implementation passes the conformance suite of its
port.

*Durable* means: it survives loss of power, and every later lookup and every later conditional write of any process
finds it. *Fresh* means: it sees everything that was durable before the call began. A port maps all foreign exceptions
to `Unavailable`, `StoreFull`, `Corruption`, `UnknownTable` and `Misuse`. After `Unavailable` the call had no effect,
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
    """It accepts writes while the caller continues; the flush waits for them."""
    shared_writes: bool = False
    """`write_shared` of many small writes costs little more than one small write."""
    packs_commits: bool = False
    """Its database decides commits in its own write transactions: a request is packed by `pack_commit`, and a
    transaction draws a version before it writes (folder.md)."""
    settled_reads: bool = False
    """`read_settled` reads rows, W and the table's entry from one state of the database."""


class DataStore(ABC):
    """Versioned cells with their shadow cells. A store does not know transactions.

    Thread-safe. A forked child must not use its parent's store (C5): implementations raise `Misuse`.
    """

    capabilities: Capabilities = Capabilities()

    @property
    @abstractmethod
    def limits(self) -> StoreLimits:
        """Limits of one cell. A client checks them at once, before `write_cells` would at the flush."""

    @abstractmethod
    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        """Write cells under `version`, without shadow cells. Durable on return.

        An existing cell of the same version is replaced, and keeps its shadow cell; other columns of that row and
        version stay. `Misuse`, before anything is written, if a row key, value or qualifier is over the store's limit.
        """

    def write_shared(self, table: str, writes: Sequence[VersionedRows]) -> list[Exception | None]:
        """`write_cells` for several transactions, each under its own version, in any order. Return an error for each,
        or None if it is durable."""
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
        """`write_cells`, vectorized: one record per row, rows ascending and unique; versions in `batch` are ignored.

        Writes in bounded parts, so that other writers can write in between.
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

        One list for each row, in the order of `rows`, cells in any order. `columns` None selects all; otherwise the
        result includes the tombstones (empty qualifier) of the columns' families. A Column with empty qualifier selects
        the whole family. Versions that `bounds` does not need may be omitted. The cells of one row come from one atomic
        read, without gaps down to where its columns end.
        """

    def read_settled(
        self, table: str, rows: Sequence[bytes], columns: Sequence[Column] | None, bounds: ReadBounds, expired_to: int
    ) -> tuple[list[dict[Column, bytes] | None], int, int]:
        """Return each row as a reader at the snapshot `bounds.committed_below` sees it, and from the same state of the
        database W and the table's `Catalog.generation`. None for a row if it is not certain without the commit table:
        the caller reads that row by `read_rows`. Values committed at or below `expired_to` have expired. Only with the
        capability `settled_reads`.

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
        """As `read_rows`, for a key range: yield batches of whole rows, ascending. A row without any version that
        `bounds` needs may be omitted.

        Each batch is fetched fresh by `next`, and may have fewer rows than the maximum. Closing the iterator frees its
        resources; no read transaction outlives a batch.
        """

    def changed_rows(
        self, table: str, key_range: KeyRange, bounds: ChangeBounds, *, batch_rows_max: int = 10_000
    ) -> Iterator[list[bytes]]:
        """Yield lists of row keys, ascending and unique: every row of the range that has a version within `bounds`,
        perhaps other rows too. Each list is fetched fresh by `next`."""
        wanted = ReadBounds(bounds.at_least, bounds.below)
        for batch in self.scan(table, key_range, None, batch_rows_max=batch_rows_max, bounds=wanted):
            version, commit_ts = batch.rec_version, batch.rec_commit
            found = (version >= bounds.at_least) & (version < bounds.below)
            found &= (commit_ts == 0) | (commit_ts > bounds.committed_above)
            rows = np.unique(np.searchsorted(batch.row_rec, np.flatnonzero(found), side="right") - 1)
            if len(rows):
                yield [batch.row_key(row) for row in rows.tolist()]

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        """Return the key at which about the last `rows` rows of the range begin: a descending scan reads these next.
        The range's start if it has no more rows. The key is below the range's stop, so such a scan ends."""
        return key_range.start

    @abstractmethod
    def write_shadow_cells(self, table: str, shadows: Sequence[ShadowWrite]) -> None:
        """Write shadow cells. Durable on return. Idempotent. A cell that no longer exists gets no shadow cell."""

    @abstractmethod
    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        """Delete exactly these versions with their shadow cells. Durable on return. Idempotent."""

    @abstractmethod
    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        """Compaction's writes for a batch that was read earlier. Durable on return. Idempotent.

        `heals` are indices of records of `batch`: a record's `rec_commit` becomes the shadow cell of each of its cells
        that still exists and is not dropped. `drops` are indices of cells: exactly these versions are deleted, with
        their shadow cells. All changes of one row are atomic (K3); what was written to the row since the batch was read
        stays. Both index arrays ascend.
        """

    @abstractmethod
    def regions(self, table: str) -> list[KeyRange]:
        """The table's current regions in key order; together they cover all keys without overlap."""

    @abstractmethod
    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        """Up to `partitions` - 1 row keys, ascending and strictly inside the range, that divide it into parts of about
        equal size, so that a Spark read can divide a large region among tasks. An estimate; fewer for a small range.
        """

    @abstractmethod
    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        """Move data that is only in memory to where compaction's scan sees it (K4). It may do nothing."""

    @abstractmethod
    def create_table(self, info: TableInfo, split_keys: Sequence[bytes] = ()) -> None:
        """Create the physical table, which keeps all versions. Idempotent. The catalog entry is not touched.
        `split_keys`: only in a store with foreign tables; the regions of an existing table stay.

        In a store with foreign tables, an earlier `withdraw_table` no longer names an existing table afterwards.
        """

    @abstractmethod
    def withdraw_table(self, table: str) -> object | None:
        """First half of a drop: return what identifies the physical table to `drop_table`. None if there is no table.

        The table may be `Unavailable` until it is dropped or given back.
        """

    @abstractmethod
    def give_back_table(self, table: str) -> None:
        """Undo `withdraw_table`: the table serves again."""

    @abstractmethod
    def drop_table(self, table: str, withdrawn: object | None = None) -> bool:
        """Delete the table and its cells. Idempotent.

        With `withdrawn`, only that table is deleted: False, and nothing is deleted, if another table has the name by
        now. Without it any table of that name is deleted: for tests and tools.
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
        """Pack a commit request: what the transaction writes and claims, and the branches under which it wrote. Errors
        as of `write_cells`. `claims_all`: the claims name every cell that counts of the branches, so what was found
        about other cells does not matter. `claims_tables`: the commit claims its tables as a whole. `at_once`:
        return b"" where it would have to wait for a write. Only with the capability `packs_commits`."""
        raise NotImplementedError(f"{type(self).__name__} packs no commits")

    # ── pipelined writes: sent ahead with the capability, else written at once ──────────────────────────────────────

    def begin_write(self, table: str, version: int, batch: CellBatch) -> object:
        """Send the cells of `write_batch` without waiting for a reply. An error means that nothing was sent. Until
        `end_writes` any part may be stored or still arrive, in any order with other writes in flight: the caller ends
        the write before it writes or reads one of its cells again."""
        self.write_batch(table, version, batch)
        return None

    def end_writes(self, begun: Sequence[Any]) -> None:  # noqa: B027 - nothing is in flight
        """Wait until all these writes are durable. An error (as of `write_batch`) is raised after every write has
        ended. Each write is ended once, by any thread. A write that is never ended may still take effect."""

    def write_shadow_batches(self, table: str, version: int, batches: Sequence[CellBatch], commit_ts: int) -> None:
        """`write_shadow_cells` for every cell of batches that were written under `version`."""
        self.write_shadow_cells(table, [ShadowWrite(name, commit_ts) for name in CellNames(batches, version)])

    def check_table(self, table: str, families: Iterable[bytes]) -> object:
        """Raise `UnknownTable` if there is no table; `Misuse`, with what to alter, if one of these families is missing
        or could lose versions that transactions need."""
        return None

    def check_opened(self, table: str, families: Iterable[bytes], *, leased: bool = False) -> None:  # noqa: B027
        """As `check_table`, but cheap enough for each transaction: it may be right only some seconds later. Also raise
        `Misuse` if `leased` and other programs may drop versions that a lease holds."""


class ForeignTables(ABC):
    """The tables of a store where other programs also create and write tables: HBase."""

    @abstractmethod
    def foreign_tables(self) -> dict[str, list[str]]:
        """Every table with its families, except the tables of pyomid and Omid themselves."""

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
    """start → commit, as clients ask for it: a commit table, or the branches of a folder."""

    @abstractmethod
    def lookup(self, starts: Sequence[int]) -> list[int]:
        """Return for each start its commit timestamp, `NOT_FOUND` or `SEALED` (the marker wins). One fresh read."""

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int] | None:
        """`lookup`, then W and H, which are read *after* all entries, in one round trip.

        None if the store cannot do this: the caller makes two calls, in that order.
        """
        return None

    @abstractmethod
    def delete(self, starts: Sequence[int]) -> None:
        """Delete entries, for completion. Idempotent. Markers stay."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries and markers (start, commit or SEALED), for status and verification. Not an atomic snapshot."""

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...


class DatabaseState(ABC):
    """What clients read of the state of a database."""

    @abstractmethod
    def database_id(self) -> bytes:
        """A random id, constant for the life of the database: a database created in its place has another. The first
        call generates it. Durable on return."""

    @abstractmethod
    def read(self) -> LeaderRecord:
        """Return the record, fresh; in a folder without what only a leader writes."""

    @abstractmethod
    def read_watermarks(self) -> tuple[int, int]:
        """Return (W, H), fresh; cheaper than `read` in some stores."""


class Catalog(ABC):
    """The tables, marks of unregistered tables, and region watermarks. Writes are durable on return."""

    @abstractmethod
    def entries(self) -> list[TableEntry]:
        """Entries in every state, fresh, sorted by name."""

    @abstractmethod
    def entry(self, name: str) -> TableEntry | None:
        """The entry in whatever state, fresh."""

    @abstractmethod
    def change_entry(self, old: TableEntry | None, new: TableEntry) -> bool:
        """Compare-and-set: True iff `new` has durably replaced `old` (None: no entry existed).

        `new.nonce` is used for the first time. A change whose reply was lost may take effect later, but only while
        `old` is still the entry. "No entry" can recur, so `old` may be None only for an entry that readers ignore
        (`TableState.CREATING`).
        """

    @abstractmethod
    def remove_entry(self, old: TableEntry) -> None:
        """Remove `old` if it is still the entry, and the table's region watermarks with it."""

    def tables(self) -> list[TableInfo]:
        """Tables in state `PRESENT`: users see them, and the TSO decides commits to them without a mark (K6). Fresh,
        sorted by name."""
        return [each.info for each in self.entries() if each.state is TableState.PRESENT]

    def registered(self) -> list[TableInfo]:
        """Tables that may hold committed cells, including tables being dropped; sanitizing uses this list. The TSO uses
        `tables` instead: a commit to a table that is being dropped leaves a mark, because the table's records do not
        count for the next table of that name."""
        return [each.info for each in self.entries() if each.state is not TableState.CREATING]

    def table(self, name: str) -> TableInfo:
        """Return the table in state `PRESENT`; `UnknownTable` if there is none."""
        found = self.entry(name)
        if found is None or found.state is not TableState.PRESENT:
            raise UnknownTable(f"there is no table {name!r} in the catalog", table=name)
        return found.info

    def generation(self, name: str) -> int:
        """Return the generation of the table in state `PRESENT`; 0 if there is none. Fresh."""
        found = self.entry(name)
        return 0 if found is None else found.present_generation

    def watermark_and_generation(self, name: str) -> tuple[int, int] | None:
        """Return W and `generation`, both fresh, in one round trip. None if the catalog cannot do this: the caller
        makes two calls."""
        return None

    @abstractmethod
    def note_drop(self, name: str, fence_ts: int) -> None:
        """Note that snapshots at or below `fence_ts` may know a table of this name that is gone (R10). The greatest
        note stays. Names may share notes: their number is bounded."""

    @abstractmethod
    def noted_drop(self, name: str) -> int:
        """Return the greatest timestamp noted for the name, or for a name that shares its note; 0: none. Fresh."""

    def tables_level(self) -> ConflictLevel | None:
        """The level that all tables of this database must have, because other clients than pyomid's name ids of that
        level only; None: each table has its own. Fresh."""
        return None

    def set_tables_level(self, level: ConflictLevel | None) -> None:
        """Set the level for all tables. `database.table_admin.choose_tables_level` says when this is allowed.
        `Misuse` in a store that only pyomid uses."""
        raise Misuse("only a database in HBase has one conflict level for all tables: here each table has its own")

    def change_tables_level(self, old: ConflictLevel, new: ConflictLevel | None) -> bool:
        """Set the level if it is `old`; else return False. Otherwise as `set_tables_level`."""
        raise Misuse("only a database in HBase has one conflict level for all tables: here each table has its own")

    @abstractmethod
    def mark_unknown_table(self, table_id: int) -> None:
        """Note that a commit named this table id (K6); sanitizing refuses until the table is registered. Each mark has
        a new nonce and replaces the existing mark: it counts for commits from now on."""

    @abstractmethod
    def unknown_tables(self) -> dict[int, bytes]:
        """The table id of every mark, with the mark's nonce. Fresh. Includes marks of tables that were registered
        since; may include `TABLES_UNCONFIRMED`."""

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
        """A table's records, sorted by first key; the newest of a range first."""

    @abstractmethod
    def drop_region_watermarks(self, newest: Sequence[RegionWatermark]) -> None:
        """Remove all records of each of these ranges whose newest record is still the given one."""


class Tso(ABC):
    """A client's session with the TSO. Thread-safe: all threads of the process share one connection.

    A request raises `Unavailable` if it certainly had no effect. A commit whose reply was lost is sent again as a
    retry, and raises `OutcomeUnknown` if the retry gets no reply either.
    """

    @property
    @abstractmethod
    def extended(self) -> bool:
        """Whether the TSO knows leases, branches, seals and table-level commits. Apache Omid's own does not."""

    @property
    def write_set_ids_max(self) -> int:
        """Maximum number of ids in a commit, as reported by the last connected TSO; for a Java TSO what fits one frame.
        0: unknown."""
        return 0

    @property
    def packed_bytes_max(self) -> int:
        """Maximum size of the buffered cells that a commit request may hold (`CommitRequest.packed`), in bytes. 0: they
        are written before the commit."""
        return 0

    @abstractmethod
    def begin(self, *, not_before: int = 0) -> BeginReply:
        """Return a start timestamp above `not_before` (0: any). It holds W back (T16) until the reply's `end` is called
        or the reply is garbage."""

    def draw(self) -> int:
        """Return a timestamp above every acknowledged commit that nobody else has."""
        begun = self.begin()
        begun.end()
        return begun.start_ts

    def begin_job(self, *, not_before: int = 0) -> BeginReply:
        """As `begin`, for a transaction of many tasks: no other has this start, and it may write under it."""
        return self.begin(not_before=not_before)

    def branch(self, start_ts: int) -> int:
        """Return a version above all earlier ones for a task of the transaction of `start_ts`, whose lease holds it."""
        begun = self.begin(not_before=start_ts)
        begun.end()
        self.report_open_starts()
        return begun.start_ts

    def version_of(self, start_ts: int) -> int:
        """Return a version under which the transaction of this start writes before its commit."""
        return start_ts

    def reach(self, timestamp: int) -> bool:
        """Move timestamps to the wall clock, if that has passed `timestamp` and they have not. False: nothing was done
        (a TSO moves them by itself)."""
        return False

    def report_open_starts(self) -> object:  # noqa: B027 - a TSO without such reports
        """Report the open starts to the TSO now, for a process that may exit abruptly; otherwise they are reported
        periodically."""

    @abstractmethod
    def commit(self, request: CommitRequest) -> CommitReply:
        """Return the decision. If it is committed, it is durable (law 2), including all branches."""

    @abstractmethod
    def fence(self, table_id: int) -> int:
        """Return a timestamp; transactions that started before it and write the table abort."""

    @abstractmethod
    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        """Grant a lease on a start, durable on return. Return the granted term. `SnapshotTooOld` if W has passed
        `start_ts`."""

    @abstractmethod
    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        """Keep a snapshot whose end is never reported: return the start of a lease (`start_ts` or an older start,
        shared with others) and its term from now. Durable on return. Another request prolongs it; no request ends it.
        Within the term every start at or above the leased start is kept as well. `SnapshotTooOld` as of `grant_lease`.
        """

    @abstractmethod
    def renew_lease(self, start_ts: int) -> float:
        """Renew a lease; return the term. `SnapshotTooOld` if the lease is gone."""

    @abstractmethod
    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        """End the owner's part of a lease. Its sharers keep it, unless `shared` ends it for them too."""

    @abstractmethod
    def report_ids(self, start_ts: int, table_id: int, branch: int, part: int, ids: bytes) -> None:
        """Report ids of the write set of a leased start, or that it claims the table (`omid.wire.messages.ReportIds`).
        Its commit states how many were reported for the branches that it names. `Unavailable` if the TSO has no room
        for them. `ConflictError` if a commit of the branch would abort by now."""

    @abstractmethod
    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        """Place markers through the TSO. It replies after the batches that may hold these starts, and refuses their
        commits from then on."""

    def raise_watermark(self) -> int:
        """Raise W as far as open starts and leases let it, and return it. 0: the TSO raises it by itself."""
        return 0

    @abstractmethod
    def advance_horizon(self, horizon: int) -> int:
        """Make H durable, then delete the entries below it (law 7, second half). Return how many."""

    @abstractmethod
    def status(self) -> Status: ...

    @abstractmethod
    def close(self) -> None: ...


class AsyncTso(Protocol):
    """A session with the TSO for one event loop: the requests of every transaction, awaited. Errors as of `Tso`."""

    @property
    def write_set_ids_max(self) -> int: ...

    async def begin(self, *, not_before: int = 0) -> BeginReply: ...

    async def commit(self, request: CommitRequest) -> CommitReply: ...

    async def close(self) -> None: ...


Clock = Callable[[], float]
"""Monotonic seconds that count suspension; injected everywhere time matters."""

Sleep = Callable[[float], None]


boot_clock: Final[Clock] = system.boot_clock
"""The system's clock; it continues while the machine sleeps (T4)."""


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
    """Called by `close` after the ports are closed."""
    foreign: ForeignTables | None = None
    """Tables of other programs in the same store, which can be imported; None: there are none."""
    is_gone: Callable[[], bool] = lambda: False
    """Whether another database, or none, is now where this one was opened: then only a new connection helps."""
    loop_session: Callable[[], AsyncTso] | None = None
    """Open another session with the same TSO, for the running event loop; the caller closes it. None: only threads can
    use this TSO."""
    back_up: Callable[[str | PathLike[str], BackupMoment, str | PathLike[str] | None], Backup] | None = None
    """Copy the database as of one moment into an absent or empty folder, or to HBase snapshots of that name. Durable on
    return. The copy holds everything committed below the moment. The third argument is the preceding backup, for an
    incremental backup, or None for a full one. None: the store has no backups."""
    task_token: Callable[[], TaskToken | None] = lambda: None
    """Return the token with which a process on another machine acts in the name of this one; None: it needs no token,
    or has credentials of its own."""

    def close(self) -> None:
        """Close session, commit table and store, in this order, even if one of them raises."""
        with ExitStack() as last_first:
            for close in reversed((self.tso.close, self.commit_table.close, self.store.close, *self.closers)):
                last_first.callback(close)
