"""A transaction: one snapshot, own writes, one commit.

    with db.begin() as tx:                # commits at the end, rolls back on an exception
        tx.table("accounts").put(b"alice", {b"f:balance": b"100"})

A transaction belongs to the thread that began it, in the process that began it: any use from elsewhere is refused.
`client.transaction_base` has its life as a table.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from pyomid.client.session.leases import Lease
from pyomid.client.table import Table
from pyomid.client.transaction_base import ENDED, Event, State, TransactionBase, refusal
from pyomid.client.transaction_steps import TransactionSteps
from pyomid.protocol.effects import Steps
from pyomid.types import BeginReply

if TYPE_CHECKING:
    from pyomid.client.database import Database


class Transaction(TransactionBase[TransactionSteps]):
    """One snapshot, own writes, one commit. Made by `Database.begin`; a context manager that commits at its end."""

    def __init__(self, database: Database, begun: BeginReply, lease: Lease | None = None) -> None:
        workspace = TransactionSteps(
            begun, database.commit_cache, flush_bytes=database.settings.flush_bytes, ahead=database.writes_ahead
        )
        super().__init__(workspace, lease=lease, end_lease=database.leases.end)
        self._database = database
        self._begun = begun
        self._tables: dict[str, Table] = {}

    def table(self, name: str) -> Table:
        """A table as this transaction sees it. `UnknownTable` where there is none."""
        self.step(Event.READ)
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            table = self._tables[name] = Table(
                self, self._database.table_rules(name, self._begun, leased=self.is_leased)
            )
        return table

    def commit(self) -> None:
        """Durable and visible to every later begin on return.

        `ConflictError`: another transaction won, this one is rolled back; run it again. `TransactionEnded`: it ended
        before, or is rollback-only. `OutcomeUnknown`: it may have committed, and no evidence is left. Any other error:
        nothing was committed, and the transaction is rollback-only.
        """
        decided = self._database.driver.run(self.commit_steps())
        if decided is None:
            return
        if not decided.reply.committed:
            self._database.end_rolled_back(self.workspace)
            raise refusal(decided.reply)
        self._database.end_committed(self.start_ts, decided.reply.commit_ts, decided.written)

    def rollback(self) -> None:
        """Ends the transaction; none of its writes is ever visible, and they are deleted in the background. A second
        rollback does nothing; after a commit `TransactionEnded`.
        """
        self.check_owner()
        if self._state is State.ROLLED_BACK:
            return
        self.step(Event.ROLL_BACK)
        self._database.end_rolled_back(self.workspace)

    def flush(self) -> None:
        """Sends the writes buffered so far to the store; commit does it anyway. After an error the transaction is
        rollback-only: some of them may be there (C1).
        """
        self.step(Event.WRITE)
        self._write(self.workspace.flush_steps())

    def __enter__(self) -> Transaction:
        self.step(Event.READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state in ENDED:
            return
        if kind is not None:
            if self.can_roll_back:
                self.rollback()
            return
        try:
            self.commit()
        except BaseException:
            if self._state is State.DOOMED:
                self.rollback()
            raise

    # For pyomid's own use

    @property
    def database(self) -> Database:
        return self._database

    def send(self) -> None:
        """There is enough held back: it leaves. Errors as of `flush`, those of writes that left before it too."""
        self._write(self.workspace.send_steps())

    def begin_read(self) -> None:
        """What a read must find in the store is there. Errors as of `flush`."""
        self.step(Event.READ)
        if self.workspace.is_writing:
            self._write(self.workspace.end_steps())

    def _write(self, steps: Steps[None]) -> None:
        try:
            self._database.driver.run(steps)
        except BaseException as error:
            self.doom(Event.DOOM, f"a flush of its writes failed: {error}")
            raise
