"""A transaction for asyncio: `client.transaction` with awaits, over the same steps.

    async with db.begin() as tx:
        accounts = await tx.table("accounts")
        await accounts.put(b"alice", {b"f:balance": b"100"})

One task uses it at a time: a second call while one is under way is refused. A cancelled read harms nothing; a
cancelled flush leaves the transaction rollback-only, a cancelled commit of unknown outcome.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from pyomid.client.aio_table import AsyncTable
from pyomid.client.leases import Lease
from pyomid.client.life import Life, refusal
from pyomid.client.states import ENDED, Event, State
from pyomid.client.workspace import Workspace
from pyomid.core.committing import commit_steps
from pyomid.core.effects import Steps
from pyomid.errors import Misuse, OmidError, OutcomeUnknown
from pyomid.types import BeginReply

if TYPE_CHECKING:
    from pyomid.client.aio_database import AsyncDatabase

T = TypeVar("T")


class AsyncTransaction(Life):
    """Made by `AsyncDatabase.begin`."""

    def __init__(self, database: AsyncDatabase, begun: BeginReply, lease: Lease | None = None) -> None:
        workspace = Workspace(begun, database.commit_cache, flush_bytes=database.settings.flush_bytes)
        super().__init__(workspace, lease=lease, end_lease=database.end_lease)
        self._database = database
        self._tables: dict[str, AsyncTable] = {}
        self._busy = False

    async def table(self, name: str) -> AsyncTable:
        """A table as this transaction sees it. `UnknownTable` where there is none."""
        self.step(Event.READ)
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            table = self._tables[name] = AsyncTable(self, await self._database.table_rules(name, leased=self.is_leased))
        return table

    async def commit(self) -> None:
        """As `Transaction.commit`. Cancelled after its request left, the transaction is of unknown outcome."""
        self.step(Event.COMMIT)
        try:
            await self.run(self.workspace.flush_steps())
        except BaseException as error:
            self.doom(Event.FAILED, f"its writes did not all reach the store: {error}")
            raise
        if self.workspace.wrote:
            await self._decide()
        else:
            self.step(Event.COMMITTED)

    async def rollback(self) -> None:
        """As `Transaction.rollback`."""
        self.check_owner()
        if self._state is State.ROLLED_BACK:
            return
        self.step(Event.ROLL_BACK)
        await self._database.end_rolled_back(self.workspace)

    async def flush(self) -> None:
        """As `Transaction.flush`."""
        self.step(Event.WRITE)
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

    async def run(self, steps: Steps[T]) -> T:
        """One at a time: a flush and a read side by side would see each other's halves."""
        if self._busy:
            raise Misuse(
                f"transaction {self.start_ts} is used by two tasks at once: await one call before the next, or begin "
                "one transaction a task",
                start_ts=self.start_ts,
            )
        self._busy = True
        try:
            return await self._database.driver.run(steps)
        finally:
            self._busy = False

    async def _decide(self) -> None:
        workspace, database = self.workspace, self._database
        written = workspace.write_set()
        try:
            reply = await self.run(commit_steps(workspace.commit_request(), written))
        except asyncio.CancelledError:
            self.step(Event.LOST)
            raise
        except OmidError as error:
            if isinstance(error, OutcomeUnknown):
                self.step(Event.LOST)
            else:
                self.doom(Event.FAILED, f"its commit request took no effect: {error}")
            raise
        except BaseException:
            self.step(Event.LOST)
            raise
        if not reply.committed:
            self.step(Event.REFUSED)
            await database.end_rolled_back(workspace)
            raise refusal(reply)
        self.committed(reply.commit_ts)
        await database.end_committed(workspace.start_ts, reply.commit_ts, written)
