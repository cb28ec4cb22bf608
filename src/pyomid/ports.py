"""The interfaces between packages, as obligations. Every implementation passes the conformance suite of its port.

*Durable* means: it survives loss of power, and every later look-up and every later conditional write of any process
finds it. *Fresh* means: it sees everything that was durable before the call began.
Errors: `Unavailable` (nothing happened; a write may have happened in part, and its transaction becomes rollback-only),
`StoreFull`, `Corruption`, `UnknownTable`, `Misuse`. Foreign exceptions never pass.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final, Protocol

from pyomid import platforms
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
    LeaderStateChanges,
    ReadBounds,
    RegionWatermark,
    RowWrite,
    SealOutcome,
    ShadowWrite,
    Status,
    StoreLimits,
    TableEntry,
    TableInfo,
    TableState,
    TaskToken,
    TimePoint,
    VersionedRows,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do that not every store can."""

    pipelined_writes: bool = False
    """It takes writes over a network while its caller goes on; the flush waits for them."""
    shared_writes: bool = False
    """`write_shared` of many small writes costs little more than one of them."""
    foreign_tables: bool = False
    """Other programs make and write tables in it, too (HBase). Such tables can be imported."""


class DataStore(ABC):
    """Versioned cells with their shadow cells. Knows nothing of transactions.

    Thread-safe. A child of fork must not use its parent's store (C5): implementations raise `Misuse`.
    """

    capabilities: Capabilities = Capabilities()

    @property
    @abstractmethod
    def limits(self) -> StoreLimits:
        """What one cell may hold. A client refuses at once what `write_cells` would refuse at the flush."""

    @abstractmethod
    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        """When this returns every cell is durable under `version`, without shadow cells.

        A cell already there under the same version is replaced; other columns of that row and version stay.
        `Misuse`, before anything is written, if a row key, value or qualifier is over the store's limit.
        """

    def write_shared(self, table: str, writes: Sequence[VersionedRows]) -> list[Exception | None]:
        """`write_cells` of several transactions, each under its own version, in any order: each one's error, or
        None where it is durable."""
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
        """`write_cells`, vectorized: one record a row, rows sorted ascending and unique; versions in `batch` are
        ignored.

        Writes in bounded parts, so that other writers get their turn between two of them.
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
        """Every stored version of the wanted columns of each row, with its shadow cell, from one fresh read.

        One list for each row, in the order of `rows`, cells in any order. `columns` None is all; with `columns`, family
        tombstones (empty qualifier) of their families are returned too. A Column with empty qualifier asks for the
        whole family. Versions that `bounds` does not need may be left out. The cells of one row are of one read, and
        whole down to where its columns end.
        """

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
        """The same for a range, ascending by row, as batches of whole rows. A row of which `bounds` needs nothing may
        be left out.

        Each batch is fetched fresh when it is asked for. It may hold fewer rows than the maximum, but never part of a
        row. Closing the iterator frees its resources; no read transaction outlives a batch.
        """

    def changed_rows(
        self, table: str, key_range: KeyRange, bounds: ChangeBounds, *, batch_rows_max: int = 10_000
    ) -> Iterator[list[bytes]]:
        """Keys of the range in ascending order, each once: of every row that holds a version within `bounds`, and
        perhaps of others. Each list is fetched fresh when it is asked for."""
        wanted = ReadBounds(bounds.at_least, bounds.below)
        for batch in self.scan(table, key_range, None, batch_rows_max=batch_rows_max, bounds=wanted):
            version, commit_ts = batch.rec_version, batch.rec_commit
            found = (version >= bounds.at_least) & (version < bounds.below)
            found &= (commit_ts == 0) | (commit_ts > bounds.committed_above)
            rows = np.unique(np.searchsorted(batch.row_rec, np.flatnonzero(found), side="right") - 1)
            if len(rows):
                yield [batch.row_key(row) for row in rows.tolist()]

    def start_of_last_rows(self, table: str, key_range: KeyRange, rows: int) -> bytes:
        """A key of the range from which on it holds about `rows` stored rows: where a scan that descends reads next.
        Its start if it holds no more. Below the range's stop, so that such a scan ends."""
        return key_range.start

    @abstractmethod
    def write_shadow_cells(self, table: str, shadows: Sequence[ShadowWrite]) -> None:
        """Durable on return. Idempotent. A cell that is gone gets no shadow cell."""

    @abstractmethod
    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        """Exactly these versions, with their shadow cells, are gone durably; others are untouched. Idempotent."""

    @abstractmethod
    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        """Compaction's writes over a batch that was read before: durable on return; idempotent.

        `heals` are indices of records of `batch`: their `rec_commit` becomes the shadow cell of each of their cells
        that is still there and is not dropped. `drops` are indices of cells: exactly these versions go, with their
        shadow cells. All changes of one row take effect together or not at all (K3); what was written to the row since
        the batch was read stays. Both index arrays ascend.
        """

    @abstractmethod
    def regions(self, table: str) -> list[KeyRange]:
        """The table's present regions in key order; together they tile all keys."""

    @abstractmethod
    def split_points(self, table: str, key_range: KeyRange, partitions: int) -> list[bytes]:
        """Up to `partitions` - 1 row keys, ascending and strictly inside the range, that cut it into parts of about
        equal size, so that a Spark read divides a large region among its tasks. An estimate; fewer for a small range.
        """

    @abstractmethod
    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        """Brings data that are only in memory to where compaction's scan sees them (K4). It may do nothing."""

    @abstractmethod
    def create_table(self, info: TableInfo, split_keys: Sequence[bytes] = ()) -> None:
        """The physical table exists on return, and keeps all versions. Idempotent. It does not touch the catalog entry.
        `split_keys`: only in a store with foreign tables; an existing table is left as it is divided.

        In a store with foreign tables an existing table is named by no earlier `withdraw_table` any more.
        """

    @abstractmethod
    def withdraw_table(self, table: str) -> object | None:
        """The first half of a drop: names the physical table of that name, for `drop_table`. None if there is none.

        The table may be `Unavailable` until it is dropped, or given back.
        """

    @abstractmethod
    def give_back_table(self, table: str) -> None:
        """A table that was withdrawn by mistake serves again."""

    @abstractmethod
    def drop_table(self, table: str, withdrawn: object | None = None) -> bool:
        """The table and its cells are gone on return. Idempotent.

        With `withdrawn` only that table goes: False, and nothing is dropped, if another one has its name by now.
        Without it any table of that name goes: for tests and tools.
        """

    @abstractmethod
    def close(self) -> None: ...

    # ── pipelined writes: sent ahead where `capabilities` says so, else written at once ─────────────────────────────

    def begin_write(self, table: str, version: int, batch: CellBatch) -> object:
        """Sends the cells of `write_batch` and waits for no answer. An error means that nothing was sent. Until the end
        any part of it may be there or still arrive, in any order with other writes under way: the caller ends it before
        it writes one of its cells again, or reads them."""
        self.write_batch(table, version, batch)
        return None

    def end_writes(self, begun: Sequence[Any]) -> None:  # noqa: B027 - nothing is under way
        """All of them are durable on return. An error (as of `write_batch`) comes when every one of them has ended.
        Each is ended once, by any thread. A write that is never ended may still take effect."""

    def write_shadow_batches(self, table: str, version: int, batches: Sequence[CellBatch], commit_ts: int) -> None:
        """`write_shadow_cells` beside every cell of batches that were written under `version`."""
        self.write_shadow_cells(table, [ShadowWrite(name, commit_ts) for name in CellNames(batches, version)])

    # ── foreign tables: in a store where other programs make and write tables, too ─────────────────────────────────

    def foreign_tables(self) -> dict[str, list[str]]:
        """Every table but those of pyomid and Omid themselves, with its families."""
        return {}

    def holds_shadow_cells(self, table: str, *, rows_max: int) -> bool:
        """Whether transactions wrote it, judged by the first `rows_max` rows of each region."""
        return False

    def check_names(self, table: str, key_range: KeyRange) -> None:  # noqa: B027 - only pyomid names columns
        """`Misuse` if a column of the range has a name that transactions use for shadow cells."""

    def check_table(self, table: str, families: Iterable[bytes]) -> object:
        """`UnknownTable` if there is none. `Misuse`, which says what to alter, if one of these families is missing or
        could lose versions that transactions need."""
        return None

    def check_leases(self, table: str) -> None:  # noqa: B027 - only pyomid drops versions
        """`Misuse`, which says what to alter, if other programs may drop versions of this table that a lease holds."""


FlushEnded = Callable[["tuple[list[int], int] | Exception"], None]
"""Called at the end of a flush: with the starts that a marker refused, and the epoch; or with its error."""


class FlushLoop(Protocol):
    """The event loop that submits flushes to a commit table, and threads beside it. On the loop's thread only."""

    @property
    def leader_state(self) -> LeaderState: ...

    @property
    def may_wait(self) -> bool:
        """Whether the flush may hold up the loop: it is a single commit, and no other peer waits."""

    def on_thread(self, work: Callable[[], tuple[list[int], int]], ended: FlushEnded) -> None:
        """Runs `work` on a thread. `ended` gets its result or error, on the loop."""

    def watch(self, fileno: int, is_readable: Callable[[], None]) -> None:
        """Calls `is_readable` whenever the descriptor is readable, until the loop ends. May be called many times."""


class CommitTable(ABC):
    """start → commit, and invalidation markers start → invalid. Starts are multiples of 50.

    An implementation defines the blocking calls. Calls for many starts at once, and flushes of a service that wait on
    no thread, have defaults.
    """

    @abstractmethod
    def lookup(self, starts: Sequence[int]) -> list[int]:
        """For each start: its commit timestamp, `NOT_FOUND` or `SEALED` (the marker wins). One fresh read."""

    @abstractmethod
    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        """Entries (start, commit), durable on return. Returns the starts that a marker refused. Empty if the store
        cannot tell (its writes are not conditional): then only `LeaderState.read` after it makes the answer safe."""

    @abstractmethod
    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        """The decision of a large commit: one conditional write. False if a marker stands."""

    @abstractmethod
    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        """Entries of a decided commit's branches. Each replaces a marker in one mutation (T13)."""

    @abstractmethod
    def seal(self, start: int) -> SealOutcome:
        """Places the marker iff no commit is there, durable on return. A marker already there counts as placed."""

    @abstractmethod
    def delete(self, starts: Sequence[int]) -> None:
        """Completion: the entries go. Idempotent. Markers stay."""

    @abstractmethod
    def delete_below(self, horizon: int) -> int:
        """Sanitizing: entries and markers with start < `horizon` go. Returns how many."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries and markers (start, commit or SEALED), for status and verification. Not one snapshot."""

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    # ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        """`put` of rows (start, commit). The caller may reuse the array on return."""
        return self.put([(start, commit_ts) for start, commit_ts in entries.tolist()])

    def seal_many(self, starts: Sequence[int]) -> list[SealOutcome]:
        """`seal` of each, in order, all durable on return. A take-over finds thousands."""
        return [self.seal(start) for start in starts]

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int] | None:
        """`lookup`, then W and H, read *after* all entries were, in one round trip.

        None if the store cannot do that: the caller makes two calls, in that order.
        """
        return None

    # ── of the service that flushes ──────────────────────────────────────────────────────────────────────────────

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        """Begins to put rows (start, commit). `ended` is called when all of them are durable, with the epoch that was
        read *after* that (T5), or with the error. Without rows it is called with the epoch alone.

        `ended` is called once, on the loop, perhaps within this call, which waits for the store only if
        `loop.may_wait`. An error that this call raises is the flush's. The caller does not change the array before the
        end. Several flushes may be under way, and end in any order.
        """

        def flush() -> tuple[list[int], int]:
            refused = self.put_block(entries) if len(entries) else []
            return refused, loop.leader_state.read().epoch

        loop.on_thread(flush, ended)

    @property
    def flushes_in_flight_max(self) -> int:
        """Up to this number, more flushes under way are faster than fewer, larger ones."""
        return sys.maxsize

    def leave_loop(self) -> None:  # noqa: B027
        """The loop ends: nothing is submitted any more. Flushes under way may fail."""

    def delete_at_once(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`delete` as far as it waits neither for the store nor for a thread. Returns the starts that are left."""
        return starts

    def serve_epoch(self, epoch: int) -> None:  # noqa: B027
        """From now on a write may be refused with `Deposed` once the leader state holds another epoch."""

    def prepare(self) -> None:  # noqa: B027
        """Loads what flushes need, before the first of many. Blocking."""


class LeaderState(ABC):
    """The row that names the leader's epoch and holds what a new leader must know (protocol.md, Leadership)."""

    @abstractmethod
    def database_id(self) -> bytes:
        """Random, and constant while the database lives: a database made in its place has another one. The first call,
        a TSO's, makes it. Durable on return."""

    @abstractmethod
    def read(self) -> LeaderRecord:
        """Fresh."""

    @abstractmethod
    def read_watermarks(self) -> tuple[int, int]:
        """Fresh (W, H): cheaper than `read` if the store can."""

    @abstractmethod
    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        """Compare-and-set of the epoch (and ceiling); everything else stays. False if another TSO was faster, or if the
        row's ceiling is above `epoch`: the old leader moved it after it was read, and may hand out timestamps above
        `epoch` (decision 0003)."""

    @abstractmethod
    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        """All changes durable together, or `Deposed` and none, iff the row holds another epoch.

        An update whose answer was lost may have taken effect, but never does so after a later one (decision 0004): over
        a network this is a compare-and-set of the whole row. Otherwise W, H and the ceiling could go back, and ended
        leases and pending records return.
        """

    @abstractmethod
    def note_time(self, point: TimePoint, gone: Sequence[int] = ()) -> None:
        """Durable on return, and the points of the starts `gone` are deleted. A point is true whichever TSO
        noted it, so no epoch is checked."""

    @abstractmethod
    def time_points(self) -> list[TimePoint]:
        """Fresh, ascending by start."""


class CeilingStore(Protocol):
    """Where the timestamp ceiling is kept when it is not the leader state (ZooKeeper, an HBase table)."""

    def read(self) -> int: ...

    def compare_and_set(self, expected: int, ceiling: int) -> bool: ...


class Catalog(ABC):
    """Tables, marks of unregistered tables, region watermarks. Writes are durable on return."""

    @abstractmethod
    def entries(self) -> list[TableEntry]:
        """Fresh, sorted by name, in every state."""

    @abstractmethod
    def entry(self, name: str) -> TableEntry | None:
        """Fresh, in every state."""

    @abstractmethod
    def change_entry(self, old: TableEntry | None, new: TableEntry) -> bool:
        """Compare-and-set: True iff `new` stands where `old` stood (None: where nothing stood), durably.

        `new.nonce` was never put before. A change whose answer was lost may take effect later, but only while `old`
        stands. "Nothing" can come back, so only an entry that no reader goes by (`TableState.CREATING`) may be put
        where nothing stood.
        """

    @abstractmethod
    def remove_entry(self, old: TableEntry) -> None:
        """Removes `old` if it still stands, and the table's region watermarks with it."""

    def tables(self) -> list[TableInfo]:
        """Tables that are `PRESENT`: users see them, and the TSO decides commits to them without a mark (K6). Fresh,
        sorted by name."""
        return [each.info for each in self.entries() if each.state is TableState.PRESENT]

    def registered(self) -> list[TableInfo]:
        """Tables that may hold committed cells, those being dropped included: sanitizing goes by them. The TSO does
        not: a commit to a table that is being dropped leaves a mark, because the table's records do not count for the
        next table of that name."""
        return [each.info for each in self.entries() if each.state is not TableState.CREATING]

    def table(self, name: str) -> TableInfo:
        """`UnknownTable` if none is `PRESENT`."""
        found = self.entry(name)
        if found is None or found.state is not TableState.PRESENT:
            raise UnknownTable(f"there is no table {name!r} in the catalog", table=name)
        return found.info

    def tables_level(self) -> ConflictLevel | None:
        """The one level that all tables of this database must have, because clients that are not pyomid's name ids of
        that level only; None: each table has its own. Fresh."""
        return None

    def set_tables_level(self, level: ConflictLevel | None) -> None:
        """`client.table_admin.choose_tables_level` says when it may. `Misuse` in a store of pyomid alone."""
        raise Misuse("only a database in HBase has one conflict level for all tables: here each table has its own")

    def change_tables_level(self, old: ConflictLevel, new: ConflictLevel | None) -> bool:
        """Sets it where it is `old`; False where it is not. As `set_tables_level` elsewhere."""
        raise Misuse("only a database in HBase has one conflict level for all tables: here each table has its own")

    @abstractmethod
    def mark_unknown_table(self, table_id: int) -> None:
        """K6: a commit named this table id; sanitizing refuses until the table is registered. Each mark has a new
        nonce, and replaces the one that stands: it counts for commits from now on."""

    @abstractmethod
    def unknown_tables(self) -> dict[int, bytes]:
        """Fresh: the table id of every mark, and its nonce. Marks of tables that were registered since are included;
        `TABLES_UNCONFIRMED` may be among them."""

    @abstractmethod
    def clear_unknown_table(self, table_id: int, nonce: bytes) -> None:
        """The mark goes if it still has this nonce. `client.unregistered_tables` says when it may."""

    @abstractmethod
    def put_region_watermark(self, record: RegionWatermark) -> None:
        """Records of the same range and generation stay as `protocol.region_watermarks.kept` says."""

    @abstractmethod
    def region_watermarks(self, table: str) -> list[RegionWatermark]:
        """Sorted by first key; the newest of a range first."""

    @abstractmethod
    def drop_region_watermarks(self, newest: Sequence[RegionWatermark]) -> None:
        """Removes all records of these ranges, of each only if its newest record is still the given one."""


class Tso(ABC):
    """A client's session with the TSO. Thread-safe; one connection shared by all threads of the process.

    `Unavailable` if the request certainly did nothing. A commit whose answer was lost is sent again as a retry, and
    raises `OutcomeUnknown` if that gives no answer either.
    """

    @property
    @abstractmethod
    def extended(self) -> bool:
        """Whether the TSO knows leases, branches, seals and table-level commits. Apache Omid's own does not."""

    @property
    def write_set_ids_max(self) -> int:
        """The most ids that one commit may name, as the TSO that was met last tells it; 0 where it does not tell."""
        return 0

    @abstractmethod
    def begin(self, *, not_before: int = 0) -> BeginReply:
        """A start timestamp above `not_before` (0: any)."""

    def note_ended(self, start_ts: int) -> None:  # noqa: B027 - a TSO that is told nothing
        """A start that `begin` gave is no longer in use: it does not hold LWM back any longer (T16). Never
        waits, may be called anywhere. Without it a start holds LWM until it is old."""

    def tell_open(self) -> object:  # noqa: B027 - as `note_ended`
        """Tells the TSO now what is open, for a process that may end soon without a word; else it is told in time."""

    @abstractmethod
    def commit(self, request: CommitRequest) -> CommitReply:
        """Durable when it returns committed (law 2), all branches included."""

    @abstractmethod
    def fence(self, table_id: int) -> int:
        """Writers of that table that started before the returned timestamp will abort."""

    @abstractmethod
    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        """Durable on return. Returns the granted term. `SnapshotTooOld` if W has passed `start_ts`."""

    @abstractmethod
    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        """For a snapshot whose end is never told: a lease on `start_ts` or an older start, which others may share, and
        the term for which it is kept from now. Durable on return. Another request keeps it longer; no request ends it.
        Within that term every start at or above the leased one is kept as well. `SnapshotTooOld` as `grant_lease`.
        """

    @abstractmethod
    def renew_lease(self, start_ts: int) -> float:
        """`SnapshotTooOld` if the lease is gone."""

    @abstractmethod
    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        """Its owner needs it no more. Those who share it keep it, unless `shared` ends it for them, too."""

    @abstractmethod
    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        """Places markers through the TSO. It answers after the batches that may hold these starts, and refuses their
        commits from then on."""

    @abstractmethod
    def complete(self, starts: Sequence[int]) -> None:
        """Deletes commit-table entries some time later (the caller keeps law 5)."""

    @abstractmethod
    def advance_horizon(self, horizon: int) -> int:
        """Law 7, second half: H is made durable, then entries below it are deleted. Returns how many."""

    @abstractmethod
    def status(self) -> Status: ...

    @abstractmethod
    def close(self) -> None: ...


class AsyncTso(Protocol):
    """A session with the TSO for one event loop: what every transaction asks, awaited. Errors as of `Tso`."""

    async def begin(self, *, not_before: int = 0) -> BeginReply: ...

    def note_ended(self, start_ts: int) -> None: ...

    async def commit(self, request: CommitRequest) -> CommitReply: ...

    async def close(self) -> None: ...


Clock = Callable[[], float]
"""Monotonic seconds that count suspension; injected everywhere time matters."""

Sleep = Callable[[float], None]


boot_clock: Final[Clock] = platforms.boot_clock
"""The system's: it goes on while the machine sleeps (T4)."""


def _never() -> bool:
    return False


def _no_token() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Deployment:
    """One open database: its ports, settings and clock, chosen by `wiring` and handed to a client together."""

    store: DataStore
    commit_table: CommitTable
    leader_state: LeaderState
    catalog: Catalog
    tso: Tso
    settings: Settings
    clock: Clock = boot_clock
    closers: tuple[Callable[[], None], ...] = field(default=())
    """What else ends with it, called after the ports are closed."""
    is_gone: Callable[[], bool] = field(default=_never)
    """Whether another database, or none, lies where this one was opened: then only a new connection helps."""
    loop_session: Callable[[], AsyncTso] | None = field(default=None)
    """Opens another session with the same TSO, for the running event loop; its user closes it. None: only threads can
    ask this TSO."""
    back_up: Callable[[str | PathLike[str], BackupMoment, str | PathLike[str] | None], Backup] | None = field(
        default=None
    )
    """Copies the database as of one moment: into an absent or empty folder, or to snapshots of HBase of that name.
    Durable on return. All that committed below the moment is in it. With it the back-up since which changes are wanted,
    or None for all. None: the store has no back-ups."""
    task_token: Callable[[], TaskToken | None] = field(default=_no_token)
    """What a process of another machine shows the store in this one's name; None: it needs nothing, or has its own."""

    def close(self) -> None:
        """Session, then commit table, then store, whatever one of them raises. A second call does nothing."""
        with ExitStack() as last_first:
            for close in reversed((self.tso.close, self.commit_table.close, self.store.close, *self.closers)):
                last_first.callback(close)


Catalogue = Catalog
"""Former name of `Catalog`, kept for one release."""
EpochRow = LeaderState
"""Former name of `LeaderState`, kept for one release."""
TakesBlocks = FlushesAtOnce = FlushesInBackground = FlushesOnLoop = LooksUpAtOnce = SealsMany = CommitTable
"""Former optional protocols: a commit table has all of it, by default methods. Kept for one release."""
