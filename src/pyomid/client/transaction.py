"""A transaction: one snapshot, own writes, one commit.

    with db.begin() as tx:                # commits at the end, rolls back on an exception
        tx.table("accounts").put(b"alice", {b"f:balance": b"100"})

A transaction belongs to the thread that began it, in the process that began it: any use from elsewhere is refused.
`client.states` has its life as a table.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final

from pyomid.client.leases import Lease
from pyomid.client.states import ENDED, Event, State, next_state
from pyomid.client.table import Table
from pyomid.client.workspace import Workspace
from pyomid.core.committing import commit_steps
from pyomid.errors import ConflictError, Misuse, OmidError, OutcomeUnknown, SnapshotTooOld
from pyomid.types import AbortReason, BeginReply, CommitReply

if TYPE_CHECKING:
    from pyomid.client.database import Database


class Transaction:
    """Made by `Database.begin`."""

    def __init__(self, database: Database, begun: BeginReply, lease: Lease | None = None) -> None:
        self._database = database
        self._lease = lease
        self._state = State.ACTIVE
        self._doom: str = ""
        self._commit_ts: int | None = None
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        self._tables: dict[str, Table] = {}
        self.workspace: Final = Workspace(begun, database.commit_cache, flush_bytes=database.settings.flush_bytes)
        """The reads and writes themselves; for pyomid's own use."""

    @property
    def start_ts(self) -> int:
        """The snapshot: everything committed before it is seen."""
        return self.workspace.start_ts

    @property
    def commit_ts(self) -> int | None:
        """None until committed, and for a transaction that wrote nothing."""
        return self._commit_ts

    @property
    def state(self) -> State:
        return self._state

    def table(self, name: str) -> Table:
        """A table as this transaction sees it. `UnknownTable` where there is none."""
        self.step(Event.READ)
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            table = self._tables[name] = Table(self, self._database.table_rules(name))
        return table

    def commit(self) -> None:
        """Durable and visible to every later begin on return.

        `ConflictError`: another transaction won, this one is rolled back; run it again. `TransactionEnded`: it ended
        before, or is rollback-only. `OutcomeUnknown`: it may have committed, and no evidence is left. Any other error:
        nothing was committed, and the transaction is rollback-only.
        """
        self.step(Event.COMMIT)
        try:
            self._database.driver.run(self.workspace.flush_steps())
        except BaseException as error:
            self._doomed(Event.FAILED, f"its writes did not all reach the store: {error}")
            raise
        if not self.workspace.wrote:
            self.step(Event.COMMITTED)
            return
        self._decide()

    def rollback(self) -> None:
        """Nothing of it is ever visible. What it wrote is deleted in the background. After an earlier rollback
        nothing happens; after a commit `TransactionEnded`.
        """
        self._check_owner()
        if self._state is State.ROLLED_BACK:
            return
        self.step(Event.ROLL_BACK)
        self._database.end_rolled_back(self.workspace)

    def mark_rollback_only(self, reason: str = "marked so by the program") -> None:
        """From now on commit is refused; reading goes on."""
        self._doomed(Event.DOOM, reason)

    def flush(self) -> None:
        """Sends the writes held back so far to the store; commit does it anyway. After an error the transaction is
        rollback-only: some of them may be there (C1).
        """
        self.step(Event.WRITE)
        try:
            self._database.driver.run(self.workspace.flush_steps())
        except BaseException as error:
            self._doomed(Event.DOOM, f"a flush of its writes failed: {error}")
            raise

    def __enter__(self) -> Transaction:
        self.step(Event.READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state in ENDED:
            return
        if kind is None:
            try:
                self.commit()
            except BaseException:
                if self._state is State.DOOMED:
                    self.rollback()
                raise
        elif os.getpid() == self._pid and self._state is not State.COMMITTING:
            self.rollback()

    def __repr__(self) -> str:
        return f"<Transaction {self.start_ts} {self._state.value}>"

    # For pyomid's own use

    @property
    def database(self) -> Database:
        return self._database

    def step(self, event: Event) -> None:
        """Refuses what thread, process or state do not allow; otherwise the state after `event`."""
        self._check_owner()
        if self._lease is not None and self._lease.lost is not None and event in _NEED_LEASE:
            self._doom = self._doom or str(self._lease.lost)
            self._state = State.DOOMED if self._state is State.ACTIVE else self._state
            raise self._lease.lost
        self._state = next_state(self._state, event, start_ts=self.start_ts, reason=self._doom)
        if self._state in ENDED:
            self._release()

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise Misuse(
                f"transaction {self.start_ts} was begun by process {self._pid} and is used in its forked child "
                f"{os.getpid()}: connect and begin again in the child",
                start_ts=self.start_ts,
            )
        if threading.get_ident() != self._thread:
            raise Misuse(
                f"transaction {self.start_ts} belongs to the thread that began it and is used in thread "
                f"{threading.current_thread().name!r}: begin one in each thread",
                start_ts=self.start_ts,
            )

    def _release(self) -> None:
        self._tables.clear()
        if self._lease is not None:
            self._database.leases.end(self._lease)
            self._lease = None

    def _doomed(self, event: Event, reason: str) -> None:
        self.step(event)
        self._doom = self._doom or reason

    def _decide(self) -> None:
        workspace = self.workspace
        written = workspace.write_set()
        try:
            reply = self._database.driver.run(commit_steps(workspace.commit_request(), written))
        except OutcomeUnknown:
            self.step(Event.LOST)
            raise
        except OmidError as error:
            self._doomed(Event.FAILED, f"its commit request took no effect: {error}")
            raise
        except BaseException:
            self.step(Event.LOST)
            raise
        if not reply.committed:
            self.step(Event.REFUSED)
            self._database.end_rolled_back(workspace)
            raise refusal(reply)
        self._commit_ts = reply.commit_ts
        self.step(Event.COMMITTED)
        self._database.end_committed(workspace.start_ts, reply.commit_ts, written)


_NEED_LEASE: Final = frozenset({Event.READ, Event.WRITE, Event.COMMIT})


def refusal(reply: CommitReply) -> ConflictError:
    """The error for an aborted commit, with the commit that caused it where it is known."""
    kind = SnapshotTooOld if reply.reason in _TOO_OLD else ConflictError
    because = _REASONS.get(reply.reason, "another transaction won") if reply.reason else "another transaction won"
    values = {"commit_ts": reply.conflict_ts} if reply.conflict_ts else {}
    by = f" (commit {reply.conflict_ts})" if reply.conflict_ts else ""
    return kind(f"transaction {reply.start_ts} aborted: {because}{by}", start_ts=reply.start_ts, **values)


_TOO_OLD: Final = frozenset({AbortReason.LEASE_LOST})
_REASONS: Final = {
    AbortReason.CONFLICT: "another transaction committed a cell that it wrote",
    AbortReason.LOW_WATERMARK: "it is older than what the TSO remembers of other commits",
    AbortReason.FENCE: "a table that it wrote was fenced",
    AbortReason.TABLE: "another transaction committed to a table that it claimed as a whole",
    AbortReason.SEALED: "it was sealed as dead by a reader",
    AbortReason.LEASE_LOST: "its lease expired",
    AbortReason.RETRY_UNKNOWN: "its first commit request was never decided",
}
