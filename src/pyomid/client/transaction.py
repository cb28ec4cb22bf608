"""A transaction: one snapshot, own writes, one commit.

    with db.begin() as tx:                # commits at the end, rolls back on an exception
        tx.table("accounts").put(b"alice", {b"f:balance": b"100"})

A transaction belongs to the thread that began it, in the process that began it: any use from elsewhere is refused.
`client.transaction_base` has its states and its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pyomid.client.drive import Blocking
from pyomid.client.session.leases import Lease
from pyomid.client.table import Table
from pyomid.client.transaction_base import Decided, Event, TransactionBase
from pyomid.client.transaction_steps import TransactionSteps
from pyomid.client.validation import TableRules
from pyomid.protocol.effects import Steps
from pyomid.types import BeginReply

if TYPE_CHECKING:
    from pyomid.client.database import Database

TableT = TypeVar("TableT")


class RowTransaction(TransactionBase[TransactionSteps], ABC, Generic[TableT]):
    """A transaction whose rows this process reads and writes, as the blocking and the asyncio front end drive it."""

    def __init__(
        self, database: Database, begun: BeginReply, lease: Lease | None, end_lease: Callable[[Lease], None]
    ) -> None:
        workspace = TransactionSteps(
            begun, database.commit_cache, flush_bytes=database.settings.flush_bytes, ahead=database.writes_ahead
        )
        super().__init__(workspace, lease=lease, end_lease=end_lease)
        self.database: Final = database
        """The parts that it works with; for pyomid's own use."""
        self._begun = begun
        self._tables: dict[str, TableT] = {}

    def table_steps(self, name: str) -> Steps[TableT]:
        self.step(Event.READ)
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            read_rules = partial(self.database.table_rules, name, self._begun, leased=self.is_leased)
            table = self._tables[name] = self._new_table((yield Blocking(read_rules)))
        return table

    def flush_steps(self) -> Steps[None]:
        return self.alone(self._flush_steps())

    def send_steps(self) -> Steps[None]:
        """There is enough held back: it leaves. Errors as of a flush, those of writes that left before it too."""
        return self.alone(self.sent_steps())

    # For pyomid's own use

    @abstractmethod
    def _new_table(self, rules: TableRules) -> TableT: ...

    def begin_write(self) -> None:
        """Before a write is held."""
        self.step(Event.WRITE)

    def sent_steps(self) -> Steps[None]:
        """`send_steps`, inside of a call."""
        return self._leaving_steps(self.workspace.send_steps())

    def begin_read_steps(self) -> Steps[None]:
        """What a read must find in the store is there. Errors as of a flush."""
        self.step(Event.READ)
        if self.workspace.is_writing:
            yield from self._leaving_steps(self.workspace.end_steps())

    def _flush_steps(self) -> Steps[None]:
        self.step(Event.WRITE)
        yield from self._leaving_steps(self.workspace.flush_steps())

    def _leaving_steps(self, steps: Steps[None]) -> Steps[None]:
        """After an error some of the writes may be there: rollback-only (C1)."""
        try:
            yield from steps
        except BaseException as error:
            self.doom(Event.DOOM, f"a flush of its writes failed: {error}")
            raise

    def _committed_steps(self, decided: Decided) -> Steps[None]:
        end = partial(self.database.end_committed, self.start_ts, decided.reply.commit_ts, decided.written)
        yield from self._behind_steps(end)

    def _rolled_back_steps(self) -> Steps[None]:
        yield from self._behind_steps(partial(self.database.end_rolled_back, self.workspace))

    def _behind_steps(self, end: Callable[[], None]) -> Steps[None]:
        """The outcome is known: no error, as of a system that gives no thread to do this in, may pass for it."""
        try:
            yield Blocking(end)
        except Exception as error:
            self.database.background.failed(error)


class Transaction(RowTransaction[Table]):
    """One snapshot, own writes, one commit. Made by `Database.begin`; a context manager that commits at its end."""

    def __init__(self, database: Database, begun: BeginReply, lease: Lease | None = None) -> None:
        super().__init__(database, begun, lease, database.leases.end)
        self._run = database.driver.run

    def table(self, name: str) -> Table:
        """A table as this transaction sees it. `UnknownTable` where there is none."""
        return self._run(self.table_steps(name))

    def commit(self) -> None:
        """Durable and visible to every later begin on return.

        `ConflictError`: another transaction won, this one is rolled back; run it again. `TransactionEnded`: it ended
        before, or is rollback-only. `OutcomeUnknown`: it may have committed, and no evidence is left. Any other error:
        nothing was committed, and the transaction is rollback-only.
        """
        self._run(self.commit_steps())

    def rollback(self) -> None:
        """Ends the transaction; none of its writes is ever visible, and they are deleted in the background. A second
        rollback does nothing; after a commit `TransactionEnded`.
        """
        self._run(self.rollback_steps())

    def flush(self) -> None:
        """Sends the writes buffered so far to the store; commit does it anyway. After an error the transaction is
        rollback-only: some of them may be there (C1).
        """
        self._run(self.flush_steps())

    def __enter__(self) -> Transaction:
        self.step(Event.READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self.exit_steps(kind))

    def _new_table(self, rules: TableRules) -> Table:
        return Table(self, rules, self._run)
