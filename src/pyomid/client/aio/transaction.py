"""A transaction for asyncio: `client.transaction` with awaits, over the same steps.

    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})

One task uses it at a time: a second call while one is under way is refused. A cancelled read harms nothing; a
cancelled flush leaves the transaction rollback-only, a cancelled commit of unknown outcome.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from pyomid.client.aio.table import AsyncTable
from pyomid.client.session.leases import Lease
from pyomid.client.transaction import RowTransaction
from pyomid.client.transaction_base import Event
from pyomid.client.validation import TableRules
from pyomid.errors import Misuse
from pyomid.protocol.effects import Steps
from pyomid.types import BeginReply

if TYPE_CHECKING:
    from pyomid.client.aio.database import AsyncDatabase

T = TypeVar("T")


class AsyncTransaction(RowTransaction[AsyncTable]):
    """As `Transaction`, with awaits. Made by `AsyncDatabase.begin`; one call at a time."""

    def __init__(self, front: AsyncDatabase, begun: BeginReply, lease: Lease | None = None) -> None:
        super().__init__(front.blocking, begun, lease, front.end_lease)
        self._run = front.driver.run
        self._busy = False

    async def table(self, name: str) -> AsyncTable:
        """A table as this transaction sees it. `UnknownTable` where there is none."""
        return await self._run(self.table_steps(name))

    async def commit(self) -> None:
        """As `Transaction.commit`. If it is cancelled after its request left, the outcome is unknown."""
        await self._run(self.commit_steps())

    async def rollback(self) -> None:
        """As `Transaction.rollback`."""
        await self._run(self.rollback_steps())

    async def flush(self) -> None:
        """As `Transaction.flush`."""
        await self._run(self.flush_steps())

    async def __aenter__(self) -> AsyncTransaction:
        self.step(Event.READ)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._run(self.exit_steps(kind))

    # For pyomid's own use

    def alone(self, steps: Steps[T]) -> Steps[T]:
        """A flush and a read side by side would see each other's halves."""
        self._check_free()
        self._busy = True
        try:
            return (yield from steps)
        finally:
            self._busy = False

    def begin_write(self) -> None:
        self._check_free()
        super().begin_write()

    def _new_table(self, rules: TableRules) -> AsyncTable:
        return AsyncTable(self, rules, self._run)

    def _check_free(self) -> None:
        if self._busy:
            raise Misuse(
                f"transaction {self.start_ts} is used by two tasks at once: await one call before the next, or begin "
                "one transaction a task",
                start_ts=self.start_ts,
            )
