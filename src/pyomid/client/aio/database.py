"""A database for asyncio: what `pyomid.aio.connect` returns. Thin, over the same steps as `client.database`.

Begin and commit are awaited on the session's own connection; what blocks on the disk runs on a few threads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from pyomid.client.aio.transaction import AsyncTransaction
from pyomid.client.database import Database, DatabaseStatus
from pyomid.client.deployment import Deployment
from pyomid.client.drive import AsyncDriver
from pyomid.client.idempotency import (
    MARKERS_TABLE,
    AlreadyDone,
    check_transaction_id,
    found_marker_named,
    marker_row,
    named_marker_cell,
)
from pyomid.client.retry import Tries, check_awaitable
from pyomid.client.session.leases import Lease
from pyomid.client.table_admin import ensure_markers_table
from pyomid.crashpoints import crash_point
from pyomid.ports import Tso
from pyomid.protocol import effects
from pyomid.types import BeginReply, CommitReply, CommitRequest, ConflictLevel, SealOutcome, TableInfo

P = ParamSpec("P")
R = TypeVar("R")

TSO_THREADS: Final = 16
"""Requests under way at once over a blocking session, which pipelines them on one connection."""

STORE_THREADS: Final = 4
"""Store calls under way at once: some wait for a disk while others decode."""


class AsyncTso(Protocol):
    """The part of `ports.Tso` that is on a transaction's path, awaited."""

    async def begin(self, *, not_before: int = 0) -> BeginReply: ...

    async def commit(self, request: CommitRequest) -> CommitReply: ...

    async def seal(self, starts: Sequence[int]) -> list[SealOutcome]: ...

    async def close(self) -> None: ...


class ThreadedTso:
    """A blocking session awaited: each request waits in a thread of its own pool, so that none waits for a disk."""

    def __init__(self, tso: Tso) -> None:
        self._tso = tso
        self._executor = ThreadPoolExecutor(TSO_THREADS, thread_name_prefix="pyomid-tso")

    async def begin(self, *, not_before: int = 0) -> BeginReply:
        return await self._in_thread(lambda: self._tso.begin(not_before=not_before))

    async def commit(self, request: CommitRequest) -> CommitReply:
        return await self._in_thread(lambda: self._tso.commit(request))

    async def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        return await self._in_thread(lambda: self._tso.seal(starts))

    async def close(self) -> None:
        self._executor.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


class AsyncDatabase:
    """As `Database`, with awaits; `pyomid.aio.connect` returns it.

    It works over one blocking `Database` (tables, completion, close) and a session of its own (begin, commit, seal);
    without such a session it asks the database's own one in threads.
    """

    def __init__(self, database: Database, session: AsyncTso | None = None) -> None:
        tso = session or ThreadedTso(database.parts.tso)
        self._database = database
        self._tso = tso
        self._executor = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="pyomid-store")
        self._random = random.Random()
        awaited: dict[type[effects.Effect], Callable[[Any], Awaitable[Any]]] = {
            effects.SendCommit: self._send_commit,
            effects.SealStarts: lambda e: tso.seal(e.starts),
        }
        self.driver: Final = AsyncDriver(database.parts, awaited, database.background, self._executor)

    def begin(self, *, not_before: int = 0, lease: bool = False) -> Beginning:
        """`async with db.begin() as tx`, or `tx = await db.begin()`; as `Database.begin`."""
        self._database.check_usable()
        return Beginning(self._begin(not_before, lease))

    async def run(
        self,
        function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """As `Database.run`, for an `async def`."""
        result = await self._run(None, lambda tx: check_awaitable(function(tx, *args, **kwargs), function))
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
        checked = check_transaction_id(transaction_id)
        await self.driver.in_thread(lambda: ensure_markers_table(self.parts))
        return await self._run(checked, lambda tx: check_awaitable(function(tx, *args, **kwargs), function))

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
        await self._tso.close()
        await asyncio.to_thread(self._database.close)
        self._executor.shutdown(wait=False)

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
        self._executor.submit(self._database.leases.end, lease)

    async def _begin(self, not_before: int, leased: bool) -> AsyncTransaction:
        begun = await self._tso.begin(not_before=not_before)
        crash_point("client.begin.after")
        lease = None
        if leased:
            leases, term_s = self._database.leases, self._database.settings.lease_seconds
            lease = await self.driver.in_thread(lambda: leases.grant(begun.start_ts, term_s))
        return AsyncTransaction(self, begun, lease)

    async def _send_commit(self, effect: effects.SendCommit) -> CommitReply:
        crash_point("client.commit.before")
        reply = await self._tso.commit(effect.request)
        crash_point("client.commit.answered")
        return reply

    async def _run(
        self, transaction_id: str | None, body: Callable[[AsyncTransaction], Awaitable[R]]
    ) -> R | AlreadyDone:
        """`client.retry.run_transaction` with awaits."""
        tries = Tries(self._database.backoff(), transaction_id)
        while True:
            try:
                async with self.begin(not_before=tries.not_before) as transaction:
                    done = None if transaction_id is None else await _claim_marker(transaction, transaction_id)
                    return done if done is not None else await body(transaction)
            except BaseException as error:
                pause_s = tries.pause_s(error)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)


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


async def _claim_marker(transaction: AsyncTransaction, transaction_id: str) -> AlreadyDone | None:
    """`client.retry.claim_marker` with awaits."""
    markers = await transaction.table(MARKERS_TABLE)
    done = found_marker_named(transaction_id, await markers.get(marker_row(transaction_id)))
    if done is None:
        await markers.put(marker_row(transaction_id), named_marker_cell(transaction.start_ts))
    return done
