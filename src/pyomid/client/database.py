"""A database: what `pyomid.connect` returns.

Thread-safe: threads share one, each with transactions of its own. A forked child must connect again (C5).
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast, overload

from pyomid import platforms
from pyomid.client import changes
from pyomid.client.admin import table_admin, unregistered_tables
from pyomid.client.background import Background, BackgroundCounters
from pyomid.client.changes import RowChange
from pyomid.client.drive import Blocking, Driver
from pyomid.client.idempotency import AlreadyDone, check_transaction_id
from pyomid.client.observers.observer import Observer, reports_to
from pyomid.client.past_snapshot import past_steps
from pyomid.client.public_names import DATABASE, shows
from pyomid.client.retry import Backoff, check_function, check_result, run_steps
from pyomid.client.session.leases import Lease, LeaseKeeper
from pyomid.client.transaction import Transaction
from pyomid.client.transaction_steps import TransactionSteps
from pyomid.client.validation import TableRules, check_table_name, find_table
from pyomid.client.watch import POLL_SECONDS, Watch, Watching
from pyomid.config import Settings
from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.commit import WriteSet, may_go_by, may_keep
from pyomid.protocol.effects import Begin, Steps
from pyomid.protocol.reading import CommitCache
from pyomid.types import (
    TABLES_UNCONFIRMED,
    Backup,
    BackupMoment,
    BeginReply,
    Bookmark,
    ConflictLevel,
    Status,
    TableInfo,
    TableSchema,
)

if TYPE_CHECKING:
    from pyomid.client.upkeep.jobs import Compaction, Sanitising
    from pyomid.client.upkeep.verification import Verification

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


class Transactional(Protocol[P, R]):
    """A function decorated with `Database.transactional`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __call__(self, transaction: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


CLOSE_TIMEOUT_S: Final = 10.0
"""Close waits so long for completion in the background; the rest is left to readers and compaction."""


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """The TSO, the tables, and the work in the background: what `pyomid status` prints."""

    tso: Status
    tables: tuple[TableInfo, ...]
    commit_table_entries: int
    background: BackgroundCounters
    unregistered: Mapping[int, str] = field(default_factory=dict)
    """Tables that commits named and the catalog does not list, which stops sanitizing: id → name, empty if no table of
    the store has that id."""
    tables_unconfirmed: bool = False
    """A Java TSO led, and no operator confirmed the tables since: that stops sanitizing too."""


@dataclass(frozen=True, slots=True)
class _KnownRules:
    """A table's rules as they were read after the start `read_after` was handed out (`protocol.commit.may_go_by`)."""

    rules: TableRules
    read_after: int
    until_s: float


class Database:
    """An open database, as `pyomid.connect` returns it. Threads share it; a forked child opens its own."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        url: str = "",
        sleep: Callable[[float], None] = time.sleep,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.url: Final = url
        self.settings: Final[Settings] = deployment.settings
        self.commit_cache: Final = CommitCache(deployment.settings.commit_cache_entries)
        self.pipelined_writes: Final = deployment.store.capabilities.pipelined_writes
        self.reports: Final = reports_to(observers)
        self._deployment = deployment
        self._pid, self._made_in = os.getpid(), platforms.here
        self._random = random.Random()
        self._background = make_background(deployment)
        self._driver = Driver(deployment, self._background, sleep=sleep)
        self._tables: dict[str, _KnownRules] = {}
        self.leases: Final = LeaseKeeper(deployment.tso, deployment.clock, deployment.settings.lease_seconds)
        self._ending = _Ending(deployment, self._background, self.leases)
        weakref.finalize(self, _forgotten, self._ending).atexit = False

    # Transactions

    def begin(
        self, *, not_before: int = 0, lease: bool = False, read_only: bool = False, at: int | datetime | None = None
    ) -> Transaction:
        """A new transaction. Its snapshot holds everything committed so far, and is above `not_before`.

        `lease`: for a transaction that outlives `max_transaction_age_seconds`; renewed until its end. Without it the
        transaction meets `SnapshotTooOld` at a read or `ConflictError` at its commit. `read_only`: it refuses writes
        and claims.

        `at`: what was committed then and no more, to read: at or before a timestamp (a commit's, a start's), or by a
        time of the day, a datetime with its zone, as of the last time that the TSO noted before it, some seconds
        earlier. `SnapshotTooOld` says since when it is kept (`retention` of the TSO). It is held by a lease.
        """
        made = partial(self._made, read_only=read_only)
        return self._driver.run(self.begin_steps(made, not_before, lease=lease, at=at))

    def snapshot(self, *, lease: bool = False, at: int | datetime | None = None) -> Transaction:
        """Everything committed so far, or at that time, to read: `begin(read_only=True)`."""
        return self.begin(lease=lease, read_only=True, at=at)

    def run(
        self,
        function: Callable[Concatenate[Transaction, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Calls `function(tx, …)` in a transaction of its own and commits it; calls it again on `ConflictError`.

        The back-off is jittered, doubles, and is bounded, and so is the number of attempts (settings `retries`,
        `retry_backoff_ms`); after the last one its `ConflictError` is raised. Each call repeats what the function does
        outside of the database.
        """
        result = self._run(None, function, *args, **kwargs)
        assert not isinstance(result, AlreadyDone)
        return result

    def run_once(
        self,
        transaction_id: str,
        function: Callable[Concatenate[Transaction, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        """As `run`, but at most one of all runs under one id ever commits, in whatever process.

        Returns `AlreadyDone` if one committed before, with the result that it returned if that can be kept. A lost
        answer is looked up by another run. `OutcomeUnknown` comes only if that did not end either (no TSO, no attempts
        left): run it under the id again. The id is kept in the table PYOMID_MARKERS until its row is deleted there.
        """
        return self._run(check_transaction_id(transaction_id), function, *args, **kwargs)

    def _run(
        self,
        transaction_id: str | None,
        function: Callable[Concatenate[Transaction, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        check_function(function)

        def body(transaction: Transaction) -> R:
            return check_result(function(transaction, *args, **kwargs), function)

        result: R | AlreadyDone = self._driver.run(
            run_steps(self, partial(self.begin_steps, self._made), transaction_id, body)
        )
        return result

    def transactional(self, function: Callable[Concatenate[Transaction, P], R]) -> Transactional[P, R]:
        """Decorator: `function(tx, …)` becomes `function(…)`, run as by `run`.

        Called with a transaction as its first argument, it takes part in that one: decorated functions compose.
        """
        check_function(function)

        @functools.wraps(function)
        def transacted(*args: Any, **kwargs: Any) -> R:
            if args and isinstance(args[0], Transaction):
                return function(*args, **kwargs)
            return self.run(function, *args, **kwargs)

        return cast(Transactional[P, R], transacted)

    # What changed

    def bookmark(self, *, keep_seconds: float | None = None) -> Bookmark:
        """A place after everything committed so far, from or up to which `changes` reads. With `keep_seconds` a
        durable lease keeps what is needed for that for so long, at least until `release_bookmark`."""
        self.check_usable()
        return self._driver.run(changes.bookmark_steps(self._deployment, keep_seconds, self._deployment.tso.note_ended))

    def release_bookmark(self, bookmark: Bookmark) -> None:
        """Ends its lease: what changed since need not be kept."""
        self.check_usable()
        self.leases.end_of(changes.place(bookmark, "bookmark").start_ts)

    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: bytes | None = None,
    ) -> Iterator[RowChange]:
        """What was committed to a table after `starting`, and not after `ending` (None: now): one change a row and
        commit, ascending by row, and of each row by commit. Applied in the order of commits they lead from the one
        state of the table to the other.

        Both are bookmarks, or timestamps; a bookmark finds what changed faster than its timestamp alone.
        `SnapshotTooOld` if the changes are not kept any more.
        """
        run = self._driver.run
        scan = run(changes.begin_changes_steps(self, table, starting, ending, prefix))
        return changes.Changes(lambda: run(changes.shown_steps(self, scan)))

    def watch(
        self,
        table: str,
        *,
        key: bytes | None = None,
        prefix: bytes | None = None,
        after: Bookmark | int | None = None,
        keep_seconds: float | None = None,
        max_wait_seconds: float | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> Watch:
        """The changes of a row, of the rows with a prefix, or of the whole table, as they are committed: from now on,
        or after a place. An iterator that waits; it ends once nothing came for `max_wait_seconds` (None: never), and
        may be iterated again. Changes that came since the last look are told as `changes` tells them.

        It looks every `poll_seconds`, at all keys of a prefix in a folder. Between looks it holds W back as an open
        transaction does. With `keep_seconds` it holds it by a durable lease, which is renewed while the watch is not
        closed: a program that stops, and goes on from its `bookmark` within that time, misses nothing. One that comes
        back later gets `SnapshotTooOld`. Without a lease so does a program that handles the changes of one look for
        longer than `max_transaction_age_seconds`.

        Any error, Ctrl-C too, ends the watch; each further step of its iterator raises it again.
        """
        self.check_usable()
        watching = Watching(
            self,
            self._deployment.tso.note_ended,
            table,
            key=key,
            prefix=prefix,
            after=after,
            keep_seconds=keep_seconds,
            max_wait_seconds=max_wait_seconds,
            poll_seconds=poll_seconds,
        )
        return Watch(watching, self._driver)

    # Tables

    def create_table(
        self,
        name: str,
        families: Iterable[str | bytes],
        conflict_level: ConflictLevel | str | None = None,
        *,
        if_not_exists: bool = False,
        split_keys: Sequence[bytes] = (),
        ttl_seconds: float | None = None,
    ) -> TableInfo:
        """Makes a table, durable on return. `Misuse` if the name is taken. `split_keys` (HBase): the row keys at which
        its regions begin.

        `conflict_level`: "cell" (transactions conflict on a column of a row) or "row" (on a row). None: that of the
        deployment (HBase: `pyomid init --conflict-level`), else "cell". `alter_table` changes it.

        `ttl_seconds`: each value expires so long after its commit, or a hundredth of that and a second later: later
        snapshots do not see it, and compaction drops it. None: values are kept.
        """
        self.check_usable()
        return table_admin.create_table(
            self._deployment,
            name,
            families,
            conflict_level=conflict_level,
            if_not_exists=if_not_exists,
            split_keys=split_keys,
            ttl_seconds=ttl_seconds,
        )

    def alter_table(
        self, name: str, conflict_level: ConflictLevel | str | None = None, *, ttl_seconds: float | None = None
    ) -> TableInfo:
        """Changes a table's conflict level, or for how long its values are seen, while others use it; transactions that
        began before and write it abort. Durable on return. `Misuse` where all tables of the deployment have another
        level.

        `ttl_seconds`: as of `create_table`; the age of what is there counts from now on at the latest. 0: nothing
        expires any more. What has expired stays so.
        """
        self.check_usable()
        if conflict_level is None and ttl_seconds is None:
            raise Misuse(f"table {name!r}: nothing is to change; give conflict_level or ttl_seconds", table=name)
        if conflict_level is not None:
            table_admin.new_level(self._deployment, name, conflict_level)  # is refused before anything changes
        self._tables.pop(name, None)
        if ttl_seconds is not None:
            from pyomid.client.upkeep.expiry import move_floor

            found = table_admin.alter_ttl(self._deployment, name, ttl_seconds)
            move_floor(self, name, always_writes=True)
        if conflict_level is not None:
            found = table_admin.alter_level(self._deployment, name, conflict_level)
        return found

    def drop_table(self, name: str) -> None:
        """Removes the table and its rows; open transactions that wrote to it abort."""
        self.check_usable()
        self._tables.pop(check_table_name(name), None)
        found = self._deployment.catalog.entry(name)
        table_admin.drop_table(self._deployment, name)
        if found is not None and found.info.ttl_seconds is not None:
            from pyomid.client.upkeep.expiry import forget

            forget(self, found.info)

    def tables(self) -> list[TableInfo]:
        """Every table of the catalog, system tables too, by name."""
        self.check_usable()
        return self._deployment.catalog.tables()

    def table_info(self, name: str) -> TableInfo:
        """One catalog entry; `UnknownTable` names the nearest table that exists."""
        self.check_usable()
        return find_table(self._deployment.catalog, name)

    def table_schema(
        self,
        name: str,
        columns: type | Mapping[str, Any] | None = None,
        *,
        row_key: str | Iterable[str] | None = None,
        mapping: Mapping[str, str | bytes] | None = None,
    ) -> TableSchema | None:
        """The table's schema in the catalog, which Spark uses too; None if it has none.

        With `columns` it is given one, or the columns that its schema lacks. They are a dataclass or TypedDict, or a
        mapping of names to types: `int` (long), `str`, `bytes`, `float` (double), `bool`, `date`, `datetime`
        (timestamp), `timedelta`, or a name that Spark has for a type, such as "decimal(10,2)" (in a class as
        `Annotated[Decimal, "decimal(10,2)"]`). `row_key`: the columns that the row key is made of, each with " desc"
        behind it where larger values come first; it never changes. `mapping`: "family:qualifier" of columns that do not
        go by their name into the table's first family.
        """
        self.check_usable()
        if columns is None:
            return find_table(self._deployment.catalog, name).schema
        from pyomid.client.admin import table_schema

        self._tables.pop(name, None)
        return table_schema.give_schema(self._deployment, name, columns, row_key, mapping)

    def alter_columns(
        self,
        name: str,
        *,
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        widen: Mapping[str, Any] | None = None,
        add: type | Mapping[str, Any] | None = None,
        order: Iterable[str] = (),
        mapping: Mapping[str, str | bytes] | None = None,
    ) -> TableSchema:
        """Changes the columns of a table's schema, all at once, without touching its data; durable on return.

        `rename`: name → new name. `drop`: the values are never seen again, under whatever name. `widen`: column →
        type: byte, short, integer → a longer one, float → double, a decimal → more digits of the same scale. `add`
        (with `mapping`): as `table_schema`. `order`: names of after, the others follow. Columns of the row key may be
        renamed and ordered only. Transactions that write the table and began before abort, and begin anew.
        """
        self.check_usable()
        from pyomid.client.admin import table_schema

        self._tables.pop(name, None)
        return table_schema.alter_columns(
            self._deployment, name, rename=rename, drop=drop, widen=widen, add=add, order=order, mapping=mapping
        )

    def create_index(self, table: str, name: str, columns: Iterable[str]) -> TableInfo:
        """Builds an index of columns of a table with a schema, while others use it; every later transaction may read it
        (`TypedTable.lookup`), and every transaction of the client keeps it. Repeatable, also where an earlier one died.

        Transactions that write the table and began before abort, and so do those that write rows which are just put
        into it. Rows where one of the columns has no value are not in it. Spark's writes of the table are refused.
        """
        self.check_usable()
        from pyomid.client.admin import indexes

        self._tables.pop(table, None)
        return indexes.create_index(self._deployment, self.run, table, name, columns)

    def drop_index(self, table: str, name: str) -> None:
        """Removes an index and its rows. It finishes a drop that was left half done."""
        self.check_usable()
        from pyomid.client.admin import indexes

        self._tables.pop(table, None)
        indexes.drop_index(self._deployment, table, name)

    # The whole

    def status(self) -> DatabaseStatus:
        self.check_usable()
        return DatabaseStatus(
            tso=self._deployment.tso.status(),
            tables=tuple(self._deployment.catalog.tables()),
            commit_table_entries=self._deployment.commit_table.count(),
            background=self._background.counters,
            unregistered=unregistered_tables.named_marks(self._deployment),
            tables_unconfirmed=TABLES_UNCONFIRMED in self._deployment.catalog.unknown_tables(),
        )

    def compact(self, tables: str | Sequence[str] | None = None, *, grace_seconds: float = 0.0) -> Compaction:
        """Cleans these tables (all of them) up to the published low watermark W, region after region, and records that:
        writes missing shadow cells, drops orphans and versions that no snapshot above W needs.

        It may run beside readers, writers and itself. The report prints as a table and says what holds W back.
        `grace_seconds`: for stores that Java clients share, which never look at W: it goes by the W of so long ago, and
        waits for that. A folder's TSO compacts by itself; Spark gives each region a task (`pyomid.spark.compact`).
        `expire` comes first.
        """
        from pyomid.client.upkeep import jobs as upkeep

        self.expire(tables)
        run, cache = self._driver.run, self.commit_cache
        return upkeep.compact(self._deployment, run, cache, tables, grace_seconds=grace_seconds)

    def expire(self, tables: str | Sequence[str] | None = None) -> None:
        """Has values expire in these tables (all of them) that are older than their table's `ttl_seconds`, for all
        snapshots from now on. Without `tables` also idempotency keys that are older than `transactionIdDays` shrink to
        hashes of their ids, which stay taken. A folder's TSO does both by itself; over HBase it is to be called, or
        `compact`, at least a hundred times in the shortest of these times. It goes by this process's clock."""
        from pyomid.client.upkeep import expired_keys, expiry

        self.check_usable()
        expiry.expire(self, tables)
        if tables is None and (days := self._deployment.settings.transaction_id_days):
            expired_keys.expire_keys(self, 86_400 * days)

    def sanitize(self) -> Sanitising:
        """Deletes the commit-table entries that no reader needs, as far as every table is compacted by records older
        than `commitRetrySeconds`. `Misuse` while transactions were committed to a table that is not registered.

        The report prints as a table and says what holds it back, and from when on a further run helps.
        """
        from pyomid.client.upkeep import jobs as upkeep

        self.check_usable()
        return upkeep.sanitize(self._deployment, self._driver.run)

    def verify(self, tables: str | Sequence[str] | None = None) -> Verification:
        """Reads every stored cell of these tables (all of them) and every commit-table entry, and reports what breaks
        an invariant; `ok` of the report says whether anything does. Writes nothing; may run beside writers."""
        from pyomid.client.upkeep import jobs as upkeep
        from pyomid.client.upkeep.partitions import chosen_tables, unless_dropped

        self.check_usable()
        catalog = self._deployment.catalog
        report = upkeep.verify(self._deployment, tables)
        for info in chosen_tables(catalog, tables):
            with unless_dropped(catalog, info.name, info.generation, tables):
                report.violations += self._wrong_index_rows(info.name)
        return report

    def _wrong_index_rows(self, table: str) -> list[str]:
        """Where an index is dropped meanwhile, those that are left are looked at anew."""
        catalog = self._deployment.catalog
        while True:
            indexes = find_table(catalog, table).indexes
            if not indexes:
                return []
            try:
                with self.snapshot(lease=self._deployment.tso.extended) as tx:
                    return tx.table(table).wrong_index_rows()
            except (UnknownTable, ConflictError):
                if find_table(catalog, table).indexes == indexes:
                    raise

    def backup(self, destination: str | os.PathLike[str], *, since: str | os.PathLike[str] | None = None) -> Backup:
        """Copies the database, as of one moment, while others read and write: that of a folder into an absent or empty
        folder; that of HBase into snapshots of its tables, whose names begin with the word `destination`.

        With `since`, the folder of an earlier back-up of this database, it holds what differs from that, and is
        restored together with it, and with what that goes on from: none of these may go, or change.

        Durable on return. All that was committed before the call is in it, and of every later transaction all or
        nothing; over HBase nothing. `pyomid.restore` makes a database of it; nothing else opens it. In a folder a
        thread that forks meanwhile waits for up to 5 s, as all calls do then, and its child cannot open the folder.
        """
        self.check_usable()
        if self._deployment.back_up is None:
            raise Misuse("only the database of a folder, or one over HBase, is backed up")
        if not self._deployment.store.capabilities.foreign_tables:
            before = self.begin(read_only=True)
            before.rollback()
            return self._deployment.back_up(destination, BackupMoment(before.start_ts), since)
        from pyomid.client.upkeep.backups import moment_of

        begun = self._deployment.tso.begin()
        lease = self.leases.grant(begun.start_ts, self.settings.lease_seconds)
        try:
            return self._deployment.back_up(destination, moment_of(self, begun.start_ts, begun.epoch), since)
        finally:
            self.leases.end(lease)
            self._deployment.tso.note_ended(begun.start_ts)

    def export_parquet(
        self, destination: str | os.PathLike[str], tables: str | Sequence[str] | None = None
    ) -> dict[str, int]:
        """Writes these tables (all but system tables) as Parquet files into an absent or empty folder, all of one
        snapshot. Returns how many rows each has.

        A table with a schema has its columns, with their types. Any other has `key`, `column` and `value`, a row for
        each cell. Needs pyarrow.
        """
        from pyomid.client.tables.parquet import export_tables
        from pyomid.client.upkeep.partitions import chosen_tables

        self.check_usable()
        infos = chosen_tables(self._deployment.catalog, tables)
        if tables is None:
            infos = [info for info in infos if not table_admin.is_system(info.name)]
        return export_tables(self, destination, infos)

    def import_parquet(
        self, source: str | os.PathLike[str], tables: str | Sequence[str] | None = None, *, over: bool = False
    ) -> dict[str, int]:
        """Writes an export (or one Parquet file that fits its table) in transactions of a bounded number of rows.
        Returns how many rows of each table.

        Tables that do not exist are made as they were. A table that has rows is refused unless `over`; then rows of
        equal keys are written over. An import is not one transaction: what it is interrupted by gets a note that says
        how far it came. Needs pyarrow.
        """
        from pyomid.client.tables.parquet import import_tables

        self.check_usable()
        return import_tables(self, source, [tables] if isinstance(tables, str) else tables, over=over)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Waits until every finished transaction is completed. False if the time ran out."""
        self.check_usable()
        return self._background.drain(timeout_s)

    def close(self) -> None:
        """Completes finished transactions and closes the connection. A second call does nothing, or what an interrupted
        first call left."""
        self._ending.close()

    def __enter__(self) -> Database:
        self.check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    __dir__ = shows(DATABASE)

    def __repr__(self) -> str:
        return f"<Database {self.url}{' closed' if self._ending.has_begun else ''}>"

    # For pyomid's own use

    @property
    def deployment(self) -> Deployment:
        return self._deployment

    parts = deployment
    """Former name, kept for one release."""

    @property
    def background(self) -> Background:
        return self._background

    @property
    def driver(self) -> Driver:
        return self._driver

    def begin_steps(
        self,
        made: Callable[[BeginReply, Lease | None], T],
        not_before: int = 0,
        *,
        lease: bool = False,
        at: int | datetime | None = None,
    ) -> Steps[T]:
        """The begin of a transaction, as both front ends drive it. `made` makes the front end's transaction."""
        steps = self._begin_steps(made, not_before, lease=lease, at=at)
        return steps if self.reports is None else self.reports.begin_steps(steps)

    def _begin_steps(
        self,
        made: Callable[[BeginReply, Lease | None], T],
        not_before: int,
        *,
        lease: bool,
        at: int | datetime | None,
    ) -> Steps[T]:
        self.check_usable()
        if at is not None:
            found = yield from past_steps(self._deployment, self.leases, at, not_before)
            return made(*found)
        begun: BeginReply = yield Begin(not_before)
        crash_point("client.begin.after")
        held: Lease | None = None
        if lease:
            held = yield Blocking(partial(self.leases.grant, begun.start_ts, self.settings.lease_seconds))
        return made(begun, held)

    def _made(self, begun: BeginReply, lease: Lease | None, *, read_only: bool = False) -> Transaction:
        return Transaction(self, begun, lease, read_only=read_only)

    def abandon(self) -> None:
        """Forgets the connection as if its process had died: nothing is completed, nothing closed. For tests."""
        self._ending.forget()

    def check_usable(self) -> None:
        if platforms.here is not self._made_in:
            raise Misuse(
                f"this database was opened by process {self._pid} and is used in its forked child {os.getpid()}: "
                "connect again in the child",
                owner=self._pid,
            )
        if self._ending.has_begun:
            raise Misuse(f"database {self.url} is closed")

    def table_rules(self, name: str, begun: BeginReply, *, leased: bool = False) -> TableRules:
        """The rules of a table for a transaction whose begin was answered with `begun`. `leased`: it is under a lease;
        `Misuse` if the table's store would not keep its snapshot.
        """
        rules = self.known_rules(name, begun) or self._read_rules(name, begun)
        if leased:
            self._deployment.store.check_leases(name)
        return rules

    def known_rules(self, name: str, begun: BeginReply) -> TableRules | None:
        """As `table_rules` without a lease, if they need not be read."""
        found = self._tables.get(name) if isinstance(name, str) else None
        if found is not None and self._deployment.clock() < found.until_s and may_go_by(found.read_after, begun):
            return found.rules
        return None

    def _read_rules(self, name: str, begun: BeginReply) -> TableRules:
        now = self._deployment.clock()
        found = self._tables.get(name) if isinstance(name, str) else None
        info = find_table(self._deployment.catalog, name)
        if found is not None and found.rules.info == info:
            rules = found.rules
        else:
            rules = TableRules(info, self._deployment.store.limits)
        if may_keep(info):
            self._tables[name] = _KnownRules(rules, begun.start_ts, now + self.settings.catalog_cache_seconds)
        return rules

    def end_committed(self, start_ts: int, commit_ts: int, written: WriteSet) -> None:
        """Repair after the answer: its error is not the commit's, and readers repair what it leaves."""
        try:
            self.commit_cache.put(start_ts, commit_ts)
            self._background.complete(start_ts, commit_ts, written)
        except Exception as error:
            self._background.failed(error)

    def end_committed_at_once(self, start_ts: int, commit_ts: int, written: WriteSet) -> bool:
        """The same, if it need not wait for others' completion."""
        try:
            self.commit_cache.put(start_ts, commit_ts)
            return self._background.complete_at_once(start_ts, commit_ts, written)
        except Exception as error:
            self._background.failed(error)
            return True

    def end_rolled_back(self, writes: TransactionSteps) -> None:
        """As `end_committed`: compaction deletes what it leaves."""
        try:
            written = writes.write_set()
            if written:
                self._background.roll_back(written, writes.abandoned_writes())
        except Exception as error:
            self._background.failed(error)

    def backoff(self) -> Backoff:
        return Backoff.of(self.settings, self._random.uniform)


def make_background(deployment: Deployment) -> Background:
    """The database's background work, over its own deployment."""
    return Background(
        Driver(deployment).perform,
        linger_s=deployment.settings.completion_linger_ms / 1000,
        cells_max=deployment.settings.completion_cells_max,
    )


class _Ending:
    """Closes a database: at `close`, at exit, or in a thread of its own when the last reference goes. Never in a forked
    child: the parent still uses all of it."""

    def __init__(self, deployment: Deployment, background: Background, leases: LeaseKeeper) -> None:
        self._deployment = deployment
        self._background = background
        self._leases = leases
        self._pid = os.getpid()
        self._alone = threading.RLock()
        self.has_begun = False
        _OPEN.add(self)

    @property
    def is_ours(self) -> bool:
        return os.getpid() == self._pid

    def close(self) -> None:
        """Closes every part, whatever one of them raises. A call beside another one waits for it."""
        self.has_begun = True
        if not self.is_ours:
            return
        with self._alone:
            if self not in _OPEN:
                return
            try:
                self._leases.close()
            finally:
                try:
                    if not self._background.close(CLOSE_TIMEOUT_S):
                        logger.warning(
                            "closed with completion unfinished after %g s: left to readers and compaction",
                            CLOSE_TIMEOUT_S,
                        )
                finally:
                    self._deployment.close()
            self.forget()

    def forget(self) -> None:
        """Nothing is closed any more."""
        self.has_begun = True
        _OPEN.discard(self)


_OPEN: Final[set[_Ending]] = set()
"""Of every database of this process that is not closed, by `id`."""


def _forgotten(ending: _Ending) -> None:
    """The last reference went. That may be noticed in any thread, amid anything: in the database's own background
    thread, which closing waits for, or in a write transaction of the store. So nothing is done here, and no lock taken
    (a `threading.Thread` takes some). Where the system gives no thread, it is closed at exit."""
    if ending.is_ours and not ending.has_begun:
        with contextlib.suppress(RuntimeError, MemoryError):
            _thread.start_new_thread(ending.close, ())


@atexit.register
def _close_all() -> None:
    for ending in list(_OPEN):
        try:
            ending.close()
        except Exception as error:
            logger.warning("a database was not closed at exit: %r", error)
