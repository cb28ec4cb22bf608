"""`Database`: what `pyomid.connect` returns.

Thread-safe: threads share a database, each with transactions of its own. A forked child must connect again (C5).
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from pyomid.config import Settings
from pyomid.database import change_feed, table_admin
from pyomid.database.background import BackgroundCounters
from pyomid.database.idempotency import AlreadyDone, check_run_id
from pyomid.database.open_database import OpenDatabase
from pyomid.database.retry import check_function, check_result, run_transaction, transaction_place
from pyomid.database.row_changes import RowChange, TypedChange, view_of
from pyomid.database.tables import indexes
from pyomid.database.tables.table import Cells
from pyomid.database.tables.typed import Codec, RowT
from pyomid.database.transaction import Transaction, TransactionCore
from pyomid.database.validation import Handle, check_table_name, find_table
from pyomid.database.watch import POLL_SECONDS, Watch, Watching, WatchOptions
from pyomid.errors import ConflictError, Misuse, MisuseType, UnknownTable
from pyomid.observe import Observer
from pyomid.ports import Deployment
from pyomid.rows.schema import DEFAULT_FAMILY
from pyomid.types import (
    TABLES_UNCONFIRMED,
    At,
    Backup,
    BackupMoment,
    Bookmark,
    ConflictLevel,
    Progress,
    Status,
    TableInfo,
    TableSchema,
)

if TYPE_CHECKING:
    from pyomid.database.upkeep.jobs import Compaction, Sanitising
    from pyomid.database.upkeep.verification import Verification

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
OwnerT = TypeVar("OwnerT", contravariant=True)
T = TypeVar("T")


class Transactional(Protocol[P, R]):
    """A function decorated with `Database.transactional`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __call__(self, transaction: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class TransactionalMethod(Protocol[OwnerT, R]):
    """A method decorated with `transactional`."""

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, instance: OwnerT, owner: type | None = None) -> R: ...


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """The state of TSO, tables and background work, as `pyomid status` prints it."""

    tso: Status
    tables: tuple[TableInfo, ...]
    commit_table_entries: int
    background: BackgroundCounters
    unregistered: Mapping[int, str] = field(default_factory=dict)
    """Tables that commits named and the catalog does not list: id → name, empty if no table of the store has that id.
    They block `sanitize`."""
    tables_unconfirmed: bool = False
    """A Java TSO led, and no operator has confirmed the tables since. This blocks `sanitize` too."""


class Database(Handle):
    """An open database, as `pyomid.connect` returns it. Threads share it; a forked child opens its own."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        url: str = "",
        sleep: Callable[[float], None] = time.sleep,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._core: Final = OpenDatabase(deployment, url=url, sleep=sleep, observers=observers)

    @property
    def url(self) -> str:
        """The URL that `connect` was given."""
        return self._core.url

    @property
    def settings(self) -> Settings:
        """The settings of the URL and of the deployment."""
        return self._core.settings

    @property
    def _deployment(self) -> Deployment:
        """The deployment. `Misuse` after `close`, and in a forked child."""
        self._core.check_usable()
        return self._core.deployment

    # Transactions

    def begin(
        self, *, not_before: int = 0, lease: bool = False, read_only: bool = False, at: At | None = None
    ) -> Transaction:
        """Begin a transaction. Its snapshot holds everything committed so far, and is above `not_before`.

        `lease`: for a transaction that outlives `max_transaction_age_seconds`; the client renews the lease until the
        end. Without it such a transaction gets `SnapshotTooOld` at a read or `ConflictError` at its commit.
        `read_only`: writes and claims raise `Misuse`.

        `at`: read a past snapshot, read-only: everything committed at or before a timestamp (a commit's or a start's),
        a bookmark, or a wall-clock time (a datetime with a time zone); each also as text. A snapshot by a time holds
        everything acknowledged by that time; `moment` is the time at which it ends, the same or slightly later. Raises
        `SnapshotTooOld` if the history of that time is no longer kept (`retention`). A lease holds the snapshot.
        """
        core = self._core
        made = partial(TransactionCore, core, read_only=read_only)
        return Transaction(core.driver.run(core.begin(made, not_before, lease=lease, at=at)))

    def snapshot(self, *, lease: bool = False, at: At | None = None) -> Transaction:
        """Begin a read-only transaction: `begin(read_only=True)`."""
        return self.begin(lease=lease, read_only=True, at=at)

    def run(
        self,
        function: Callable[Concatenate[Transaction, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call `function(tx, …)` in a transaction of its own and commit; rerun it on `ConflictError`. Return its
        result.

        Pauses between attempts are jittered and bounded (settings `retries`, `retry_backoff_ms`); the last attempt's
        `ConflictError` is raised. A rerun repeats the function's effects outside the database.
        """
        return cast(R, self._run(None, function, *args, **kwargs))

    def run_once(
        self,
        run_id: str,
        function: Callable[Concatenate[Transaction, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        """As `run`, but at most one of all runs under one id ever commits, in any process.

        Return `AlreadyDone` if a run has committed before, with that run's result if it could be stored. If a commit's
        reply is lost, the next attempt looks up the outcome. `OutcomeUnknown` is raised only if that fails too (no TSO,
        no attempts left): then rerun under the same id. The table PYOMID_MARKERS keeps the id until its row is deleted
        there.
        """
        return self._run(check_run_id(run_id), function, *args, **kwargs)

    def _run(
        self,
        run_id: str | None,
        function: Callable[Concatenate[Transaction, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        check_function(function)

        def body(transaction: TransactionCore) -> R:
            return check_result(function(Transaction(transaction), *args, **kwargs), function)

        begin = partial(self._core.begin, partial(TransactionCore, self._core))
        result: R | AlreadyDone = self._core.driver.run(run_transaction(self._core, begin, run_id, body))
        return result

    @overload
    def transactional(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Transaction, P], R]
    ) -> Transactional[P, R]: ...

    @overload
    def transactional(
        self, function: Callable[Concatenate[OwnerT, Transaction, P], R]
    ) -> TransactionalMethod[OwnerT, Transactional[P, R]]: ...

    def transactional(self, function: Callable[..., Any]) -> Any:
        """Decorator: turn `function(tx, …)` into `function(…)`, which runs it as `run` does, and a method
        `method(self, tx, …)` into `method(self, …)`. Write `@staticmethod` and `@classmethod` above it.

        If the first of the remaining arguments is a transaction, the function runs in that transaction: decorated
        functions compose.
        """
        place = transaction_place(function)
        check_function(function)

        @functools.wraps(function)
        def transacted(*args: Any, **kwargs: Any) -> Any:
            if len(args) > place and isinstance(args[place], Transaction):
                return function(*args, **kwargs)
            called = MethodType(function, args[0]) if place and args else function
            return self.run(called, *args[place:], **kwargs)

        return transacted

    # One call, one transaction

    @overload
    def get(self, table: str, key: bytes, codec: None = None) -> dict[bytes, bytes] | None: ...

    @overload
    def get(self, table: str, key: Any, codec: Literal["json"]) -> dict[str, Any] | None: ...

    @overload
    def get(self, table: str, key: Any, codec: type[RowT]) -> RowT | None: ...

    def get(self, table: str, key: Any, codec: Any = None) -> Any:
        """Return a row as of now, from a snapshot of its own; None if it does not exist."""
        with self.snapshot() as tx:
            return tx.table(table, codec).get(key)

    @overload
    def put(self, table: str, row: bytes, cells: Cells, codec: None = None) -> None: ...

    @overload
    def put(self, table: str, row: Mapping[str, Any], cells: None = None, *, codec: Literal["json"]) -> None: ...

    @overload
    def put(self, table: str, row: RowT, cells: None = None, *, codec: type[RowT]) -> None: ...

    def put(self, table: str, row: Any, cells: Any = None, codec: Any = None) -> None:
        """Set columns of a row in a transaction of its own, which is rerun on a conflict: `put(table, key, cells)`, or
        with a `codec` `put(table, row, codec=Account)`. Durable on return."""
        check_put(table, cells, codec)

        def put(tx: Transaction) -> None:
            if codec is None:
                tx.table(table).put(row, cells)
            else:
                tx.table(table, codec).put(row)

        self.run(put)

    @overload
    def scan(
        self,
        table: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        reverse: bool = False,
        codec: None = None,
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]: ...

    @overload
    def scan(
        self,
        table: str,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        codec: Literal["json"],
    ) -> Iterator[dict[str, Any]]: ...

    @overload
    def scan(
        self,
        table: str,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        codec: type[RowT],
    ) -> Iterator[RowT]: ...

    def scan(
        self,
        table: str,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        codec: Any = None,
    ) -> Iterator[Any]:
        """Iterate over rows as of now, from a snapshot of its own, which ends with the iteration. Arguments are as of
        `Table.scan`, or of `TypedTable.scan` with a `codec`."""
        first = b"" if start is None and codec is None else start
        tx = self.snapshot()
        try:
            rows = tx.table(table, codec).scan(first, stop, prefix=prefix, limit=limit, reverse=reverse)
        except BaseException:
            tx.rollback()
            raise
        return _until_over(tx, rows)

    # What changed

    def bookmark(self, *, keep_seconds: float | None = None) -> Bookmark:
        """Return the position after everything committed so far, as start or end for `changes`. With `keep_seconds` a
        durable lease keeps the history after it for that long, or until `release_bookmark`."""
        self._core.check_usable()
        mark, lease = self._core.driver.run(change_feed.draw_bookmark(self._core.leases, keep_seconds))
        if lease is not None:
            self._core.leases.keep(lease)
        return mark

    def release_bookmark(self, bookmark: Bookmark) -> None:
        """End the bookmark's lease: changes after it need not be kept."""
        self._core.check_usable()
        self._core.leases.end_of(change_feed.place(bookmark, "bookmark").start_ts)

    @overload
    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: None = None,
    ) -> Iterator[RowChange]: ...

    @overload
    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: Literal["json"],
    ) -> Iterator[TypedChange[dict[str, Any]]]: ...

    @overload
    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: type[RowT],
    ) -> Iterator[TypedChange[RowT]]: ...

    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: Any = None,
    ) -> Iterator[Any]:
        """Iterate over the changes of a table after `starting`, up to and including `ending` (None: now). There is one
        change per row and commit, ordered by row, then by commit. Applied in commit order, they turn the table's state
        at `starting` into that at `ending`.

        Both are bookmarks or timestamps; a bookmark finds changes faster than its timestamp alone. `SnapshotTooOld` if
        the changes are no longer kept.

        With a `codec` (as of `Transaction.table`) changes are `TypedChange`: the key's values, and the rows before and
        after as objects; `prefix` is values of the first key columns. Without it, `prefix` is
        bytes (a stored prefix) or, if the table has a schema, such values.
        """
        run = self._core.driver.run
        view = view_of(self._core.deployment.catalog, codec)
        scan = run(change_feed.begin_changes(self._core, table, starting, ending, prefix, view))
        return change_feed.Changes(table, lambda: run(change_feed.next_shown(self._core, scan, view)))

    @overload
    def watch(
        self,
        table: str,
        *,
        key: Any = None,
        prefix: Any = None,
        codec: None = None,
        **options: Unpack[WatchOptions],
    ) -> Watch[RowChange]: ...

    @overload
    def watch(
        self,
        table: str,
        *,
        key: Any = None,
        prefix: Any = None,
        codec: Literal["json"],
        **options: Unpack[WatchOptions],
    ) -> Watch[TypedChange[dict[str, Any]]]: ...

    @overload
    def watch(
        self,
        table: str,
        *,
        key: Any = None,
        prefix: Any = None,
        codec: type[RowT],
        **options: Unpack[WatchOptions],
    ) -> Watch[TypedChange[RowT]]: ...

    def watch(
        self,
        table: str,
        *,
        key: Any = None,
        prefix: Any = None,
        codec: Any = None,
        after: Bookmark | int | None = None,
        keep_seconds: float | None = None,
        max_wait_seconds: float | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> Watch[Any]:
        """Iterate over changes of a row, a key prefix or a whole table as they are committed, from now on or after a
        position (`after`). The iterator waits for changes. It ends after `max_wait_seconds` without a change (None:
        never), and may be iterated again. Changes since the last poll come in the order of `changes`. `codec`, `key`
        and `prefix` are as of `changes`.

        It polls every `poll_seconds`; in a folder each poll reads all keys of the prefix. Between polls it holds W back
        as an open transaction does. With `keep_seconds` a durable lease holds W, renewed until the watch is closed: a
        program that stops and continues from its `bookmark` within that time misses nothing; later it gets
        `SnapshotTooOld`. Without a lease, a program that handles the changes of one poll for longer than
        `max_transaction_age_seconds` gets `SnapshotTooOld` too.

        Any error, Ctrl-C included, ends the watch; every further step raises it again.
        """
        self._core.check_usable()
        watching = Watching[Any](
            self._core,
            table,
            key=key,
            prefix=prefix,
            codec=codec,
            after=after,
            keep_seconds=keep_seconds,
            max_wait_seconds=max_wait_seconds,
            poll_seconds=poll_seconds,
        )
        return Watch(watching, self._core.driver)

    # Tables

    @overload
    def create_table(
        self,
        name: str,
        columns: type | Mapping[str, Any],
        /,
        *,
        row_key: str | Iterable[str],
        mapping: Mapping[str, str | bytes] | None = None,
        conflict_level: ConflictLevel | str | None = None,
        if_not_exists: bool = False,
        split_keys: Sequence[bytes] = (),
        ttl_seconds: float | None = None,
    ) -> TableInfo: ...

    @overload
    def create_table(
        self,
        name: str,
        families: Iterable[str | bytes] = (DEFAULT_FAMILY,),
        *,
        conflict_level: ConflictLevel | str | None = None,
        if_not_exists: bool = False,
        split_keys: Sequence[bytes] = (),
        ttl_seconds: float | None = None,
    ) -> TableInfo: ...

    def create_table(
        self,
        name: str,
        families: Any = (DEFAULT_FAMILY,),
        *,
        row_key: str | Iterable[str] | None = None,
        mapping: Mapping[str, str | bytes] | None = None,
        conflict_level: ConflictLevel | str | None = None,
        if_not_exists: bool = False,
        split_keys: Sequence[bytes] = (),
        ttl_seconds: float | None = None,
    ) -> TableInfo:
        """Create a table. Durable on return. `Misuse` if the name is taken. `split_keys` (HBase): the row keys at which
        regions begin.

        `columns`, of a table with a schema: a class or a mapping, as of `set_schema`, with `row_key` and `mapping`.
        Columns without a `mapping` are in the family "d", as in a table that Spark creates. With `if_not_exists`, an
        existing table gets the schema as by `set_schema`.

        `families`, of a table without a schema: the names of its column families; by default one, "d".

        `conflict_level`: "cell" (transactions conflict on a column of a row) or "row" (on a row). None: the
        deployment's level (HBase: `pyomid init --conflict-level`), else "cell". `alter_table` changes it.

        `ttl_seconds`: a value expires this long after its commit: later snapshots do not see it, and compaction drops
        it. None: values are kept.
        """
        deployment = self._deployment
        options: dict[str, Any] = {
            "conflict_level": conflict_level,
            "if_not_exists": if_not_exists,
            "split_keys": split_keys,
            "ttl_seconds": ttl_seconds,
        }
        if isinstance(families, type | Mapping):
            self._core.forget_rules(check_table_name(name))
            return table_admin.create_typed_table(deployment, name, families, row_key, mapping, **options)
        if row_key is not None or mapping is not None:
            raise Misuse(
                f"table {name!r}: row_key and mapping need columns: give a class or a mapping of columns instead of "
                f"{families!r}",
                table=name,
            )
        return table_admin.create_table(deployment, name, families, **options)

    def alter_table(
        self, name: str, *, conflict_level: ConflictLevel | str | None = None, ttl_seconds: float | None = None
    ) -> TableInfo:
        """Change a table's conflict level or time to live while others use it. Durable on return. Transactions that
        began before the call and write the table abort. `Misuse` if the deployment has another level for all tables.

        `ttl_seconds`: as of `create_table`; it acts on existing values at once. 0: values no longer expire. Expired
        values stay expired.
        """
        deployment = self._deployment
        if conflict_level is None and ttl_seconds is None:
            raise Misuse(f"table {name!r}: nothing to change; give conflict_level or ttl_seconds", table=name)
        if conflict_level is not None:
            table_admin.new_level(deployment, name, conflict_level)  # refuses before anything changes
        self._core.forget_rules(name)
        if ttl_seconds is not None:
            found = table_admin.alter_ttl(deployment, name, ttl_seconds)
        if conflict_level is not None:
            found = table_admin.alter_level(deployment, name, conflict_level)
        return found

    def drop_table(self, name: str) -> None:
        """Drop the table with its rows. Open transactions that wrote to it abort. Their reads of it raise
        `SnapshotTooOld`, also if the table is created again."""
        deployment = self._deployment
        self._core.forget_rules(check_table_name(name))
        table_admin.drop_table(deployment, name)

    def tables(self) -> list[TableInfo]:
        """Return every table of the catalog, system tables included, sorted by name."""
        return self._deployment.catalog.tables()

    def table_info(self, name: str) -> TableInfo:
        """Return a table's catalog entry; `UnknownTable` names the nearest existing table."""
        return find_table(self._deployment.catalog, name)

    def table_schema(self, name: str) -> TableSchema | None:
        """Return the table's schema in the catalog, which Spark uses too; None if it has none."""
        return find_table(self._deployment.catalog, name).schema

    def set_schema(
        self,
        name: str,
        columns: type | Mapping[str, Any],
        *,
        row_key: str | Iterable[str] | None = None,
        mapping: Mapping[str, str | bytes] | None = None,
    ) -> TableSchema:
        """Give the table a schema, or add the columns that its schema lacks. Return the schema. Durable on return.

        `columns` is a dataclass, a TypedDict, or a mapping of names to types: `int` (long), `str`, `bytes`, `float`
        (double), `bool`, `date`, `datetime` (timestamp), `timedelta`, or Spark's name of a type, such as
        "decimal(10,2)" (in a class as `Annotated[Decimal, "decimal(10,2)"]`). `row_key`: the columns of the row key,
        each followed by " desc" if larger values come first; it never changes. `mapping`: "family:qualifier" of columns
        that are not stored under their name in the table's first family.
        """
        deployment = self._deployment
        self._core.forget_rules(name)
        return table_admin.give_schema(deployment, name, columns, row_key, mapping)

    def codec(self, table: str, codec: type[RowT]) -> Codec[RowT]:
        """Return the encoder and decoder of the row keys and rows of a table with a schema, for rows of this class."""
        return Codec(find_table(self._deployment.catalog, table), codec)

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
        """Change the columns of a table's schema, all at once, without touching its data. Durable on return.

        `rename`: name → new name. `drop`: the values are never visible again, under any name. `widen`: column → type:
        byte, short, integer → a longer type, float → double, a decimal → more digits of the same scale. `add` (with
        `mapping`): as of `set_schema`. `order`: new names in order; the others follow. Columns of the row key can
        only be renamed and ordered. Transactions that began before the call and write the table abort.
        """
        deployment = self._deployment
        self._core.forget_rules(name)
        return table_admin.alter_columns(
            deployment, name, rename=rename, drop=drop, widen=widen, add=add, order=order, mapping=mapping
        )

    def create_index(self, table: str, name: str, columns: Iterable[str]) -> TableInfo:
        """Build an index on columns of a table with a schema, while others use the table. Later transactions may read
        it (`TypedTable.lookup`), and the client's transactions maintain it. Idempotent; also finishes an interrupted
        build.

        Transactions that began before the call and write the table abort, and so do transactions that write a row
        while the build adds it. A row without a value in one of the columns is not in the index. Spark's writes to the
        table are refused.
        """
        deployment = self._deployment
        self._core.forget_rules(table)
        return indexes.create_index(deployment, self.run, table, name, columns)

    def drop_index(self, table: str, name: str) -> None:
        """Drop an index with its rows. Also finishes an interrupted drop."""
        deployment = self._deployment
        self._core.forget_rules(table)
        indexes.drop_index(deployment, table, name)

    # The whole

    def status(self) -> DatabaseStatus:
        """Return the state of TSO, tables and background work."""
        from pyomid.database.foreign_tables import named_marks

        deployment = self._deployment
        return DatabaseStatus(
            tso=deployment.tso.status(),
            tables=tuple(deployment.catalog.tables()),
            commit_table_entries=deployment.commit_table.count(),
            background=self._core.background.counters,
            unregistered=named_marks(deployment),
            tables_unconfirmed=TABLES_UNCONFIRMED in deployment.catalog.unknown_tables(),
        )

    def compact(
        self,
        tables: str | Sequence[str] | None = None,
        *,
        grace_seconds: float = 0.0,
        progress: Progress | None = None,
    ) -> Compaction:
        """Compact these tables (all) up to the published low watermark W, region by region: write missing shadow cells,
        drop orphans and versions that no snapshot above W needs, and record W for the region.

        Readers, writers and other compactions may run at the same time. The returned report prints as a table and says
        what holds W back. `grace_seconds`: for stores with Java clients, which do not check W: compact by W as it was
        that long ago; the call waits until that is known. A folder compacts by itself; Spark runs a task for each
        region (`SparkDatabase.compact`). Without `tables` it calls `expire` first. `progress(table, rows, None)` is
        called while it works.
        """
        from pyomid.database.upkeep import jobs as upkeep

        if tables is None:
            self.expire()
        run, cache = self._core.driver.run, self._core.commit_cache
        return upkeep.compact(self._core.deployment, run, cache, tables, grace_seconds=grace_seconds, progress=progress)

    def expire(self) -> None:
        """Shrink idempotency keys older than `runIdDays` to hashes; their ids stay used. A folder's upkeep does
        it by itself. Values of a table with a time to live expire without a call."""
        from pyomid.database.upkeep.expire import expire_keys

        self._core.check_usable()
        if days := self.settings.run_id_days:
            expire_keys(self, 86_400 * days)

    def sanitize(self) -> Sanitising:
        """Delete commit-table entries that no reader needs, up to the watermark to which every table is compacted; only
        compaction records older than `commitRetrySeconds` count. `Misuse` if transactions committed to an unregistered
        table.

        The returned report prints as a table and says what holds sanitizing back, and when another run helps.
        """
        from pyomid.database.upkeep import jobs as upkeep

        return upkeep.sanitize(self._deployment, self._core.driver.run)

    def verify(self, tables: str | Sequence[str] | None = None, *, progress: Progress | None = None) -> Verification:
        """Read every stored cell of these tables (all) and every commit-table entry, and report violated invariants;
        the report's `ok` is True if there are none, and its text ends with the verdict. Writes nothing; others may
        write meanwhile. `progress(table, rows, None)` is called while it reads."""
        from pyomid.database.upkeep.jobs import chosen_tables, unless_dropped
        from pyomid.database.upkeep.verification import verify

        deployment = self._deployment
        report = verify(deployment, tables, progress)
        for info in chosen_tables(deployment.catalog, tables):
            with unless_dropped(deployment.catalog, info.name, info.generation, tables):
                report.violations += self._wrong_index_rows(info.name)
        return report

    def _wrong_index_rows(self, table: str) -> list[str]:
        """If an index is dropped meanwhile, check the remaining indexes again."""
        catalog = self._core.deployment.catalog
        while True:
            indexes = find_table(catalog, table).indexes
            if not indexes:
                return []
            try:
                with self.snapshot(lease=self._core.deployment.tso.extended) as tx:
                    steps = tx.table(table)._table.wrong_index_rows()
                    return self._core.driver.run(steps)
            except (UnknownTable, ConflictError):
                if find_table(catalog, table).indexes == indexes:
                    raise

    def backup(self, destination: str | os.PathLike[str], *, since: str | os.PathLike[str] | None = None) -> Backup:
        """Copy the database as of one moment, while others read and write: from a folder into an absent or empty
        folder; over HBase into snapshots of its tables, whose names begin with `destination`.

        `since`: the folder of an earlier backup of this database. The new backup holds the differences from it and is
        restored together with it and its predecessors: keep all of these unchanged.

        Durable on return. The backup holds all transactions committed before the call. In a folder it may also hold
        later ones, each as a whole. Only `pyomid.restore` reads a backup. In a folder, a fork during the backup waits
        for up to 5 s, as other calls do meanwhile, and the child cannot open the folder.
        """
        deployment = self._deployment
        if deployment.back_up is None:
            raise Misuse("only a database in a folder or over HBase can be backed up")
        if deployment.foreign is None:
            before = self.begin(read_only=True)
            before.rollback()
            return deployment.back_up(destination, BackupMoment(before.start_ts), since)
        from pyomid.database.upkeep.backups import moment_of

        begun = deployment.tso.begin()
        try:
            lease = self._core.leases.grant(begun.start_ts, self.settings.lease_seconds)
            try:
                return deployment.back_up(destination, moment_of(self, begun.start_ts, begun.epoch), since)
            finally:
                self._core.leases.end(lease)
        finally:
            begun.end()

    def export_parquet(
        self,
        destination: str | os.PathLike[str],
        tables: str | Sequence[str] | None = None,
        *,
        at: At | None = None,
    ) -> dict[str, int]:
        """Write these tables (all except system tables), as of one snapshot, as Parquet files into an absent or empty
        folder. Return the number of rows of each. `at`: a past snapshot, as for `snapshot`.

        The file of a table with a schema has its columns with their types. Other files have `key`, `column` and
        `value`, one row for each cell. Needs pyarrow.
        """
        from pyomid.database.tables.parquet import export_tables
        from pyomid.database.upkeep.jobs import chosen_tables

        infos = chosen_tables(self._deployment.catalog, tables)
        if tables is None:
            infos = [info for info in infos if not table_admin.is_system(info.name)]
        return export_tables(self, destination, infos, at)

    def import_parquet(
        self,
        source: str | os.PathLike[str],
        tables: str | Sequence[str] | None = None,
        *,
        over: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, int]:
        """Import an export (or one Parquet file that fits its table) in transactions of a bounded number of rows.
        Return the number of rows of each table.

        Missing tables are created as they were. A table with rows raises `Misuse` unless `over` is set; then rows with
        equal keys are overwritten. An import is not one transaction: an error that interrupts it gets a note with its
        progress. `progress(table, rows, rows of the file)` is called after each transaction. Needs pyarrow.
        """
        from pyomid.database.tables.parquet import import_tables

        self._core.check_usable()
        names = [tables] if isinstance(tables, str) else tables
        return import_tables(self, source, names, over=over, progress=progress)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until every finished transaction is completed. False on timeout."""
        self._core.check_usable()
        return self._core.background.drain(timeout_s)

    def close(self) -> None:
        """Complete finished transactions and close the connection. A second call does nothing, or finishes an
        interrupted first call."""
        self._core.close()

    def __enter__(self) -> Database:
        self._core.check_usable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Database {self.url}{' closed' if self._core.is_closed else ''}>"


def check_put(table: str, cells: object, codec: object) -> None:
    """Check which of its two forms a call of `Database.put` has."""
    if codec is None and cells is None:
        raise MisuseType(f"table {table!r}: put takes either a key and its cells, or a row and its codec", table=table)
    if codec is not None and cells is not None:
        raise MisuseType(f"table {table!r}: put with a codec takes a row and no cells", table=table)


def _until_over(transaction: Transaction, rows: Iterator[T]) -> Iterator[T]:
    """Yield the rows of a scan; end its transaction with them."""
    with transaction:
        yield from rows
