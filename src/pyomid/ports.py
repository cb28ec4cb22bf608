"""The interfaces between packages, as obligations. Who implements one passes its conformance suite.

*Durable* means: survives loss of power, and is found from then on by every look-up and every conditional
write of any process. *Fresh* means: sees everything that was durable before the call began.
Errors: `Unavailable` (nothing happened, or for a write: it may have happened in part, and the transaction
is rollback-only), `StoreFull`, `Corruption`, `UnknownTable`, `Misuse`. Foreign exceptions never pass.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch, CellNames
from pyomid.errors import UnknownTable
from pyomid.types import (
    BeginReply,
    Cell,
    CellVersion,
    Column,
    CommitReply,
    CommitRequest,
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
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do that not every store can."""

    pipelined_writes: bool = False
    """It takes rows while its caller goes on, over a network: writes are sent before the flush waits for them."""
    foreign_tables: bool = False
    """Others make and write tables in it, too (HBase); such tables can be imported."""


class DataStore(ABC):
    """Versioned cells with their shadow cells. Knows nothing of transactions.

    Thread-safe. A child of fork must not use its parent's store (C5): implementations raise `Misuse`.
    """

    capabilities: Capabilities = Capabilities()

    @property
    @abstractmethod
    def limits(self) -> StoreLimits:
        """What one cell may hold: a client refuses at once what `write_cells` would refuse at the flush."""

    @abstractmethod
    def write_cells(self, table: str, version: int, rows: Sequence[RowWrite]) -> None:
        """When this returns every cell is durable under `version`, without shadow cells.

        A cell already there under the same version is replaced; other columns of that row and version stay.
        Fails before writing where a row key, value or qualifier is over the store's limit (`Misuse`).
        """

    @abstractmethod
    def write_batch(self, table: str, version: int, batch: CellBatch) -> None:
        """`write_cells` for bulk: one record a row, rows sorted ascending and unique; versions in `batch` are ignored.

        Writes in bounded pieces, so that other writers get their turn between two of them.
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

        One list a row, in the order asked, cells in any order. `columns` None is all; with `columns`, family
        tombstones (empty qualifier) of their families are returned too. A Column with empty qualifier asks
        for the whole family. Versions that `bounds` does not need may be left out: what is returned of a row is of
        one read, and whole down to where its columns end.
        """

    @abstractmethod
    def scan(
        self,
        table: str,
        key_range: KeyRange,
        columns: Sequence[Column] | None = None,
        *,
        batch_rows_max: int = 10_000,
    ) -> Iterator[CellBatch]:
        """The same for a range, ascending by row, as batches of whole rows.

        Each batch is fetched fresh when it is asked for, and may hold fewer rows than the maximum, but never
        part of a row. Closing the iterator frees what it holds; no read transaction outlives a batch.
        """

    @abstractmethod
    def write_shadow_cells(self, table: str, shadows: Sequence[ShadowWrite]) -> None:
        """Durable on return. Idempotent. A cell that is gone gets no shadow cell (it would be an orphan)."""

    @abstractmethod
    def delete_versions(self, table: str, cells: Sequence[CellVersion]) -> None:
        """Exactly these versions, with their shadow cells, are gone durably; others are untouched. Idempotent."""

    @abstractmethod
    def clean_batch(self, table: str, batch: CellBatch, heals: NDArray[np.int64], drops: NDArray[np.int64]) -> None:
        """Compaction's writes over a batch that was read before: durable on return; idempotent.

        `heals` are indices of records of `batch`: their `rec_commit` becomes the shadow cell of each of their
        cells that is still there and is not dropped. `drops` are indices of cells: exactly these versions go,
        with their shadow cells. All changes of one row take effect together or not at all (K3); what was
        written to the row since the batch was read stays. Both index arrays ascend.
        """

    @abstractmethod
    def regions(self, table: str) -> list[KeyRange]:
        """The table's present regions in key order; together they tile all keys."""

    @abstractmethod
    def split_points(self, table: str, key_range: KeyRange, pieces: int) -> list[bytes]:
        """Up to `pieces` - 1 row keys, ascending and strictly inside the range, that cut it into parts of about
        equal size: how a bulk reader divides a large region among its tasks. An estimate; fewer for a small range."""

    @abstractmethod
    def flush_and_merge(self, table: str, region: KeyRange) -> None:
        """Brings what is only in memory to where `scan` for compaction sees it (K4); may do nothing."""

    @abstractmethod
    def create_table(self, info: TableInfo) -> None:
        """The physical table exists, all versions kept. Idempotent. The catalog entry is not its business.

        In a store that holds others' tables one that exists is named by no earlier `withdraw_table` any more.
        """

    @abstractmethod
    def withdraw_table(self, table: str) -> object | None:
        """The first half of a drop: names the table that has the name now, for `drop_table`. None where there is none.

        It may serve nobody (`Unavailable`) until it is dropped, or given back.
        """

    @abstractmethod
    def give_back_table(self, table: str) -> None:
        """What was withdrawn by mistake serves again."""

    @abstractmethod
    def drop_table(self, table: str, withdrawn: object | None = None) -> bool:
        """The table and its cells are gone on return. Idempotent.

        With `withdrawn` only that one goes; False, and nothing is dropped, where another has its name by now. Without
        it whatever has the name goes: for tests and tools.
        """

    @abstractmethod
    def close(self) -> None: ...

    # ── pipelined writes: sent ahead where `capabilities` says so, else written at once ─────────────────────────────

    def begin_write(self, table: str, version: int, batch: CellBatch) -> object:
        """Sends what `write_batch` writes and waits for no answer. What is raised was raised before anything was sent.
        Until the end any part of it may be there or come, in any order with what else was begun: the caller ends it
        before it writes one of its cells again, or reads them."""
        self.write_batch(table, version, batch)
        return None

    def end_writes(self, begun: Sequence[Any]) -> None:  # noqa: B027 - nothing is under way
        """All of them durable on return. An error (as of `write_batch`) comes when every one of them has ended. Each is
        ended once, by any thread; a write that is never ended may still take effect."""

    def write_shadow_batches(self, table: str, version: int, batches: Sequence[CellBatch], commit_ts: int) -> None:
        """`write_shadow_cells` beside every cell of batches that were written under `version`."""
        self.write_shadow_cells(table, [ShadowWrite(name, commit_ts) for name in CellNames(batches, version)])

    # ── foreign tables: in a store where others make and write tables, too ──────────────────────────────────────────

    def foreign_tables(self) -> dict[str, list[str]]:
        """Every table that is not pyomid's or Omid's own, with its families; whoever made it."""
        return {}

    def holds_shadow_cells(self, table: str, *, rows_max: int) -> bool:
        """Whether transactions wrote it, by the first `rows_max` rows of each region."""
        return False

    def check_names(self, table: str, key_range: KeyRange) -> None:  # noqa: B027 - nobody else names columns
        """`Misuse` where a column of the range has a name by which transactions know their own cells."""

    def check_table(self, table: str, families: Iterable[bytes]) -> object:
        """`UnknownTable` where there is none; `Misuse` that says what to alter where one of these families is not
        there or could lose what transactions need."""
        return None

    def check_leases(self, table: str) -> None:  # noqa: B027 - nobody else drops versions
        """`Misuse` where others may drop versions of this table that a lease holds; says what to alter."""


FlushEnded = Callable[["tuple[list[int], int] | Exception"], None]
"""Told the end of a flush: the starts that a mark refused, and the epoch; or its error."""


class FlushLoop(Protocol):
    """The event loop that submits flushes to a commit table, and threads beside it. On the loop's thread only."""

    @property
    def leader_state(self) -> LeaderState: ...

    @property
    def may_wait(self) -> bool:
        """Whether the flush may hold up the loop: one commit, and nobody else is served meanwhile."""

    def on_thread(self, work: Callable[[], tuple[list[int], int]], ended: FlushEnded) -> None:
        """`ended` is told the result or error of `work`, on the loop."""

    def watch(self, fileno: int, is_readable: Callable[[], None]) -> None:
        """Called by the loop whenever the descriptor is readable, until the loop ends. Any number of times."""


class CommitTable(ABC):
    """start → commit, and marks start → invalid. Starts are multiples of 50.

    An implementation says what a table does, blocking; how a service's flushes leave it without a thread, and what
    goes for many at once, has defaults.
    """

    @abstractmethod
    def lookup(self, starts: Sequence[int]) -> list[int]:
        """For each start: its commit timestamp, `NOT_FOUND` or `SEALED` (the mark wins). One fresh read."""

    @abstractmethod
    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        """Entries (start, commit), durable on return. Returns the starts that a mark refused; empty where the
        store cannot tell (plain writes): then only `LeaderState.read` after it makes the answer safe."""

    @abstractmethod
    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        """The decision of a large commit: one conditional write; False where a mark stands."""

    @abstractmethod
    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        """Entries of a decided commit's branches; each replaces a mark in one mutation (T13)."""

    @abstractmethod
    def seal(self, start: int) -> SealOutcome:
        """The mark, iff no commit is there; durable on return. A mark already there counts as placed."""

    @abstractmethod
    def delete(self, starts: Sequence[int]) -> None:
        """Completion: the entries go. Idempotent; marks stay."""

    @abstractmethod
    def delete_below(self, horizon: int) -> int:
        """Sanitising: entries and marks with start < `horizon` go. Returns how many."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries and marks (start, commit or SEALED) for status and verification; not one snapshot."""

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    # ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────

    def put_block(self, entries: NDArray[np.int64]) -> list[int]:
        """`put` of rows (start, commit). The array is the caller's again on return."""
        return self.put([(start, commit_ts) for start, commit_ts in entries.tolist()])

    def seal_many(self, starts: Sequence[int]) -> list[SealOutcome]:
        """`seal` of each, in order; all durable on return. A take-over finds thousands."""
        return [self.seal(start) for start in starts]

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int] | None:
        """`lookup`, then W and H as they were read *after* all entries were, in one round trip.

        None where that is not to be had: both are asked for again by calls of their own, in that order.
        """
        return None

    # ── of the service that flushes ──────────────────────────────────────────────────────────────────────────────

    def submit(self, entries: NDArray[np.int64], ended: FlushEnded, loop: FlushLoop) -> None:
        """Begins to put rows (start, commit); `ended` is told when all of them are durable, with the epoch as it was
        read *after* that (T5), or of the error. There may be no rows: then it is the epoch alone.

        Told once, on the loop; perhaps within the call, which waits for the store only where `loop.may_wait`. What
        the call itself raises is the flush's error. The array stays as it is until the end. Several may be under way,
        and end in any order.
        """

        def flush() -> tuple[list[int], int]:
            refused = self.put_block(entries) if len(entries) else []
            return refused, loop.leader_state.read().epoch

        loop.on_thread(flush, ended)

    @property
    def flights_max(self) -> int:
        """So many flushes under way are faster than fewer, larger ones."""
        return sys.maxsize

    def leave_loop(self) -> None:  # noqa: B027
        """The loop ends: nothing is submitted any more. What is under way may fail."""

    def delete_at_once(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`delete` as far as it waits neither for the store nor for a thread; returns those that are left."""
        return starts

    def serve_epoch(self, epoch: int) -> None:  # noqa: B027
        """From now on a write may be refused once the leader state holds another epoch: `Deposed`."""

    def prepare(self) -> None:  # noqa: B027
        """Before the first of many flushes: loads what they need. Blocking."""


class LeaderState(ABC):
    """The row that says who leads, and what must not be forgotten (protocol.md, Leadership)."""

    @abstractmethod
    def database_id(self) -> bytes:
        """Random, and this database's for as long as it lives: one made in its place has another. The first who asks,
        a TSO, makes it; durable on return."""

    @abstractmethod
    def read(self) -> LeaderRecord:
        """Fresh."""

    @abstractmethod
    def read_watermarks(self) -> tuple[int, int]:
        """Fresh (W, H): cheaper than `read` where the store can."""

    @abstractmethod
    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        """Compare-and-set of the epoch (and ceiling); everything else stays. False: another was faster, or the
        row's ceiling is above `epoch`: the old leader moved it after it was read, and may hand out timestamps above
        `epoch` (decision 0003)."""

    @abstractmethod
    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        """All changes durable together, or `Deposed` and none, iff the row holds another epoch.

        One whose answer was lost may have taken effect, but never does so after a later one (decision 0004): over a
        network this is a compare-and-set of the whole row. Else W, H and the ceiling would go back, and leases and
        pending records come back from the dead.
        """


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

        Nobody has put `new.nonce` before. One whose answer was lost may take effect later, but only while `old` stands:
        on top of nothing, which comes back, only an entry that nobody goes by may be put (`TableState.CREATING`).
        """

    @abstractmethod
    def remove_entry(self, old: TableEntry) -> None:
        """Where `old` stands nothing stands on return; the table's region watermarks go with it."""

    def tables(self) -> list[TableInfo]:
        """Those that are `PRESENT`, which users see, and to which the TSO decides commits without a mark (K6): fresh,
        sorted by name."""
        return [each.info for each in self.entries() if each.state is TableState.PRESENT]

    def registered(self) -> list[TableInfo]:
        """Those that may hold committed cells, what is being dropped included: what sanitising goes by. Not the TSO: a
        commit to a table that is being dropped leaves a mark, as its records will not speak for the table made next."""
        return [each.info for each in self.entries() if each.state is not TableState.CREATING]

    def table(self, name: str) -> TableInfo:
        """`UnknownTable` where none is `PRESENT`."""
        found = self.entry(name)
        if found is None or found.state is not TableState.PRESENT:
            raise UnknownTable(f"there is no table {name!r} in the catalog", table=name)
        return found.info

    @abstractmethod
    def mark_unknown_table(self, table_id: int) -> None:
        """K6: a commit named this table id; the sanitiser refuses until it is registered. Each mark has a new nonce,
        and replaces the one that stands: it counts for commits from now on."""

    @abstractmethod
    def unknown_tables(self) -> dict[int, bytes]:
        """Fresh: the table id of every mark, and its nonce. Tables that were registered since are among them, and
        `TABLES_UNCONFIRMED` may be."""

    @abstractmethod
    def clear_unknown_table(self, table_id: int, nonce: bytes) -> None:
        """The mark goes if it still has this nonce. When it may: `client.unregistered_tables`."""

    @abstractmethod
    def put_region_watermark(self, record: RegionWatermark) -> None:
        """Beside it stay those of the same range and generation that `protocol.region_watermarks.kept` says."""

    @abstractmethod
    def region_watermarks(self, table: str) -> list[RegionWatermark]:
        """By first key; of one range the newest first."""

    @abstractmethod
    def drop_region_watermarks(self, newest: Sequence[RegionWatermark]) -> None:
        """All records of these ranges, each where the newest is still the one given."""


class Tso(ABC):
    """A client's session with the TSO. Thread-safe; one connection shared by all threads of the process.

    `Unavailable` where the request certainly did nothing; a commit whose answer was lost is sent again as a
    retry, and raises `OutcomeUnknown` when that cannot settle it.
    """

    @property
    @abstractmethod
    def extended(self) -> bool:
        """Whether it knows leases, branches, seals and table-level commits. Apache Omid's own TSO does not."""

    @property
    def write_set_ids_max(self) -> int:
        """The most ids that one commit may name, as the TSO that was met last tells it; 0 where it does not tell."""
        return 0

    @abstractmethod
    def begin(self, *, not_before: int = 0) -> BeginReply:
        """A start timestamp above `not_before` (0: any)."""

    @abstractmethod
    def commit(self, request: CommitRequest) -> CommitReply:
        """Durable when it returns committed (law 2), all branches included."""

    @abstractmethod
    def fence(self, table_id: int) -> int:
        """Writers of that table that started before the returned timestamp will abort."""

    @abstractmethod
    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        """Durable on return; returns the granted term. `SnapshotTooOld` where W has passed `start_ts`."""

    @abstractmethod
    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        """For a snapshot whose end nobody will tell: a lease on `start_ts` or an older start, which others may share,
        and the term for which it is kept from now. Durable on return; kept longer by asking again, and not ended.
        Within that term every start at or above the leased one is kept as well. `SnapshotTooOld` as `grant_lease`.
        """

    @abstractmethod
    def renew_lease(self, start_ts: int) -> float:
        """`SnapshotTooOld` where the lease is gone."""

    @abstractmethod
    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        """Its owner needs it no more; who shares it keeps it, unless `shared` ends it for them, too."""

    @abstractmethod
    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        """Marks through the TSO: answered after the batches that may hold these starts, refused from then on."""

    @abstractmethod
    def complete(self, starts: Sequence[int]) -> None:
        """Commit-table entries go (law 5 is the caller's). Not waited for."""

    @abstractmethod
    def advance_horizon(self, horizon: int) -> int:
        """Law 7, second half: H durable, then entries below it deleted. Returns how many went."""

    @abstractmethod
    def status(self) -> Status: ...

    @abstractmethod
    def close(self) -> None: ...


Clock = Callable[[], float]
"""Monotonic seconds that count suspension (CLOCK_BOOTTIME); injected everywhere time matters."""

Sleep = Callable[[float], None]


Catalogue = Catalog
"""Former name of `Catalog`, kept for one release."""
EpochRow = LeaderState
"""Former name of `LeaderState`, kept for one release."""
TakesBlocks = FlushesAtOnce = FlushesInBackground = FlushesOnLoop = LooksUpAtOnce = SealsMany = CommitTable
"""Former optional protocols: a commit table has all of it, by default methods. Kept for one release."""
