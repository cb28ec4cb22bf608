"""A transaction for asyncio: `client.transaction` with awaits, over the same steps.

    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})

One task uses it at a time: a second call while one is under way is refused. A cancelled read harms nothing; a
cancelled flush leaves the transaction rollback-only, a cancelled commit of unknown outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from pyomid.client.aio.table import AsyncTable
from pyomid.client.session.leases import Lease
from pyomid.client.transaction_base import ENDED, Event, State, TransactionBase, refusal
from pyomid.client.transaction_steps import TransactionSteps
from pyomid.errors import Misuse
from pyomid.protocol.effects import Steps
from pyomid.types import BeginReply

if TYPE_CHECKING:
    from pyomid.client.aio.database import AsyncDatabase

T = TypeVar("T")


class AsyncTransaction(TransactionBase[TransactionSteps]):
    """As `Transaction`, with awaits. Made by `AsyncDatabase.begin`; one call at a time."""

    def __init__(self, database: AsyncDatabase, begun: BeginReply, lease: Lease | None = None) -> None:
        workspace = TransactionSteps(begun, database.commit_cache, flush_bytes=database.settings.flush_bytes)
        super().__init__(workspace, lease=lease, end_lease=database.end_lease)
        self._database = database
        self._begun = begun
        self._tables: dict[str, AsyncTable] = {}
        self._busy = False

    async def table(self, name: str) -> AsyncTable:
        """A table as this transaction sees it. `UnknownTable` where there is none."""
        self.step(Event.READ)
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            rules = await self._database.table_rules(name, self._begun, leased=self.is_leased)
            table = self._tables[name] = AsyncTable(self, rules)
        return table

    async def commit(self) -> None:
        """As `Transaction.commit`. If it is cancelled after its request left, the outcome is unknown."""
        decided = await self.run(self.commit_steps())
        if decided is None:
            return
        if not decided.reply.committed:
            await self._database.end_rolled_back(self.workspace)
            raise refusal(decided.reply)
        await self._database.end_committed(self.start_ts, decided.reply.commit_ts, decided.written)

    async def rollback(self) -> None:
        """As `Transaction.rollback`."""
        self.check_owner()
        if self._state is State.ROLLED_BACK:
            return
        self.step(Event.ROLL_BACK)
        await self._database.end_rolled_back(self.workspace)

    async def flush(self) -> None:
        """As `Transaction.flush`."""
        self.use(Event.WRITE)
        try:
            await self.run(self.workspace.flush_steps())
        except BaseException as error:
            self.doom(Event.DOOM, f"a flush of its writes failed: {error}")
            raise

    async def __aenter__(self) -> AsyncTransaction:
        self.step(Event.READ)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state in ENDED:
            return
        if kind is not None:
            if self.can_roll_back:
                await self.rollback()
            return
        try:
            await self.commit()
        except BaseException:
            if self._state is State.DOOMED:
                await self.rollback()
            raise

    # For pyomid's own use

    @property
    def database(self) -> AsyncDatabase:
        return self._database

    def use(self, event: Event) -> None:
        """`step`, of a call that must not come beside another one."""
        self._check_free()
        self.step(event)

    async def run(self, steps: Steps[T]) -> T:
        """One at a time: a flush and a read side by side would see each other's halves."""
        return await self._alone(lambda: self._database.driver.run(steps))

    async def in_thread(self, call: Callable[[], T]) -> T:
        """A blocking read of the store; one at a time likewise."""
        return await self._alone(lambda: self._database.driver.in_thread(call))

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        self._check_free()
        self._busy = True
        try:
            return await work()
        finally:
            self._busy = False

    def _check_free(self) -> None:
        if self._busy:
            raise Misuse(
                f"transaction {self.start_ts} is used by two tasks at once: await one call before the next, or begin "
                "one transaction a task",
                start_ts=self.start_ts,
            )
