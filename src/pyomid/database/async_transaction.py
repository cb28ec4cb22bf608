"""The asyncio transaction, whose methods do the same as those of `Transaction`, and are awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Iterable
from typing import Any, Literal, TypeVar, overload

from pyomid.async_blocks import AsyncBlock, AwaitedBlock
from pyomid.coroutines import Routine
from pyomid.database.async_driver import AsyncDriver
from pyomid.database.tables.async_tables import AsyncTable, AsyncTypedTable
from pyomid.database.tables.typed import RowT, TypedCore
from pyomid.database.transaction import Event, TransactionCore, TransactionHandle
from pyomid.database.validation import Handle
from pyomid.errors import Misuse

T = TypeVar("T")


class AsyncTransaction(AsyncBlock, TransactionHandle):
    """The asyncio version of `Transaction`, returned by `AsyncDatabase.begin`. A transaction accepts one call at a
    time."""

    def __init__(self, core: TransactionCore, driver: AsyncDriver) -> None:
        self._core = core
        self._run = driver.run

    @overload
    async def table(self, name: str, codec: None = None) -> AsyncTable: ...

    @overload
    async def table(self, name: str, codec: Literal["json"]) -> AsyncTypedTable[dict[str, Any]]: ...

    @overload
    async def table(self, name: str, codec: type[RowT]) -> AsyncTypedTable[RowT]: ...

    async def table(self, name: str, codec: Any = None) -> Any:
        """Return a table as this transaction sees it; see `Transaction.table`."""
        table, run = await self._run(self._core.table(name)), self._run_alone
        return AsyncTable(table, run) if codec is None else AsyncTypedTable(TypedCore(table, codec), run)

    async def claim(self, table: str, keys: Iterable[Any], columns: Iterable[bytes] | None = None) -> None:
        """Claim rows, or columns of rows; see `Transaction.claim`. The commit checks claimed data for conflicts as if
        the transaction had written it."""
        return await self._run(self._core.claim(table, keys, columns))

    async def commit(self) -> None:
        """Commit the transaction; see `Transaction.commit`. If the call is cancelled after it sent the commit request,
        the outcome of the transaction is unknown."""
        return await self._run(self._core.committing())

    async def rollback(self) -> None:
        """Roll back the transaction; see `Transaction.rollback`. If the transaction has ended already, the call does
        nothing."""
        return await self._run(self._core.rolling_back())

    async def flush(self) -> None:
        """Send the buffered writes to the store now; see `Transaction.flush`."""
        return await self._run(self._core.flush())

    async def __aenter__(self) -> AsyncTransaction:
        self._core.step(Event.READ)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._run(self._core.exit_block(kind))

    def _run_alone(self, routine: Routine[T]) -> Coroutine[Any, Any, T]:
        return self._run(self._core.alone(routine))


class Beginning(AwaitedBlock, Handle):
    """A begin in flight, returned by `AsyncDatabase.begin`: await it, or enter it by `async with`, which commits at the
    end."""

    def __init__(self, begin: Awaitable[AsyncTransaction]) -> None:
        self._begin = begin
        self._transaction: AsyncTransaction | None = None

    def __repr__(self) -> str:
        return "<Beginning of a transaction: await it, or enter it by `async with`>"

    def __await__(self) -> Generator[Any, None, AsyncTransaction]:
        return self._begin.__await__()

    async def __aenter__(self) -> AsyncTransaction:
        self._transaction = await self._begin
        return await self._transaction.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._transaction is not None
        await self._transaction.__aexit__(kind)


class OneCallAtATime(TransactionCore):
    """A transaction of a task, which refuses concurrent calls, because a read during a flush would see only part of the
    writes."""

    _is_busy = False

    async def alone(self, routine: Routine[T]) -> T:
        try:
            self._check_free()
        except BaseException:
            routine.close()
            raise
        self._is_busy = True
        try:
            return await routine
        finally:
            self._is_busy = False

    def begin_write(self) -> None:
        self._check_free()
        super().begin_write()

    def _check_free(self) -> None:
        if self._is_busy:
            raise Misuse(
                f"transaction {self.start_ts} is used by two tasks at once: await one call before the next, or begin "
                "one transaction per task",
                start_ts=self.start_ts,
            )
