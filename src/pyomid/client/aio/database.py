"""A database for asyncio: what `pyomid.aio.connect` returns. Thin, over the same steps as `client.database`.

Begin and commit are awaited on the session's own connection; what blocks on the disk runs on a few threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from pyomid.client.aio.transaction import AsyncTransaction
from pyomid.client.database import Database, DatabaseStatus
from pyomid.client.deployment import Deployment
from pyomid.client.drive import AsyncDriver, AsyncHandler
from pyomid.client.idempotency import AlreadyDone, check_transaction_id
from pyomid.client.retry import check_awaitable, run_steps
from pyomid.client.session.aio import AsyncTsoSession
from pyomid.client.session.leases import Lease
from pyomid.crashpoints import crash_point
from pyomid.protocol.effects import Begin, Effect, SendCommit
from pyomid.types import BeginReply, CommitReply, ConflictLevel, TableInfo

P = ParamSpec("P")
R = TypeVar("R")

TSO_THREADS: Final = 16
"""Requests under way at once over a blocking session, which pipelines them on one connection."""

STORE_THREADS: Final = 4
"""Store calls under way at once: some wait for a disk while others decode."""


class AsyncDatabase:
    """As `Database`, with awaits; `pyomid.aio.connect` returns it.

    It works over one blocking `Database` (tables, completion, close) and a session of its own (begin, commit). Whatever
    else it asks the TSO, and everything without such a session, goes by the database's own session in threads.
    """

    def __init__(self, database: Database, session: AsyncTsoSession | None = None) -> None:
        self._database = database
        self._session = session
        self._tso_threads = ThreadPoolExecutor(TSO_THREADS, thread_name_prefix="pyomid-tso")
        self._store_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="pyomid-store")
        self.driver: Final = AsyncDriver(
            database.driver,
            {} if session is None else _awaited(session),
            tso_threads=self._tso_threads,
            store_threads=self._store_threads,
        )

    def begin(self, *, not_before: int = 0, lease: bool = False) -> Beginning:
        """`async with db.begin() as tx`, or `tx = await db.begin()`; as `Database.begin`."""
        self._database.check_usable()
        return Beginning(self.driver.run(self._database.begin_steps(self._made, not_before, lease=lease)))

    async def run(
        self,
        function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """As `Database.run`, for an `async def`."""
        result = await self._run(None, function, *args, **kwargs)
        assert not isinstance(result, AlreadyDone)
        return result

    async def run_once(
        self,
        transaction_id: str,
        function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        """As `Database.run_once`, for an `async def`."""
        return await self._run(check_transaction_id(transaction_id), function, *args, **kwargs)

    async def _run(
        self,
        transaction_id: str | None,
        function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R | AlreadyDone:
        def body(transaction: AsyncTransaction) -> Awaitable[R]:
            return check_awaitable(function(transaction, *args, **kwargs), function)

        begin = partial(self._database.begin_steps, self._made)
        result: R | AlreadyDone = await self.driver.run(run_steps(self._database, begin, transaction_id, body))
        return result

    async def create_table(
        self,
        name: str,
        families: Any,
        conflict_level: ConflictLevel | str = ConflictLevel.CELL,
        *,
        if_not_exists: bool = False,
    ) -> TableInfo:
        """As `Database.create_table`."""
        return await self.driver.in_thread(
            lambda: self._database.create_table(name, families, conflict_level, if_not_exists=if_not_exists)
        )

    async def drop_table(self, name: str) -> None:
        """As `Database.drop_table`."""
        await self.driver.in_thread(lambda: self._database.drop_table(name))

    async def tables(self) -> list[TableInfo]:
        """As `Database.tables`."""
        return await self.driver.in_thread(self._database.tables)

    async def status(self) -> DatabaseStatus:
        """As `Database.status`."""
        return await self.driver.in_thread(self._database.status)

    async def drain(self, timeout_s: float | None = None) -> bool:
        """As `Database.drain`."""
        return await self.driver.in_thread(lambda: self._database.drain(timeout_s))

    async def close(self) -> None:
        """Completes finished transactions and closes the connection; a second call does nothing."""
        if self._session is not None:
            await self._session.close()
        self._tso_threads.shutdown(wait=False)
        await asyncio.to_thread(self._database.close)
        self._store_threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncDatabase:
        self._database.check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # For pyomid's own use

    @property
    def blocking(self) -> Database:
        """What it works over."""
        return self._database

    @property
    def parts(self) -> Deployment:
        return self._database.parts

    def end_lease(self, lease: Lease) -> None:
        """Not waited for: the loop must not block, and a lease that is not ended expires."""
        self._store_threads.submit(self._database.leases.end, lease)

    def _made(self, begun: BeginReply, lease: Lease | None) -> AsyncTransaction:
        return AsyncTransaction(self, begun, lease)


def _awaited(session: AsyncTsoSession) -> dict[type[Effect], AsyncHandler]:
    """What a transaction waits for each time, on the loop's own connection."""

    async def send_commit(effect: SendCommit) -> CommitReply:
        crash_point("client.commit.before")
        reply = await session.commit(effect.request)
        crash_point("client.commit.answered")
        return reply

    return {Begin: lambda e: session.begin(not_before=e.not_before), SendCommit: send_commit}


class Beginning:
    """A begin under way: awaited, or entered as a block that commits at its end."""

    def __init__(self, begin: Awaitable[AsyncTransaction]) -> None:
        self._begin = begin
        self._transaction: AsyncTransaction | None = None

    def __await__(self) -> Generator[Any, None, AsyncTransaction]:
        return self._begin.__await__()

    async def __aenter__(self) -> AsyncTransaction:
        self._transaction = await self._begin
        return await self._transaction.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._transaction is not None
        await self._transaction.__aexit__(kind, error, traceback)
