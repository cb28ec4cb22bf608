"""`Database`, the class of the object that `pyomid.connect` returns.

It is thread-safe: threads share a database, but each thread begins its own transactions. A forked child must connect
again (C5).
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
    """The state of the TSO, the tables and the background work, as `pyomid status` prints it."""

    tso: Status
    tables: tuple[TableInfo, ...]
    commit_table_entries: int
    background: BackgroundCounters
    unregistered: Mapping[int, str] = field(default_factory=dict)
    """Tables that commits named although the catalog does not list them, as id → name. The name is empty if no table of
    the store has that id. Such tables block `sanitize`."""
    tables_unconfirmed: bool = False
    """True if a Java TSO led and no operator has confirmed the tables since; this also blocks `sanitize`."""


class Database(Handle):
    """An open database, returned by `pyomid.connect`. Threads may share a database; a forked child process must connect
    again."""

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
        """The URL that was passed to `connect`."""
        return self._core.url

    @property
    def settings(self) -> Settings:
        """The settings of this connection: the options that were passed to `connect`, and the defaults of all other
        options."""
        return self._core.settings

    @property
    def _deployment(self) -> Deployment:
        """The deployment. Raises `Misuse` after `close`, and in a forked child."""
        self._core.check_usable()
        return self._core.deployment

    # Transactions

    def begin(
        self, *, not_before: int = 0, lease: bool = False, read_only: bool = False, at: At | None = None
    ) -> Transaction:
        """Begin a transaction and return it. The transaction's snapshot contains everything committed so far, and its
        start timestamp is above `not_before`.

        With `lease`, the transaction may outlive `max_transaction_age_seconds`: the client renews a lease until the
        transaction ends. Without a lease, a transaction older than `max_transaction_age_seconds` gets `SnapshotTooOld`
        at a read or `ConflictError` at its commit. With `read_only`, writes and claims raise `Misuse`.

        `at` selects a past snapshot, which is read-only. `at` is a commit timestamp, a start timestamp, a bookmark, a
        datetime with a time zone, or the text form of such a value. The snapshot contains everything committed at or
        before `at`; for a datetime, it contains everything acknowledged by that time. The transaction's property
        `moment` is the exact end of the snapshot, which may be slightly later than the datetime. Raises
        `SnapshotTooOld` if the database no longer keeps the history back to `at` (option `retention`). With `lease`,
        the past snapshot stays readable until the transaction ends.
        """
        core = self._core
        made = partial(TransactionCore, core, read_only=read_only)
        return Transaction(core.driver.run(core.begin(made, not_before, lease=lease, at=at)))

    def snapshot(self, *, lease: bool = False, at: At | None = None) -> Transaction:
        """Begin a read-only transaction and return it, like `begin(read_only=True)`."""
        return self.begin(lease=lease, read_only=True, at=at)

    def run(
        self,
        function: Callable[Concatenate[Transaction, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call `function(tx, …)` in a new transaction, commit, and return the result. On `ConflictError`, rerun the
        function in another new transaction.

        The setting `retries` is the maximum number of reruns. The setting `retry_backoff_ms_max` is the maximum length
        of the random pause before a rerun. If the last attempt conflicts, the call raises the `ConflictError` of that
        attempt. A rerun repeats the function's effects outside the database.
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
        """Run `function` as `run` does. Of all runs with the same `run_id`, in any process, at most one ever commits.

        If a run with this id has already committed, return an `AlreadyDone`, with the result of the committed run if
        that result was stored. If the reply to a commit is lost, the next attempt looks up the outcome. The call raises
        `OutcomeUnknown` only if this lookup also fails, because no TSO replies or no attempts are left. After
        `OutcomeUnknown`, call `run_once` again with the same id. The table PYOMID_MARKERS stores the id; after
        `runIdDays`, it stores only a hash of the id.
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
        """Decorate `function(tx, …)`. A call `function(…)` of the decorated function runs it in a transaction, as `run`
        does. A decorated method `method(self, tx, …)` is called as `method(self, …)`. Write `@staticmethod` or
        `@classmethod` above this decorator.

        If the caller passes a transaction as the first argument (in a method, the first argument after `self`), the
        function runs in that transaction. So one decorated function can call another in the same transaction.
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
        """Return the current row, read in a new snapshot; None if the row does not exist."""
        with self.snapshot() as tx:
            return tx.table(table, codec).get(key)

    @overload
    def put(self, table: str, row: bytes, cells: Cells, codec: None = None) -> None: ...

    @overload
    def put(self, table: str, row: Mapping[str, Any], cells: None = None, *, codec: Literal["json"]) -> None: ...

    @overload
    def put(self, table: str, row: RowT, cells: None = None, *, codec: type[RowT]) -> None: ...

    def put(self, table: str, row: Any, cells: Any = None, codec: Any = None) -> None:
        """Set columns of a row in a new transaction, which is rerun on a conflict. Call it as `put(table, key, cells)`,
        or, with a codec, as `put(table, row, codec=Account)`. The write is durable when the call returns."""
        check_put(table, cells, codec)

        def put(tx: Transaction) -> None:
            if codec is None:
                tx.table(table).put(row, cells)
            else:
                tx.table(table, codec).put(row)

        self.run(put)

    @overload
    def delete(self, table: str, key: bytes, codec: None = None) -> None: ...

    @overload
    def delete(self, table: str, key: Any, codec: Any) -> None: ...

    def delete(self, table: str, key: Any, codec: Any = None) -> None:
        """Delete a row in a new transaction, which is rerun on a conflict. The delete is durable when the call
        returns."""
        self.run(lambda tx: tx.table(table, codec).delete(key))

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
        """Iterate over the current rows of a table in a new snapshot, which ends with the iteration. `start`, `stop`,
        `prefix`, `limit` and `reverse` work as in `Table.scan`, or, with a `codec`, as in `TypedTable.scan`."""
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
        """Return a bookmark that lies after everything committed so far. Pass it to `changes` as `starting` or
        `ending`. With `keep_seconds`, a durable lease keeps the history after the bookmark. The lease ends after
        `keep_seconds`, or earlier if the program calls `release_bookmark`."""
        self._core.check_usable()
        mark, lease = self._core.driver.run(change_feed.draw_bookmark(self._core.leases, keep_seconds))
        if lease is not None:
            self._core.leases.keep(lease)
        return mark

    def release_bookmark(self, bookmark: Bookmark) -> None:
        """End the bookmark's lease, so compaction may remove the history after the bookmark."""
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
        """Iterate over the changes of a table after `starting`, up to and including `ending` (None: now). The iterator
        yields one change per row and commit, ordered by row, then by commit. Applied in commit order, the changes turn
        the table's state at `starting` into its state at `ending`.

        `starting` and `ending` are bookmarks or timestamps. A search that starts at a bookmark is faster than one that
        starts at a timestamp. Raises `SnapshotTooOld` if the database no longer keeps the changes.

        With a `codec` (see `Transaction.table`), each change is a `TypedChange`, which contains the key values and the
        row objects before and after the commit. With a `codec`, `prefix` gives values of the first key columns. Without
        a `codec`, `prefix` is a prefix of the stored keys (bytes) or, if the table has a schema, values of the first
        key columns.
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
        """Return an iterator over the changes of one row (`key`), of all rows with a key prefix (`prefix`), or of a
        whole table. The iterator waits for changes and returns them as they are committed, beginning now or after the
        position `after`. The iterator ends after `max_wait_seconds` without a change, and can then be iterated again.
        If `max_wait_seconds` is None, the iterator never ends. The changes that one poll finds have the same order as
        in `changes`. `codec` and `prefix` have the same meaning as in `changes`; `key` is a whole key in the same form
        as `prefix`.

        The watch polls every `poll_seconds`; in a folder, each poll reads all keys of the prefix. Between polls the
        watch holds back the low watermark W, as an open transaction does. With `keep_seconds`, a durable lease holds W
        back instead; the client renews the lease until the watch is closed. A program that stops, and continues from
        the watch's `bookmark` within `keep_seconds`, misses no changes. A program that continues after a longer pause
        than `keep_seconds` may get `SnapshotTooOld`. Without `keep_seconds`, a program also gets `SnapshotTooOld` if it
        spends more than `max_transaction_age_seconds` on the changes of one poll.

        Any error ends the watch, and every further step raises the same error. An interrupt (Ctrl-C) closes the watch.
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
        """Create a table and return its catalog entry. The table is durable when the call returns. Raises `Misuse` if
        the name is taken. Over HBase, `split_keys` are the row keys at which new regions begin.

        If the second argument is a class or a mapping, it gives the table a schema: `create_table("orders", Order,
        row_key="id")`. The schema, `row_key` and `mapping` have the same form as `columns`, `row_key` and `mapping` of
        `set_schema`. Columns without a `mapping` are stored in the family "d", as in a table that Spark creates. With
        `if_not_exists`, the call gives an existing table this schema, as `set_schema` does.

        If the second argument is a list of names, or is omitted, the table has no schema. The list (`families`) names
        the table's column families, by default only "d".

        With `conflict_level` "cell", two overlapping transactions conflict if they write the same column of a row; with
        "row", they conflict if they write the same row. The default is the deployment's level (over HBase, `pyomid init
        --conflict-level` sets it), or "cell" if the deployment has no level. `alter_table` can change a table's level.

        A value expires `ttl_seconds` after its commit: later snapshots do not see the value, and compaction drops it.
        If `ttl_seconds` is None, values never expire.
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
                f"table {name!r}: row_key and mapping need columns; instead of {families!r}, give a class or a "
                "mapping of columns",
                table=name,
            )
        return table_admin.create_table(deployment, name, families, **options)

    def alter_table(
        self, name: str, *, conflict_level: ConflictLevel | str | None = None, ttl_seconds: float | None = None
    ) -> TableInfo:
        """Change a table's conflict level or time to live while others use the table, and return its catalog entry. The
        change is durable when the call returns. A transaction that began before the call and writes to the table
        aborts. Raises `Misuse` if the deployment prescribes a different conflict level for all tables.

        `ttl_seconds` has the same meaning as in `create_table`, and applies to existing values at once. With 0, values
        no longer expire. Values that have already expired stay expired.
        """
        deployment = self._deployment
        if conflict_level is None and ttl_seconds is None:
            raise Misuse(f"table {name!r}: nothing to change; give conflict_level or ttl_seconds", table=name)
        if conflict_level is not None:
            table_admin.new_level(deployment, name, conflict_level)  # raises before anything changes
        self._core.forget_rules(name)
        if ttl_seconds is not None:
            found = table_admin.alter_ttl(deployment, name, ttl_seconds)
        if conflict_level is not None:
            found = table_admin.alter_level(deployment, name, conflict_level)
        return found

    def drop_table(self, name: str) -> None:
        """Drop the table and its rows. An open transaction that wrote to the table aborts when it commits. Reads of the
        table by open transactions raise `SnapshotTooOld`, even if the table is created again."""
        deployment = self._deployment
        self._core.forget_rules(check_table_name(name))
        table_admin.drop_table(deployment, name)

    def tables(self) -> list[TableInfo]:
        """Return every table of the catalog, system tables included, sorted by name."""
        return self._deployment.catalog.tables()

    def table_info(self, name: str) -> TableInfo:
        """Return a table's catalog entry. If the table does not exist, the message of `UnknownTable` suggests the most
        similar table name."""
        return find_table(self._deployment.catalog, name)

    def table_schema(self, name: str) -> TableSchema | None:
        """Return the table's schema from the catalog, or None if the table has no schema. Spark uses the same
        schema."""
        return find_table(self._deployment.catalog, name).schema

    def set_schema(
        self,
        name: str,
        columns: type | Mapping[str, Any],
        *,
        row_key: str | Iterable[str] | None = None,
        mapping: Mapping[str, str | bytes] | None = None,
    ) -> TableSchema:
        """Give the table a schema, or add the columns that its schema lacks, and return the schema. The change is
        durable when the call returns.

        `columns` is a dataclass, a TypedDict, or a mapping from column names to types. A type is `int` (long), `str`,
        `bytes`, `float` (double), `bool`, `date`, `datetime` (timestamp), `timedelta`, or the name of a Spark type,
        such as "decimal(10,2)". In a class, annotate the field with the name: `Annotated[Decimal, "decimal(10,2)"]`.
        `row_key` names the columns of the row key; " desc" after a name puts larger values first. Later calls cannot
        choose other columns for the row key. By default, a column is stored under its own name in the table's first
        family. To store a column elsewhere, give the column's "family:qualifier" in `mapping`.
        """
        deployment = self._deployment
        self._core.forget_rules(name)
        return table_admin.give_schema(deployment, name, columns, row_key, mapping)

    def codec(self, table: str, codec: type[RowT]) -> Codec[RowT]:
        """Return a `Codec`, which converts between row objects of this class and the stored keys and rows of a table.
        The table must have a schema."""
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
        """Change the columns of a table's schema atomically, without rewriting data, and return the schema. The change
        is durable when the call returns.

        `rename` maps current column names to new names. `drop` names the columns to drop; their values never become
        visible again, under any column name. `widen` maps column names to wider types. A byte, short or integer can
        become a longer integer type, a float can become a double, and a decimal can get more digits with the same
        scale. `add` and `mapping` describe new columns, in the form of `columns` and `mapping` of `set_schema`. `order`
        lists the columns that come first, and uses the new names; the other columns follow. Columns of the row key can
        only be renamed and reordered. A transaction that began before the call and writes to the table aborts.
        """
        deployment = self._deployment
        self._core.forget_rules(name)
        return table_admin.alter_columns(
            deployment, name, rename=rename, drop=drop, widen=widen, add=add, order=order, mapping=mapping
        )

    def create_index(self, table: str, name: str, columns: Iterable[str]) -> TableInfo:
        """Build an index on columns of a table with a schema, and return the table's catalog entry. Other clients can
        use the table during the build. Transactions that begin after the call can read the index (`TypedTable.lookup`),
        and the transactions of every client keep the index up to date. The call is idempotent, and also finishes an
        interrupted build.

        A transaction that began before the call and writes to the table aborts. If a transaction writes a row while the
        build adds the row to the index, either the transaction or the current step of the build aborts. The build
        retries an aborted step. The index omits every row that has no value in one of the indexed columns. Spark cannot
        write to a table with an index.
        """
        deployment = self._deployment
        self._core.forget_rules(table)
        return indexes.create_index(deployment, self.run, table, name, columns)

    def drop_index(self, table: str, name: str) -> None:
        """Drop an index of a table, and delete the stored rows of the index. The call also finishes an interrupted
        drop."""
        deployment = self._deployment
        self._core.forget_rules(table)
        indexes.drop_index(deployment, table, name)

    # The whole

    def status(self) -> DatabaseStatus:
        """Return the state of the TSO, the tables and the background work."""
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
        """Compact `tables` (by default all) up to the published low watermark W, and return a report. In each region,
        the call writes missing shadow cells, deletes orphans, deletes versions that no snapshot above W needs, and then
        records W.

        Readers, writers and other compactions may run at the same time. The report prints as a table, and names what
        keeps W from advancing. Set `grace_seconds` if Java clients use the store, because they do not check W. The call
        then reads W, waits `grace_seconds`, and compacts up to the W that it read. Without `tables`, the call runs
        `expire` first. The call reports its progress through `progress(table, rows, None)`. A folder is also compacted
        in the background, without this call. `SparkDatabase.compact` runs a Spark task for each region, and does not
        run `expire`.
        """
        from pyomid.database.upkeep import jobs as upkeep

        if tables is None:
            self.expire()
        run, cache = self._core.driver.run, self._core.commit_cache
        return upkeep.compact(self._core.deployment, run, cache, tables, grace_seconds=grace_seconds, progress=progress)

    def expire(self) -> None:
        """Replace each idempotency key older than `runIdDays` with a hash. A second run with the same run id still
        cannot commit. The background upkeep of a folder replaces old keys automatically. Values of a table with a time
        to live expire without this call."""
        from pyomid.database.upkeep.expire import expire_keys

        self._core.check_usable()
        if days := self.settings.run_id_days:
            expire_keys(self, 86_400 * days)

    def sanitize(self) -> Sanitising:
        """Delete commit-table entries that no reader needs, and return a report. The call deletes entries up to the
        highest watermark to which every table has been compacted. The call ignores compaction records younger than
        `commitRetrySeconds`. Raises `Misuse` if a transaction has committed to a table that the catalog does not list.

        The report prints as a table. The report names what prevents further deletes, and says when another call can
        delete more entries.
        """
        from pyomid.database.upkeep import jobs as upkeep

        return upkeep.sanitize(self._deployment, self._core.driver.run)

    def verify(self, tables: str | Sequence[str] | None = None, *, progress: Progress | None = None) -> Verification:
        """Read every stored cell of `tables` (by default all) and every commit-table entry, and return a report of
        violated invariants. The report's `ok` is True if no invariant is violated, and the report's text ends with the
        verdict. The call writes nothing, and transactions may write during the call. The call reports its progress
        through `progress(table, rows, None)`."""
        from pyomid.database.upkeep.jobs import chosen_tables, unless_dropped
        from pyomid.database.upkeep.verification import verify

        deployment = self._deployment
        report = verify(deployment, tables, progress)
        for info in chosen_tables(deployment.catalog, tables):
            with unless_dropped(deployment.catalog, info.name, info.generation, tables):
                report.violations += self._wrong_index_rows(info.name)
        return report

    def _wrong_index_rows(self, table: str) -> list[str]:
        """Return the errors of a table's indexes. If an index is dropped meanwhile, check the remaining indexes
        again."""
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
        """Back up the database as of one moment while others read and write, and return a description of the backup.
        The backup of a folder is a copy in `destination`, a new or empty folder. Over HBase, the backup consists of
        HBase snapshots of the tables; the names of the snapshots begin with `destination`.

        `since` is the folder of an earlier backup of this database. The new backup then holds only the differences from
        the earlier backup. A restore needs the new backup, the earlier backup, and all backups on which the earlier
        backup depends. Keep all of these folders unchanged.

        The backup is durable when the call returns. The backup holds all transactions committed before the call. The
        backup of a folder may also hold transactions that committed during the call, each of them complete. Only
        `pyomid.restore` reads a backup. If the process forks while it backs up a folder, the fork and other calls wait
        up to 5 s for the backup to end. If the backup takes longer, the child process cannot open the folder.
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
        """Export `tables` (by default all except system tables) as Parquet files into a new or empty folder. The call
        reads all tables in one snapshot. Return a dict from each table's name to the number of rows in the table's
        file. `at` selects a past snapshot, as in `snapshot`.

        If a table has a schema, the table's file has the same columns and types. The file of a table without a schema
        has the columns `key`, `column` and `value`, with one row for each cell. The call needs pyarrow.
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
        """Import an export, or one Parquet file whose columns fit the table, in several transactions of limited size.
        Return a dict from each table's name to the number of rows imported from the table's file.

        The call creates tables that do not exist, with the families, conflict level and schema that the export
        recorded. Raises `Misuse` if a table already has rows. With `over`, the import overwrites rows that have the
        same key. An import is not one transaction. If an error interrupts the import, a note on the error says how many
        rows are committed. After each transaction the import calls `progress(table, rows, rows of the file)`. The call
        needs pyarrow.
        """
        from pyomid.database.tables.parquet import import_tables

        self._core.check_usable()
        names = [tables] if isinstance(tables, str) else tables
        return import_tables(self, source, names, over=over, progress=progress)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until the client has done its background work for all transactions that have ended. Return False on
        timeout."""
        self._core.check_usable()
        return self._core.background.drain(timeout_s)

    def close(self) -> None:
        """Do the background work for transactions that have ended, then close the connection. A second call does
        nothing, or completes a first call that was interrupted."""
        self._core.close()

    def __enter__(self) -> Database:
        self._core.check_usable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Database {self.url}{' closed' if self._core.is_closed else ''}>"


def check_put(table: str, cells: object, codec: object) -> None:
    """Raise `MisuseType` unless a call of `Database.put` has one of its two forms."""
    if codec is None and cells is None:
        raise MisuseType(f"table {table!r}: put takes either a key and its cells, or a row and its codec", table=table)
    if codec is not None and cells is not None:
        raise MisuseType(f"table {table!r}: put with a codec takes a row and no cells", table=table)


def _until_over(transaction: Transaction, rows: Iterator[T]) -> Iterator[T]:
    """Yield the rows of a scan, then end its transaction."""
    with transaction:
        yield from rows
