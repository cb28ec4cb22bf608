"""The asyncio database, which runs the routines of the blocking client. Its transactions are in `async_transaction`,
its tables in `tables.async_tables`.

    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})

Begin and commit are awaited on an asyncio connection. Calls that block on a disk or a server run in a few threads; over
HBase, small writes of many tasks share one call (`async_driver`). A transaction accepts one call at a time: a second,
concurrent call raises `Misuse`. A cancelled read is harmless, unless it waits for writes in flight (over HBase); then
the transaction becomes rollback-only, as after a cancelled flush. If a commit is cancelled, its outcome is unknown.
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from types import MethodType
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from pyomid.async_blocks import AsyncBlock
from pyomid.config import Settings
from pyomid.coroutines import Effect
from pyomid.crashpoints import crash_point
from pyomid.daemon_threads import DaemonThreads, in_daemon_thread
from pyomid.database import change_feed
from pyomid.database.async_driver import AsyncDriver, AsyncHandler, SharedWrites
from pyomid.database.async_transaction import AsyncTransaction, Beginning, OneCallAtATime
from pyomid.database.database import Database, OwnerT, TransactionalMethod, check_put
from pyomid.database.idempotency import AlreadyDone, check_run_id
from pyomid.database.lease_keeper import Lease
from pyomid.database.retry import check_awaitable, check_callable, run_transaction, transaction_place
from pyomid.database.row_changes import RowChange, TypedChange, view_of
from pyomid.database.tables.table import Cells
from pyomid.database.tables.typed import RowT
from pyomid.database.transaction import TransactionCore
from pyomid.database.validation import Handle
from pyomid.database.watch import POLL_SECONDS, Watching, WatchOptions
from pyomid.ports import AsyncTso
from pyomid.protocol.effects import Begin, PackCommit, SendCommit, WriteCells
from pyomid.rows.schema import DEFAULT_FAMILY
from pyomid.types import At, BeginReply, Bookmark, CommitReply, ConflictLevel, TableInfo

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
ChangeT = TypeVar("ChangeT")

TSO_THREADS: Final = 16
"""Maximum number of concurrent requests over a blocking session, which pipelines them on one connection."""

STORE_THREADS: Final = 4
"""Maximum number of concurrent store calls: some wait for a disk while others decode."""

REMOTE_STORE_THREADS: Final = 16
"""Maximum number of concurrent store calls if they wait for servers."""


class AsyncTransactional(Protocol[P, R_co]):
    """A function decorated with `AsyncDatabase.transactional`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    @overload
    def __call__(
        self, transaction: AsyncTransaction, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R_co]: ...


class AsyncWatch(AsyncBlock, Handle, Generic[ChangeT]):
    """The asyncio version of `pyomid.Watch`; iterate over it with `async for`. Returned by `AsyncDatabase.watch`."""

    def __init__(self, watching: Watching[ChangeT], driver: AsyncDriver) -> None:
        self._watching = watching
        self._driver = driver

    @property
    def bookmark(self) -> Bookmark | None:
        """The position of the watch, or None before the watch begins; see `Watch.bookmark`."""
        return self._watching.bookmark

    def __aiter__(self) -> AsyncWatch[ChangeT]:
        return self

    async def __anext__(self) -> ChangeT:
        while (change := self._watching.take()) is None:
            if not await self._driver.run(self._watching.fill()):
                raise StopAsyncIteration
        return change

    def close(self) -> None:
        """Close the watch; see `Watch.close`."""
        self._watching.close()

    def __repr__(self) -> str:
        return f"<AsyncWatch {self._watching.shown}>"

    async def __aenter__(self) -> AsyncWatch[ChangeT]:
        await self._driver.run(self._watching.begin())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _in_thread(
    method: Callable[Concatenate[Database, P], R],
) -> Callable[Concatenate[AsyncDatabase, P], Coroutine[Any, Any, R]]:
    """Return a method of `AsyncDatabase` that runs this method of `Database` in a thread."""

    @functools.wraps(method)
    async def awaited(self: AsyncDatabase, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._driver.in_thread(partial(method, self._blocking, *args, **kwargs))

    return awaited


class AsyncDatabase(AsyncBlock, Handle):
    """The asyncio version of `Database`, returned by `pyomid.aio.connect`. Methods for tables, schemas and maintenance,
    such as `create_table` and `compact`, run the method of `Database` with the same name in a thread.

    An `AsyncDatabase` contains a blocking `Database`, which manages tables and completes transactions. Begin and commit
    requests use a separate asyncio session with the TSO. All other requests to the TSO run in threads, over the session
    of the blocking `Database`. If there is no asyncio session, begin and commit requests also use the blocking session
    in threads.
    """

    def __init__(self, database: Database, session: AsyncTso | None = None) -> None:
        self._blocking = database
        self._core = core = database._core
        self._session = session
        self._tso_threads = DaemonThreads(TSO_THREADS, "pyomid-tso")
        store = core.deployment.store
        store_threads = REMOTE_STORE_THREADS if store.capabilities.shared_writes else STORE_THREADS
        self._store_threads = DaemonThreads(store_threads, "pyomid-store")
        awaited: dict[type[Effect[Any]], AsyncHandler] = {} if session is None else _handlers(session)
        if store.capabilities.packs_commits:
            awaited[PackCommit] = self._pack_commit
        if store.capabilities.shared_writes:
            awaited[WriteCells] = SharedWrites(store, self._store_threads).write
        self._driver = AsyncDriver(
            core.driver, awaited, tso_threads=self._tso_threads, store_threads=self._store_threads
        )

    async def _pack_commit(self, effect: PackCommit) -> bytes:
        """Pack a commit on the event loop, or in a thread if a new column must be written first."""
        pack = partial(
            self._core.deployment.store.pack_commit,
            effect.start_ts,
            effect.branches,
            effect.changes,
            claims_all=effect.claims_all,
            claims_tables=effect.claims_tables,
        )
        return pack(at_once=True) or await self._driver.in_thread(pack)

    @property
    def url(self) -> str:
        """The URL that was passed to `connect`."""
        return self._core.url

    @property
    def settings(self) -> Settings:
        """The settings of this connection; see `Database.settings`."""
        return self._core.settings

    def begin(
        self, *, not_before: int = 0, lease: bool = False, read_only: bool = False, at: At | None = None
    ) -> Beginning:
        """Begin a transaction; see `Database.begin`. Write `async with db.begin() as tx` or `tx = await db.begin()`."""
        self._core.check_usable()
        return Beginning(self._begin(not_before, lease=lease, read_only=read_only, at=at))

    async def _begin(self, not_before: int, *, lease: bool, read_only: bool, at: At | None) -> AsyncTransaction:
        made = partial(self._made, read_only=read_only)
        core = await self._driver.run(self._core.begin(made, not_before, lease=lease, at=at))
        return AsyncTransaction(core, self._driver)

    def snapshot(self, *, lease: bool = False, at: At | None = None) -> Beginning:
        """Begin a read-only transaction; see `Database.snapshot`. Write `async with db.snapshot() as tx`."""
        return self.begin(lease=lease, read_only=True, at=at)

    async def run(
        self,
        function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run an `async def` function in a new transaction and return the function's result; see `Database.run`."""
        return cast(R, await self._run(None, function, *args, **kwargs))

    async def run_once(
        self,
        run_id: str,
        function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        """Run an `async def` function in a new transaction. At most one transaction with this `run_id` ever commits;
        see `Database.run_once`."""
        return await self._run(check_run_id(run_id), function, *args, **kwargs)

    async def _run(
        self,
        run_id: str | None,
        function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        check_callable(function)

        def body(transaction: TransactionCore) -> Awaitable[R]:
            handle = AsyncTransaction(transaction, self._driver)
            return check_awaitable(function(handle, *args, **kwargs), function)

        begin = partial(self._core.begin, self._made)
        result: R | AlreadyDone = await self._driver.run(run_transaction(self._core, begin, run_id, body))
        return result

    @overload
    def transactional(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]]
    ) -> AsyncTransactional[P, R]: ...

    @overload
    def transactional(
        self, function: Callable[Concatenate[OwnerT, AsyncTransaction, P], Awaitable[R]]
    ) -> TransactionalMethod[OwnerT, AsyncTransactional[P, R]]: ...

    def transactional(self, function: Callable[..., Any]) -> Any:
        """Decorate an `async def` function so that it runs in a transaction; see `Database.transactional`."""
        place = transaction_place(function)

        @functools.wraps(function)
        async def transacted(*args: Any, **kwargs: Any) -> Any:
            if len(args) > place and isinstance(args[place], AsyncTransaction):
                return await check_awaitable(function(*args, **kwargs), function)
            called = MethodType(function, args[0]) if place and args else function
            return await self.run(called, *args[place:], **kwargs)

        return transacted

    # One call, one transaction

    @overload
    async def get(self, table: str, key: bytes, codec: None = None) -> dict[bytes, bytes] | None: ...

    @overload
    async def get(self, table: str, key: Any, codec: Literal["json"]) -> dict[str, Any] | None: ...

    @overload
    async def get(self, table: str, key: Any, codec: type[RowT]) -> RowT | None: ...

    async def get(self, table: str, key: Any, codec: Any = None) -> Any:
        """Return the current row with this key; see `Database.get`."""
        async with self.snapshot() as tx:
            return await (await tx.table(table, codec)).get(key)

    @overload
    async def put(self, table: str, row: bytes, cells: Cells, codec: None = None) -> None: ...

    @overload
    async def put(self, table: str, row: Mapping[str, Any], cells: None = None, *, codec: Literal["json"]) -> None: ...

    @overload
    async def put(self, table: str, row: RowT, cells: None = None, *, codec: type[RowT]) -> None: ...

    async def put(self, table: str, row: Any, cells: Any = None, codec: Any = None) -> None:
        """Set columns of a row in a new transaction; see `Database.put`."""
        check_put(table, cells, codec)

        async def put(tx: AsyncTransaction) -> None:
            if codec is None:
                await (await tx.table(table)).put(row, cells)
            else:
                await (await tx.table(table, codec)).put(row)

        await self.run(put)

    @overload
    async def delete(self, table: str, key: bytes, codec: None = None) -> None: ...

    @overload
    async def delete(self, table: str, key: Any, codec: Any) -> None: ...

    async def delete(self, table: str, key: Any, codec: Any = None) -> None:
        """Delete a row in a new transaction; see `Database.delete`."""

        async def delete(tx: AsyncTransaction) -> None:
            await (await tx.table(table, codec)).delete(key)

        await self.run(delete)

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
    ) -> AsyncIterator[tuple[bytes, dict[bytes, bytes]]]: ...

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
    ) -> AsyncIterator[dict[str, Any]]: ...

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
    ) -> AsyncIterator[RowT]: ...

    async def scan(
        self,
        table: str,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        codec: Any = None,
    ) -> AsyncIterator[Any]:
        """Iterate over the current rows with `async for`; see `Database.scan`. The first step of the iteration takes
        the snapshot."""
        first = b"" if start is None and codec is None else start
        async with self.snapshot() as tx:
            found = await tx.table(table, codec)
            async for row in found.scan(first, stop, prefix=prefix, limit=limit, reverse=reverse):
                yield row

    async def bookmark(self, *, keep_seconds: float | None = None) -> Bookmark:
        """Return a bookmark for the position after all commits so far; see `Database.bookmark`."""
        self._core.check_usable()
        leases = self._core.leases
        mark, lease = await self._driver.run(change_feed.draw_bookmark(leases, keep_seconds))
        if lease is not None:
            leases.keep(lease)
        return mark

    @overload
    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: None = None,
    ) -> AsyncIterator[RowChange]: ...

    @overload
    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: Literal["json"],
    ) -> AsyncIterator[TypedChange[dict[str, Any]]]: ...

    @overload
    def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: type[RowT],
    ) -> AsyncIterator[TypedChange[RowT]]: ...

    async def changes(
        self,
        table: str,
        starting: Bookmark | int,
        ending: Bookmark | int | None = None,
        *,
        prefix: Any = None,
        codec: Any = None,
    ) -> AsyncIterator[Any]:
        """Iterate over the changes of a table with `async for`; see `Database.changes`. An error ends the iteration."""
        run, view = self._driver.run, view_of(self._core.deployment.catalog, codec)
        scan = await run(change_feed.begin_changes(self._core, table, starting, ending, prefix, view))
        while (found := await run(change_feed.next_shown(self._core, scan, view))) is not None:
            for change in found:
                yield change

    @overload
    def watch(
        self,
        table: str,
        *,
        key: Any = None,
        prefix: Any = None,
        codec: None = None,
        **options: Unpack[WatchOptions],
    ) -> AsyncWatch[RowChange]: ...

    @overload
    def watch(
        self,
        table: str,
        *,
        key: Any = None,
        prefix: Any = None,
        codec: Literal["json"],
        **options: Unpack[WatchOptions],
    ) -> AsyncWatch[TypedChange[dict[str, Any]]]: ...

    @overload
    def watch(
        self,
        table: str,
        *,
        key: Any = None,
        prefix: Any = None,
        codec: type[RowT],
        **options: Unpack[WatchOptions],
    ) -> AsyncWatch[TypedChange[RowT]]: ...

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
    ) -> AsyncWatch[Any]:
        """Return an asynchronous iterator over changes as they are committed; see `Database.watch`. The watch begins at
        `async with`, or otherwise at the first step of the iteration. Cancelling a step closes the watch."""
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
        return AsyncWatch(watching, self._driver)

    release_bookmark = _in_thread(Database.release_bookmark)

    @overload
    async def create_table(
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
    async def create_table(
        self,
        name: str,
        families: Iterable[str | bytes] = (DEFAULT_FAMILY,),
        *,
        conflict_level: ConflictLevel | str | None = None,
        if_not_exists: bool = False,
        split_keys: Sequence[bytes] = (),
        ttl_seconds: float | None = None,
    ) -> TableInfo: ...

    @functools.wraps(Database.create_table)
    async def create_table(self, name: str, families: Any = (DEFAULT_FAMILY,), **options: Any) -> TableInfo:
        return await self._driver.in_thread(partial(self._blocking.create_table, name, families, **options))

    alter_table = _in_thread(Database.alter_table)
    drop_table = _in_thread(Database.drop_table)
    tables = _in_thread(Database.tables)
    table_info = _in_thread(Database.table_info)
    table_schema = _in_thread(Database.table_schema)
    set_schema = _in_thread(Database.set_schema)
    codec = _in_thread(Database.codec)
    alter_columns = _in_thread(Database.alter_columns)
    create_index = _in_thread(Database.create_index)
    drop_index = _in_thread(Database.drop_index)
    status = _in_thread(Database.status)
    compact = _in_thread(Database.compact)
    expire = _in_thread(Database.expire)
    sanitize = _in_thread(Database.sanitize)
    export_parquet = _in_thread(Database.export_parquet)
    import_parquet = _in_thread(Database.import_parquet)
    backup = _in_thread(Database.backup)
    verify = _in_thread(Database.verify)
    drain = _in_thread(Database.drain)

    async def close(self) -> None:
        """Do the background work for transactions that have ended, then close the connection. A second call does
        nothing."""
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            self._tso_threads.shutdown(wait=False)
            try:
                await in_daemon_thread(self._blocking.close)
            except RuntimeError:  # the system cannot start a thread: block the loop
                self._blocking.close()
            finally:
                self._store_threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncDatabase:
        self._core.check_usable()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncDatabase over {self._blocking!r}>"

    def _made(self, begun: BeginReply, lease: Lease | None, *, read_only: bool = False) -> TransactionCore:
        """Return a transaction for one task. It gives its lease back without waiting, because the loop must not
        block."""
        leases, tso = self._core.leases, self._session
        return OneCallAtATime(self._core, begun, lease, read_only=read_only, end_lease=leases.give_back, tso=tso)


def _handlers(session: AsyncTso) -> dict[type[Effect[Any]], AsyncHandler]:
    """Return handlers for begin and commit on the loop's own connection."""

    async def send_commit(effect: SendCommit) -> CommitReply:
        crash_point("client.commit.before")
        reply = await session.commit(effect.request)
        crash_point("client.commit.answered")
        return reply

    async def begin(effect: Begin) -> BeginReply:
        reply = await session.begin(not_before=effect.not_before)
        if not effect.is_held:
            reply.end()
        return reply

    return {Begin: begin, SendCommit: send_commit}
